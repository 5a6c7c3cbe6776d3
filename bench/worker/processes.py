"""What a process is doing, seen from outside: is it stopped, and which line of which file is it in.

Nothing here is done to a rank that is measuring, but for what costs a few microseconds.
"""

import os
import re
import signal
import time
from dataclasses import dataclass

STACK_SIGNAL = signal.SIGUSR2
"""On it a rank writes the stacks of its threads to its log (``faulthandler``)."""

STACK_PATIENCE_S = 0.5
LOG_END_BYTES = 4096
LOG_END_LINES = 20

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_OF_LIBRARIES = re.compile(r"/torch/|/bench/worker/|/selectors\.py$|/threading\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The innermost line of Python that a rank is in. ``own``: it is the scenario's, not torch's or bench's."""

    file: str
    line: int
    function: str

    @property
    def own(self) -> bool:
        return _OF_LIBRARIES.search(self.file) is None

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


def stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds the process."""
    return _state_and_parent(pid)[0] in ("T", "t")


def _state_and_parent(pid: int) -> tuple[str | None, int | None]:
    """The state as the kernel names it, and the parent's PID; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *_ = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None, None
    return state, int(parent)


def children(parent: int) -> list[int]:
    """The processes whose parent this is, those that have ended and were not waited for among them."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if _state_and_parent(pid)[1] == parent]


def lines(logs: dict[int, str]) -> dict[int, Line | None]:
    """The line that each process is in, by PID; None if it does not write its stacks into its log on
    :data:`STACK_SIGNAL`.
    """
    before = {pid: _size(path) for pid, path in logs.items()}
    for pid in logs:
        if not stopped(pid):
            os.kill(pid, STACK_SIGNAL)
    deadline_s = time.monotonic() + STACK_PATIENCE_S
    found: dict[int, Line | None] = dict.fromkeys(logs)
    while time.monotonic() < deadline_s and not all(found.values()):
        time.sleep(0.05)
        found = {pid: _innermost(_read(path, before[pid])) for pid, path in logs.items()}
    return found


def log_end(path: str) -> list[str]:
    """The last lines of a log, however long it is."""
    text = _read(path, max(0, _size(path) - LOG_END_BYTES))
    return [line.rstrip() for line in text.splitlines() if line.strip()][-LOG_END_LINES:]


def _innermost(text: str) -> Line | None:
    """The first line of the main thread's stack, which comes last of all threads' and most recent call first."""
    _, _, main = text.rpartition("thread 0x" if "Current thread" in text else "Thread 0x")
    match = _FRAME.search(main)
    if match is None:
        return None
    return Line(file=match["file"], line=int(match["line"]), function=match["function"])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(path: str, start: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(1 << 20).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
