"""The memory of a rank, by what it is for: read off the live objects in one more step, after all that count.

Whatever is recorded of times and peaks is read before, so looking costs a measured step nothing. Bytes are those of
storages on the rank's device, each counted once.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from bench.worker.precision import optimizers_in
from bench.worker.session import Session
from bench.worker.workload import tensors_in

MIB = 2**20

THREADS = "DataParallel computes in threads of its own, where autograd's hooks are not seen"
COMPILED = "a compiled model would be compiled again under autograd's hooks"
NOTHING = "autograd's hooks saw nothing of the step"


def held_mib(device: torch.device) -> float:
    """The memory that this process holds now: of a GPU by torch's allocator, of the CPU's memory the resident set."""
    if device.type == "cuda":
        return sum(int(torch.cuda.memory_allocated(index)) for index in range(torch.cuda.device_count())) / MIB
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


class Look:
    """The memory that a session holds before a step, and, with :meth:`forward` and :meth:`backward` in place of the
    session's own, while it takes one. All ranks do.

    ``buckets``: DDP's, in which gradients lie themselves with ``gradient_as_bucket_view``. ``gathered``: whole weights
    that FSDP2 made of shards, the most at one time. ``batch``: its copy on a GPU. ``gradients``: those that are neither
    in the buckets nor of masters; ``early_gradients``: those of them that are there when the forward pass ends.
    ``activations``: what autograd keeps for the backward pass, the most at one time; None with a ``reason``.
    """

    def __init__(self, session: Session, batch: Any) -> None:
        self.session, self.seen, model = session, Storages(session.parts.device), session.model
        seen, parameters = self.seen, self.seen.add(model.parameters())
        masters = session.masters
        logged = [one._get_ddp_logging_data() for one in ddp_of(session.module)]
        of_batch = seen.add(tensors_in(batch))
        self.bytes = {
            "parameters": parameters,
            "masters": seen.add([*masters, *(one.grad for one in masters if one.grad is not None)]),
            "optimizer": seen.add(tensors_in([list(one.state.values()) for one in optimizers_in(session.optimizer)])),
            "buffers": seen.add(model.buffers()),
            "buckets": sum(map(bucket_bytes, logged)),
            "batch": of_batch if session.parts.device.type == "cuda" else 0,
        }
        self.in_buckets = any(one["gradient_as_bucket_view"] for one in logged)
        self.reason = _unseen(session)
        self.kept = Kept(seen, gathered_by_fsdp(model))

    def forward(self, batch: Any) -> Tensor:
        with saved_tensors_hooks(self.kept.pack, self.kept.unpack) if self.reason is None else nullcontext():
            loss = self.session.forward(batch)
        self.bytes["early_gradients"] = self._gradients()
        return loss

    def backward(self, loss: Tensor) -> None:
        self.session.backward(loss)
        self.bytes |= {"gradients": self._gradients(), "gathered": self.kept.most_gathered}

    def _gradients(self) -> int:
        """Of those that are there now and were not seen before."""
        now = Storages(self.session.parts.device)
        now.known |= self.seen.known
        return 0 if self.in_buckets else now.add(self.session.kept_gradients())

    def parts(self) -> dict[str, object]:
        """In MiB, for :class:`bench.runs.launches.MemoryHeld`."""
        reason = self.reason if self.reason is not None or self.kept.most else NOTHING
        return {
            **{f"{name}_mib": size / MIB for name, size in self.bytes.items()},
            "activations_mib": None if reason else self.kept.most / MIB,
            "reason": reason,
        }


def _unseen(session: Session) -> str | None:
    """Why autograd's hooks cannot show what is kept for the backward pass."""
    if len(getattr(session.module, "device_ids", None) or ()) > 1:
        return THREADS
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in session.module.modules()):
        return COMPILED
    return None


class Storages:
    """Storages on a device, each counted once."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.known = device.type, set[int]()
        self.held: list[torch.UntypedStorage] = []  # or another one might come to lie where one of them was

    def add(self, tensors: Iterable[Tensor]) -> int:
        """The bytes of those that were not known."""
        size = 0
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage.device.type == self.device and storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.held.append(storage)
                size += storage.nbytes()
        return size


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Where its values lie; of torch's DTensor, or of a weight of DeepSpeed's stage 3, those of this rank."""
    here = getattr(tensor, "_local_tensor", getattr(tensor, "ds_tensor", tensor))
    return (here._values() if here.layout is torch.sparse_coo else here).untyped_storage()


class Kept:
    """What autograd keeps besides ``known`` storages, while its graph lives; and what FSDP2 has gathered meanwhile."""

    def __init__(self, known: Storages, gathered: list[Tensor]) -> None:
        self.gathered = [tensor.untyped_storage() for tensor in gathered]
        self.known = known.known | {storage._cdata for storage in self.gathered}
        self.device, self.holders = known.device, Counter[int]()
        self.bytes = self.most = self.most_gathered = 0

    def pack(self, tensor: Tensor) -> object:
        self._look()
        storage = storage_of(tensor)
        if storage._cdata in self.known or storage.device.type != self.device:
            return tensor
        return Holder(self, tensor, storage._cdata, storage.nbytes())

    def unpack(self, packed: object) -> Tensor:
        self._look()
        return packed.tensor if isinstance(packed, Holder) else packed

    def _look(self) -> None:
        self.most_gathered = max(self.most_gathered, sum(storage.nbytes() for storage in self.gathered))

    def change(self, key: int, size: int, by: int) -> None:
        """One holder more or less of a storage."""
        before, self.holders[key] = self.holders[key], self.holders[key] + by
        self.bytes += size * ((before + by > 0) - (before > 0))
        self.most = max(self.most, self.bytes)


class Holder:
    """In the graph in place of a tensor; it ends when autograd lets go of it."""

    def __init__(self, kept: Kept, tensor: Tensor, key: int, size: int) -> None:
        self.kept, self.tensor, self.key, self.size = kept, tensor, key, size
        kept.change(key, size, 1)

    def __del__(self) -> None:
        self.kept.change(self.key, self.size, -1)


def ddp_of(module: nn.Module) -> list[nn.parallel.DistributedDataParallel]:
    """Torch's DDP in a module, be it a wrapper or, as of ``replicate``, hooks of the model."""
    found = [one for one in module.modules() if isinstance(one, nn.parallel.DistributedDataParallel)]
    composable = sys.modules.get("torch.distributed._composable.replicate")
    hooks = None if composable is None else getattr(composable.replicate.state(module), "_ddp", None)
    return found if hooks is None else [*found, hooks]


def bucket_bytes(logged: Mapping[str, object]) -> int:
    """Of all buckets of a DDP with this logging data."""
    sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "0"
    return sum(int(size) for size in str(sizes).split(","))


def gathered_by_fsdp(model: nn.Module) -> list[Tensor]:
    """The tensors that FSDP2 gathers weights into; they have no bytes while the weights are in shards."""
    states = [module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    groups = [one for state in states for one in getattr(state, "_fsdp_param_groups", [state._fsdp_param_group])]
    return [tensor for group in groups if group for one in group.fsdp_params for tensor in one.all_gather_outputs]
