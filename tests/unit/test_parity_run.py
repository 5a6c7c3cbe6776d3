"""A run tells recipes that train the same model from those that do not: from real launches to the recommendation."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import frauds
import pytest
from conftest import Executed, measured, needs_fsdp2
from standin import documented
from standin.workloads import tiny

from bench.analyse.analysed import Analysed
from bench.analyse.limits import achieved
from bench.analyse.parity import DIVERGED, NOT_FINITE, SAME, WITHIN_HALF
from bench.analyse.peaks import OF_A_CPU
from bench.analyse.recommendation import recommendation
from bench.runs.experiments import Limits, Numerics
from bench.runs.reader import Run
from bench.seams import discover
from bench.sites.local import WorkerHost
from bench.words import limits

FIRST_LOOK = {"image_size": 32, "global_batch": 8}
"""As README and bench itself advise, where rounding does most."""

WARMUP, ITERS = 1, 4

IN_ORDER = ("single", "ddp", "apex_ddp", "fsdp2", "zero1", "ddp_o1", "apex_ddp_o2", "apex_ddp_o3", "fsdp2_half")
REFUSED = "coarse_later"
"""What ran contradicts its label, so there is no launch to judge."""
UNTRUE = frauds.FRAUDS.keys() - {REFUSED}


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("parity")
    names = [*IN_ORDER, *(str(frauds.write(folder, name)) for name in UNTRUE)]
    return measured(host, folder, names, warmup=WARMUP, iters=ITERS, task=tiny(), **FIRST_LOOK)


def row(run: Run, scenario: str) -> dict[str, object]:
    (found,) = [row for row in run.document.parity if row.scenario == scenario]
    return asdict(found)


@pytest.mark.parametrize("scenario", [pytest.param(name, marks=[needs_fsdp2] * ("fsdp2" in name)) for name in IN_ORDER])
def test_a_sound_recipe(run: Run, scenario: str) -> None:
    found = row(run, scenario)
    assert found["verdict"] == (WITHIN_HALF if "_o" in scenario or "_half" in scenario else SAME), found
    assert all(float(str(found[f"{what}_error"])) < 1e-8 for what in ("gradient", "buffer", "update"))
    assert 0 <= float(str(found["own_update_error"])) <= float(str(found["own_update_bound"]))
    assert found["replicas"] == (1 if scenario == "single" else 2)
    if scenario != "single":
        assert float(str(found["gradient_alone"])) > 0.3, "averaging makes a difference"


def test_the_work_of_a_step_is_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    about, analysed = run.document.begun(Limits).work, Analysed.of(run)
    first = 2 * 8 * 3 * 3**2 * 8**2  # convolution: images need no gradient
    assert about is not None and about.backward_flops == 2 * about.forward_flops - first
    assert about.parameters == sum(run.document.launches[0].effective.parameter_dtypes.values())
    assert about.exchanged_bytes == 4 * about.parameters and about.optimizer_bytes == 5 * about.exchanged_bytes
    rows = achieved(analysed).set_index("scenario")
    step_ms = analysed.overview.set_index("scenario")["step_median_ms"]
    flops = (about.forward_flops + about.backward_flops) * FIRST_LOOK["global_batch"]
    assert rows.loc["ddp", "tflops_per_s"] == pytest.approx(flops / step_ms["ddp"] / 1e9)
    assert rows.loc["ddp_o1", "type"] == "bf16" and rows.loc["ddp", "type"] == "fp32"
    assert rows["mfu"].isna().all() and set(rows["nominal"]) == {OF_A_CPU} and limits.answers(analysed) == []
    monkeypatch.setattr(limits, "achieved", lambda _: achieved(analysed).assign(mfu=0.4, nominal="a data sheet"))
    ((question, answer),) = limits.answers(analysed)
    assert question == "Is my MFU normal?" and "its MFU is 40.0 % of the dense nominal peak (a data sheet)" in answer


def test_dropout_is_no_mistake(host: WorkerHost, tmp_path: Path) -> None:
    (tmp_path / "dropout.py").write_text(documented("WORKLOAD = ").replace("nn.ReLU()", "nn.Dropout(0.5)"))
    task = discover.load_workload("dropout", str(tmp_path / "dropout.py")).task("cpu", {"width": 16})
    run = measured(host, tmp_path, ["ddp", "ddp_accumulate", "ddp_o2"], warmup=1, iters=2, task=task, global_batch=8)
    verdicts = {one.scenario: one.verdict for one in run.document.parity}
    assert verdicts == {"ddp": SAME, "ddp_accumulate": SAME, "ddp_o2": WITHIN_HALF}


GRADIENT = "in double precision, the gradient of a tensor is"
UPDATE = "in double precision, what a step did to a tensor is"


@pytest.mark.parametrize(
    ("scenario", "verdict", "reason"),
    [
        ("forgetful", DIVERGED, "the ranks hold different parameters after the last step"),
        ("stranger", DIVERGED, "the ranks hold different parameters before the first step"),
        ("timid", DIVERGED, UPDATE),
        ("idle", DIVERGED, UPDATE),
        ("lazy", DIVERGED, "in double precision, "),  # its gradients or its buffers, whichever are farther off
        ("poisoned", NOT_FINITE, "the loss of step 3 is not finite"),
        ("summing", DIVERGED, GRADIENT),
        ("frozen", DIVERGED, GRADIENT),
        ("one_rank", DIVERGED, GRADIENT),
        ("undecayed", DIVERGED, UPDATE),
        ("coarse_buckets", DIVERGED, GRADIENT),
        ("top_tenth", DIVERGED, GRADIENT),
        ("late", DIVERGED, UPDATE),
        ("masterless", DIVERGED, "after the measured steps, what a step did to a tensor is"),
        ("while_measured", DIVERGED, GRADIENT),
        ("skipping", DIVERGED, UPDATE),
    ],
)
def test_a_broken_recipe_and_why(run: Run, scenario: str, verdict: str, reason: str) -> None:
    found = row(run, scenario)
    assert (found["verdict"], reason in str(found["reason"])) == (verdict, True), found
    codes = {finding.code: finding for finding in run.document.validity if finding.scenario == scenario}
    assert codes[verdict].severity == "invalid"
    assert codes[verdict].text == found["reason"]


def test_half_in_the_measured_steps_is_refused(execute: Callable[..., Executed]) -> None:
    done = execute(frauds.source(REFUSED), task=tiny(), warmup=WARMUP, iters=ITERS, **FIRST_LOOK)
    assert "O0 was asked for, but O1 ran" in str(done.outcome.reason)


def test_the_fastest_that_trains_another_model_is_out(run: Run) -> None:
    table = Analysed.of(run).overview.set_index("scenario")
    chosen = run.document.recommendation
    faster = table.reset_index()
    faster.loc[faster["scenario"].isin(UNTRUE), "throughput_per_s"] *= 100.0  # on a busy machine no order is sure
    again = recommendation(faster)
    assert faster.loc[faster["throughput_per_s"].idxmax(), "scenario"] in UNTRUE
    assert chosen is not None and (again.fastest, again.leanest) == (chosen.fastest, chosen.leanest)
    assert not {chosen.fastest, chosen.leanest} & UNTRUE
    for scenario in UNTRUE:
        assert chosen.left_out[scenario] == row(run, scenario)["verdict"]
        assert table.loc[scenario, "validity"] == "invalid"


def test_a_loss_that_is_no_number_is_null_everywhere(run: Run) -> None:
    losses = run.steps[run.steps["scenario"] == "poisoned"].groupby("step")["loss"].first()
    assert losses[:3].map(math.isfinite).all() and losses[3:].isna().all()
    (launch,) = [launch for launch in run.document.launches if launch.scenario == "poisoned"]
    assert (launch.status, launch.checks.finite_loss) == ("ok", False)
    json.loads((Path(run.path) / "run.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@needs_fsdp2
def test_the_reference_is_no_launch(run: Run) -> None:
    reference = run.document.begun(Numerics).reference_of(None)
    assert reference is not None and reference.status == "ok"
    assert {one.replicas for one in reference.computations} == {1, 2}
    assert len(run.document.launches) == len(IN_ORDER) + len(UNTRUE)
    assert set(run.steps["scenario"]) == {*IN_ORDER, *UNTRUE}
    doubles = {one.scenarios for one in run.document.begun(Numerics).doubles}
    assert {("ddp", "ddp_o1"), ("apex_ddp", "apex_ddp_o2", "apex_ddp_o3")} <= doubles, "levels share a launch"
