"""A run tells recipes that train the same model from those that do not: from real launches to the recommendation.

A run of two ranks in fp32, with recipes that are in order and some that are broken, each in one way, on a ResNet-18 of
an eighth of the width: it is as deep, and a launch takes a third of the time. The slow tests take the whole one.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
from conftest import measured
from standin.workloads import narrow

from bench.analyse.analysed import Analysed
from bench.analyse.overview import recommendation
from bench.analyse.parity import CANNOT_TELL, DIVERGED, NOT_FINITE, SAME, WITHIN_HALF
from bench.runs.reader import Run
from bench.sites.local import WorkerHost

FIRST_LOOK = {"image_size": 32, "global_batch": 8}
"""As README and bench itself advise, where rounding does most."""

SHORT = {"warmup": 1, "iters": 1}
WARMUP, ITERS = 1, 4

SOURCE = """
from bench.seams import Scenario, Strategy

SCENARIO = Scenario(summary="broken", precision={precision!r}, strategy=Strategy(label="planted"))


def build(parts):
    import torch
    import torch.distributed as dist
    session = parts.build({strategy!r})
    forward, optimize, calls = session.forward, session.optimize, []
    weights = dict(session.model.named_parameters())
    branches = [weight for name, weight in weights.items() if "layer" in name and "downsample" not in name]
    def each(change, those=weights.values()):
        def step():
            for weight in those:
                weight.grad = change(weight.grad)
            optimize()
        session.optimize = step
    {fault}
    return session
"""
"""``each(change)``: gradients are changed before every step of the optimizer."""

HONEST = {"strategy": "ddp", "precision": "O0", "fault": "pass"}

GRADIENT, UPDATE = "the gradient of a tensor in the probe is", "what a step of the probe did to a tensor is"

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

TOP_TENTH = """def kept(gradient):
        flat = gradient.flatten().abs()
        return gradient * (gradient.abs() >= flat.topk(1 + len(flat) // 10).values[-1])
    each(kept)"""

ONE_RANK = """def shared(name, gradient):
        if "layer" in name:
            dist.broadcast(gradient, 0)
        else:
            dist.all_reduce(gradient)
            gradient /= 2
    def step():
        for name, weight in weights.items():
            shared(name, weight.grad)
        optimize()
    session.optimize = step"""

LATE = """def step():
        now = [weight.grad.clone() for weight in weights.values()]
        for weight, before in zip(weights.values(), calls or now):
            weight.grad.copy_(before)
        calls[:] = now
        optimize()
        for weight, mine in zip(weights.values(), now):
            weight.grad.copy_(mine)
    session.optimize = step"""

UNDECAYED = """def step():
        group = session.optimizer.param_groups[0]
        decay, group["weight_decay"] = group["weight_decay"], 0.0
        optimize()
        group["weight_decay"] = decay
    session.optimize = step"""

COARSE_LATER = """def later(batch):
        calls.append(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=len(calls) > 1):
            return forward(batch)
    session.forward = later"""

MASTERLESS = """def step():
        optimize()
        for master, half in zip(session.amp.masters, session.amp.half_weights):
            master.copy_(half)
    session.optimize = step"""

WHILE_MEASURED = """def step():
        calls.append(1)
        if 1 < len(calls) <= parts.job.steps:
            for weight in weights.values():
                weight.grad *= 2
        optimize()
    session.optimize = step"""

SKIPPING = """def step():
        calls.append(1)
        if not (1 < len(calls) <= parts.job.steps and len(calls) % 2):
            optimize()
    session.optimize = step"""

COARSE_BUCKETS = """from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    session.module.register_comm_hook(None, bf16_compress_hook)"""

BROKEN: dict[str, dict[str, str]] = {
    "forgetful": {"strategy": "single"},
    "stranger": {"fault": STRANGER},
    "timid": {"fault": TIMID},
    "idle": {"fault": "session.optimize = lambda: None"},
    "poisoned": {"fault": NAN_LATER},
    "lazy": {"fault": "session.forward = lambda batch: forward([part[:2] for part in batch])"},
    "summing": {"fault": "each(lambda gradient: 2 * gradient, branches)"},
    "frozen": {"fault": "each(lambda gradient: None, branches)"},
    "one_rank": {"strategy": "single", "fault": ONE_RANK},
    "undecayed": {"fault": UNDECAYED},
    "coarse_later": {"fault": COARSE_LATER},
    "coarse_buckets": {"fault": COARSE_BUCKETS},
    "top_tenth": {"fault": TOP_TENTH},
    "late": {"fault": LATE},
    "masterless": {"precision": "O2", "fault": MASTERLESS},
    "while_measured": {"fault": WHILE_MEASURED},
    "skipping": {"precision": "O1", "fault": SKIPPING},
}
IN_FULL, IN_HALF = ("single", "ddp", "fsdp2", "zero1"), ("ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp_o2")
IN_ORDER = (*IN_FULL, "ddp_o1")
UNTRUE = BROKEN.keys() - {"while_measured", "skipping"}
"""Those that no rounding can make."""


@pytest.fixture(scope="module", params=["narrow", pytest.param("whole", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("parity")
    names = [*IN_ORDER]
    for name, changes in BROKEN.items():
        file = folder / f"{name}.py"
        file.write_text(SOURCE.format(**(HONEST | changes)))
        names.append(str(file))
    model = {"task": narrow()} if request.param == "narrow" else {}
    return measured(host, folder, names, warmup=WARMUP, iters=ITERS, **(FIRST_LOOK | model))


def row(run: Run, scenario: str) -> dict[str, object]:
    (found,) = [row for row in run.document.parity if row.scenario == scenario]
    return asdict(found)


@pytest.mark.parametrize("scenario", IN_ORDER)
def test_a_sound_recipe(run: Run, scenario: str) -> None:
    assert_sound(run, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", IN_FULL + IN_HALF)
def test_a_sound_recipe_of_the_whole_model(host: WorkerHost, tmp_path: Path, scenario: str) -> None:
    assert_sound(measured(host, tmp_path, (scenario,), **(FIRST_LOOK | SHORT)), scenario)


def assert_sound(run: Run, scenario: str) -> None:
    found = row(run, scenario)
    assert found["verdict"] == (WITHIN_HALF if scenario in IN_HALF else SAME), found
    assert 0 <= float(str(found["gradient_error"])) < float(str(found["gradient_bound"]))
    assert 0 <= float(str(found["update_error"])) < float(str(found["update_bound"]))
    assert 0 <= float(str(found["loss_error"])) < float(str(found["loss_bound"]))
    assert 0 <= float(str(found["trained_error"])) < float(str(found["trained_bound"]))
    assert found["replicas"] == (1 if scenario == "single" else 2)
    if scenario != "single":
        assert float(str(found["gradient_alone"])) > 0.5, "averaging makes a difference"


@pytest.mark.parametrize(
    ("scenario", "verdict", "reason"),
    [
        ("forgetful", DIVERGED, "the ranks hold different parameters after the last step"),
        ("stranger", DIVERGED, "the ranks hold different parameters before the first step"),
        ("timid", DIVERGED, UPDATE),
        ("idle", DIVERGED, UPDATE),
        ("lazy", DIVERGED, GRADIENT),
        ("poisoned", NOT_FINITE, "the loss of step 3 is not finite"),
        ("summing", DIVERGED, GRADIENT),
        ("frozen", DIVERGED, GRADIENT),
        ("one_rank", DIVERGED, GRADIENT),
        ("undecayed", DIVERGED, UPDATE),
        ("coarse_later", DIVERGED, GRADIENT),
        ("coarse_buckets", DIVERGED, GRADIENT),
        ("top_tenth", DIVERGED, GRADIENT),
        ("late", DIVERGED, UPDATE),
        ("masterless", DIVERGED, UPDATE),
        ("while_measured", (DIVERGED, CANNOT_TELL), "what all steps did to a tensor is"),
        ("skipping", (DIVERGED, CANNOT_TELL), "what all steps did to a tensor is"),
    ],
)
def test_a_broken_recipe_is_told_from_the_others_and_why(
    run: Run, scenario: str, verdict: str | tuple[str, ...], reason: str
) -> None:
    found = row(run, scenario)
    assert found["verdict"] in ((verdict,) if isinstance(verdict, str) else verdict), found
    assert reason in str(found["reason"])
    codes = {finding.code: finding for finding in run.document.validity if finding.scenario == scenario}
    if found["verdict"] != CANNOT_TELL:
        assert codes[str(found["verdict"])].severity == "invalid"
        assert codes[str(found["verdict"])].text == found["reason"]


def test_what_trains_another_model_is_not_recommended_though_it_is_fastest(run: Run) -> None:
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
    assert run.document.reference.replica_counts == (1, 2)
    assert len(run.document.launches) == len(IN_ORDER) + len(BROKEN)
    assert set(run.steps["scenario"]) == {*IN_ORDER, *BROKEN}


def test_the_reference_starts_from_the_loss_that_ddp_starts_from(run: Run) -> None:
    ours = run.steps[run.steps["scenario"] == "ddp"].groupby("step")["loss"].mean()
    of_two = (run.numerics["quantity"] == "loss") & (run.numerics["replicas"] == 2)
    rows = run.numerics[of_two & (run.numerics["twin"] == False)]  # noqa: E712
    rows = rows[rows["computation"] == rows["computation"].min()]  # in fp32
    theirs = pd.Series(rows["value"].to_numpy(), index=rows["position"].to_numpy())
    assert len(theirs) == WARMUP + ITERS
    assert ours.to_numpy() == pytest.approx(theirs.to_numpy(), rel=1e-4)
