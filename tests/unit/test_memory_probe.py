"""The rank's side of the probe, without a GPU: what it says, what it holds meanwhile, and when it keeps still."""

from typing import Any
from unittest.mock import Mock
from weakref import WeakSet

import pytest
import torch

from bench.core.records import PROBE_MIB
from bench.worker import memory_probe


class Held:
    def __init__(self, size: int) -> None:
        self.mib = size / 2**20


@pytest.mark.parametrize(
    ("in_container", "device", "room", "told"),
    [
        (True, "cuda", True, [("probe before", 0.0), ("probe allocated", PROBE_MIB), ("probe freed", 0.0)]),
        (True, "cuda", False, [("probe before", 0.0), ("probe freed", 0.0)]),
        (False, "cuda", True, []),
        (True, "cpu", True, []),
    ],
)
def test_the_probe_leaves_no_trace(
    in_container: bool, device: str, room: bool, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, heard, reset = WeakSet[Held](), list[Any](), Mock()

    def allocate(size: int, **options: Any) -> Held:
        if not room:
            raise torch.OutOfMemoryError
        held.add(one := Held(size))
        return one

    def tell(event: str, *, pid: int, stage: str) -> None:
        heard.append((f"{event} {stage}", sum(one.mib for one in held)))

    monkeypatch.setattr(memory_probe, "nested", lambda: in_container)
    monkeypatch.setattr(torch, "empty", allocate)
    for name, called in {"synchronize": Mock(), "empty_cache": Mock(), "reset_peak_memory_stats": reset}.items():
        monkeypatch.setattr(torch.cuda, name, called)
    took_ns = memory_probe.show(tell, torch.device(device), hold_s=0.01)
    assert (heard, len(held), reset.called) == (told, 0, len(told) == 3)
    assert took_ns >= 10e6 * (len(told) - 1) if told else took_ns == 0
