"""What a recorder in somebody else's script reads off its objects is what a run document has."""

import ast
import ctypes
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bench.runs.launches import Effective
from bench.worker import live
from bench.worker.attached import recorder


def keys_of(module: ModuleType, name: str) -> set[object]:
    dicts = [node for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())) if isinstance(node, ast.Dict)]
    keys = [{key.value for key in one.keys if isinstance(key, ast.Constant)} for one in dicts]
    (facts,) = (found for found in keys if name in found)
    return set(facts)


def test_it_says_of_every_field_what_it_knows() -> None:
    """Its dict is written out: the recorder imports nothing of bench, so that no type keeps the two together."""
    facts = keys_of(recorder, "apex_kernels"), keys_of(live, "wrapper")
    assert set.union(*facts) == set(Effective.__dataclass_fields__) and not set.intersection(*facts)


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
