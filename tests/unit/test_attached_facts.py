"""What a recorder in somebody else's script reads off its objects is what a run document has."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.worker import live
from bench.worker.attached import recorder


def test_a_model_may_have_no_length() -> None:
    """As DDP within torch.compile has none, whose module asks it."""

    class Unsized(torch.nn.Linear):
        def __len__(self) -> int:
            raise TypeError

    state, model = recorder.State(), Unsized(1, 1)
    about = recorder._about(torch.optim.SGD(model.parameters()), torch.device("cpu"), state)
    state.watch.stop()
    assert about["effective"]["model"].endswith("Unsized")


def test_the_driver_tells_a_uuid_that_torch_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch before 2.4 has none among the properties of a GPU."""

    def get(handle: Any, index: int) -> None:
        handle._obj.value = index

    def get_uuid(uuid: Any, handle: Any) -> None:
        uuid[:] = range(handle.value, handle.value + 16)

    driver = SimpleNamespace(cuDeviceGet=get, cuDeviceGetUuid=get_uuid)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.get)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="GPU"))
    assert live.device_uuid(torch.device("cuda", 1)) == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
