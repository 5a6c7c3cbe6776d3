"""Whoever is lost of two hosts, it is named in time, nobody is left behind on either, and the run can go on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from standin import hosts
from standin.hosts import ADDRESSES, TINY, Link
from standin.processes import family, nobody_left, wait_for

pytestmark = pytest.mark.fault

STALL_S = 6.0
ASKED_S = 15.0
"""Beyond the stall timeout: how long a host that does not answer may be waited for, and some more on a busy machine."""
LONG = (*TINY, "--stall-timeout", str(STALL_S), "--iters", "20000")
FAULTS = {"rank": "ended by SIGKILL", "stopped rank": "stopped", "follower": "is gone", "leader": "", "link": "is gone"}


def break_it(fault: str, link: Link, pids: list[int]) -> None:
    ranks = [pid for pid, role in family(pids[1]).items() if role == "rank"]
    match fault:
        case "rank":
            os.kill(ranks[0], signal.SIGKILL)
        case "stopped rank":
            os.kill(ranks[0], signal.SIGSTOP)
        case "follower" | "leader":
            os.kill(pids[fault == "follower"], signal.SIGKILL)
        case "link":
            link.up("down")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[] if fault == "follower" else pytest.mark.slow) for fault in FAULTS]
)
def test_a_fault_is_named_and_nobody_is_left(fault: str, link: Link, tmp_path: Path, repository: Path) -> None:
    two = [one | {"MASTER_ADDR": ADDRESSES[0]} for one in hosts.environments(tmp_path, repository)]
    with ExitStack() as stack:
        started = []
        for index, environment in enumerate(two):
            started.append(
                stack.enter_context(hosts.start(tmp_path, index, environment, *LONG, inside=link.inside(index)))
            )
            stack.callback(started[-1].kill)
        pids = [one.pid for one in started]
        everybody = wait_for(lambda: hosts.all_run(pids))
        time.sleep(2.0)
        break_it(fault, link, pids)
        hit_s = time.monotonic()
        try:
            if fault in ("rank", "stopped rank"):
                wait_for(lambda: _record(tmp_path)["launches"] or None, STALL_S + ASKED_S)
                took_s = time.monotonic() - hit_s
                said = [one.communicate(timeout=hosts.LIMIT_S)[1] for one in started]
            else:
                said = [one.communicate(timeout=STALL_S + ASKED_S)[1] for one in started]
                took_s = time.monotonic() - hit_s
        finally:
            link.up()
    print(f"{fault}: {took_s:.1f} s; {said}")
    assert nobody_left(everybody)
    document = _record(tmp_path)
    if fault == "leader":
        assert "the first host is gone" in said[1] and started[1].returncode == 1
    else:
        (launch,) = document["launches"]
        follower = document["hosts"][1]["name"]
        assert FAULTS[fault] in launch["reason"] and follower in launch["reason"], launch["reason"]
        assert launch["first_failed_rank"] == 1
        codes = [one.returncode for one in started]
        assert codes == {"follower": [1, -9]}.get(fault, [1, 1]), said
        assert document["complete"] == (fault in ("rank", "stopped rank"))


def _record(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "host0" / "results").iterdir()
    found: dict[str, Any] = json.loads((path / "run.json").read_text())
    return found


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


@pytest.mark.slow
def test_nothing_is_sent_between_benches_while_steps_are_measured(link: Link, tmp_path: Path, repository: Path) -> None:
    two = [one | {"MASTER_ADDR": ADDRESSES[0]} for one in hosts.environments(tmp_path, repository)]
    sniffer = [*link.inside(0), sys.executable, "-c", SNIFFER, two[0]["MASTER_PORT"]]
    with subprocess.Popen(sniffer, stdout=subprocess.PIPE, text=True) as sniffing, ExitStack() as stack:
        stack.callback(sniffing.kill)
        assert sniffing.stdout is not None and sniffing.stdout.readline() == "ready\n"
        options = (*TINY, "--iters", "150")
        both = [
            stack.enter_context(hosts.start(tmp_path, index, one, *options, inside=link.inside(index)))
            for index, one in enumerate(two)
        ]
        said = [one.communicate(timeout=hosts.LIMIT_S)[1] for one in both]
        assert [one.returncode for one in both] == [0, 0], said
        sniffing.kill()
        packets = [
            tuple(map(int, line.split())) for line in sniffing.stdout.read().splitlines() if line.count(" ") == 1
        ]
    (path,) = (tmp_path / "host0" / "results").iterdir()
    measured = [row for row in pq.read_table(path / "steps.parquet").to_pylist() if not row["warmup"]]
    begin_ns = min(row["start_ns"] for row in measured)
    end_ns = max(row["start_ns"] + row["step_ms"] * 1e6 for row in measured)
    within = [control for t_ns, control in packets if begin_ns <= t_ns <= end_ns]
    print(f"{len(within)} packets in {(end_ns - begin_ns) / 1e9:.1f} s, {sum(within)} of the control channel")
    assert len(within) > 100 and sum(control for _, control in packets) > 10, "gradients, and lines before and after"
    assert sum(within) == 0
