"""Which values should not be believed, or only with a grain of salt, and what to do about each.

A *finding* is ``invalid`` if the value is wrong or is of something else, a ``warning`` if it is right for what
happened, and that may not be what was meant.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

import pandas as pd

from bench.analyse.loader import INPUT_BOUND, found_by, what_to_do
from bench.analyse.parity import CANNOT_TELL, WITHIN_HALF
from bench.core.records import UNTRUE
from bench.core.text import digits
from bench.runs.document import Attached, Finding, HostRecord, RunDocument
from bench.runs.experiments import IntervalTargetRecord, Numerics
from bench.runs.fields import Severity
from bench.runs.frames import LaunchStats, TableRow
from bench.runs.launches import BUSY, REPLICATES_WANTED, Checks, Effective, LaunchRecord

TIMES_AS_FAST = 20.0  # no precision, layout or compiler does as much
UNSTEADY = 0.01  # difference of the medians of the last and the first third of a launch's steps
SPREAD = 0.10  # middle half of a launch's steps, and range of a scenario's launches, relative to the median
SKEW = 0.05  # (max - min) / median over ranks, median over steps
FOREIGN_CORES = {"cpu": BUSY, "cuda": 0.50}  # share of the usable cores that others may keep busy
HOST_BOUND = 0.02  # of a step: how far the host is ahead of the GPU at the least where the GPU never waits for it
FEW = "few launches"
LOADED = 0.5  # the load per core from which on a host has other work to do


def warning(code: str, text: str, remedy: str, size: float | None = None, severity: Severity = "warning") -> Finding:
    return Finding(severity=severity, code=code, text=text, remedy=remedy, size=size)


invalid = partial(warning, severity="invalid")


def findings(
    document: RunDocument, of_launches: LaunchStats, parity: pd.DataFrame, late: Collection[int] = ()
) -> pd.DataFrame:
    """One row per :class:`Finding`: ``launch`` (null for a scenario as a whole), ``scenario``, and so on.

    ``late``: as :func:`bench.analyse.memory.sampled_late`.
    """
    stats = of_launches.frame.set_index("launch")
    all_findings: list[Finding] = []
    measured = [launch for launch in document.good if launch.launch in stats.index]
    cores = {pair for launch in document.good if launch.effective for pair in _cores(launch, launch.effective)}
    for launch in measured:
        own_stats = stats.loc[launch.launch].to_dict()
        own = [*_time(own_stats, document)]
        if launch.launch in late:
            text = "its memory was sampled at another time than its steps, so what it took is unknown"
            own.append(warning("sampled late", text, "see what stopped the sampler, and measure again"))
        if launch.effective:  # of an imported launch nothing but its steps is known
            own += _too_fast(own_stats["median_ms"], launch, launch.effective, document)
            own += _checks(launch.checks, launch.effective, document)
            own += _threads(launch, launch.effective, cores)
            own += _gpu(launch, own_stats["median_ms"], document.workload.device)
        all_findings += [replace(one, launch=launch.launch, scenario=launch.scenario) for one in own]
    for scenario, medians in stats.loc[[one.launch for one in measured]].groupby("scenario")["median_ms"]:
        all_findings += [replace(one, scenario=str(scenario)) for one in _scenario(str(scenario), medians, document)]
    full = {launch.launch for launch in document.good if launch.effective and launch.effective.precision == "O0"}
    for row in parity.to_dict("records"):
        of_launch = {"launch": row["launch"], "scenario": row["scenario"]}
        all_findings += [replace(one, **of_launch) for one in _numerics(row, full=row["launch"] in full)]
    table = pd.DataFrame([asdict(one) for one in all_findings], columns=list(Finding.__dataclass_fields__))
    return table.astype({"launch": "Int64", "size": "float64"})


def grouped(table: pd.DataFrame, order: Sequence[str] = ()) -> pd.DataFrame:
    """:func:`findings` for people: one row for all with the same code and remedy, the invalid ones first.

    ``order``: all scenarios of the run, in order. ``code, severity``; ``scenarios``: their names, or ``all 10
    scenarios``; ``where``: the names with the numbers of the launches; ``what``: the text, of several the one of the
    largest size, or else the first, with its launch; ``remedy``; ``count``: of findings.
    """
    place = {name: number for number, name in enumerate(dict.fromkeys([*order, *table["scenario"]]))}
    rows = []
    for (code, severity, remedy), alike in table.groupby(["code", "severity", "remedy"], sort=False):
        alike = alike.sort_values("scenario", key=lambda names: names.map(place), kind="stable")
        what, where = alike["text"].iloc[0], []
        if alike["text"].nunique() > 1:
            worst = alike.iloc[alike["size"].fillna(-math.inf).argmax()]
            launch = "" if pd.isna(worst["launch"]) else f", launch {worst['launch']}"
            what = f"{worst['scenario']}{launch}: {worst['text']}"
        for name, numbers in alike.groupby("scenario", sort=False)["launch"]:
            listed = ", ".join(map(str, sorted(numbers.dropna())))
            where.append(f"{name} ({listed})" if listed else str(name))
        names = list(dict.fromkeys(alike["scenario"]))
        scenarios = f"all {len(names)} scenarios" if 3 < len(names) == len(order) else ", ".join(names)
        rows.append((code, severity, scenarios, ", ".join(where), what, remedy, len(alike)))
    whole = pd.DataFrame(rows, columns=["code", "severity", "scenarios", "where", "what", "remedy", "count"])
    return whole.sort_values("severity", kind="stable", ignore_index=True)  # "invalid" < "warning"


def _time(stats: TableRow, document: RunDocument) -> Iterator[Finding]:
    warmup, iters, drift = document.request.warmup, document.request.iters, stats["drift"]
    if abs(drift) > UNSTEADY:
        text = f"its last third is {100 * abs(drift):.1f} % {'slower' if drift > 0 else 'faster'} than its first"
        remedy = f"raise --warmup{_it_was(warmup)}, and stop other jobs, and check the cooling"
        yield warning("unsteady", text, remedy, abs(drift))
    if (middle := stats["iqr_ms"] / stats["median_ms"]) >= SPREAD:
        text = f"the middle half of its steps spans {100 * middle:.0f} % of their median"
        longer = f"raise --iters{_it_was(iters)}" if document.planned else "let the script train longer"
        yield warning("spread", text, f"stop other jobs and {longer}", middle)
    if stats["skew"] > SKEW:
        slowest = f"rank {stats['slowest_rank']:.0f} is slowest most often"
        text = f"its ranks are {100 * stats['skew']:.0f} % apart; {slowest}"
        remedy = "see which phase of that rank is longer, and what else uses its device or cores"
        yield warning("skew", text, remedy, stats["skew"])
    if (waiting := stats["data_share"]) > INPUT_BOUND:
        faster = "raise num_workers of its DataLoader, or have it decode less"
        remedy = _enough_workers(waiting, document) if document.planned else faster
        yield warning("input-bound", f"{100 * waiting:.0f} % of its step is waiting for data", remedy, waiting)


def _it_was(asked: int | None) -> str:
    """Of an imported run it may be unknown."""
    return "" if asked is None else f" (it was {asked})"


def _enough_workers(waiting: float, document: RunDocument) -> str:
    """How many processes would load batches as fast as they are trained. ``waiting``: the part of a step.

    A batch takes the rank itself what it waits for; of ``workers``, each takes as many steps as there are of them.
    """
    swept, now = found_by(document), document.workload.workers
    if swept is not None:
        return what_to_do(swept)
    if now is None or not waiting < 1.0:
        return "speed the input up before comparing ways to train: they all wait for it"
    wanted, cores = math.ceil((now or waiting) / (1.0 - waiting)), document.machine.cores_usable
    scarce = cores and wanted * (document.workload.replicas or 1) > cores
    return f"--workers {wanted} would do" + (f", more in all than the {cores} cores here" if scarce else "")


def _too_fast(median_ms: float, launch: LaunchRecord, ran: Effective, document: RunDocument) -> Iterator[Finding]:
    """A step that one replica of the reference would take :data:`TIMES_AS_FAST` times as long for.

    All computations of the reference have the same batch: the fastest counts, since others may have been held up.
    """
    reference = document.begun(Numerics).reference_of(launch.environment)
    if reference is None or ran.computation not in reference.computations:
        return
    times = min(filter(None, reference.step_ms), default=0.0) / ran.computation.replicas / median_ms
    if times > TIMES_AS_FAST:
        text = f"a replica of the fp32 reference takes {times:,.0f} times as long"
        yield invalid("too fast", text, "look for work that is left out, or done outside of the measured steps", times)


def _checks(checks: Checks, ran: Effective, document: RunDocument) -> Iterator[Finding]:
    usable, foreign = document.machine.cores_usable, checks.foreign_cores
    if checks.conservation_ok is False:
        error = abs(checks.conservation_error or 0.0)
        text = f"its steps and the wall time differ by {100 * error:.1f} %"
        remedy = "measure again; if it stays, report it: a part of the time is not accounted for"
        if checks.held_up(usable):
            text += f" while others kept {foreign:.1f} of the {usable} cores busy"
            remedy = "stop other jobs (see top), which take turns with it, and measure again"
        yield invalid("phases", text, remedy, error)
    if skipped := checks.skipped_steps:
        which = "1 optimizer step, which made that" if skipped == 1 else f"{skipped} optimizer steps, which made those"
        text = f"the loss scaler skipped {which} cheaper"
        remedy = f"raise --warmup (it was {document.request.warmup}) so that the loss scale settles before"
        yield warning("skipped steps", text, remedy, skipped)
    if "bfloat16" in ran.compute_dtypes and ran.bf16_instructions is False:
        how = "in fp32, then rounds" if ran.bf16_by_fp32 else "in a slow loop"
        remedy = "do not rely on its speed: measure O1 to O3 on a GPU, or on a CPU with AVX-512"
        yield warning("slow half", f"this CPU has no instructions for bf16, and computes it {how}", remedy)
    for switch, instead in ran.switches.items():
        if instead is not None:
            text = f"{switch} was on and had no effect: {instead}"
            yield warning("no effect", text, "leave it out: what it is compared with did the same")
    if foreign is not None and foreign > FOREIGN_CORES[document.workload.device or "cpu"] * (usable or 0):
        text = f"others kept {foreign:.1f} of the {usable or 0} cores busy meanwhile"
        yield warning("load", text, "stop other jobs (see top), and measure again", foreign)


def _cores(launch: LaunchRecord, ran: Effective) -> set[tuple[str, int]]:
    """The hosts of a launch, each with the cores that its ranks there could use; empty if a switch bound them."""
    if ran.bound_cores is not None:
        return set()
    return {(rank.host or "", rank.cores) for rank in launch.ranks if rank.cores is not None} or {("", ran.affinity)}


def _threads(launch: LaunchRecord, ran: Effective, cores: set[tuple[str, int]]) -> Iterator[Finding]:
    hosts = sorted({host for host, _ in cores})
    where = {host: f" on {host}" if len(hosts) > 1 else "" for host in hosts}
    ranks = [rank for rank in launch.ranks if rank.ran_threads is not None]
    had = {(rank.host or "", rank.ran_threads, ran.chosen_threads or rank.threads) for rank in ranks}
    unequal = [f"its ranks differ in {', '.join(launch.checks.ranks_differ)}"] if launch.checks.ranks_differ else []
    for host, threads, planned in sorted(had or {("", ran.threads, max(1, ran.affinity // launch.processes))}):
        if threads != planned:
            instead = f"{planned} {'was' if planned == 1 else 'were'} planned"
            unequal.append(f"its ranks{where.get(host, '')} had {threads} thread{'s' * (threads != 1)} where {instead}")
    for host in hosts:
        if len(counts := sorted(count for name, count in cores if name == host)) > 1:
            unequal.append(f"launches of this run had {' and '.join(map(str, counts))} cores{where[host]}")
    own = launch.strategy is not None and ran.bound_cores is None  # a script's threads are its business
    for count in sorted({rank.cores for rank in ranks if own and rank.cores and rank.cores < (rank.threads or 0)}):
        unequal.append(f"something bound its ranks to {count} core{'s' * (count != 1)}, fewer than their threads")
    if unequal:
        remedy = "leave threads and affinity alone while bench runs, in scenarios too, and measure again"
        yield invalid("unequal", "; ".join(unequal), remedy)


def _gpu(launch: LaunchRecord, step_ms: float, device: str | None) -> Iterator[Finding]:
    """Findings of ranks, driver and sampler about the GPUs; see ``bench.machine.sample.noticed``."""
    checks = launch.checks
    if checks.throttle:
        held_back = {uuid: names for uuid, names in checks.throttle.devices.items() if names}
        reasons = "; ".join(f"{uuid}: {', '.join(names)}" for uuid, names in held_back.items())
        if checks.throttle.verdict == "invalid":
            text = f"a GPU was slowed down by heat or by its hardware ({reasons})"
            remedy = "fix its cooling or its power supply, or cap the power of all runs alike, and measure again"
            yield invalid("throttled", text, remedy)
        elif checks.throttle.verdict == "warning":
            text = f"a GPU ran at its power limit ({reasons}), so its clock followed the limit"
            yield warning("power cap", text, "compare only with runs at the same limit (nvidia-smi -q -d POWER)")
    if checks.foreign:
        processes = []
        for process in checks.foreign:
            size = "memory unknown" if process.peak_mib is None else f"{process.peak_mib:,.0f} MiB"
            doubt = "" if process.certain else ", perhaps a rank under another PID"
            processes.append(f"PID {process.pid} ({process.name or 'name unknown'}, {size}{doubt})")
        of_severity = invalid if any(process.certain for process in checks.foreign) else warning
        remedy = "measure again when it is free, or choose other GPUs with --gpus"
        held_mib = sum(process.peak_mib or 0.0 for process in checks.foreign)
        yield of_severity("shared GPU", f"it shared a GPU with {', '.join(processes)}", remedy, held_mib)
    if device == "cuda" and checks.foreign is None:
        text = "its sampler ended early, so it is unknown who else used its GPUs"
        yield warning("unwatched", text, "see logs/sampler.log for why, and measure again")
    if scrambled := checks.scrambled_lists:
        were = "was" if scrambled == 1 else "were"
        text = f"{scrambled} of the driver's lists of processes {were} scrambled and left out"
        yield warning("scrambled lists", text, "update the driver: early R535 ones do that", scrambled)
    leads_ms = [rank.host_lead_ms for rank in launch.ranks if rank.host_lead_ms is not None]
    if leads_ms and min(leads_ms) < HOST_BOUND * step_ms:  # the others wait for the rank that is least ahead
        lead, step = digits(max(0.0, min(leads_ms))), digits(step_ms, 3)
        ahead = f"the host was {lead} ms ahead of the GPU when a step of {step} ms ended"
        text = f"{ahead}: the GPU waited for Python, or each step waited for the GPU"
        remedy = "give the GPU more: --batch-per-rank 64, +compile, or +compile+cuda_graphs"
        yield warning("host-bound", text, remedy, 1.0 - min(leads_ms) / step_ms)


def _scenario(scenario: str, medians: "pd.Series[float]", document: RunDocument) -> Iterator[Finding]:
    attached = document.of(Attached) is not None
    if len(medians) < REPLICATES_WANTED:
        text = f"{len(medians)} launch{'es' if len(medians) > 1 else ''}: run-to-run variation is unknown"
        remedy = f"measure with {'' if attached else '--profile standard, or with '}--launches 5"
        yield warning(FEW, text, remedy, REPLICATES_WANTED - len(medians))
    apart = float((medians.max() - medians.min()) / medians.median())
    if len(medians) > 1 and apart >= SPREAD:
        text = f"the medians of its launches are {100 * apart:.0f} % apart"
        yield warning("spread", text, "stop other jobs, then add launches (--launches 10)", apart)
    wanted = document.of(IntervalTargetRecord)
    reached = wanted.scenarios.get(scenario) if wanted else None
    if wanted and reached and not reached.reached:
        width, asked = reached.half_width, f"±{100 * wanted.target:g}%"
        text = f"no interval, where {asked} was asked for"
        if width is not None:
            text = f"±{digits(100 * width)}% is what was reached of the {asked} asked for"
        remedy = f"raise --budget (it was {digits(wanted.budget_s / 60, 4)}m), or stop other jobs"
        yield warning("imprecise", text, remedy, math.inf if width is None else width)
    placed = {rank.host for launch in document.good if launch.scenario == scenario for rank in launch.ranks}
    if differ := list(unlike([host for host in document.hosts if host.name in placed])):
        remedy = "all wait for the slowest: make the hosts alike, or measure each by itself"
        yield warning("unlike hosts", f"its hosts differ: {'; '.join(differ)}", remedy, len(differ))


def unlike(hosts: Sequence[HostRecord]) -> Iterator[str]:
    """Each difference to the first host, in a few words."""
    for other in hosts[1:]:
        first = hosts[0]
        for what, ours, theirs in _facts(first, other):
            if ours is not None and theirs is not None and ours != theirs:
                yield f"{what}: {ours} on {first.name}, {theirs} on {other.name}"
        loads = [(one.start.load_1min or 0.0) / (one.machine.cores_usable or 1) for one in (first, other)]
        if (loads[0] > LOADED) != (loads[1] > LOADED):
            yield f"load per core when it began: {loads[0]:.1f} on {first.name}, {loads[1]:.1f} on {other.name}"


def _facts(first: HostRecord, other: HostRecord) -> Iterator[tuple[str, object, object]]:
    for what in ("cpu", "cores_usable", "os", "governor", "python"):
        yield what.replace("_", " "), getattr(first.machine, what), getattr(other.machine, what)
    for name in first.versions.keys() | other.versions.keys():
        yield name, first.versions.get(name, "none"), other.versions.get(name, "none")
    machines = first.machine, other.machine
    ours, theirs = (", ".join(sorted({gpu.driver for gpu in one.gpus if gpu.driver})) or None for one in machines)
    yield "driver", ours, theirs
    commits = [one.git and f"{one.git.commit}{' with changes' * one.git.dirty}" for one in machines]
    yield "commit of bench", commits[0], commits[1]


def _numerics(row: TableRow, *, full: bool) -> Iterator[Finding]:
    """``full``: whether the launch is declared fp32."""
    if row["verdict"] in UNTRUE:
        remedy = "do not train with it as it is: its numerics are not those of the fp32 reference (see parity)"
        yield invalid(row["verdict"], row["reason"], remedy, row["gradient_error"])
    elif row["verdict"] == WITHIN_HALF and full:
        text = "it is declared fp32 and computes in TF32"
        yield warning("coarse numerics", text, "if fp32 is meant, add --with tf32=off")
    elif row["verdict"] == CANNOT_TELL:
        text = f"{row['reason']}, so a mistake would not show"
        yield warning("numerics cannot be told", text, "compare its losses with the reference's in the report")
