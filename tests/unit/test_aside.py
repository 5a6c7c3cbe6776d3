"""What is drawn in a second process is what would have been drawn here, also where that process does not tell."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest
from standin.gpu_runs import DDP2, DP, GPUS
from standin.runs import write_run

from bench import report
from bench.analyse.analysed import Analysed
from bench.report import aside, plots
from bench.report.aside import Aside


def test_the_work_is_done_in_another_process() -> None:
    assert Aside(lambda: os.getpid()).result() != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_work_whose_process_does_not_tell_is_done_here(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "PATIENCE_S", 1.0)
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), number)
            time.sleep(60)
        return os.getpid()

    begun = Aside(work)
    assert begun.result() == here
    assert not begun._process.is_alive()


def test_work_is_done_here_where_there_is_no_room_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    assert Aside(lambda: os.getpid()).result() == os.getpid()


def test_work_that_fails_there_fails_here_with_its_own_error(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        Aside(work).result()


def test_a_report_with_many_samples_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_run(tmp_path, [DP, DDP2], gpus=GPUS))
    alone = report.render([Analysed.read(path)])
    monkeypatch.setattr(plots, "MANY_SAMPLES", 1)
    begun = []
    monkeypatch.setattr(plots, "Aside", lambda work: begun.append(work) or Aside(work))
    assert report.render([Analysed.read(path)]) == alone
    assert len(begun) == (1 if len(os.sched_getaffinity(0)) > 1 else 0)
