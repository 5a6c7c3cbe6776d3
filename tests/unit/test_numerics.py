"""Every recipe trains the same model: gradients of the first step against one process that accumulates the chunks."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from conftest import Executed, launches, one_host, request_for
from standin.workloads import narrow

from bench.seams import discover, switching
from bench.worker import data
from bench.worker.workload import build_model

SAVING = """
    from bench.seams import Scenario, Strategy, rank_per_device

    SCENARIO = Scenario(summary="saves the gradients of its first step", precision={level!r},
                        strategy=Strategy(label="planted", ranks=rank_per_device, group=True))

    def build(parts):
        import torch
        session = parts.build({strategy!r})
        optimize = session.optimize
        def save_and_optimize():
            path = f"{{parts.job.logs}}/gradients{{parts.rank}}.pt"
            import os
            if not os.path.exists(path):
                named = session.model.named_parameters()
                torch.save({{name: p.grad.float().clone() for name, p in named}}, path)
            optimize()
        session.optimize = save_and_optimize
        return session
"""

WELL_CONDITIONED = {"task": narrow(image_size=64), "global_batch": 8}
"""At 32 px the last stage of a ResNet-18 has one pixel, and batch norm over a few values amplifies any rounding."""

FIRST_STEP = {"warmup": 0, "iters": 1}

Gradients = dict[str, torch.Tensor]

U_BF16 = 2.0**-9
"""Standard deviation of the relative error of rounding to bfloat16: uniform within half a unit in the last place."""


def half_bound(relus: int, u: float) -> float:
    """Bound of the relative error of the whole gradient vector at random weights.

    Rounding moves the input of ReLU number l, which batch norm makes N(0, 1), by noise of standard deviation
    d_l = u * sqrt(3 l): three roundings a layer (weight, convolution, batch norm) that add up as a random walk. That
    turns the ReLU of a fraction arctan(d_l) / pi, about d_l / pi, of the values on or off; since half of them are on,
    the squared relative error of the gradient that passes is 2 d_l / pi. The layers' errors are independent, so the
    squares add up. It goes with the root of u: this is why gradients in half differ by tens of percent while they point
    the same way. A factor of 1.5 covers what is left out (max pooling, rounding of the gradients themselves).
    """
    squares = sum(2 * u * (3 * layer) ** 0.5 / math.pi for layer in range(1, relus + 1))
    return 1.5 * math.sqrt(squares)


HALF_BOUND = half_bound(relus=17, u=U_BF16)


torch.set_num_threads(1)  # more of them wait for each other where other work shares the cores

FOUND = switching.load(*discover.resolve("ddp"))


@cache
def reference() -> Gradients:
    """fp32 gradients of one process that accumulates the chunks of the first batch; batch norm sees each chunk."""
    (planned,) = launches(request_for((FOUND,), **WELL_CONDITIONED), (FOUND,), one_host(1))
    workload, replicas = planned.job.workload, 2
    torch.manual_seed(workload.seed)
    model = build_model(workload)
    for replica in range(replicas):
        images, labels = data.batches(workload, replicas, range(replica, replica + 1), pin=False)[0]
        (torch.nn.functional.cross_entropy(model(images), labels) / replicas).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def gradients(execute: Callable[..., Executed], strategy: str, level: str) -> list[Gradients]:
    done = execute(SAVING.format(level=level, strategy=strategy), **WELL_CONDITIONED, **FIRST_STEP)
    assert done.outcome.status == "ok", done.outcome.reason
    return [torch.load(file, weights_only=True) for file in sorted(done.folder.glob("gradients*.pt"))]


def distance(ours: Gradients, theirs: Gradients) -> float:
    assert ours.keys() == theirs.keys()
    mine = torch.cat([ours[name].flatten() for name in theirs]).double()
    other = torch.cat([value.flatten() for value in theirs.values()]).double()
    return float((mine - other).norm() / other.norm())


@pytest.mark.parametrize(
    ("strategy", "level", "least", "most", "alike"),
    [
        ("ddp", "O0", 0.0, 1e-5, True),
        ("apex_ddp", "O0", 0.0, 1e-5, True),
        ("ddp", "O1", 1e-3, HALF_BOUND, True),
        ("apex_ddp", "O2", 1e-3, HALF_BOUND, True),
        ("apex_ddp", "O3", 1e-3, HALF_BOUND, True),
        ("single", "O0", HALF_BOUND, math.inf, False),
    ],
)
def test_gradients_beside_those_of_accumulated_chunks(
    execute: Callable[..., Executed], strategy: str, level: str, least: float, most: float, alike: bool
) -> None:
    """In half they are not those of fp32, and without averaging far from them."""
    first, second = gradients(execute, strategy, level)
    assert least <= distance(first, reference()) < most
    assert distance(first, second) == 0.0 if alike else distance(first, second) > HALF_BOUND
