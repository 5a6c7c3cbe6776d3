"""A run tells recipes that train the same model from those that do not: from real launches to the recommendation.

A run of two ranks in fp32, with a recipe that is in order and some that are broken, each in one way; and one in half,
which is short, because a CPU without instructions for it takes seconds for a step.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
from conftest import measured

from bench.analyse.overview import overview, recommendation
from bench.analyse.parity import DIVERGED, NOT_FINITE, SAME, WITHIN_HALF
from bench.runs.reader import Run
from bench.sites.local import WorkerHost

WELL_CONDITIONED = {"image_size": 64, "global_batch": 16}
"""As in test_numerics.py."""

HALF = {"global_batch": 8, "warmup": 1, "iters": 1}
WARMUP, ITERS = 1, 4

SOURCE = """
from bench.seams import Scenario, Strategy

SCENARIO = Scenario(summary="broken", strategy=Strategy(label="planted"))


def build(parts):
    session = parts.build({strategy!r})
    forward, optimize, calls = session.forward, session.optimize, []
    {fault}
    return session
"""

HONEST = {"strategy": "ddp", "fault": "pass"}

NAN_LATER = """def poisoned(batch):
        calls.append(1)
        loss = forward(batch)
        return loss * float("nan") if len(calls) == 4 else loss
    session.forward = poisoned"""

TIMID = """def timid():
        group = session.optimizer.param_groups[0]
        group["lr"] /= 2
        optimize()
        group["lr"] *= 2
    session.optimize = timid"""

STRANGER = "[weights.data.mul_(1 + parts.rank / 100) for weights in session.model.parameters()]"

BROKEN: dict[str, dict[str, str]] = {
    "forgetful": {"strategy": "single"},
    "stranger": {"fault": STRANGER},
    "timid": {"fault": TIMID},
    "idle": {"fault": "session.optimize = lambda: None"},
    "poisoned": {"fault": NAN_LATER},
    "lazy": {"fault": "session.forward = lambda batch: forward([part[:2] for part in batch])"},
}
IN_ORDER = "ddp"


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("parity")
    names = [IN_ORDER]
    for name, changes in BROKEN.items():
        file = folder / f"{name}.py"
        file.write_text(SOURCE.format(**(HONEST | changes)))
        names.append(str(file))
    return measured(host, folder, names, warmup=WARMUP, iters=ITERS, **WELL_CONDITIONED)


def row(run: Run, scenario: str) -> dict[str, object]:
    (found,) = [row for row in run.document.parity if row.scenario == scenario]
    return asdict(found)


@pytest.mark.parametrize(
    ("scenario", "verdict"),
    [("ddp", SAME), ("ddp_o1", WITHIN_HALF), pytest.param("ddp_o2", WITHIN_HALF, marks=pytest.mark.slow)],
)
def test_a_sound_recipe(run: Run, host: WorkerHost, tmp_path: Path, scenario: str, verdict: str) -> None:
    if scenario != IN_ORDER:
        run = measured(host, tmp_path, (scenario,), **(WELL_CONDITIONED | HALF))
    found = row(run, scenario)
    assert found["verdict"] == verdict, found
    assert 0 <= float(str(found["gradient_error"])) < float(str(found["gradient_bound"]))
    assert 0 <= float(str(found["loss_error"])) < float(str(found["loss_bound"]))
    assert found["replicas"] == 2
    assert float(str(found["gradient_alone"])) > float(str(found["gradient_bound"])), "averaging makes a difference"


@pytest.mark.parametrize(
    ("scenario", "verdict", "reason"),
    [
        ("forgetful", DIVERGED, "the ranks hold different parameters after the last step"),
        ("stranger", DIVERGED, "the ranks hold different parameters before the first step"),
        ("timid", DIVERGED, "the loss leaves its bound at step"),
        ("idle", DIVERGED, "the loss leaves its bound at step"),
        ("lazy", DIVERGED, "the gradient of the first step is"),
        ("poisoned", NOT_FINITE, "the loss of step 3 is not finite"),
    ],
)
def test_a_broken_recipe_is_told_from_the_others_and_why(run: Run, scenario: str, verdict: str, reason: str) -> None:
    found = row(run, scenario)
    assert found["verdict"] == verdict, found
    assert reason in str(found["reason"])
    (finding,) = [f for f in run.document.validity if f.scenario == scenario and f.code == verdict]
    assert finding.severity == "invalid" and finding.text == found["reason"]


def test_what_trains_another_model_is_not_recommended_though_it_is_fastest(run: Run) -> None:
    table = overview(run).set_index("scenario")
    chosen = run.document.recommendation
    faster = overview(run)
    faster.loc[faster["scenario"].isin(BROKEN), "throughput_per_s"] *= 100.0  # on a busy machine no order is sure
    again = recommendation(faster)
    assert faster.loc[faster["throughput_per_s"].idxmax(), "scenario"] in BROKEN
    assert chosen is not None and (again.fastest, again.leanest) == (chosen.fastest, chosen.leanest)
    assert chosen.fastest == chosen.leanest == IN_ORDER
    for scenario in BROKEN:
        assert chosen.left_out[scenario] == row(run, scenario)["verdict"]
        assert table.loc[scenario, "validity"] == "invalid"


def test_a_loss_that_is_no_number_is_none_in_every_file(run: Run) -> None:
    losses = run.steps[run.steps["scenario"] == "poisoned"].groupby("step")["loss"].first()
    assert losses[:3].map(math.isfinite).all() and losses[3:].isna().all()
    (launch,) = [launch for launch in run.document.launches if launch.scenario == "poisoned"]
    assert (launch.status, launch.checks.finite_loss) == ("ok", False)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads((Path(run.path) / "run.json").read_text(), parse_constant=refuse)


def test_the_reference_is_no_launch(run: Run) -> None:
    assert run.document.reference is not None
    assert run.document.reference.status == "ok"
    assert run.document.reference.replica_counts == (2,)
    assert len(run.document.launches) == 1 + len(BROKEN)
    assert set(run.steps["scenario"]) == {IN_ORDER, *BROKEN}
    assert run.numerics.loc[run.numerics["rank"].isna(), "quantity"].isin(["loss", "gradient", "alone"]).all()


def test_the_reference_starts_from_the_loss_that_ddp_starts_from(run: Run) -> None:
    ours = run.steps[run.steps["scenario"] == "ddp"].groupby("step")["loss"].mean()
    rows = run.numerics[(run.numerics["quantity"] == "loss") & (run.numerics["twin"] == False)]  # noqa: E712
    theirs = pd.Series(rows["value"].to_numpy(), index=rows["position"].to_numpy())
    assert len(theirs) == WARMUP + ITERS
    assert ours.to_numpy() == pytest.approx(theirs.to_numpy(), rel=1e-4)
