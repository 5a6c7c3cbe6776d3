"""Data parallelism by flat buckets, after the documented behaviour of ``apex.parallel.DistributedDataParallel``.

Used where apex or CUDA is missing. Gradients go into buckets of at least ``message_size`` elements, by dtype and in the
order in which they arrive in rank 0's first backward pass. From the second pass on, a full bucket is flattened and
all-reduced at once, so that communication overlaps the rest of the pass; at its end the averages are copied back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

BROADCAST_BYTES = 250 << 20  # of weights at one time, as in torch DDP


class FlatBucketDataParallel(nn.Module):
    """Wrap ``module`` so that ``backward()`` leaves the average of all ranks' gradients in ``.grad``.

    Parameters
    ----------
    message_size : smallest number of elements of a bucket (apex's default: 10,000,000).

    Every parameter must take part in every backward pass. Raises ``RuntimeError`` in ``backward()`` where one does not.
    """

    def __init__(self, module: nn.Module, message_size: int = 10_000_000) -> None:
        super().__init__()
        self.module = module
        self.message_size = message_size
        self.world_size = dist.get_world_size()
        self.parameters_in_use = [p for p in module.parameters() if p.requires_grad]
        self.buckets: list[list[int]] | None = None
        """Parameter indices of each bucket, in the order in which the buckets are reduced; None until known."""
        self._bucket_of: dict[int, int] = {}
        self._arrived: list[int] = []
        self._missing: list[int] = []
        self._next_bucket = 0
        self._pending: list[tuple[dist.Work, Tensor, list[Tensor]]] = []
        self._callback_queued = False
        self._synchronise = True
        dist._broadcast_coalesced(dist.group.WORLD, [p.data for p in module.parameters()], BROADCAST_BYTES, 0)
        for index, parameter in enumerate(self.parameters_in_use):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context ``backward()`` keeps each rank's own gradients."""
        before, self._synchronise = self._synchronise, False
        try:
            yield
        finally:
            self._synchronise = before

    def _hook(self, index: int) -> object:
        def gradient_is_ready(_: Tensor) -> None:
            if not self._synchronise:
                return
            if not self._callback_queued:
                self._callback_queued = True
                self._arrived.clear()
                self._next_bucket = 0
                self._missing = [len(bucket) for bucket in self.buckets or []]
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._arrived.append(index)
            if self.buckets is not None:
                self._missing[self._bucket_of[index]] -= 1
                # In order only: collectives must be issued in the same order on every rank.
                while self._next_bucket < len(self.buckets) and self._missing[self._next_bucket] == 0:
                    self._start(self.buckets[self._next_bucket])
                    self._next_bucket += 1

        return gradient_is_ready

    def _start(self, bucket: list[int]) -> None:
        gradients = [gradient for index in bucket if (gradient := self.parameters_in_use[index].grad) is not None]
        flat = _flatten_dense_tensors(gradients)
        self._pending.append((dist.all_reduce(flat, async_op=True), flat, gradients))

    def _finish(self) -> None:
        """Runs when the backward pass is over (autograd's callback queue)."""
        self._callback_queued = False
        if missing := len(self.parameters_in_use) - len(self._arrived):
            what = f"{missing} parameters received no gradient in this backward pass"
            raise RuntimeError(f"{what}; every parameter must take part in the loss")
        if self.buckets is None:
            self.buckets = self._agree_on_buckets()
            self._bucket_of = {index: b for b, bucket in enumerate(self.buckets) for index in bucket}
        for bucket in self.buckets[self._next_bucket :]:
            self._start(bucket)
        for work, flat, gradients in self._pending:
            work.wait()
            flat.div_(self.world_size)
            torch._foreach_copy_(gradients, list(_unflatten_dense_tensors(flat, gradients)))
        self._pending.clear()

    def _agree_on_buckets(self) -> list[list[int]]:
        """Rank 0's order of arrival, cut into buckets by dtype, broadcast to all."""
        order = torch.tensor(self._arrived, device=self.parameters_in_use[0].device)
        dist.broadcast(order, 0)
        filling: dict[torch.dtype, list[int]] = {}
        size: dict[torch.dtype, int] = {}
        buckets = []
        for index in order.tolist():
            parameter = self.parameters_in_use[index]
            filling.setdefault(parameter.dtype, []).append(index)
            size[parameter.dtype] = size.get(parameter.dtype, 0) + parameter.numel()
            if size[parameter.dtype] >= self.message_size:
                buckets.append(filling.pop(parameter.dtype))
                del size[parameter.dtype]
        return buckets + list(filling.values())
