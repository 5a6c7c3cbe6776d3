"""Plots that another process draws are those that would have been drawn here, also if it dies."""

import errno
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from standin.gpu_runs import DDP2, DP, GPUS
from standin.runs import analysed, write_run

from bench.analyse.analysed import Analysed
from bench.report import plots
from bench.report.device_plots import memory_stack, power
from bench.report.drawing import Plot

HERE = os.getpid()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysed:
    monkeypatch.setattr(plots, "DRAWINGS", (memory_stack, power))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return analysed(write_run(tmp_path, [DP, DDP2], gpus=GPUS))


def test_plots_from_elsewhere_are_the_same(run: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(run: Analysed) -> Plot | None:
        assert os.getpid() != HERE
        return memory_stack(run)

    monkeypatch.setattr(plots, "DRAWINGS", (elsewhere,) * 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    made = plots.of_run(run)
    monkeypatch.setattr(plots, "DRAWINGS", (memory_stack,) * 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert made == plots.of_run(run) and len(made) == 2


def test_how_the_other_process_may_end(run: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(run: Analysed) -> Plot | None:
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return memory_stack(run)

    def failing(run: Analysed) -> Plot | None:
        raise ValueError("planted")

    monkeypatch.setattr(plots, "DRAWINGS", (killed, power))
    assert [plot.name for plot in plots.of_run(run)] == ["memory-stack", "power"]
    monkeypatch.setattr(plots, "DRAWINGS", (failing, power))
    with pytest.raises(ValueError, match="planted"):
        plots.of_run(run)
    monkeypatch.setattr(plots, "DRAWINGS", (memory_stack, power))
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")))
    assert [plot.name for plot in plots.of_run(run)] == ["memory-stack", "power"]
