"""Every strategy of the field trains on the CPU, and what it does to the numbers is known."""

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from conftest import Bench, done_here, needs_fsdp2
from standin import refusal, sessions
from standin.planted import planted
from standin.schemas import document_in
from standin.workloads import tiny
from test_workload import MLP

from bench.analyse.parity import BY_DESIGN, SAME
from bench.core.errors import RequestError
from bench.seams import discover, switching
from bench.seams.obstacle import obstacle
from bench.sites.local import WorkerHost
from bench.verbs.sets import scenarios_of

EACH_STEP = """
from bench.seams import Scenario

SCENARIO = Scenario(summary="weights averaged in every step", strategy="averaging", options={"period": 1})
"""
VIEW = planted("""
    from torch.nn.parallel import DistributedDataParallel

    return parts.session(wrap=lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True))
""")
OWN = {"each_step": EACH_STEP, "view": VIEW}
WHOLE = ("ddp", "fsdp2", "fsdp2_no_reshard", "hsdp", "replicate", "zero1", "ddp_accumulate", "ddp_accumulate_sync")
WHOLE = (*WHOLE, "parameter_server")
COMPRESSED = ("ddp_fp16_hook", "ddp_bf16_hook", "ddp_powersgd")
AVERAGED = ("averaging", "post_local_sgd", "each_step")


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("strategies")
    (here / "mlp.py").write_text(MLP.replace("lr=0.01", "lr=0.01, momentum=0.9"))
    for name, text in OWN.items():
        (here / f"{name}.py").write_text(text)
    asked = [*WHOLE, *COMPRESSED, *AVERAGED, "ddp_o2", "view", "fsdp2+o1", "fsdp2_half"]
    names = ",".join(str(here / f"{name}.py") if name in OWN else name for name in asked)
    small = ("--device", "cpu", "--warmup", "2", "--iters", "4", "--setting", "width=32", "--scenario", names)
    return done_here(host, here / "out", "run", "--workload", str(here / "mlp.py"), *small)


@pytest.fixture(scope="module")
def document(run: Path) -> dict[str, Any]:
    return document_in(run.parent)


def test_all_strategies_are_tried_here() -> None:
    tried = {*WHOLE, *COMPRESSED, *AVERAGED}
    strategies = {name: switching.load(name, file).strategy_name for name, file in discover.names().items()}
    elsewhere = {"single", "dp", "apex_ddp", "ddp_two_devices", "ddp_elastic", "accelerate_ddp", "lightning_ddp"}
    elsewhere |= {"deepspeed", "deepspeed_2", "deepspeed_3", "ddp_accumulate_4", "ddp_accumulate_8"}
    assert {strategies[name] for name in tried & strategies.keys()} | elsewhere == set(strategies.values())


@needs_fsdp2
def test_what_is_exchanged_whole_trains_the_same_model(document: dict[str, Any]) -> None:
    verdicts = {one["scenario"]: one["verdict"] for one in document["parity"]}
    assert {name: verdicts[name] for name in WHOLE} == dict.fromkeys(WHOLE, SAME)
    assert {verdicts[name] for name in (*AVERAGED, *COMPRESSED)} == {BY_DESIGN}


def test_compression_by_powersgd_has_several_buckets(run_here: Bench, tmp_path: Path) -> None:
    """On the CPU, too, where exchanges that met in another order on each rank hung, or ended gloo."""
    names = ",".join(f"ddp_powersgd+{one}bucket_mb=1" for one in ("find_unused+", "o2+", ""))
    small = ("--workload", "gpt", "--setting", "width=256", "--device", "cpu", "--iters", "3", "--no-parity")
    assert run_here("run", *small, "--scenario", names, "--out", str(tmp_path / "out")).code == 0


def test_a_server_is_no_replica(document: dict[str, Any]) -> None:
    (found,) = [one for one in document["launches"] if one["scenario"] == "parameter_server"]
    assert (found["processes"], found["replicas"], found["effective"]["replicas"]) == (3, 2, 2)
    assert found["checks"]["ranks_differ"] == [] and found["checks"]["final_weights_alike"]
    assert parts_of(document, "parameter_server", 2)["optimizer"] == WEIGHTS
    assert parts_of(document, "parameter_server", 0)["optimizer"] == 0


def test_a_model_over_two_devices() -> None:
    import torch
    from torch import nn

    strategy, module = discover.load_strategy("ddp_two_devices", discover.names(discover.STRATEGY)["ddp_two_devices"])
    layers = [nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 8)]
    model, here = nn.Sequential(nn.Sequential(*layers[:2]), *layers[2:]), torch.device("cpu")
    before = model(torch.ones(2, 8))
    module.span(model, here, here)
    assert torch.equal(model(torch.ones(2, 8)), before)
    module.span(model, here, torch.device("meta"))
    assert [parameter.device.type for parameter in model.parameters()] == ["cpu"] * 4 + ["meta"] * 4
    assert [rank.devices for rank in strategy.ranks(4)] == [(0, 1), (2, 3)]
    assert "two GPUs for each rank and this is the CPU" in str(strategy.obstacle("cpu", 2))
    assert "3 were chosen" in str(strategy.obstacle("cuda", 3)) and strategy.obstacle("cuda", 2) is None


def test_groups_of_ranks_are_equal() -> None:
    hsdp, fsdp2 = (switching.load(*discover.resolve(name)) for name in ("hsdp", "fsdp2"))
    said = "2 groups cannot have equal shares of 3 ranks; choose a multiple of 2"
    assert [hsdp.obstacle("cuda", 3), hsdp.obstacle("cuda", 4), fsdp2.obstacle("cuda", 3)] == [said, None, None]


def test_lightning_goes_by_the_variables_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within Slurm it would take Slurm's, which are those of one task on each host."""
    names = ("", ".fabric", ".fabric.strategies", ".fabric.plugins", ".fabric.plugins.environments")
    modules = {name: Mock() for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"lightning{name}", module)
    fabric = modules[".fabric"].Fabric.return_value
    fabric.setup_module = fabric.setup_optimizers = lambda given: given
    monkeypatch.setenv("NODE_RANK", "7")
    parts = sessions.parts_of(switching.load(*discover.resolve("lightning_ddp")), task=tiny())
    discover.load_strategy(parts.job.strategy, parts.job.strategy_file)[1].build(parts)
    (how,) = modules[".fabric.strategies"].DDPStrategy.call_args_list
    environment = modules[".fabric.plugins.environments"].LightningEnvironment.return_value
    assert how.kwargs["cluster_environment"] is environment and os.environ["NODE_RANK"] == "0"


def test_averaging_in_every_step_is_ddp(run: Path) -> None:
    steps = pd.read_parquet(run / "steps.parquet").set_index(["scenario", "rank", "step"])["loss"]
    assert np.allclose(steps["each_step"], steps["ddp"], rtol=1e-5)
    assert not np.allclose(steps["averaging"], steps["ddp"], rtol=1e-5)


@needs_fsdp2
def test_what_ran_has_its_options(document: dict[str, Any]) -> None:
    ran = {launch["scenario"]: launch["effective"] for launch in document["launches"]}
    assert ran["fsdp2"]["label"] == "FSDP2" and ran["fsdp2_no_reshard"]["label"] == "FSDP2 [reshard False]"
    assert ran["ddp_fp16_hook"]["label"] == "torch DDP, compressed [hook fp16]"
    sharded = {name for name in ran if ran[name]["weights"] == "sharded"}
    assert sharded == {name for name in ran if "fsdp2" in name} | {"hsdp"}
    assert not {"fused", "foreach"} & ran["fsdp2"]["optimizer_settings"].keys(), "torch chooses: foreach on a GPU"
    assert ran["ddp"]["optimizer_settings"]["fused"]
    assert ran["zero1"]["optimizer"].endswith("ZeroRedundancyOptimizer")
    assert (ran["ddp_accumulate"]["replicas"], ran["ddp_accumulate"]["world_size"]) == (4, 2)


WEIGHTS = 4 * (32 * 32 + 32 + 32 * 10 + 10)
"""Bytes of the MLP in fp32; its optimizer has a momentum for each."""


def parts_of(document: dict[str, Any], scenario: str, rank: int = 0) -> dict[str, int]:
    (found,) = [launch for launch in document["launches"] if launch["scenario"] == scenario]
    parts = found["ranks"][rank]["memory"]
    return {name.removesuffix("_mib"): round(size * 2**20) for name, size in parts.items() if isinstance(size, float)}


@needs_fsdp2
def test_what_memory_holds(document: dict[str, Any]) -> None:
    half = WEIGHTS // 2
    kept = 4 * (32 * 32 + 32 * 10 + 1)  # what the layers give for 32 examples, and the sum of the loss's weights
    none = dict.fromkeys(("masters", "buckets", "gathered", "buffers", "batch", "early_gradients"), 0)
    usual = none | dict.fromkeys(("parameters", "optimizer", "gradients", "buckets"), WEIGHTS) | {"activations": kept}
    expected = {
        "ddp": usual,
        "replicate": usual,
        "view": usual | {"gradients": 0},
        "averaging": usual | {"buckets": 0},
        "ddp_o2": usual | dict.fromkeys(("parameters", "gradients", "buckets"), half) | {"masters": 2 * WEIGHTS},
        "ddp_accumulate": usual | {"early_gradients": WEIGHTS, "activations": kept // 2 + 2},
        "fsdp2_no_reshard": none
        | dict.fromkeys(("parameters", "optimizer", "gradients"), half)
        | {"gathered": WEIGHTS, "activations": kept},
    }
    for scenario, parts in expected.items():
        found = parts_of(document, scenario)
        assert found.pop("before") > 0
        assert found == parts | ({"activations": found["activations"]} if scenario == "ddp_o2" else {}), scenario
    dealt_out = [parts_of(document, "zero1", rank)["optimizer"] for rank in (0, 1)]
    assert sum(dealt_out) == WEIGHTS and min(dealt_out) > 0
    assert 0 < parts_of(document, "fsdp2")["gathered"] <= WEIGHTS
    gathered = {name: parts_of(document, name)["gathered"] for name in ("fsdp2+o1", "fsdp2_half")}
    assert gathered["fsdp2_half"] == gathered["fsdp2+o1"] // 2 > 0


@pytest.mark.slow
def test_a_rank_is_killed_and_all_go_on(host: WorkerHost, tmp_path: Path) -> None:
    """By torchrun: steps that are trained twice give the same losses, bit for bit."""
    (tmp_path / "mlp.py").write_text(MLP.replace("lr=0.01", "lr=0.01, momentum=0.9"))
    small = ("--workload", str(tmp_path / "mlp.py"), "--setting", "width=32", "--device", "cpu", "--iters", "2")
    path = done_here(host, tmp_path / "out", "run", *small, "--scenario", "ddp_elastic")
    document = document_in(path.parent)
    (one,) = document["experiments"]["restart"]["launches"]
    look = one["restart"]
    assert (one["status"], one["processes"]) == ("ok", 2)
    assert (look["killed_step"], look["resumed_step"], look["loss_error"]) == (6, 4, 0.0)
    ends = ("up_ms", "joined_ms", "loaded_ms", "next_step_ms", "caught_up_ms")
    assert [look[name] for name in ends] == sorted(look[name] for name in ends) and look["up_ms"] > 0
    assert not (path / ".scratch").exists()
    assert [row["verdict"] for row in document["parity"]] == [SAME]


def test_too_few_images_for_batch_norm(run_here: Bench, tmp_path: Path) -> None:
    """Two ranks with two micro-batches each: at 32 pixels, the last batch norms of a ResNet have one value an image."""
    own = tmp_path / "own.py"
    own.write_text(VIEW)
    small = ("--device", "cpu", "--model", "resnet18", "--image-size", "32", "--warmup", "1", "--iters", "1")
    small += ("--no-parity", "--out", str(tmp_path / "out"), "--json")
    for name, option, few, enough in (
        ("ddp_accumulate+channels_last", "--global-batch", "4", "8"),
        ("ddp_accumulate", "--batch-per-rank", "2", "4"),
    ):
        said = run_here("run", "--scenario", name, option, few, *small)
        assert said.code == 2 and f"needs two; use {option} {enough} or more" in said.err, said.err
    assert not (tmp_path / "out").exists()
    tried = run_here("run", "--scenario", f"ddp,{own}", "--global-batch", "2", *small)
    assert tried.code == 1, "code that is not bench's may leave batch norm out, and is tried"
    launches = tried.document["launches"]
    assert [one["status"] for one in launches] == ["unsupported", "error"]
    assert "[1/1] own: error: " in tried.err, "the other is none of those that are shown"
    assert run_here("run", "--scenario", "ddp_accumulate", "--global-batch", "8", *small).code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"periods": 1}', "build of its strategy has no option 'periods'; choose from period"),
        *((f'{{"period": {one}}}', f"option period={one} is not a whole number above 0") for one in (0, True, 2.5)),
    ],
)
def test_a_wrong_option(tmp_path: Path, options: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(EACH_STEP.replace('{"period": 1}', options))
    assert says in str(refusal(lambda: scenarios_of([str(tmp_path / "mine.py")])))


def test_sets() -> None:
    def names(asked: str) -> list[str]:
        return [found.name for found in scenarios_of(None, asked)]

    assert names("published") == list(discover.DEFAULT)
    everything = names("all")
    assert everything[: len(discover.names())] == list(discover.names())
    assert {switch for name in everything for switch in name.split("+")[1:]} == {*discover.names(discover.SWITCH)}
    assert names("ladder")[:2] == ["ddp+foreach", "ddp"]
    assert names("frameworks") == ["accelerate_ddp", *(f"deepspeed_zero{n}" for n in (1, 2, 3)), "lightning_ddp"]
    assert {"fsdp2", "averaging", "ddp"} <= set(names("strategies")) < set(names("all"))
    with pytest.raises(RequestError, match="there is no set 'strategy'; did you mean strategies"):
        names("strategy")


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(EACH_STEP.replace("SCENARIO = Scenario(", 'SCENARIO = Scenario(packages=("absent_one",), '))
    (found,) = scenarios_of([str(file)])
    why = obstacle(found, device="cpu", impl="auto", apex_path=None)
    assert why == "absent_one is not installed; pip install absent_one"
