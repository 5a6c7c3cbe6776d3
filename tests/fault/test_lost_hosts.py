"""Whoever is lost of two hosts, it is named in time, nobody is left behind on either, and the run can go on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from standin import hosts
from standin.hosts import ADDRESSES, TINY, Link
from standin.processes import family, nobody_left, wait_for
from standin.schemas import document_in

pytestmark = [pytest.mark.fault, pytest.mark.slow]

STALL_S = 6.0
ASKED_S = 15.0
"""Beyond the stall timeout: how long a host that does not answer may be waited for, and some more on a busy machine."""
LONG = (*TINY, "--stall-timeout", str(STALL_S), "--iters", "20000")
PORT = "29500"
Started = Callable[..., list["subprocess.Popen[str]"]]
FAULTS = {"rank": "ended by SIGKILL", "stopped rank": "stopped", "follower": "is gone", "leader": "", "link": "is gone"}


@pytest.fixture
def started(link: Link, tmp_path: Path, repository: Path) -> Iterator[Started]:
    with ExitStack() as stack:

        def start(index: int, environment: dict[str, str], *options: str) -> "subprocess.Popen[str]":
            meet = environment | {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT}
            bench = stack.enter_context(hosts.start(tmp_path, index, meet, *options, inside=link.inside(index)))
            stack.callback(bench.kill)
            return bench

        two = hosts.environments(tmp_path, repository)
        yield lambda *options: [start(index, one, *options) for index, one in enumerate(two)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nobody_is_left(fault: str, link: Link, tmp_path: Path, started: Started) -> None:
    benches = started(*LONG)
    pids = [one.pid for one in benches]
    everybody = wait_for(lambda: hosts.all_run(pids))
    time.sleep(2.0)
    of_a_rank = fault in ("rank", "stopped rank")
    if fault == "link":
        link.up("down")
    elif of_a_rank:
        rank = next(pid for pid, role in family(pids[1]).items() if role == "rank")
        os.kill(rank, signal.SIGKILL if fault == "rank" else signal.SIGSTOP)
    else:
        os.kill(pids[fault == "follower"], signal.SIGKILL)
    try:
        if of_a_rank:
            wait_for(lambda: document_in(tmp_path / "host0" / "results")["launches"] or None, STALL_S + ASKED_S)
        limit_s = hosts.LIMIT_S if of_a_rank else STALL_S + ASKED_S
        said = [one.communicate(timeout=limit_s)[1] for one in benches]
    finally:
        link.up()
    assert nobody_left(everybody)
    document, codes = document_in(tmp_path / "host0" / "results"), [one.returncode for one in benches]
    if fault == "leader":
        assert "the first host is gone" in said[1] and codes[1] == 1
    else:
        (launch,) = document["launches"]
        follower = document["hosts"][1]["name"]
        assert FAULTS[fault] in launch["reason"] and follower in launch["reason"], launch["reason"]
        assert launch["first_failed_rank"] == 1
        assert codes == {"follower": [1, -9]}.get(fault, [1, 1]), said
        assert document["complete"] == of_a_rank


SNIFFER = """
import socket, sys, time
port = int(sys.argv[1])
end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(0x0800))
end.bind(("veth0", 0))
print("ready", flush=True)
while True:
    packet = end.recv(65535)
    header = 14 + (packet[14] & 15) * 4
    ports = [int.from_bytes(packet[header + at : header + at + 2]) for at in (0, 2)]
    if packet[23] == 6:
        print(time.perf_counter_ns(), int(port in ports), flush=True)
"""
"""Says of each TCP packet on a host's link when it came, and whether it is one of the control channel."""


def test_benches_are_silent_while_steps_are_measured(link: Link, tmp_path: Path, started: Started) -> None:
    sniffer = [*link.inside(0), sys.executable, "-c", SNIFFER, PORT]
    with subprocess.Popen(sniffer, stdout=subprocess.PIPE, text=True) as sniffing:
        assert sniffing.stdout is not None and sniffing.stdout.readline() == "ready\n"
        both = started(*TINY, "--iters", "150")
        try:
            said = [one.communicate(timeout=hosts.LIMIT_S)[1] for one in both]
        finally:
            sniffing.kill()
        lines = sniffing.stdout.read().splitlines()
    assert [one.returncode for one in both] == [0, 0], said
    packets = [tuple(map(int, line.split())) for line in lines if line.count(" ") == 1]
    (path,) = (tmp_path / "host0" / "results").iterdir()
    measured = [row for row in pq.read_table(path / "steps.parquet").to_pylist() if not row["warmup"]]
    begin_ns = min(row["start_ns"] for row in measured)
    end_ns = max(row["start_ns"] + row["step_ms"] * 1e6 for row in measured)
    within = [control for t_ns, control in packets if begin_ns <= t_ns <= end_ns]
    assert len(within) > 100 and sum(control for _, control in packets) > 0, "gradients, and lines before and after"
    assert sum(within) == 0
