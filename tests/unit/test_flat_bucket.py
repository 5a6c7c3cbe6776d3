"""The native flat-bucket all-reduce, on two gloo ranks, which assert what ``tests/standin/flat_bucket.py`` says."""

from collections.abc import Callable
from pathlib import Path

from conftest import Executed
from standin import flat_bucket
from standin.planted import planted

ASSERTING = f"""
    import runpy
    runpy.run_path({str(Path(flat_bucket.__file__))!r})["check"](parts.rank)
    return parts.session()
"""


def test_what_ranks_exchange(execute: Callable[..., Executed]) -> None:
    done = execute(planted(ASSERTING), iters=1)
    assert done.outcome.status == "ok", done.log() + done.log(1)
