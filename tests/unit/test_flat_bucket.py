"""The native flat-bucket all-reduce, on two real gloo ranks. Each scenario asserts in its ranks and trains nothing."""

from collections.abc import Callable

import pytest
from conftest import Executed

HEAD = '''
"""Asserts in build; what fails there ends the launch with its reason."""
from bench.seams import Scenario, Strategy

SCENARIO = Scenario(summary="asserts", strategy=Strategy(label="planted"))


def model_and_inputs(parts, **options):
    import torch
    from torch import nn
    from bench.worker.flat_bucket import FlatBucketDataParallel

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    wrapped = FlatBucketDataParallel(layers, **options)
    inputs = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    return layers, wrapped, inputs


def expected(layers, inputs):
    """The average over the ranks, from one process that has both ranks' inputs."""
    import copy

    alone = copy.deepcopy(layers)
    for parameter in alone.parameters():
        parameter.grad = None
    for part in inputs:
        (alone(part).square().mean() / len(inputs)).backward()
    return [p.grad for p in alone.parameters()]


def step(layers, wrapped, mine):
    for parameter in layers.parameters():
        parameter.grad = None
    wrapped(mine).square().mean().backward()


def same(left, right, tolerance=1e-6):
    import torch

    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def finish(parts):
    return parts.session()
'''


def check(execute: Callable[..., Executed], body: str) -> Executed:
    import textwrap

    source = textwrap.dedent(HEAD) + "\n\ndef build(parts):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    done = execute(source + "\n    return finish(parts)\n", iters=1)
    assert done.outcome.status == "ok", done.outcome.reason
    return done


@pytest.mark.parametrize("options", [{}, {"message_size": 1}, {"message_size": 300}], ids=str)
def test_gradients_are_the_average_in_every_backward_pass(execute: Callable[..., Executed], options: object) -> None:
    check(
        execute,
        f"""
        layers, wrapped, inputs = model_and_inputs(parts, **{options!r})
        for _ in range(3):  # the first builds the buckets, the later ones overlap
            step(layers, wrapped, inputs[parts.rank])
            same([p.grad for p in layers.parameters()], expected(layers, inputs))
        """,
    )


def test_buckets_fill_in_the_order_of_arrival(execute: Callable[..., Executed]) -> None:
    check(
        execute,
        """
        layers, wrapped, inputs = model_and_inputs(parts, message_size=200)
        assert wrapped.buckets is None
        step(layers, wrapped, inputs[parts.rank])
        sizes = [p.numel() for p in layers.parameters()]
        order = [index for bucket in wrapped.buckets for index in bucket]
        assert sorted(order) == list(range(6)) and set(order[:2]) == {4, 5}, order  # the last layer comes first
        filled = [sum(sizes[index] for index in bucket) for bucket in wrapped.buckets]
        assert len(filled) >= 2 and all(size >= 200 for size in filled[:-1]), filled
        """,
    )


def test_dtypes_travel_in_buckets_of_their_own(execute: Callable[..., Executed]) -> None:
    check(
        execute,
        """
        import torch
        from bench.worker.flat_bucket import FlatBucketDataParallel
        mixed = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        mixed[0].bfloat16()
        wrapped = FlatBucketDataParallel(mixed)
        wrapped(torch.randn(2, 3, 5, 5).bfloat16()).float().sum().backward()
        parameters = list(mixed.parameters())
        kinds = [{parameters[index].dtype for index in bucket} for bucket in wrapped.buckets]
        assert len(kinds) == 2 and all(len(kind) == 1 for kind in kinds), kinds
        """,
    )


def test_replicas_start_from_rank_0s_weights(execute: Callable[..., Executed]) -> None:
    check(
        execute,
        """
        import torch
        from bench.worker.flat_bucket import FlatBucketDataParallel
        torch.manual_seed(parts.rank)
        layer = torch.nn.Linear(4, 4)
        FlatBucketDataParallel(layer)
        torch.manual_seed(0)
        same(layer.parameters(), torch.nn.Linear(4, 4).parameters())
        """,
    )


def test_no_sync_leaves_local_gradients(execute: Callable[..., Executed]) -> None:
    check(
        execute,
        """
        layers, wrapped, inputs = model_and_inputs(parts)
        with wrapped.no_sync():
            step(layers, wrapped, inputs[parts.rank])
        same([p.grad for p in layers.parameters()], expected(layers, inputs[parts.rank : parts.rank + 1]))
        step(layers, wrapped, inputs[parts.rank])
        same([p.grad for p in layers.parameters()], expected(layers, inputs))
        """,
    )


def test_a_parameter_without_gradient_is_an_error_that_says_so(execute: Callable[..., Executed]) -> None:
    check(
        execute,
        """
        import torch
        from bench.worker.flat_bucket import FlatBucketDataParallel
        class Partly(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.used(x)
        try:
            FlatBucketDataParallel(Partly())(torch.ones(1, 2)).sum().backward()
        except RuntimeError as error:
            assert "2 parameters received no gradient" in str(error), error
        else:
            raise AssertionError("no error")
        """,
    )
