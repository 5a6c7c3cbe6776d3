"""A run whose sampler is killed goes on; the gap is null with its reason, and named where people look."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.runs.names import find
from bench.runs.reader import read

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--device", "cpu", "--model", "resnet18", "--image-size", "32", "--global-batch", "4", "--no-parity"]


@pytest.mark.slow
def test_a_sampler_that_is_killed_in_the_middle_costs_samples_and_not_the_run(tmp_path: Path) -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "bench", "run", "--scenario", "single,ddp", "--warmup", "1", "--iters", "8", *SMALL],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    me = psutil.Process(bench.pid)
    deadline = time.monotonic() + 100
    spool: list[Path] = []
    while not spool or not spool[0].read_bytes():
        assert time.monotonic() < deadline and bench.poll() is None, bench.communicate()
        time.sleep(0.05)
        spool = list(tmp_path.glob("results/*/.scratch/samples-0.jsonl"))
    (sampler,) = [child for child in me.children() if "bench.machine.sample.process" in " ".join(child.cmdline())]
    os.kill(sampler.pid, signal.SIGKILL)
    _, errors = bench.communicate(timeout=120)
    assert bench.returncode == 0, errors

    run = read(find("latest", str(tmp_path / "results")))
    assert [launch.status for launch in run.document.launches] == ["ok", "ok"]
    first, second = (launch.checks for launch in run.document.launches)
    assert (first["sampling"], first["foreign"]) == (None, None)
    assert (second["sampling"]["memory"]["calls"] > 0, second["foreign"]) == (True, [])
    gap = run.memory[run.memory["used_mib"].isna()]
    assert gap["launch"].tolist() == [0]
    assert gap["source"].tolist() == ["unavailable"]
    assert f"the sampler process (PID {sampler.pid}) was killed by SIGKILL" in gap["reason"].iloc[0]
    assert set(run.memory.loc[run.memory["launch"] == 1, "source"]) == {"rss"}
    assert "source" in json.dumps(second["cpu_energy"])

    page = subprocess.run(
        [sys.executable, "-m", "bench", "report"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert page.returncode == 0, page.stderr
    assert "was killed by SIGKILL; its later samples are missing" in (tmp_path / "reports" / "summary.md").read_text()
