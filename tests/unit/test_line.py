"""The control channel between hosts: who is let in, and what is believed of what comes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import planned
from standin.hosts import free_port

from bench.core.errors import HostError, RequestError
from bench.core.job import Meet
from bench.machine import throttle
from bench.machine.sample.noticed import together
from bench.runs.document import Machine
from bench.seams.site import Outcome
from bench.sites.hosts import follower, leader, meeting, party
from bench.sites.hosts.engine import Started
from bench.sites.hosts.hello import Hello
from bench.sites.hosts.line import MOST_FROM_STRANGERS, Gone, Line
from bench.sites.hosts.meeting import Listener, call
from bench.sites.hosts.party import Member, Party

Pair = tuple[Line, Line]
SELF = Hello(bench="1", device="cpu", cores=2, devices=(), machine=Machine(host="a"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = Line(socket.create_connection(server.getsockname()), leads=False)
        called = Line(server.accept()[0], leads=True)
    caller.key = called.key = b"key"
    with closing(caller), closing(called):
        yield caller, called


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    caller, called = pair
    big = "x" * 3_000_000
    sender = threading.Thread(target=lambda: [caller.send(event="one", text=big), caller.send(event="two")])
    sender.start()
    assert called.wait_for("one", limit_s=20)["text"] == big
    assert called.wait_for("two", limit_s=20) == {"event": "two"}
    sender.join()
    caller.key = called.key = None
    for piece, event in ((b'{"event": "three"}\n{"eve', "three"), (b'nt": "four"}\n', "four")):
        caller.socket.sendall(piece)
        assert list(called.receive(20)) == [{"event": event}]


def test_a_slow_link_is_not_a_lost_host(pair: Pair) -> None:
    """The time limit is for some progress, not for the whole message, which takes two seconds here."""
    caller, called = pair
    caller.socket.settimeout(1)
    caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    text, pieces = "x" * 5_000_000, []
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(caller.send, event="one", text=text)
        while b"\n" not in (pieces or [b""])[-1]:
            pieces.append(called.socket.recv(1 << 17))
            time.sleep(0.05)
        sending.result()
    assert len(b"".join(pieces)) > len(text)


@pytest.mark.parametrize(
    "bad",
    [
        lambda sent: sent.replace(b"ddp", b"dpp"),
        lambda sent: sent[1:],
        lambda sent: b"GET / HTTP/1.1\r\n",
        lambda sent: b"0" * 32 + b'{"event": "launch"}\n',
        lambda sent: sent + sent,
    ],
)
def test_a_changed_or_replayed_line_is_the_end(pair: Pair, bad: Callable[[bytes], bytes]) -> None:
    caller, called = pair
    sent: list[bytes] = []

    def send(data: memoryview) -> int:
        sent.append(bytes(data))
        return len(data)

    real, caller.socket = caller.socket, SimpleNamespace(send=send)  # type: ignore[assignment]
    caller.send(event="launch", scenario="ddp")
    real.sendall(bad(sent[0]))
    with pytest.raises(Gone, match="not from bench"):
        list(called.receive())
    caller.socket = real


def test_strangers_cannot_fill_the_memory(pair: Pair) -> None:
    caller, called = pair
    called.key = None

    def flood() -> None:
        with suppress(OSError):
            for _ in range(1000):
                caller.socket.sendall(b"x" * 65536)

    sender = threading.Thread(target=flood)
    sender.start()
    with pytest.raises(Gone, match=f"more than {MOST_FROM_STRANGERS} bytes"):
        while True:
            list(called.receive())
    called.close()
    sender.join()


def of_host(index: int, port: int) -> Started:
    return Started(name="env://", index=index, count=2, address="127.0.0.1", port=port)


def met(*callers: Callable[[Started], Any]) -> list[int | None]:
    engine = of_host(0, free_port())
    listener = Listener(engine, {}, b"s")
    threads = [threading.Thread(target=caller, args=(of_host(1, engine.port),)) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            listener.next_members(0.1)
        return [caller.index for caller in listener.callers if caller.index is not None]
    finally:
        listener.close()


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n\r",
        b'{"event": "hello", "index": 1}',
        b'{"event": "leader"}',
        b"[1]",
        b'{"event": "secretless"}\n' * 1000,
        b'{"event": "proof", "nonce": "%s", "proof": "\\udfff", "index": 1}' % (b"0" * 32),
        b'{"event": "proof", "nonce": "%s", "proof": "%s", "index": 1}' % (b"0" * 32, b"0" * 64),
        b'{"event": "proof", "nonce": 1, "proof": [], "index": true}',
        b"[" * 4000,
    ],
)
def test_strangers_are_dropped_and_benches_let_in(line: bytes) -> None:
    def stranger(engine: Started) -> None:
        with socket.create_connection((engine.address, engine.port)) as end:
            end.recv(4096)
            end.sendall(line + b"\n")
            while end.recv(4096):
                pass

    kept: list[Line] = []
    assert met(stranger, lambda engine: kept.append(call(engine, b"s"))) == [1]
    kept[0].close()


@pytest.mark.parametrize("line", [b'{"event": "challenge", "nonce": "\\ud800"}\n', b'{"event": "challenge"}\n'])
def test_a_rogue_leader_is_no_leader(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(meeting, "GONE_S", 0.1)
    monkeypatch.setattr(meeting, "JOIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        called = pool.submit(call, of_host(1, server.getsockname()[1]), b"s")
        with server.accept()[0] as end:
            end.sendall(line)
            with pytest.raises(HostError, match="it sent an invalid message"):
                called.result(10.0)


def test_a_wrong_secret_is_reported_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "JOIN_S", 1.0)
    leader = Party(of_host(0, free_port()), {}, b"s")
    said: list[str] = []
    with closing(leader), ThreadPoolExecutor() as pool:
        other = pool.submit(call, of_host(1, leader.engine.port), b"other")
        with pytest.raises(HostError, match=r"did not come.*127\.0\.0\.1 called and .* another BENCH_SECRET"):
            leader.gather(SELF, said.append)
        with pytest.raises(RequestError, match="differs from that of the leader"):
            other.result(10.0)
    assert len(said) == 1 and "was dropped" in said[0]


def test_a_crowd_keeps_no_bench_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MOST_CALLERS", 3)
    kept: list[Line] = []

    def crowd(engine: Started) -> None:
        with ExitStack() as open_ones:
            for _ in range(9):
                open_ones.enter_context(socket.create_connection((engine.address, engine.port), timeout=20.0))
            kept.append(call(engine, b"s"))

    assert met(crowd) == [1]
    kept[0].close()


def test_a_first_host_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GONE_S", 1.0)
    monkeypatch.setattr(meeting, "JOIN_S", 20.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        engine = of_host(1, server.getsockname()[1])
        called = pool.submit(call, engine, b"s")
        server.accept()[0].close()
        server.close()
        with pytest.raises(HostError, match=f"listened at 127.0.0.1:{engine.port} and is gone"):
            called.result(10.0)


@pytest.mark.parametrize("late_s", [0.1, 60.0])
def test_a_first_host_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, late_s: float) -> None:
    """Where the secret is missing, as with variables that an engine left over, at once."""
    monkeypatch.setattr(meeting, "SAY_WAITING_S", late_s)
    monkeypatch.setattr(meeting, "JOIN_S", 1.5 if late_s < 1.0 else 0.1)
    said: list[str] = []
    engine, lacks = of_host(1, free_port()), RequestError("BENCH_SECRET", "it is not set", "unset RANK")
    with pytest.raises(HostError, match="was not found"):
        call(engine, lacks, said.append)
    assert said == [f"waiting for the first host at 127.0.0.1:{engine.port} ({lacks})"]


def test_what_samplers_of_two_hosts_say_is_joined() -> None:
    def said(rank: int, ms: float) -> tuple[dict[str, Any], dict[str, Any]]:
        cost = {"memory": {"calls": 1, "total_ms": ms, "max_ms": ms}}
        foreign = [{"device": f"GPU-{rank}"}]
        return cost, {"foreign": foreign, "scrambled_lists": rank, "probes": {rank: 7}}

    cost, found = together(said(0, 1.0), said(1, 3.0))
    assert cost == {"memory": {"calls": 1, "total_ms": 3.0, "max_ms": 3.0}} and found is not None
    assert [one["device"] for one in found["foreign"]] == ["GPU-0", "GPU-1"]
    assert (found["scrambled_lists"], found["probes"]) == (1, {0: 7, 1: 7})
    assert together(said(0, 1.0), (None, None)) == (None, None), "what one did not see, nobody knows"


def test_a_gpu_is_sampled_in_its_own_hosts_window() -> None:
    step = {"step_ms": 1.0, "warmup": False}
    steps = [step | {"host": host, "start_ns": start_ns} for host, start_ns in (("a", 5), ("b", 10**12))]
    of_b = {"host": "b", "device": "GPU-b", "mig": False, "throttle_reasons": 0x40}
    rows = [of_b | {"t_ns": t_ns} for t_ns in (5, 10**12)]
    assert throttle.check(rows[:1], steps) is None
    assert (throttle.check(rows, steps) or {})["verdict"] == "invalid"


def test_a_launch_that_ends_before_the_others_begin_loses_no_host(pair: Pair) -> None:
    """As where the first host has no more processes: the others, which wait for a launch, would take an abort for
    nonsense."""
    other, line = pair
    failed = Outcome(status="error", reason="no more processes", first_failed_rank=0, ranks=[])
    own = SimpleNamespace(log="", perform=lambda *about, **more: failed)
    group: Any = SimpleNamespace(name="node0", hosts=(), members=[Member(line, SELF, "node1")])
    launch = leader._Launch(leader.Hosts(cast(Any, own), group, []), planned().job, group.members)
    assert launch.perform(lambda event: None) == failed
    line.send(event="end", code=0)
    assert [message["event"] for message in other.receive(5)] == ["open", "end"]


def test_an_abort_that_comes_right_behind_its_launch_is_heeded(pair: Pair, tmp_path: Path) -> None:
    line, first = pair
    first.send(event="launch")
    first.send(event="abort", reason="the launch failed on node0", collateral=True, stalled=False)
    while len(line._lines) < 2:
        line._read()
    assert follower._next(line, "launch") == {"event": "launch"}
    site = SimpleNamespace(description={"apex": {"problems": {}}})
    host = SimpleNamespace(line=line, folder=str(tmp_path), site=site, sampler=SimpleNamespace(knows_pids=True))
    meet = Meet(host="node1", address="", port=1, interface=None)
    launch = follower._Launch(cast(Any, host), planned().job, meet)
    assert (launch.heed([]) or {}).get("reason") == "the launch failed on node0"
