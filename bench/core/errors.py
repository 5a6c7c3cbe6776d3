"""The errors that bench translates into one line and an exit code. Caught in one place, ``bench.cli.main``.

Exit codes are a fixed contract.
"""

import errno
import os

OK = 0
FAILED = 1
USAGE = 2
REGRESSED = 10
INCONCLUSIVE = 11
NOT_COMPARABLE = 12
INTERRUPTED = 130

EXHAUSTED = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk",
    errno.EFBIG: "raise the limit on the size of a file ('ulimit -f')",
    errno.EMFILE: "raise the limit on open files ('ulimit -n')",
    errno.ENFILE: "raise the limit on open files ('ulimit -n')",
    errno.EAGAIN: "raise the limit on processes ('ulimit -u', or the container's), or end some",
    errno.ENOMEM: "free memory, or raise the limit on it ('ulimit -v', or the container's)",
}
"""The remedy where a resource of the system is exhausted, by the number of the error."""

AS_LIBRARIES_SAY = {
    "failed to map segment": errno.ENOMEM,
    "MemoryError": errno.ENOMEM,
    "bad_alloc": errno.ENOMEM,
    "Memory allocation still failed": errno.ENOMEM,
    "can't start new thread": errno.EAGAIN,
}
"""The same in other words."""


def remedy_of(words: str) -> str | None:
    """The remedy where the last words of a process say that the system had no more of something."""
    numbers = {os.strerror(number): number for number in EXHAUSTED} | AS_LIBRARIES_SAY
    return next((EXHAUSTED[number] for phrase, number in numbers.items() if phrase in words), None)


def described(error: BaseException) -> str:
    """The type and the words of an error in somebody else's code, which may fail to say them."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # whatever its __str__ raises
        return type(error).__name__


class BenchError(Exception):
    """Something that a person is told in one line."""

    exit_code = FAILED


class RequestError(BenchError):
    """The request is wrong. The parts are joined into one line: ``option: problem; remedy``. Another remedy takes the
    place of ``remedy`` where the problem is that the system has no more of something. ``said``: whether the line is on
    the terminal already."""

    exit_code = USAGE
    said = False

    def __init__(self, option: str, problem: str, remedy: str) -> None:
        remedy = remedy_of(problem) or remedy
        super().__init__(option, problem, remedy)
        self.option = option
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.option}: {self.problem}; {self.remedy}"


class NotComparable(BenchError):
    """Runs or scenarios that cannot be set against each other, or that are missing: which, and why."""

    exit_code = NOT_COMPARABLE


class HostError(BenchError):
    """The worker host could not start or went away: not the fault of one launch."""


class Interrupted(BenchError):
    """Ctrl-C or SIGTERM: what was done is sealed as incomplete."""

    exit_code = INTERRUPTED


def closest(name: str, names: list[str], n: int = 1, cutoff: float = 0.6) -> str:
    """The remedy for an unknown name: up to ``n`` known ones that are like it, else all."""
    from difflib import get_close_matches

    close = get_close_matches(name, names, n, cutoff)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(names)}"
