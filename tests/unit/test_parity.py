"""Verdicts on numerics from values made by hand, and what they rest on: sketches, and the reference."""

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import one_host, request_for
from standin import numerics
from standin.documents import document
from standin.frames import iterations
from standin.runs import analysed, write_run
from standin.workloads import narrow, workload
from torch import nn

from bench.analyse.environments import numerics as between_interpreters
from bench.analyse.parity import BOUND, COARSE, LOSS_BOUND, TIMES_TWIN, by_scenario, parity
from bench.core.codec import encode
from bench.core.job import EXAMPLES, Computation, Job
from bench.core.records import NUMERICS_COLUMNS, PARITIES
from bench.experiments.plan import reference
from bench.runs.tables import to_table, uneven
from bench.seams import discover, switching
from bench.worker import data, fingerprint, probe, work
from bench.worker import reference as worker_reference
from bench.worker.precision import double_by_default
from bench.worker.session import Parts
from bench.worker.workload import build_in_double, build_model

torch.set_num_threads(1)  # more of them wait for each other where other work shares the cores

SAME, WITHIN_HALF, BY_DESIGN, CANNOT_TELL, DIVERGED, NOT_FINITE = PARITIES
LOSS = [5.0, 4.0, 3.0, 2.0]
DOUBLE = 50

FP32 = {"compute_dtypes": ["float32"]}
BF16 = {"compute_dtypes": ["bfloat16"], "precision": "O2"}
TF32 = {"compute_dtypes": ["float32"], "tf32": {"cudnn": True, "matmul": False}, "threads": 0}
PRODUCTS, STRICT = (TF32 | {"tf32": {"cudnn": None, "matmul": matmul}} for matmul in (True, False))
"""Of a model without convolutions, in which torch takes TF32 unless it is told not to."""


def judge(
    effective: dict[str, Any] | None = None,
    *,
    double: dict[str, Any] | None = None,
    own: tuple[float, float] | None = (0.0, 1e-6),
    loss: list[float] | None = None,
    twin: float = 1e-10,
    about: dict[str, Any] | None = None,
    recorded: dict[str, Any] | None = None,
    differs: str | None = None,
    replicas: int = 2,
    lost: tuple[str, ...] = (),
    **checks: Any,
) -> Any:
    """The verdict on one launch. ``double``: errors of its launch in double precision (:func:`numerics.in_double`);
    ``recorded``: fields of that one's record, and ``about`` of the reference's, with {} for none; ``lost``: quantities
    without rows.
    """
    ran = {"replicas": replicas, "norm_parts": replicas, "threads": 1, "precision": "O0", **(effective or FP32)}
    launch = {"launch": 0, "scenario": "ddp", "strategy": "ddp", "status": "ok", "effective": ran}
    launch["checks"] = {"initial_weights_alike": True, "final_weights_alike": True} | checks
    computations = (numerics.computation(2), numerics.computation(2, threads=0))
    record = {"launch": 99, "status": "ok", "reason": None, "wall_s": 1.0}
    record["computations"] = list(map(encode, computations))
    run = document(
        launches=[launch],
        workload={"warmup": 1},
        reference=None if about == {} else record | (about or {}),
        doubles=[] if recorded == {} else [encode(numerics.double(DOUBLE, "ddp", **(recorded or {})))],
        strategies={"ddp": {"hue": "blue", "dash": "solid", "differs": differs}},
    )
    rows = numerics.of_reference(computations, loss=LOSS, twin=twin) + numerics.in_double(DOUBLE, **(double or {}))
    rows += numerics.updates(0, *own) if own else []
    rows = [row for row in rows if row["quantity"] not in lost]
    losses = LOSS if loss is None else loss
    steps = [
        {"launch": 0, "step": step, "rank": rank, "step_ms": 1.0, "loss": value}
        for step, value in enumerate(losses)
        for rank in (0, 1)
    ]
    table = pd.DataFrame(rows, columns=list(NUMERICS_COLUMNS))
    (row,) = parity(run, iterations(pd.DataFrame(steps)), table).to_dict("records")
    return row


@pytest.mark.parametrize("quantity", ["gradient", "buffer", "update"])
@pytest.mark.parametrize(
    ("effective", "good"),
    [(FP32, SAME), (BF16, WITHIN_HALF), (TF32, WITHIN_HALF), (PRODUCTS, WITHIN_HALF), (STRICT, SAME)],
)
def test_each_error_in_double_has_the_bound(effective: dict[str, Any], good: str, quantity: str) -> None:
    below = judge(effective, double={quantity: 0.9 * BOUND})
    assert below["verdict"] == good and below[f"{quantity}_error"] == pytest.approx(0.9 * BOUND)
    one_tensor = [[0.0, 0.0], [0.0, 1.1 * BOUND]]
    above = judge(effective, double={quantity: one_tensor})
    assert above["verdict"] == DIVERGED and "in double precision" in above["reason"]


BAD = {0: math.nan, 3: math.inf}
COMPRESSED = {"differs": "gradients are compressed"}
NARROW = "in double precision with a narrower model"
PART = "^gradients are compressed; in double precision, the gradient of a tensor is 0.3 % off$"
OFF = [LOSS[0], LOSS[1] + 1.1 * LOSS_BOUND * LOSS[0], *LOSS[2:]]
NO_DOUBLE = {"status": "error", "reason": "no double"}


@pytest.mark.parametrize(
    ("how", "verdict", "reason"),
    [
        # a coarse model has a wider bound, and one that is too coarse none
        ({"twin": 1e-6, "double": {"gradient": 0.9e-6 * TIMES_TWIN}}, SAME, None),
        ({"twin": 1e-6, "double": {"gradient": 1.1e-6 * TIMES_TWIN}}, DIVERGED, "in double precision"),
        ({"twin": 1.1 * COARSE / TIMES_TWIN}, CANNOT_TELL, "or it draws random numbers from another generator"),
        # an optimizer that rounds by itself has a wider bound, and nothing else has it
        ({"double": {"update": 0.005, "rounding": 0.009}}, SAME, None),
        ({"double": {"update": 0.05, "rounding": 0.09}}, CANNOT_TELL, "its optimizer computes too coarsely"),
        ({"double": {"update": 0.05, "rounding": 0.04}}, DIVERGED, ""),
        *(
            ({"double": {"update": 0.05, "rounding": 0.09, name: 0.005}}, DIVERGED, "")
            for name in ("gradient", "buffer")
        ),
        # the worst rank counts
        ({"double": {"other_rank": 0.5}}, DIVERGED, ""),
        ({"double": {"gradient": 0.5, "other_rank": 0.0}}, DIVERGED, ""),
        ({"double": {"other_rank": math.nan}}, NOT_FINITE, ""),
        # the update of the launch itself has a bound of its own
        ({"own": (0.3, 0.4)}, SAME, None),
        ({"own": (0.3, 0.4), "effective": BF16}, WITHIN_HALF, ""),
        *(({"own": (0.5, 0.4), "effective": ran}, DIVERGED, "after the measured steps") for ran in (FP32, BF16)),
        *(({"own": (math.nan, 0.4), "effective": ran}, DIVERGED, "tensor is not finite$") for ran in (FP32, BF16)),
        ({"own": (0.5, 0.4), "recorded": NO_DOUBLE}, DIVERGED, ""),
        # losses count where the kernels are the same, as far as the reference trained
        ({"loss": OFF}, CANNOT_TELL, ""),
        ({"loss": [LOSS[0] * (1 + 0.9 * LOSS_BOUND), *LOSS[1:]]}, SAME, None),
        ({"loss": [*LOSS, 1.0, 9.0]}, SAME, None),
        ({"loss": OFF, "effective": FP32 | {"memory_format": "channels_last"}}, SAME, None),
        *(({"loss": OFF, "effective": FP32 | ran}, WITHIN_HALF, "") for ran in (BF16, TF32)),
        *(({"loss": [*LOSS[:at], bad, *LOSS[at + 1 :]]}, NOT_FINITE, f"step {at}") for at, bad in BAD.items()),
        # by design; what was left out; ranks that hold different weights
        ({"double": {"gradient": 0.003}, "final_weights_alike": False} | COMPRESSED, BY_DESIGN, PART),
        ({"loss": [math.nan] * 4} | COMPRESSED, NOT_FINITE, ""),
        ({"recorded": {"left_out": ["compile"]}, "about": {"narrow": True}}, SAME, f"{NARROW} and without compile"),
        ({"about": {"narrow": True}}, SAME, f"{NARROW}$"),
        ({"final_weights_alike": False}, DIVERGED, "after the last step"),
        ({"final_weights_alike": False, "initial_weights_alike": False}, DIVERGED, "before the first step"),
    ],
)
def test_a_launch_is_judged(how: dict[str, Any], verdict: str, reason: str | None) -> None:
    row = judge(**how)
    assert row["verdict"] == verdict
    assert row["reason"] is None if reason is None else re.search(reason, row["reason"])


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({"about": {}}, CANNOT_TELL, "--no-parity"),
        ({"recorded": {}}, None, "--no-parity"),
        ({"about": {"status": "timeout", "reason": "no progress"}}, CANNOT_TELL, "timeout): no progress"),
        ({"recorded": {"status": "error", "reason": "no double"}}, CANNOT_TELL, "failed (error): no double"),
        ({"replicas": 4}, CANNOT_TELL, "no reference that computed as it did"),
        ({"double": {"gradient": [[0.0, 0.0]]}}, CANNOT_TELL, "not those of the workload's model"),
        ({"double": {"buffer": [[0.0, 0.0]] * 3}}, CANNOT_TELL, "not those of the workload's model"),
        ({"lost": ("probed", "buffer", "alone")}, CANNOT_TELL, "the reference's numbers are missing"),
    ],
)
def test_what_cannot_be_judged(changes: dict[str, Any], verdict: str | None, reason: str) -> None:
    row = judge(**changes)
    assert row["verdict"] == verdict and reason in row["reason"]
    assert judge(**changes, loss=[math.nan] * 4)["verdict"] == NOT_FINITE, "which needs no reference"
    assert judge(**changes, final_weights_alike=False)["verdict"] == DIVERGED, "nor does this"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows, None),
        (lambda rows: rows[1:], "of launch 1 some numbers are missing"),
        (lambda rows: [*rows, rows[0]], "of launch 1 some numbers are missing"),
        (lambda rows: [{**row, "tensor": None} for row in rows], "of launch 1 some numbers are missing"),
        (lambda rows: rows[:-1], "errors and bounds of updates are not of the same tensors"),
    ],
)
def test_a_sketch_with_a_hole_is_found(change: Callable[[numerics.Rows], numerics.Rows], says: str | None) -> None:
    rows = [{"computation": None, "twin": False, **row} for row in change(numerics.in_double(1))]
    assert uneven(to_table(rows, NUMERICS_COLUMNS)) == says


def test_the_gravest_launch_stands_for_its_scenario() -> None:
    rows = [("a", SAME), ("a", DIVERGED), ("a", None), ("b", CANNOT_TELL), ("b", None), ("c", SAME), ("c", CANNOT_TELL)]
    table = pd.DataFrame([{"launch": i, "scenario": name, "verdict": v} for i, (name, v) in enumerate(rows)])
    assert by_scenario(table)[["scenario", "launch"]].to_numpy().tolist() == [["a", 1], ["b", 4], ["c", 6]]


def test_the_signs_of_a_sketch_are_drawn_once() -> None:
    """A run that is resumed compares sketches with those of its first part."""
    fingerprint._signs.cache_clear()
    tensor = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    signs = torch.randint(0, 2, (77,), generator=torch.Generator().manual_seed(5), dtype=torch.int8)
    signed = torch.nn.functional.pad(tensor.reshape(-1) * (2 * signs - 1), (0, 3)).view(-1, 16)
    assert [fingerprint.sketch(tensor, 5) for _ in range(3)] == [signed.double().sum(0).tolist()] * 3
    assert fingerprint._signs.cache_info().misses == 1
    tensor[0, 0] = math.nan
    assert [math.isnan(value) for value in fingerprint.sketch(tensor, 5)] == [True] + [False] * 15
    assert fingerprint.sketch(None, 5) == [0.0] * fingerprint.SKETCH_SIZE, "no gradient is one of zeros"


def test_a_sparse_gradient_is_judged_as_a_dense_one() -> None:
    gradient = torch.zeros(5, 3).index_fill(0, torch.tensor([1, 4]), 0.5)
    assert fingerprint.sketch(gradient.to_sparse(), 5) == fingerprint.sketch(gradient, 5)
    begin = torch.ones(5, 3)
    asked = {"build_optimizer": lambda weights: torch.optim.SGD(weights, lr=0.5), "device": torch.device("cpu")}
    parts = SimpleNamespace(workload=workload(), **asked)
    session: Any = SimpleNamespace(parts=parts, model=nn.ParameterList([begin]), steps=1)
    updated = [begin - 0.5 * gradient]
    for given in (gradient, gradient.to_sparse()):
        ((off, _),) = probe.Plain(session, [begin]).step([begin], [given], updated, updated)
        assert off == 0


def test_the_work_of_an_optimizer_for_sparse_gradients() -> None:
    weight = nn.Parameter(torch.ones(5, 3))
    weight.grad = torch.eye(5, 3).to_sparse(1)
    counter: Any = SimpleNamespace(trained=[weight], forward=0, backward=0, convolutions=0)
    asked: Any = SimpleNamespace(build_optimizer=torch.optim.SparseAdam, device=torch.device("cpu"))
    assert work.of_training(counter, asked, 1)["optimizer_bytes"] == 7 * 4 * weight.numel()


class OnGpu(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        assert all(one.is_cuda for one in self.param_groups[0]["params"]), "as capturable ones say, and apex's"


@pytest.mark.parametrize(("optimizer", "there"), [(torch.optim.SGD, True), (OnGpu, False)])
def test_an_optimizer_may_work_on_a_gpu_alone(optimizer: Any, there: bool) -> None:
    asked = SimpleNamespace(build_optimizer=optimizer, device=torch.device("cuda"))
    session: Any = SimpleNamespace(parts=asked, model=nn.Linear(3, 2))
    assert probe.steps_on_cpu(session) == there


def test_a_checksum_is_of_the_values_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they lie in memory, and in a torch without numpy, which it does not need."""
    images = torch.randn(2, 3, 4, 4)
    tensors = [images.to(memory_format=torch.channels_last), images.bfloat16()[:, ::2], torch.ones(()), torch.ones(0)]
    whole = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    monkeypatch.setattr(torch.Tensor, "numpy", None)
    assert fingerprint.checksum(tensors) == hashlib.sha256(b"".join(whole)).hexdigest()


def test_a_sketch_is_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(777, generator=torch.Generator().manual_seed(1))
    whole = fingerprint.sketch(tensor, 5)
    monkeypatch.setattr(fingerprint, "PIECE", 64)
    assert fingerprint.sketch(tensor, 5) == pytest.approx(whole)


def job_of(computations: tuple[Computation, ...], cores: int = 1) -> Job:
    single = switching.load(*discover.resolve("single"))
    request = request_for((single,), task=narrow(), global_batch=8, warmup=1, iters=3)
    return reference(request, computations, 9, one_host(cores), 7)


def parts(computations: tuple[Computation, ...] = (numerics.computation(2),)) -> Parts:
    device = torch.device("cpu")
    return Parts(job=job_of(computations), rank=0, device=device, implementation="torch", amp="native")


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [(2, (2, 1), [1, 1]), (2, (2, 2), [2]), (8, (8, 2, 2), [2, 2, 2]), (1, (1, 1), [1])],
    ids=lambda value: str(value),
)
def test_processes_of_the_reference_share_the_cores(cores: int, threads: tuple[int, ...], expected: list[int]) -> None:
    numbered = enumerate(threads, start=1)
    computations = [Computation(replicas=number, threads=one, examples=3 * number) for number, one in numbered]
    assert [rank.threads for rank in job_of(tuple(computations), cores).ranks] == expected


def test_the_reference_is_a_loop_written_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, clock = list[int](), accumulate([0, 52, *[2] * 9], lambda before, ms: before + 1_000_000 * ms)
    monkeypatch.setattr(worker_reference, "perf_counter_ns", lambda: next(clock))  # something holds up one step
    plan: Any = SimpleNamespace(parts=parts(), probe_seed=7)
    (one_pass,) = worker_reference.perform(plan, lambda phase, of: ticks.append)["passes"]
    assert ticks == list(range(1, 1 + worker_reference.steps(parts())))
    small = parts().workload.in_small(7, 2 * EXAMPLES)
    with double_by_default():
        model = build_in_double(small)[0]
        pools = [data.batches(small, 2, range(one, one + 1), pin=False) for one in (0, 1)]
    assert {p.dtype for p in model.parameters()} == {torch.float64} and all(p.any() for p in model.parameters())
    begin = probe.State.of(model)
    for step in range(small.pool_batches):
        model.zero_grad()
        for replica in range(2):
            begin.fill_buffers(model)
            images, labels = pools[replica][step]
            (torch.nn.functional.cross_entropy(model(images), labels) / 2).backward()
        theirs = np.array(probe.sketches([p.grad for p in model.parameters()]))
        assert np.array(one_pass["gradients"][step]) == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    moved, exact = (np.array(one_pass[name][0]) for name in ("twin_gradients", "alone"))
    assert 0 < np.abs(moved - exact).max() < 1e-6 * np.abs(exact).max(), "weights moved by a rounding change little"
    assert len(one_pass["loss"]) == worker_reference.LOSSES and one_pass["step_ms"] == 2.0
    assert one_pass["loss"][0] == pytest.approx(math.log(1000), rel=0.1)


@pytest.mark.parametrize(("model", "share"), [("resnet101", 0.3), ("resnet18", 1.0), ("vit_b_16", 0.1)])
def test_a_narrow_model_has_the_same_layers(model: str, share: float) -> None:
    training = workload(model=model)
    (double, narrow), whole = build_in_double(training), build_model(training)
    assert narrow == (share < 1)
    assert [name for name, _ in double.named_parameters()] == [name for name, _ in whole.named_parameters()]
    sizes = [sum(p.numel() for p in one.parameters()) for one in (double, whole)]
    assert sizes[0] <= share * sizes[1]


def test_weights_and_batches_follow_the_seed() -> None:
    work = parts().workload
    small, other = work.in_small(7, 4), work.in_small(8, 4)
    assert (small.warmup, small.pool_batches, small.global_batch) == (1, 3, 4)
    weights = [torch.cat([p.flatten() for p in build_in_double(one)[0].parameters()]) for one in (small, small, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_gradients_that_are_not_finite_elsewhere_are_named_in_words(tmp_path: Path) -> None:
    launches = [{"launch": at, "scenario": f"ddp@{name}", "environment": name} for at, name in enumerate("ab")]
    about = document(environments={"a": {}, "b": {}}, launches=launches)
    own = {"quantity": "own", "step": 0, "tensor": 0, "position": 0}
    values = ((0, False, 1.0), (0, True, 1.0), (1, False, math.nan))
    rows = [own | {"launch": at, "twin": twin, "value": value} for at, twin, value in values]
    run = analysed(write_run(tmp_path, []))
    numbers = pd.DataFrame(rows, columns=list(NUMERICS_COLUMNS))
    (said,) = between_interpreters(replace(run, document=about, numerics=numbers))
    assert "changed beyond rounding from a to b: to numbers that are not finite in its own types" in said
