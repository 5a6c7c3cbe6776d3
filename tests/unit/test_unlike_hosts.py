"""Hosts that cannot work together: the first one says so, and all of them end for the same reason, none waits."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from standin import a_gpu
from standin.hosts import free_port

import bench
from bench.core.errors import RequestError
from bench.runs.document import Machine
from bench.seams.discover import WORKLOAD
from bench.sites.hosts import follower
from bench.sites.hosts.engine import Started
from bench.sites.hosts.follower import Options, follow, following
from bench.sites.hosts.hello import Hello
from bench.sites.hosts.leader import Hosts
from bench.sites.hosts.line import Line
from bench.sites.hosts.party import leading
from bench.verbs import together

SECRET = {"BENCH_SECRET": "for the tests"}
OPTIONS: dict[str, Any] = {"python": None, "fresh": False, "apex_path": None, "wait": False}


def machine(number: int, model: str = "H200") -> Machine:
    gpus = (a_gpu(0, f"GPU-{number}", model),)
    return Machine(host=f"node{number}", cpu="EPYC", cores_usable=8, python="3.11.7", gpus=gpus)


def hello(number: int) -> Hello:
    about: dict[str, Any] = {"devices": (f"GPU-{number}",), "machine": machine(number)}
    return Hello(bench="1.0", device="cuda", cores=8, asked={"--iters": 3, "--scenario": ["ddp"]}, **about)


class Planted:
    """In the place of a follower's worker host, with the torch that :data:`TORCH` says."""

    def __init__(self, line: Line, hello: Hello, options: Options, name: str, stack: ExitStack) -> None:
        self.line = line
        line.send(event="ready", description={"torch": TORCH.get(name, "2.15")}, state={})

    def serve(self) -> None:
        follower._next(self.line, "prepare")


TORCH: dict[str, str] = {}


def lead(engine: Started, mine: Hello, file: Path) -> None:
    own: Any = SimpleNamespace(log="", wait_until_ready=lambda: {"torch": "2.15"}, close=lambda: None)
    with leading(engine, SECRET, lambda text: None) as party:
        party.gather(mine, lambda text: None)
        with Hosts(own, party, [(WORKLOAD, "mine", str(file))]) as site:
            site.wait_until_ready()


def take_part(engine: Started, mine: Hello) -> None:
    with following(engine, SECRET, print) as line:
        follow(line, mine, Options(**OPTIONS, check=lambda: None), lambda text: None)


def ends(hosts: Sequence[Hello], file: Path) -> list[str]:
    about: dict[str, Any] = {"name": "env://", "count": len(hosts), "address": "127.0.0.1", "port": free_port()}

    def end(index: int) -> str:
        engine = Started(index=index, **about)
        with pytest.raises(RequestError) as raised:
            take_part(engine, hosts[index]) if index else lead(engine, hosts[0], file)
        return str(raised.value)

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(end, range(len(hosts))))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"bench": "1.1"}, "bench: * has version 1.1, and the first host 1.0; install the same version on all hosts"),
        (
            {"asked": {"--iters": 4, "--scenario": ["ddp"]}},
            "--iters: * was asked for 4, and the first host for 3; start",
        ),
        ({"asked": {"--iters": 3}}, "--scenario: * was asked for nothing, and the first host for ddp; start the same"),
        ({"device": "cpu"}, "--device: * would measure on cpu, and the first host on cuda; choose one with --device"),
        ({"machine": machine(2, "A100")}, "--gpus: * has A100, and the first host H200; choose GPUs of one model"),
    ],
)
def test_all_hosts_end_where_one_is_unlike(change: dict[str, Any], line: str, tmp_path: Path) -> None:
    line = line.replace("*", "node2 (host 2)")
    found = ends([hello(0), hello(1), replace(hello(2), **change)], tmp_path)
    what, remedy = line.split("; ")
    assert found[0].startswith(line)
    assert all(one.startswith(f"{what} on the first host; {remedy}") for one in found[1:]), found


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(follower, "_Follower", Planted)
    (tmp_path / "mine.py").write_text("")
    return tmp_path / "mine.py"


def test_another_torch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TORCH, "node2", "2.14")
    first, *others = ends([hello(0), hello(1), hello(2)], file)
    what, remedy = "--python: node2 has torch 2.14, and node0 2.15", "install the same version on all hosts"
    assert first == f"{what}; {remedy}" and others == [f"{what} on node0; {remedy}"] * 2


def test_another_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "sha256", lambda path: "another")
    first, mine = ends([hello(0), hello(1)], file)
    what = f"{file} is not what it is on the first host; have the same files at the same place on all hosts"
    assert (first, mine) == (f"--workload: on node1: {what}", f"--workload: {what}")


def test_other_code_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("one")
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "__init__.py"))
    before = together._own_code()
    (tmp_path / "a.py").write_text("two")
    assert before.split("(")[0] == together._own_code().split("(")[0] and before != together._own_code()
