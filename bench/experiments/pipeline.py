"""``bench run`` as a method section: measure in rounds, profile, save checkpoints, and judge what was trained.

Everything that can be wrong with the request is found before the first launch and before anything is written. Then
each launch is one isolated set of processes, and its rows are on disk before the next one starts.
"""

from bench import machine
from bench.console import Console, count, duration
from bench.experiments import checkpoint, diagnose, input_sweep, measure, numerics, restart, resume
from bench.experiments.lab import Finished, Lab, opened
from bench.hosts.party import Party
from bench.plan import Request
from bench.seams.discover import Found


def run(
    request: Request,
    scenarios: tuple[Found, ...],
    *,
    out: str,
    console: Console,
    wait: bool = False,
    resumed: str | None = None,
    party: Party | None = None,
) -> Finished:
    """Measure every scenario of ``request`` and write a run folder under ``out``.

    ``wait``: queue for GPUs or CPU that another run has. ``resumed``, ``party`` and errors: as for
    :func:`bench.experiments.lab.opened`.
    """
    with opened(request, scenarios, out=out, console=console, wait=wait, resumed=resumed, party=party) as lab:
        _announce(lab, console)
        with lab.progress:
            ready = input_sweep.with_enough_workers(lab) if request.input_sweep else lab
            if ready is not None:
                measure.in_rounds(ready)
                if request.diagnose:
                    diagnose.each_scenario(ready)
                if request.checkpoint:
                    checkpoint.in_rounds(ready)
                restart.in_rounds(ready)
                if request.parity:
                    numerics.judge(ready)
    return Finished(path=lab.writer.path, document=lab.writer.document)


def _announce(lab: Lab, console: Console) -> None:
    """Tell people and the progress display what is to come."""
    request, workload = lab.request, lab.request.workload
    done = resume.done(lab.writer.document)
    runnable = [found.name for found in lab.runnable]
    missing = done.missing(request, runnable)
    lab.progress.expect(missing)
    lab.progress.expect([name for name in runnable if name not in done.diagnosed] * request.diagnose)
    left = [name for repeat in range(request.launches) for name in runnable if (name, repeat) not in done.checkpoints]
    lab.progress.expect(left if request.checkpoint else [])
    killed = restart.missing(lab, request)
    lab.progress.expect(killed)
    where = count(len(request.devices), "GPU") if request.device == "cuda" else f"CPU, {machine.cores()} cores"
    where += f" on {count(len(lab.site.hosts), 'host')}" * (len(lab.site.hosts) > 1)
    console.line(
        f"{count(len(missing), 'launch', 'launches')} of {request.warmup} warm-up and {request.iters} "
        f"measured steps: {workload.title}, global batch {workload.global_batch} in "
        f"{count(workload.replicas, 'part')}, {where}"
    )
    extra = []
    if request.input_sweep:
        extra.append("before them the loader alone and training alone, as many launches of each")
    if request.until_precision is not None:
        wanted = f"±{100 * request.until_precision:g} %"
        extra.append(
            f"more until every median is known within {wanted} or {duration(request.budget_s or 0.0)} are spent"
        )
    if request.diagnose:
        extra.append("one profiled launch of each scenario")
    if request.checkpoint:
        extra.append(f"{count(len(left), 'launch', 'launches')} with checkpoints")
    if killed:
        extra.append(f"{count(len(killed), 'launch', 'launches')} in which a rank is killed")
    if request.parity:
        extra.append("one short launch of each strategy in double precision, and the reference")
    if extra:
        console.line(f"plus {'; '.join(extra)}")
    load = machine.load()
    if load > machine.cores() / 2:
        busy = f"the machine is busy (load {load:.1f} on {machine.cores()} cores in the last minute)"
        console.line(f"warning: {busy}; wait until it is idle, or the results include that work")
