"""A digest says of a run what its tables say. Two compare where they did the same work on the same hardware."""

import json
from dataclasses import replace
from typing import Any, get_type_hints

import pytest
from standin.documents import changed
from standin.runs import APEX, DDP, FAST, GONE, write_run

from bench.analyse import verdicts
from bench.analyse.analysed import Analysed
from bench.analyse.comparable import differences, key, obstacles, scenario_obstacle
from bench.analyse.digest import of_run
from bench.analyse.parity import CANNOT_TELL
from bench.core.job import Training
from bench.runs.digests import Launches
from bench.runs.reader import read as read_run

Digest = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    launches = [DDP, FAST, GONE, APEX, DDP]
    return verdicts.judged(read_run(str(write_run(tmp_path_factory.mktemp("results"), launches))))


@pytest.fixture(scope="module")
def recorded(run: Analysed) -> str:
    return json.dumps(of_run(run), allow_nan=False)


@pytest.fixture
def base(recorded: str) -> Digest:
    return dict(json.loads(recorded))


new = base


def test_a_digest_has_the_figures_of_what_went_well(base: Digest) -> None:
    scenarios = {row["scenario"]: row for row in base["scenarios"]}
    assert list(scenarios) == ["ddp", "ddp_o2", "dp", "apex_ddp"]
    ddp = scenarios["ddp"]["launches"]
    assert (ddp["launch"], ddp["repeat"]) == ([0, 4], [0, 1])
    assert [ddp[name][0] for name in ("step_ms", "throughput_per_s", "peak_total_mib")] == [40.0, 200.0, 500.0]
    assert ddp.keys() == get_type_hints(Launches).keys()
    assert scenarios["ddp_o2"]["parity"] == "not finite"
    assert scenarios["apex_ddp"]["what_ran"] == "native flat-bucket · gloo ×2 · fp32", "not the name it was asked by"
    assert scenarios["apex_ddp"]["launches"]["peak_total_mib"] == [None] and ddp["energy_per_1000_j"] == [None, None]
    assert (scenarios["dp"]["status"], scenarios["dp"]["launches"]["launch"]) == ("unsupported", [])


@pytest.mark.parametrize(("verdict", "said"), [(CANNOT_TELL, None), ("same", "same")])
def test_numerics_that_nobody_can_tell_are_no_verdict(run: Analysed, verdict: str, said: str | None) -> None:
    judged = [replace(row, verdict=verdict) for row in run.document.parity if row.scenario == "ddp"]
    assert of_run(changed(run, parity=tuple(judged)))["scenarios"][0]["parity"] == said


def on_gpus(digest: Digest, *names: str) -> Digest:
    digest["device"] = digest["workload"]["device"] = "cuda"
    digest["hardware"] = list(names)
    digest["conditions"] |= {"driver": "550.1", "power_limit_w": [300.0] * len(names)}
    return digest


def test_a_run_compares_with_one_like_it(base: Digest, new: Digest) -> None:
    new |= {"run": "another", "utc": "2026-02-02T00:00:00Z", "git": {"commit": "f" * 40, "dirty": True}}
    assert key(base) == key(new)
    assert (obstacles(base, new), differences(base, new)) == ([], [])
    assert scenario_obstacle(base["scenarios"][0], new["scenarios"][0]) is None


def test_another_workload_is_named_with_both_values(base: Digest, new: Digest) -> None:
    columns = new["scenarios"][0]["launches"]
    columns |= {name: column * 3 for name, column in columns.items()}
    assert obstacles(base, new) == [], "how many steps and launches were measured is no part of it"
    settings = {"model": "resnet18", "image_size": 64, "learning_rate": 0.02}
    new["workload"] |= {"settings": settings, "warmup": 5, "hash": "other"}
    named = ["image size: 32 against 64", "learning rate: 0.01 against 0.02", "warm-up: 1 against 5"]
    assert sorted(obstacles(base, new)) == named and key(base) != key(new)


def test_a_hash_that_differs_is_never_passed_over(base: Digest, new: Digest) -> None:
    new["workload"]["hash"] = "other"
    assert obstacles(base, new) == ["another workload: the checksums of the two differ"]
    del new["workload"]["pool_batches"]
    assert obstacles(base, new) == ["another workload: only one run records distinct batches"]


def with_code(digest: Digest, code: str) -> Digest:
    fields = {name: value for name, value in digest["workload"].items() if name != "hash"} | {"code_sha256": code}
    return digest | {"workload": fields | {"hash": Training(**fields).hash()}}


def test_other_code_is_another_workload(base: Digest) -> None:
    one, other = with_code(base, "a" * 64), with_code(base, "b" * 64)
    assert one["workload"]["hash"] != other["workload"]["hash"] and key(one) != key(other)
    assert obstacles(one, other) == ["the workload's code: aaaaaaaaaaaa against bbbbbbbbbbbb"]
    assert (obstacles(one, one), differences(one, one)) == ([], [])


def test_the_model_of_gpu_or_cpu_must_be_the_same(base: Digest, new: Digest) -> None:
    new["hardware"] = ["Another CPU"]
    assert obstacles(base, new) == ["CPU model: A CPU of host $x_1$ against Another CPU"]
    on_gpus(new, "A100", "H100")
    assert obstacles(base, new) == ["device: cpu against cuda"]
    on_gpus(base, "A100", "A100")
    assert obstacles(base, new) == ["GPU model: 2 x A100 against A100 + H100"]
    assert key(base) != key(new)
    on_gpus(base, "H100", "A100")
    assert (obstacles(base, new), key(base)) == ([], key(new)), "which slot a GPU is in does not matter"
    new["conditions"]["cpu"] = "Another CPU"
    assert (obstacles(base, new), differences(base, new)) == ([], ["CPU: A CPU of host $x_1$ against Another CPU"])


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "said"),
    [
        ("torch", "2.9.0", "2.10.0", "torch: 2.9.0 against 2.10.0"),
        ("driver", "550.1", "560.2", "driver: 550.1 against 560.2"),
        ("cuda", "12.6", "13.0", "CUDA: 12.6 against 13.0"),
        ("cudnn", 91002, 91300, "cuDNN: 91002 against 91300"),
        ("nccl", "2.27", "2.28", "NCCL: 2.27 against 2.28"),
        ("host", "host", "other", "host: host against other"),
        ("cores", 2, 8, "cores: 2 against 8"),
        ("governor", "performance", "powersave", "governor: performance against powersave"),
        ("bench", "0.1.0", "0.2.0", "bench: 0.1.0 against 0.2.0"),
        ("power_limit_w", [300.0, 300.0], [300.0, 250.0], "power limit (W): 300, 300 against 250, 300"),
    ],
)
def test_other_conditions_warn(base: Digest, new: Digest, name: str, ours: Any, theirs: Any, said: str) -> None:
    base["conditions"][name], new["conditions"][name] = ours, theirs
    assert obstacles(base, new) == []
    assert differences(base, new) == [said]


def test_clocks_that_are_apart_are_told_by_scenario(base: Digest, new: Digest) -> None:
    for digest, clocks in ((base, (1400.0, 1400.0)), (new, (1380.0, 1200.0))):
        for scenario, clock in zip(digest["scenarios"], clocks, strict=False):
            scenario["launches"]["sm_clock_mhz"][0] = clock
    assert differences(base, new) == ["SM clock (median over launches): ddp_o2 1400 MHz against 1200"]


def test_what_is_unknown_is_a_warning_and_no_refusal(base: Digest, new: Digest) -> None:
    base["workload"] = dict.fromkeys(base["workload"]) | {"settings": {"model": "resnet18"}}
    base |= {"device": None, "hardware": [], "replicas": None, "conditions": dict.fromkeys(base["conditions"])}
    assert obstacles(base, new) == obstacles(new, base) == []
    work, place = differences(base, new)
    assert work.startswith("not known to be the same work: workload, ") and "image size" in work
    assert work.endswith(", hardware")
    assert "world size" in work and "model" not in work.split(": ")[1].split(", ")
    assert place.startswith("not known to be the same, since only one run says it: host, ")
    assert "driver" not in place, "neither says it: there is none on a CPU"
    base["workload"]["settings"] = {"model": "resnet101"}
    assert obstacles(base, new) == ["model: resnet101 against resnet18"]
    assert key(base) != key(new)


def test_what_ran_is_what_is_compared_and_not_its_name(base: Digest, new: Digest) -> None:
    ours, theirs = base["scenarios"][1], new["scenarios"][1]
    theirs["what_ran"] = "torch DDP · gloo ×2 · apex O2 fp16"
    assert scenario_obstacle(ours, theirs) == (
        "something else ran: torch DDP · gloo ×2 · native O2 bf16 against torch DDP · gloo ×2 · apex O2 fp16"
    )
    theirs["what_ran"] = None
    assert scenario_obstacle(ours, theirs) is None, "unknown is a warning"
    theirs["world_size"] = 8
    assert scenario_obstacle(ours, theirs) == "another world size: 2 against 8"


def test_a_scenario_that_is_missing_or_failed_is_named(base: Digest, new: Digest) -> None:
    ddp, gone = base["scenarios"][0], base["scenarios"][2]
    assert scenario_obstacle(ddp, None) == "it is missing in the new run"
    assert scenario_obstacle(None, ddp) == "it is missing in the base run"
    assert "it is 'unsupported' (needs <b>CUDA</b>" in str(scenario_obstacle(ddp, gone))
    theirs = new["scenarios"][0]
    oom = theirs | {"status": "oom", "reason": None}
    assert scenario_obstacle(ddp, oom) == "it is 'oom' in the new run", "the launches that got through do not count"
    theirs |= {"validity": "invalid", "invalid": ["throttled"]}
    assert scenario_obstacle(ddp, theirs) == "its results are invalid (throttled) in the new run"
    theirs |= {"invalid": ["diverged"], "parity": "diverged"}
    assert scenario_obstacle(ddp, theirs) is None, "it took its time all the same; that it diverges is said beside it"
