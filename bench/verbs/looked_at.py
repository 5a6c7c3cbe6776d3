"""Which run is looked at: ``latest`` is one that was measured to its end."""

import shlex
import sys

from bench.console import COMMAND, tell
from bench.runs.names import find, last_finished


def latest_or(name: str, out: str, *, finished: bool) -> str:
    """The folder of a run. ``finished``: ``latest`` is the last finished one, with a note if a newer one is not."""
    path = find(name, out)
    older = last_finished(out) if finished and name == "latest" else None
    if older is None or older == path:
        return path
    instead = f"note: {path} is not finished, so 'latest' is {older}"
    tell(f"{instead}; finish the newer one: {COMMAND}run --resume {shlex.quote(path)}", file=sys.stderr)
    return older
