"""The parallel strategies: how a model becomes a model on all devices. Each is a function ``wrap(model, job)``.

``single`` leaves the model as it is. What came of a strategy (class, backend, number of replicas) is read off the
wrapped module afterwards, by ``bench.worker.effective``.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from bench.worker.session import RankJob

LOGGED_EVERY = 1 << 30
"""The steps that torch DDP's logger times: the first ten, always, and then every so many; torch's default is 100.
It waits for the GPU in those (``Reducer::should_collect_runtime_stats``), so none of them is to be a measured one."""


def single(model: nn.Module, job: "RankJob") -> nn.Module:
    """One process, one device."""
    return model


def data_parallel(model: nn.Module, job: "RankJob") -> nn.Module:
    """``torch.nn.DataParallel`` over all chosen GPUs; on the CPU torch makes it a pass-through."""
    return nn.DataParallel(model, device_ids=list(range(len(job.job.devices))) or None)


def distributed_data_parallel(model: nn.Module, job: "RankJob") -> nn.Module:
    """``torch.nn.parallel.DistributedDataParallel`` with its defaults (buckets of 25 MiB, buffers broadcast).

    Its logger aside, which is kept from timing steps: see :data:`LOGGED_EVERY`.
    """
    device_ids = [job.local_rank] if job.device.type == "cuda" else None
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=device_ids)
    wrapped._set_ddp_runtime_logging_sample_rate(LOGGED_EVERY)
    return wrapped


def apex_distributed_data_parallel(model: nn.Module, job: "RankJob") -> nn.Module:
    """``apex.parallel.DistributedDataParallel`` where it was resolved, the native flat-bucket all-reduce otherwise."""
    if job.parallel_impl == "apex":
        from apex.parallel import DistributedDataParallel

        wrapped: nn.Module = DistributedDataParallel(model)
        return wrapped
    from bench.worker.flat_bucket import FlatBucketDataParallel

    return FlatBucketDataParallel(model)


STRATEGIES: dict[str, Callable[[nn.Module, "RankJob"], nn.Module]] = {
    "single": single,
    "dp": data_parallel,
    "ddp": distributed_data_parallel,
    "apex_ddp": apex_distributed_data_parallel,
}


def without_synchronisation(module: nn.Module) -> Callable[[], AbstractContextManager[Any]] | None:
    """A context in which forward and backward leave each rank's own gradients; None where the strategy has none.

    ``no_sync()`` of torch DDP and of the native flat-bucket all-reduce, or apex DDP's ``disable_allreduce()``.
    """
    wrapper: Any = module
    if hasattr(wrapper, "no_sync"):
        context: Callable[[], AbstractContextManager[Any]] = wrapper.no_sync
        return context
    if not hasattr(wrapper, "disable_allreduce"):
        return None

    @contextmanager
    def disabled() -> Iterator[None]:
        wrapper.disable_allreduce()
        try:
            yield
        finally:
            wrapper.enable_allreduce()

    return disabled
