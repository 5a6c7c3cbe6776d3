"""The reference that every recipe is held against: one process that accumulates the replicas' chunks.

It trains in fp32, without TF32, from the first step to the last; batch norm sees one chunk at a time, as on a replica.
A second training, the *twin*, starts from the same weights moved by at most half a unit in the last place of the half
type: how far it strays shows what rounding alone does. Where few units decide (small batches and inputs) chance may
make one twin stray ten times less than the next; so several ways to move the weights are tried for a first step, and
the twin is the one whose gradient strays farthest. A third training is moved by a rounding in fp32: nothing that
computes in fp32 strays much farther. What launches trained in half it trains in half, too, at each precision level.

Then it does the steps of the probe (``bench.worker.probe``) once in each way in which a launch computed: at its
precision level, and with its number of threads, so that on the same kernels both round alike.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from bench.core.records import Computation
from bench.worker import data, probe
from bench.worker.precision import Amp, precision_of, updated, use_tf32
from bench.worker.session import Parts
from bench.worker.workload import Forward, Loss, loss_of, tensors_in, weight_of

CANDIDATES = 8
"""Ways to move the weights. Of first gradients of ResNet-18 in fp16 (8 of 32 px, sums in fp32, 24 seeds) 13 %
were beyond the bound that one candidate gives, 4 % beyond that of the farthest of four, and none with eight."""

PROBE_TWINS = 2
"""Ways to move the weights of the probe by a rounding in fp32."""

U_FP32 = 2.0**-24
LOSS_SCALE = 2.0**16
"""What a dynamic loss scale begins with."""

Sketches = list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One training from the first step on, or one probe.

    ``loss``: of the global batch, for every step. ``trained``: sketches of what all steps did to each tensor. Of a
    probe, by step and tensor, ``gradients``, and ``buffers``, how those of the first replica changed. ``alone``: as
    ``gradients``, what the first of several chunks gives by itself, as if a replica forgot the others.
    """

    computation: Computation
    twin: bool = False
    loss: list[float] = field(default_factory=list)
    trained: Sketches = field(default_factory=list)
    gradients: list[Sketches] = field(default_factory=list)
    buffers: list[Sketches] = field(default_factory=list)
    alone: list[Sketches] = field(default_factory=list)


def fp32(computations: Sequence[Computation]) -> list[Computation]:
    """What must be computed in fp32 for these: each number of replicas, with each number of threads."""
    found = {(one.replicas, one.threads) for one in computations}
    return [
        Computation(replicas=replicas, threads=threads, precision="O0", dtype="float32")
        for replicas, threads in sorted(found)
    ]


def steps(job: Parts) -> int:
    """How many steps all passes have together."""
    plain, wanted = fp32(job.job.computations), job.job.computations
    probes = len({*plain, *wanted}) + PROBE_TWINS * len(plain)
    return 1 + CANDIDATES + (len({*plain, *wanted}) + 2) * job.job.steps + probes * probe.STEPS


def run(job: Parts, probe_seed: int, on_step: Callable[[int], None]) -> list[dict[str, object]]:
    """The trainings in fp32, and the two twins, in half and in fp32, for the largest number of replicas; the trainings
    in half; then the probes, each in fp32 too, with twins."""
    done = iter(range(1, 1 + steps(job)))

    def tick() -> None:
        on_step(next(done))

    plain = fp32(job.job.computations)
    _compute_as(plain[-1])
    far = strays(job, plain[-1].replicas, tick)
    passes = [_train(job, one, tick) for one in plain]
    for unit, candidate in ((unit_roundoff(job.half), far.index(max(far))), (U_FP32, 0)):
        passes.append(_train(job, plain[-1], tick, (unit, job.workload.seed + candidate)))
    ways = list(dict.fromkeys((*plain, *job.job.computations)))
    passes += [_train(job, one, tick) for one in ways[len(plain) :]]
    drawn = probe.drawn(job, probe_seed)
    begin = probe.State.of(drawn)
    for one in ways:
        twins = PROBE_TWINS if one in plain else 0
        passes += [_probe(drawn, one, begin, twin, tick) for twin in (None, *range(twins))]
    return [asdict(done) for done in passes]


def _compute_as(computation: Computation) -> None:
    if computation.threads:
        torch.set_num_threads(computation.threads)
    use_tf32(*computation.tf32)


def strays(job: Parts, replicas: int, tick: Callable[[], None]) -> list[float]:
    """For each candidate, ||g - r|| / ||r|| of its first gradient g and the reference's r."""
    parts = _loader(job, replicas)()
    model = job.build_model()
    amp = Amp(precision_of("O0", job.half), job.device, job.build_optimizer)
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
            for _ in _chunks(amp, model, loss, parts):
                pass
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        if candidate is None:
            unmoved = gradients
        else:
            found.append(float(_norm(torch._foreach_sub(gradients, unmoved)) / _norm(unmoved)))
        tick()
    return found


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all elements as one vector: a scalar, so that one by nothing is NaN and no error."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)).double())
    return norm


Chunks = list[tuple[data.Batch, float]]
"""Each chunk of a batch with what its loss is divided by in the mean of the batch."""


def _loader(job: Parts, replicas: int) -> Callable[[], Chunks]:
    weight = weight_of(job.workload) or (lambda batch: 1.0)
    load = data.feeds(job.workload, replicas, [range(chunk, chunk + 1) for chunk in range(replicas)], job.device)

    def chunks() -> Chunks:
        parts = [load() for _ in range(replicas)]
        return list(zip(parts, divisors_of([float(weight(part)) for part in parts]), strict=True))

    return chunks


def divisors_of(weights: list[float]) -> list[float]:
    """What the loss of each chunk is divided by: all chunks together are then the mean of the batch."""
    return [float(sum(weights) / weight) if weight else math.inf for weight in weights]


def _chunks(amp: Amp, call: Forward, criterion: Loss, parts: Chunks) -> Iterator[Tensor]:
    """The share of each chunk in the mean loss, after its gradient was added to ``.grad``. All draw the same at random
    (dropout), as ranks do that began with one seed."""
    for number, (batch, divisor) in enumerate(parts, start=1):
        with torch.random.fork_rng(_devices(parts), enabled=number < len(parts)), amp.context():
            loss = criterion(call, batch) / divisor
        amp.backward(loss)
        yield loss.detach()


def _devices(parts: Chunks) -> list[torch.device]:
    """The GPUs that hold these parts."""
    return list({tensor.device for batch, _ in parts for tensor in tensors_in(batch) if tensor.is_cuda})


def _train(
    job: Parts, computation: Computation, tick: Callable[[], None], moved: tuple[float, int] | None = None
) -> Pass:
    """``moved``: of a twin, how far its weights are moved at most, and the seed of how."""
    _compute_as(computation)
    load, loss = _loader(job, computation.replicas), loss_of(job.workload)
    model = job.build_model()
    begin = [parameter.detach().clone() for parameter in model.parameters()]
    if moved is not None:
        perturb(list(model.parameters()), *moved)
    amp = _amp(job, computation)
    call = amp.around(amp.cast(model))
    optimizer = amp.prepare(model)
    losses: list[Tensor] = []
    for _ in range(job.job.steps):
        amp.zero_grad()
        losses.append(torch.stack(list(_chunks(amp, call, loss, load()))).sum())
        amp.step()
        tick()
    trained = [tensor.detach().float() for tensor in updated(model, optimizer)]
    return Pass(
        computation=computation,
        twin=moved is not None,
        loss=torch.stack(losses).double().cpu().tolist(),
        trained=probe.sketches(torch._foreach_sub(trained, begin)),
    )


def _amp(job: Parts, computation: Computation) -> Amp:
    precision = precision_of(computation.precision, getattr(torch, computation.dtype))
    return Amp(precision, job.device, job.build_optimizer)


def _probe(
    job: Parts, computation: Computation, begin: probe.State, twin: int | None, tick: Callable[[], None]
) -> Pass:
    """The gradients of the probe's steps. ``job``: as from :func:`bench.worker.probe.drawn`. ``twin``: how its weights
    are moved."""
    _compute_as(computation)
    amp = _amp(job, computation)
    model = amp.cast(job.build_model())
    call, criterion, load = amp.around(model), loss_of(job.workload), _loader(job, computation.replicas)
    parameters = list(model.parameters())
    found = Pass(computation=computation, twin=twin is not None)
    scale = LOSS_SCALE if amp.precision.scaled else 1.0

    def chunk(batch: data.Batch, divisor: float, step: int) -> None:
        begin.fill_buffers(model)
        with probe.alike(job.workload.seed + step, job.device):
            with amp.context():
                loss = criterion(call, batch) / divisor
            (scale * loss).backward()

    for step in range(probe.STEPS):
        with torch.no_grad():
            for parameter, weight in zip(parameters, begin.weights, strict=True):
                parameter.copy_(weight)
        if twin is not None:
            perturb(parameters, U_FP32, job.workload.seed + twin)
        (first, divisor), *others = load()
        while True:
            model.zero_grad(set_to_none=True)
            chunk(first, divisor, step)
            buffers = probe.sketches(begin.changes(model))
            alone = _divided(parameters, scale / divisor)
            for batch, share in others:
                chunk(batch, share, step)
            gradients = _divided(parameters, scale)
            if scale <= 1.0 or all(one is None or bool(one.isfinite().all()) for one in gradients):
                break
            scale /= 2
        found.gradients.append(probe.sketches(gradients))
        found.buffers.append(buffers)
        if others and twin is None:
            found.alone.append(probe.sketches(alone))
        tick()
    return found


def _divided(parameters: Sequence[Tensor], divisor: float) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.float() / divisor for parameter in parameters]


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
