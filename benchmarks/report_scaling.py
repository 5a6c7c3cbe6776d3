"""`bench report` over runs of up to ten million step rows: time, memory, and whether both grow in proportion.

    python benchmarks/report_scaling.py

Three runs are made up, of 2.5, 5 and 10 million step rows: the ten scenarios in five launches each, with four ranks on
four GPUs, and up to 50,000 steps of 25 ms a launch. So they hold as many samples as a real run of that length has: the
memory of every rank each 250 ms, every GPU each 100 ms. Step times resemble their neighbours, ranks take turns in being
the slowest, a step in a hundred takes twice as long. Then ``python -m bench report`` reads each, in a process of its
own on two cores (where the system lets it be kept there).

Allowed are 20 s and 2 GiB for the largest. In proportion: from the second run to the third, which is twice as much
more, the processor time may rise by at most 2.6 times what it rose from the first to the second; 2 is a straight line,
4 a square.
"""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paired
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, os.path.join(paired.ROOT, "tests"))  # where runs are written by hand

from standin.gpu_runs import OnGpus
from standin.runs import Launch, write_run

from bench.runs.launches import LaunchRecord
from bench.runs.tables import COLUMNS
from bench.runs.writer import RunWriter
from bench.seams.discover import DEFAULT

SECONDS, MIB = 20.0, 2048.0
BEND = 2.6
CORES = 2

LAUNCHES, RANKS = 5, 4
STEPS = 50_000
"""Of a rank in the largest run; the others have a half and a quarter of it."""
LOOK_S = 0.25
"""Between two looks at what the report's processes hold together."""
STEP_MS, WARMUP = 25.0, 50
MEMORY_S, DEVICE_S = 0.25, 0.1
SECOND_NS = 1_000_000_000

GPUS = [
    {"index": index, "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000", "name": "A made-up GPU", "driver": "555.1"}
    for index in range(RANKS)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One call of the report: rows of its run; what the process took; the bytes of its files."""

    step_rows: int
    memory_rows: int
    device_rows: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    page_bytes: int


@dataclass
class Bare(OnGpus):
    """A launch without rows, which are not made one by one."""

    def record(self, launch: int, repeat: int) -> dict[str, Any]:
        record = super().record(launch, repeat)
        record["effective"] |= {"replicas": RANKS, "threads": 1, "affinity": RANKS}
        return record


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"of a rank in the largest run (default: {STEPS:,})"
    )
    parser.add_argument("--seed", type=int, default=20261121, help="of the made-up times (default: 20261121)")
    parser.add_argument("--scratch", metavar="DIR", help="where the runs are made up (default: the system's)")
    options = parser.parse_args()
    measured = []
    for part in (4, 2, 1):
        with tempfile.TemporaryDirectory(prefix="bench-report-", dir=options.scratch) as folder:
            paired.progress(f"making up a run of {LAUNCHES * len(DEFAULT) * RANKS * options.steps // part:,} step rows")
            run = fabricate(folder, options.steps // part, np.random.default_rng(options.seed))
            measured.append(report(run, os.path.join(folder, "reports")))
            paired.progress(f"  {measured[-1].wall_s:.1f} s, {measured[-1].peak_mib:,.0f} MiB")
    print("\n".join(table(measured)), file=sys.stderr if options.json else sys.stdout)
    more = {"measured": [asdict(one) for one in measured], "seed": options.seed}
    return paired.Answer("report_scaling", [], checks(measured), more=more).finish(options.json)


def fabricate(folder: str, steps: int, random: np.random.Generator) -> Path:
    """A sealed run with this many steps a rank; what it would have taken RunWriter row by row is written as columns."""
    launches: list[Launch] = [
        Bare(
            name,
            steps_ms=[[]] * RANKS,
            strategy="apex_ddp" if name.startswith("apex") else "ddp",
            reserved={(rank, str(gpu["uuid"])): 6000.0 for rank, gpu in enumerate(GPUS)},
        )
        for _ in range(LAUNCHES)
        for name in DEFAULT
    ]
    path = write_run(Path(folder), launches, scenarios=list(DEFAULT), gpus=GPUS, replicas=RANKS, complete=False)
    writer = RunWriter.reopen(str(path))
    records = writer.document.launches
    level = {name: STEP_MS * (1.0 + 0.03 * place) for place, name in enumerate(DEFAULT)}
    times = [drawn(steps, level[record.scenario], random) for record in records]
    ends_ns = np.cumsum([SECOND_NS * 5 + int(one.sum(axis=1).max() * 1e6) for one in times])
    starts_ns = [0, *ends_ns[:-1]]
    for name, make in (("steps", step_table), ("memory", memory_table), ("device", device_table)):
        whole = pa.concat_tables(
            make(record, start_ns + SECOND_NS, one)
            for record, start_ns, one in zip(records, starts_ns, times, strict=True)
        )
        pq.write_table(whole, path / f"{name}.parquet", write_page_checksum=True)
        del whole
    writer.seal(complete=True)
    return path


def drawn(steps: int, level_ms: float, random: np.random.Generator) -> np.ndarray:
    """Step times (ms) by rank and step: a wander that all ranks share, noise of each, one step in a hundred twice."""
    wander = np.cumsum(random.standard_normal(steps)) / np.sqrt(steps) * 0.01
    times: np.ndarray = level_ms * np.exp(wander + 0.01 * random.standard_normal((RANKS, steps)))
    times[:, random.random(steps) < 0.01] *= 2.0
    times[:, :WARMUP] *= 3.0
    return times


def step_table(record: LaunchRecord, start_ns: int, times: np.ndarray) -> pa.Table:
    rank, step = (index.ravel() for index in np.indices(times.shape))
    own = times.ravel()
    loss = 6.0 + 0.9 * np.exp(-step / 5000.0) + 0.3 * np.sin(own * 1e6)  # as ragged as losses are
    return columns(
        "steps",
        record,
        len(own),
        repeat=np.full(len(own), record.repeat),
        rank=rank,
        step=step,
        warmup=step < WARMUP,
        start_ns=start_ns + ((np.cumsum(times, axis=1) - times) * 1e6).astype("int64").ravel(),
        data_ms=0.01 * own,
        forward_ms=0.29 * own,
        backward_ms=0.6 * own,
        optimizer_ms=0.1 * own,
        step_ms=own,
        loss=loss,
    )


def memory_table(record: LaunchRecord, start_ns: int, times: np.ndarray) -> pa.Table:
    ticks, t_ns = ticked(start_ns, times, MEMORY_S)
    rank = np.tile(np.arange(RANKS), ticks)
    return columns(
        "memory",
        record,
        ticks * RANKS,
        host="host",
        t_ns=np.repeat(t_ns, RANKS),
        pid=np.array([one.pid for one in record.ranks])[rank],
        rank=rank,
        device=np.array([gpu["uuid"] for gpu in GPUS])[rank],
        used_mib=6500.0 + 100.0 * rank + np.repeat(np.minimum(np.arange(ticks), 50), RANKS),
        source="nvml_pid",
    )


def device_table(record: LaunchRecord, start_ns: int, times: np.ndarray) -> pa.Table:
    ticks, t_ns = ticked(start_ns, times, DEVICE_S)
    gpu = np.tile(np.arange(RANKS), ticks)
    tick = np.repeat(np.arange(ticks), RANKS)
    links = np.where(tick % 10 == 0, tick * 5000.0, np.nan)
    return columns(
        "device",
        record,
        ticks * RANKS,
        host="host",
        t_ns=np.repeat(t_ns, RANKS),
        device=np.array([one["uuid"] for one in GPUS])[gpu],
        utilisation_percent=np.full(len(gpu), 97.0),
        power_w=600.0 + 10.0 * gpu + 20.0 * np.sin(tick / 30.0),
        energy_mj=1e9 + tick * 6e4,
        sm_clock_mhz=np.full(len(gpu), 1800.0),
        memory_clock_mhz=np.full(len(gpu), 2600.0),
        temperature_c=60.0 + np.minimum(tick, 200) / 20.0,
        throttle_reasons=np.where((tick > 100) & (tick < 200), 4, 0),
        used_mib=6600.0 + 100.0 * gpu,
        pcie_tx_kib=links,
        pcie_rx_kib=links * 2.0,
        mig=np.zeros(len(gpu), dtype=bool),
    )


def ticked(start_ns: int, times: np.ndarray, every_s: float) -> tuple[int, np.ndarray]:
    """How many samples a launch has, and when."""
    ticks = int((times.sum(axis=1).max() / 1e3 + 2.0) / every_s)
    return ticks, start_ns - SECOND_NS + (np.arange(ticks) * every_s * 1e9).astype("int64")


def columns(name: str, record: LaunchRecord, rows: int, **given: Any) -> pa.Table:
    """A launch's rows of a table. One text stands for all of them; what is not given, and a NaN, is null."""
    known = {"launch": record.launch, "scenario": record.scenario, **given}
    arrays = []
    for column, alias in COLUMNS[name].items():
        kind = pa.type_for_alias(alias)
        value = known.get(column)
        if value is None:
            arrays.append(pa.nulls(rows, kind))
        elif isinstance(value, str | int):
            arrays.append(pa.repeat(pa.scalar(value, kind), rows))
        else:
            arrays.append(pa.array(value, from_pandas=True).cast(kind))
    return pa.table(arrays, names=list(COLUMNS[name]))


def report(run: Path, out: str) -> Measured:
    """Call ``bench report`` on a run: once for its time, and again to look at its memory, which takes time from it. The
    processor time is that of the call that took less: other work on the machine only adds to it."""
    rows = {name: pq.ParquetFile(run / f"{name}.parquet").metadata.num_rows for name in ("steps", "memory", "device")}
    wall_s, usage, _ = called(run, out, look=False)
    _, again, peak_mib = called(run, out, look=True)
    return Measured(
        step_rows=rows["steps"],
        memory_rows=rows["memory"],
        device_rows=rows["device"],
        wall_s=wall_s,
        cpu_s=min(one.ru_utime + one.ru_stime for one in (usage, again)),
        peak_mib=max(peak_mib, usage.ru_maxrss / 1024.0),
        page_bytes=os.path.getsize(os.path.join(out, "index.html")),
    )


def called(run: Path, out: str, *, look: bool) -> tuple[float, resource.struct_rusage, float]:
    """Seconds, usage and peak (MiB) of one call, on as many cores as are allowed; without a look the peak is 0."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", "report", str(run), "--out", out],
        cwd=paired.ROOT,
        env=paired.COMPILED,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    peak_mib = 0.0
    while look and not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
        peak_mib = max(peak_mib, held_mib(process.pid))
        time.sleep(LOOK_S)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench report ended with exit code {process.returncode}")
    return wall_s, usage, peak_mib


def held_mib(pid: int) -> float:
    """What a process and those below it hold now: their proportional set sizes, in which a shared page counts once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):  # it ends while it is looked at
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_full_info().pss
    return total / 2**20


def table(measured: list[Measured]) -> list[str]:
    """The values for people."""
    lines = ["  step rows  memory rows  device rows   wall s  processor s   peak MiB   page MB"]
    for one in measured:
        lines.append(
            f"{one.step_rows:>11,}  {one.memory_rows:>11,}  {one.device_rows:>11,}  {one.wall_s:>7.1f}  "
            f"{one.cpu_s:>11.1f}  {one.peak_mib:>9,.0f}  {one.page_bytes / 1e6:>8.1f}"
        )
    return lines


def checks(measured: list[Measured]) -> list[paired.Check]:
    first, second, largest = measured
    bend = (largest.cpu_s - second.cpu_s) / (second.cpu_s - first.cpu_s)
    return [
        paired.Check(
            f"{largest.step_rows:,} step rows took {largest.wall_s:.1f} s, allowed {SECONDS:g} s",
            largest.wall_s <= SECONDS,
        ),
        paired.Check(f"they took {largest.peak_mib:,.0f} MiB at most, allowed {MIB:,.0f} MiB", largest.peak_mib <= MIB),
        paired.Check(
            f"processor time: the last doubling took {bend:.2f} times what the one before took, allowed {BEND:g} "
            "(2: a straight line)",
            bend <= BEND,
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
