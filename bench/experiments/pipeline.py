"""``bench run`` as a method section: measure in rounds, profile, save checkpoints, and judge what was trained.

Everything that can be wrong with the request is found before the first launch and before anything is written. Then
each launch is one isolated set of processes, and its rows are on disk before the next one starts.
"""

import os
import time

from bench import machine
from bench.console import count, duration, say
from bench.experiments import input_sweep, measure, numerics, resume
from bench.experiments.lab import Finished, Lab, Start, opened
from bench.experiments.plan import Request, in_turns
from bench.runs.document import launches_of
from bench.seams.discover import Found
from bench.seams.experiment import experiments


def run(request: Request, scenarios: tuple[Found, ...], start: Start) -> Finished:
    """Measure every scenario of ``request`` and write a run folder. Raises as :func:`bench.experiments.lab.opened`."""
    with opened(request, scenarios, start) as lab:
        _announce(lab)
        with lab.progress:
            ready = input_sweep.with_enough_workers(lab) if request.input_sweep else lab
            if ready is not None:
                later = sum(len(_turns(name, ready)) for name in experiments())
                lab.progress.unnamed = numerics.about(ready) if request.parity else 0
                measure.in_rounds(ready, later=later + lab.progress.unnamed)
                _beside(ready)
                if request.parity:
                    numerics.judge(ready)
                for one in experiments().values():
                    if one.after is not None:
                        one.after(ready)
        launched_s = time.monotonic()
    spent = lab.progress.spent | {"sealing": time.monotonic() - launched_s}
    return Finished(run=lab.sealed(), spent=spent)


def _beside(lab: Lab) -> None:
    """The launches beside the measured ones that are left to do; a scenario that could not be measured is dropped."""
    for name, one in experiments().items():
        for found, repeat in _turns(name, lab):
            assert one.launch is not None, "what has rounds says how one is done"
            if any(launch.scenario == found.name for launch in lab.writer.document.good):
                one.launch(found, repeat, lab)
            else:
                lab.progress.drop(found.name)


def _turns(name: str, lab: Lab) -> list[tuple[Found, int]]:
    """Scenario and repeat of the launches of an experiment that are left to do; every other round goes backwards."""
    one, document = experiments()[name], lab.writer.document
    if one.rounds is None:
        return []
    done = resume.ended(launches_of(document.begun(one.record)))
    wanted = {found.name: one.rounds(lab.request, found.strategy) for found in lab.runnable}
    return [
        (found, repeat)
        for found, repeat in in_turns(lab.runnable, max(wanted.values(), default=0))
        if repeat < wanted[found.name] and (found.name, repeat) not in done
    ]


def _announce(lab: Lab) -> None:
    """Tell people and the progress display what is to come."""
    request, workload = lab.request, lab.request.workload
    missing = resume.left(request, [found.name for found in lab.runnable], lab.writer.document.launches)
    lab.progress.expect([name for name, _ in missing])
    extra = []
    if request.input_sweep:
        extra.append("before them the loader alone and training alone, as many launches of each")
    if request.until_precision is not None:
        wanted, budget = f"±{100 * request.until_precision:g} %", duration(request.budget_s or 0.0)
        extra.append(f"more until every median is known within {wanted} or {budget} are spent")
    for name, one in experiments().items():
        names = [found.name for found, _ in _turns(name, lab)]
        lab.progress.expect(names)
        extra += [f"{count(len(names), 'launch', 'launches')} {one.launches}"] if names else []
    where = count(len(request.devices), "GPU") if request.device == "cuda" else f"CPU, {count(machine.cores(), 'core')}"
    where += f" on {count(len(lab.site.hosts), 'host')}" * (len(lab.site.hosts) > 1)
    say(
        f"{count(len(missing), 'launch', 'launches')} of {request.warmup} warm-up and "
        f"{count(request.iters, 'measured step')}: {workload.title}, global batch {workload.global_batch} in "
        f"{count(workload.replicas, 'part')}, {where}"
    )
    if request.parity:
        extra.append("one short launch of each strategy in double precision, and the reference")
    if extra:
        say(f"plus {'; '.join(extra)}")
    load, online = os.getloadavg()[0], os.cpu_count() or 1
    if machine.taken(load, online) > machine.cores() / 2:
        busy = f"the machine is busy (load {load:.1f} on {count(online, 'core')} in the last minute)"
        say(f"warning: {busy}; wait until it is idle, or the results include that work")
