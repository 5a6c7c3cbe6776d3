"""The control channel between hosts: who is let in, and what is believed of what comes."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from standin.hosts import free_port

from bench.core.errors import HostError, RequestError
from bench.machine import throttle
from bench.machine.sample.noticed import together
from bench.sites.hosts import meeting
from bench.sites.hosts.engine import Started
from bench.sites.hosts.line import MOST_FROM_STRANGERS, Gone, Line
from bench.sites.hosts.meeting import Listener, call

Pair = tuple[Line, Line]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends that know each other."""
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


@pytest.mark.parametrize(
    "bad",
    [
        lambda sent: sent.replace(b"ddp", b"dpp"),
        lambda sent: sent[1:],
        lambda sent: b"GET / HTTP/1.1\r\n",
        lambda sent: b"0" * 32 + b'{"event": "launch"}\n',
    ],
)
def test_a_line_that_was_changed_ends_the_connection(pair: Pair, bad: Callable[[bytes], bytes]) -> None:
    caller, called = pair
    sent: list[bytes] = []
    real, caller.socket = caller.socket, _Kept(sent)  # type: ignore[assignment]
    caller.send(event="launch", scenario="ddp")
    real.sendall(bad(sent[0]))
    with pytest.raises(Gone, match="not from bench"):
        called.receive()
    caller.socket = real


class _Kept:
    def __init__(self, sent: list[bytes]) -> None:
        self.sendall = sent.append


def test_a_line_that_is_sent_again_is_not_believed(pair: Pair) -> None:
    caller, called = pair
    sent: list[bytes] = []
    real, caller.socket = caller.socket, _Kept(sent)  # type: ignore[assignment]
    caller.send(event="launch")
    real.sendall(sent[0] + sent[0])
    with pytest.raises(Gone):
        called.receive()
    caller.socket = real


def test_strangers_cannot_fill_the_memory(pair: Pair) -> None:
    caller, called = pair
    called.key = None
    sender = threading.Thread(target=_flood, args=(caller.socket,))
    sender.start()
    with pytest.raises(Gone, match=f"more than {MOST_FROM_STRANGERS} bytes"):
        while True:
            called.receive()
    called.close()
    sender.join()


def _flood(end: socket.socket) -> None:
    try:
        for _ in range(1000):
            end.sendall(b"x" * 65536)
    except OSError:
        pass


def met(*callers: Callable[[Started], Any], secret: bytes = b"s") -> list[int | None]:
    """The numbers of those that a first host lets in, of benches and strangers."""
    engine = Started(name="env://", index=0, count=2, address="127.0.0.1", port=free_port())
    listener = Listener(engine, {}, secret)
    threads = [threading.Thread(target=caller, args=(engine,)) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            listener.next_members(0.1)
        return [caller.index for caller in listener.callers if caller.index is not None]
    finally:
        listener.close()


def test_strangers_are_dropped_and_benches_let_in() -> None:
    def stranger(engine: Started) -> None:
        with socket.create_connection((engine.address, engine.port)) as end:
            end.recv(4096)
            end.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert end.recv(4096) == b""

    def thief(engine: Started) -> None:
        with socket.create_connection((engine.address, engine.port)) as end:
            end.recv(4096)
            end.sendall(json.dumps({"event": "hello", "index": 1}).encode() + b"\n")
            assert end.recv(4096) == b""

    kept: list[Line] = []
    assert met(stranger, thief, lambda engine: kept.append(call(engine, b"s"))) == [0]
    kept[0].close()


def test_another_secret_ends_the_meeting() -> None:
    def other(engine: Started) -> None:
        with pytest.raises(RequestError, match="differs from that of the leader"):
            call(engine, b"other")

    with pytest.raises(RequestError, match=r"BENCH_SECRET: 127\.0\.0\.1 has another one"):
        met(other)


def test_a_first_host_that_has_listened_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GONE_S", 1.0)
    monkeypatch.setattr(meeting, "JOIN_S", 20.0)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        engine = Started(name="env://", index=1, count=2, address="127.0.0.1", port=server.getsockname()[1])
        called = pool.submit(call, engine, b"s")
        server.accept()[0].close()
        server.close()
        with pytest.raises(HostError, match=f"listened at 127.0.0.1:{engine.port} and is gone"):
            called.result(10.0)


def test_what_samplers_of_two_hosts_say_is_joined() -> None:
    def said(rank: int, ms: float) -> tuple[dict[str, Any], dict[str, Any]]:
        cost = {"memory": {"calls": 1, "total_ms": ms, "max_ms": ms}}
        energy = {"source": "rapl" if rank else None, "reason": None if rank else "no"}
        foreign = [{"device": f"GPU-{rank}"}]
        return cost, {"foreign": foreign, "scrambled_lists": rank, "probes": {rank: 7}, "cpu_energy": energy}

    cost, found = together(said(0, 1.0), said(1, 3.0))
    assert cost == {"memory": {"calls": 1, "total_ms": 3.0, "max_ms": 3.0}} and found is not None
    assert [one["device"] for one in found["foreign"]] == ["GPU-0", "GPU-1"]
    assert (found["scrambled_lists"], found["probes"], found["cpu_energy"]["source"]) == (1, {0: 7, 1: 7}, None)
    assert together(said(0, 1.0), (None, None)) == (None, None), "what one did not see, nobody knows"


def test_a_gpu_is_looked_at_in_the_window_of_its_own_host() -> None:
    steps = [
        {"host": host, "start_ns": start_ns, "step_ms": 1.0, "warmup": False}
        for host, start_ns in (("a", 5), ("b", 10**12))
    ]
    rows = [
        {"host": "b", "t_ns": t_ns, "device": "GPU-b", "mig": False, "throttle_reasons": 0x40} for t_ns in (5, 10**12)
    ]
    assert throttle.check(rows[:1], steps) is None
    assert (throttle.check(rows, steps) or {})["verdict"] == "invalid"
