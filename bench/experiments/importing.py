"""Measurements by others, made into runs: so that an earlier figure can be compared with, and is never taken for ours.

    python -m bench import times.csv --scenario ddp --model resnet101 --global-batch 256 --world-size 8
    python -m bench import ddp.json --model resnet50 --world-size 8

**A CSV of step times.** A heading and a row per step (and rank): ``step_ms``, and where there are such ``scenario``,
``launch``, ``rank``, ``step`` and ``warmup`` (1, true or yes; 0, false, no or empty). Other columns are left out and
named. Without ``launch`` all is one launch, without ``rank`` all is one rank (or the slowest of them already), without
``step`` rows are in their order. Steps are numbered anew from 0.

**The JSON of pytorch's** ``benchmarks/distributed/ddp/benchmark.py --json``. Read are ``pytorch_version``,
``cuda_version``, ``distributed_backend``, ``bucket_size`` and of ``benchmark_results`` each ``model``, ``batch_size``
(of one rank) and ``result``: a list of ``{"ranks": [...], "measurements": [seconds, ...]}``. A model on a number of
ranks becomes a run, of one launch: the script starts its ranks once, and however many iterations it kept, none of them
is a replicate. ``measurements`` are the kept iterations of all ranks, those of one rank after those of the other, as
the script gathers them: they are laid side by side again, and the slowest rank of each iteration counts as everywhere
here. Where their number is no multiple of the ranks' that cannot be, and the file is refused. On one rank the script
first runs the model without DDP and then with it, and both have the same entry: they become ``single`` and ``ddp``.

What a file does not say is null: never guessed from what its program usually does, and a comparison says that it is
unknown. That holds for the image size, which this JSON has not, as much as for the machine.
"""

import csv
import hashlib
import io
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from reprlib import repr as brief
from typing import Any, NoReturn

import bench
from bench import machine
from bench.core.errors import RequestError
from bench.runs.codec import decode, encode
from bench.runs.document import (
    Apex,
    Asked,
    Imported,
    LaunchRecord,
    Machine,
    RankRecord,
    RunDocument,
    State,
    WorkloadRecord,
)
from bench.runs.files import check_writable
from bench.runs.reader import Run
from bench.runs.writer import RunWriter

CSV, PYTORCH_DDP = "csv", "pytorch-ddp-benchmark"

COLUMNS = ("step_ms", "scenario", "launch", "rank", "step", "warmup")
"""Of a CSV; the first is needed."""

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

MOST_EXAMPLES = 10**9
"""Of a rank in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the person who imports says of the measurement; None where nothing was said."""

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
    """A launch as a file has it: by rank its step times (ms), all equally many; the first ``warmup`` are warm-up.

    ``replicas``: how many shared the global batch. None where the file has not the steps of all: ``single`` in a run on
    eight GPUs is one, and DataParallel is one process on all of them.
    """

    scenario: str
    steps_ms: tuple[tuple[float, ...], ...]
    warmup: int = 0
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a file says. ``workload``: the fields of it that are known. ``left_out``: what of the file was not read."""

    kind: str
    launches: tuple[Launch, ...]
    workload: dict[str, Any]
    model: str | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def is_name(text: str) -> bool:
    """Whether this can be called a name, in a line that a terminal shows."""
    return bool(text.strip()) and text.isprintable()


def is_scenario(text: str) -> bool:
    """Whether a scenario can have this name: where scenarios are listed, a comma separates them."""
    return is_name(text) and "," not in text


def read(path: str, told: Told) -> Measurement:
    """What ``path`` says, whichever of the two kinds it is; raises :class:`RequestError` for everything else."""
    text = _text(path)
    if not text.strip():
        _refuse(path, "is empty")
    if path.endswith(".json") or text.lstrip().startswith(("{", "[")):
        return of_pytorch(path, text, told)
    return of_csv(path, text, told)


def write(path: str, found: Measurement, told: Told, out: str) -> Run:
    """A sealed run folder under ``out`` of what was read from the file ``path``; nothing is left where that fails."""
    from bench.analyse import digest, verdicts

    check_writable(out)
    writer = RunWriter(out, _document(path, found, told))
    try:
        repeats: Counter[str] = Counter()
        rows = []
        records = []
        for number, launch in enumerate(found.launches):
            repeat = repeats[launch.scenario]
            repeats[launch.scenario] += 1
            records.append(_record(number, repeat, launch))
            rows += _rows(number, repeat, launch)
        writer.add(*records, steps=rows)
        writer.judge(**verdicts.of(writer.frames()))
        writer.finish(complete=True, digest=digest.of_run(writer.frames()))
    except OSError as error:
        shutil.rmtree(writer.path, ignore_errors=True)
        raise RequestError("--out", f"{out} cannot be written: {error.strerror}", "give another folder") from error
    except BaseException:
        shutil.rmtree(writer.path, ignore_errors=True)
        raise
    return writer.frames()


def of_csv(path: str, text: str, told: Told) -> Measurement:
    """The launches of a CSV."""
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
    if "scenario" in heading and told.scenario is not None:
        raise RequestError("--scenario", f"{path} has a column of its own for it", "leave the option out")
    if "scenario" not in heading and told.scenario is None:
        raise RequestError("--scenario", f"{path} does not say what was run", "name it, as in --scenario ddp")
    if "warmup" in heading and told.warmup is not None:
        raise RequestError("--warmup", f"{path} has a column of its own for it", "leave the option out")
    at = {name: heading.index(name) for name in COLUMNS if name in heading}
    groups: dict[tuple[str, str], dict[int, list[_Step]]] = {}
    for line, cells in rows:
        if len(cells) != len(heading):
            _refuse(path, f"line {line} has {len(cells)} cells where the heading has {len(heading)}")
        step, key, rank = _step(path, line, {name: cells[place].strip() for name, place in at.items()}, told)
        groups.setdefault(key, {}).setdefault(rank, []).append(step)
    launches = [_launch(path, key, ranks, told, numbered="step" in at) for key, ranks in groups.items()]
    widest = max(len(launch.steps_ms) for launch in launches)
    if told.world_size is not None and widest > told.world_size:
        _contradict("--world-size", told.world_size, f"{path} has steps of {widest} ranks")
    return Measurement(
        kind=CSV,
        launches=tuple(launches),
        workload=_common_warmup(launches) if "warmup" in heading or told.warmup is not None else {},
        left_out=tuple(name for name in heading if name not in COLUMNS),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A row of a CSV."""

    line: int
    number: int
    step_ms: float
    warmup: bool


def _step(path: str, line: int, cells: dict[str, str], told: Told) -> tuple[_Step, tuple[str, str], int]:
    """A row, the scenario and launch that it belongs to, and its rank."""
    where = f"line {line}: "
    step_ms = _milliseconds(path, where, cells["step_ms"])
    scenario = cells.get("scenario", told.scenario) or ""
    if not is_scenario(scenario):
        _refuse(path, f"{where}scenario is {brief(scenario)} and no name of one")
    warm = cells.get("warmup", "").lower()
    if warm not in (*TRUE, *FALSE):
        _refuse(path, f"{where}warmup is {cells['warmup']!r} and neither true nor false")
    number = _whole(path, where, "step", cells["step"]) if "step" in cells else line
    rank = _whole(path, where, "rank", cells["rank"]) if "rank" in cells else 0
    return _Step(line, number, step_ms, warm in TRUE), (scenario, cells.get("launch", "")), rank


def _launch(path: str, key: tuple[str, str], ranks: dict[int, list[_Step]], told: Told, *, numbered: bool) -> Launch:
    """The rows of a launch in the order of their steps; they must be those of whole ranks."""
    scenario, name = key
    who = f"launch {name!r} of {scenario}" if name else f"the launch of {scenario}"
    if sorted(ranks) != list(range(len(ranks))):
        _refuse(path, f"{who} has steps of rank {', '.join(map(str, sorted(ranks)))}: ranks count from 0 without gaps")
    ordered = [sorted(ranks[rank], key=lambda step: step.number) for rank in range(len(ranks))]
    for rank, steps in enumerate(ordered):
        numbers = [step.number for step in steps]
        if len(set(numbers)) < len(numbers):
            twice = next(step for before, step in pairwise(steps) if before.number == step.number)
            _refuse(path, f"line {twice.line}: {who} has step {twice.number} of rank {rank} twice")
        if len(numbers) != len(ordered[0]):
            _refuse(path, f"{who}: rank {rank} has {len(numbers)} steps and rank 0 has {len(ordered[0])}")
        if numbered and numbers != [step.number for step in ordered[0]]:
            _refuse(path, f"{who}: rank {rank} has other steps than rank 0")
    warm = [[step.warmup for step in steps] for steps in ordered]
    warmup = sum(warm[0]) if told.warmup is None else told.warmup
    if told.warmup is None and any(flags != [at < warmup for at in range(len(flags))] for flags in warm):
        _refuse(path, f"{who}: warm-up steps must be its first, and the same of all ranks")
    if warmup >= len(ordered[0]):
        _refuse(path, f"{who} has {len(ordered[0])} steps, all of them warm-up")
    return Launch(
        scenario=scenario,
        steps_ms=tuple(tuple(step.step_ms for step in steps) for steps in ordered),
        warmup=warmup,
        replicas=len(ranks) if len(ranks) == told.world_size else None,
    )


def of_pytorch(path: str, text: str, told: Told) -> Measurement:
    """One model on one number of ranks out of the JSON of pytorch's DDP benchmark."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"is no JSON: {error}")
    configurations = _configurations(path, document)
    chosen = [one for one in configurations if _asked_for(one, told)]
    choices = "; ".join(dict.fromkeys(one.name for one in configurations))
    if not chosen:
        raise RequestError("--model", f"{path} has no such configuration", f"choose from {choices}")
    if len({one.name for one in chosen}) > 1:
        raise RequestError(
            "--model", f"{path} has several configurations ({choices})", "choose one with --model and --world-size"
        )
    first = chosen[0]
    names = ["single", "ddp"] if len(chosen) == 2 and first.ranks == 1 else ["ddp"] * len(chosen)
    if len(chosen) > (2 if first.ranks == 1 else 1):
        _refuse(path, f"has {first.name} {len(chosen)} times")
    if told.scenario is not None:
        if len(chosen) > 1:
            raise RequestError("--scenario", f"{path} has {first.name} without and with DDP", "leave the option out")
        names = [told.scenario]
    elif len(chosen) == 1 and first.ranks == 1:
        raise RequestError("--scenario", f"{path} does not say whether DDP ran on one rank", "name it: single or ddp")
    if told.warmup is not None:
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
        if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST_EXAMPLES:
            _refuse(path, f"{where}: batch_size is {brief(batch)} and no number of examples")
        for at, result in enumerate(_list(path, of_model, "result", where)):
            place = f"{where}.result[{at}]"
            ranks = len(_list(path, result, "ranks", place))
            pooled = [
                _of_seconds(path, f"{place}: measurements[{index}]", value)
                for index, value in enumerate(_list(path, result, "measurements", place))
            ]
            if len(pooled) % ranks:
                _refuse(path, f"{place} has {len(pooled)} measurements of {ranks} ranks, which is not as many of each")
            each = len(pooled) // ranks
            steps = tuple(tuple(pooled[rank * each : (rank + 1) * each]) for rank in range(ranks))
            found.append(_Configuration(model, batch, ranks, steps))
    return found


def _asked_for(one: _Configuration, told: Told) -> bool:
    return (
        told.model in (None, one.model)
        and told.world_size in (None, one.ranks)
        and told.global_batch in (None, one.batch * one.ranks)
    )


def _document(path: str, found: Measurement, told: Told) -> RunDocument:
    """What the run says of itself: null wherever neither the file nor the person does."""
    stated = {"global_batch": told.global_batch, "replicas": told.world_size, "device": told.device}
    workload: dict[str, Any] = encode(WorkloadRecord()) | found.workload
    workload |= {name: value for name, value in stated.items() if value is not None}
    known = {"model": told.model or found.model, "image_size": told.image_size}
    workload["settings"] = {name: value for name, value in known.items() if value is not None}
    size = f"{told.image_size} px" if told.image_size else None
    workload["title"] = ", ".join(str(word) for word in (known["model"], size) if word) or None
    scenarios = list(dict.fromkeys(launch.scenario for launch in found.launches))
    most = max(sum(launch.scenario == name for launch in found.launches) for name in scenarios)
    now = machine.utc_now()
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    hardware = [told.hardware] * (workload["replicas"] or 1) if told.hardware is not None else []
    return RunDocument(
        bench=bench.__version__,
        imported=Imported(
            kind=found.kind,
            file=os.path.basename(path),
            sha256=checksum,
            utc=now,
            measured_utc=told.measured,
            hardware=tuple(hardware[:1] if told.device == "cpu" else hardware),
            times=TIMES[found.kind],
            left_out=found.left_out,
            more=found.about,
        ),
        request=Asked(
            scenarios=tuple(scenarios),
            warmup=workload["warmup"],
            iters=_only({len(launch.steps_ms[0]) - launch.warmup for launch in found.launches}),
            launches=most,
            label=told.label,
        ),
        workload=decode(WorkloadRecord, workload),
        machine=Machine(cpu=told.hardware if told.device == "cpu" else None),
        versions=dict.fromkeys(("python", "executable", "torch", "torchvision", "cuda")) | found.versions,
        apex=Apex(),
        start=State(utc=told.measured or now),
    )


def _record(number: int, repeat: int, launch: Launch) -> LaunchRecord:
    """A launch as it stands in run.json: that it ended well is all that is known of it."""
    return LaunchRecord(
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
        iters=len(launch.steps_ms[0]) - launch.warmup,
    )


def _rows(number: int, repeat: int, launch: Launch) -> list[dict[str, Any]]:
    """Rows of steps.parquet: times alone, without phases, start and loss."""
    about = {"launch": number, "scenario": launch.scenario, "repeat": repeat}
    return [
        {**about, "rank": rank, "step": step, "warmup": step < launch.warmup, "step_ms": step_ms}
        for rank, steps in enumerate(launch.steps_ms)
        for step, step_ms in enumerate(steps)
    ]


def _common_warmup(launches: Sequence[Launch]) -> dict[str, Any]:
    """Of the workload, where all launches have the same."""
    return {"warmup": _only({launch.warmup for launch in launches})}


def _only(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        _refuse(path, "is no text in UTF-8")
    except OSError as error:
        raise RequestError("FILE", f"{path} cannot be read: {error.strerror}", "give a CSV or JSON file") from error


def _milliseconds(path: str, where: str, text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_MS <= value <= LONGEST_MS:
        _refuse(path, f"{where}step_ms is {brief(text)} and no number of milliseconds from 1e-6 to 1e9")
    return value


def _whole(path: str, where: str, name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        _refuse(path, f"{where}{name} is {text!r} and no whole number")
    return int(text)


def _of_seconds(path: str, where: str, value: Any) -> float:
    """A time in milliseconds."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not SHORTEST_MS <= 1000 * value <= LONGEST_MS:
        _refuse(path, f"{where} is {brief(value)} and no number of seconds from 1e-9 to 1e6")
    return 1000.0 * float(value)


def _get(path: str, value: Any, name: str, where: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        _refuse(path, f"{where} has no {name!r}, as the JSON of pytorch's DDP benchmark has")
    return value[name]


def _list(path: str, value: Any, name: str, where: str) -> list[Any]:
    found = _get(path, value, name, where)
    if not isinstance(found, list) or not found:
        _refuse(path, f"{where}: {name!r} is no list with something in it")
    return found


def _contradict(option: str, value: int, problem: str) -> NoReturn:
    raise RequestError(option, f"{value} was given and {problem}", "mend one of the two")


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError("FILE", f"{path} {problem}", "see 'bench import --help' for what can be read")
