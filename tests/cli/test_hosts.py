"""The same command on two hosts: one sealed run on the first, and one line on each where they do not fit together."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from standin import hosts
from standin.hosts import TINY

from bench.machine.lock import acquire
from bench.runs.check import findings


@pytest.fixture
def two(tmp_path: Path, repository: Path) -> list[dict[str, str]]:
    return hosts.environments(tmp_path, repository)


def test_a_run_on_two_hosts_is_one_folder_on_the_first(two: list[dict[str, str]], tmp_path: Path) -> None:
    options = (*TINY, "--scenario", "dp,single", "--iters", "3", "--json")
    leader, follower = hosts.run(tmp_path, two, *options)
    assert (leader.code, follower.code) == (0, 0), leader.err + follower.err
    run = leader.document
    assert follower.out == "" and [one.name for one in tmp_path.glob("host*/results/*")] == [run["run"]]
    names = [host["name"] for host in run["hosts"]]
    assert len(set(names)) == 2 and f"{names[1]} takes launches from {names[0]}" in follower.err
    by_name = {launch["scenario"]: launch for launch in run["launches"]}
    assert "drive the devices of 2 hosts" in by_name["dp"]["reason"]
    assert (hosts_of(by_name["ddp"]), hosts_of(by_name["single"])) == (names, names[:1])
    path = Path(run["path"])
    hosts.whole(path)
    assert "for the tests" not in (path / "run.json").read_text(), "the secret is nobody's business"


@pytest.mark.slow
def test_a_host_queues(two: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it takes, and the first host says for whom."""
    monkeypatch.setenv("BENCH_LOCK_DIR", two[1]["BENCH_LOCK_DIR"])
    options = (*TINY, "--iters", "3", "--wait")
    with ExitStack() as stack:
        with acquire((), wait=False, say=print):
            benches = [stack.enter_context(hosts.start(tmp_path, index, two[index], *options)) for index in (0, 1)]
            for one in benches:
                stack.callback(one.kill)
            assert benches[0].stderr is not None
            line = next((line for line in benches[0].stderr if "waiting" in line), "")
        said = [one.communicate(timeout=hosts.LIMIT_S)[1] for one in benches]
    assert f": waiting until the CPU is free of PID {os.getpid()} (" in line
    assert [one.returncode for one in benches] == [0, 0], said


def both(two: list[dict[str, str]], folder: Path, verb: str, *options: str) -> tuple[dict[str, Any], list[str]]:
    work = ("--workload", "fashion_mlp", "--device", "cpu", "--warmup", "1", "--iters", "3")
    leader, follower = hosts.run(folder, two, *work, *options, "--json", verb=verb)
    assert (leader.code, follower.code) == (0, 0), leader.err + follower.err
    run = json.loads(leader.out)
    assert findings(run["path"]) == []
    return run, [host["name"] for host in run["hosts"]]


def hosts_of(launch: dict[str, Any]) -> list[str]:
    return [rank["host"] for rank in launch["ranks"]]


@pytest.mark.slow
def test_scaling_from_one_host_to_two(two: list[dict[str, str]], tmp_path: Path) -> None:
    run, names = both(two, tmp_path, "scale", "--launches", "1", "--counts", "2", "--weak")
    scaling = run["experiments"]["scaling"]
    assert {one["replicas"]: hosts_of(one) for one in scaling["launches"]} == {1: names[:1]}
    (all_reduces,) = scaling["bandwidth"]
    assert hosts_of(run["launches"][0]) == hosts_of(all_reduces) == names and len(all_reduces["sizes"]) > 3
    assert [one["count"] for one in run["scale"]["checks"]] == [2]


@pytest.mark.slow
def test_a_search_on_two_hosts(two: list[dict[str, str]], tmp_path: Path) -> None:
    run, names = both(two, tmp_path, "tune", "--scenario", "ddp", "--allow", "foreach")
    raced = {one["scenario"]: hosts_of(one) for one in run["experiments"]["tuning"]["launches"]}
    assert raced == {"ddp": names, "ddp+foreach": names}
    assert {len(one["ranks"]) for one in run["launches"]} == {2}


@pytest.mark.slow
def test_a_step_of_two_hosts_is_taken_apart(two: list[dict[str, str]], tmp_path: Path) -> None:
    run, names = both(two, tmp_path, "limits", "--scenario", "ddp")
    (apart,) = run["experiments"]["limits"]["launches"]
    assert hosts_of(apart) == names
    assert len(apart["spent_ms"]) == 2 and "communication" in {row["part"] for row in run["limits"]}


def test_batches_are_searched_on_one_host(two: list[dict[str, str]], tmp_path: Path) -> None:
    for one in hosts.run(tmp_path, two, "--tune-batch", "--device", "cpu", verb="tune"):
        assert one.code == 2 and "--tune-batch: each batch is a separate run" in one.err


UNFIT = {
    "no secret": ((0, "BENCH_SECRET", None), ("--iters", "3"), "BENCH_SECRET: it is not set", "not set on the leader"),
    "another number": (None, ("--iters", "4"), *["--iters: HOST (host 1) was asked for 4, and the first h"] * 2),
    "another option": (None, ("--itres", "3"), "--itres", "--itres"),
    "two of number 0": ((1, "RANK", "0"), ("--iters", "3"), "has number 0, too", "another bench leads at 127.0.0.1"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if "two" in case else []) for case in UNFIT]
)
def test_hosts_that_do_not_fit_end_with_one_line_each(two: list[dict[str, str]], tmp_path: Path, case: str) -> None:
    change, others, on_leader, on_follower = UNFIT[case]
    if change is not None:
        index, name, value = change
        two[index].pop(name)
        two[index] |= {} if value is None else {name: value}
    ended = hosts.run(tmp_path, two, *TINY, "--iters", "3", others=(*TINY, *others))
    if two[1]["RANK"] == "0" and "leads at" in ended[0].err:
        ended.reverse()  # whichever came first is the first
    lines = [one.err.replace(os.uname().nodename, "HOST") for one in ended]
    assert [one.code for one in ended] == [2, 2], lines
    assert on_leader in lines[0] and on_follower in lines[1]
    assert [line.count("\n") for line in lines] == [1, 1], lines
    assert not any((tmp_path / f"host{index}" / "results").exists() for index in range(2))
