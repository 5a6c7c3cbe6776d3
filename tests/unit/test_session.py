"""AMP levels: what they make of a model, read off the live objects; and the measured loop around them."""

import gc
import importlib
import pickle
import sys
import time
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock, call

import pytest
import torch
import torch._dynamo
from standin import documented
from standin.sessions import SINGLE, Idle, load_of, parts_of, train
from standin.workloads import tiny
from torch import nn

from bench.core.errors import BenchError
from bench.core.records import SwitchOn
from bench.experiments import record
from bench.machine import recorded_environment
from bench.seams import Strategy, discover, switching
from bench.worker import apex, effective, live, loop, rank
from bench.worker.plan import Plan
from bench.worker.precision import Amp, ApexAmp, precision_of
from bench.worker.session import Parts

torch.set_num_threads(1)  # more of them wait for each other where other work shares the cores


def parts_for(precision: str = "O0", half: str = "bf16", global_batch: int = 2) -> Parts:
    return parts_of(precision=precision, half=half, global_batch=global_batch, task=tiny())


@cache
def ran_at(level: str) -> dict[str, Any]:
    return train(parts_for(level).session())[0]


def wrong(done: str, asked: str, strategy: Strategy = SINGLE.strategy, implementation: str = "torch") -> str:
    """What does not match where level ``done`` ran and ``asked`` was asked for, of this strategy."""
    return "; ".join(effective.contradictions(ran_at(done), parts_for(asked).job, strategy, implementation))


WEIGHTS_AND_NORMS = {
    "O0": ({"float32"}, {"float32"}, ["float32"], {"float32"}),
    "O1": ({"float32"}, {"float32"}, ["bfloat16"], {"float32"}),
    "O2": ({"bfloat16", "float32"}, {"float32"}, ["bfloat16"], {"float32"}),
    "O3": ({"bfloat16"}, {"bfloat16"}, ["bfloat16"], {"bfloat16"}),
}


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_level_is_what_the_table_says(level: str) -> None:
    ran = ran_at(level)
    weights, norms, compute, updated = WEIGHTS_AND_NORMS[level]
    assert set(ran["parameter_dtypes"]) == weights == set(ran["gradient_dtypes"])
    assert (set(ran["batch_norm_dtypes"]), set(ran["optimizer_dtypes"])) == (norms, updated)
    assert (ran["compute_dtypes"], ran["precision"]) == (compute, level)
    assert ran["scaler"] is None, "bf16 needs no loss scale"
    assert [asked for asked in WEIGHTS_AND_NORMS if not wrong(level, asked)] == [level], "another label is noticed"
    session = parts_for(level).session()
    assert session.forward(load_of(session.parts)()).dtype is torch.float32, "the loss, whatever computes"


def test_how_an_optimizer_may_be_made(tmp_path: Path) -> None:
    """It goes through the parameters twice, and has a scheduler already, which wraps its step."""
    made = "made = [*parameters] and SGD(parameters, lr=0.01)\n    made.own = "
    made += "__import__('torch').optim.lr_scheduler.ConstantLR(made)\n    return made"
    source = documented("WORKLOAD =").replace("return SGD(parameters, lr=0.01, fused=True)", made)
    (tmp_path / "mine.py").write_text(source)
    found = discover.load_workload("mine", str(tmp_path / "mine.py")).task("cpu", {"width": 8})
    optimizer = parts_of(task=found).build_optimizer(nn.Linear(2, 2).parameters())
    optimizer.step()
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_double_precision_is_no_level() -> None:
    double = {"float64": 1}
    kinds = ("parameter_dtypes", "batch_norm_dtypes", "compute_dtypes", "optimizer_dtypes")
    assert live.observed_level(dict.fromkeys(kinds, double)) is None


def test_what_is_not_as_declared_is_noticed() -> None:
    for name in ("dp", "ddp", "apex_ddp"):
        strategy = switching.load(*discover.resolve(name)).strategy
        for one in strategy.implementations:
            said = f"{one.label} means {one.wrapper}, but the wrapper is torch.nn.modules.container.Sequential"
            assert said in wrong("O0", "O0", strategy, one.name)
    ran = train(parts_for().session(wrap=nn.Sequential))[0]
    (said,) = effective.contradictions(ran, parts_for().job, SINGLE.strategy, "torch")
    assert "no wrapper was asked for, but the wrapper is torch.nn" in said
    sharded = replace(SINGLE.strategy, weights="sharded")
    assert "weights are declared sharded, but they are replicated" in wrong("O0", "O0", sharded)


def test_a_step_that_is_bad_on_two_gpus_is_skipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its optimizer gets the sum of what torch found on each of them."""
    session = parts_for("O1", half="fp16").session()
    look = session.scaler._unscale_grads_

    def on_two(*asked: Any) -> dict[Any, torch.Tensor]:
        return {gpu: found for found in look(*asked).values() for gpu in (0, 1)}

    monkeypatch.setattr(session.scaler, "_unscale_grads_", on_two)
    images = torch.full((2, 3, 32, 32), float("inf"))
    session.backward(session.forward((images, torch.zeros(2, dtype=torch.long))))
    session.optimize()
    assert session.skipped_steps() == 1 and all(weight.isfinite().all() for weight in session.model.parameters())


@pytest.mark.parametrize(("level", "bad", "measured"), [("O1", {1, 2}, 2), ("O2", {0, 2}, 1)])
def test_skipped_steps(level: str, bad: set[int], measured: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_for(level, half="fp16")
    session, steps = parts.session(), count()
    session.scaler._init_scale = 1024.0  # at its usual start the first step may be skipped
    backward = session.backward
    monkeypatch.setattr(session, "backward", lambda loss: backward(loss * (torch.inf if next(steps) in bad else 1.0)))
    plan = Plan(parts=parts, strategy=SINGLE.strategy, module=SimpleNamespace(build=lambda parts: session))
    result = {"rank": 0, **rank._measure(plan, lambda *phase, **more: lambda step: None, 0)}
    checks = record._checks([result], ["node1"])
    assert checks["skipped_steps"] == measured
    scaler = result["effective"]["scaler"]
    assert scaler["dynamic"] and scaler["class"] == "torch.amp.grad_scaler.GradScaler"


def test_peaks_of_a_launch_and_of_its_measured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch counts them on two GPUs: 900 MiB at most in warm-up, and less after it, once that is forgotten."""
    forgotten: list[int] = []
    for name, answer in {
        "device_count": lambda: 2,
        "get_device_properties": lambda device: SimpleNamespace(uuid=f"GPU-{device.index}"),
        "max_memory_allocated": lambda index: (400 if index in forgotten else 900) << 20,
        "max_memory_reserved": lambda index: 1000 << 20,
        "reset_peak_memory_stats": forgotten.append,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    gpu = torch.device("cuda", 0)
    warm = live.peaks(gpu)
    rank._forget_peaks(gpu)
    peaks = rank._whole_and_steady(warm, live.peaks(gpu))
    expected = {"max_allocated": 900.0, "max_reserved": 1000.0, "steady_allocated": 400.0, "steady_reserved": 1000.0}
    assert peaks.items() >= {f"{name}_mib.GPU-{gpu}": mib for name, mib in expected.items() for gpu in (0, 1)}.items()
    cpu = torch.device("cpu")
    rank._forget_peaks(cpu)
    assert set(rank._whole_and_steady(live.peaks(cpu), live.peaks(cpu))) == {"max_rss_mib"}


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_strides_follow_a_strategy_that_changes_them(level: str) -> None:
    """torch's fused step refuses others on a GPU (``FusedSgdKernel.cu``), and mixes the weights up on the CPU."""
    session = parts_for(level, half="fp16").session(wrap=lambda model: model.to(memory_format=torch.channels_last))
    convolution = next(one for one in session.model.modules() if isinstance(one, nn.Conv2d))
    assert not convolution.weight.is_contiguous()
    assert not session.amp.masters or session.amp.masters[0].stride() == convolution.weight.stride()
    for one in (one for group in session.optimizer.param_groups for one in group["params"]):
        for like in (session.optimizer.state[one]["momentum_buffer"], *([] if one.grad is None else [one.grad])):
            assert like.stride() == one.stride()


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("images", [False, True])
def test_the_memory_format_is_that_of_the_convolutions(weights: bool, images: bool) -> None:
    """channels_last in either the weights or the images is enough for that."""
    formats = {False: torch.contiguous_format, True: torch.channels_last}
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)).to(memory_format=formats[weights])
    watch = live.TypeWatch(model)
    model(torch.ones(2, 3, 8, 8).to(memory_format=formats[images]))
    assert watch.memory_format == ("channels_last" if weights or images else "contiguous")


class OfWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4, 2))])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": x @ self.weights[0]}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8), nn.Linear(8, 2)), torch.ones(3, 2, 8)),
        (nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU()), torch.ones(1, 1, 4, 4, 4)),
        (nn.LSTM(8, 4), torch.ones(3, 2, 8)),
        (OfWeights(), torch.ones(3, 4)),
    ],
)
def test_the_layer_that_is_watched_computes(model: nn.Module, given: torch.Tensor) -> None:
    watch = live.TypeWatch(model)
    model(given)
    assert watch.outputs == {torch.float32}


def test_a_watched_model_of_a_script_can_be_saved_and_scripted() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    watch = live.TypeWatch(model, outside=True)
    assert b"TypeWatch" not in pickle.dumps(model)
    torch.jit.script(model)
    model(torch.ones(3, 4))
    watch.stop()
    model.double()(torch.ones(3, 4).double())
    assert watch.outputs == {torch.float32}


@pytest.mark.parametrize("outside", [False, True])
def test_a_layer_may_return_its_bias_beside_the_product(outside: bool) -> None:
    class Parallel(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return nn.functional.linear(x, self.weight), self.bias

    watch = live.TypeWatch(layer := Parallel(4, 2), outside=outside)
    watch.all_layers(layer)
    layer(torch.ones(3, 4))
    assert watch.outputs == {torch.float32}


def test_watching_a_compiled_model_compiles_it_once() -> None:
    counters = torch._dynamo.utils.counters
    counters.clear()

    class Convolution(nn.Conv2d):  # older torch compiles nothing of a module that is all its own
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images).relu()

    model = Convolution(3, 4, 3).to(memory_format=torch.channels_last)
    watch = live.TypeWatch(model)
    model.compile(backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            model(torch.ones(2, 3, 8, 8)).sum().backward()
    assert (watch.outputs, watch.memory_format) == ({torch.bfloat16}, "channels_last")
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


@pytest.mark.parametrize(
    ("major", "override", "convolutions", "products", "expected"),
    [
        *((9, None, "tf32", "none", (True, False)), (9, None, "ieee", "tf32", (False, True))),
        *((7, None, "tf32", "tf32", (False, False)), (9, "0", "tf32", "tf32", (False, False))),
        (9, "1", "tf32", "ieee", (True, False)),
    ],
)
@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="needs torch 2.9: fp32_precision")
def test_tf32_is_claimed_where_there_is_some(
    major: int, override: str | None, convolutions: str, products: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if override is not None:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    assert recorded_environment().get("NVIDIA_TF32_OVERRIDE") == override
    conv, matmul = torch.backends.cudnn.conv, torch.backends.cuda.matmul
    before = conv.fp32_precision, matmul.fp32_precision
    conv.fp32_precision, matmul.fp32_precision = convolutions, products
    try:
        images, tokens = (live.tf32(torch.device("cuda", 0), of) for of in (nn.Conv1d(1, 1, 1), nn.Linear(1, 1)))
        assert images == {"cudnn": expected[0], "matmul": expected[1]}
        assert tokens == {"cudnn": None, "matmul": expected[1]}
    finally:
        conv.fp32_precision, matmul.fp32_precision = before


def test_a_first_step_that_is_skipped_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the momentum either, which torch's fused step makes uninitialised, for a kernel that then does nothing."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **more: empty_like(*given, **more).fill_(float("nan")))
    parts, weights = parts_for("O1", half="fp16"), []
    for losses in ([float("inf"), 3.0, 2.0], [3.0, 2.0]):
        weight = nn.Parameter(torch.arange(8.0))
        amp = Amp(precision_of("O1", torch.float16), parts.device, parts.build_optimizer)
        amp.prepare(nn.ParameterList([weight]))
        for factor in losses:
            amp.zero_grad()
            amp.backward((weight * factor).sum())
            amp.step()
        assert int(amp.skipped_steps()) == len(losses) - 2
        weights.append(weight.detach())
    assert torch.equal(*weights) and not torch.equal(weights[0], torch.arange(8.0))


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_the_first_steps_of_sgd_are_those_of_torch(dampening: float) -> None:
    weights = [nn.Parameter(torch.arange(8.0)) for _ in range(2)]
    make = partial(torch.optim.SGD, lr=0.5, momentum=0.5, dampening=dampening, fused=True)
    amp, alone = Amp(precision_of("O1", torch.float16), torch.device("cpu"), make), make(weights[1:])
    amp.prepare(nn.ParameterList(weights[:1]))
    for factor in (2.0, 4.0):
        for one, step in zip(weights, (amp.step, alone.step), strict=True):
            one.grad = None
            (amp.backward if one is weights[0] else torch.Tensor.backward)((one * factor).sum())
            step()
    assert torch.equal(*weights)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_gradients_are_unscaled_after_the_step(level: str) -> None:
    plain, session = (parts_for(*asked, global_batch=8).session() for asked in (("O0",), (level, "fp16")))
    session.scaler._init_scale = 1024.0  # at its usual start the first step may be skipped
    train(plain)
    train(session)
    assert int(session.skipped_steps() or 0) == 0
    mine, other = (
        torch.cat([gradient.flatten().double() for gradient in one.gradients() if gradient is not None])
        for one in (session, plain)
    )
    assert 1e-4 < float((mine - other).norm() / other.norm()) < 0.9


def test_a_weight_without_a_gradient_has_a_master_without_one() -> None:
    """Frozen, or not part of every loss; weight decay changes whatever has a gradient, be it zero."""
    amp = Amp(
        precision_of("O2", torch.bfloat16),
        torch.device("cpu"),
        lambda weights: torch.optim.SGD(weights, lr=0.5, weight_decay=0.5),
    )
    frozen, seldom, always = model = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    amp.cast(model)
    amp.prepare(model)
    for used in ([always], [always, seldom], [always]):
        before = [weight.clone() for weight in model]
        amp.zero_grad()
        amp.backward(torch.stack([weight.sum() for weight in used]).sum())
        amp.step()
        changed = [weight for weight, old in zip(model, before, strict=True) if not torch.equal(weight, old)]
        assert set(map(id, changed)) == set(map(id, used))
        assert [one is not None for one in amp.gradients()] == [False, seldom in set(used), True]


def test_what_apex_leaves_is_seen_through() -> None:
    """As apex 25.05 leaves them: fp32 masters in the optimizer without a gradient, half weights with a scaled one."""
    amp = ApexAmp(precision_of("O2", torch.float16), torch.device("cpu"), torch.optim.SGD)
    half = nn.Parameter(torch.ones(3, dtype=torch.float16))
    half.grad = torch.tensor([1024.0, 2048.0, float("inf")], dtype=torch.float16)
    norm = nn.Parameter(torch.ones(2))
    norm.grad = torch.tensor([0.5, 0.25])  # unscaled in its place
    amp.model = nn.ParameterList([half, norm])
    amp.scale = 1024.0
    found = [None if gradient is None else gradient.tolist() for gradient in amp.gradients()]
    assert found == [[1.0, 2.0, float("inf")], [0.5, 0.25]]
    with pytest.raises(BenchError, match="uses a weight twice"), amp.context():
        torch.ones(1, requires_grad=True).half().grad_fn.next_functions[1][0]  # as its ``cached_cast`` of 25.05 does
    with pytest.raises(IndexError), amp.context():
        [][1]


@pytest.mark.parametrize("kernels", [True, False])
def test_apex_says_whether_it_has_its_kernels(kernels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, source in {
        "apex.parallel": "import torch\nclass DistributedDataParallel(torch.nn.Sequential): pass",
        "apex.multi_tensor_apply": f"class multi_tensor_applier: available = {kernels}",
    }.items():
        file = tmp_path.joinpath(*module.split("."), "__init__.py")
        file.parent.mkdir(parents=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("apex", "apex.parallel", "apex.multi_tensor_apply"):
        monkeypatch.setitem(sys.modules, name, None)  # what is imported now goes with this test
        del sys.modules[name]
    wrapper = importlib.import_module("apex.parallel").DistributedDataParallel
    ran, _ = train(parts_for().session(wrap=wrapper))
    assert (ran["parallel_impl"], ran["apex_kernels"]) == ("apex", kernels)
    ran, _ = train(parts_for().session())
    assert ran["apex_kernels"] is None, "nothing of apex ran"


@pytest.mark.parametrize(
    ("strategy", "precision", "impl", "cuda", "there", "expected"),
    [
        ("ddp", "O0", "auto", True, True, ("native", "torch", False)),
        ("ddp", "O2", "auto", True, True, ("apex", "torch", False)),
        ("apex_ddp", "O0", "auto", True, True, ("native", "apex", False)),
        ("apex_ddp", "O1", "auto", True, False, ("native", "native", False)),
        ("apex_ddp", "O1", "auto", False, True, ("native", "native", False)),
        ("apex_ddp", "O1", "native", True, True, ("native", "native", False)),
        ("apex_ddp", "O1", "apex", True, False, ("apex", "apex", True)),
        ("ddp", "O1", "apex", False, True, ("apex", "torch", True)),
        ("ddp", "O0", "apex", False, False, ("native", "torch", False)),
        ("zero1", "O1", "auto", True, True, ("native", "torch", False)),
    ],
)
def test_who_implements_what(
    strategy: str, precision: str, impl: str, cuda: bool, there: bool, expected: tuple[str, str, bool]
) -> None:
    problems = dict.fromkeys(("apex.amp", "apex.parallel"), None if there else "absent")
    found = switching.load(*discover.resolve(strategy)).strategy
    job = replace(parts_for(precision, "fp16").job, impl=impl)
    *chosen, problem = apex.implementations(found, job, cuda=cuda, problems=problems)
    assert (*chosen, problem is not None) == expected


@pytest.mark.parametrize(
    ("half", "switches", "lacking"),
    [("bf16", (), "bf16"), ("fp16", ("compile",), "compile"), ("fp16", ("checkpointing",), "checkpointing")],
)
def test_what_apex_amp_does_not_go_with(half: str, switches: tuple[str, ...], lacking: str) -> None:
    problems: dict[str, str | None] = {"apex.amp": None, "apex.parallel": None}
    on = tuple(SwitchOn(name=name, file="") for name in switches)
    job = replace(parts_for("O1", half).job, switches=on, impl="auto")
    strategy = switching.load(*discover.resolve("apex_ddp")).strategy
    assert apex.implementations(strategy, job, cuda=True, problems=problems) == ("native", "apex", None)
    problem = apex.implementations(strategy, replace(job, impl="apex"), cuda=True, problems=problems)[2]
    assert problem is not None and f"does not go with {lacking}" in problem


class Late:
    """An event of a GPU that is far behind its host."""

    def __init__(self, enable_timing: bool) -> None:
        self.elapsed_time = lambda other: 100.0

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        time.sleep(0.1)


def test_a_rank_that_waits_for_its_gpu_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Late)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    session, reported = Idle(), list[int]()
    loop.run_window(session, session.load, 3, device=torch.device("cuda"), on_step=reported.append)
    assert len(reported) > 3 and reported[-3:] == [3, 3, 3], "four times a second, or it would count as hanging"


def test_the_clock_is_read_once_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the synchronisation left out, three steps would be read as no time at all, as they are queued in no time."""
    clock, session, marks = Mock(), Idle(), 3 * loop.MARKS_PER_STEP + 1
    clock.wait.side_effect = lambda alive: time.sleep(0.010 * marks)
    clock.read.side_effect = lambda: (0, [10.0] * (clock.mark.call_count - 1))
    monkeypatch.setattr(loop, "clock_for", lambda device: clock)
    monkeypatch.setattr(gc, "collect", clock.collect)
    timings = loop.run_window(session, session.load, 3, device=torch.device("cpu"))
    before = [call.collect(), call.prepare(marks)]  # a GPU's first mark stands at prepare: no garbage in between
    assert clock.mock_calls == [*before, *[call.mark()] * marks, call.wait(ANY), call.read()], "nothing waits within it"
    assert timings.step_ms == [40.0] * 3 and session.gc_enabled == {False} and gc.isenabled()
    assert timings.wall_ms >= 10.0 * marks, "the host's time for the window ends when the work does"


def test_the_session_keeps_the_loss_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    session, losses = parts_for().session(), []
    forward = session.forward
    monkeypatch.setattr(session, "forward", lambda batch: losses.append(forward(batch)) or losses[-1])
    session.kept = lambda loss: -loss.detach()
    _, timings = train(session, steps=3)
    assert timings.loss == pytest.approx([-loss.item() for loss in losses])
