"""Everything is killed in the middle of a launch: what was sampled until then is read back from the run folder."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from standin.documents import document, launch, sample
from standin.processes import alive, wait_for

from bench.core.errors import RequestError
from bench.core.records import MEMORY_COLUMNS
from bench.runs.check import findings
from bench.runs.reader import read
from bench.runs.spool import Spool, checked_line, spool_path
from bench.runs.writer import RunWriter

ROOT = Path(__file__).resolve().parents[2]
ALLOWED_LOSS_S = 5.0

COMMAND_LINE = """
import os, sys, time
from bench.machine.sample import Sampler
from bench.runs.writer import RunWriter
from standin.documents import document, launch
writer = RunWriter(sys.argv[1], document())
writer.add(launch(scenario="single"))
sampler = Sampler.start(device="cpu", gpus=(), spool=writer.scratch, host="node1")
sampler.watch(1, "ddp", 0, os.getpid())
print(writer.path, sampler.pid, flush=True)
time.sleep(60)
"""


def test_a_crash_of_everything_loses_less_than_five_seconds_of_samples(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    words = [sys.executable, "-c", COMMAND_LINE, str(tmp_path)]
    bench = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    path, sampler = bench.stdout.readline().split()
    spool = Path(spool_path(os.path.join(path, ".scratch"), 1))
    wait_for(lambda: spool.exists() and spool.read_bytes().count(b"\n") >= 6)
    killed_ns = time.perf_counter_ns()
    os.kill(int(sampler), signal.SIGSTOP)  # so that it cannot notice by itself that bench is gone
    try:
        bench.kill()
        bench.communicate()
        wait_for(lambda: not alive(int(sampler)), 5.0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(sampler), signal.SIGKILL)

    with pytest.raises(RequestError, match="incomplete"):
        read(path)
    memory = read(path, allow_incomplete=True).memory
    assert list(memory.columns) == list(MEMORY_COLUMNS) and len(memory) >= 6
    assert (set(memory["launch"]), set(memory["pid"])) == ({1}, {bench.pid})
    assert (killed_ns - int(memory["t_ns"].max())) / 1e9 < ALLOWED_LOSS_S


def writer(out: Path) -> RunWriter:
    """A run with its first launch."""
    run = RunWriter(str(out), document())
    run.add(launch(), memory=[sample()])
    return run


def spooled(run: RunWriter, launch: int) -> None:
    spool = Spool(spool_path(run.scratch, launch))
    spool.append("memory", [sample(launch=launch), sample(launch=launch, t_ns=6)])
    spool.append("device", [sample("device", launch=launch)])
    spool.close()


def test_an_interrupted_run_keeps_its_samples_and_reads_no_spool_again(tmp_path: Path) -> None:
    run = RunWriter(str(tmp_path), document())
    spooled(run, 0)
    run.add(launch(), memory=[sample()])
    with pytest.raises(RequestError, match="no launch was done"):
        read(run.path, allow_incomplete=True)
    spooled(run, 1)
    with open(spool_path(run.scratch, 1), "ab") as file:
        file.write(b'["memory", {"la')  # what is only begun is left out, and no finding
    found = read(run.path, allow_incomplete=True)
    assert (found.memory["launch"].tolist(), found.device["launch"].tolist()) == ([0, 1, 1], [1])
    run.finish(complete=False)
    assert not os.path.exists(os.path.join(run.path, ".scratch"))
    found = read(run.path, allow_incomplete=True)
    assert (found.memory["launch"].tolist(), found.device["launch"].tolist()) == ([0, 1, 1], [1])


@pytest.mark.parametrize(
    "damage",
    [
        *(b"\0" * 4096, b"\0" * 4096 + b"\n", b'["memory", {"launch": 1, \xff\n', b"[" * 100_000 + b"\n"),
        json.dumps(["memory", sample(launch=1)]).encode() + b"\n",  # without a checksum
        *map(checked_line, ([], 5, ["memory", 5], ["another", {}], [["memory"], {}], ["memory", sample(launch=0)])),
        checked_line(["memory", sample(launch=1)]).replace(b"100.0", b"900.0"),
        checked_line(["memory", sample(launch=1) | {"mine": 1}]),
        checked_line(["memory", {"launch": 1, "scenario": "ddp"}]),
    ],
)
def test_what_lies_before_a_damaged_line_is_read(tmp_path: Path, damage: bytes) -> None:
    run = writer(tmp_path)
    spooled(run, 1)
    with open(spool_path(run.scratch, 1), "r+b") as file:
        whole = file.read()
        file.write(damage + whole)
    found = read(run.path, allow_incomplete=True)
    assert (found.memory["launch"].tolist(), found.device["launch"].tolist()) == ([0, 1, 1, 1], [1])
    end = found.memory.iloc[-1]
    assert "line 4 of " in end["reason"] and "its later samples are missing" in end["reason"]
    assert (end["source"], pd.isna(end["used_mib"])) == ("unavailable", True)


@pytest.mark.timeout(20)
def test_a_spool_that_is_no_file_of_the_run_is_refused_by_name(tmp_path: Path) -> None:
    run = writer(tmp_path)
    path = Path(spool_path(run.scratch, 1))
    refused = pytest.raises(RequestError, match=r"\.scratch.* cannot be read: it ")
    for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
        make(path)
        with refused:
            read(run.path, allow_incomplete=True)
        assert len(findings(run.path)) == 1
        path.unlink()
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")  # samples and logs would be written there
    with refused:
        read(run.path, allow_incomplete=True)
    with pytest.raises(RequestError, match=r"--resume: .*/\.scratch is a link"):
        RunWriter.reopen(run.path)
