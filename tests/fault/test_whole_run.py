"""Whole runs that are hit: by SIGKILL, by a closed terminal, by a full disk; and what can be done with them after."""

import contextlib
import json
import os
import pty
import re
import resource
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import Bench
from standin.planted import failing
from standin.processes import FASHION, SMALL, command, family, nobody_left, not_locked, ranks_of, start, wait_for
from standin.schemas import document_in

from bench import cli
from bench.runs.check import findings
from bench.runs.reader import read

pytestmark = pytest.mark.fault


def test_a_killed_run_is_resumed(repository: Path, tmp_path: Path, run_here: Bench) -> None:
    small = ("--iters", "4", "--global-batch", "4", "--stall-timeout", "60")
    with start(repository, tmp_path, "--scenario", "single,ddp", *small, small=FASHION) as running:
        ranks_of(running, 2)
        wait_for(lambda: list(tmp_path.glob("*/logs/*ddp-rank*.log")))
        everybody = [running.pid, *family(running.pid)]
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
    assert nobody_left(everybody) and not_locked()
    (path,) = tmp_path.iterdir()
    (finding,) = findings(str(path))
    assert "is incomplete" in finding
    (before,) = document_in(tmp_path)["launches"]
    assert (before["scenario"], before["status"]) == ("single", "ok")
    done = run_here("run", "--resume", "latest", "--out", str(tmp_path), "--json")
    assert done.code == 0, done.err
    first, second = document_in(tmp_path)["launches"]
    assert first == before, "nothing twice"
    assert (second["scenario"], second["status"]) == ("ddp", "ok")
    run = read(str(path))
    numbers = [record.launch for record in run.document.records]
    assert numbers == [1, 2, 3, 4, 5], "with two in double precision, and the reference"
    assert (path / "logs" / "interrupted-launch-002-ddp-rank0.log").is_file()
    assert findings(str(path)) == [] and len(run.steps) == 3 * 5


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)], ids=str)
def test_an_end_while_torch_is_imported_leaves_nothing(
    repository: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    running = start(repository, tmp_path / "out", env=os.environ | {"TMPDIR": str(temporary)})
    members = wait_for(lambda: family(running.pid))
    running.send_signal(number)
    time.sleep(0.3)
    running.send_signal(number)
    _, shown = running.communicate(timeout=60)
    assert running.returncode == code, shown
    assert nobody_left([*members])
    assert not (tmp_path / "out").exists() and list(temporary.glob("*.log")) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_ends_a_run_calmly(repository: Path, tmp_path: Path, ending: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    asked = command(tmp_path, "--scenario", "ddp", "--iters", "2000", "--no-parity")
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    heeded = partial(signal.signal, ending, signal.SIG_DFL)  # which nohup would have it ignore
    running = subprocess.Popen(asked, cwd=repository, start_new_session=True, preexec_fn=heeded, **streams)
    os.close(theirs)
    os.set_blocking(ours, False)

    def ranks() -> list[int]:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 1 << 16)
        return [pid for pid, role in family(running.pid).items() if role == "rank"]

    wait_for(lambda: len(ranks()) == 2)
    for _ in range(40):
        ranks()
        time.sleep(0.05)
    members = family(running.pid)
    os.close(ours)
    os.kill(running.pid, ending)
    assert running.wait(timeout=60) == 130
    assert nobody_left([*members])
    document = document_in(tmp_path)
    assert [(launch["status"], launch["reason"]) for launch in document["launches"]] == [("killed", "interrupted")]
    assert document["complete"] is False and "end" in document, "sealed by the run itself"


def test_a_limit_is_named_and_not_the_interpreter(repository: Path, tmp_path: Path) -> None:
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (8, 8))
    running = start(repository, tmp_path / "out", preexec_fn=few)
    _, shown = running.communicate(timeout=100)
    says = "ulimit -n: 8 open files are too few for 2 ranks; set 32 at least, as by"
    assert running.returncode == 2 and says in shown, shown
    assert "--python" not in shown and shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_loopback_that_is_down_is_reported_at_once(repository: Path, tmp_path: Path) -> None:
    apart = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a network namespace")
    asked = command(tmp_path / "out", "--scenario", "single,ddp")
    done = subprocess.run([*apart, *asked], cwd=repository, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "--scenario: ranks of ddp meet on 127.0.0.1" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_full_disk(repository: Path, tmp_path: Path) -> None:
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (25_000, 25_000))
    running = start(repository, tmp_path, "--scenario", "single", "--iters", "3", "--launches", "40", preexec_fn=full)
    _, shown = running.communicate(timeout=250)
    assert running.returncode == 1
    (line,) = [line for line in shown.splitlines() if "error:" in line]
    assert "File too large; " in line and "('ulimit -f') and go on with --resume" in line and "Traceback" not in shown
    (path,) = tmp_path.iterdir()
    found = findings(str(path))
    assert found and all("is incomplete" in finding for finding in found)
    assert document_in(tmp_path)["launches"]


@pytest.mark.slow
def test_the_largest_batch_is_found(repository: Path, tmp_path: Path) -> None:
    out, greedy = tmp_path / "out", tmp_path / "greedy.py"
    fault = "raise torch.OutOfMemoryError('planted')"
    condition = "parts.workload.global_batch > 13"
    greedy.write_text(failing(fault, condition, then="parts.session()", how="group=False"))
    without_warmup, more = SMALL[:-2], ("--ranks", "1", "--find-batch", "--json")
    running = start(repository, out, "--scenario", str(greedy), *more, small=without_warmup)
    said, shown = running.communicate(timeout=250)
    assert running.returncode == 0, shown
    search = json.loads(said)["experiments"]["batch_search"]
    assert [launch["global_batch"] for launch in search["launches"]] == [2, 4, 8, 16, 12, 14, 13]
    assert [launch["status"] for launch in search["launches"]] == ["ok"] * 3 + ["oom", "ok", "oom", "ok"]
    found = search["scenarios"]["greedy"]
    assert (found["largest"], found["too_large"], found["failed"]) == (13, 14, False)
    assert found["throughput_per_s"] > 0 and found["peak_mib"] > 100
    assert "planted" in found["why_not"] and "global batch 14" in found["why_not"]
    assert re.search(r"greedy +13 +\d", shown) and "peak MiB of a device" in shown
    assert shown.rstrip().endswith("the same command with --global-batch 13 in place of --find-batch")
    (path,) = out.iterdir()
    assert findings(str(path)) == []
    assert {cli.main([*verb, str(path)]) for verb in (["report"], ["run", "--resume"])} == {2}
