"""What is left of a run, and where it may be gone on with."""

import copy
from dataclasses import asdict
from typing import Any

import pytest
from conftest import request_for

from bench import discover, resume
from bench.errors import RequestError

FOUND = tuple(discover.load(*discover.resolve(name)) for name in ("single", "ddp"))
REQUEST = request_for(FOUND, launches=2, diagnose=True)


def launch(number: int, scenario: str, repeat: int, status: str = "ok") -> dict[str, Any]:
    effective = {"replicas": 2 if scenario == "ddp" else 1} if status == "ok" else None
    return {"launch": number, "scenario": scenario, "repeat": repeat, "status": status, "effective": effective}


def document(*launches: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "launches": list(launches),
        "diagnostics": [],
        "reference": None,
        "batch_search": None,
        "bench": "1",
        "request": asdict(REQUEST),
        "workload": {"hash": REQUEST.workload.hash()},
        "machine": {"host": "here", "cpu": "some", "cores_usable": 2, "memory_gib": 8.0, "gpus": []},
        "versions": {"python": "3.11.7", "torch": "2.15.0", "torchvision": "0.29.2"},
        **more,
    }


def test_what_failed_and_what_was_not_come_to_is_missing_and_what_cannot_run_is_not() -> None:
    done = resume.done(
        document(launch(0, "single", 0), launch(1, "ddp", 0, "timeout"), launch(2, "ddp", 1, "unsupported"))
    )
    assert done.missing(REQUEST, ["single", "ddp"]) == ["ddp", "single"]
    assert not done.reference and not done.diagnosed


def test_a_reference_for_too_few_replica_counts_is_computed_again() -> None:
    both = (launch(0, "single", 0), launch(1, "ddp", 0))
    reference = {"launch": 2, "status": "ok", "replica_counts": [1]}
    assert not resume.done(document(*both, reference=reference)).reference
    assert resume.done(document(*both, reference={**reference, "replica_counts": [1, 2]})).reference
    assert not resume.done(document(*both, reference={**reference, "status": "killed"})).reference


def test_the_request_comes_back_as_it_was() -> None:
    assert resume.request_of(document()) == REQUEST
    with pytest.raises(RequestError, match="another version of bench"):
        resume.request_of(document(request={**asdict(REQUEST), "frobnicate": 1}))


def test_the_same_circumstances_are_no_obstacle() -> None:
    resume.check_same(document(), document())


@pytest.mark.parametrize(
    ("part", "name", "value", "says"),
    [
        ("machine", "cpu", "another", "cpu was some and is another"),
        ("machine", "cores_usable", 4, "cores_usable was 2 and is 4"),
        ("versions", "torch", "2.16.0", "torch was 2.15.0 and is 2.16.0"),
        ("workload", "hash", "0", "the workload of this request is another one"),
    ],
)
def test_what_differs_is_named(part: str, name: str, value: Any, says: str) -> None:
    now = copy.deepcopy(document())
    now[part][name] = value
    with pytest.raises(RequestError) as caught:
        resume.check_same(document(), now)
    assert caught.value.option == "--resume" and says in caught.value.problem


def test_another_gpu_is_named() -> None:
    request = {**asdict(REQUEST), "devices": ["GPU-a"]}
    before, now = document(request=request), document(request=request)
    before["machine"]["gpus"] = [{"uuid": "GPU-a", "name": "H100"}]
    with pytest.raises(RequestError, match=r"GPUs were \[\('GPU-a', 'H100'\)\] and are \[\]"):
        resume.check_same(before, now)
