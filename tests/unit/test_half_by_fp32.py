"""bf16 by way of fp32, for CPUs without instructions for it: the same numbers up to rounding, in the same types."""

from dataclasses import replace

import pytest
import torch
from conftest import planned
from torch import Tensor, nn

from bench.worker import by_fp32


def gradients(half: bool) -> tuple[dict[str, Tensor], set[torch.dtype]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 5))
    inputs, seen = torch.randn(4, 3, 8, 8), set[torch.dtype]()
    for layer in model:
        layer.register_forward_hook(lambda _layer, _inputs, output: seen.add(output.dtype))
    if half:
        model, inputs = model.bfloat16(), inputs.bfloat16()
    model(inputs).float().square().mean().backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}, seen


def test_gradients_are_those_of_bf16_up_to_rounding() -> None:
    exact, _ = gradients(half=False)
    with by_fp32.ByFp32():
        ours, types = gradients(half=True)
    assert types == {torch.bfloat16} == {one.dtype for one in ours.values()} and by_fp32.ByFp32.used
    native, _ = gradients(half=True)
    for name, one in exact.items():
        off, usual = ((made[name].float() - one).norm() / one.norm() for made in (ours, native))
        assert 0 < off < 0.08 and usual < 0.08, name


def test_gradients_of_attention_and_products_are_as_close_as_those_of_bf16() -> None:
    torch.manual_seed(0)
    given = [(2 * torch.randn(2, 4, 64, 32)).bfloat16() for _ in range(3)]

    def made(dtype: torch.dtype) -> Tensor:
        leaves = [one.to(dtype, copy=True).requires_grad_() for one in given]
        product = nn.functional.scaled_dot_product_attention(*leaves) @ leaves[0].transpose(-1, -2)
        product.float().square().sum().backward()
        return torch.cat([one.grad.float() for one in leaves if one.grad is not None])

    exact, native = made(torch.float32), made(torch.bfloat16)
    with by_fp32.ByFp32():
        ours = made(torch.bfloat16)
    assert (ours - exact).norm() < 1.5 * (native - exact).norm()


@pytest.mark.parametrize(
    ("scenario", "there", "taken"),
    [
        *(("ddp_o1", False, True), ("ddp_o1", True, False), ("ddp_o1", None, False)),
        *(("ddp", False, False), ("ddp_o1+compile", False, False)),
    ],
)
def test_where_it_is_taken(scenario: str, there: bool | None, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_fp32, "bf16_instructions", lambda: there)
    job = planned(scenario).job
    assert isinstance(by_fp32.by_fp32(job), by_fp32.ByFp32) == taken
    on_gpu = replace(job, workload=replace(job.workload, device="cuda"))
    assert not isinstance(by_fp32.by_fp32(on_gpu), by_fp32.ByFp32)
