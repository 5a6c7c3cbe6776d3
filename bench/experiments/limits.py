"""How far a step is from what this machine can do: launches that take it apart, and ceilings of the devices.

Ceilings are measured once and kept by device, driver, torch and ranks (:func:`kept_in`): a later run on the machine has
them for nothing. Nothing of this runs in a measured window.
"""

import hashlib
import json
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.core.codec import decode, encode
from bench.core.files import cache_folder, read_json
from bench.core.job import Job
from bench.core.records import canonical_json
from bench.experiments.lab import Lab
from bench.experiments.launch import Performed, perform, where_to_look
from bench.experiments.obstacles import drives_several_gpus
from bench.experiments.plan import Request, job_of
from bench.experiments.resume import DONE
from bench.experiments.rows import Results, Rows
from bench.machine import visible_gpus
from bench.runs.document import RunDocument
from bench.runs.experiments import Ceilings, CeilingsLaunch, Limits, LimitsLaunch, Operator, Work
from bench.runs.files import write_atomically
from bench.runs.launches import BUSY, LaunchRecord
from bench.seams.discover import Found
from bench.seams.experiment import Experiment
from bench.seams.site import interpreter_of
from bench.seams.strategy import Strategy

if TYPE_CHECKING:
    import pandas as pd

    from bench.analyse.analysed import Analysed
    from bench.report.blocks import Chapter
    from bench.report.chapters import Material

Setting = dict[str, object]  # of ceilings: the device, its driver, torch, and the ranks that they were measured by

ASKED = ("limits", "prove")  # options, of which either takes steps apart


def rounds(request: Request, strategy: Strategy) -> int:
    return request.launches if {*ASKED} & {*request.experiments} and not drives_several_gpus(request, strategy) else 0


def launch(found: Found, repeat: int, lab: Lab) -> None:
    """Take a step of a scenario apart."""
    job = replace(job_of(lab.request, found, lab.next_launch(), repeat, lab.site.hosts), purpose="limits")
    perform(job, lab, "taking apart", lambda done: _kept(lab, done), limits_rows)


def _kept(lab: Lab, done: Performed) -> str:
    results, record = _of_training(done.job, done.results), done.record
    first = results[0] if results else {}
    lab.writer.add_to(
        Limits,
        LimitsLaunch.of(
            record,
            spent_ms=tuple(result["spent_ms"] for result in results),
            fresh_ms=tuple(result["fresh_ms"] for result in results if result["fresh_ms"]),
            lead_ms=tuple(result["lead_ms"] for result in results),
            all_reduce_ms=max((ms for one in results if (ms := one["all_reduce_ms"]) is not None), default=None),
            operators=tuple(decode(Operator, one, "operators") for one in first.get("operators", ())),
            reasons={"communication": first.get("pairs_reason"), "operators": first.get("operators_reason")},
        ),
        **done.tables,
    )
    limits = lab.writer.document.begun(Limits)
    if limits.work is None and first.get("work"):
        lab.writer.note(replace(limits, work=decode(Work, first["work"], "work")))
    return where_to_look(record) or "the parts of a step are known"


def limits_rows(job: Job, results: Results, partial: Results) -> dict[str, Rows]:
    """Steps with and without an exchange (:data:`bench.core.records.DIAGNOSTIC_COLUMNS`)."""
    head = {"launch": job.launch, "scenario": job.scenario, "look": "limits"}
    of_training = _of_training(job, results)
    return {"diagnostics": [head | {"rank": one["rank"]} | step for one in of_training for step in one["steps"]]}


def _of_training(job: Job, results: Results) -> Results:
    """Of ranks that train: the account is of their step, in which they wait for a server."""
    return [result for result in results if job.ranks[result["rank"]].replicas]


def after(lab: Lab) -> None:
    """Take the ceilings that are known of this machine into the run, which costs nothing. Measure those that are not
    where steps were taken apart."""
    if lab.writer.document.begun(Limits).work is None:
        return
    for found in lab.runnable:
        job = job_of(lab.request, found, lab.next_launch(), lab.request.launches, lab.site.hosts)
        setting = _setting(job, lab)
        if not _are_known(setting, lab) and rounds(lab.request, found.strategy):
            lab.progress.expect([found.name])
            perform(replace(job, purpose="ceilings"), lab, "measuring ceilings", partial(_keep_ceilings, lab, setting))


def _keep_ceilings(lab: Lab, setting: Setting, done: Performed) -> str:
    lab.writer.add_to(Limits, CeilingsLaunch.of(done.record), "measured")
    if done.record.status != "ok":
        return where_to_look(done.record)
    measured = ceilings_of(setting, done)
    limits = lab.writer.document.begun(Limits)
    lab.writer.note(replace(limits, ceilings=(*limits.ceilings, measured)))
    return keep_for_later(measured, setting, done.record, lab.writer.document.machine.cores_usable)


def _are_known(setting: Setting, lab: Lab) -> bool:
    """Whether the run has these ceilings; it takes those that are kept on this machine."""
    limits = lab.writer.document.begun(Limits)
    if any(_is_of(one, setting) for one in limits.ceilings):
        return True
    kept = from_cache(setting)
    if kept is not None:
        lab.writer.note(replace(limits, ceilings=(*limits.ceilings, kept)))
    return kept is not None


def _setting(job: Job, lab: Lab) -> Setting:
    gpu = next((one for one in visible_gpus()[0] if one.uuid in job.ranks[0].devices), None)
    return {
        "device": gpu.name if gpu else lab.writer.document.machine.cpu or "CPU",
        "driver": gpu.driver if gpu else None,
        "torch": interpreter_of(lab.site.description, job.environment)["torch"],
        "processes": job.processes,
        "threads": job.ranks[0].threads,
    }


def _is_of(ceilings: Ceilings, setting: Setting) -> bool:
    return all(getattr(ceilings, name) == value for name, value in setting.items())


def ceilings_of(setting: Setting, done: Performed) -> Ceilings:
    of_ranks = [result["ceilings"] for result in done.results]
    measured = {
        group: {name: [one[group][name] for one in of_ranks] for name in of_ranks[0][group]}
        for group in ("tflops", "gib_per_s")
    }
    more = {"launch_us": [one["launch_us"] for one in of_ranks], "reasons": of_ranks[0]["reasons"]}
    return decode(Ceilings, {**setting, **measured, **more, "utc": done.record.ended_utc}, "ceilings")


def kept_in(setting: Setting) -> str:
    """The file in which ceilings are kept on this machine."""
    key = hashlib.sha256(canonical_json(setting).encode()).hexdigest()[:16]
    return os.path.join(cache_folder(), f"ceilings-{key}.json")


def from_cache(setting: Setting) -> Ceilings | None:
    """Ceilings that were measured before; None if there are none, or none that can be read."""
    try:
        ceilings = decode(Ceilings, read_json(kept_in(setting)), "ceilings")
    except (OSError, ValueError):
        return None
    return ceilings if _is_of(ceilings, setting) else None


def keep_for_later(ceilings: Ceilings, setting: Setting, launch: LaunchRecord, cores: int | None) -> str:
    """Keep ceilings for later runs, unless others kept the machine busy. Returns a line for people."""
    busy = launch.checks.foreign_cores or 0.0
    if ceilings.driver is None and busy > BUSY * (cores or 1):
        return f"ceilings, not kept for later runs: others kept {busy:.1f} cores busy"
    path = kept_in(setting)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomically(path, json.dumps(encode(ceilings), indent=1).encode())
    except OSError as error:
        return f"ceilings, not kept for later runs: {path}: {error.strerror}"
    return "ceilings, kept for later runs"


def missing(document: RunDocument, request: Request) -> bool:
    """Ceilings whose launch was killed, say: a run that goes on measures them again."""
    return any(one.status not in DONE for one in document.begun(Limits).measured)


def tables(run: "Analysed") -> "dict[str, pd.DataFrame]":
    from bench.analyse.account import limits
    from bench.analyse.limits import achieved

    return {"arithmetic": achieved(run), "limits": limits(run)}


def sentences(run: "Analysed") -> list[str]:
    from bench.words.limits import sentences as words

    return words(run)


def chapter(of: "Material") -> "Chapter":
    from bench.report.blocks import Facts, Grid, chapter_of, fold
    from bench.report.limits import account_table, arithmetic_table, ceilings_table
    from bench.words import tuned
    from bench.words.limits import answers, proved

    run = of.run
    facts, arithmetic = answers(run), arithmetic_table(run)
    ask = "python -m bench limits measures what this machine can do at most, and where the rest of a step goes."
    words, answer = sentences(run) or [ask] * (arithmetic is not None), tuned.answer(run, run.overview)
    return chapter_of(
        "limits",
        "How far from the limit?",
        *(line for line in words if line not in answer),
        *proved(run.document),
        of.plots.get("limits"),
        Facts(tuple(facts)) if facts else None,
        Grid("The account of a step", account_table(run)),
        Grid("Arithmetic", arithmetic),
        fold("What this machine can do", Grid("What this machine can do", ceilings_table(run))),
    )


EXPERIMENT = Experiment(
    record=Limits,
    asked=bool,
    rounds=rounds,
    launch=launch,
    launches="with a step taken apart, and one of the machine's ceilings if they are not known yet",
    missing=missing,
    order=4,
    after=after,
    chapter=chapter,
    sentences=sentences,
    tables=tables,
)
