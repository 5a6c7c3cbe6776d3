"""Plots that a second process draws are those that would have been drawn here, also if it dies."""

import errno
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from standin.gpu_runs import DDP2, DP, GPUS
from standin.runs import analysed, write_run

from bench import report
from bench.analyse.analysed import Analysed
from bench.report import plots

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing is drawn elsewhere")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysed:
    """A run with as many samples as make a second process worth while, whose other plots are left out."""
    monkeypatch.setattr(plots, "MANY_SAMPLES", 1)
    monkeypatch.setattr(plots, "DRAWINGS", ())
    return analysed(write_run(tmp_path, [DP, DDP2], gpus=GPUS))


def test_a_report_with_many_samples_is_the_same(run: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    here, drawn_here = os.getpid(), []
    draw = plots.of_samples
    monkeypatch.setattr(plots, "of_samples", lambda run: drawn_here.append(os.getpid()) or draw(run))
    drawn_elsewhere = report.render([run])
    assert drawn_here == []
    monkeypatch.setattr(plots, "MANY_SAMPLES", 10**9)
    assert report.render([run]) == drawn_elsewhere
    assert drawn_here == [here]


def test_a_second_process_that_is_killed_is_replaced(run: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    here, draw = os.getpid(), plots.of_samples

    def of_samples(run: Analysed) -> list[plots.Plot]:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(run)

    monkeypatch.setattr(plots, "of_samples", of_samples)
    begun = plots.begun(run)
    assert begun is not None and isinstance(begun.exception(), BrokenProcessPool)
    assert {plot.name for plot in plots.of_run(run, begun)} >= {"memory-stack", "power"}


def test_no_room_for_a_process(run: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    assert plots.begun(run) is None


def test_an_error_there_is_an_error_here(run: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_samples(run: Analysed) -> list[plots.Plot]:
        raise ValueError("planted")

    monkeypatch.setattr(plots, "of_samples", of_samples)
    with pytest.raises(ValueError, match="planted"):
        plots.of_run(run, plots.begun(run))
