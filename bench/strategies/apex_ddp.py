"""``apex.parallel.DistributedDataParallel``; where apex is missing, bench's own flat-bucket all-reduce instead."""

from contextlib import contextmanager

from bench.seams import Implementation, Strategy, ddp_recipe

STRATEGY = Strategy(
    label="apex DDP",
    implementations=(
        Implementation(
            name="apex",
            label="apex DDP",
            wrapper="apex.parallel.distributed.DistributedDataParallel",
            needs="apex.parallel",
        ),
        Implementation(
            name="native", label="native flat-bucket", wrapper="bench.worker.flat_bucket.FlatBucketDataParallel"
        ),
    ),
    hue="teal",
    dash="dashed",
)


def build(parts):
    if parts.implementation == "apex":
        from apex.parallel import DistributedDataParallel

        return parts.session(wrap=DistributedDataParallel, quiet=without_allreduce)
    from bench.worker.flat_bucket import FlatBucketDataParallel

    return parts.session(wrap=FlatBucketDataParallel, quiet=lambda module: module.no_sync())


@contextmanager
def without_allreduce(module):
    """Apex's way to leave each rank its own gradients."""
    module.disable_allreduce()
    try:
        yield
    finally:
        module.enable_allreduce()


def recipe():
    return ddp_recipe(
        {"bucket_cap_mb": "40"},
        wrap="module.broadcast_buffers = False",  # as a keyword it warns from torch 2.15 on
        note="It has torch DDP in place of apex's, with buckets of that size, so its speed may differ.",
    )
