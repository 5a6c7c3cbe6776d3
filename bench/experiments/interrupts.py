"""Ctrl-C, SIGTERM and SIGHUP end bench calmly, and may have to wait. What ``nohup`` ignores stays ignored."""

import builtins
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    held = 0
    waits = False
    came = False


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _State.held:
        _State.waits = True
    else:
        _State.came = True
        raise KeyboardInterrupt


def came() -> bool:
    """Whether one was raised. An import that it hits may fail with another error, of a module that is half there."""
    return _State.came


@contextmanager
def heeded(*, last: bool) -> Iterator[None]:
    """Within this context each of :data:`SIGNALS` raises ``KeyboardInterrupt``, unless it was ignored before.

    ``last``: only the end of the process comes after it, which no signal disturbs any more.
    """
    _State.came = False
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last else handler)


@contextmanager
def held() -> Iterator[None]:
    """Within this context, which is short, an interruption waits; it comes at the end, unless an error does."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
        waited, _State.waits = _State.waits, _State.waits and _State.held > 0
    if waited and not _State.held:
        raise KeyboardInterrupt


@contextmanager
def bounded(limit_s: float) -> Iterator[None]:
    """Somebody else's code within this context gets a ``TimeoutError`` when it takes too long, and a ``SystemExit``
    when it would end this process at once: ``os._exit(0)`` would look like success. What it replaces in the modules
    that all of bench uses, and what it does to :data:`SIGNALS`, is undone."""
    import json  # here, since 'bench list' does without it

    process, leave = os.getpid(), os._exit
    whole = [(module, dict(vars(module))) for module in (builtins, json, os, sys, time)]
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"not done after {limit_s:g} s")

    def stay(status: int) -> NoReturn:
        if os.getpid() == process:
            raise SystemExit(status)
        leave(status)  # a fork may leave

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    os._exit = stay
    try:
        yield
    finally:
        for module, names in whole:
            vars(module).update(names)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in {signal.SIGALRM: before, **handlers}.items():
            signal.signal(number, handler)
