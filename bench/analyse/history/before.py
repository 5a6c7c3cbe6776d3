"""What changed since the run before: the last one in the same folder that did the same work on such devices."""

import os

from bench.analyse import between_runs
from bench.analyse.between_runs import Compared
from bench.analyse.comparable import obstacles
from bench.analyse.history.nights import with_findings
from bench.core.errors import RequestError
from bench.runs.names import run_ids
from bench.runs.reader import verified

EARLIER = 10  # runs that are tried as the one before


def since_before(path: str) -> Compared | None:
    """A finished run against the last one before it in its folder that did the same work on such devices, if any."""
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    runs = run_ids(folder, "RUN")
    earlier = runs[: runs.index(name)] if name in runs else []
    if not earlier or not verified(path, allow_incomplete=True).complete:
        return None
    new = with_findings(path)
    for one in earlier[: -EARLIER - 1 : -1]:
        try:
            base = with_findings(os.path.join(folder, one))
        except RequestError:
            continue  # a run that is damaged or unfinished is nobody's base
        if not obstacles(base, new):
            compared = between_runs.runs(base, new)
            return compared if compared.comparable else None
    return None
