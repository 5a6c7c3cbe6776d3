"""Figures computed by hand: what is a maximum, what is a median of what, what is left out, and what is unknown."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from standin import documents
from standin.frames import iterations, launch_figures, phase_medians, step_rows

from bench.analyse import labels, published
from bench.analyse.memory import peak_by_process, peaks
from bench.analyse.steps import phases, summary
from bench.core.records import MEMORY_COLUMNS
from bench.runs.document import RunDocument
from bench.seams import discover


def sample(t_ns: int, rank: int, used_mib: float | None, **more: Any) -> dict[str, Any]:
    known = {"source": "rss", "reason": None} if used_mib is not None else {"source": "unavailable", "reason": "gone"}
    base = {"launch": 0, "scenario": "ddp", "host": "node1", "t_ns": t_ns, "pid": 100 + rank, "rank": rank}
    return base | {"device": "cpu", "used_mib": used_mib} | known | more


def memory(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(MEMORY_COLUMNS)).astype({"used_mib": "float64"})


def launch(number: int, scenario: str, status: str = "ok", reason: str | None = None) -> dict[str, Any]:
    return {
        "launch": number,
        "scenario": scenario,
        "status": status,
        "reason": reason,
        "effective": effective() if status == "ok" else None,
    }


def document(*launches: dict[str, Any], global_batch: int = 8) -> RunDocument:
    names = list(dict.fromkeys(entry["scenario"] for entry in launches))
    about = {"request": {"scenarios": names}, "workload": {"global_batch": global_batch}}
    return documents.document(**about, launches=list(launches))


def summarised(*launches: dict[str, Any], steps: list[dict[str, Any]], used: pd.DataFrame | None = None) -> Any:
    columns = list(step_rows(0, "x", [1.0])[0])
    table = summary(
        document(*launches),
        launch_figures(pd.DataFrame(steps, columns=columns)),
        peaks(memory() if used is None else used),
    )
    return table.set_index("scenario")


# Step times


def test_the_headline_is_the_slowest_rank_of_each_iteration() -> None:
    """Ranks take turns in being slow: pooled, the median would be 2."""
    steps = pd.DataFrame(step_rows(0, "ddp", [10.0, 1.0, 10.0], [1.0, 10.0, 2.0]))
    assert iterations(steps).frame["step_ms"].tolist() == [10.0, 10.0, 10.0]
    assert launch_figures(steps).frame["median_ms"].tolist() == [10.0]
    assert launch_figures(steps).frame["measured"].tolist() == [3]


def test_warm_up_steps_are_in_no_statistic() -> None:
    steps = pd.DataFrame(step_rows(0, "ddp", [900.0, 900.0, 1.0, 2.0, 6.0], warmup=2))
    figures = launch_figures(steps).frame.iloc[0]
    assert (figures["median_ms"], figures["mean_ms"], figures["measured"]) == (2.0, 3.0, 3)
    assert figures["p99_ms"] < 6.1
    assert phases(phase_medians(steps))["backward_ms"].tolist() == [1.0]


def test_p95_of_a_launch_and_of_several() -> None:
    one = [float(value) for value in range(1, 12)]  # of 1 to 11 the 95th percentile is halfway between the last two
    two = [value + 4.0 for value in one]
    assert launch_figures(pd.DataFrame(step_rows(0, "ddp", one))).frame["p95_ms"].tolist() == [pytest.approx(10.5)]
    rows = step_rows(0, "ddp", one) + step_rows(1, "ddp", two, repeat=1)
    table = summarised(launch(0, "ddp"), launch(1, "ddp"), steps=rows)
    assert table.loc["ddp", "step_p95_ms"] == pytest.approx((10.5 * 14.5) ** 0.5)


def test_the_replicate_is_the_launch() -> None:
    """Medians of launches 2, 4 and 8: their median is 4, that of all nine steps 8."""
    launches = ([1.0, 2.0, 9.0], [3.0, 4.0, 9.0], [8.0, 8.0, 9.0])
    rows = [row for number, times in enumerate(launches) for row in step_rows(number, "ddp", times, repeat=number)]
    assert pd.DataFrame(rows)["step_ms"].median() == 8.0
    table = summarised(*(launch(number, "ddp") for number in range(3)), steps=rows)
    assert table.loc["ddp", "step_median_ms"] == 4.0
    assert table.loc["ddp", "launches_ok"] == 3


def test_throughput_is_the_global_batch_over_the_median_step() -> None:
    """Whatever the number of ranks, steps and launches."""
    rows = [row for number in range(2) for row in step_rows(number, "ddp", *[[250.0] * 30] * 3, repeat=number)]
    table = summarised(launch(0, "ddp"), launch(1, "ddp"), steps=rows)
    assert table.loc["ddp", "throughput_per_s"] == 32.0


@pytest.mark.parametrize("ddp", [[], [launch(1, "ddp", "oom", "out of memory")]])
def test_without_figures_of_ddp_nothing_is_relative(ddp: list[dict[str, Any]]) -> None:
    table = summarised(launch(0, "single"), *ddp, steps=step_rows(0, "single", [8.0]))
    assert table["relative_to_ddp"].isna().all()
    assert table.loc["single", "throughput_per_s"] == 1000.0


def test_phases_are_those_of_the_slowest_rank() -> None:
    steps = pd.DataFrame(step_rows(0, "ddp", [4.0, 8.0, 8.0], [100.0, 4.0, 4.0]))
    assert phases(phase_medians(steps)).iloc[0].to_dict() == {
        "scenario": "ddp",
        "data_ms": 0.0,
        "forward_ms": 2.0,
        "backward_ms": 4.0,
        "optimizer_ms": 2.0,
    }


# Scenarios without figures


@pytest.mark.parametrize("status", ["unsupported", "error"])
def test_a_scenario_that_failed_has_no_figures_and_says_why(status: str) -> None:
    table = summarised(launch(0, "ddp"), launch(1, "dp", status, "it needs CUDA"), steps=step_rows(0, "ddp", [4.0]))
    failed = table.loc["dp"]
    figures = [
        *("throughput_per_s", "step_median_ms", "step_p95_ms", "relative_to_ddp", "peak_pid_mib", "peak_total_mib"),
        "memory_source",
    ]
    assert failed[figures].isna().all()
    assert (failed["status"], failed["reason"], failed["what_ran"]) == (status, "it needs CUDA", "")
    assert (failed["launches_ok"], failed["launches"]) == (0, 1)
    assert (table.loc["ddp", "status"], pd.isna(table.loc["ddp", "reason"])) == ("ok", True)


def test_figures_come_from_the_good_launches_alone() -> None:
    """The launch that failed left steps and memory of the rank that did not."""
    rows = step_rows(0, "ddp", [4.0]) + step_rows(1, "ddp", [999.0], repeat=1)
    used = memory(sample(1, 0, 100.0), sample(2, 0, 900.0, launch=1))
    table = summarised(launch(0, "ddp"), launch(1, "ddp", "killed", "ended by SIGKILL"), steps=rows, used=used)
    ddp = table.loc["ddp"]
    assert (ddp["step_median_ms"], ddp["peak_total_mib"]) == (4.0, 100.0)
    assert (ddp["status"], ddp["reason"], ddp["launches_ok"], ddp["launches"]) == ("killed", "ended by SIGKILL", 1, 2)


# Memory


def test_the_total_peak_is_of_one_moment() -> None:
    found = peaks(memory(sample(1, 0, 100.0), sample(1, 1, 10.0), sample(2, 0, 10.0), sample(2, 1, 90.0))).iloc[0]
    assert (found["peak_pid_mib"], found["peak_total_mib"], found["source"]) == (100.0, 110.0, "rss")


def test_a_process_on_two_devices_is_added_up_moment_by_moment() -> None:
    """A DataParallel process: 150 at one moment and 140 at the next, never 100 + 80."""
    ticks = {1: (100.0, 50.0), 2: (60.0, 80.0)}
    rows = [
        sample(t_ns, 0, used, device=device, scenario="dp", source="nvml_pid")
        for t_ns, pair in ticks.items()
        for device, used in zip(("GPU-a", "GPU-b"), pair, strict=True)
    ]
    found = peaks(memory(*rows)).iloc[0]
    assert (found["peak_pid_mib"], found["peak_total_mib"]) == (150.0, 150.0)
    assert peak_by_process(memory(*rows))["peak_mib"].tolist() == [100.0, 80.0]


def test_memory_that_is_unknown_is_not_zero() -> None:
    used = memory(sample(1, 0, None), sample(2, 0, None))
    ddp = summarised(launch(0, "ddp"), steps=step_rows(0, "ddp", [4.0]), used=used).loc["ddp"]
    assert pd.isna(ddp["peak_pid_mib"])
    assert pd.isna(ddp["peak_total_mib"])
    assert ddp["memory_source"] == "unavailable"
    assert peak_by_process(used).empty


def test_a_sample_or_a_process_that_is_unknown() -> None:
    """A sample does not hide the others; the total is unknown where a process was never known."""
    found = peaks(memory(sample(1, 0, 100.0), sample(2, 0, None), sample(3, 0, 80.0))).iloc[0]
    assert (found["peak_pid_mib"], found["source"]) == (100.0, "rss+unavailable")
    used = memory(sample(1, 0, 100.0), sample(1, 1, None), sample(2, 0, 90.0), sample(2, 1, None))
    assert pd.isna(peaks(used).iloc[0]["peak_total_mib"])


# The published form


@pytest.mark.parametrize(
    ("steps", "shown"),
    [(12, (0, 2, 4, 7, 9)), (80, (0, 16, 32, 48, 64)), (81, (0, 20, 40, 60, 80)), (200, (0, 20, 40, 60, 80))],
)
def test_which_iterations_are_shown(steps: int, shown: tuple[int, ...]) -> None:
    assert published.iterations(steps) == shown


def test_elapsed_is_the_latest_rank_with_the_warm_up() -> None:
    """Rank 0 is ahead at first (1, 11, 12 s) and behind in the end (rank 1: 5, 10, 11 s)."""
    steps = pd.DataFrame(step_rows(0, "ddp", [1000.0, 10000.0, 1000.0], [5000.0, 5000.0, 1000.0], warmup=1))
    assert published.elapsed(iterations(steps))["elapsed_s"].tolist() == [5.0, 11.0, 12.0]


def test_the_published_form_is_relative_to_ddp() -> None:
    rows = step_rows(0, "single", [300.0] * 81) + step_rows(1, "ddp", [100.0] * 81, [90.0] * 81, warmup=5)
    rows += (
        step_rows(2, "ddp_o3", [50.0] * 81) + step_rows(3, "ddp_o3", [60.0] * 81) + step_rows(4, "ddp_o3", [90.0] * 81)
    )
    table = published.table(iterations(pd.DataFrame(rows)), ["single", "ddp", "ddp_o3", "dp"]).set_index("scenario")
    assert table.loc["ddp", "elapsed_s_0"] == pytest.approx(0.1)
    assert table.loc["ddp", "elapsed_s_80"] == pytest.approx(8.1)
    mean = (50.0 * 60.0 * 90.0) ** (1 / 3)  # geometric, as in every table
    assert table.loc["ddp_o3", "elapsed_s_40"] == pytest.approx(mean / 1000 * 41)
    assert table["relative"].tolist() == pytest.approx([3.0, 1.0, mean / 100, float("nan")], nan_ok=True)
    assert table.loc["dp", "published_s_80"] == 20.4
    assert sum(map(sum, published.PUBLISHED_S.values())) == pytest.approx(269.8), "of the blog post"
    assert table.loc["dp", "published_relative"] == pytest.approx(20.4 / 8.7)
    assert table.loc["dp", ["elapsed_s_0", "elapsed_s_80"]].isna().all()
    assert table.loc["single", ["published_s_0", "published_s_80", "published_relative"]].isna().all()


def test_without_ddp_the_published_form_is_relative() -> None:
    row = published.table(iterations(pd.DataFrame(step_rows(0, "dp", [100.0] * 12))), ["dp"]).iloc[0]
    assert (row["elapsed_s_9"], pd.isna(row["relative"])) == (pytest.approx(1.0), True)
    assert row["published_relative"] == pytest.approx(20.4 / 8.7)


# What ran


WRAPPERS = [
    one.wrapper
    for name, file in discover.names(discover.STRATEGY).items()
    for one in discover.load_strategy(name, file)[0].implementations
    if one.wrapper is not None and one.needs is None
]


def effective(wrapper: str = "torch.nn.parallel.distributed.DistributedDataParallel", **more: Any) -> dict[str, Any]:
    return {
        "wrapper": wrapper,
        "parallel_impl": wrapper.split(".")[0],
        "precision": "O0",
        "precision_impl": "torch",
        "compute_dtypes": ["float32"],
        "backend": "gloo",
        "world_size": 2,
        "replicas": 2,
        "device": {"type": "cpu"},
        "tf32": None,
    } | more


ALONE: dict[str, Any] = {"backend": None, "world_size": 1, "replicas": 1}
TF32 = {"cudnn": True, "matmul": False}
TORCH_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"
TORCH_DP = "torch.nn.parallel.data_parallel.DataParallel"
APEX_DDP = "apex.parallel.distributed.DistributedDataParallel"
FLAT_BUCKET = "bench.worker.flat_bucket.FlatBucketDataParallel"
RESNET = "torchvision.models.resnet.ResNet"
NATIVE_O2: dict[str, Any] = {"precision": "O2", "precision_impl": "native", "compute_dtypes": ["float16"]}
APEX_O2 = NATIVE_O2 | {"precision_impl": "apex"}
BF16_O1: dict[str, Any] = {"precision": "O1", "precision_impl": "native", "compute_dtypes": ["bfloat16"]}


def cuda(wrapper: str, level: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"device": {"type": "cuda"}, "tf32": {"cudnn": False, "matmul": False}, "backend": "nccl"}
    return effective(wrapper, **about | level | more)


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        (effective(), "torch DDP · gloo ×2 · fp32"),
        (effective(**BF16_O1), "torch DDP · gloo ×2 · native O1 bf16"),
        (effective(RESNET, **ALONE), "no wrapper · fp32"),
        (effective(TORCH_DP, **ALONE), "DataParallel, pass-through · fp32"),
        (cuda(TORCH_DP, ALONE, replicas=3), "DataParallel · 3 GPUs · fp32"),
        (effective(FLAT_BUCKET), "native flat-bucket · gloo ×2 · fp32"),
        (cuda(APEX_DDP, APEX_O2), "apex DDP · nccl ×2 · apex O2 fp16"),
        (cuda(APEX_DDP, NATIVE_O2), "apex DDP · nccl ×2 · native O2 fp16"),
        (cuda(APEX_DDP, APEX_O2, apex_kernels=True), "apex DDP · nccl ×2 · apex O2 fp16"),
        (cuda(APEX_DDP, APEX_O2, apex_kernels=False), "apex DDP (Python) · nccl ×2 · apex (Python) O2 fp16"),
        (cuda(TORCH_DDP, APEX_O2, apex_kernels=False), "torch DDP · nccl ×2 · apex (Python) O2 fp16"),
        (effective(apex_kernels=None), "torch DDP · gloo ×2 · fp32"),
        (cuda(FLAT_BUCKET, APEX_O2), "native flat-bucket · nccl ×2 · apex O2 fp16"),
        (cuda(RESNET, ALONE, tf32=TF32), "no wrapper · fp32 (TF32 convolutions)"),
        (cuda(TORCH_DDP, NATIVE_O2, tf32=TF32), "torch DDP · nccl ×2 · native O2 fp16"),
        (effective("mine.setup.Hierarchical"), "Hierarchical · gloo ×2 · fp32"),
        (None, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ran_is_said_in_words(ran: dict[str, Any] | None, words: str) -> None:
    (launch,) = document({"scenario": "ddp", "effective": ran}).launches
    assert labels.what_ran(launch.effective) == words


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_wrappers_that_have_a_name_are_classes_that_exist(wrapper: str) -> None:
    """Read off the source, since importing torch takes seconds."""
    package, *modules, name = wrapper.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    source = Path(spec.origin).parent.joinpath(*modules).with_suffix(".py").read_text()
    assert name in {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
