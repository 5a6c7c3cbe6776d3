"""Verdicts on numerics from figures made by hand, and what they rest on: sketches of gradients, and the reference."""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import one_host, request_for
from standin import numerics
from standin.documents import document
from standin.frames import iterations
from standin.workloads import narrow, task
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.analyse.parity import (
    CANNOT_TELL,
    DIVERGED,
    FINE,
    FP32_LIMIT,
    HALVES,
    LIMIT,
    NOT_FINITE,
    ROUNDINGS,
    SAME,
    WITHIN_HALF,
    by_scenario,
    parity,
)
from bench.core.codec import encode
from bench.core.records import NUMERICS_COLUMNS, Task
from bench.plan import reference
from bench.seams import discover
from bench.worker import data, fingerprint, probe
from bench.worker import reference as worker_reference
from bench.worker.session import Parts
from bench.worker.workload import build_model

torch.set_num_threads(1)  # more of them wait for each other where other work shares the cores

U_BF16, U_FP16, U_FP32 = 2.0**-8, 2.0**-11, 2.0**-24
LOSS, TWIN_LOSS = [5.0, 4.0, 3.0, 2.0], [5.0, 4.01, 2.98, 2.01]
ALONE = 0.7
ROUNDING = 1e-5
"""How far the twins of the probe stray in fp32."""

OFF_IN_HALF = 0.1
"""How far a computation in half is from the one in fp32."""

KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"compute_dtypes": ["bfloat16"], "tf32": None},
    "fp16": {"compute_dtypes": ["float16"], "tf32": {"cudnn": True, "matmul": False}},
    "tf32": {"compute_dtypes": ["float32"], "tf32": {"cudnn": True, "matmul": False}},
    "fp32": {"compute_dtypes": ["float32"], "tf32": None},
}


RAN = {
    "bf16": numerics.computation(2, "O2", "bfloat16"),
    "fp16": numerics.computation(2, "O2", "float16", threads=0, tf32=(True, False)),
    "tf32": numerics.computation(2, threads=0, tf32=(True, False)),
    "fp32": numerics.computation(2),
}
PLAIN = (numerics.computation(2), numerics.computation(2, threads=0))


def judge(
    kind: str = "fp32",
    *,
    off: float | list[list[float]] = 0.0,
    other_rank: float | None = None,
    loss: list[float] | None = None,
    about: dict[str, Any] | None = None,
    changes: dict[str, Any] | None = None,
    replicas: int = 2,
    found: dict[str, Any] | None = None,
    kernels: dict[str, Any] | None = None,
    probed: bool = True,
    **checks: Any,
) -> Any:
    """The verdict on one launch. ``off``: the relative error of its gradients; ``found``: of the rest of its probe.

    ``changes``: to the reference.
    """
    held = {"skipped_steps": 0, "skipped_warmup_steps": 0, "initial_weights_alike": True, "final_weights_alike": True}
    ran = RAN[kind]
    launch = {
        "launch": 0,
        "scenario": "ddp",
        "status": "ok",
        "effective": KINDS[kind] | {"replicas": replicas, "precision": ran.precision} | (kernels or {}),
        "checks": held | checks,
    }
    computations = [*PLAIN, *(one for one in RAN.values() if one not in PLAIN)]
    known = {"launch": 99, "replica_counts": [2], "status": "ok", "half": "bf16", "unit_roundoff": U_BF16}
    usual = {"loss": LOSS, "twin_loss": TWIN_LOSS, "rounding": ROUNDING, "half": OFF_IN_HALF, "alone": ALONE}
    passes, rows = numerics.of_reference(computations, **(usual | (changes or {})))
    known["computations"] = [encode(one) for one in passes]
    held_against = None if about == {} else known | (about or {})
    run = document(launches=[launch], workload={"warmup": 1}, reference=held_against)
    if probed:
        usual = {"buffer": 0.0 if kind == "fp32" else (changes or {}).get("half", OFF_IN_HALF)}
        rows += numerics.of_launch(0, "ddp", off, **(usual | (found or {})))
    if other_rank is not None:
        rows += numerics.of_launch(0, "ddp", other_rank, rank=1)
    losses = LOSS if loss is None else loss
    steps = pd.DataFrame(
        [
            {"launch": 0, "step": step, "rank": rank, "step_ms": 1.0, "loss": value}
            for step, value in enumerate(losses)
            for rank in (0, 1)
        ]
    )
    table = pd.DataFrame(rows, columns=list(NUMERICS_COLUMNS))
    (row,) = parity(run, iterations(steps), table).to_dict("records")
    return row


def test_gradients_within_their_bound_are_those_of_the_reference() -> None:
    below = judge("fp32", off=0.99 * ROUNDINGS * ROUNDING)
    assert below["verdict"] == SAME and below["reason"] is None
    assert below["gradient_bound"] == pytest.approx(ROUNDINGS * ROUNDING)
    assert below["gradient_error"] == pytest.approx(0.99 * ROUNDINGS * ROUNDING)
    assert below["gradient_alone"] == pytest.approx(ALONE)
    above = judge("fp32", off=1.01 * ROUNDINGS * ROUNDING)
    assert above["verdict"] == DIVERGED and "gradient of a tensor" in above["reason"]


@pytest.mark.parametrize("kind", ["bf16", "fp16", "tf32"])
def test_in_half_a_gradient_is_held_against_the_reference_in_half(kind: str) -> None:
    """Which is 0.1 from the one in fp32: a launch that is as far off, the same way, is at no distance."""
    as_it = judge(kind, off=OFF_IN_HALF)
    assert (as_it["verdict"], as_it["reason"]) == (WITHIN_HALF, FINE)
    assert as_it["gradient_error"] == pytest.approx(0.0)
    assert as_it["gradient_bound"] == pytest.approx(HALVES * OFF_IN_HALF)
    length = math.hypot(1, OFF_IN_HALF)
    assert judge(kind, off=OFF_IN_HALF + 0.99 * LIMIT * length)["verdict"] == WITHIN_HALF
    between = judge(kind, off=OFF_IN_HALF + 1.01 * LIMIT * length)
    assert between["verdict"] == CANNOT_TELL and "rounding alone may do that" in between["reason"]
    assert judge(kind, off=OFF_IN_HALF + 1.01 * HALVES * OFF_IN_HALF * length)["verdict"] == DIVERGED


def test_a_bound_that_cannot_fail_is_no_pass() -> None:
    """Where rounding does as much as a replica alone would, an error of 0.44 says nothing."""
    found = judge("bf16", off=2.0 + 0.44 * math.hypot(1, 2.0), changes={"half": 2.0})
    assert found["gradient_bound"] > 1 and found["verdict"] == CANNOT_TELL
    assert judge("bf16", off=2.0, changes={"half": 2.0})["verdict"] == WITHIN_HALF, "no mistake of 5 % is in it"
    assert judge("fp32", off=2e-4, changes={"rounding": 0.1})["verdict"] == CANNOT_TELL, "so much does fp16, too"


COMPILED = {"compiled": {"seconds": 1.0, "graphs": 1, "graph_breaks": 0, "cached": 0}}


@pytest.mark.parametrize("kernels", [COMPILED, {"memory_format": "channels_last"}], ids=["compiled", "channels_last"])
def test_other_kernels_in_half_are_diverged_only_as_a_whole(kernels: dict[str, Any]) -> None:
    """They round elsewhere: one tensor may be farther off than the reference's rounding took it."""
    bound = HALVES * OFF_IN_HALF
    one, every = [[OFF_IN_HALF + 1.5 * bound, OFF_IN_HALF], [OFF_IN_HALF] * 2], OFF_IN_HALF + 1.5 * bound
    assert judge("bf16", off=one)["verdict"] == DIVERGED
    assert judge("bf16", off=one, kernels=kernels)["verdict"] == CANNOT_TELL
    assert judge("bf16", off=every, kernels=kernels)["verdict"] == DIVERGED


ONE_STEP = [[0.0, 0.0], [0.01, 0.0]]


@pytest.mark.parametrize(
    ("off", "verdict"),
    [
        ([[0.0, 0.0], [0.01, 0.0]], CANNOT_TELL),
        ([[0.01, 0.0], [0.01, 0.0]], CANNOT_TELL),
        ([[1e-3, 2e-3], [1e-3, 1e-3]], DIVERGED),
        ([[0.06, 0.0], [0.0, 0.06]], DIVERGED),
        ([[0.06, 0.0], [0.0, 0.0]], CANNOT_TELL),
        ([[0.0, 0.0], [0.0, 0.3]], DIVERGED),
    ],
    ids=["a step", "a tensor", "all by little", "each step by much", "a step by much", "a step grossly"],
)
def test_a_unit_that_rounding_switches_is_told_from_a_mistake(off: list[list[float]], verdict: str) -> None:
    """In fp32 one switched unit takes the layers in front of it beyond their bound; it leaves those behind it alone."""
    found = judge("fp32", off=off)
    assert found["verdict"] == verdict
    assert ("a unit that rounding switches on or off may do that" in found["reason"]) is (verdict == CANNOT_TELL)


def test_a_single_step_tells_nothing_where_rounding_alone_is_grossly_off() -> None:
    rounding = {"changes": {"rounding": [[0.3, 0.0], [0.0, 0.0]]}}
    assert judge("fp32", off=[[0.0, 0.0], [0.0, 5.0]], **rounding)["verdict"] == CANNOT_TELL
    assert judge("fp32", off=[[0.0, 5.0], [0.0, 5.0]], **rounding)["verdict"] == DIVERGED


def test_a_buffer_is_held_against_that_of_the_first_replica() -> None:
    assert judge(found={"buffer": 1e-5})["verdict"] == SAME
    frozen = judge(found={"buffer": 1.0})
    assert frozen["verdict"] == DIVERGED and "did to a buffer" in frozen["reason"]


def test_an_update_is_held_against_that_of_the_plain_optimizer() -> None:
    assert judge(found={"update": (0.9e-6, 1e-6)})["verdict"] == SAME
    off = judge(found={"update": (1.1e-6, 1e-6)})
    assert off["verdict"] == DIVERGED and (off["update_error"], off["update_bound"]) == (1.1e-6, 1e-6)
    assert judge(found={"update": (math.nan, 1e-6)})["verdict"] == DIVERGED
    assert judge("bf16", off=OFF_IN_HALF, found={"update": (0.3, 2.0)})["verdict"] == CANNOT_TELL
    assert judge("bf16", off=OFF_IN_HALF, found={"update": (0.01, 2.0)})["verdict"] == WITHIN_HALF


def test_what_all_steps_did_is_held_against_the_training_in_fp32() -> None:
    """Which the twin in half leaves by 0.1, so that up to 0.3 nobody can tell, and the one in fp32 by less."""
    near = judge(found={"all_steps": 0.009})
    assert (near["verdict"], near["trained_bound"]) == (SAME, pytest.approx(0.3))
    assert judge(found={"all_steps": 0.011})["verdict"] == CANNOT_TELL
    for strays, allowed in ((1e-3, 3e-3), (1e-7, FP32_LIMIT)):
        below, above = (
            judge(found={"all_steps": part * allowed}, changes={"twin_all_steps": (0.1, strays)})["verdict"]
            for part in (0.99, 1.01)
        )
        assert (below, above) == (SAME, CANNOT_TELL)
    assert "more than rounding in fp32 does" in judge(found={"all_steps": 0.1})["reason"]
    assert judge(found={"all_steps": 0.009}, changes={"twin_all_steps": (0.1,)})["verdict"] == SAME, "an older run"
    assert judge(found={"all_steps": 0.31})["verdict"] == DIVERGED


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_what_all_steps_did_in_half_is_held_against_the_training_in_half(kind: str) -> None:
    """From which 0.1 is chance, and up to 0.3, three times what the twin strays, nobody can tell."""
    expected = {0.099: WITHIN_HALF, 0.101: CANNOT_TELL, 0.299: CANNOT_TELL, 0.301: DIVERGED, math.nan: DIVERGED}
    found = {off: judge(kind, off=OFF_IN_HALF, found={"all_steps": off}) for off in expected}
    assert {off: row["verdict"] for off, row in found.items()} == expected
    assert "no more than rounding in half" in found[0.299]["reason"] and found[0.099]["trained_limit"] == 0.1
    older = {"trained_in_half": False}
    assert judge(kind, off=OFF_IN_HALF, found={"all_steps": 0.9}, changes=older)["verdict"] == WITHIN_HALF
    sharp = judge(kind, off=OFF_IN_HALF, found={"all_steps": 0.11}, changes={"twin_all_steps": (0.01,)})
    assert (sharp["verdict"], sharp["trained_bound"]) == (DIVERGED, 0.1)
    finer = {"about": {"unit_roundoff": U_FP16}, "found": {"all_steps": 0.9}}
    assert judge("bf16", off=OFF_IN_HALF, **finer)["verdict"] == CANNOT_TELL, "the twin was moved by less"
    skipped = judge(kind, off=OFF_IN_HALF, found={"all_steps": 0.9}, skipped_steps=1)
    assert skipped["verdict"] == WITHIN_HALF, "what the scaler skipped is no mistake"


def test_a_loss_of_0_has_a_bound_that_is_none() -> None:
    nothing = [0.0] * len(LOSS)
    found = judge(loss=nothing, changes={"loss": nothing, "twin_loss": nothing})
    assert found["verdict"] == SAME and found["loss_bound"] > 0


@pytest.mark.parametrize(("kind", "unit"), [("fp32", U_BF16), ("tf32", U_BF16)])
@pytest.mark.parametrize("half", [U_BF16, U_FP16])
def test_the_bound_of_the_loss(kind: str, unit: float, half: float) -> None:
    """``half``: what the twin was moved by. No loss is told from that of half, or of what is coarser still."""
    ratio = max(unit if kind == "bf16" else U_FP16 if kind == "tf32" else half, half) / half
    bound = ROUNDINGS * max(ratio, math.sqrt(ratio)) * (0.02 + half * LOSS[2])
    off, verdict = (0.0, SAME) if kind == "fp32" else (OFF_IN_HALF, WITHIN_HALF)
    loss = [*LOSS[:2], LOSS[2] + 0.99 * bound, *LOSS[3:]]
    found = judge(kind, off=off, loss=loss, about={"unit_roundoff": half})
    assert (found["verdict"], found["loss_bound"]) == (verdict, pytest.approx(bound))
    loss[2] = LOSS[2] + 1.01 * bound
    assert judge(kind, off=off, loss=loss, about={"unit_roundoff": half})["verdict"] == DIVERGED


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_loss_of_every_measured_step_has_its_bound(step: int) -> None:
    strays = [0.0, 0.01, 0.02, 0.02][step]  # never less than before: what has strayed does not come back
    bound = ROUNDINGS * (strays + U_BF16 * LOSS[step])
    for factor, verdict in ((0.99, WITHIN_HALF), (1.01, DIVERGED)):
        for sign in (1, -1):
            loss = list(LOSS)
            loss[step] += sign * factor * bound
            found = judge("bf16", off=OFF_IN_HALF, loss=loss)
            assert found["verdict"] == verdict, found
            assert found["loss_step"] == step
            assert found["loss_bound"] == pytest.approx(bound) and found["loss_error"] == pytest.approx(factor * bound)
    assert f"at step {step}" in found["reason"]


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_in_half_a_loss_is_held_against_the_training_in_half(kind: str) -> None:
    """Which may leave the one in fp32 for good; a launch that computes in fp32 is held against that one alone."""
    far = [5.0, 4.0, 3.5, 2.5]
    assert judge(kind, off=OFF_IN_HALF, loss=far)["reason"] == "the loss leaves its bound at step 2"
    held = {"half_loss": far}
    same = judge(kind, off=OFF_IN_HALF, loss=far, changes=held)
    assert (same["verdict"], same["loss_error"]) == (WITHIN_HALF, 0.0)
    assert same["reason"] == f"{FINE}; the loss of that level leaves the fp32 loss at step 2"
    bound = HALVES * 0.5
    for factor, verdict in ((0.99, WITHIN_HALF), (1.01, DIVERGED)):
        found = judge(kind, off=OFF_IN_HALF, loss=[5.0, 4.0, 3.5, 2.5 + factor * bound], changes=held)
        assert (found["verdict"], found["loss_bound"]) == (verdict, pytest.approx(bound))
    assert judge("fp32", loss=far, changes=held)["verdict"] == DIVERGED
    overflowed = judge(kind, off=OFF_IN_HALF, changes={"half_loss": [5.0, math.inf, math.nan, math.nan]})
    assert overflowed["verdict"] == WITHIN_HALF, "held against the training in fp32"
    assert judge(kind, off=OFF_IN_HALF, loss=far, changes={"trained_in_half": False})["verdict"] == DIVERGED


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
    found = judge(off=math.nan)
    assert found["verdict"] == NOT_FINITE and "gradient" in found["reason"]
    assert pd.isna(found["gradient_error"])


def test_the_worst_rank_counts() -> None:
    assert judge(other_rank=0.5)["verdict"] == DIVERGED
    assert judge(off=0.5, other_rank=0.0)["verdict"] == DIVERGED
    assert judge(other_rank=math.nan)["verdict"] == NOT_FINITE
    assert judge(off=math.nan, other_rank=0.0)["verdict"] == NOT_FINITE


def test_ranks_that_hold_different_weights_diverge_whatever_the_figures_say() -> None:
    late = judge("fp32", final_weights_alike=False)
    early = judge("fp32", final_weights_alike=False, initial_weights_alike=False)
    assert late["verdict"] == early["verdict"] == DIVERGED
    assert "after the last step" in late["reason"] and "before the first step" in early["reason"]


def test_skipped_steps_leave_the_probe_to_judge_by() -> None:
    strange = [5.0, 4.5, 4.5, 4.5]
    found = judge("fp16", off=OFF_IN_HALF, loss=strange, skipped_steps=1)
    assert found["verdict"] == WITHIN_HALF and "skipped 1 steps" in found["reason"]
    assert judge("fp16", off=1.0, loss=strange, skipped_steps=1)["verdict"] == DIVERGED
    assert judge("fp16", off=OFF_IN_HALF, loss=strange)["verdict"] == DIVERGED, "none was skipped"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"about": {}}, "--no-parity"),
        ({"about": {"status": "timeout", "reason": "no progress", "unit_roundoff": None}}, "timeout): no progress"),
        ({"replicas": 4}, "no reference that computed as it did"),
        ({"changes": {"twin_loss": [5.0, math.nan, 1.0, 1.0]}}, "reference itself is not finite"),
        ({"probed": False}, "not probed"),
    ],
    ids=["none", "failed", "other replicas", "loss not finite", "not probed"],
)
def test_without_a_reference_there_is_a_reason_and_no_verdict(changes: dict[str, Any], reason: str) -> None:
    found = judge(**changes)
    assert found["verdict"] is None and reason in found["reason"]
    assert judge(**changes, loss=[math.nan] * 4)["verdict"] == NOT_FINITE, "which needs no reference"
    assert judge(**changes, final_weights_alike=False)["verdict"] == DIVERGED, "nor does this"


def test_the_gravest_launch_stands_for_its_scenario() -> None:
    rows = [("a", SAME), ("a", DIVERGED), ("a", None), ("b", CANNOT_TELL), ("b", None), ("c", SAME), ("c", CANNOT_TELL)]
    table = pd.DataFrame([{"launch": i, "scenario": name, "verdict": v} for i, (name, v) in enumerate(rows)])
    assert by_scenario(table)[["scenario", "launch"]].to_numpy().tolist() == [["a", 1], ["b", 4], ["c", 6]]


# Sketches


def vectors(count: int, size: int = 5000) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def sketched(tensor: torch.Tensor | None, position: int = 0) -> np.ndarray:
    return np.array(fingerprint.sketch(tensor, position))


def test_a_sketch_is_linear() -> None:
    a, b = vectors(2)
    assert sketched(a + b) == pytest.approx(sketched(a) + sketched(b), abs=1e-3)
    assert sketched(-2 * a) == pytest.approx(-2 * sketched(a), abs=1e-3)
    assert len(sketched(a)) == fingerprint.SKETCH_SIZE
    assert not np.allclose(sketched(a), sketched(a, position=1))


def test_a_sketch_is_what_it_was_and_its_signs_are_drawn_once() -> None:
    """A run that is resumed compares sketches with those of its first part."""
    fingerprint._signs.cache_clear()
    tensor = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    signs = torch.randint(0, 2, (77,), generator=torch.Generator().manual_seed(5), dtype=torch.int8)
    signed = torch.nn.functional.pad(tensor.reshape(-1) * (2 * signs - 1), (0, 3)).view(-1, 16)
    assert [fingerprint.sketch(tensor, 5) for _ in range(3)] == [signed.double().sum(0).tolist()] * 3
    assert fingerprint._signs.cache_info().misses == 1


def test_a_sketch_is_computed_on_the_device_of_the_tensor() -> None:
    seen: set[tuple[str, str]] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            seen.update((func._schema.name, one.device.type) for one in [result] if isinstance(one, torch.Tensor))
            return result

    signs = fingerprint._signs(0, 100)
    with FakeTensorMode(allow_non_fake_inputs=True), suppress(DataDependentOutputException):  # it has no numbers
        tensor = torch.empty(100, device="cuda")
        with Watch():
            fingerprint.sketch(tensor, 0)
    assert signs.device.type == "cpu" and ("aten::sum", "cuda") in seen


@pytest.mark.parametrize("one_sided", [False, True], ids=["random", "one-sided"])
def test_sketches_keep_distances_within_the_error_that_is_stated(one_sided: bool) -> None:
    """Also where all elements differ to the same side, which sums without random signs would make too much of."""
    stated = math.sqrt(2 / fingerprint.SKETCH_SIZE)
    ours = [vector.abs() + index % 2 if one_sided else vector for index, vector in enumerate(vectors(400))]
    errors = [
        float(np.linalg.norm(sketched(a, at) - sketched(b, at)) / (a - b).norm()) ** 2 - 1.0
        for at, (a, b) in enumerate(zip(ours[::2], ours[1::2], strict=True))
    ]
    assert abs(float(np.mean(errors))) < 4 * stated / math.sqrt(len(errors))
    assert 0.7 * stated < math.sqrt(sum(error**2 for error in errors) / len(errors)) < 1.3 * stated


def test_the_same_elements_in_another_order_are_another_tensor() -> None:
    (a,) = vectors(1)
    expected = float((a - a.flip(0)).norm())
    assert 0.3 * expected < np.linalg.norm(sketched(a) - sketched(a.flip(0))) < 3 * expected


def test_no_gradient_is_a_gradient_of_zeros() -> None:
    assert (sketched(None) == 0).all() and (sketched(torch.zeros(7)) == 0).all()


def test_what_is_not_finite_stays_so() -> None:
    (a,) = vectors(1)
    a[17] = math.nan
    assert np.isnan(sketched(a)).sum() == 1


# The reference and the probe

SEED = 4711


def job_for_reference(counts: tuple[int, ...], iters: int, global_batch: int = 4, work: Task | None = None) -> Parts:
    ddp = discover.load(*discover.resolve("ddp"))
    request = request_for((ddp,), iters=iters, global_batch=global_batch, task=work or narrow())
    computations = tuple(map(numerics.computation, counts))
    return Parts(
        job=reference(request, computations, 0, one_host(1), SEED),
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        implementation=None,
        amp="native",
    )


def by_hand(job: Parts, replicas: int, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """Losses, and what was trained: SGD with momentum, written out."""
    workload, settings = job.workload, job.workload.settings
    torch.manual_seed(workload.seed)
    model = build_model(workload)
    weights = list(model.parameters())
    begin = [weight.detach().clone() for weight in weights]
    velocity: list[torch.Tensor] | None = None
    losses = []
    for step in range(steps):
        total = [torch.zeros_like(weight) for weight in weights]
        loss = 0.0
        for replica in range(replicas):
            images, labels = data.batches(workload, replicas, range(replica, replica + 1), pin=False)[step]
            part = torch.nn.functional.cross_entropy(model(images), labels)
            gradient = torch.autograd.grad(part, weights)
            total = [t + g / replicas for t, g in zip(total, gradient, strict=True)]
            loss += part.item() / replicas
        with torch.no_grad():
            decayed = [g + settings["weight_decay"] * w for g, w in zip(total, weights, strict=True)]
            before = velocity or [torch.zeros_like(g) for g in decayed]
            velocity = [settings["momentum"] * v + g for v, g in zip(before, decayed, strict=True)]
            for weight, v in zip(weights, velocity, strict=True):
                weight -= settings["learning_rate"] * v
        losses.append(loss)
    return losses, [weight.detach() - w for weight, w in zip(weights, begin, strict=True)]


def test_the_reference_is_what_a_loop_written_by_hand_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reference, "CANDIDATES", 1)
    job = job_for_reference((2,), 1, 16)
    told: list[int] = []
    trained, twin, rounded, *probes = worker_reference.run(job, SEED, told.append)
    assert told == list(range(1, worker_reference.steps(job) + 1)), "progress goes on from pass to pass"
    assert [done["twin"] for done in (trained, twin, rounded)] == [False, True, True]
    losses, moved = by_hand(job, 2, job.job.steps)
    assert trained["loss"] == pytest.approx(losses, rel=1e-4)
    theirs = np.array([fingerprint.sketch(one, position) for position, one in enumerate(moved)])
    assert np.linalg.norm(np.array(trained["trained"]) - theirs) < 1e-3 * np.linalg.norm(theirs)
    assert np.linalg.norm(np.array(twin["trained"]) - theirs) > 1e-2 * np.linalg.norm(theirs)
    assert 0 < np.linalg.norm(np.array(rounded["trained"]) - trained["trained"]) < 1e-3 * np.linalg.norm(theirs)
    assert [done["twin"] for done in probes] == [False, True, True]
    assert [len(done["alone"]) for done in probes] == [probe.STEPS, 0, 0]
    norms = np.linalg.norm(probes[0]["gradients"], axis=2)
    assert norms.min() > 1e-4 * np.linalg.norm(norms), "branches are awake: every tensor has a gradient"


def test_the_reference_trains_in_half_what_launches_trained_in_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reference, "CANDIDATES", 1)
    half = numerics.computation(2, "O2", "bfloat16")
    job = job_for_reference((2,), 1, 16)
    job = replace(job, job=replace(job.job, computations=(half,)))
    told: list[int] = []
    passes = worker_reference.run(job, SEED, told.append)
    assert told == list(range(1, worker_reference.steps(job) + 1))
    assert [(done["computation"]["precision"], bool(done["loss"])) for done in passes] == [
        *[("O0", True)] * 3,
        ("O2", True),
        *[("O0", False)] * 3,
        ("O2", False),
    ]
    full, in_half = (np.array(passes[at]["trained"]) for at in (0, 3))
    off = np.linalg.norm(in_half - full) / np.linalg.norm(full)
    assert 0.01 < off < 0.9, "it is the same training, in half, and masters keep what bf16 does not"


def test_the_probe_has_weights_and_batches_of_its_own_by_its_seed() -> None:
    job = job_for_reference((1,), 1)
    states = [probe.State.of(probe.drawn(job, seed)).weights for seed in (1, 1, 2)]
    same, other = (
        [torch.equal(a, b) for a, b in zip(states[0], weights, strict=True) if a.dim() > 1] for weights in states[1:]
    )
    assert all(same) and not any(other)
    assert all(weight.any() for weight in states[0])
    first, second = (data.batches(probe.drawn(job, seed).workload, 1, range(1), pin=False) for seed in (1, 2))
    assert len(first) == probe.STEPS and not torch.equal(first[0][0], second[0][0])


def test_the_candidates_stray_by_their_weights_and_not_by_dropout() -> None:
    strict = job_for_reference((1,), 1, work=task(model="mobilenet_v3_small", image_size=32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_reference, "perturb", lambda parameters, relative, seed: None)
        assert worker_reference.strays(strict, 1, lambda: None) == [0.0] * worker_reference.CANDIDATES


def test_the_twin_is_moved_by_at_most_half_a_unit_in_the_last_place() -> None:
    ones = [torch.nn.Parameter(torch.ones(10_000)), torch.nn.Parameter(-torch.ones(10_000))]
    worker_reference.perturb(ones, U_BF16, seed=3)
    moved = torch.cat([(parameter.detach().abs() - 1) for parameter in ones])
    assert 0.95 * U_BF16 < moved.abs().max() <= U_BF16 * (1 + 1e-4)
    assert abs(float(moved.mean())) < 0.05 * U_BF16
    for dtype, unit in ((torch.bfloat16, U_BF16), (torch.float16, U_FP16), (torch.float32, U_FP32)):
        assert worker_reference.unit_roundoff(dtype) == unit
