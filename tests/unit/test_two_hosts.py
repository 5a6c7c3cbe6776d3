"""A launch on two hosts, made up: their clocks are hours apart, and one has more cores than the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from standin.documents import changed, sample
from standin.frames import iterations, launch_stats, step_rows

from bench.analyse.memory import peaks, timeline
from bench.analyse.parity import parity
from bench.analyse.validity import findings, unlike
from bench.experiments import record
from bench.runs.document import HostRecord, Machine, State
from bench.runs.frames import RankSteps
from bench.runs.launches import RankRecord
from bench.runs.reader import Run, read
from tests.standin.runs import DDP, write_run

HOUR_NS = 3600 * 10**9
CLOCKS = {"node1": 5 * HOUR_NS, "node2": 2 * HOUR_NS}
HOSTS = ("node1", "node2")


def steps() -> pd.DataFrame:
    """Three steps of 100 ms on rank 0, and 10 ms more on rank 1; the first is a warm-up."""
    rows = step_rows(0, "ddp", [100.0] * 3, [110.0] * 3, warmup=1)
    for row in rows:
        row["host"] = HOSTS[row["rank"]]
        row["start_ns"] = CLOCKS[row["host"]] + row["step"] * 110_000_000
    return pd.DataFrame(rows)


def memory(*samples: tuple[str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(
        sample(host=host, t_ns=CLOCKS[host] + at_ms * 1_000_000, pid=40, rank=HOSTS.index(host), used_mib=used_mib)
        for host, at_ms, used_mib in samples
    )


SAMPLES = memory(("node1", -50, 100.0), ("node1", 200, 300.0), ("node2", 0, 250.0), ("node2", 130, 200.0))


def test_an_iteration_has_one_clock() -> None:
    table = iterations(steps()).frame
    assert list(table["ranks"]) == [2, 2, 2] and list(table["rank"]) == [1, 1, 1]
    assert list(table["step_ms"]) == [110.0] * 3 and list(table["elapsed_s"]) == pytest.approx([0.11, 0.22, 0.33])
    assert set(table["host"]) == {"node1"}
    begins = [CLOCKS["node1"] + step * 110_000_000 for step in range(3)]
    assert list(table["begin_ns"]) == begins
    assert list(table["end_ns"]) == [begin + 100_000_000 for begin in begins]
    assert list(table["forward_end_ns"]) == [begin + 25_000_000 for begin in begins]
    assert launch_stats(steps()).frame["median_ms"].tolist() == [110.0]


def test_samples_are_on_the_clock_of_their_host(run: Run) -> None:
    (peak,) = peaks(SAMPLES).to_dict("records")
    assert (peak["peak_pid_mib"], peak["peak_total_mib"]) == (300.0, 550.0), "the sum of the peaks of the hosts"
    launch = replace(run.document.launches[0], launch=0, first_forward_s=0.125)
    line, windows = timeline(launch, SAMPLES, iterations(steps()))
    assert line["seconds"].tolist() == pytest.approx([0.05, 0.30, 0.0, 0.13])
    assert windows == pytest.approx((0.10, 0.21, 0.42)), "since 100 ms before the first step"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read(str(write_run(tmp_path, [DDP])))


def found(run: Run, code: str, **changes: Any) -> list[dict[str, Any]]:
    document = changed(run, **changes).document
    table = findings(document, launch_stats(run.steps), parity(document, iterations(run.steps), run.numerics))
    return [row for row in table.to_dict("records") if row["code"] == code]


def unequal(run: Run, *ranks: RankRecord) -> list[str]:
    launches = [replace(run.document.launches[0], ranks=ranks, processes=len(ranks))]
    return [row["text"] for row in found(run, "unequal", launches=launches)]


def ranks(*about: tuple[str, int, int, int]) -> tuple[RankRecord, ...]:
    """Ranks as (host, planned threads, threads that they had, cores)."""
    return tuple(
        RankRecord(rank=rank, pid=40, host=host, threads=planned, ran_threads=threads, cores=cores)
        for rank, (host, planned, threads, cores) in enumerate(about)
    )


def test_threads_are_those_planned_for_each_host(run: Run) -> None:
    assert unequal(run, *ranks(("node1", 8, 8, 8), ("node2", 1, 1, 2), ("node2", 1, 1, 2))) == []
    (said,) = unequal(run, *ranks(("node1", 8, 8, 8), ("node2", 1, 2, 2), ("node2", 1, 2, 2)))
    assert said == "its ranks on node2 had 2 threads where 1 was planned"
    (said,) = unequal(run, *ranks(("node1", 8, 8, 8), ("node2", 1, 1, 2), ("node2", 1, 1, 4)))
    assert said == "launches of this run had 2 and 4 cores on node2"
    (said,) = unequal(run, *ranks(("node1", 4, 4, 1), ("node1", 4, 4, 1)))
    assert said == "something bound its ranks to 1 core, fewer than their threads", "all to the same"


def test_a_switch_may_bind_ranks_to_some_of_the_cores(run: Run) -> None:
    (plain,) = run.document.launches
    few = replace(plain.effective, affinity=1)
    others = [plain, replace(plain, launch=2, scenario="bound", ranks=(), effective=few)]
    both = replace(run, timed=RankSteps(pd.concat([run.steps, run.steps.assign(launch=2, scenario="bound")])))
    assert [row["scenario"] for row in found(both, "unequal", launches=others)] == ["ddp", "bound"]
    others[1] = replace(others[1], effective=replace(few, bound_cores=1))
    assert found(both, "unequal", launches=others) == []


def test_ranks_of_one_host_are_alike() -> None:
    def result(**ran: Any) -> dict[str, Any]:
        window = {"step_ms": [1.0], "wall_ms": 1.0, "loss": [1.0]}
        known = {"initial_sha256": "a", "final_sha256": "b", "skipped_steps": 0}
        return {"rank": 0, "measured": window, "effective": ran, **known}

    small, large = result(threads=1, affinity=2, backend="gloo"), result(threads=4, affinity=4, backend="gloo")
    assert record._checks([small, large], ["node1", "node2"])["ranks_differ"] == []
    assert record._checks([small, large], ["node1", "node1"])["ranks_differ"] == ["affinity", "threads"]
    other = result(threads=4, affinity=4, backend="nccl")
    assert record._checks([small, large, other], ["node1", "node2", "node2"])["ranks_differ"] == ["backend"]


def host(name: str, **about: Any) -> HostRecord:
    machine = Machine(host=name, cpu="EPYC", cores_usable=8, python="3.11.7")
    usual: dict[str, Any] = {"name": name, "machine": machine, "versions": {"torch": "2.15"}, "start": State(utc=None)}
    return HostRecord(**usual | about)


def test_what_differs_between_hosts_is_a_finding(run: Run) -> None:
    assert list(unlike([host("a"), host("b")])) == []
    busy = State(utc=None, load_1min=7.5)
    slow = replace(host("b").machine, cpu="Xeon", cores_usable=4)
    other = host("b", machine=slow, versions={"torch": "2.15", "torchvision": "0.30"}, start=busy)
    assert list(unlike([host("a"), other])) == [
        "cpu: EPYC on a, Xeon on b",
        "cores usable: 8 on a, 4 on b",
        "torchvision: none on a, 0.30 on b",
        "load per core when it began: 0.0 on a, 1.9 on b",
    ]
    one = replace(run.document.launches[0], ranks=ranks(("a", 1, 1, 8), ("b", 1, 1, 4)), processes=2)
    assert found(run, "unlike hosts", launches=[one], hosts=(host("a"), other))
