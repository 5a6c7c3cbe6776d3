"""Verdicts on numerics from figures made by hand, and what they rest on: sketches of gradients, and the reference."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Executed, one_host, request_for
from standin.documents import document
from standin.frames import iterations
from standin.workloads import with_settings

from bench.analyse.parity import COARSE, DIVERGED, FINE, NOT_FINITE, ROUNDINGS, SAME, WITHIN_HALF, by_scenario, parity
from bench.core.records import NUMERICS_COLUMNS
from bench.plan import reference
from bench.seams import discover
from bench.worker import data, fingerprint
from bench.worker import reference as worker_reference
from bench.worker.session import Parts
from bench.worker.workload import build_model

torch.set_num_threads(1)  # more of them wait for each other where other work shares the cores

U_BF16, U_FP16, U_FP32 = 2.0**-8, 2.0**-11, 2.0**-24
STRAY = 0.01
"""How far the twin's gradient is from the reference's, whose norm is 1."""

LOSS, TWIN_LOSS = [5.0, 4.0, 3.0, 2.0], [5.0, 4.01, 2.98, 2.01]
ALONE = 0.7
KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"compute_dtypes": ["bfloat16"], "tf32": None},
    "fp16": {"compute_dtypes": ["float16"], "tf32": {"cudnn": True, "matmul": False}},
    "tf32": {"compute_dtypes": ["float32"], "tf32": {"cudnn": True, "matmul": False}},
    "fp32": {"compute_dtypes": ["float32"], "tf32": {"cudnn": False, "matmul": True}},
}


def numbers(quantity: str, values: list[float], **about: Any) -> list[dict[str, Any]]:
    return [
        {"launch": 9, "quantity": quantity, "position": i, "value": value, **about} for i, value in enumerate(values)
    ]


def reference_numbers(**changes: Any) -> list[dict[str, Any]]:
    """Of two replicas; the gradient is (1, 0, 0)."""
    known = {"loss": LOSS, "twin_loss": TWIN_LOSS, "gradient": [1.0, 0.0, 0.0], "twin_gradient": [1.0, STRAY, 0.0]}
    known |= changes
    return [
        *numbers("loss", known["loss"], replicas=2, twin=False),
        *numbers("loss", known["twin_loss"], replicas=2, twin=True),
        *numbers("gradient", known["gradient"], replicas=2, twin=False),
        *numbers("gradient", known["twin_gradient"], replicas=2, twin=True),
        *numbers("alone", [1.0, 0.0, ALONE], replicas=2, twin=False),
    ]


def judge(
    kind: str = "bf16",
    *,
    off: float = 0.0,
    loss: list[float] | None = None,
    gradient: list[float] | None = None,
    other_rank: list[float] | None = None,
    about: dict[str, Any] | None = None,
    rows: list[dict[str, Any]] | None = None,
    replicas: int = 2,
    **checks: Any,
) -> Any:
    """The verdict on one launch. ``off``: the relative error of its gradient."""
    held = {"skipped_steps": 0, "skipped_warmup_steps": 0, "initial_weights_alike": True, "final_weights_alike": True}
    launch = {
        "launch": 0,
        "scenario": "ddp",
        "status": "ok",
        "effective": KINDS[kind] | {"replicas": replicas},
        "checks": held | checks,
    }
    known = {"launch": 9, "replica_counts": [2], "status": "ok", "half": "bf16", "unit_roundoff": U_BF16}
    held_against = None if about == {} else known | (about or {})
    run = document(launches=[launch], workload={"warmup": 1}, reference=held_against)
    mine = numbers("gradient", gradient or [1.0, 0.0, off], rank=0)
    mine += numbers("gradient", other_rank, rank=1) if other_rank else []
    mine = [row | {"launch": 0} for row in mine]
    numerics = pd.DataFrame(mine + (reference_numbers() if rows is None else rows), columns=list(NUMERICS_COLUMNS))
    losses = LOSS if loss is None else loss
    steps = pd.DataFrame(
        [
            {"launch": 0, "step": step, "rank": rank, "step_ms": 1.0, "loss": value}
            for step, value in enumerate(losses)
            for rank in (0, 1)
        ]
    )
    (row,) = parity(run, iterations(steps), numerics).to_dict("records")
    return row


def scale(unit: float) -> float:
    """Linear in the unit or with its root, whichever allows more."""
    return max(unit / U_BF16, math.sqrt(unit / U_BF16))


@pytest.mark.parametrize(("kind", "unit"), [("bf16", U_BF16), ("fp16", U_FP16), ("tf32", U_FP16), ("fp32", U_FP32)])
def test_the_gradient_may_stray_as_far_as_the_twin_times_the_roundings_of_its_precision(kind: str, unit: float) -> None:
    bound = ROUNDINGS * scale(unit) * STRAY
    below, above = judge(kind, off=0.999 * bound), judge(kind, off=1.001 * bound)
    assert below["verdict"] == WITHIN_HALF
    assert above["verdict"] == DIVERGED and "the gradient of the first step is" in above["reason"]
    assert below["gradient_bound"] == pytest.approx(bound)
    assert below["gradient_error"] == pytest.approx(0.999 * bound)
    assert below["gradient_alone"] == pytest.approx(ALONE)


FP16 = {"status": "ok", "reason": None, "unit_roundoff": U_FP16}


@pytest.mark.parametrize(
    ("kind", "half", "unit"),
    [("fp32", None, U_BF16), ("tf32", None, U_BF16), ("fp32", FP16, U_FP16), ("bf16", FP16, U_BF16)],
)
def test_the_bound_of_the_loss(kind: str, half: dict[str, Any] | None, unit: float) -> None:
    """``half``: what the twin was moved by. One unit that rounding switches takes one in fp32 beyond its own bound."""
    own = U_BF16 if half is None else U_FP16
    bound = ROUNDINGS * unit / own * (0.02 + own * LOSS[2])
    loss = [*LOSS[:2], LOSS[2] + 0.99 * bound, *LOSS[3:]]
    found = judge(kind, loss=loss, about=half)
    assert (found["verdict"], found["loss_bound"]) == (WITHIN_HALF, pytest.approx(bound))
    assert found["reason"] == (COARSE if kind == "fp32" else FINE)
    loss[2] = LOSS[2] + 1.01 * bound
    assert judge(kind, loss=loss, about=half)["verdict"] == DIVERGED


def test_fp32_is_same_up_to_the_stated_error_and_no_further() -> None:
    assert judge("fp32", off=0.9e-5)["verdict"] == SAME
    assert judge("fp32", off=1.1e-5)["verdict"] == WITHIN_HALF
    assert judge("fp32", off=1.1e-5)["reason"] == COARSE
    assert judge("bf16", off=1.1e-5)["reason"] == FINE
    assert judge("fp32", off=0.9e-5)["reason"] is None


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_loss_of_every_measured_step_has_its_bound(step: int) -> None:
    strays = [0.0, 0.01, 0.02, 0.02][step]  # never less than before: what has strayed does not come back
    bound = ROUNDINGS * (strays + U_BF16 * LOSS[step])
    for factor, verdict in ((0.99, WITHIN_HALF), (1.01, DIVERGED)):
        for sign in (1, -1):
            loss = list(LOSS)
            loss[step] += sign * factor * bound
            found = judge(loss=loss)
            assert found["verdict"] == verdict, found
            assert found["loss_step"] == step
            assert found["loss_bound"] == pytest.approx(bound) and found["loss_error"] == pytest.approx(factor * bound)
    assert f"at step {step}" in found["reason"]


def test_the_first_step_outside_its_bound_is_named() -> None:
    assert judge(loss=[5.0, 4.0, 3.2, 4.0])["reason"] == "the loss leaves its bound at step 2"


def test_the_loss_of_a_warm_up_step_is_no_measured_one() -> None:
    assert judge("fp32", loss=[5.5, *LOSS[1:]])["verdict"] == SAME


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("step", [0, 3])
def test_a_loss_that_is_no_number_is_a_verdict_of_its_own(bad: float, step: int) -> None:
    loss = list(LOSS)
    loss[step] = bad
    found = judge(loss=loss)
    assert found["verdict"] == NOT_FINITE and f"step {step}" in found["reason"]
    assert found["loss_error"] is None or pd.isna(found["loss_error"])


def test_a_gradient_that_is_no_number_is_neither_a_pass_nor_a_figure() -> None:
    found = judge(gradient=[math.nan, 0.0, 0.0])
    assert found["verdict"] == NOT_FINITE and "gradient" in found["reason"]
    assert pd.isna(found["gradient_error"])


def test_the_worst_rank_counts() -> None:
    assert judge(off=0.0, other_rank=[1.0, 0.5, 0.0])["verdict"] == DIVERGED
    assert judge(off=0.5, other_rank=[1.0, 0.0, 0.0])["verdict"] == DIVERGED
    assert judge(off=0.0, other_rank=[math.nan, 0.0, 0.0])["verdict"] == NOT_FINITE
    assert judge(off=math.nan, other_rank=[1.0, 0.0, 0.0])["verdict"] == NOT_FINITE


def test_ranks_that_hold_different_weights_diverge_whatever_the_figures_say() -> None:
    late = judge("fp32", final_weights_alike=False)
    early = judge("fp32", final_weights_alike=False, initial_weights_alike=False)
    assert late["verdict"] == early["verdict"] == DIVERGED
    assert "after the last step" in late["reason"] and "before the first step" in early["reason"]


def test_skipped_steps_leave_the_gradient_to_judge_by() -> None:
    strange = [5.0, 4.5, 4.5, 4.5]
    found = judge("fp16", loss=strange, skipped_steps=1)
    assert found["verdict"] == WITHIN_HALF and "skipped 1 steps" in found["reason"]
    assert judge("fp16", loss=strange, off=0.5, skipped_steps=1)["verdict"] == DIVERGED
    assert judge("fp16", loss=strange)["verdict"] == DIVERGED, "none was skipped"


def test_a_skipped_first_step_leaves_nothing_to_judge_by() -> None:
    found = judge("fp16", gradient=[math.inf, 0.0, 0.0], skipped_warmup_steps=2)
    assert found["verdict"] is None and "skipped 2 steps" in found["reason"]
    assert judge("fp16", gradient=[math.inf, 0.0, 0.0])["verdict"] == NOT_FINITE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"about": {}}, "--no-parity"),
        ({"about": {"status": "timeout", "reason": "no progress", "unit_roundoff": None}}, "timeout): no progress"),
        ({"replicas": 4}, "no reference of 4 replicas"),
        ({"rows": reference_numbers(twin_loss=[5.0, math.nan, 1.0, 1.0])}, "reference itself is not finite"),
        ({"rows": reference_numbers(gradient=[math.inf, 0.0, 0.0])}, "reference itself is not finite"),
    ],
    ids=["none", "failed", "other replicas", "loss not finite", "gradient not finite"],
)
def test_without_a_reference_there_is_a_reason_and_no_verdict(changes: dict[str, Any], reason: str) -> None:
    found = judge(**changes)
    assert found["verdict"] is None and reason in found["reason"]
    assert judge(**changes, loss=[math.nan] * 4)["verdict"] == NOT_FINITE, "which needs no reference"
    assert judge(**changes, final_weights_alike=False)["verdict"] == DIVERGED, "nor does this"


def test_the_gravest_launch_stands_for_its_scenario() -> None:
    rows = [("a", SAME), ("a", DIVERGED), ("a", None), ("b", WITHIN_HALF), ("b", None), ("c", SAME), ("c", WITHIN_HALF)]
    table = pd.DataFrame([{"launch": i, "scenario": name, "verdict": v} for i, (name, v) in enumerate(rows)])
    assert by_scenario(table)[["scenario", "launch"]].to_numpy().tolist() == [["a", 1], ["b", 4], ["c", 6]]


# Sketches


def vectors(count: int, size: int = 5000) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def sketched(*tensors: torch.Tensor | None) -> np.ndarray:
    return np.array(fingerprint.sketch(tensors))


def test_a_sketch_is_linear() -> None:
    a, b = vectors(2)
    assert sketched(a + b) == pytest.approx(sketched(a) + sketched(b), abs=1e-4)
    assert sketched(-2 * a) == pytest.approx(-2 * sketched(a), abs=1e-4)
    assert len(sketched(a)) == fingerprint.SKETCH_SIZE


@pytest.mark.parametrize("one_sided", [False, True], ids=["random", "one-sided"])
def test_sketches_keep_distances_within_the_error_that_is_stated(one_sided: bool) -> None:
    """Also where all elements differ to the same side, which sums without random signs would make too much of."""
    stated = 1 / math.sqrt(2 * fingerprint.SKETCH_SIZE)
    ours = [vector.abs() + index % 2 if one_sided else vector for index, vector in enumerate(vectors(60))]
    errors = [
        float(np.linalg.norm(sketched(a) - sketched(b)) / (a - b).norm()) - 1.0
        for a, b in zip(ours[::2], ours[1::2], strict=True)
    ]
    assert max(map(abs, errors)) < 4 * stated
    assert 0.5 * stated < math.sqrt(sum(error**2 for error in errors) / len(errors)) < 1.5 * stated


def test_small_differences_of_large_vectors_keep_their_size_too() -> None:
    a, noise = vectors(2, size=200_000)
    b = a + 1e-4 * noise
    assert np.linalg.norm(sketched(a) - sketched(b)) == pytest.approx(float((a - b).norm()), rel=0.09)


def test_the_same_elements_in_another_order_are_another_vector() -> None:
    (a,) = vectors(1)
    permuted = a.flip(0)
    expected = float((a - permuted).norm())
    assert np.linalg.norm(sketched(a) - sketched(permuted)) == pytest.approx(expected, rel=0.09)
    b = a[:2500]
    assert not np.allclose(sketched(b, a), sketched(a, b)), "and so are the same tensors in another order"


def test_no_gradient_is_a_gradient_of_zeros() -> None:
    a, b = vectors(2)
    assert (sketched(a, None, b) == sketched(a, torch.zeros(7), b)).all()
    assert (sketched(None) == 0).all()


def test_what_is_not_finite_stays_so() -> None:
    (a,) = vectors(1)
    a[17] = math.nan
    assert np.isnan(sketched(a)).sum() == 1


def test_two_processes_sketch_alike(execute: Callable[..., Executed]) -> None:
    done = execute("ddp", iters=1, global_batch=4)
    assert done.outcome.status == "ok", done.outcome.reason
    first, second = (result["gradient"] for result in done.results)
    assert first == second
    job = job_for_reference((2,), iters=1)
    *_, (two, _) = [worker_reference.run(job, lambda step: None)]
    error = np.linalg.norm(np.array(first) - two["gradient"]) / np.linalg.norm(two["gradient"])
    assert error < 1e-5


# The reference


def job_for_reference(counts: tuple[int, ...], iters: int, global_batch: int = 4) -> Parts:
    ddp = discover.load(*discover.resolve("ddp"))
    request = request_for((ddp,), iters=iters, global_batch=global_batch)
    return Parts(
        job=reference(request, counts, 0, one_host(1)),
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        implementation=None,
        amp="native",
    )


def by_hand(job: Parts, replicas: int, steps: int) -> tuple[list[float], list[torch.Tensor], list[torch.Tensor]]:
    """Losses, gradient of the first step, and that of the first chunk alone: SGD with momentum, written out."""
    workload, settings = job.workload, job.workload.settings
    torch.manual_seed(workload.seed)
    model = build_model(workload)
    weights = list(model.parameters())
    velocity: list[torch.Tensor] | None = None
    losses, first, alone = [], [], []
    for step in range(steps):
        total = [torch.zeros_like(weight) for weight in weights]
        loss = 0.0
        for replica in range(replicas):
            images, labels = data.batches(workload, replicas, range(replica, replica + 1), pin=False)[step]
            part = torch.nn.functional.cross_entropy(model(images), labels)
            gradient = torch.autograd.grad(part, weights)
            total = [t + g / replicas for t, g in zip(total, gradient, strict=True)]
            loss += part.item() / replicas
            if step == 0 and replica == 0:
                alone = list(gradient)
        if step == 0:
            first = total
        with torch.no_grad():
            decayed = [g + settings["weight_decay"] * w for g, w in zip(total, weights, strict=True)]
            before = velocity or [torch.zeros_like(g) for g in decayed]
            velocity = [settings["momentum"] * v + g for v, g in zip(before, decayed, strict=True)]
            for weight, v in zip(weights, velocity, strict=True):
                weight -= settings["learning_rate"] * v
        losses.append(loss)
    return losses, first, alone


def test_the_reference_is_what_a_loop_written_by_hand_computes() -> None:
    job = job_for_reference((1, 2), iters=2, global_batch=16)
    told: list[int] = []
    passes = worker_reference.run(job, told.append)
    assert [(done["replicas"], done["twin"]) for done in passes] == [(1, False), (2, False), (2, True)]
    assert told == list(range(1, worker_reference.steps(job) + 1)), "progress goes on from pass to pass"
    for done in passes[:2]:
        losses, gradient, alone = by_hand(job, int(str(done["replicas"])), job.job.steps)
        assert done["loss"] == pytest.approx(losses, rel=1e-4)
        assert done["gradient"] == pytest.approx(fingerprint.sketch(gradient), abs=1e-4)
        if done["replicas"] == 1:
            assert done["alone"] is None
        else:
            assert done["alone"] == pytest.approx(fingerprint.sketch(alone), abs=1e-4)
            assert done["alone"] != pytest.approx(done["gradient"], abs=1e-2)
    plain, twin = (np.array(done["gradient"]) for done in passes[1:])
    strays = np.linalg.norm(twin - plain) / np.linalg.norm(plain)
    assert 1e-4 < strays < 1, "the twin strays, and is still of the same model"


def test_the_twin_is_the_candidate_that_strays_farthest() -> None:
    job = job_for_reference((1, 2), iters=1)
    told: list[int] = []
    far = worker_reference.strays(job, 2, told.append)
    assert len(set(far)) == worker_reference.CANDIDATES and told == list(range(1, worker_reference.CANDIDATES + 2))
    plain, twin = (np.array(done["gradient"]) for done in worker_reference.run(job, lambda step: None)[1:])
    assert np.linalg.norm(twin - plain) / np.linalg.norm(plain) == pytest.approx(max(far), rel=0.09)


def test_the_candidates_stray_by_their_weights_and_not_by_dropout() -> None:
    job = job_for_reference((1,), iters=1)
    strict = replace(job, job=replace(job.job, workload=with_settings(job.workload, model="mobilenet_v3_small")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_reference, "perturb", lambda parameters, relative, seed: None)
        assert worker_reference.strays(strict, 1, lambda step: None) == [0.0] * worker_reference.CANDIDATES


def test_the_twin_is_moved_by_at_most_half_a_unit_in_the_last_place() -> None:
    ones = [torch.nn.Parameter(torch.ones(10_000)), torch.nn.Parameter(-torch.ones(10_000))]
    worker_reference.perturb(ones, U_BF16, seed=3)
    moved = torch.cat([(parameter.detach().abs() - 1) for parameter in ones])
    assert 0.95 * U_BF16 < moved.abs().max() <= U_BF16 * (1 + 1e-4)
    assert abs(float(moved.mean())) < 0.05 * U_BF16
    for dtype, unit in ((torch.bfloat16, U_BF16), (torch.float16, U_FP16), (torch.float32, U_FP32)):
        assert worker_reference.unit_roundoff(dtype) == unit
