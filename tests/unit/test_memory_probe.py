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
            def __init__(self, size: int, **options: Any) -> None:
                if not room:
                    raise torch.OutOfMemoryError
                here.held_mib += size / 2**20

            def __del__(self) -> None:
                here.held_mib -= PROBE_MIB

        def forget(device: Any) -> None:
            self.reset = True

        monkeypatch.setattr(torch, "empty", Held)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)

    def tell(self, event: str, *, pid: int, stage: str) -> None:
        self.told.append((f"{event} {stage}", self.held_mib))


def test_the_probe_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_probe, "nested", lambda: True)
    device = Device(monkeypatch)
    assert memory_probe.show(device.tell, device, hold_s=0.01) >= 20e6  # type: ignore[arg-type]
    assert device.told == [("probe before", 0.0), ("probe allocated", PROBE_MIB), ("probe freed", 0.0)]
    assert device.held_mib == 0.0
    assert device.reset


def test_a_device_without_room_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_probe, "nested", lambda: True)
    device = Device(monkeypatch, room=False)
    memory_probe.show(device.tell, device, hold_s=0.0)  # type: ignore[arg-type]
    assert [event for event, _ in device.told] == ["probe before", "probe freed"]


def test_on_the_host_and_on_the_cpu_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    monkeypatch.setattr(memory_probe, "nested", lambda: False)
    memory_probe.show(device.tell, device)  # type: ignore[arg-type]
    monkeypatch.setattr(memory_probe, "nested", lambda: True)
    assert memory_probe.show(device.tell, torch.device("cpu")) == 0
    assert device.told == []
