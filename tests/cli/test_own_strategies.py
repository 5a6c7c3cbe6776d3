"""A strategy of a new kind is one file: run, profiled, compared and reported with nothing else changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import in_this_process
from standin import documented

from bench.sites.local import WorkerHost

FSDP2 = '''
"""Weights, gradients and optimizer state in shards."""

from bench.seams import Scenario, Strategy

STRATEGY = Strategy(label="FSDP2", weights="sharded", precisions=("O0",), amp=("native",), hue="violet")
SCENARIO = Scenario(summary="torch fully_shard", strategy=STRATEGY)


def build(parts):
    from torch.distributed.fsdp import fully_shard
    from torch.optim import SGD

    def optimizer(parameters):
        usual = parts.build_optimizer(list(parts.build_model().parameters())).defaults
        return SGD(parameters, **{name: usual[name] for name in ("lr", "momentum", "weight_decay")})

    return parts.session(wrap=fully_shard, optimizer=optimizer, whole=lambda tensor: tensor.full_tensor())
'''

ZERO1 = '''
"""DDP whose optimizer state is dealt out over the ranks."""

from bench.seams import Scenario, Strategy

STRATEGY = Strategy(label="DDP + ZeRO-1", amp=("native",), hue="green")
SCENARIO = Scenario(summary="DDP with ZeroRedundancyOptimizer", strategy=STRATEGY)


def build(parts):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    def optimizer(parameters):
        usual = parts.build_optimizer(list(parts.build_model().parameters())).defaults
        options = {name: usual[name] for name in ("lr", "momentum", "weight_decay")}
        return ZeroRedundancyOptimizer(list(parameters), SGD, **options)

    return parts.session(wrap=DistributedDataParallel, optimizer=optimizer, quiet=lambda module: module.no_sync())
'''

AVERAGING = '''
"""No gradient is exchanged; parameters are averaged after every second step."""

from bench.seams import Scenario, Strategy

STRATEGY = Strategy(label="averaging", differs="parameters are averaged every 2 steps", hue="olive")
SCENARIO = Scenario(summary="parameters averaged every 2 steps", strategy=STRATEGY)


def build(parts):
    import torch
    import torch.distributed as dist

    taken = []

    @torch.no_grad()
    def average():
        taken.append(1)
        if len(taken) % 2 == 0:
            for parameter in session.model.parameters():
                dist.all_reduce(parameter)
                parameter /= parts.world_size

    session = parts.session(after_step=average, quiet="gradients are never exchanged")
    return session
'''

OWN = {"shards": FSDP2, "dealt_out": ZERO1, "seldom": AVERAGING}


@pytest.fixture(scope="module")
def out(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the three beside ddp, the first with diagnostic launches."""
    folder = tmp_path_factory.mktemp("own")
    for name, source in {**OWN, "mlp": documented("WORKLOAD =")}.items():
        (folder / f"{name}.py").write_text(source)
    names = ",".join(["ddp", *(str(folder / f"{name}.py") for name in OWN)])
    small = ["--device", "cpu", "--workload", str(folder / "mlp.py"), "--warmup", "1", "--iters", "3"]
    with pytest.MonkeyPatch.context() as patch:
        for more in (["--diagnose"], ["--no-parity"]):
            command = ["run", "--scenario", names, *small, *more, "--out", str(folder / "out")]
            assert in_this_process(host, patch, command) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def document(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((min(out.iterdir()) / "run.json").read_text())
    return loaded


def test_each_says_what_it_is(document: dict[str, Any]) -> None:
    ran = {launch["scenario"]: launch["effective"] for launch in document["launches"]}
    assert {name: ran[name]["label"] for name in ran} == {
        "ddp": "torch DDP",
        "shards": "FSDP2",
        "dealt_out": "DDP + ZeRO-1 (DistributedDataParallel)",
        "seldom": "averaging",
    }
    assert {name: ran[name]["weights"] for name in ran} == dict.fromkeys(ran, "replicated") | {"shards": "sharded"}
    assert ran["dealt_out"]["optimizer"].endswith("ZeroRedundancyOptimizer")


def test_shards_and_a_dealt_out_optimizer_train_the_same_model(document: dict[str, Any]) -> None:
    verdicts = {one["scenario"]: (one["verdict"], one["reason"]) for one in document["parity"]}
    assert {verdicts[name][0] for name in ("ddp", "shards", "dealt_out")} == {"same"}
    assert verdicts["seldom"][0] == "differs by design"
    assert verdicts["seldom"][1].startswith("parameters are averaged every 2 steps; in double precision, the gradient")


def test_each_is_profiled(document: dict[str, Any]) -> None:
    reasons = {
        one["scenario"]: one["looks"][0]["reasons"]["pairs"] for one in document["experiments"]["diagnose"]["launches"]
    }
    assert reasons["dealt_out"] is None
    assert reasons["seldom"] == "gradients are never exchanged"


def test_report_and_compare(out: Path, host: WorkerHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sorted(str(run) for run in out.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        assert in_this_process(host, patch, ["report", first, "--out", str(tmp_path / "page")]) == 0
        capsys.readouterr()
        assert in_this_process(host, patch, ["compare", first, second, "--json"]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "FSDP2 · gloo" in page and "var(--violet-o0)" in page and "var(--olive-o0)" in page
    compared = json.loads(capsys.readouterr().out)
    assert {row["scenario"] for row in compared["comparisons"]} >= set(OWN)
