"""What a rank does about its GPUs, without one: the probe that shows its memory, and the way that NCCL took."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from weakref import WeakSet

import pytest
import torch

from bench.core.records import PROBE_MIB
from bench.worker import memory_probe, nccl_path


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


LOG = """\
node1:7:9 [0] NCCL INFO NET/IB : No device found.
node1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:7:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0
node1:7:9 [0] NCCL INFO AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
node1:7:9 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}
node1:7:9 [0] NCCL INFO AllReduce: 2097152 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nccl_path.VARIABLES:
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def test_transports_and_algorithms() -> None:
    log = nccl_path.listen()
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write(LOG)
    assert nccl_path.read(log) == {
        "transports": {"P2P/CUMEM": 2, "NET/Socket/0": 1},
        "algorithms": {"AllReduce RING/LL": [4, 1048576], "AllReduce NVLS/SIMPLE": [2097152, 2097152]},
        "reason": None,
    }


def test_nothing_is_left_of_a_rank_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never reads the log then."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = nccl_path.listen()
    assert log is not None and not [*tmp_path.iterdir()]
    os.close(log)


def test_a_log_without_channels_is_unknown() -> None:
    assert "names no channel" in nccl_path.read(nccl_path.listen())["reason"]


def test_the_log_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert nccl_path.listen() is None and os.environ["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG is set" in nccl_path.read(None)["reason"]
