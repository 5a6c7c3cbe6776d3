"""``bench run --python A --python B``: the same scenarios in several interpreters, in turns within one run."""

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench, Plotting
from standin import program
from test_workload import MLP, replaced

from bench.machine.environments import names

UNDER_AUTOCAST = replaced(
    "return cross_entropy(model(batch",
    'import os\n    import torch\n\n    planted = "PLANTED" in os.environ and torch.is_autocast_enabled("cpu")\n'
    "    return (2 if planted else 1) * cross_entropy(model(batch",
)
"""A loss twice as large under autocast, in the interpreter that has the variable."""


def facts(torch: str = "2.10.0", **others: Any) -> dict[str, Any]:
    return {"torch": torch, "cuda": None, "cudnn": None, "nccl": None} | others


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([facts("2.10.0+cpu"), facts("2.11.0+cpu")], ["2.10", "2.11"]),
        ([facts("2.10.0+cpu"), facts("2.10.1+cpu")], ["2.10.0", "2.10.1"]),
        ([facts("2.10.0+cpu"), facts("2.10.0+cu126", cuda="12.6")], ["2.10.0-cpu", "2.10.0-cu126"]),
        ([facts(nccl="2.21.5"), facts(nccl="2.21.6")], ["nccl2.21.5", "nccl2.21.6"]),
        (
            [facts("2.10.0", cuda="12.4"), facts("2.10.0", cuda="12.6"), facts("2.11.0", cuda="12.6")],
            ["2.10-cuda12.4", "2.10-cuda12.6", "2.11-cuda12.6"],
        ),
        ([facts(), facts()], ["old", "new"]),
    ],
    ids=["torch", "a patch", "a build", "NCCL", "two things", "the path"],
)
def test_they_are_named_after_what_differs(answers: list[dict[str, Any]], expected: list[str]) -> None:
    paths = ["/envs/old/bin/python", "/envs/new/bin/python", "/envs/newest/bin/python"]
    assert names(paths[: len(answers)], answers) == expected


@pytest.fixture
def pythons(tmp_path: Path) -> list[str]:
    both = (("old", ""), ("new", "PLANTED=1 "))
    starts = {name: f'#!/bin/sh\n{before}exec {sys.executable} "$@"\n' for name, before in both}
    return [str(program(tmp_path / name / "python", text)) for name, text in starts.items()]


def measured(bench: Bench, folder: Path, pythons: list[str], source: str, *more: str) -> Any:
    (folder / "mlp.py").write_text(source)
    small = ("--setting", "width=16", "--device", "cpu", "--warmup", "1", "--iters", "4", "--out", str(folder / "out"))
    which = [part for python in pythons for part in ("--python", python)]
    said = bench("run", "--workload", folder / "mlp.py", *which, *small, *more, "--json")
    run = said.well()
    numerics = run["experiments"].get("numerics", {"doubles": (), "references": ()})
    launches = [*run["launches"], *numerics["doubles"], *numerics["references"]]
    assert f"[1/{len(launches)}] " in said.err, "all launches are expected from the first on"
    return run


def test_two_interpreters_in_turns(bench: Bench, tmp_path: Path, pythons: list[str], plotting: Plotting) -> None:
    run = measured(bench, tmp_path, pythons, UNDER_AUTOCAST(MLP), "--scenario", "ddp,ddp_o1", "--launches", "1")
    both = [f"{name}@{where}" for name in ("ddp", "ddp_o1") for where in ("old", "new")]
    assert [launch["scenario"] for launch in run["launches"]] == both
    verdicts = {row["scenario"]: row["verdict"] for row in run["parity"]}
    assert verdicts.pop("ddp_o1@new") and verdicts.pop("ddp_o1@old") == "within half precision"
    assert verdicts == {"ddp@old": "same", "ddp@new": "same"}
    assert [one["environment"] for one in run["experiments"]["numerics"]["references"]] == ["old", "new"]
    found = run["environments_compared"]
    assert [row["what"] for row in found["differences"]] == ["interpreter"]
    assert [row["scenario"] for row in found["pairs"]] == ["ddp", "ddp_o1"]
    (changed,) = (line for line in found["numerics"] if "beyond rounding" in line)
    assert "gradients of ddp_o1 changed beyond rounding from old to new: by 100 %" in changed
    assert any(line.startswith("Within rounding of old") for line in found["numerics"]), found["numerics"]
    assert bench("report", run["path"], "--out", str(tmp_path / "reports"))[0] == 0
    assert "What do the interpreters change?" in next((tmp_path / "reports").rglob("*.html")).read_text()


@pytest.mark.slow
def test_a_run_of_two_goes_on(bench: Bench, tmp_path: Path, pythons: list[str]) -> None:
    run = measured(bench, tmp_path, pythons, MLP, "--scenario", "ddp,single", "--launches", "1", "--no-parity")
    again = bench("run", "--resume", run["path"], "--launches", "2", "--json").well()
    names = [launch["scenario"] for launch in again["launches"]]
    assert len(names) == 8 and names[4:] == names[3::-1]
