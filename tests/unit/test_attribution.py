"""Whose memory it is: every way in which a driver's list may name, misname or hide our ranks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from standin import ROOT

from bench.core.records import PROBE_MIB
from bench.machine.sample.attribution import Attributed, Before, Known, Listing, attribute, match_probe
from bench.machine.sample.sources import rank_of

GPU = "GPU-a"
IDLE = Before(used_mib=600.0, pids=frozenset())


def told(*rows: Any, known: Known, before: Before | None = IDLE, level: float | None = 600.0, **of: Any) -> Attributed:
    listing = Listing(device=GPU, rows=rows, **{"reason": None} | of)
    return attribute(listing, known, before, lambda: (level, None if level is not None else "GPU is lost"))


def values(attributed: Attributed) -> list[tuple[int, float | None, str]]:
    return [(reading.pid, reading.used_mib, reading.source) for reading in attributed.readings]


def container(ranks: dict[int, tuple[str, ...] | None]) -> Known:
    return Known(ranks=ranks, nested=True)


def test_a_listed_pid_is_a_rank_or_its_alias() -> None:
    """An alias gives the source that found it."""

    def never() -> tuple[float | None, str | None]:
        raise AssertionError

    listing = Listing(device=GPU, rows=[(11, 512.0), (104711, 900.0), (104712, 800.0)], reason=None)
    aliases = {104711: (12, "nvml_pid"), 104712: (13, "nvml_probe")}
    for nested in (False, True):
        known = Known(ranks=dict.fromkeys((11, 12, 13), (GPU,)), aliases=aliases, nested=nested)
        found = attribute(listing, known, IDLE, never)
        assert values(found) == [(11, 512.0, "nvml_pid"), (12, 900.0, "nvml_pid"), (13, 800.0, "nvml_probe")]
        assert found.foreign == []


@pytest.mark.parametrize(
    ("rows", "devices", "level", "value"),
    [
        (((104711, 900.0),), {11: (GPU,)}, 1500.0, 900.0),
        (((100011, 900.0),), {11: (GPU,), 12: ("GPU-b",)}, 1500.0, 900.0),
        ((), {11: (GPU,)}, 1100.0, 500.0),
        (((11, None),), {11: (GPU,)}, 1100.0, 500.0),
    ],
    ids=["host PID", "host PID plus 100000", "empty list", "no value"],
)
def test_a_rank_in_a_container_is_told_by_its_device(rows: Any, devices: Any, level: float, value: float) -> None:
    found = told(*rows, known=container(devices), level=level)
    assert values(found) == [(11, value, "nvml_device_delta")] and found.foreign == []
    assert "not named by the driver" in (found.readings[0].reason or "")
    on_the_host = told(known=Known(ranks=devices), level=level)
    assert on_the_host.readings == [], "where an empty list means that nobody is there"


@pytest.mark.parametrize(
    ("rows", "ranks", "before", "level", "why"),
    [
        (((7, 1.0),), {11: (GPU,)}, Before(used_mib=600.0, pids=frozenset({7})), 900.0, "before the launch (PID 7)"),
        ((), {11: (GPU,), 12: (GPU,)}, IDLE, 900.0, "2 ranks are on the device"),
        (((7, 1.0), (8, 1.0)), {11: (GPU,)}, IDLE, 900.0, "cannot be told apart are on the device (PID 7, 8)"),
        ((), {11: (GPU,)}, Before(used_mib=None, pids=frozenset()), 900.0, "before the launch is unknown"),
        ((), {11: (GPU,)}, Before(used_mib=600.0, pids=None), 900.0, "before the launch is unknown"),
        ((), {11: (GPU,)}, None, 900.0, "before the launch is unknown"),
        ((), {11: (GPU,)}, IDLE, None, "the device's level is unknown (GPU is lost)"),
        ((), {11: (GPU,)}, IDLE, 600.0, "did not rise"),
        ((), {11: (GPU,)}, IDLE, 500.0, "did not rise"),
    ],
)
def test_others_may_have_moved_the_level(rows: Any, ranks: Any, before: Any, level: Any, why: str) -> None:
    attributed = told(*rows, known=container(ranks), before=before, level=level)
    assert attributed.readings == []
    assert why in attributed.why[11]


def test_a_rank_that_is_unavailable() -> None:
    unlisted = told(known=container({11: (GPU,)}), level=900.0, reason="Insufficient Permissions")
    assert unlisted.readings == [] and "Insufficient Permissions" in unlisted.why[11]
    nowhere = told((11, None), known=container({11: None}), level=1100.0, reason="not available")
    assert values(nowhere) == [(11, None, "unavailable")] and nowhere.readings[0].reason == "not available"
    for nested in (False, True):
        known = Known(ranks={11: (GPU,)}, nested=nested)
        mig = told((11, None), known=known, level=1100.0, reason="no value", mig=True)
        assert values(mig) == [(11, None, "unavailable")]
        assert "all its MIG instances" in (mig.readings[0].reason or "")


def test_when_a_foreign_process_is_certain() -> None:
    earlier = Known(ranks={11: (GPU,)}, earlier=frozenset({10}))
    assert told((7, 100.0), (11, 1.0), (10, 5.0), known=earlier).foreign == [(7, 100.0, True)]
    there = Before(used_mib=600.0, pids=frozenset({7}))
    attributed = told((7, 100.0), (104711, 900.0), known=container({11: (GPU,)}), before=there)
    assert attributed.foreign == [(7, 100.0, True)]
    crowded = told((7, 100.0), (104711, 900.0), known=container({11: (GPU,)}))
    assert crowded.foreign == [(7, 100.0, False), (104711, 900.0, False)]  # one of them is the rank, and which?


@pytest.mark.parametrize(
    ("before", "after", "taken", "rank"),
    [
        (
            {7: 100.0, 104711: 400.0, 104712: 410.0, 9: None},
            {7: 100.0, 104711: 402.0 + PROBE_MIB, 104712: 412.0, 9: None, 8: PROBE_MIB},
            set(),
            104711,
        ),
        ({1: 0.0, 2: 0.0}, {1: 10.0, 2: 10.0}, set(), None),
        ({1: 0.0, 2: 0.0}, {1: PROBE_MIB, 2: PROBE_MIB}, set(), None),
        ({1: 0.0, 2: 0.0}, {1: PROBE_MIB, 2: PROBE_MIB}, {1}, 2),
        ({}, {1: PROBE_MIB}, set(), None),
    ],
)
def test_the_pid_that_rises_by_the_probe_is_the_rank(before: Any, after: Any, taken: Any, rank: Any) -> None:
    assert match_probe(before, after, taken) == rank


OWN = str(Path("/proc/self/ns/pid").readlink())


@pytest.mark.parametrize(
    ("listed", "nspid", "namespace", "rank"),
    [
        (4711, "4711\t11", OWN, 11),
        (4711, "4711\t30\t11", OWN, 11),
        (4711, "4711", OWN, None),
        (11, "11\t11", OWN, None),
        (4711, "4711\t11", "pid:[1]", None),
    ],
    ids=["a container", "a container in another", "the host", "the same PID", "the same PID in another container"],
)
def test_the_process_of_an_outer_proc(tmp_path: Path, listed: int, nspid: str, namespace: str, rank: Any) -> None:
    folder = tmp_path / str(listed)
    (folder / "ns").mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{nspid}\nThreads:\t1\n")
    (folder / "ns" / "pid").symlink_to(namespace)
    assert rank_of(listed, frozenset({11, 12}), str(tmp_path)) == rank
    assert rank_of(9, frozenset({9}), str(tmp_path)) is None, "which is not there"


def test_a_real_namespace_is_seen_through() -> None:
    code = (
        "import os\nfrom bench.core.children import nested\nfrom bench.machine.sample.sources import rank_of\n"
        "inner, outer = os.getpid(), int(os.readlink('/proc/self'))\n"
        "print(nested(), inner != outer, rank_of(outer, frozenset({inner})) == inner, rank_of(1, frozenset({inner})))"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("this user may not make a PID namespace")
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "True True True None\n", done.stderr
