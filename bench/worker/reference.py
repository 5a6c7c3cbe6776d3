"""The reference that every recipe is held against: one process, fp32, that accumulates the replicas' chunks.

Batch norm sees one chunk at a time, as it does on a replica. A second pass, the *twin*, starts from the same weights
moved by at most half a unit in the last place of the half type: how far it strays from the reference shows what
rounding alone does to this model, with these data, over these steps. Strict fp32: no TF32.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bench.worker import data, fingerprint
from bench.worker.session import RankJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One training from the first step on.

    ``replicas``: into how many chunks each batch is cut. ``loss``: of the global batch, for every step, warm-up
    included. ``gradient``: sketch of the first step's (see ``bench.worker.fingerprint``). ``alone``: sketch of what the
    first chunk gives by itself, the gradient of a replica that forgets the others; None for one chunk.
    """

    replicas: int
    twin: bool
    loss: list[float]
    gradient: list[float]
    alone: list[float] | None


def steps(job: RankJob) -> int:
    """How many steps all passes have together."""
    return (len(job.job.replica_counts) + 1) * job.job.steps


def run(job: RankJob, on_step: Callable[[int], None]) -> list[dict[str, object]]:
    """The passes for every number in ``job.job.replica_counts``, and the twin for the largest of them."""
    counts = sorted(job.job.replica_counts)
    wanted = [(count, False) for count in counts] + [(counts[-1], True)]
    passes: list[Pass] = []
    for count, twin in wanted:
        passes.append(_train(job, count, twin, partial(_later, on_step, len(passes) * job.job.steps)))
    return [asdict(done) for done in passes]


def _later(on_step: Callable[[int], None], steps: int, step: int) -> None:
    """Tell of ``step`` as one that comes ``steps`` later."""
    on_step(steps + step)


def _train(job: RankJob, replicas: int, twin: bool, on_step: Callable[[int], None]) -> Pass:
    pin = job.device.type == "cuda"
    pools = [data.batches(job.workload, replicas, range(chunk, chunk + 1), pin=pin) for chunk in range(replicas)]
    loaders = [data.loader(pool, job.device) for pool in pools]
    model = job.build_model()
    parameters = list(model.parameters())
    if twin:
        perturb(parameters, unit_roundoff(job.half), job.workload.seed)
    optimizer = job.build_optimizer(parameters)
    criterion = nn.CrossEntropyLoss()
    losses: list[Tensor] = []
    gradient: list[float] = []
    alone: list[float] | None = None
    for step in range(job.job.steps):
        optimizer.zero_grad(set_to_none=True)
        parts = []
        for load in loaders:
            images, labels = load()
            loss = criterion(model(images), labels)
            (loss / replicas).backward()
            parts.append(loss.detach())
            if step == 0 and replicas > 1 and alone is None:
                alone = [value * replicas for value in fingerprint.sketch([p.grad for p in parameters])]
        if step == 0:
            gradient = fingerprint.sketch([p.grad for p in parameters])
        optimizer.step()
        losses.append(torch.stack(parts).mean())
        on_step(step + 1)
    loss_values = torch.stack(losses).double().cpu().tolist()
    return Pass(replicas=replicas, twin=twin, loss=loss_values, gradient=gradient, alone=alone)


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
