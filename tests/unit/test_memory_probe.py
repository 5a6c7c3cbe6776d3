"""The rank's side of the probe, without a GPU: what it says, what it holds meanwhile, and when it keeps still."""

from typing import Any

import pytest
import torch

from bench.core.records import PROBE_MIB
from bench.worker import memory_probe


class Device:
    type = "cuda"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, room: bool = True) -> None:
        self.held_mib = 0.0
        self.told: list[tuple[str, float]] = []
        self.reset = False
        here = self

        class Held:
            def __init__(self, size: int) -> None:
                here.held_mib += size / 2**20

            def __del__(self) -> None:
                here.held_mib -= PROBE_MIB

        def allocate(size: int, **options: Any) -> Held:
            if not room:
                raise torch.OutOfMemoryError
            return Held(size)

        def forget(device: Any) -> None:
            self.reset = True

        monkeypatch.setattr(torch, "empty", allocate)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)

    def tell(self, event: str, *, pid: int, stage: str) -> None:
        self.told.append((f"{event} {stage}", self.held_mib))


@pytest.mark.parametrize(
    ("in_container", "on_cpu", "room", "told"),
    [
        (True, False, True, [("probe before", 0.0), ("probe allocated", PROBE_MIB), ("probe freed", 0.0)]),
        (True, False, False, [("probe before", 0.0), ("probe freed", 0.0)]),
        (False, False, True, []),
        (True, True, True, []),
    ],
)
def test_the_probe_leaves_no_trace(
    in_container: bool, on_cpu: bool, room: bool, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_probe, "nested", lambda: in_container)
    device: Any = Device(monkeypatch, room=room)
    took_ns = memory_probe.show(device.tell, torch.device("cpu") if on_cpu else device, hold_s=0.01)
    assert (device.told, device.held_mib, device.reset) == (told, 0.0, len(told) == 3)
    assert took_ns >= 10e6 * (len(told) - 1) if told else took_ns == 0
