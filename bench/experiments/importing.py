"""Measurements by others, made into runs: an earlier result can be compared with, and is never taken for ours.

    python -m bench import times.csv --scenario ddp --model resnet101 --global-batch 256 --world-size 8

**A CSV of step times** has a heading and a row per step and rank: ``step_ms``, and optionally ``scenario``, ``launch``,
``rank``, ``step`` and ``warmup`` (1, true or yes; 0, false, no or empty). Other columns are named and left out. Without
``launch`` all is one launch, without ``rank`` one rank, without ``step`` rows are in order. Steps are numbered from 0.

What a file does not say is null, never guessed.
"""

import csv
import io
import math
import os
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from reprlib import repr as brief
from typing import NoReturn

import bench
from bench import machine
from bench.core.codec import Damaged, decode, encode
from bench.core.errors import RequestError
from bench.core.files import Json, open_regular, sha256
from bench.experiments.lab import judged
from bench.experiments.rows import Rows
from bench.runs import document as stored
from bench.runs.files import check_writable, unwritable
from bench.runs.launches import LaunchRecord, RankRecord
from bench.runs.reader import Run
from bench.runs.writer import RunWriter
from bench.seams.experiment import Experiment

EXPERIMENT = Experiment(
    record=stored.Imported,
    no_resume=("that run was imported or attached, and not planned by bench", "start a run of its workload"),
)

COLUMNS = ("step_ms", "scenario", "launch", "rank", "step", "warmup")  # of a CSV; the first is required

TRUE, FALSE = ("1", "true", "yes"), ("0", "false", "no", "")

TIMES = "as the file gives them: where a step begins and ends is not known"

SHORTEST_MS, LONGEST_MS = 1e-6, 1e9
"""A step of less than a nanosecond, or of more than eleven days, is a slip or another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The measurement as the options describe it."""

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
class Measurement:
    """The content of a file. ``rows``: of steps.parquet. ``warmup``: the same in all launches, else None. ``left_out``:
    what was not read."""

    launches: tuple[LaunchRecord, ...]
    rows: Rows
    warmup: int | None
    left_out: tuple[str, ...] = ()


TEXT_BYTES = 1 << 30  # of a file that is imported, which is held whole


def is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable()


def is_scenario(text: str) -> bool:
    """Whether a scenario can have this name: a comma separates scenarios."""
    return is_name(text) and "," not in text


def read(path: str, options: Options) -> Measurement:
    """The measurement in ``path``; raises :class:`RequestError` if it is no CSV of step times."""
    try:
        with open_regular(path, limit=TEXT_BYTES) as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(path, "is not text in UTF-8")
    except OSError as error:
        raise RequestError("FILE", f"{path} cannot be read: {error.strerror}", "give a CSV file") from error
    if not text.strip():
        _refuse(path, "is empty")
    return of_csv(path, text, options)


def write(path: str, measurement: Measurement, options: Options, out: str) -> Run:
    """A sealed run folder under ``out`` of what was read from ``path``; nothing is left if that fails."""
    from bench.analyse import digest

    check_writable(out)
    try:
        document = decode(stored.RunDocument, encode(_document(path, measurement, options)))
    except Damaged as error:
        _refuse(path, f"has what no run may have: {error}")
    writer = RunWriter(out, document)
    try:
        writer.add(*measurement.launches, steps=measurement.rows)
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
    repeats: Counter[str] = Counter()
    launches: list[LaunchRecord] = []
    steps: Rows = []
    for key, ranks in groups.items():
        launch, of_launch = _launch(path, key, ranks, options, numbered="step" in at)
        launches.append(replace(launch, launch=len(launches), repeat=repeats[launch.scenario]))
        head = {"launch": launches[-1].launch, "scenario": launch.scenario, "repeat": launches[-1].repeat}
        steps += [{**head, **row} for row in of_launch]
        repeats[launch.scenario] += 1
    widest = max(launch.processes for launch in launches)
    if options.world_size is not None and widest > options.world_size:
        problem = f"{options.world_size} was given and {path} has steps of {widest} ranks"
        raise RequestError("--world-size", problem, "fix one of the two")
    warmup_known = "warmup" in heading or options.warmup is not None
    return Measurement(
        launches=tuple(launches),
        rows=steps,
        warmup=_only({launch.warmup for launch in launches}) if warmup_known else None,
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
) -> tuple[LaunchRecord, Rows]:
    """A launch, whose number and repeat are still to be given, and its rows without these, which must be those of whole
    ranks.

    ``replicas`` is unknown if the file lacks the steps of some: ``single`` in a run on eight GPUs is one, and
    DataParallel is one process on all of them.
    """
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
    launch = LaunchRecord(
        launch=0,
        scenario=scenario,
        repeat=0,
        strategy=None,
        precision=None,
        processes=len(ranks),
        replicas=len(ranks) if len(ranks) == options.world_size else None,
        status="ok",
        ranks=tuple(RankRecord(rank=rank, pid=None) for rank in range(len(ranks))),
        warmup=warmup,
        iters=len(ordered[0]) - warmup,
    )
    return launch, [
        {"rank": rank, "step": place, "warmup": place < warmup, "step_ms": step.step_ms}
        for rank, steps in enumerate(ordered)
        for place, step in enumerate(steps)
    ]


def _document(path: str, measurement: Measurement, options: Options) -> stored.RunDocument:
    """The document of the run: null if neither the file nor the options say it."""
    stated = {"global_batch": options.global_batch, "replicas": options.world_size, "device": options.device}
    workload: dict[str, Json] = encode(stored.WorkloadRecord()) | {"warmup": measurement.warmup}
    workload |= {name: value for name, value in stated.items() if value is not None}
    settings = {"model": options.model, "image_size": options.image_size}
    workload["settings"] = {name: value for name, value in settings.items() if value is not None}
    size = f"{options.image_size} px" if options.image_size else None
    workload["title"] = ", ".join(str(word) for word in (settings["model"], size) if word) or None
    repeats = Counter(launch.scenario for launch in measurement.launches)
    now = machine.utc_now()
    hardware = [options.hardware] * (workload["replicas"] or 1) if options.hardware is not None else []
    imported = stored.Imported(
        file=os.path.basename(path),
        sha256=sha256(path),
        utc=now,
        measured_utc=options.measured,
        hardware=tuple(hardware[:1] if options.device == "cpu" else hardware),
        times=TIMES,
        left_out=measurement.left_out,
    )
    return stored.RunDocument(
        bench=bench.__version__,
        experiments={"importing": imported},
        request=stored.Asked(
            scenarios=tuple(repeats),
            warmup=workload["warmup"],
            iters=_only({launch.iters for launch in measurement.launches}),
            launches=max(repeats.values()),
            label=options.label,
        ),
        workload=decode(stored.WorkloadRecord, workload),
        machine=stored.Machine(cpu=options.hardware if options.device == "cpu" else None),
        versions=dict.fromkeys(("python", "executable", "torch", "torchvision", "cuda")),
        apex=stored.Apex(),
        start=stored.State(utc=options.measured or now),
    )


def _only(values: set[int | None]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError("FILE", f"{path} {problem}", "see 'bench import --help' for what can be read")
