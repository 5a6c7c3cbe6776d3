"""Children of this process: those that are left are ended, and a question is answered in one that may come to harm."""

import os
import signal
import time
from collections.abc import Callable, Collection
from os import _exit  # as it is before a file of somebody's replaces it
from typing import TYPE_CHECKING, Any, TypeVar

from bench.core.channel import adopt_orphans, die_with_parent
from bench.core.errors import BenchError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

T = TypeVar("T")

KILL_PATIENCE_S = 30.0
END_PATIENCE_S = 1.0


class Unanswered(Exception):
    """A question that a child process was asked has no answer. Says what that process did: ``was ended by SIGSEGV``."""


def state_and_parent(pid: int) -> tuple[str | None, int | None]:
    """The state as the kernel names it, and the parent's PID; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *_ = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None, None
    return state, int(parent)


def children() -> list[int]:
    """The children of this process, those that have ended and were not waited for among them."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if state_and_parent(pid)[1] == os.getpid()]


def end_children(but: Collection[int] = ()) -> list[int]:
    """End the children of this process ``but`` some, and what becomes its child when they end, if it adopts orphans.

    Returns those that no signal ended within :data:`KILL_PATIENCE_S`.
    """
    deadline_s = time.monotonic() + KILL_PATIENCE_S
    while strays := [pid for pid in children() if pid not in but]:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.01)
    return strays


def ask(question: Callable[[], T], limit_s: float) -> T:
    """``question()``, answered in a fork of this process, so that nothing that it does is done here. It is ended with
    everything that it started. The answer must be one that can be pickled.

    Raises :class:`Unanswered`, and what ``question`` raises if that is a :class:`BenchError`.
    """
    from multiprocessing import get_context  # here, since it takes long to import

    context = get_context("fork")
    adopt_orphans()
    others = children()
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, question, os.getpid()))
    child.start()
    theirs.close()
    answer: Any = None
    how = f"was not done after {limit_s:g} s"
    try:
        if ours.poll(limit_s):
            how = "gave no answer that can be read"
            answer = ours.recv()
    except (EOFError, OSError):
        how = _end_of(child)
    except Exception:  # noqa: BLE001  # whatever there is to be read, it is no answer
        pass
    finally:
        ours.close()
        child.kill()
        child.join()
        end_children(others)
    match answer:
        case (value, None):
            return value  # type: ignore[no-any-return]
        case (None, BenchError() as refusal):
            raise refusal
        case (None, str(what)):
            raise Unanswered(f"raised {what}")
        case _:
            raise Unanswered(how)


def _end_of(child: "ForkProcess") -> str:
    """How a child ended that will not answer any more, unless it has only closed what it was to answer through."""
    deadline_s = time.monotonic() + END_PATIENCE_S
    while child.exitcode is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    if child.exitcode is None:
        return "closed what it was to answer through"
    if child.exitcode < 0:
        return f"was ended by {signal.Signals(-child.exitcode).name}"
    return f"left with exit status {child.exitcode}"


def _answer(channel: "Connection[Any, Any]", question: Callable[[], Any], parent: int) -> None:
    """What the child does. It never returns."""
    try:
        die_with_parent(parent)
        os.setsid()  # Ctrl-C is for the parent, which then ends it
        try:
            channel.send((question(), None))
        except BenchError as error:
            channel.send((None, error))
        except BaseException as error:
            channel.send((None, type(error).__name__))
            raise
    finally:
        _exit(0)
