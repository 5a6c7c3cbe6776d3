"""Whole runs with switches: from the command line to the record, the findings and the page."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import in_this_process
from standin.schemas import is_valid
from standin.workloads import narrow

from bench.sites.local import WorkerHost

MODEL = ("--workload", narrow().file, "--model", "resnet18", "--image-size", "32")
SMALL = ("--device", "cpu", *MODEL, "--global-batch", "4", "--warmup", "1")
PLAIN, VIEW, HALF = ASKED = (
    "ddp+channels_last",
    "ddp+bucket_mb=3+bucket_view+channels_last+checkpointing+static_graph",
    "ddp_o1+bf16+foreach",
)
IDLE = {HALF: {"bf16": "half is bf16 on the CPU anyway"}}
"""By scenario the switches that do nothing here."""


def run(host: WorkerHost, here: Path, *options: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        assert in_this_process(host, patch, ("run", *SMALL, "--out", str(here), *options)) == 0
    (found,) = here.iterdir()
    return found


@pytest.fixture(scope="module")
def folder(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(host, tmp_path_factory.mktemp("switched"), "--scenario", ",".join(ASKED), "--iters", "2")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    assert is_valid(folder)
    loaded: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return loaded


def test_each_has_its_switches_and_says_which_took_effect(document: dict[str, Any]) -> None:
    launches = {one["scenario"]: one for one in document["launches"]}
    assert {name: one["status"] for name, one in launches.items()} == dict.fromkeys(ASKED, "ok")
    for name, launch in launches.items():
        ran = launch["effective"]
        assert ran["switches"] == dict.fromkeys(name.split("+")[1:]) | IDLE.get(name, {})
        assert ran["memory_format"] == ("channels_last" if "channels_last" in name else "contiguous")
    label = launches[VIEW]["effective"]["label"]
    assert label == "torch DDP + buckets of 3 MiB + bucket_view + channels_last + checkpointing + static_graph"
    memory = {name: launch["ranks"][0]["memory"] for name, launch in launches.items()}
    assert memory[VIEW]["gradients_mib"] == 0 < memory[PLAIN]["gradients_mib"], "they lie in the buckets"
    assert memory[VIEW]["activations_mib"] < memory[PLAIN]["activations_mib"]


def test_they_train_the_model_of_the_reference(document: dict[str, Any]) -> None:
    verdicts = {one["scenario"]: one["verdict"] for one in document["parity"]}
    assert not {"diverged", "not finite", None} & set(verdicts.values()), verdicts


def test_what_had_no_effect_is_a_finding(document: dict[str, Any]) -> None:
    found = {one["scenario"]: one["text"] for one in document["validity"] if one["code"] == "no effect"}
    assert found == {HALF: "bf16 was on and had no effect: half is bf16 on the CPU anyway"}
