"""The reference that every recipe is held against: one process, fp32, that accumulates the replicas' chunks.

Batch norm sees one chunk at a time, as on a replica; no TF32. A second pass, the *twin*, starts from the same weights
moved by at most half a unit in the last place of the half type: how far it strays shows what rounding alone does. Where
few units decide (small batches and inputs) chance may make one twin stray ten times less than the next; so several ways
to move the weights are tried for a first step, and the twin is the one whose gradient strays farthest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle

import torch
from torch import Tensor, nn

from bench.worker import data, fingerprint
from bench.worker.session import Parts
from bench.worker.workload import Loss, loss_of, weight_of

CANDIDATES = 8
"""Ways to move the weights. Of first gradients of ResNet-18 in fp16 (8 of 32 px, sums in fp32, 24 seeds) 13 %
were beyond the bound that one candidate gives, 4 % beyond that of the farthest of four, and none with eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One training from the first step on.

    ``loss``: of the global batch, for every step. ``gradient``: sketch of the first step's. ``alone``: sketch of what
    the first of ``replicas`` chunks gives by itself, as if a replica forgot the others; None for one chunk.
    """

    replicas: int
    twin: bool
    loss: list[float]
    gradient: list[float]
    alone: list[float] | None


def steps(job: Parts) -> int:
    """How many steps all passes have together."""
    return 1 + CANDIDATES + (len(job.job.replica_counts) + 1) * job.job.steps


def run(job: Parts, on_step: Callable[[int], None]) -> list[dict[str, object]]:
    """The passes for every number in ``job.job.replica_counts``, and the twin for the largest of them."""
    counts = sorted(job.job.replica_counts)
    far = strays(job, counts[-1], on_step)
    wanted: list[tuple[int, int | None]] = [(count, None) for count in counts]
    wanted.append((counts[-1], far.index(max(far))))
    passes: list[Pass] = []
    for count, candidate in wanted:
        before = len(far) + 1 + len(passes) * job.job.steps
        passes.append(_train(job, count, candidate, on_step, before))
    return [asdict(done) for done in passes]


def strays(job: Parts, replicas: int, on_step: Callable[[int], None]) -> list[float]:
    """For each candidate, ||g - r|| / ||r|| of its first gradient g and the reference's r."""
    parts = _loader(job, replicas)()
    model = job.build_model()
    parameters = list(model.parameters())
    weights = [parameter.detach().clone() for parameter in parameters]
    loss = loss_of(job.workload)
    found: list[float] = []
    unmoved: list[Tensor] = []
    for candidate in (None, *range(CANDIDATES)):
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_copy_(parameters, weights)
        if candidate is not None:
            perturb(parameters, unit_roundoff(job.half), job.workload.seed + candidate)
        with torch.random.fork_rng([job.device] if job.device.type == "cuda" else []):  # the same dropout for all
            for _ in _chunks(model, loss, parts):
                pass
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        if candidate is None:
            unmoved = gradients
        else:
            found.append(float(_norm(torch._foreach_sub(gradients, unmoved)) / _norm(unmoved)))
        on_step(1 + len(found))
    return found


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all elements as one vector: a scalar, so that one by nothing is NaN and no error."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)).double())
    return norm


Chunks = list[tuple[data.Batch, float]]
"""Each chunk of a batch with what its loss is divided by in the mean of the batch."""


def _loader(job: Parts, replicas: int) -> Callable[[], Chunks]:
    pin, weight = job.device.type == "cuda", weight_of(job.workload)
    pools = [data.batches(job.workload, replicas, range(chunk, chunk + 1), pin=pin) for chunk in range(replicas)]
    divisors = cycle([divisors_of([weight(chunk) for chunk in chunks]) for chunks in zip(*pools, strict=True)])
    loads = [data.loader(pool, job.device) for pool in pools]
    return lambda: list(zip((load() for load in loads), next(divisors), strict=True))


def divisors_of(weights: list[float]) -> list[float]:
    """What the loss of each chunk is divided by: all chunks together are then the mean of the batch."""
    return [float(sum(weights) / weight) if weight else math.inf for weight in weights]


def _chunks(model: nn.Module, criterion: Loss, parts: Chunks) -> Iterator[Tensor]:
    """The share of each chunk in the mean loss, after its gradient was added to ``.grad``."""
    for batch, divisor in parts:
        loss = criterion(model, batch) / divisor
        loss.backward()
        yield loss.detach()


def _train(job: Parts, replicas: int, candidate: int | None, on_step: Callable[[int], None], before: int) -> Pass:
    """``candidate``: of the twin, how its weights are moved. ``before``: steps of earlier passes."""
    load = _loader(job, replicas)
    model = job.build_model()
    parameters = list(model.parameters())
    if candidate is not None:
        perturb(parameters, unit_roundoff(job.half), job.workload.seed + candidate)
    optimizer, loss = job.build_optimizer(parameters), loss_of(job.workload)
    losses: list[Tensor] = []
    gradient: list[float] = []
    alone: list[float] | None = None
    for step in range(job.job.steps):
        optimizer.zero_grad(set_to_none=True)
        parts, shares = load(), []
        for share in _chunks(model, loss, parts):
            shares.append(share)
            if step == 0 and replicas > 1 and alone is None:
                alone = [value * parts[0][1] for value in fingerprint.sketch([p.grad for p in parameters])]
        if step == 0:
            gradient = fingerprint.sketch([p.grad for p in parameters])
        optimizer.step()
        losses.append(torch.stack(shares).sum())
        on_step(before + step + 1)
    loss_values = torch.stack(losses).double().cpu().tolist()
    return Pass(replicas=replicas, twin=candidate is not None, loss=loss_values, gradient=gradient, alone=alone)


def perturb(parameters: list[nn.Parameter], relative: float, seed: int) -> None:
    """Multiply every element by 1 + ``relative`` * x, x uniform in [-1, 1): what rounding does, at its worst."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in parameters:
            noise = torch.rand(parameter.shape, generator=generator) * 2 - 1
            parameter.mul_((1 + relative * noise).to(parameter.device))


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: 2**-8 for bf16, 2**-11 for fp16, 2**-24 for fp32."""
    return float(torch.finfo(dtype).eps) / 2
