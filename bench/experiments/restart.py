"""Launches in which a rank is killed, of the strategies that declare it: in rounds, apart from the measured ones."""

import json
import os
import shutil
from dataclasses import replace

from bench.core.codec import decode
from bench.core.records import Job, job_to_json
from bench.experiments import record, resume
from bench.experiments.checkpoint import no_room
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform, where_to_look
from bench.plan import Request, restarted
from bench.runs.experiments import RestartLook, RestartRecord, Restarts
from bench.seams.discover import Found
from bench.seams.experiment import Experiment

EXPERIMENT = Experiment(record=Restarts)

COPIES = 2
"""Of a checkpoint: the one before goes when the next one is whole."""


def of(lab: Lab) -> list[Found]:
    """The scenarios whose ranks are killed."""
    return [found for found in lab.runnable if found.strategy.restarts]


def missing(lab: Lab, request: Request) -> list[str]:
    """Those whose launches are still to be done, one entry for each launch."""
    done = resume.done(lab.writer.document).restarts
    return [found.name for repeat in range(request.launches) for found in of(lab) if (found.name, repeat) not in done]


def in_rounds(lab: Lab) -> None:
    """As many launches of each such scenario as were measured of it."""
    request, done = lab.request, resume.done(lab.writer.document).restarts
    for found, repeat in lab.rounds(of(lab), done, request.launches):
        folder = os.path.join(lab.writer.scratch, "restart")
        _kill_one(*restarted(request, found, lab.next_launch(), repeat, lab.site.hosts, folder), folder, lab)


def _kill_one(job: Job, inner: Job, folder: str, lab: Lab) -> None:
    assert job.checkpoint is not None
    every, hosts = job.checkpoint.steps, {rank.host for rank in inner.ranks}
    reason = no_room(lab, job.scenario, COPIES)
    if reason is not None or len(hosts) > 1:
        status = "error" if reason else "unsupported"
        why = reason or f"torchrun would start ranks on this host alone, and there are {len(hosts)}; use one host"
        lab.progress.begin(job.scenario, "restarting", job.launch)
        lab.progress.end(status=status, text=why)
        blank = replace(record.blank(inner), status=status, reason=why)
        lab.writer.add_to(Restarts, RestartRecord.of(blank, every=every, restart=None))
        return
    os.makedirs(folder)
    with open(job.checkpoint.job_file, "w", encoding="utf-8") as file:
        json.dump(job_to_json(inner), file)

    def keep(done: Performed) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        launch = replace(done.record, processes=inner.processes)
        (seen,) = done.results or [{"missing": None}]
        if seen.get("missing"):
            launch = replace(launch, status="unsupported", reason=seen["missing"])
        times = {name: seen[name] for name in RestartLook.__dataclass_fields__ if name in seen}
        look = decode(RestartLook, times, "restart") if times else None
        lab.writer.add_to(Restarts, RestartRecord.of(launch, every=every, restart=look))
        return (
            where_to_look(launch) or f"the next step is over {times['next_step_ms'] / 1e3:.1f} s after a rank is killed"
        )

    perform(job, lab, "restarting", keep)
