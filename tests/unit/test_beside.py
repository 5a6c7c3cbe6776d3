"""Work that is done in a process beside this one."""

import os
import time
from functools import partial

import pytest

from bench.core.children import beside, children
from bench.core.errors import RequestError


def refused() -> None:
    raise RequestError("--history", "it is empty", "give another")


def killed(here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), 9)
    return here


def test_the_result_comes_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    with beside(os.getpid) as result:
        assert result() != os.getpid()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with beside(os.getpid) as result:
        assert result() == os.getpid()
    assert children() == before


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(RequestError, match="it is empty"), beside(refused) as result:
        result()


def test_a_process_that_is_killed_is_replaced() -> None:
    with beside(partial(killed, os.getpid())) as result:
        assert result() == os.getpid()


def test_nobody_is_left_behind_by_an_error_before_the_result() -> None:
    before = children(), os.listdir("/proc/self/fd")
    with pytest.raises(ZeroDivisionError), beside(partial(time.sleep, 60.0)):
        _ = 1 / 0
    assert (children(), os.listdir("/proc/self/fd")) == before
