"""The errors that bench translates into one line and an exit code. Caught in one place, ``bench.cli.main``.

Exit codes are a fixed contract: 0 done; 1 a launch failed or bench itself did; 2 the request is wrong; 10 regressed;
11 inconclusive; 12 missing or not comparable; 130 interrupted.
"""

OK = 0
FAILED = 1
USAGE = 2
REGRESSED = 10
INCONCLUSIVE = 11
NOT_COMPARABLE = 12
INTERRUPTED = 130


class BenchError(Exception):
    """Something that a person is told in one line."""

    exit_code = FAILED


class RequestError(BenchError):
    """The request is wrong. The parts are joined into one line: ``option: problem; remedy``."""

    exit_code = USAGE

    def __init__(self, option: str, problem: str, remedy: str) -> None:
        super().__init__(f"{option}: {problem}; {remedy}")
        self.option = option
        self.problem = problem
        self.remedy = remedy


class NotComparable(BenchError):
    """Runs or scenarios that cannot be set against each other, or that are missing: which, and why."""

    exit_code = NOT_COMPARABLE


class HostError(BenchError):
    """The worker host could not start or went away: not the fault of one launch."""


class Interrupted(BenchError):
    """Ctrl-C or SIGTERM: what was done is sealed as incomplete."""

    exit_code = INTERRUPTED


def closest(name: str, known: list[str], n: int = 1, cutoff: float = 0.6) -> str:
    """The remedy for an unknown name: up to ``n`` known ones that are like it, else all."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n, cutoff)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(known)}"
