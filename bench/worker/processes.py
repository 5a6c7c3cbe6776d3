"""A process seen from outside: is it stopped, and which line of which file is it in.

Nothing here is done to a rank that is measuring, but for what costs a few microseconds.
"""

import os
import re
import resource
import signal
import time
from contextlib import suppress
from typing import NamedTuple

from bench.core.children import state_and_parent
from bench.core.files import size_of, text_from

STACK_SIGNAL = signal.SIGUSR2
"""On it a rank writes the stacks of its threads to its log (``faulthandler``)."""

STACK_PATIENCE_S = 0.5

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_OF_LIBRARIES = re.compile(r"/torch/|/bench/worker/|/selectors\.py$|/threading\.py$")


class Line(NamedTuple):
    """The innermost line of Python that a rank is in. ``own``: it is the scenario's, not torch's or bench's."""

    text: str
    own: bool


def stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds the process."""
    return state_and_parent(pid)[0] in ("T", "t")


def most_files(pid: int) -> int | None:
    """How many files a process has open where it may open no more; None where it may, or is gone."""
    try:
        most, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        return most if len(os.listdir(f"/proc/{pid}/fd")) >= most else None
    except OSError:
        return None


def lines(logs: dict[int, str]) -> dict[int, Line | None]:
    """The line that each process is in, by PID; None if it does not write its stacks into its log on
    :data:`STACK_SIGNAL`.
    """
    before = {pid: size_of(path) for pid, path in logs.items()}
    for pid in logs:
        if not stopped(pid):
            with suppress(OSError):  # of a launcher's rank, which may be gone, or have its number in a container
                os.kill(pid, STACK_SIGNAL)
    deadline_s = time.monotonic() + STACK_PATIENCE_S
    found: dict[int, Line | None] = dict.fromkeys(logs)
    while time.monotonic() < deadline_s and not all(found.values()):
        time.sleep(0.05)
        found = {pid: _innermost(text_from(path, before[pid])) for pid, path in logs.items()}
    return found


def _innermost(text: str) -> Line | None:
    """The first line of the main thread's stack, which comes last of all threads' and most recent call first."""
    _, _, main = text.rpartition("thread 0x" if "Current thread" in text else "Thread 0x")
    if (match := _FRAME.search(main)) is None:
        return None
    file, line, function = match.groups()
    return Line(f"{os.path.basename(file)}:{line} in {function}", _OF_LIBRARIES.search(file) is None)
