"""The memory that a rank will need, predicted without computing, by torch's ``MemTracker`` in one fake step.

A fake tensor has a shape and a device and no values (``FakeTensorMode``), so the step takes seconds and next to no
memory. It is that of one process with this rank's part of the batch, under the same precision and switches. What the
strategy adds is arithmetic: torch DDP's buckets are as large as the gradients, and what lies in shards is divided by
the number of ranks. It runs in a diagnostic launch, after the process group has ended.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.worker.memory_parts import MIB, ddp_of, gathered_by_fsdp
from bench.worker.session import Parts, Session
from bench.worker.workload import map_tensors, tensors_in

TRACKER = "torch.distributed._tools.mem_tracker"
PARTS = ("parameters", "masters", "optimizer", "buffers", "buckets", "batch", "gradients", "activations")
GATHERED = "which whole weights FSDP2 holds at one time is known only from a run"
HOOK = "what a communication hook of DDP keeps is known only from a run"
LONGEST_REASON = 200

Sizes = Counter[str]
"""Bytes on the device by what MemTracker calls them; ``Total`` is their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """A strategy's effect on memory, read off its live objects.

    ``buckets``: torch DDP has a copy of all gradients; ``views``: the gradients lie in it. ``dealt``: the parts of
    which each of ``ranks`` ranks has its share. ``unknown``: why the peak cannot be predicted; ``refused``: why
    nothing can.
    """

    ranks: int = 1
    micro_batches: int = 1
    buckets: bool = False
    views: bool = False
    dealt: tuple[str, ...] = ()
    unknown: str | None = None
    refused: str | None = None

    @classmethod
    def of(cls, session: Session, *, rpc: bool = False) -> "Around":
        """``rpc``: whether the strategy has a part of the step done by another process."""
        logged = [one._get_ddp_logging_data() for one in ddp_of(session.module)]
        sharded = bool(gathered_by_fsdp(session.model))
        zero = hasattr(session.optimizer, "consolidate_state_dict")  # ZeroRedundancyOptimizer
        return cls(
            ranks=dist.get_world_size() if dist.is_initialized() else 1,
            micro_batches=session.micro_batches,
            buckets=bool(logged),
            views=any(one["gradient_as_bucket_view"] for one in logged),
            dealt=("parameters", "gradients", "optimizer") if sharded else ("optimizer",) * zero,
            unknown=_unknown(session, logged, sharded),
            refused=_refused(session, rpc),
        )


def _unknown(session: Session, logged: list[Mapping[str, object]], sharded: bool) -> str | None:
    if sharded:
        return GATHERED
    if any(one.get("comm_hook") for one in logged):
        return HOOK
    if logged or session.module is session.model or hasattr(session.module, "device_ids"):
        return None
    return f"what {type(session.module).__name__} keeps is known only from a run"


def _refused(session: Session, rpc: bool) -> str | None:
    parts = session.parts
    if rpc:
        return "another process does a part of the step, such as the optimizer's"
    if find_spec(TRACKER) is None:
        return f"torch {torch.__version__} has no MemTracker"
    if not parts.job.parts_of(parts.rank):
        return "this rank computes no part of the batch"
    if parts.amp == "apex":
        return "apex.amp replaces functions of torch, which fake tensors do not follow"
    if session.compiled or any(getattr(one, "_compiled_call_impl", None) for one in session.module.modules()):
        return "a compiled step allocates otherwise than the operators that MemTracker sees"
    replacing = sorted(parts.functions("module"))
    if replacing:
        return f"the switch {replacing[0]} replaces the step that MemTracker would see"
    devices = {one.device for one in session.model.parameters()} | {parts.device}
    if len(devices) > 1 or len(getattr(session.module, "device_ids", None) or ()) > 1:
        return "the step is spread over several devices of one process"
    return None


def predict(parts: Parts, around: Around, load: Callable[[], object]) -> dict[str, object]:
    """For :class:`bench.runs.experiments.MemoryForecast`: MiB by part and at the peak, None with a ``reason``."""
    found: dict[str, float | None] = dict.fromkeys((*PARTS, "peak"))
    reason = around.refused
    if reason is None:
        try:
            found |= {name: size / MIB for name, size in _tracked(parts, around, load()).items()}
            reason = around.unknown
        except Exception as error:  # noqa: BLE001  # whatever the user's functions raise on fake tensors is the finding
            what = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
            reason = f"a step of fake tensors raised {what}"
    method = f"MemTracker of torch {torch.__version__}" if found["parameters"] is not None else None
    if method and around.dealt:
        method += f"; {', '.join(around.dealt)} divided by {around.ranks} ranks"
    return {**{f"{name}_mib": size for name, size in found.items()}, "method": method, "reason": reason}


def _tracked(parts: Parts, around: Around, batch: object) -> dict[str, float]:
    """Bytes by part; ``peak`` only where it is known."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    mode, tracker = FakeTensorMode(allow_non_fake_inputs=True), MemTracker()

    @contextmanager
    def new_pass(module: nn.Module) -> Iterator[None]:
        """Of micro-batches each begins anew for the tracker, which knows one pass of a model."""
        yield
        tracker.reset_mod_stats()

    session = Session(parts, wrap=lambda model: _faked(model, mode), micro_batches=around.micro_batches, quiet=new_pass)
    model, optimizer = session.model, session.optimizer
    trained = [one for one in model.parameters() if one.requires_grad]
    in_all = sum(one.nbytes for one in trained)

    def now(kind: str = "current") -> Sizes:
        return _sizes(tracker.get_tracker_snapshot(kind), parts.device)

    tracker.track_external(model, optimizer)
    tracker.track_external([one for master in session.amp.masters for one in (master, master.grad)])
    held = now()
    batch = map_tensors(mode.from_tensor, batch)
    tracker.track_external(tensors_in(batch))
    of_batch = now()["Other"] - held["Other"]
    if around.views:
        _drop_gradients(model, trained)
    with mode, tracker:
        loss = session.forward(batch)
        forward = now()
        session.backward(loss)
        del loss
        backward, passes = now(), now("peak")["Total"]
        if around.views:
            for one in trained:
                one.grad = torch.zeros_like(one)
        optimizer.step()  # not session.optimize: a loss scaler asks fake tensors for values
        end, whole = now(), now("peak")["Total"]
    state = end["Optstate"]
    share = state / around.ranks if "optimizer" in around.dealt else float(state)
    on_host = of_batch if parts.device.type == "cpu" else 0  # made before there was a model
    known = {
        "parameters": held["Parameter"],
        "masters": held["Other"],
        "optimizer": state,
        "buffers": held["Buffer"],
        "buckets": in_all if around.buckets else 0,
        "batch": of_batch - on_host,
        "gradients": 0 if around.views else backward["Gradient"],
        "activations": forward["Activation"],
    }
    found = {name: size / around.ranks if name in around.dealt else float(size) for name, size in known.items()}
    if around.unknown is None:
        steady = max(passes - held["Optstate"], whole - state - (in_all if around.views else 0))
        found["peak"] = steady + share + known["buckets"] - on_host
    return found


def _faked(model: nn.Module, mode: Any) -> nn.Module:
    """The same model with fake tensors in the place of its own; it cannot be moved any more."""
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            held.update((name, mode.from_tensor(one)) for name, one in held.items() if one is not None)
    return model


def _drop_gradients(model: nn.Module, trained: list[nn.Parameter]) -> None:
    """Let go of each gradient as soon as it is there, as DDP does that copies it into a bucket.

    The hooks come after those of the tracker, which sets its own when the model is first called.
    """

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    def hook(module: nn.Module, inputs: object) -> None:
        for one in trained:
            one.register_post_accumulate_grad_hook(drop)
        first.remove()

    first = model.register_forward_pre_hook(hook)


def _sizes(snapshot: dict[torch.device, dict[object, int]], device: torch.device) -> Sizes:
    found = Sizes()
    for sizes in (sizes for where, sizes in snapshot.items() if where.type == device.type):
        found.update({str(getattr(kind, "value", kind)): size for kind, size in sizes.items()})
    return found
