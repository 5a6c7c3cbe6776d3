"""The published form: elapsed seconds at iteration 0, 20, 40, 60, 80, beside the published rows.

The author printed the time since the start of training after every twentieth iteration, with no warm-up: so warm-up
steps are counted here, and here alone. Between like machines only ratios to ``ddp`` carry over.
"""

from typing import Any

import pandas as pd

from bench.analyse.intervals import columns, estimate
from bench.analyse.rounds import Rounds
from bench.analyse.steps import BASE, ELAPSED
from bench.runs.document import RunDocument
from bench.runs.frames import Iterations, LaunchStats

TITLE = "simple distributed code of my own, because a search finds little"
"""In English. Its own title is Korean, for which a machine may have no font."""
PUBLISHED_WORKLOAD = "ResNet-101, batch 128 in all, GPUs 0, 1 and 3 of a server of four, apex.amp for O1-O3"
PUBLISHED_ITERATIONS = (0, 20, 40, 60, 80)
PUBLISHED_S: dict[str, tuple[float, ...]] = {
    "dp": (5.6, 9.2, 12.8, 16.3, 20.4),
    "ddp": (0.4, 2.5, 4.6, 6.7, 8.7),
    "ddp_o1": (0.4, 3.3, 6.5, 9.6, 12.8),
    "ddp_o2": (0.4, 2.8, 5.5, 8.2, 10.5),
    "ddp_o3": (0.3, 2.2, 4.0, 6.0, 8.0),
    "apex_ddp": (0.9, 3.3, 5.7, 8.0, 10.3),
    "apex_ddp_o1": (0.4, 3.9, 5.7, 8.0, 10.3),
    "apex_ddp_o2": (0.4, 2.8, 5.3, 7.8, 10.4),
    "apex_ddp_o3": (0.3, 2.1, 3.8, 5.5, 7.2),
}
"""Seconds at :data:`PUBLISHED_ITERATIONS`, by scenario."""


def is_alike(document: RunDocument) -> bool:
    """Whether a run trains the model of the post on GPUs; beside another one the published times say nothing."""
    work = document.workload
    return work.device == "cuda" and work.settings.get("model") == "resnet101"


def iterations(steps: int) -> tuple[int, ...]:
    """The published iterations if there are as many steps, else every fifth part of them."""
    if steps > PUBLISHED_ITERATIONS[-1]:
        return PUBLISHED_ITERATIONS
    return tuple(dict.fromkeys(part * steps // 5 for part in range(5)))


def table(steps: Iterations, scenarios: list[str]) -> pd.DataFrame:
    """The published form of a run beside the published rows, one row per scenario.

    Columns ``scenario``; ``elapsed_s_<i>`` and ``relative`` (elapsed at the last shown iteration over that of ``ddp``)
    of this run, geometric means over launches, with 95 % intervals in ``*_low`` and ``*_high``; ``published_s_<i>`` and
    ``published_relative``. Null if unknown.
    """
    shown = iterations(int(steps.frame["step"].max()) + 1)
    groups = steps.frame[steps.frame["step"].isin(shown)].groupby(["scenario", "step"], observed=True)[ELAPSED]
    launches: dict[Any, list[float]] = groups.agg(list).to_dict()
    rounds = Rounds.of(LaunchStats(steps.frame[steps.frame["step"] == shown[-1]]), ELAPSED)
    rows = []
    for scenario in scenarios:
        row: dict[str, object] = {"scenario": scenario}
        for iteration in shown:
            row |= columns(f"elapsed_s_{iteration}{{}}", estimate(launches.get((scenario, iteration), ())))
        row |= columns("relative{}", rounds.ratio(BASE, scenario))
        published = PUBLISHED_S.get(scenario, (None,) * len(PUBLISHED_ITERATIONS))
        row |= {f"published_s_{at}": seconds for at, seconds in zip(PUBLISHED_ITERATIONS, published, strict=True)}
        rows.append(row | {"published_relative": published[-1] and published[-1] / PUBLISHED_S[BASE][-1]})
    return pd.DataFrame(rows)
