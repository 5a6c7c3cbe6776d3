"""The native flat-bucket all-reduce, on two gloo ranks, which assert what ``tests/standin/flat_bucket.py`` says."""

from collections.abc import Callable
from pathlib import Path

from conftest import Executed
from standin import flat_bucket

ASSERTING = f"""
    from bench.seams import Scenario, Strategy

    SCENARIO = Scenario(summary="asserts", strategy=Strategy(label="planted"))

    def build(parts):
        import runpy
        runpy.run_path({str(Path(flat_bucket.__file__))!r})["check"](parts.rank)
        return parts.session()
"""


def test_what_ranks_exchange(execute: Callable[..., Executed]) -> None:
    done = execute(ASSERTING, iters=1)
    assert done.outcome.status == "ok", done.log() + done.log(1)
