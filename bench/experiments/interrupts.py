"""Ctrl-C, SIGTERM and SIGHUP end bench calmly, and may have to wait. What ``nohup`` ignores stays ignored."""

import signal
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
    """Somebody else's code within this context gets a ``TimeoutError`` when it takes too long."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"not done after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
