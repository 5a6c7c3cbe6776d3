"""Values computed by hand: what is a maximum, what is a median of what, what is left out, and what is unknown."""

from typing import Any

import pandas as pd
import pytest
from standin import documents
from standin.frames import launch_stats, memory, phase_medians, step_rows

from bench.analyse import labels, published
from bench.analyse.memory import peak_by_process, peaks
from bench.analyse.steps import summary
from bench.runs.document import RunDocument


def sample(t_ns: int, rank: int, used_mib: float | None, **more: Any) -> dict[str, Any]:
    unknown = {"source": "unavailable", "reason": "gone"} if used_mib is None else {}
    return documents.sample(t_ns=t_ns, rank=rank, pid=100 + rank, used_mib=used_mib, **unknown | more)


def launch(number: int, scenario: str, status: str = "ok", reason: str | None = None) -> dict[str, Any]:
    ran = effective() if status == "ok" else None
    return {"launch": number, "scenario": scenario, "status": status, "reason": reason, "effective": ran}


def document(*launches: dict[str, Any]) -> RunDocument:
    names = list(dict.fromkeys(entry["scenario"] for entry in launches))
    about = {"request": {"scenarios": names}, "workload": {"global_batch": 8}}
    return documents.document(**about, launches=list(launches))


def summarised(*launches: dict[str, Any], steps: list[dict[str, Any]], used: pd.DataFrame | None = None) -> Any:
    columns = list(step_rows(0, "x", [1.0])[0])
    values = launch_stats(pd.DataFrame(steps, columns=columns))
    return summary(document(*launches), values, peaks(memory(()) if used is None else used)).set_index("scenario")


@pytest.mark.parametrize("ddp", [[], [launch(1, "ddp", "oom", "out of memory")]])
def test_without_figures_of_ddp_nothing_is_relative(ddp: list[dict[str, Any]]) -> None:
    table = summarised(launch(0, "single"), *ddp, steps=step_rows(0, "single", [8.0]))
    assert table["relative_to_ddp"].isna().all()
    assert table.loc["single", "throughput_per_s"] == 1000.0


def test_phases_are_those_of_the_slowest_rank() -> None:
    steps = pd.DataFrame(step_rows(0, "ddp", [900.0, 900.0, 4.0, 8.0, 8.0], [900.0, 900.0, 100.0, 4.0, 4.0], warmup=2))
    found = phase_medians(steps).drop(columns="launch").iloc[0].to_dict()
    assert found == {"scenario": "ddp", "data_ms": 0.0, "forward_ms": 2.0, "backward_ms": 4.0, "optimizer_ms": 2.0}


def test_figures_come_from_the_good_launches_alone() -> None:
    """The launch that failed left steps and memory of the rank that did not."""
    rows = step_rows(0, "ddp", [4.0]) + step_rows(1, "ddp", [999.0], repeat=1)
    used = memory([sample(1, 0, 100.0), sample(2, 0, 900.0, launch=1)])
    table = summarised(launch(0, "ddp"), launch(1, "ddp", "killed", "ended by SIGKILL"), steps=rows, used=used)
    ddp = table.loc["ddp"]
    assert (ddp["step_median_ms"], ddp["peak_total_mib"]) == (4.0, 100.0)
    assert (ddp["status"], ddp["reason"], ddp["launches_ok"], ddp["launches"]) == ("killed", "ended by SIGKILL", 1, 2)


@pytest.mark.parametrize(
    ("rows", "pid_mib", "total_mib", "source"),
    [
        ([(1, 0, 100.0), (1, 1, 10.0), (2, 0, 10.0), (2, 1, 90.0)], 100.0, 110.0, "rss"),
        ([(1, 0, 100.0), (2, 0, None), (3, 0, 80.0)], 100.0, 100.0, "rss+unavailable"),
        ([(1, 0, 100.0), (1, 1, None), (2, 0, 90.0), (2, 1, None)], 100.0, None, "rss+unavailable"),
        ([(1, 0, None), (2, 0, None)], None, None, "unavailable"),
    ],
    ids=["of one moment", "a sample is unknown", "a process is unknown", "all is unknown"],
)
def test_peaks(rows: list[Any], pid_mib: float | None, total_mib: float | None, source: str) -> None:
    """What is unknown hides no other sample, and the total where a process never was known."""
    used = memory(sample(*row) for row in rows)
    ddp = summarised(launch(0, "ddp"), steps=step_rows(0, "ddp", [4.0]), used=used).loc["ddp"]
    known = [None if pd.isna(ddp[name]) else ddp[name] for name in ("peak_pid_mib", "peak_total_mib", "memory_source")]
    assert known == [pid_mib, total_mib, source]
    assert peak_by_process(used).empty == (pid_mib is None)


def test_a_process_on_two_devices_is_added_up_by_time() -> None:
    """A DataParallel process: 150 at one moment and 140 at the next, never 100 + 80."""
    ticks = ((1, 100.0, "a"), (1, 50.0, "b"), (2, 60.0, "a"), (2, 80.0, "b"))
    used = memory(sample(t_ns, 0, used, device=device) for t_ns, used, device in ticks)
    assert peaks(used)[["peak_pid_mib", "peak_total_mib"]].to_numpy().tolist() == [[150.0, 150.0]]
    assert peak_by_process(used)["peak_mib"].tolist() == [100.0, 80.0]


@pytest.mark.parametrize(
    ("steps", "shown"),
    [(12, (0, 2, 4, 7, 9)), (80, (0, 16, 32, 48, 64)), (81, (0, 20, 40, 60, 80)), (200, (0, 20, 40, 60, 80))],
)
def test_which_iterations_are_shown(steps: int, shown: tuple[int, ...]) -> None:
    assert published.iterations(steps) == shown


TORCH_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"


def effective(wrapper: str = TORCH_DDP, **more: Any) -> dict[str, Any]:
    ran = {"wrapper": wrapper, "parallel_impl": wrapper.split(".")[0], "precision": "O0", "precision_impl": "torch"}
    return ran | {"backend": "gloo", "device": {"type": "cpu"}} | more


ALONE: dict[str, Any] = {"backend": None, "world_size": 1, "replicas": 1}
TF32 = {"cudnn": True, "matmul": False}
TORCH_DP = "torch.nn.parallel.data_parallel.DataParallel"
APEX_DDP = "apex.parallel.distributed.DistributedDataParallel"
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
        (effective("bench.worker.flat_bucket.FlatBucketDataParallel"), "native flat-bucket · gloo ×2 · fp32"),
        (cuda(APEX_DDP, APEX_O2, apex_kernels=True), "apex DDP · nccl ×2 · apex O2 fp16"),
        (cuda(APEX_DDP, NATIVE_O2), "apex DDP · nccl ×2 · native O2 fp16"),
        (cuda(APEX_DDP, APEX_O2, apex_kernels=False), "apex DDP (Python) · nccl ×2 · apex (Python) O2 fp16"),
        (cuda(TORCH_DDP, APEX_O2, apex_kernels=False), "torch DDP · nccl ×2 · apex (Python) O2 fp16"),
        (cuda(RESNET, ALONE, tf32=TF32), "no wrapper · fp32 (TF32 convolutions)"),
        (cuda(RESNET, ALONE, tf32={"cudnn": None, "matmul": False}), "no wrapper · fp32"),
        (cuda(RESNET, ALONE, tf32={"cudnn": None, "matmul": True}), "no wrapper · fp32 (TF32 matrix products)"),
        (cuda(TORCH_DDP, NATIVE_O2, tf32=TF32), "torch DDP · nccl ×2 · native O2 fp16"),
        (effective("mine.setup.Hierarchical"), "Hierarchical · gloo ×2 · fp32"),
        (None, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ran_is_said_in_words(ran: dict[str, Any] | None, words: str) -> None:
    (launch,) = document({"scenario": "ddp", "effective": ran}).launches
    assert labels.what_ran(launch.effective) == words
