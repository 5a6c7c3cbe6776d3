"""Every strategy of the field trains on the CPU, and what it does to the numbers is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import CommandLine, in_this_process
from test_workload import MLP

from bench.analyse.parity import DIVERGED, SAME
from bench.core.errors import RequestError
from bench.seams import discover
from bench.sites.local import WorkerHost
from bench.verbs.run import _scenarios

EACH_STEP = """
from bench.seams import Scenario

SCENARIO = Scenario(summary="weights averaged in every step", strategy="averaging", options={"period": 1})
"""
WHOLE = ("ddp", "fsdp2", "fsdp2_no_reshard", "replicate", "zero1", "ddp_accumulate", "ddp_accumulate_sync")
COMPRESSED = ("ddp_fp16_hook", "ddp_bf16_hook", "ddp_powersgd")
AVERAGED = ("averaging", "post_local_sgd", "each_step")


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("strategies")
    (here / "mlp.py").write_text(MLP)
    (here / "each_step.py").write_text(EACH_STEP)
    names = ",".join([*WHOLE, *COMPRESSED, *AVERAGED]).replace("each_step", str(here / "each_step.py"))
    small = ("--device", "cpu", "--warmup", "2", "--iters", "4", "--setting", "width=32", "--out", str(here / "out"))
    with pytest.MonkeyPatch.context() as patch:
        assert (
            in_this_process(host, patch, ("run", "--workload", str(here / "mlp.py"), *small, "--scenario", names)) == 0
        )
    (found,) = (here / "out").iterdir()
    return found


@pytest.fixture(scope="module")
def document(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "run.json").read_text())
    return loaded


def test_all_strategies_are_tried_here() -> None:
    tried = {*WHOLE, *COMPRESSED, *AVERAGED}
    strategies = {name: discover.load(name, file).strategy_name for name, file in discover.names().items()}
    elsewhere = {"single", "dp", "apex_ddp", "ddp_untuned"}
    assert {strategies[name] for name in tried & strategies.keys()} | elsewhere == set(strategies.values())


def test_what_is_exchanged_whole_trains_the_same_model(document: dict[str, Any]) -> None:
    verdicts = {one["scenario"]: one["verdict"] for one in document["parity"]}
    assert {name: verdicts[name] for name in WHOLE} == dict.fromkeys(WHOLE, SAME)
    assert {verdicts[name] for name in AVERAGED} == {None}
    assert {verdicts[name] for name in COMPRESSED} == {DIVERGED}


def test_averaging_in_every_step_is_ddp(run: Path) -> None:
    steps = pd.read_parquet(run / "steps.parquet").set_index(["scenario", "rank", "step"])["loss"]
    assert np.allclose(steps["each_step"], steps["ddp"], rtol=1e-5)
    assert not np.allclose(steps["averaging"], steps["ddp"], rtol=1e-5)


def test_what_ran_has_its_options(document: dict[str, Any]) -> None:
    ran = {launch["scenario"]: launch["effective"] for launch in document["launches"]}
    assert ran["fsdp2"]["label"] == "FSDP2" and ran["fsdp2_no_reshard"]["label"] == "FSDP2 [reshard False]"
    assert ran["ddp_fp16_hook"]["label"] == "torch DDP, compressed [hook fp16]"
    assert {name for name in ran if ran[name]["weights"] == "sharded"} == {"fsdp2", "fsdp2_no_reshard"}
    assert ran["zero1"]["optimizer"].endswith("ZeroRedundancyOptimizer")
    assert (ran["ddp_accumulate"]["replicas"], ran["ddp_accumulate"]["world_size"]) == (4, 2)


def test_an_unknown_option(run_here: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EACH_STEP.replace("period", "periods"))
    said = run_here("run", "--scenario", str(tmp_path / "mine.py"), "--device", "cpu", "--out", str(tmp_path / "out"))
    assert said.returncode == 2 and "build of its strategy has no option 'periods'; choose from period" in said.stderr
    assert not (tmp_path / "out").exists()


def test_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(asked: str) -> list[str]:
        return [found.name for found in _scenarios(None, asked)]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.bench.sets]\nmine = ["ddp", "zero1"]\nwrong = "ddp"\n')
    assert names("published") == list(discover.DEFAULT)
    assert names("all") == list(discover.names())
    assert {"fsdp2", "averaging", "ddp"} <= set(names("strategies")) < set(names("all"))
    with pytest.raises(RequestError, match=r"tool\.bench\.sets\.wrong is not a list of scenarios"):
        names("mine")
    (tmp_path / "pyproject.toml").write_text('[tool.bench.sets]\nmine = ["ddp", "zero1"]\n')
    assert names("mine") == ["ddp", "zero1"]
    with pytest.raises(RequestError, match="there is no set 'strategy'; did you mean strategies"):
        names("strategy")


def test_a_set_beside_scenarios(run_here: CommandLine) -> None:
    said = run_here("run", "--set", "all", "--scenario", "ddp")
    assert said.returncode == 2 and "--set: --scenario names scenarios, too; leave one of them out" in said.stderr
