"""What the native flat-bucket all-reduce does, asserted in each of two real gloo ranks."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import TestCase

import torch
from torch import Tensor, nn

from bench.worker.flat_bucket import FlatBucketDataParallel


def check(rank: int) -> None:
    starts_from_rank_0s_weights(rank)
    for options in ({}, {"message_size": 1}, {"message_size": 300}):
        averages_in_every_backward_pass(rank, options)
    fills_buckets_in_the_order_of_arrival(rank)
    has_buckets_for_each_dtype()
    keeps_local_gradients_without_sync(rank)
    names_parameters_without_gradient()


def model_and_inputs(**options: Any) -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    wrapped = FlatBucketDataParallel(layers, **options)
    return layers, wrapped, torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))


def averaged(layers: nn.Module, inputs: Tensor) -> Iterator[Any]:
    """The mean of the gradients over the ranks, from one process that has all of their inputs."""
    alone = copy.deepcopy(layers)
    alone.zero_grad()
    for part in inputs:
        (alone(part).square().mean() / len(inputs)).backward()
    return (parameter.grad for parameter in alone.parameters())


def made(layers: nn.Module, wrapped: Any, mine: Tensor) -> Iterator[Any]:
    layers.zero_grad()
    wrapped(mine).square().mean().backward()
    return (parameter.grad for parameter in layers.parameters())


def same(left: Iterable[Tensor], right: Iterable[Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def starts_from_rank_0s_weights(rank: int) -> None:
    torch.manual_seed(rank)
    layer = nn.Linear(4, 4)
    FlatBucketDataParallel(layer)
    torch.manual_seed(0)
    same(layer.parameters(), nn.Linear(4, 4).parameters())


def averages_in_every_backward_pass(rank: int, options: dict[str, int]) -> None:
    layers, wrapped, inputs = model_and_inputs(**options)
    for _ in range(3):  # the first builds the buckets, the later ones overlap
        same(made(layers, wrapped, inputs[rank]), averaged(layers, inputs))


def fills_buckets_in_the_order_of_arrival(rank: int) -> None:
    layers, wrapped, inputs = model_and_inputs(message_size=200)
    assert wrapped.buckets is None
    made(layers, wrapped, inputs[rank])
    sizes = [parameter.numel() for parameter in layers.parameters()]
    order = [index for bucket in wrapped.buckets for index in bucket]
    assert sorted(order) == list(range(6)) and set(order[:2]) == {4, 5}, order  # the last layer comes first
    filled = [sum(sizes[index] for index in bucket) for bucket in wrapped.buckets]
    assert len(filled) >= 2 and all(size >= 200 for size in filled[:-1]), filled


def has_buckets_for_each_dtype() -> None:
    mixed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    mixed[0].bfloat16()
    wrapped: Any = FlatBucketDataParallel(mixed)
    wrapped(torch.randn(2, 3, 5, 5).bfloat16()).float().sum().backward()
    parameters = list(mixed.parameters())
    dtypes = [{parameters[index].dtype for index in bucket} for bucket in wrapped.buckets]
    assert len(dtypes) == 2 and all(len(one) == 1 for one in dtypes), dtypes


def keeps_local_gradients_without_sync(rank: int) -> None:
    layers, wrapped, inputs = model_and_inputs()
    with wrapped.no_sync():
        same(made(layers, wrapped, inputs[rank]), averaged(layers, inputs[rank : rank + 1]))
    same(made(layers, wrapped, inputs[rank]), averaged(layers, inputs))


def names_parameters_without_gradient() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model.forward = lambda x: model[0](x)
    with TestCase().assertRaisesRegex(RuntimeError, "2 parameters received no gradient"):
        FlatBucketDataParallel(model)(torch.ones(1, 2)).sum().backward()
