"""The sampler process on the real pynvml and a stand-in driver, where NVML is hard: containers, losses, slow calls."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import planned
from standin import KEYS, MIB, NOT_AVAILABLE, TWO_GPUS, A, B, Driver
from standin.processes import wait_for

from bench.core.records import DEVICE_COLUMNS, MEMORY_COLUMNS, PROBE_MIB
from bench.machine.nvml import NO_VALUE, SCRAMBLED
from bench.machine.sample import Sampler
from bench.machine.sample.sources import GpuMemory
from bench.runs.spool import read_spool, spool_path

BUSY = 2**22 + 1  # beyond the largest PID of any kernel: no process of this machine has it


@pytest.fixture
def driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    for name, value in driver.environment().items():
        monkeypatch.setenv(name, value)
    driver.write(*TWO_GPUS)
    return driver


class Sampling:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.sampler = Sampler(device="cuda", gpus=(A, B), spool=str(folder), host="node1", **options)

    def rows(self, table: str, launch: int = 0) -> list[dict[str, Any]]:
        return read_spool(spool_path(str(self.folder), launch))[table]

    def watch(self, *gpus: str, seen: str = "") -> None:
        """A rank on each of these GPUs: PID 11, 12, ..., until that table has a row."""
        for rank, gpu in enumerate(gpus):
            self.sampler.watch(0, "ddp", rank, 11 + rank, (gpu,))
        wait_for(lambda: not seen or self.rows(seen))

    @property
    def findings(self) -> dict[str, Any]:
        assert self.sampler.findings is not None
        return self.sampler.findings

    def until_next(self, table: str) -> None:
        now = time.perf_counter_ns()
        wait_for(lambda: any(row["t_ns"] > now for row in self.rows(table)))


Start = Callable[..., Sampling]


@pytest.fixture
def start(tmp_path: Path, driver: Driver) -> Iterator[Start]:
    started: list[Sampling] = []

    def start(**options: Any) -> Sampling:
        started.append(Sampling(tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        one.sampler.stop()


def sources(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(row["pid"], row["device"], row["used_mib"], row["source"]) for row in rows}


SLOW = "delay_all_us 30000"


@pytest.mark.parametrize(
    "more",
    [(), (f"process {A} 11 0",), (f"process {A} 100011 {1024 * MIB}", SLOW)],
    ids=["not listed", "listed with 0 bytes", "listed by its host PID, and the driver is slow"],
)
def test_device_level_in_a_container(more: tuple[str, ...], start: Start, driver: Driver) -> None:
    driver.write(*TWO_GPUS, f"value {A} used {600 * MIB}", f"value {B} used {500 * MIB}", *{SLOW}.intersection(more))
    run = start(nested=True)
    run.sampler.begin(0)
    driver.write(*TWO_GPUS, f"value {A} used {1624 * MIB}", f"value {B} used {756 * MIB}", *more)
    run.watch(A, B)
    wait_for(lambda: len({row["pid"] for row in run.rows("memory")}) == 2)
    memory, _ = run.sampler.finish(0)
    assert sources(memory) == {(11, A, 1024.0, "nvml_device_delta"), (12, B, 256.0, "nvml_device_delta")}
    assert run.findings["foreign"] == []


def test_a_slow_driver_is_asked_at_both_ends(start: Start, driver: Driver) -> None:
    """The samples of this one come every two minutes: a window would have none."""
    driver.write(*TWO_GPUS, "delay_all_us 50000")
    run = start()
    run.watch(A, seen="device")
    for phase in ("measure", "record"):
        before = len(run.rows("device"))
        run.sampler.hear(planned("single").job, {"event": "phase", "phase": phase, "rank": 0})
        wait_for(lambda before=before: len(run.rows("device")) > before)


def test_a_process_that_comes_later_is_reported(start: Start, driver: Driver) -> None:
    """Not the desktop that computes, too, which a run is not refused for."""
    run = start(nested=False)
    run.watch(A, seen="device")
    for size in (100, 900, 50):
        desktop = [f"{list_} {A} 900 {size * MIB}" for list_ in ("process", "graphics")]
        driver.write(*TWO_GPUS, *desktop, *(f"process {A} {pid} {size * MIB}" for pid in (11, BUSY)))
        wait_for(lambda size=size: any(row["used_mib"] == size for row in run.rows("memory")))
    run.sampler.finish(0)
    (foreign,) = run.findings["foreign"]
    assert (foreign["pid"], foreign["peak_mib"], foreign["certain"]) == (BUSY, 900.0, True)


@pytest.mark.parametrize(
    ("gpus", "pids"),
    [((A, A), (100011, 100012)), ((A, B), (100011, 100011))],
    ids=["two ranks on one GPU", "a sandbox in which all processes have one PID"],
)
def test_a_probe_names_ranks_by_their_host_pids(
    start: Start, driver: Driver, gpus: tuple[str, str], pids: tuple[int, int]
) -> None:
    """What a probe shows of a PID is true of its GPU: on the other it is the other rank."""

    def listed(probed: int | None = None) -> None:
        used = [400 + 10 * rank + (rank == probed) * PROBE_MIB for rank in (0, 1)]
        there = zip(gpus, pids, used, strict=True)
        driver.write(*TWO_GPUS, *(f"process {gpu} {pid} {int(mib * MIB)}" for gpu, pid, mib in there))

    run = start(nested=True)
    run.sampler.begin(0)
    run.watch(*gpus, seen="device")
    for rank in (0, 1):
        listed()
        run.until_next("device")
        run.sampler.probe(0, 11 + rank, "before")
        run.until_next("device")
        listed(probed=rank)
        run.sampler.probe(0, 11 + rank, "allocated")
        run.until_next("device")
        listed()
        run.sampler.probe(0, 11 + rank, "freed")
    run.until_next("memory")
    wait_for(lambda: len({row["pid"] for row in run.rows("memory") if row["source"] == "nvml_probe"}) == 2)
    memory, _ = run.sampler.finish(0)
    assert {(row["pid"], row["device"]) for row in memory} == {(11, gpus[0]), (12, gpus[1])}
    assert {row["source"] for row in memory} == {"nvml_probe"}
    assert run.findings["probes"] == {"0": pids[0], "1": pids[1]}
    assert run.findings["foreign"] == []
    assert not run.sampler.knows_pids


@pytest.mark.parametrize("there", [(11, 12), (11,)])
def test_whether_the_driver_knows_our_pids(there: tuple[int, ...], start: Start, driver: Driver) -> None:
    driver.write(*TWO_GPUS, *(f"process {A} {pid} {512 * MIB}" for pid in there))
    run = start(nested=True)
    run.watch(A, A, seen="memory")
    run.sampler.finish(0)
    assert run.sampler.knows_pids == (there == (11, 12))


def test_memory_can_be_sampled_on_demand(start: Start, driver: Driver) -> None:
    """A step is shorter than the quarter of a second after which the first sample of memory is due."""
    driver.write(*TWO_GPUS, f"process {A} 11 {512 * MIB}")
    run = start(nested=False, at_once=True)
    run.watch(A, seen="memory")
    run.until_next("device")
    _, second_ns, *_ = sorted({row["t_ns"] for row in run.rows("device")})
    assert run.rows("memory")[0]["t_ns"] < second_ns, "with the first look at the device"


def test_the_probe_is_in_no_sample_of_its_rank(start: Start, driver: Driver) -> None:
    def used(mib: float) -> None:
        driver.write(*TWO_GPUS, f"value {A} used {int((600 + mib) * MIB)}", f"value {B} used {600 * MIB}")

    used(0)
    run = start(nested=True)
    run.sampler.begin(0)
    run.watch(A, B)
    used(500)
    wait_for(lambda: run.rows("memory"))
    run.sampler.probe(0, 11, "before")
    run.until_next("device")
    used(500 + PROBE_MIB)
    run.sampler.probe(0, 11, "allocated")
    time.sleep(0.6)
    used(400)
    run.sampler.probe(0, 11, "freed")
    wait_for(lambda: run.rows("memory")[-1]["used_mib"] == 400.0)
    memory, _ = run.sampler.finish(0)
    assert {row["used_mib"] for row in memory if row["pid"] == 11} == {400.0, 500.0}


def test_a_launch_on_one_gpu_ignores_the_other(start: Start, driver: Driver) -> None:
    there = (f"process {A} 11 {MIB}", f"process {B} {BUSY} {MIB}")
    driver.write(*TWO_GPUS, *there, f"error {B} processes 4", f"value {B} throttle 64")
    run = start(nested=False)
    run.watch(A, seen="memory")
    driver.write(*TWO_GPUS, *there, f"value {B} throttle 64")
    run.until_next("memory")
    memory, device = run.sampler.finish(0)
    assert {row["device"] for row in memory} == {row["device"] for row in device} == {A}
    assert run.findings["foreign"] == []
    driver.write(*TWO_GPUS, *there, f"process {A} 12 {MIB}", f"process {B} 13 {MIB}")
    run.sampler.watch(1, "ddp", 0, 12, (A,))
    run.sampler.watch(1, "ddp", 1, 13, (B,))
    for table in ("memory", "device"):
        wait_for(lambda table=table: {row["device"] for row in run.rows(table, 1)} == {A, B})
    run.sampler.finish(1)
    assert [one["pid"] for one in run.findings["foreign"]] == [BUSY]


def test_a_lost_gpu_leaves_a_gap(start: Start, driver: Driver) -> None:
    there = (f"process {A} 11 {MIB}", f"process {B} 12 {MIB}")
    driver.write(*TWO_GPUS, *there)
    run = start(nested=False)
    run.watch(A, B)
    wait_for(lambda: len({row["pid"] for row in run.rows("memory")}) == 2)
    driver.write(*TWO_GPUS, *there, *(f"error {A} {key} 15" for key in ("processes", *KEYS)))
    for table in ("memory", "memory", "device"):
        run.until_next(table)
    memory, device = run.sampler.finish(0)
    gaps = [row for row in memory if row["used_mib"] is None]
    assert [(row["pid"], row["device"], row["reason"]) for row in gaps] == [(11, A, "GPU is lost")]
    assert max(row["t_ns"] for row in memory if row["pid"] == 12) > gaps[0]["t_ns"]
    last = {row["device"]: row for row in device}
    assert (last[A]["power_w"], last[A]["reason"]) == (None, "GPU is lost")
    assert (last[B]["power_w"], last[B]["reason"]) == (0.0, None)


def test_scrambled_lists_are_dropped_and_counted(start: Start, driver: Driver) -> None:
    run = start(nested=False)
    driver.write(*TWO_GPUS, f"process {A} 11 {MIB}", f"process {A} 12 {MIB}", "scrambled 1")
    run.watch(A, seen="device")
    time.sleep(0.4)
    memory, _ = run.sampler.finish(0)
    assert [(row["used_mib"], row["reason"]) for row in memory] == [(None, SCRAMBLED)]
    assert run.findings["scrambled_lists"] >= 1


def test_a_slow_driver_stays_within_one_percent(start: Start, driver: Driver) -> None:
    run = start(nested=False)
    run.sampler._ready = run.sampler._channel.first("ready", limit_s=30) is not None
    slow = (f"process {A} 11 {MIB}", "delay_us 100000", "delay_all_us 100000")
    driver.write(*TWO_GPUS, *slow)
    run.watch(A, seen="memory")
    time.sleep(1.5)  # many times the usual intervals
    run.sampler.finish(0)
    assert run.sampler.cost is not None
    assert (run.sampler.cost["memory"]["calls"], run.sampler.cost["device"]["calls"]) == (1, 1)
    assert run.sampler.cost["memory"]["total_ms"] > 100
    run.sampler.watch(0, "ddp", 0, 12, (A,))  # and a launch that comes soon after does not start afresh
    time.sleep(1.0)
    memory, _ = run.sampler.finish(0)
    assert run.sampler.cost["memory"]["calls"] == 0
    assert "no sample was due while it ran" in memory[0]["reason"]
    assert "asking the driver takes" in memory[0]["reason"]


def test_a_thermal_bit_and_link_counters(start: Start, driver: Driver) -> None:
    run = start(nested=False)
    links = (f"value {A} pcie_tx {3 << 20}", f"value {A} nvlink_rx 7")
    driver.write(*TWO_GPUS, *links, f"value {A} throttle 1", f"every {A} throttle/10 64")
    run.watch(A)
    wait_for(lambda: len([row for row in run.rows("device") if row["device"] == A]) >= 11)
    _, device = run.sampler.finish(0)
    on_a = [row for row in device if row["device"] == A][:20]  # on a busy machine there are more
    bits = [row["throttle_reasons"] for row in on_a]
    assert bits.count(64) in (1, 2) and set(bits) == {1, 64}
    assert [number for number, row in enumerate(on_a) if row["pcie_tx_kib"] is not None] == [0, 10]
    assert (on_a[10]["pcie_tx_kib"], on_a[10]["nvlink_rx_kib"]) == (3072.0, 7.0)
    assert {row["reason"] for row in on_a} == {None}


def test_rows_of_ranks_and_gpus(start: Start, driver: Driver) -> None:
    """A row for each process on each GPU that it is on; of one without a figure, or without a list, the reason."""
    lists = (f"process {A} 11 {512 * MIB}", f"process {B} 11 {256 * MIB}", f"process {B} 13 {NOT_AVAILABLE}")
    driver.write(*TWO_GPUS, *lists, f"value {A} power 312500", f"value {A} energy 1000", f"error {B} energy 3")
    run = start(nested=False)
    for rank, pid in enumerate((11, 13, 4711)):
        run.sampler.watch(0, "dp", rank, pid)
    wait_for(lambda: len({row["t_ns"] for row in run.rows("memory")}) >= 3)
    memory, device = run.sampler.finish(0)
    assert {(row["launch"], row["scenario"], row["host"]) for row in memory + device} == {(0, "dp", "node1")}
    assert {tuple(row) for row in memory} == {tuple(MEMORY_COLUMNS)}
    assert {tuple(row) for row in device} == {tuple(DEVICE_COLUMNS)}
    assert {(row["rank"], row["device"], row["used_mib"], row["source"], row["reason"]) for row in memory} == {
        (0, A, 512.0, "nvml_pid", None),
        (0, B, 256.0, "nvml_pid", None),
        (1, B, None, "unavailable", NO_VALUE),
        (2, None, None, "unavailable", GpuMemory.missing),
    }
    last_ns = max(row["t_ns"] for row in memory if row["used_mib"])
    assert [row["pid"] for row in memory if row["t_ns"] == last_ns] == [11, 11, 13], "one moment for all of a sample"
    assert [(row["device"], row["power_w"], row["energy_mj"], row["mig"], row["reason"]) for row in device[:2]] == [
        (A, 312.5, 1000.0, False, None),
        (B, 0.0, None, False, "energy_mj: Not Supported"),
    ]
    assert device[0]["t_ns"] == device[1]["t_ns"]
    driver.write(*TWO_GPUS, *lists, f"error {A} processes 4")
    run.sampler.watch(1, "dp", 0, 11)
    wait_for(lambda: run.rows("memory", 1))
    memory, _ = run.sampler.finish(1)
    on_a = [(row["used_mib"], row["source"], row["reason"]) for row in memory if row["device"] == A]
    assert on_a == [(None, "unavailable", "Insufficient Permissions")]


def test_the_sampler_survives_a_driver_that_refuses(start: Start, driver: Driver) -> None:
    driver.write("error * init 9")
    run = start()
    run.sampler.watch(7, "dp", 0, 11)
    memory, device = run.sampler.finish(7)
    assert [(row["rank"], row["used_mib"], row["source"]) for row in memory] == [(0, None, "unavailable")]
    assert "Driver Not Loaded" in memory[0]["reason"]
    assert [(row["device"], row["power_w"]) for row in device] == [(A, None), (B, None)]
    assert all(list(row) == list(DEVICE_COLUMNS) and "Driver Not Loaded" in row["reason"] for row in device)
