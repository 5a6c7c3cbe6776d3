"""Ctrl-C, SIGTERM and SIGHUP end bench calmly, and may have to wait. What ``nohup`` ignores stays ignored."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    held = 0
    waits = False


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _State.held:
        _State.waits = True
    else:
        raise KeyboardInterrupt


@contextmanager
def heeded(*, last: bool) -> Iterator[None]:
    """Within this context each of :data:`SIGNALS` raises ``KeyboardInterrupt``, unless it was ignored before.

    ``last``: only the end of the process comes after it, which no signal disturbs any more.
    """
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
