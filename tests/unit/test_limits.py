"""How much of what a machine can do a step does: work, peaks, ceilings, and the account of a step."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import torch._dynamo  # within torch.device("meta") the import of torch 2.6 fails; a worker host has it, too
from standin.documents import document, launch, with_records
from standin.workloads import workload
from torch.autograd import DeviceType
from torch.autograd.profiler_util import Interval

from bench.analyse.account import PARTS, Account, account, accounts, bound_ms, gain, middle_mean, profiled, proofs
from bench.analyse.limits import arithmetic
from bench.analyse.peaks import PEAKS, peak
from bench.core.codec import Damaged, decode, encode
from bench.core.job import Task, Training
from bench.experiments import limits as experiment
from bench.experiments import prove
from bench.runs.experiments import (
    Ceilings,
    CeilingsLaunch,
    Limits,
    LimitsLaunch,
    Operator,
    Prediction,
    ProofLaunch,
    Proofs,
    Work,
)
from bench.runs.launches import Tf32
from bench.seams import Switch, discover, switching
from bench.seams.discover import WORKLOAD
from bench.seams.switch import RECOVERABLE
from bench.words.limits import doubts, percent, proved, recoverable, sentences
from bench.worker import ceilings as worker_ceilings
from bench.worker import diagnose, loop, work
from bench.worker import limits as worker
from bench.worker.workload import build_model, loss_of


def counted(training: Training, batch: Any) -> work.Counter:
    """Of a step without memory or values (torch's device meta)."""
    with torch.device("meta"):
        model = build_model(training)
    counter = work.Counter(model)
    with counter:
        loss_of(training)(model, batch).backward()
    return counter


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(count, 3, 224, 224, device="meta"), torch.empty(count, dtype=torch.long, device="meta")


@pytest.mark.parametrize(("model", "gmac"), [("resnet50", 4.09), ("resnet101", 7.80)])
def test_flops_of_resnets_are_the_published_ones(model: str, gmac: float) -> None:
    """He et al. 2016 say 3.8 and 7.6 for the stride in the first 1x1; torchvision's models have it in the 3x3, and its
    documentation says 4.09 and 7.80."""
    counter = counted(workload(model=model, image_size=224), images(2))
    assert counter.forward / 2 / 2e9 == pytest.approx(gmac, abs=0.005)
    assert 0.99 < counter.convolutions / (counter.forward + counter.backward) < 1.0
    assert counter.backward == pytest.approx(2 * counter.forward, rel=0.02)  # all but the gradient of the images


def test_flops_of_gpt2_are_the_published_ones() -> None:
    """nanoGPT's transformer_sizing.ipynb: 291.6 GFLOP forward for 1,024 tokens, with a vocabulary of 50,257."""
    found = discover.load_workload("gpt", discover.names(WORKLOAD)["gpt"])
    settings = found.workload.settings_on("cuda") | {"vocabulary": 50257}
    trained = found.task("cuda", settings)
    task = {name: getattr(trained, name) for name in Task.__dataclass_fields__}
    training = Training(**task, global_batch=1, replicas=1, device="cuda", warmup=1)
    tokens = torch.empty(1, 1024, dtype=torch.long, device="meta")
    counter = counted(training, (tokens, tokens))
    assert counter.forward == pytest.approx(291_648_307_200, rel=1e-3) and counter.convolutions == 0
    assert counter.forward + counter.backward == pytest.approx(874_944_921_600, rel=1e-3)


@pytest.mark.parametrize("layers", [torch.nn.LSTM(8, 16, 2, bidirectional=True), torch.nn.GRU(8, 16, batch_first=True)])
def test_flops_of_recurrent_layers(layers: torch.nn.Module) -> None:
    """One operator where oneDNN has it, and a product for each step elsewhere."""
    counter = work.Counter(layers)
    with counter:
        layers(torch.randn(5, 4, 8, requires_grad=True))[0].sum().backward()
    matrices = sum(one.numel() for one in layers.parameters() if one.ndim == 2)
    assert counter.forward == 2 * 5 * 4 * matrices
    assert 1.8 < counter.backward / counter.forward <= 2.0  # the first state has no gradient


def test_flops_of_cudnn_recurrent_layers() -> None:
    weights = [torch.empty(64, 8), torch.empty(64, 16), torch.empty(64), torch.empty(64)]
    for operator, times in ((torch.ops.aten._cudnn_rnn, 1), (torch.ops.aten._cudnn_rnn_backward, 2)):
        flops = work.flops_of(operator.default, [torch.empty(5, 4, 8), weights, 4], {}, None)
        assert flops == times * 2 * 5 * 4 * 64 * (8 + 16)


@pytest.mark.parametrize(
    ("device", "kind", "tflops"),
    [
        *(("NVIDIA H100 80GB HBM3", "bf16", 989.4), ("NVIDIA H100 PCIe", "fp16", 756.5)),
        *(("NVIDIA A100-SXM4-80GB", "bf16", 312.0), ("NVIDIA L4", "fp32", 30.3), ("NVIDIA L40S", "bf16", 362.0)),
        *(("Tesla V100-SXM2-16GB", "fp16", 125.0), ("Tesla V100-SXM2-16GB", "bf16", None)),
        *(("NVIDIA GeForce RTX 3090", "fp16", 71.0), ("NVIDIA GeForce RTX 3090 Ti", "fp16", None)),
        *(("NVIDIA GeForce RTX 4090", "tf32", 82.6), ("NVIDIA GeForce RTX 4090 Laptop GPU", "tf32", None)),
        *(("NVIDIA GeForce RTX 5090", "bf16", 209.5), ("NVIDIA B300 SXM6 AC", "bf16", None)),
        *(("NVIDIA B200", "tf32", 1100.0), ("NVIDIA GB200", "bf16", 2500.0), ("NVIDIA GH200 480GB", "fp16", 989.4)),
        *(("NVIDIA H200", "tf32", 494.7), ("AMD Instinct MI300X", "bf16", 1307.4), (None, "fp32", None)),
    ],
)
def test_nominal_peaks_are_dense(device: str | None, kind: str, tflops: float | None) -> None:
    value, why = peak(device, kind)
    assert value == tflops and why
    assert value is None or why in {source for _, _, source in PEAKS}


ABOUT = {"device": "CPU", "driver": None, "torch": "2.6", "processes": 1, "threads": 2}
CEILINGS = {
    **ABOUT,
    "utc": "2026-01-01T00:00:00Z",
    "tflops": {"matrix products fp32": [0.1], "convolutions fp32": [0.2], "matrix products tf32": [0.8]},
    "gib_per_s": {"read": [10.0], "write": [8.0], "optimizer": [9.0]},
    "launch_us": [1.0],
    "reasons": {},
}


def operator(name: str, phase: str = "forward", count: int = 1, **of: Any) -> Operator:
    usual = {"type": "fp32", "flops": 0, "bytes": 0, "alone_ms": 1.0}
    return decode(Operator, {"name": name, "phase": phase, "count": count, **usual, **of})


OPERATORS = (
    operator("mm.default", count=2, flops=10**9, bytes=2**20, alone_ms=15.0),  # 10 ms at the ceiling
    operator("convolution.default", flops=10**9, bytes=2**20, alone_ms=4.0),  # faster than its ceiling, 5 ms
    operator("relu.default", bytes=10 * 2**30 // 1000, alone_ms=3.0),  # 1 ms at the memory's
    operator("_fused_sgd_.default", "optimizer", bytes=10 * 2**30 // 1000, alone_ms=2.0),
)


def taken_apart(**of: Any) -> Any:
    effective = SimpleNamespace(compute_dtypes=("float32",), tf32=None)
    usual = {"scenario": "ddp", "launch": 3, "processes": 2, "effective": effective}
    usual |= {"lead_ms": (None, None), "fresh_ms": ()}
    spent = {"arithmetic": 40.0, "memory": 3.0, "optimizer": 1.0, "communication": 0.0, "host": 5.0}
    more = {"spent_ms": (spent, spent), "operators": OPERATORS, "reasons": {}}
    return SimpleNamespace(**usual | more | of)


def steps(forward_ms: tuple[float, float] = (30.0, 30.0), exchange_ms: float = 4.0) -> pd.DataFrame:
    """Two ranks that wait for each other in the backward pass, and do not without an exchange."""
    latest = max(forward_ms)
    rows = [
        {"rank": rank, "step": step, "synchronised": on, "data_ms": 2.0, "forward_ms": own, "optimizer_ms": 3.0}
        | {"backward_ms": 20.0 + (exchange_ms + latest - own) * on}
        for step in range(4)
        for on in (True, False)
        for rank, own in enumerate(forward_ms)
    ]
    return pd.DataFrame(rows)


def accounted(rows: pd.DataFrame, **of: Any) -> Account:
    launch = taken_apart(**of)
    return account(launch, launch, decode(Ceilings, CEILINGS), rows)


def test_the_parts_of_a_step_and_what_is_left_over() -> None:
    of = accounted(steps())
    assert of.step_ms == pytest.approx(59.0)
    assert of.parts == pytest.approx(
        {
            "arithmetic": 2 * 10.0 + 4.0,
            "kernels": 2 * 5.0,
            "memory": 3.0,
            "optimizer": 1.0,  # faster in the step than alone
            "contention": 40.0 - 34.0,
            "communication": 4.0,
            "stragglers": 0.0,
            "data": 2.0,
            "host": 5.0,
        }
    )
    assert of.unexplained_ms == pytest.approx(59.0 - 55.0) and not of.adds_up
    assert of.own_limit_ms == pytest.approx(39.0) and of.limit_ms == pytest.approx(24.0 + 1.0 + 1.0)
    one = operator("mm.default", flops=8 * 10**9)
    in_fp32 = (None, Tf32(cudnn=True, matmul=False))  # convolutions alone take TF32
    bounds = [bound_ms(one, decode(Ceilings, CEILINGS), tf32) for tf32 in (*in_fp32, Tf32(cudnn=None, matmul=True))]
    assert bounds == pytest.approx([80.0, 80.0, 10.0])


@pytest.mark.parametrize(
    ("convolutions", "matmul", "kind"), [(0.9, False, "tf32"), (0.1, False, "fp32"), (0.1, True, "tf32")]
)
def test_the_type_is_that_of_most_of_the_arithmetic(convolutions: float, matmul: bool, kind: str) -> None:
    ran: Any = SimpleNamespace(compute_dtypes=("float32",), tf32=Tf32(cudnn=True, matmul=matmul))
    made = {"forward_flops": 1.0, "backward_flops": 2.0, "convolution_flops": 3.0 * convolutions}
    sizes = dict.fromkeys(("parameters", "exchanged_bytes", "optimizer_bytes"), 0)
    assert arithmetic(ran, Work(**made, **sizes)) == kind


def test_a_slow_rank_and_what_is_not_known() -> None:
    parts = accounted(steps(forward_ms=(30.0, 50.0))).parts
    assert parts["stragglers"] == pytest.approx(10.0) and parts["communication"] == pytest.approx(4.0)
    launch = taken_apart()
    assert account(launch, launch, None, steps()).limit_ms is None
    one = accounted(steps(forward_ms=(30.0, 50.0)), operators=(), reasons={"operators": "x", "communication": None})
    assert one.own_limit_ms is None and one.parts["arithmetic"] == 40.0 and "kernels" not in one.parts
    other = accounted(steps(forward_ms=(30.0, 50.0)), reasons={"communication": "no_sync is not there"})
    assert other.parts["communication"] == 0.0 and other.parts["stragglers"] == pytest.approx(10.0)
    late = steps().assign(optimizer_ms=lambda rows: 3.0 + 2.0 * rows["rank"])
    last = accounted(late, reasons={"communication": "no_sync is not there"})
    assert last.parts["stragglers"] == pytest.approx(1.0) and last.step_ms == pytest.approx(61.0)


@pytest.mark.parametrize(("reason", "ms"), [("FSDP2 gathers weights in every step", 14.0 - 10.0), (None, 14.0 + 4.0)])
def test_a_step_on_the_cpu_waits_for_other_exchanges_than_of_gradients(reason: str | None, ms: float) -> None:
    """FSDP2 for weights, and for the slow rank meanwhile; ZeRO-1 in its optimizer, also without that of gradients."""
    spent = {"arithmetic": 40.0, "memory": 3.0, "optimizer": 1.0, "communication": 14.0, "host": 5.0}
    on_the_cpu = {"fresh_ms": ({"step": 0.0, "profiled": 0.0},), "reasons": {"communication": reason}}
    waits = accounted(steps(forward_ms=(30.0, 50.0)), spent_ms=(spent,), **on_the_cpu)
    assert waits.parts["communication"] == pytest.approx(ms)


def test_steps_of_two_kinds_count_by_how_many_there_are() -> None:
    times_ms = [40.0, 20.0, 40.0, 20.0, 40.0, 999.0, 20.0]
    assert middle_mean(pd.Series(times_ms)) == 32.0 and sorted(worker.middle(times_ms)) == [0, 2, 3, 4, 6]


def test_a_launch_with_one_kind_of_step_has_no_account() -> None:
    one = taken_apart(status="ok", ranks=())
    rows, about = steps().assign(launch=one.launch), with_records(document(), Limits(launches=(one,)))
    tables: Any = (rows, rows[rows["synchronised"]], rows[~rows["synchronised"]], rows[:0])
    assert [len(accounts(SimpleNamespace(document=about, diagnostics=table))) for table in tables] == [1, 0, 0, 0]
    one.spent_ms = (dict.fromkeys(one.spent_ms[0], 0.0),) * 2
    unseen: Any = SimpleNamespace(document=about, diagnostics=rows)
    assert accounts(unseen) == [], "the profiler saw no kernel"


def test_a_share_that_rounds_to_nothing_has_no_sign() -> None:
    assert [percent({"share": of, "share_low": None}) for of in (-0.004, 0.004, -0.14)] == ["0 %", "0 %", "-14 %"]


@pytest.mark.parametrize(("profiled_ms", "fresh_ms"), [(1.0, 3.0), (9.0, 0.0)])
def test_first_touches_of_memory_are_no_contention(profiled_ms: float, fresh_ms: float) -> None:
    """The profiler changes how many there are: of the 6 ms beyond operators alone those of the profiled step go."""
    fresh = ({"step": 3.0, "profiled": profiled_ms},) * 2
    parts = accounted(steps(), fresh_ms=fresh).parts
    assert (parts["fresh"], parts["contention"]) == pytest.approx((fresh_ms, max(0.0, 6.0 - profiled_ms)))


@pytest.mark.parametrize(("lead_ms", "host_ms"), [((20.0, 30.0), 0.0), ((20.0, 0.5), 55.0 - 2.0 - 44.0)])
def test_a_gpu_waits_for_a_host_that_is_not_ahead(lead_ms: tuple[float, float], host_ms: float) -> None:
    """For what its kernels leave of a step without an exchange; waiting for data or another rank is not the host."""
    of = accounted(steps(), lead_ms=lead_ms)
    assert of.parts["host"] == pytest.approx(host_ms) and of.unexplained_ms == pytest.approx(9.0 - host_ms)
    no_other = accounted(steps((30.0, 40.0)), lead_ms=lead_ms, reasons={"communication": "no_sync is not there"})
    assert no_other.parts["host"] == pytest.approx(host_ms and 60.0 - 2.0 - 5.0 - 44.0)


def test_each_profile_that_is_read_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a large model take longer than a rank may be silent."""
    signs: list[int] = []
    monkeypatch.setattr(worker, "counted", lambda profiler: signs.append(0) or [])
    worker.spent_ms(worker.Seen(profiles=[None, None]), 1, "cuda", lambda: signs.append(1))
    assert signs == [1, 0, 1, 0]


def test_ceilings_are_kept_by_what_they_hold_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE_DIR", str(tmp_path))
    ceilings = decode(Ceilings, CEILINGS)
    busy, idle = (launch(checks={"foreign_cores": cores}) for cores in (0.5, 0.1))
    assert "not kept" in experiment.keep_for_later(ceilings, ABOUT, busy, 2) and experiment.from_cache(ABOUT) is None
    assert experiment.keep_for_later(ceilings, ABOUT, idle, 2) == "ceilings, kept for later runs"
    assert experiment.from_cache(ABOUT) == ceilings and experiment.from_cache(ABOUT | {"torch": "2.7"}) is None
    Path(experiment.kept_in(ABOUT)).write_text("{}")
    assert experiment.from_cache(ABOUT) is None


def test_each_interpreter_has_ceilings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "visible_gpus", lambda: ([], None))
    old, new = ({"torch": version} for version in ("2.6", "2.10"))
    site = SimpleNamespace(description={**old, "environments": {"old": old, "new": new}})
    lab: Any = SimpleNamespace(site=site, writer=SimpleNamespace(document=document(machine={"cpu": "CPU"})))
    job: Any = SimpleNamespace(processes=1, environment="new", ranks=[SimpleNamespace(devices=(), threads=2)])
    about = experiment._setting(job, lab)
    assert about == ABOUT | new
    first, second = decode(Ceilings, CEILINGS), decode(Ceilings, CEILINGS | about)
    one = launch(processes=1, ranks=[{"rank": 0, "pid": 1, "threads": 2}], effective={"versions": {"torch": "2.10"}})
    assert Limits(ceilings=(first, second)).ceilings_of(one) == second
    assert Limits(ceilings=(first,)).ceilings_of(one) is None
    assert Limits(ceilings=(first, second)).ceilings_of(replace(one, effective=None)) == first


@pytest.mark.parametrize(
    ("foreign", "status", "ms", "said"),
    [
        (0.1, "ok", 4.0, []),
        (1.9, "ok", 4.0, ["Others"]),
        (0.1, "killed", 4.0, ["There"]),
        (0.1, "ok", 0.0, ["There"]),  # a profiler that sees no kernel of the GPU
        (1.9, "ok", 0.0, ["There"]),
    ],
)
def test_a_step_without_a_sound_account(foreign: float, status: str, ms: float, said: list[str]) -> None:
    one = launch(checks={"foreign_cores": foreign}, status=status)
    apart = LimitsLaunch.of(one, spent_ms=({"arithmetic": ms, "host": 0.0},))
    assert profiled(apart) is (ms > 0)
    records = Limits(launches=(apart,), measured=(CeilingsLaunch.of(one),))
    about = with_records(document(machine={"cores_usable": 2}), records)
    assert [line.partition(" ")[0] for line in doubts(about)] == said
    asked: Any = None
    assert experiment.missing(about, asked) is (status == "killed"), "ceilings are measured again"


def test_ceilings_are_what_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"TRIAL_S": 0.01, "SUSTAINED_S": 0.05, "SAMPLE_S": 0.01}
    sizes = {"EDGES": (64, 128), "IMAGES": ((1, 8, 8),), "BYTES": 2**22}
    for name, value in (seconds | {name: {"cpu": size} for name, size in sizes.items()}).items():
        monkeypatch.setattr(worker_ceilings, name, value)
    turns: list[int] = []
    plan = SimpleNamespace(parts=SimpleNamespace(device=torch.device("cpu")))
    found = worker_ceilings.perform(plan, lambda phase, of: turns.append)["ceilings"]  # type: ignore[arg-type]
    kinds = ("matrix products", "convolutions")
    assert set(found["tflops"]) == {f"{kind} {name}" for kind in kinds for name in ("fp32", "bf16")}
    assert set(found["gib_per_s"]) == {"read", "write", "optimizer"} and turns == list(range(1, 15))
    assert all(value > 0 for group in ("tflops", "gib_per_s") for value in found[group].values())
    assert found["launch_us"] > 0 and found["reasons"]["to_device"] == worker_ceilings.NO_COPY


def test_each_operator_is_repeated_with_its_own_shapes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    session = SimpleNamespace()
    session.forward = lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    session.backward, session.optimize = torch.Tensor.backward, optimizer.step
    batch = torch.randn(4, 8), torch.tensor([0, 1, 15, 3])
    operators = worker.captured(session, lambda: batch)  # type: ignore[arg-type]
    found, reason = worker.replayed(operators, torch.device("cpu"), lambda done: None)
    assert reason is None and all(one["alone_ms"] > 0 for one in found)  # type: ignore[operator]
    products = [one for one in found if one["flops"]]
    flops = 2 * 4 * 8 * 16, 2 * 4 * 16 * 16
    assert sum(int(str(one["flops"])) for one in products if one["phase"] == "forward") == sum(flops)
    assert sum(int(str(one["flops"])) for one in products if one["phase"] == "backward") == flops[0] + 2 * flops[1]
    (step,) = (one for one in found if str(one["name"]).startswith("_fused"))
    assert step["phase"] == "optimizer" and step["type"] == "fp32"
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert 3 * parameters <= int(str(step["bytes"])) < 3 * parameters + 100


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_operators_on_nested_tensors() -> None:
    linear, counter, capture = torch.nn.Linear(8, 16), work.Counter(torch.nn.Linear(8, 16)), worker.Capture()
    with counter:
        jagged = torch.nested.nested_tensor_from_jagged(torch.randn(18, 8), torch.tensor([0, 5, 18]))
        linear(jagged).values().sum().backward()
    assert counter.forward == counter.backward == 2 * 18 * 8 * 16, "all values, in one product"
    strided = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    with capture:
        (strided * 2).mul(torch.ones(()))


def test_what_is_between_operators_is_the_host() -> None:
    def event(name: str, us: float, parent: Any = None, children: int = 0, thread: int = 1) -> Any:
        of = {"name": name, "self_cpu_time_total": us, "cpu_parent": parent, "cpu_children": [None] * children}
        of["self_device_time_total"] = us  # of the kernels that it has launched itself
        return SimpleNamespace(**of, thread=thread, device_type=DeviceType.CPU)

    forward, optimizer = event("forward", 100.0, children=3), event("optimizer", 10.0)
    around = event("autograd::engine::evaluate_function: AddmmBackward0", 20.0)
    events = [
        *(forward, optimizer, around, event("data", 500.0), event("Optimizer.step#SGD.step", 5.0, optimizer)),
        event("aten::addmm", 300.0, forward, children=1),
        event("aten::relu", 30.0, forward),
        event("mine::slow", 40.0, forward),
        event("aten::_fused_sgd_", 50.0, optimizer),
        event("gloo:all_reduce", 70.0, thread=1),
        event("aten::mm", 9000.0, thread=2),
    ]
    spent = worker.by_class(worker.of_the_step(events, "cpu"), "cpu", 2.0)
    assert spent == pytest.approx(
        {"arithmetic": 0.298, "memory": 0.07, "optimizer": 0.05, "communication": 0.07, "host": 0.135 - 0.006}
    )
    kernels = [event("triton_poi_fused_relu_0", 60.0, forward), event("aten::mm", 80.0, forward)]
    spent = worker.by_class(worker.of_the_step(kernels, "cuda"), "cuda", 0.0)
    assert spent == {"arithmetic": 0.08, "memory": 0.06, "optimizer": 0.0, "communication": 0.0, "host": 0.0}


def test_what_the_profiler_takes_is_taken_out_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 ms under it the 10 ms of a plain step are left, whatever other threads do meanwhile."""

    def event(name: str, us: float, children: int = 0, thread: int = 1) -> Any:
        of = {"self_cpu_time_total": us, "cpu_time_total": 12e3, "cpu_parent": None, "cpu_children": [None] * children}
        return SimpleNamespace(name=name, thread=thread, device_type=DeviceType.CPU, **of)

    step = [event("ProfilerStep*", 2e3, children=1), event("forward", 4e3, children=3), event("aten::mm", 6e3)]
    monkeypatch.setattr(worker, "counted", lambda profiler: [*step, *[event("gloo:all_gather", 9e3, 5, thread=2)] * 4])
    noted: dict[str, Any] = {"quiet": [[1.0, 2.0, 3.0, 4.0]] * 4, "profiles": [None] * 4, "first_touch_us": [0.1]}
    seen = worker.Seen(**noted, quiet_faults=[0.0] * 4, profiled_faults=[0.0] * 4)
    spent = worker.spent_ms(seen, 1, "cpu", lambda: None)["spent_ms"]
    assert sum(spent.values()) == pytest.approx(10.0)


def test_an_exchange_that_other_kernels_hide_is_not_exposed() -> None:
    def event(name: str, start: float, end: float, annotation: bool = False, device: Any = DeviceType.CUDA) -> Any:
        of = {"time_range": Interval(1e3 * start, 1e3 * end), "is_user_annotation": annotation}
        return SimpleNamespace(name=name, device_type=device, **of)

    settling = [event("ncclDevKernel_AllGather", 1, 9), event("gemm", 1, 9), event("settling", 1, 8, annotation=True)]
    settling += [event("settling", 0, 9, annotation=True, device=DeviceType.CPU)]
    step = [event("MyModel", 10, 50, annotation=True), event("aten::mm", 10, 50, device=DeviceType.CPU)]
    step += [event("ncclDevKernel_AllGather", 10, 20), event("ncclDevKernel_ReduceScatter", 19, 36)]
    step += [event("gemm", 14, 18), event("gemm", 17, 25), event("relu", 35, 50)]
    alone = 4.0 + 10.0  # from 10 to 14 and from 25 to 35
    profiler: Any = SimpleNamespace(events=lambda: [*step, *settling])
    hidden_ms = worker.hidden_ms(worker.counted(profiler))
    assert hidden_ms == pytest.approx(10.0 + 17.0 - alone + 1.0), "and a gemm over the other"


def test_the_gain_of_a_switch_is_what_it_recovers() -> None:
    accounts = [accounted(steps(exchange_ms=ms)) for ms in (4.0, 8.0)]  # of steps of 59 and 63 ms
    value, low, _ = gain(accounts, {"communication": 0.5, "data": 1.0})
    assert value == pytest.approx((59 / 55 + 63 / 57) / 2) and low is not None and low < value
    assert gain(accounts[:1], {"host": 1.0}) == (pytest.approx(59 / 54), None, None)


@pytest.mark.parametrize(
    ("after_ms", "apart_ms", "verdict"),
    [(90.0, 0.1, "right"), (60.0, 0.1, "too low"), (120.0, 0.1, "too high"), (85.0, 10.0, "undecided")],
)
def test_a_prediction_is_scored(after_ms: float, apart_ms: float, verdict: str) -> None:
    predictions = [Prediction(scenario="ddp+fused", gain=1.1, low=1.05, high=1.15)]
    predictions.append(Prediction(scenario="ddp+compile", gain=1.05, low=None, high=None))
    launches = [
        ProofLaunch.of(launch(launch=2 * repeat + side, scenario=name, repeat=repeat), step_ms=ms + apart * repeat)
        for repeat in range(3)
        for side, (name, ms, apart) in enumerate((("ddp", 100.0, 0.1), ("ddp+fused", after_ms, apart_ms)), start=1)
    ]
    about = with_records(document(), Proofs(base="ddp", predictions=tuple(predictions), launches=tuple(launches)))
    first, second = proofs(about).to_dict("records")
    assert first["verdict"] == verdict and first["measured"] == pytest.approx(100.1 / (after_ms + apart_ms), rel=5e-3)
    assert second["verdict"] == "not measured"
    (scored, other) = proved(about)
    assert scored.startswith("ddp+fused was predicted to be 1.10 times (1.05 to 1.15) as fast as ddp, and is ")
    told = "whether the prediction was right." if verdict == "undecided" else f"the prediction was {verdict}."
    assert scored.endswith(told) and "was not measured" in other


@pytest.mark.parametrize(
    ("kernels", "rest", "said"),
    [
        (0.17, 0.66, "most of the rest is unexplained: 66 %"),
        (0.4, 0.1, "the largest part of the rest is kernels below"),
    ],
)
def test_what_is_most_of_the_rest(monkeypatch: pytest.MonkeyPatch, kernels: float, rest: float, said: str) -> None:
    shares = {"arithmetic": 0.04, "kernels": kernels, "host": 0.1, "unexplained": rest, "limit": 0.04}
    rows = {name: {"ms": 10 * share, "share": share, "share_low": None} for name, share in shares.items()}
    monkeypatch.setattr("bench.words.limits.by_scenario", lambda run: {"single": rows})
    monkeypatch.setattr("bench.words.limits.doubts", lambda run: [])
    monkeypatch.setattr("bench.words.limits.accounts", lambda run: [accounted(steps())])
    reached, apart = sentences(SimpleNamespace(document=None))  # type: ignore[arg-type]
    assert f"single reaches 4 % of what this machine can do on this model; {said}" in reached
    assert apart == "The account does not add up within 5 % of the step in: launch 3 (+7 %, ddp)."


def test_candidates_fit_and_are_not_on_yet() -> None:
    def names(scenario: str, fused: bool = False, on: str | None = None) -> set[str]:
        one: Any = SimpleNamespace(effective=SimpleNamespace(optimizer_fused=fused))
        found = switching.scenario(scenario)
        return {name for name, _ in prove.candidates(replace(found, environment=on) if on else found, "cpu", one, None)}

    assert {"ddp+fused", "ddp+bucket_mb", "ddp+keep_memory"} <= names("ddp")
    assert "ddp+fused" not in names("ddp", fused=True) and not {"ddp+cuda_graphs", "ddp+channels_last"} & names("ddp")
    assert not any("bucket_mb" in name for name in names("single"))
    assert "ddp+keep_memory" not in names("ddp+keep_memory"), "it is on already"
    assert "ddp+o1+fused@2.10" in names("ddp+o1", on="2.10"), "of the same interpreter"


@pytest.mark.parametrize("convolves", [None, True, False])
def test_a_layout_of_images_helps_only_convolutions(convolves: bool | None) -> None:
    of: Any = None if convolves is None else SimpleNamespace(convolves=convolves)
    launch: Any = SimpleNamespace(effective=SimpleNamespace(optimizer_fused=False))
    tried = [name for name, _ in prove.candidates(switching.scenario("ddp"), "cuda", launch, of)]
    assert ("ddp+channels_last" in tried) == (convolves is not False)
    assert ("channels_last" in recoverable("ddp", "cuda", of).get("kernels", ())) == (convolves is not False)


@pytest.mark.parametrize("recovers", [{"cpu": {"magic": 0.5}}, {"cpu": {"host": 1.5}}, {"tpu": {"host": 0.5}}])
def test_a_switch_recovers_a_share_of_a_part(recovers: dict[str, dict[str, float]]) -> None:
    assert set(RECOVERABLE) == {*PARTS} - {"arithmetic"}
    with pytest.raises(Damaged, match="recovers"):
        decode(Switch, encode(Switch(summary="s", label="l", recovers=recovers)))


def test_first_touches_are_of_private_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[int] = []

    def faults() -> int:
        shared.append(Path("/proc/self/maps").read_text().count("/dev/zero"))
        return len(shared)

    monkeypatch.setattr(worker, "faults", faults)
    before = Path("/proc/self/maps").read_text().count("/dev/zero")
    worker.first_touch_us()
    assert shared and set(shared) == {before}


def test_each_step_of_a_block_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of a GPU's steps may take longer than a rank may be silent, and so may reading a profile of them all."""
    for module in (loop, diagnose):
        monkeypatch.setattr(module, "clock_for", lambda device: loop.HostClock())
    monkeypatch.setattr(loop, "finish", lambda device: None)
    monkeypatch.setattr(loop, "PROGRESS_INTERVAL_NS", 0)
    profiles: list[Any] = []
    profiling = worker.profiling
    monkeypatch.setattr(worker, "profiling", lambda _: profiles.append(profiling(torch.device("cpu"))) or profiles[-1])
    weight = torch.zeros((), requires_grad=True)
    session: Any = SimpleNamespace(
        parts=SimpleNamespace(device=torch.device("cuda")),
        forward=lambda batch: weight * batch,
        backward=lambda loss: loss.backward(),
        optimize=lambda: None,
        kept=torch.Tensor.detach,
    )
    ticks: list[int] = []
    worker.in_turns(session, lambda: torch.ones(()), 6, ticks.append)
    assert ticks == sorted(ticks) and set(ticks) == set(range(19))  # six steps, three ways to take them
    worker.in_turns(session, lambda: torch.ones(()), 3 * worker.MOST_PROFILED, ticks.append)
    marks = [sum(one.name.startswith("ProfilerStep") for one in worker.counted(profile)) for profile in profiles]
    assert marks == [3, 3, worker.MOST_PROFILED, worker.MOST_PROFILED]
