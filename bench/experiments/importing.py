"""Measurements by others, made into runs: an earlier result can be compared with, and is never taken for ours.

    python -m bench import times.csv --scenario ddp --model resnet101 --global-batch 256 --world-size 8
    python -m bench import ddp.json --model resnet50 --world-size 8

**A CSV of step times** has a heading and a row per step and rank: ``step_ms``, and optionally ``scenario``, ``launch``,
``rank``, ``step`` and ``warmup`` (1, true or yes; 0, false, no or empty). Other columns are named and left out. Without
``launch`` all is one launch, without ``rank`` one rank, without ``step`` rows are in order. Steps are numbered from 0.

**The JSON of pytorch's** ``benchmarks/distributed/ddp/benchmark.py --json`` has ``benchmark_results``, each with a
``model``, a ``batch_size`` (of one rank) and a ``result``: ``[{"ranks": [...], "measurements": [seconds, ...]}, ...]``.
A model on a number of ranks becomes a run of one launch, since the script starts its ranks once. ``measurements`` has
the iterations of one rank after those of the other. On one rank the script first runs the model without DDP and then
with it, both under the same entry: they become ``single`` and ``ddp``.

What a file does not say is null, never guessed.
"""

import csv
import io
import json
import math
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from reprlib import repr as brief
from typing import Any, NoReturn

import bench
from bench import machine
from bench.core.codec import Damaged, decode, encode
from bench.core.errors import RequestError
from bench.core.files import open_regular
from bench.experiments.lab import judged
from bench.runs import document as stored
from bench.runs.files import check_writable, sha256, unwritable
from bench.runs.launches import LaunchRecord, RankRecord
from bench.runs.reader import Run
from bench.runs.writer import RunWriter
from bench.seams.experiment import Experiment

EXPERIMENT = Experiment(
    record=stored.Imported,
    no_resume=("that run was imported or attached, and not planned by bench", "start a run of its workload"),
)

CSV, PYTORCH_DDP = "csv", "pytorch-ddp-benchmark"

COLUMNS = ("step_ms", "scenario", "launch", "rank", "step", "warmup")
"""Of a CSV; the first is required."""

TRUE, FALSE = ("1", "true", "yes"), ("0", "false", "no", "")

TIMES = {
    CSV: "as the file gives them: where a step begins and ends is not known",
    PYTORCH_DDP: (
        "forward, backward and optimizer on the host's clock, with a synchronisation after each step and without "
        "loading data; a step of bench lasts from the start of one to the start of the next"
    ),
}
"""What a step time means, by kind of file."""

SHORTEST_MS, LONGEST_MS = 1e-6, 1e9
"""A step of less than a nanosecond, or of more than eleven days, is a slip or another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the options say of the measurement."""

    scenario: str | None = None
    model: str | None = None
    image_size: int | None = None
    global_batch: int | None = None
    world_size: int | None = None
    warmup: int | None = None
    device: str | None = None
    hardware: str | None = None
    label: str | None = None
    measured: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch of a file: by rank its step times (ms), all equally many; the first ``warmup`` are warm-up.

    ``replicas``: how many shared the global batch; None if the file lacks the steps of some: ``single`` in a run on
    eight GPUs is one, and DataParallel is one process on all of them.
    """

    scenario: str
    steps_ms: tuple[tuple[float, ...], ...]
    warmup: int = 0
    replicas: int | None = None

    @property
    def iters(self) -> int:
        return len(self.steps_ms[0]) - self.warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a file says. ``workload``: its known fields. ``left_out``: what was not read."""

    kind: str
    launches: tuple[Launch, ...]
    workload: dict[str, Any]
    model: str | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


TEXT_BYTES = 1 << 30
"""Of a file that is imported, which is held whole."""


def is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable()


def is_scenario(text: str) -> bool:
    """Whether a scenario can have this name: a comma separates scenarios."""
    return is_name(text) and "," not in text


def read(path: str, options: Options) -> Measurement:
    """What ``path`` says; raises :class:`RequestError` if it is neither of the two kinds."""
    try:
        with open_regular(path, limit=TEXT_BYTES) as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(path, "is not text in UTF-8")
    except OSError as error:
        raise RequestError("FILE", f"{path} cannot be read: {error.strerror}", "give a CSV or JSON file") from error
    if not text.strip():
        _refuse(path, "is empty")
    if path.endswith(".json") or text.lstrip().startswith(("{", "[")):
        return of_pytorch(path, text, options)
    return of_csv(path, text, options)


def write(path: str, found: Measurement, options: Options, out: str) -> Run:
    """A sealed run folder under ``out`` of what was read from ``path``; nothing is left if that fails."""
    from bench.analyse import digest

    check_writable(out)
    try:
        document = decode(stored.RunDocument, encode(_document(path, found, options)))
    except Damaged as error:
        _refuse(path, f"has what no run may have: {error}")
    writer = RunWriter(out, document)
    try:
        repeats: Counter[str] = Counter()
        records, rows = [], []
        for number, launch in enumerate(found.launches):
            repeat = repeats[launch.scenario]
            repeats[launch.scenario] += 1
            records.append(
                LaunchRecord(
                    launch=number,
                    scenario=launch.scenario,
                    repeat=repeat,
                    strategy=None,
                    precision=None,
                    processes=len(launch.steps_ms),
                    replicas=launch.replicas,
                    status="ok",
                    ranks=tuple(RankRecord(rank=rank, pid=None) for rank in range(len(launch.steps_ms))),
                    warmup=launch.warmup,
                    iters=launch.iters,
                )
            )
            about = {"launch": number, "scenario": launch.scenario, "repeat": repeat}
            rows += [
                {**about, "rank": rank, "step": step, "warmup": step < launch.warmup, "step_ms": step_ms}
                for rank, steps in enumerate(launch.steps_ms)
                for step, step_ms in enumerate(steps)
            ]
        writer.add(*records, steps=rows)
        writer.finish(complete=True, digest=digest.of_run(judged(writer)))
    except BaseException as error:
        shutil.rmtree(writer.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable("--out", out, error, "give another folder") from error
        raise
    return writer.frames()


def of_csv(path: str, text: str, options: Options) -> Measurement:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        heading = [name.strip() for name in next(reader)]
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        _refuse(path, f"line {reader.line_num}: {error}")
    for name in COLUMNS:
        if heading.count(name) > 1:
            _refuse(path, f"has the column {name} twice")
    if "step_ms" not in heading:
        _refuse(path, f"has no column step_ms, only {', '.join(map(repr, heading[:8]))}")
    if not rows:
        _refuse(path, "has a heading and no step")
    for name, given in (("scenario", options.scenario), ("warmup", options.warmup)):
        if name in heading and given is not None:
            raise RequestError(f"--{name}", f"{path} has a column for it", "leave the option out")
    if "scenario" not in heading and options.scenario is None:
        raise RequestError("--scenario", f"{path} does not say what was run", "name it, as in --scenario ddp")
    at = {name: heading.index(name) for name in COLUMNS if name in heading}
    groups: dict[tuple[str, str], dict[int, list[_Step]]] = {}
    for line, cells in rows:
        if len(cells) != len(heading):
            _refuse(path, f"line {line} has {len(cells)} cells where the heading has {len(heading)}")
        step, key, rank = _step(path, line, {name: cells[place].strip() for name, place in at.items()}, options)
        groups.setdefault(key, {}).setdefault(rank, []).append(step)
    launches = tuple(_launch(path, key, ranks, options, numbered="step" in at) for key, ranks in groups.items())
    widest = max(len(launch.steps_ms) for launch in launches)
    if options.world_size is not None and widest > options.world_size:
        problem = f"{options.world_size} was given and {path} has steps of {widest} ranks"
        raise RequestError("--world-size", problem, "fix one of the two")
    warmup_known = "warmup" in heading or options.warmup is not None
    return Measurement(
        kind=CSV,
        launches=launches,
        workload={"warmup": _only({launch.warmup for launch in launches})} if warmup_known else {},
        left_out=tuple(name for name in heading if name not in COLUMNS),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A row of a CSV."""

    line: int
    number: int
    step_ms: float
    warmup: bool


def _step(path: str, line: int, cells: dict[str, str], options: Options) -> tuple[_Step, tuple[str, str], int]:
    """A row, the scenario and launch that it belongs to, and its rank."""
    where = f"line {line}: "
    try:
        step_ms = math.nan if "_" in cells["step_ms"] else float(cells["step_ms"])
    except ValueError:
        step_ms = math.nan
    if not SHORTEST_MS <= step_ms <= LONGEST_MS:
        _refuse(path, f"{where}step_ms is {brief(cells['step_ms'])} and no number of milliseconds from 1e-6 to 1e9")
    scenario = cells.get("scenario", options.scenario) or ""
    if not is_scenario(scenario):
        _refuse(path, f"{where}scenario is {brief(scenario)} and no name of one")
    warm = cells.get("warmup", "").lower()
    if warm not in (*TRUE, *FALSE):
        _refuse(path, f"{where}warmup is {cells['warmup']!r} and neither true nor false")
    whole = {"step": line, "rank": 0}
    for name in (name for name in whole if name in cells):
        if not (cells[name].isascii() and cells[name].isdigit() and len(cells[name]) < 10):
            _refuse(path, f"{where}{name} is {cells[name]!r} and no whole number")
        whole[name] = int(cells[name])
    return _Step(line, whole["step"], step_ms, warm in TRUE), (scenario, cells.get("launch", "")), whole["rank"]


def _launch(
    path: str, key: tuple[str, str], ranks: dict[int, list[_Step]], options: Options, *, numbered: bool
) -> Launch:
    """The rows of a launch in the order of their steps; they must be those of whole ranks."""
    scenario, name = key
    who = f"launch {name!r} of {scenario}" if name else f"the launch of {scenario}"
    if sorted(ranks) != list(range(len(ranks))):
        _refuse(path, f"{who} has steps of rank {', '.join(map(str, sorted(ranks)))}: ranks count from 0 without gaps")
    ordered = [sorted(ranks[rank], key=lambda step: step.number) for rank in range(len(ranks))]
    for rank, steps in enumerate(ordered):
        for before, step in pairwise(steps):
            if before.number == step.number:
                _refuse(path, f"line {step.line}: {who} has step {step.number} of rank {rank} twice")
        if len(steps) != len(ordered[0]):
            _refuse(path, f"{who}: rank {rank} has {len(steps)} steps and rank 0 has {len(ordered[0])}")
        if numbered and [step.number for step in steps] != [step.number for step in ordered[0]]:
            _refuse(path, f"{who}: rank {rank} has other steps than rank 0")
    warm = [[step.warmup for step in steps] for steps in ordered]
    warmup = sum(warm[0]) if options.warmup is None else options.warmup
    if options.warmup is None and any(flags != [at < warmup for at in range(len(flags))] for flags in warm):
        _refuse(path, f"{who}: warm-up steps must be its first, and the same of all ranks")
    if warmup >= len(ordered[0]):
        _refuse(path, f"{who} has {len(ordered[0])} steps, all of them warm-up")
    return Launch(
        scenario=scenario,
        steps_ms=tuple(tuple(step.step_ms for step in steps) for steps in ordered),
        warmup=warmup,
        replicas=len(ranks) if len(ranks) == options.world_size else None,
    )


def of_pytorch(path: str, text: str, options: Options) -> Measurement:
    """One model on one number of ranks out of the JSON of pytorch's DDP benchmark."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"is not JSON: {error}")
    configurations = _configurations(path, document)
    chosen = [
        one
        for one in configurations
        if options.model in (None, one.model)
        and options.world_size in (None, one.ranks)
        and options.global_batch in (None, one.batch * one.ranks)
    ]
    choices = "; ".join(dict.fromkeys(one.name for one in configurations))
    if not chosen:
        raise RequestError("--model", f"{path} has no such configuration", f"choose from {choices}")
    if len({one.name for one in chosen}) > 1:
        problem = f"{path} has several configurations ({choices})"
        raise RequestError("--model", problem, "choose one with --model and --world-size")
    first = chosen[0]
    names = ["single", "ddp"] if len(chosen) == 2 and first.ranks == 1 else ["ddp"] * len(chosen)
    if len(chosen) > (2 if first.ranks == 1 else 1):
        _refuse(path, f"has {first.name} {len(chosen)} times")
    if options.scenario is not None:
        if len(chosen) > 1:
            raise RequestError("--scenario", f"{path} has {first.name} without and with DDP", "leave the option out")
        names = [options.scenario]
    elif len(chosen) == 1 and first.ranks == 1:
        raise RequestError("--scenario", f"{path} does not say whether DDP ran on one rank", "name it: single or ddp")
    if options.warmup is not None:
        raise RequestError("--warmup", f"{path} holds measured iterations alone", "leave the option out")
    return Measurement(
        kind=PYTORCH_DDP,
        launches=tuple(
            Launch(scenario=name, steps_ms=one.steps_ms, replicas=one.ranks)
            for name, one in zip(names, chosen, strict=True)
        ),
        model=first.model,
        workload={"global_batch": first.batch * first.ranks, "replicas": first.ranks},
        versions={"torch": document.get("pytorch_version"), "cuda": document.get("cuda_version")},
        about={name: document.get(name) for name in ("distributed_backend", "bucket_size")},
        left_out=tuple(sorted({one.name for one in configurations} - {first.name})),
    )


@dataclass(frozen=True, slots=True)
class _Configuration:
    """A model on a number of ranks, with the step times of each (ms); ``batch``: examples of one rank."""

    model: str
    batch: int
    ranks: int
    steps_ms: tuple[tuple[float, ...], ...]

    @property
    def name(self) -> str:
        return f"{self.model}, batch {self.batch} a rank, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


def _configurations(path: str, document: Any) -> list[_Configuration]:
    """All of them, in the order of the file."""
    found = []
    for number, of_model in enumerate(_list(path, document, "benchmark_results", "the document")):
        where = f"benchmark_results[{number}]"
        model, batch = (_get(path, of_model, name, where) for name in ("model", "batch_size"))
        if not isinstance(model, str) or not is_name(model):
            _refuse(path, f"{where}: model is {brief(model)} and no name")
        if type(batch) is not int or not 1 <= batch <= 10**9:
            _refuse(path, f"{where}: batch_size is {brief(batch)} and no number of examples")
        for at, result in enumerate(_list(path, of_model, "result", where)):
            place = f"{where}.result[{at}]"
            ranks = len(_list(path, result, "ranks", place))
            measurements = _list(path, result, "measurements", place)
            for index, value in enumerate(measurements):
                if type(value) not in (int, float) or not SHORTEST_MS <= 1000 * value <= LONGEST_MS:
                    problem = f"is {brief(value)} and no number of seconds from 1e-9 to 1e6"
                    _refuse(path, f"{place}: measurements[{index}] {problem}")
            each, rest = divmod(len(measurements), ranks)
            if rest:
                many = f"{len(measurements)} measurements of {ranks} ranks"
                _refuse(path, f"{place} has {many}, which is not as many of each")
            pooled = [1000.0 * float(value) for value in measurements]
            steps = tuple(tuple(pooled[rank * each : (rank + 1) * each]) for rank in range(ranks))
            found.append(_Configuration(model, batch, ranks, steps))
    return found


def _document(path: str, found: Measurement, options: Options) -> stored.RunDocument:
    """What the run says of itself: null if neither the file nor the options say it."""
    stated = {"global_batch": options.global_batch, "replicas": options.world_size, "device": options.device}
    workload: dict[str, Any] = encode(stored.WorkloadRecord()) | found.workload
    workload |= {name: value for name, value in stated.items() if value is not None}
    known = {"model": options.model or found.model, "image_size": options.image_size}
    workload["settings"] = {name: value for name, value in known.items() if value is not None}
    size = f"{options.image_size} px" if options.image_size else None
    workload["title"] = ", ".join(str(word) for word in (known["model"], size) if word) or None
    repeats = Counter(launch.scenario for launch in found.launches)
    now = machine.utc_now()
    hardware = [options.hardware] * (workload["replicas"] or 1) if options.hardware is not None else []
    imported = stored.Imported(
        kind=found.kind,
        file=os.path.basename(path),
        sha256=sha256(path),
        utc=now,
        measured_utc=options.measured,
        hardware=tuple(hardware[:1] if options.device == "cpu" else hardware),
        times=TIMES[found.kind],
        left_out=found.left_out,
        more=found.about,
    )
    return stored.RunDocument(
        bench=bench.__version__,
        experiments={"importing": imported},
        request=stored.Asked(
            scenarios=tuple(repeats),
            warmup=workload["warmup"],
            iters=_only({launch.iters for launch in found.launches}),
            launches=max(repeats.values()),
            label=options.label,
        ),
        workload=decode(stored.WorkloadRecord, workload),
        machine=stored.Machine(cpu=options.hardware if options.device == "cpu" else None),
        versions=dict.fromkeys(("python", "executable", "torch", "torchvision", "cuda")) | found.versions,
        apex=stored.Apex(),
        start=stored.State(utc=options.measured or now),
    )


def _only(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _get(path: str, value: Any, name: str, where: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        _refuse(path, f"{where} has no {name!r}, as the JSON of pytorch's DDP benchmark has")
    return value[name]


def _list(path: str, value: Any, name: str, where: str) -> list[Any]:
    found = _get(path, value, name, where)
    if not isinstance(found, list) or not found:
        _refuse(path, f"{where}: {name!r} is not a list with something in it")
    return found


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError("FILE", f"{path} {problem}", "see 'bench import --help' for what can be read")
