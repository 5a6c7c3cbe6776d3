"""Measurements by others, made into runs: an earlier result can be compared with, and is never taken for ours.

    python -m bench import times.csv --scenario ddp --model resnet101 --global-batch 256 --world-size 8

**A CSV of step times** has a heading and a row per step and rank: ``step_ms``, and optionally ``scenario``, ``launch``,
``rank``, ``step`` and ``warmup`` (1, true or yes; 0, false, no or empty). Other columns are named and left out. Without
``launch`` all is one launch, without ``rank`` one rank, without ``step`` rows are in order. Steps are numbered from 0.

What a file does not say is null, never guessed.
"""

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, NoReturn

import bench
from bench import machine
from bench.core.codec import Damaged, decode, encode
from bench.core.errors import RequestError
from bench.core.files import open_regular, sha256
from bench.core.text import is_scenario
from bench.experiments.lab import NOT_PLANNED, judged
from bench.experiments.rows import Rows
from bench.runs import document as stored
from bench.runs.files import check_writable, unwritable
from bench.runs.launches import LaunchRecord, RankRecord
from bench.runs.reader import Run
from bench.runs.writer import RunWriter
from bench.seams.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

EXPERIMENT = Experiment(record=stored.Imported, no_resume=NOT_PLANNED)

COLUMNS = ("step_ms", "scenario", "launch", "rank", "step", "warmup")  # of a CSV; the first is required

TRUE, FALSE = ("1", "true", "yes"), ("0", "false", "no", "")

TIMES = "as the file gives them: where a step begins and ends is not known"

SHORTEST_MS, LONGEST_MS = 1e-6, 1e9
"""A step of less than a nanosecond, or of more than eleven days, is a slip or another unit."""

TEXT_BYTES = 1 << 30  # of a file that is imported, which is held whole


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


def imported(path: str, options: Options, out: str) -> Run:
    """A sealed run folder under ``out`` of the measurement in a file; nothing is left if that fails.

    Raises :class:`RequestError` where it is no CSV of step times.
    """
    from bench.analyse import digest

    heading, table = _table(path, options)
    launches: list[LaunchRecord] = []
    steps: Rows = []
    repeats: Counter[str] = Counter()
    by_launch: Any = table.groupby(["scenario", "launch"], sort=False)
    for (scenario, name), rows in by_launch:
        who = f"launch {name!r} of {scenario}" if name else f"the launch of {scenario}"
        ordered, warmup = _whole(path, who, rows.sort_values(["rank", "step"]), options)
        about = {"launch": len(launches), "scenario": scenario, "repeat": repeats[scenario]}
        ranks = tuple(RankRecord(rank=rank, pid=None) for rank in range(int(rows["rank"].max()) + 1))
        launches.append(
            LaunchRecord(
                **about,
                strategy=None,
                precision=None,
                processes=len(ranks),
                # unknown if ranks lack steps: DataParallel is one process on all GPUs, `single` is on one
                replicas=len(ranks) if len(ranks) == options.world_size else None,
                status="ok",
                ranks=ranks,
                warmup=warmup,
                iters=len(rows) // len(ranks) - warmup,
            )
        )
        steps += ordered[["rank", "step", "warmup", "step_ms"]].assign(**about).to_dict("records")
        repeats[scenario] += 1
    widest = max(launch.processes for launch in launches)
    if options.world_size is not None and widest > options.world_size:
        problem = f"{options.world_size} was given and {path} has steps of {widest} ranks"
        raise RequestError("--world-size", problem, "fix one of the two")
    check_writable(out)
    try:
        document = decode(stored.RunDocument, encode(_document(path, launches, heading, options)))
    except Damaged as error:
        _refuse(path, f"has values that no run may have: {error}")
    writer = RunWriter(out, document)
    try:
        writer.add(*launches, steps=steps)
        writer.finish(complete=True, digest=digest.of_run(judged(writer)))
    except BaseException as error:
        shutil.rmtree(writer.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable("--out", out, error, "give another folder") from error
        raise
    return writer.frames()


def _table(path: str, options: Options) -> "tuple[list[str], pd.DataFrame]":
    """The heading, and the steps by their lines, in :data:`COLUMNS`."""
    import pandas as pd

    cells = _cells(path).apply(lambda column: column.str.strip())
    heading: list[str] = cells.iloc[0].tolist()
    for name in COLUMNS:
        if heading.count(name) > 1:
            _refuse(path, f"has the column {name} twice")
    if "step_ms" not in heading:
        _refuse(path, f"has no column step_ms, only {', '.join(map(repr, heading[:8]))}")
    given = cells[1:][(cells[1:] != "").any(axis=1)].set_axis(heading, axis=1)
    if given.empty:
        _refuse(path, "has a heading and no step")
    for name, asked in (("scenario", options.scenario), ("warmup", options.warmup)):
        if name in heading and asked is not None:
            raise RequestError(f"--{name}", f"{path} has a column for it", "leave the option out")
    if "scenario" not in heading and options.scenario is None:
        raise RequestError("--scenario", f"{path} does not say what was run", "name it, as in --scenario ddp")
    usual = {"scenario": options.scenario, "launch": "", "rank": "0", "step": "0", "warmup": ""}
    table = given.assign(**{name: value for name, value in usual.items() if name not in heading})[list(COLUMNS)]
    step_ms, whole = pd.to_numeric(table["step_ms"], errors="coerce"), "and no whole number"
    flags = table["warmup"].str.lower()
    for name, good, needs in (
        ("step_ms", step_ms.between(SHORTEST_MS, LONGEST_MS), "and no number of milliseconds from 1e-6 to 1e9"),
        ("scenario", table["scenario"].map(is_scenario), "and no name of one"),
        ("warmup", flags.isin([*TRUE, *FALSE]), "and neither true nor false"),
        ("rank", table["rank"].str.fullmatch("[0-9]{1,9}"), whole),
        ("step", table["step"].str.fullmatch("[0-9]{1,9}"), whole),
    ):
        if not good.all():
            _refuse(path, f"line {good.idxmin()}: {name} is {brief(table[name][good.idxmin()])} {needs}")
    numbers = {name: table[name].astype(int) for name in ("rank", "step")}
    table = table.assign(step_ms=step_ms, warmup=flags.isin(TRUE), **numbers)
    if "step" not in heading:  # rows are in order
        table["step"] = table.groupby(["scenario", "launch", "rank"]).cumcount()
    return heading, table


def _cells(path: str) -> "pd.DataFrame":
    """The cells of a CSV, by line; those that a line lacks at its end are empty."""
    import pandas as pd

    try:
        with open_regular(path, limit=TEXT_BYTES) as file:
            cells = pd.read_csv(
                file, header=None, dtype=str, keep_default_na=False, skip_blank_lines=False, encoding="utf-8-sig"
            )
        return cells.set_axis(range(1, len(cells) + 1))
    except UnicodeDecodeError:
        _refuse(path, "is not text in UTF-8")
    except pd.errors.EmptyDataError:
        _refuse(path, "is empty, or begins with an empty line")
    except pd.errors.ParserError as error:
        _refuse(path, f"is no CSV: {str(error).rpartition('C error: ')[2].strip()}")
    except OSError as error:
        raise RequestError("FILE", f"{path} cannot be read: {error.strerror}", "give a CSV file") from error


def _whole(path: str, who: str, rows: "pd.DataFrame", options: Options) -> "tuple[pd.DataFrame, int]":
    """The rows of a launch, in order, the steps of each rank numbered from 0; and how many of them are warm-up.
    Refuses those that are not of whole ranks."""
    steps = rows.groupby("rank")["step"].agg(list)
    first = steps.iloc[0]
    if list(steps.index) != list(range(len(steps))):
        _refuse(path, f"{who} has steps of rank {', '.join(map(str, steps.index))}: ranks count from 0 without gaps")
    twice = rows.duplicated(["rank", "step"])
    if twice.any():
        line: Any = twice.idxmax()
        _refuse(path, f"line {line}: {who} has step {rows['step'][line]} of rank {rows['rank'][line]} twice")
    for rank, numbers in steps.items():
        if len(numbers) != len(first):
            _refuse(path, f"{who}: rank {rank} has {len(numbers)} steps and rank 0 has {len(first)}")
        if numbers != first:
            _refuse(path, f"{who}: rank {rank} has other steps than rank 0")
    warmup = int(rows["warmup"][rows["rank"] == 0].sum()) if options.warmup is None else options.warmup
    place = rows.groupby("rank").cumcount()
    if options.warmup is None and (rows["warmup"] != (place < warmup)).any():
        _refuse(path, f"{who}: warm-up steps must be its first, and the same of all ranks")
    if warmup >= len(first):
        _refuse(path, f"{who} has {len(first)} steps, all of them warm-up")
    return rows.assign(step=place, warmup=place < warmup), warmup


def _document(path: str, launches: list[LaunchRecord], heading: list[str], options: Options) -> stored.RunDocument:
    """The document of the run: null if neither the file nor the options say it."""
    says_warmup = "warmup" in heading or options.warmup is not None
    settings = {"model": options.model, "image_size": options.image_size}
    size = f"{options.image_size} px" if options.image_size else None
    workload = stored.WorkloadRecord(
        title=", ".join(word for word in (options.model, size) if word) or None,
        settings={name: value for name, value in settings.items() if value is not None},
        global_batch=options.global_batch,
        replicas=options.world_size,
        device=options.device,
        warmup=_only({launch.warmup for launch in launches}) if says_warmup else None,
    )
    repeats = Counter(launch.scenario for launch in launches)
    now = machine.utc_now()
    hardware = [options.hardware] * (options.world_size or 1) if options.hardware is not None else []
    imported = stored.Imported(
        file=os.path.basename(path),
        sha256=sha256(path),
        utc=now,
        measured_utc=options.measured,
        hardware=tuple(hardware[:1] if options.device == "cpu" else hardware),
        times=TIMES,
        left_out=tuple(name for name in heading if name not in COLUMNS),
    )
    return stored.RunDocument(
        bench=bench.__version__,
        experiments={"importing": imported},
        request=stored.Asked(
            scenarios=tuple(repeats),
            warmup=workload.warmup,
            iters=_only({launch.iters for launch in launches}),
            launches=max(repeats.values()),
            label=options.label,
        ),
        workload=workload,
        machine=stored.Machine(cpu=options.hardware if options.device == "cpu" else None),
        versions=dict.fromkeys(("python", "executable", "torch", "torchvision", "cuda")),
        apex=stored.Apex(),
        start=stored.State(utc=options.measured or now),
    )


def _only(values: set[int | None]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError("FILE", f"{path} {problem}", "see 'bench import --help' for what can be read")
