"""Where the time goes: diagnostic launches, what is kept of them, and that none of it enters a value."""

import gzip
import json
from collections import Counter
from contextlib import nullcontext
from functools import partialmethod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from conftest import measured
from standin.documents import diagnostic, document, with_records
from standin.planted import planted
from standin.sessions import parts_of
from standin.workloads import tiny
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from bench.analyse.analysed import Analysed
from bench.analyse.communication import communication, mean_interval, spent
from bench.analyse.memory_parts import parts
from bench.core.codec import encode
from bench.core.records import DIAGNOSTIC_COLUMNS, PHASES
from bench.experiments import diagnose as experiment
from bench.report import verdict_plots
from bench.report.device_tables import memory_parts_table
from bench.runs.experiments import Diagnosis
from bench.runs.reader import Run
from bench.seams import discover, switching
from bench.sites.local import WorkerHost
from bench.worker import diagnose
from bench.worker.data import feeds

AVERAGING = """
    import torch.distributed as dist

    session = parts.session()
    backward = session.backward

    def average(loss):
        backward(loss)
        for parameter in session.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= parts.world_size

    session.backward = average
    return session
"""
"""It has no way not to average."""


def strategy(name: str) -> ModuleType:
    return discover.load_strategy(name, discover.names(discover.STRATEGY)[name])[1]


SCENARIOS = ("ddp", "apex_ddp", "single", "opaque")
ITERS = 4
PAIRS = 4


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("diagnose")
    (folder / "opaque.py").write_text(planted(AVERAGING))
    names = [*SCENARIOS[:-1], str(folder / "opaque.py")]
    small = {"task": tiny(), "global_batch": 4, "warmup": 1, "iters": ITERS}
    return measured(host, folder, names, parity=False, diagnose=True, trace=True, **small)


def probe(run: Run, scenario: str, name: str) -> pd.DataFrame:
    return run.diagnostics.query("scenario == @scenario and look == @name")


def about(run: Run, scenario: str) -> dict[str, Any]:
    (launch,) = [launch for launch in run.document.begun(Diagnosis).launches if launch.scenario == scenario]
    assert launch.status == "ok", launch.reason
    return dict(encode(launch.looks[0]))


@pytest.mark.parametrize("scenario", ["ddp", "apex_ddp"])
def test_steps_with_and_without_exchange_take_turns(run: Run, scenario: str) -> None:
    rows = probe(run, scenario, "pairs")
    for rank in (0, 1):
        mine = rows[rows["rank"] == rank].sort_values("step")
        assert mine["synchronised"].tolist() == [True, False, False, True] * (PAIRS // 2)
        assert mine["pair"].tolist() == [step // 2 for step in range(2 * PAIRS)]
        assert (mine[[f"{phase}_ms" for phase in PHASES]] >= 0).all(axis=None)
    assert about(run, scenario)["reasons"]["pairs"] is None


def test_the_logger_of_ddp_has_a_row_for_each_step(run: Run) -> None:
    rows = probe(run, "ddp", "logger")
    assert rows.groupby("rank").size().to_dict() == {0: PAIRS, 1: PAIRS}
    assert (rows["compute_ms"] > 0).all() and (rows["comm_ms"] > 0).all()
    assert (rows["overlap_ms"] >= 0).all() and (rows["overlap_ms"] <= rows["comm_ms"]).all()
    assert probe(run, "apex_ddp", "logger").empty
    table = communication(run.document, run.diagnostics).set_index("scenario")
    assert table.loc["apex_ddp", "method"] == "paired difference"
    assert table.loc["apex_ddp", "exposed_ms"] == table.loc["apex_ddp", "cost_ms"]
    assert table.loc["apex_ddp", "agree"] is None and pd.isna(table.loc["apex_ddp", "comm_ms"])


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("single", "one process: there is nothing to synchronise"),
        ("opaque", "this strategy has no step without synchronisation to compare with"),
    ],
)
def test_what_cannot_be_told_is_null_with_the_reason(run: Run, scenario: str, reason: str) -> None:
    assert about(run, scenario)["reasons"]["pairs"] == reason
    row = communication(run.document, run.diagnostics).set_index("scenario").loc[scenario]
    assert row["reason"] == reason
    values = [name for name in row.index if name.endswith("_ms")]
    assert row[[*values, "method", "agree", "pairs"]].isna().all()


def test_diagnostic_launches_are_in_no_other_table(run: Run) -> None:
    measured = {launch.launch for launch in run.document.launches}
    diagnostic = {launch.launch for launch in run.document.begun(Diagnosis).launches}
    assert len(measured) == len(diagnostic) == len(SCENARIOS) and not measured & diagnostic
    assert set(run.steps["launch"]) == measured == set(run.memory["launch"])
    assert set(run.diagnostics["launch"]) <= diagnostic
    assert (Analysed.of(run).overview["launches"] == 1).all()
    assert run.steps.groupby("launch")["step"].nunique().eq(1 + ITERS).all()
    for finding in run.document.validity:
        assert finding.launch is None or finding.launch in measured


def test_what_the_memory_of_a_rank_holds(run: Run) -> None:
    rows, table = parts(run.document).set_index(["scenario", "rank"]), memory_parts_table(run)
    weights = rows.loc[("ddp", 0), "parameters_mib"]
    assert weights > 0 and rows.loc[("ddp", 0), "gradients_mib"] == pytest.approx(weights)
    assert rows.loc[("ddp", 0), "buckets_mib"] == pytest.approx(weights) and rows.loc[("single", 0), "buckets_mib"] == 0
    assert table is not None and [row[0].text for row in table.rows] == list(SCENARIOS)
    headings = [column.heading for column in table.columns]
    assert headings == ["scenario", "rank", "predicted peak", "measured peak", "rest"], "no part of this is 0.05 MiB"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_trace_of_every_rank_has_the_phases(run: Run, scenario: str) -> None:
    ranks = 1 if scenario == "single" else 2
    files = sorted((Path(run.path) / "traces").glob(f"{scenario}-rank*.json.gz"))
    assert [file.name for file in files] == [f"{scenario}-rank{rank}.json.gz" for rank in range(ranks)]
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as text:
            events = json.load(text)["traceEvents"]
        phases = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
        assert {phase: phases[phase] for phase in PHASES} == dict.fromkeys(PHASES, diagnose.PROFILED_STEPS)
        assert all(event["dur"] > 0 for event in events if event["name"] in PHASES and event.get("ph") == "X")
        assert f"traces/{file.name}" in run.document.files, "sealed with the rest"
        marks = [event["name"] for event in events if event["name"].startswith(diagnose.STEP_MARK)]
        assert sorted(set(marks)) == [f"ProfilerStep#{step}" for step in range(diagnose.PROFILED_STEPS)]
        pids = {event["pid"] for event in events if event["name"] in PHASES and event.get("ph") == "X"}
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert [names[pid] for pid in pids] == [f"{scenario}, rank {file.name[-9]}"]
    spent = about(run, scenario)["profile"]["categories"]
    assert set(spent) == {*diagnose.CATEGORIES, "other"} and min(spent.values()) >= 0
    assert spent["convolutions"] > 0 and spent["optimizer"] > 0


def test_operators_have_rows_of_their_own() -> None:
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    expected = {"aten::convolution": "convolutions", "aten::addmm": "matrix products", attention: "attention"}
    expected |= {"aten::native_layer_norm": "layer norm", "fsdp::chunk_cat": "bucket copies"}
    waits = ("FSDP::all_gather (layer1.0)", "Optimizer.step#ZeroRedundancyOptimizer.step", "rpc: gradients for weights")
    for name in waits:
        around = SimpleNamespace(name=name, cpu_parent=None)
        assert diagnose.category(around) == "communication"
    step = SimpleNamespace(name="Optimizer.step#SGD.step", cpu_parent=around)
    assert diagnose.category(SimpleNamespace(name="aten::_fused_sgd_", cpu_parent=step)) == "optimizer"
    for operator, found in expected.items():
        assert diagnose.category(SimpleNamespace(name=operator, cpu_parent=around)) == found in verdict_plots.SPENT


def test_a_profile_without_a_kernel_tells_nothing() -> None:
    """A GPU's profiler may see none: another profiler has it, or the driver denies it."""
    looks = [
        {"profile": {"step_ms": 9.0, "trace": None, "categories": dict.fromkeys(("casts", "other"), ms)}}
        for ms in (0.0, 2.0)
    ]
    blind, seen = (diagnostic(scenario=name, looks=[look]) for name, look in zip(("dp", "ddp"), looks, strict=True))
    about = with_records(document(), Diagnosis(launches=(blind, seen)))
    most, unknown = experiment.sentences(about)
    assert most.startswith("Profiled steps spend most on one thing: ddp 50 % on casts (")
    assert unknown.startswith("What steps of dp are spent on is unknown: the profiler saw no kernel")
    assert list(spent(about)["scenario"]) == ["ddp"]


def test_a_kernel_counts_once() -> None:
    """The profiler's list with CUDA: operators with their kernels, the kernels again, and ranges of annotations."""
    listed: list[FunctionEvent] = []

    def event(name: str, kernel_us: int = 0, parent: Any = None, where: Any = DeviceType.CPU) -> Any:
        made = FunctionEvent(0, name, 1, 0, max(kernel_us, 10), use_device="cuda", device_type=where)
        if where == DeviceType.CPU and kernel_us:
            made.append_kernel(f"kernel of {name}", 0, kernel_us)
            listed.append(FunctionEvent(0, f"kernel of {name}", 1, 0, kernel_us, device_type=DeviceType.CUDA))
        if parent is not None:
            parent.append_cpu_child(made)
            made.set_cpu_parent(parent)
        listed.append(made)
        return made

    data, phase = event("data"), event("optimizer")
    event("aten::copy_", 1000, event("aten::_to_copy", parent=data))
    event("aten::copy_", 2000, event("aten::_to_copy"))
    event("aten::cudnn_convolution", 5000, event("aten::convolution"))
    event("aten::_fused_sgd_", 3000, event("Optimizer.step#SGD.step"))
    event("aten::_fused_adamw_", 4000, event("Optimizer.step#AdamW.step"))
    event("aten::_foreach_add_", 100, phase)
    event("aten::relu", 700)
    event("record_param_comms", 5000)
    event("work of it", 1000, event("nccl:all_reduce"))
    event("ProfilerStep*", 900)
    for name, us in (("data", 1000), ("Optimizer.step#SGD.step", 3000)):
        event(name, us, where=DeviceType.CUDA)
    spent = diagnose.spent_ms(listed, "cuda")
    expected = {"input": 1.0, "casts": 2.0, "convolutions": 5.0, "optimizer": 7.1, "communication": 6.0, "other": 0.7}
    assert spent == pytest.approx(dict.fromkeys(spent, 0.0) | expected)


@pytest.mark.parametrize("name", ["ddp", "replicate"])
def test_the_logger_of_ddp_times_few_steps(group: None, name: str) -> None:
    """In those it waits for the GPU."""
    parts = SimpleNamespace(device=torch.device("cpu"), wrapper={}, session=lambda wrap, quiet: wrap(nn.Linear(2, 2)))
    module = strategy(name).build(parts)
    logging = module if name == "ddp" else replicate.state(module)._ddp
    passes = {"forward": lambda batch: module(batch).sum(), "backward": torch.Tensor.backward}
    session: Any = SimpleNamespace(module=module, optimize=lambda: None, **passes)

    def last_timed(steps: int) -> int:
        for _ in range(steps):
            session.forward(torch.ones(1, 2)).backward()
        return int(logging._get_ddp_logging_data()["iteration"])

    assert last_timed(202) == 10
    if name == "ddp":
        strategy(name).probe(session, lambda: torch.ones(1, 2), 4, lambda step: None)
        looked_at = last_timed(0)
        assert looked_at > 202
        assert last_timed(202) == looked_at, "and then no more"


@pytest.mark.parametrize(("name", "exchanges"), [("ddp_accumulate", 1), ("ddp_accumulate_sync", 2)])
def test_a_step_without_exchange_has_none(group: None, name: str, exchanges: int) -> None:
    parts = parts_of(switching.load(*discover.resolve(name)), task=tiny(), global_batch=4)
    session = strategy(parts.job.strategy).build(parts, **parts.job.options)
    seen = []
    session.module.register_comm_hook(
        None, lambda _, bucket: (seen.append(bucket.index()), allreduce_hook(dist.group.WORLD, bucket))[1]
    )
    load = feeds(parts.workload, 2, [range(2)], parts.device)
    diagnose.a_step(session, load, lambda phase: nullcontext())
    assert len(seen) == exchanges
    quiet, reason = diagnose.without_exchange(session)
    diagnose.a_step(session, load, lambda phase: nullcontext(), quiet)
    assert len(seen) == exchanges and reason is None


class Replicating(nn.Module):
    def part(self, by: float, x: torch.Tensor) -> torch.Tensor:
        return x * by + 1

    scatter, replicate = partialmethod(part, 2.0), partialmethod(part, 3.0)
    parallel_apply, gather = partialmethod(part, 5.0), partialmethod(part, 7.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gather(self.parallel_apply(self.replicate(self.scatter(x))))


def test_the_timed_parts_of_dataparallel_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**12, 2_000_000))
    dp = strategy("dp")
    monkeypatch.setattr(dp.time, "perf_counter_ns", lambda: next(now))
    module, x = Replicating(), torch.tensor(2.0)
    expected = module(x)
    rows: list[dict[str, float]] = []
    with dp.timed_stages(module, rows):
        for _ in range(3):
            rows.append({})
            assert module(x) == expected
    assert rows == [dict.fromkeys(("scatter_ms", "replicate_ms", "parallel_apply_ms", "gather_ms"), 2.0)] * 3
    assert set(rows[0]) <= set(DIAGNOSTIC_COLUMNS)
    assert not {"scatter", "gather"} & set(vars(module)), "the wrappers are gone"
    with pytest.raises(ValueError, match="planted"), dp.timed_stages(module, rows):
        raise ValueError("planted")
    assert not {"scatter", "gather"} & set(vars(module)), "after an error, too"


def pair_rows(synchronised: list[list[float]], without: list[list[float]]) -> list[dict[str, Any]]:
    return [
        {"scenario": "ddp", "rank": rank, "look": "pairs", "pair": pair, "synchronised": yes, "backward_ms": ms}
        for yes, ranks in ((True, synchronised), (False, without))
        for rank, times in enumerate(ranks)
        for pair, ms in enumerate(times)
    ]


def logger_rows(*ranks: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    """Computation, communication and overlap (ms) by rank and step."""
    return [
        {"scenario": "ddp", "rank": rank, "look": "logger", "step": step}
        | dict(zip(("compute_ms", "comm_ms", "overlap_ms"), values, strict=True))
        for rank, steps in enumerate(ranks)
        for step, values in enumerate(steps)
    ]


def values(rows: list[dict[str, Any]], status: str = "ok", reason: str | None = None) -> Any:
    looks = [{"profile": {"step_ms": 1.0, "categories": {}}}]
    launch = diagnostic(status=status, reason=reason, looks=looks)
    table = pd.DataFrame([{"launch": 0} | row for row in rows], columns=list(DIAGNOSTIC_COLUMNS))
    (row,) = communication(with_records(document(), Diagnosis(launches=(launch,))), table).to_dict("records")
    return row


def test_the_cost_is_of_the_slowest_ranks() -> None:
    row = values(pair_rows([[30.0, 32.0, 31.0], [29.0, 35.0, 30.0]], [[20.0, 20.0, 20.0], [24.0, 21.0, 19.0]]))
    differences = [30.0 - 24.0, 35.0 - 21.0, 31.0 - 20.0]
    assert row["cost_ms"] == row["exposed_ms"] == pytest.approx(sum(differences) / 3)
    assert row["without_ms"] == pytest.approx((24 + 21 + 20) / 3)
    assert row["pairs"] == 3 and row["method"] == "paired difference" and row["agree"] is None


def test_a_launch_that_was_replaced_has_no_part_in_the_cost() -> None:
    """One rank of it came to its end, and its rows are kept."""
    replaced = [row | {"launch": 7} for row in pair_rows([[90.0, 90.0]], [[20.0, 20.0]])]
    row = values([*replaced, *pair_rows([[30.0, 31.0]], [[20.0, 20.0]])])
    assert row["cost_ms"] == pytest.approx(10.5)


def test_exposed_is_of_the_rank_that_waited_least() -> None:
    steps = [(20.0, 15.0, 12.0), (20.0, 16.0, 12.0)], [(16.0, 19.0, 12.0), (16.0, 19.0, 12.0)]
    row = values([*pair_rows([[23.5, 24.0]], [[20.0, 20.0]]), *logger_rows(*steps)])
    assert row["exposed_ms"] == pytest.approx((3 + 4) / 2), "rank 1 has 7 ms, of which it waited 3 for rank 0"
    assert row["agree"] is True and row["method"] == "DDP's logger"
    assert (row["comm_ms"], row["overlap_ms"]) == (19.0, 12.0)
    assert row["slowed_ms"] == pytest.approx(0.0)


def test_a_failed_launch_has_no_figures() -> None:
    row = values([], status="timeout", reason="no progress")
    assert (row["reason"], row["exposed_ms"], row["method"]) == ("timeout: no progress", None, None)
    row = values(pair_rows([[30.0]], [[20.0]]))
    assert row["cost_ms"] == 10.0 and row["cost_low_ms"] is None and row["agree"] is None
    mean, low, high = mean_interval(pd.Series([1.0, 2.0, 3.0]).to_numpy())
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)
