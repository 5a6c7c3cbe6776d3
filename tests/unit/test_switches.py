"""Switches: how they are asked for, what is refused, and what each of them does to a live session."""

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import launches, needs_fsdp2, one_host, request_for
from standin import documented, python, refusal
from standin.sessions import load_of, parts_of, train
from standin.workloads import narrow
from torch import nn
from torch.distributed.tensor import DTensor

from bench.core.codec import decode
from bench.core.errors import BenchError, RequestError
from bench.core.files import sha256
from bench.core.job import Job
from bench.core.records import SwitchOn
from bench.experiments import obstacles, resume
from bench.runs.document import Source
from bench.seams import discover, switching
from bench.seams.obstacle import obstacle
from bench.seams.switching import scenario
from bench.verbs.sets import switched
from bench.worker import trial
from bench.worker.blocks import blocks
from bench.worker.precision import use_tf32
from bench.worker.session import Parts, Session

torch.set_num_threads(1)
SWITCHES = discover.names(discover.SWITCH)

MINE = """
from bench.seams import Switch

SWITCH = Switch(summary="mine", label="scaled by {value}", value=2)


def module(parts, module):
    module.register_forward_hook(lambda module, args, output: parts.switches["mine"] * output)
    return module


def effect(session, ran):
    return None if session.module._forward_hooks else "there is no hook"
"""


def module_of(name: str) -> Any:
    return switching.switch_module(name, SWITCHES[name])


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def test_a_rank_is_on_a_numa_node_with_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node may have memory alone, and numbers may have gaps."""
    numa = module_of("numa")
    monkeypatch.setattr(numa, "NODES", str(tmp_path / "node[0-9]*/cpulist"))
    for number, cores in {0: "0-1,4\n", 1: "\n", 8: "2-3\n"}.items():
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cores)
    on_cpu = [SimpleNamespace(device=SimpleNamespace(type="cpu"), local_rank=rank) for rank in range(3)]
    assert [*map(numa.cores, on_cpu)] == [{0, 1, 4}, {2, 3}, {0, 1, 4}] and numa.obstacle("cpu") is None
    (tmp_path / "node8" / "cpulist").write_text("\n")
    assert numa.obstacle("cuda") == "this machine has one NUMA node: there is nothing to choose"


def test_the_driver_tells_where_a_gpu_is_if_torch_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch 2.6 has no PCI address among the properties of a GPU."""
    numa, address, properties = module_of("numa"), "0000:65:00.0", SimpleNamespace()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(numa, "GPUS", str(tmp_path / "gpus/*/information"))
    monkeypatch.setattr(numa, "DEVICES", str(tmp_path))
    for file, text in {f"gpus/{address}/information": "GPU UUID: \t GPU-b\n", f"{address}/numa_node": "1\n"}.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    assert numa.node_of(SimpleNamespace(device=None, devices=("GPU-b",))) == 1
    with pytest.raises(BenchError, match="neither torch nor the driver tells where the GPU is"):
        numa.node_of(SimpleNamespace(device=None, devices=("GPU-a",)))
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x65, pci_device_id=0)
    assert numa.node_of(SimpleNamespace(device=None)) == 1


def test_what_a_switch_lacks_is_said_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numa, compiling, sync_bn = map(module_of, ("numa", "compile", "sync_bn"))
    assert numa.cores_in("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    monkeypatch.setattr(numa, "cores", lambda parts: {max(os.sched_getaffinity(0)) + 1})
    with pytest.raises(BenchError, match="no core of its GPU's NUMA node; give it some"):
        numa.begin(None)  # of an empty set the kernel says EINVAL
    monkeypatch.setattr(compiling.sys, "base_prefix", str(tmp_path))
    assert "compile needs Python.h" in compiling.obstacle("cpu")
    assert isinstance(sync_bn.model(None, nn.Sequential(nn.BatchNorm2d(4)))[0], nn.SyncBatchNorm)
    assert obstacle(scenario("ddp+sync_bn"), device="cpu", impl="auto", apex_path=None)


@pytest.mark.parametrize(("name", "gpus", "there"), [("dp", 2, True), ("dp", 1, False), ("ddp", 2, False)])
def test_threads_have_no_autocast_in_bf16(name: str, gpus: int, there: bool) -> None:
    found = scenario(f"{name}+o1+bf16")
    devices = tuple("AB"[:gpus])
    asked = replace(request_for((found,)), device="cuda", devices=devices, replicas=gpus)
    why = obstacles.obstacle(found, asked)
    assert why is None if not there else "have autocast in fp16, not in bf16" in str(why)


@pytest.mark.parametrize(("name", "gpus", "there"), [("dp", 2, True), ("dp", 1, False), ("ddp", 2, False)])
@pytest.mark.parametrize(("trained", "rows"), [("retinanet", False), ("fashion_mlp", True)])
def test_dataparallel_cuts_rows(name: str, gpus: int, there: bool, trained: str, rows: bool) -> None:
    """Of a list of images it would cut each, by its colours."""
    found, work = scenario(name), discover.load_workload(*discover.resolve(trained, discover.WORKLOAD))
    asked = replace(request_for((found,)), task=work.task("cpu", work.workload.settings_on("cpu")))
    assert trial.in_rows(asked.workload) == rows
    host = {"torch": "2.11.0", "cuda_built": "13.0", "nccl": True, "apex": {"problems": {}}}
    asked = replace(asked, device="cuda", devices=tuple("AB"[:gpus]), replicas=gpus)
    why = obstacles.obstacle(found, asked, host | {"in_rows": rows})
    assert why is None if rows or not there else "along its first dimension" in str(why)


COLLATED = """

class Data:
    def __init__(self, examples):
        self.examples = examples


collate = Data
"""


@pytest.mark.parametrize(("device", "refused"), [("cpu", False), ("cuda", True)])
def test_a_batch_must_be_seen_to_be_moved(device: str, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(documented("WORKLOAD =") + COLLATED)
    work = discover.load_workload("mine", str(tmp_path / "mine.py"))
    asked = request_for((scenario("single"),), task=work.task(device, {"width": 8}), device=device)
    why = str(refusal(lambda: trial.try_out(asked.workload)))
    assert ("returned Data, in which bench finds no tensor to move to the GPU; return a" in why) == refused


def test_a_level_behind_a_name_needs_no_file() -> None:
    found = scenario("zero1+channels_last+O2")
    assert (found.name, found.base, found.level) == ("zero1+o2+channels_last", "zero1", "o2")
    assert found.scenario.precision == "O2"
    assert scenario(found.name) == found == scenario("zero1", ["o2", "channels_last"])
    assert scenario("ddp+o1+bf16").half == "bf16", "the level comes first, which the switch needs"
    (planned,) = launches(request_for((found,)), (found,), one_host(2))[:1]
    assert planned.job.precision == "O2"


def test_one_set_of_switches_has_one_name() -> None:
    assert scenario("ddp+bucket_mb") == scenario("ddp+bucket_mb=100"), "its default"
    assert scenario("ddp+bucket_mb=100").name == "ddp+bucket_mb"
    there, back = scenario("ddp+channels_last+bucket_mb=50"), scenario("ddp+bucket_mb=50", ["channels_last"])
    assert there == back and there.name == "ddp+bucket_mb=50+channels_last"
    assert there.base == "ddp"
    assert {one.name: one.value for one in there.switches} == {"bucket_mb": 50, "channels_last": True}


def test_a_scenario_file_turns_switches_on_by_itself(tmp_path: Path) -> None:
    declared = 'SCENARIO = Scenario(summary="x", strategy="ddp", switches=("find_unused",))'
    (tmp_path / "own.py").write_text(f"from bench.seams import Scenario\n{declared}")
    found = scenario(f"{tmp_path}/own.py+bucket_view")
    assert (found.name, found.base, found.turned_on) == ("own+bucket_view", "own", "+bucket_view")
    assert [one.name for one in found.switches] == ["bucket_view", "find_unused"]


def test_a_run_is_resumed_with_its_switches(mine: str) -> None:
    found = scenario(f"ddp+channels_last+{mine}=3")
    assert found.name == "ddp+channels_last+mine=3"
    assert found.switches[1] == SwitchOn(name="mine", file=mine, value=3, usual=False)
    request = request_for((found,))
    (planned,) = launches(request, (found,), one_host(2))
    assert decode(Job, asdict(planned.job)).switches == found.switches, "every process has them"
    sources = {found.name: found.file} | {f"+{one.name}": one.file for one in found.switches}
    recorded = {name: Source(file=file, sha256=sha256(file)) for name, file in sources.items()}
    about = {"request": request, "workload": request.workload, "sources": recorded, "environments": None}
    document: Any = SimpleNamespace(**about, of={}.get)
    assert resume.scenarios_of(document) == (found,)
    Path(mine).write_text(MINE + "\n")
    with pytest.raises(RequestError, match=r"mine\.py is not what it was"):
        resume.scenarios_of(document)


@pytest.mark.parametrize(
    ("asked", "more", "says"),
    [
        ("ddp_accumulate+static_graph", [], "--scenario: static_graph does not go with ddp_accumulate: torch's DDP"),
        ("ddp_accumulate_4+compile+cuda_graphs", [], "--scenario: cuda_graphs does not go with ddp_accumulate_4: gra"),
        ("fsdp2+channels_last", [], "--scenario: channels_last does not go with fsdp2: fully_shard takes contiguous"),
        ("fsdp2+o2", [], "--scenario: O2 does not go with fsdp2: its strategy has O0, O1; leave one of the two out"),
        ("ddp_o1+o2", [], "--scenario: ddp_o1 is at O1 already; leave the level out, or name one in fp32"),
        ("ddp+o1+o1", [], "--scenario: ddp+o1 is at O1 already; "),
        ("ddp+cuda_graphs", [], "--scenario: cuda_graphs needs compile; add it: ddp+compile+cuda_graphs"),
        ("ddp+chanels_last", [], "--scenario: there is no switch 'chanels_last'; did you mean channels_last"),
        ("ddp+", [], "--scenario: there is no switch ''"),
        ("ddp+channels_last=1", [], "--scenario: channels_last: it takes no value; write its name alone"),
        *(("ddp", [f"bucket_mb={n}"], f"--with: bucket_mb: '{n}' is not a whole") for n in ("0", "x", "9999999999")),
        ("ddp+bucket_mb", ["bucket_mb=50"], "--with: bucket_mb is on twice"),
        ("ddp+find_unused+static_graph", [], "--scenario: static_graph and find_unused exclude each other"),
        ("single", ["bucket_view"], "--with: bucket_view does not go with single: it sets what DistributedDataPara"),
        ("dpp+channels_last", [], "--scenario: there is no scenario 'dpp'"),
        ("./absent.py+channels_last", [], "--scenario: there is no file ./absent.py"),
        ("ddp", ["./absent.py"], "--with: there is no file ./absent.py"),
    ],
)
def test_what_cannot_be_turned_on_is_refused_in_a_line(asked: str, more: list[str], says: str) -> None:
    assert str(refusal(lambda: scenario(asked, more))).startswith(says)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("SWITCH = 3", "declares no SWITCH"),
        ("SWITCH = Switch(summary='', label='x')", "summary"),
        ("SWITCH = Switch(summary='x', label='x', device='tpu')", 'device must be one of cpu, cuda, not "tpu"'),
        ("SWITCH = Switch(summary='x', label='x', value='a')", "value='a'"),
        ("SWITCH = Switch(summary='x', label='x', slow_start=0)", "slow_start=0"),
        ("SWITCH = Switch(summary='x', label='x')\ndef begn(parts): ...", "begin"),
        ("SWITCH = Switch(summary='x', label='x')\ndef model(parts): ...", "model"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, source: str, says: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(f"from bench.seams import Switch\n{source}")
    error = str(refusal(lambda: scenario(f"ddp+{file}")))
    assert "broken.py" in error and says in error


def test_the_table_in_the_docs_has_each_as_it_is(repository: Path) -> None:
    rows = [line.replace("\\|", "/") for line in (repository / "docs" / "measure.md").read_text().splitlines()]
    cells = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows if row.startswith("| `")]
    shown = {cell[0].partition("=")[0]: cell for cell in cells if len(cell) == 3}
    where = {"cuda": "GPU", "cpu": "CPU", None: "CPU, GPU"}
    for name, file in SWITCHES.items():
        declared = switching.load_switch(name, file)
        assert shown[name][1:] == [declared.summary, where[declared.device]]


def session_for(request: str, **changes: Any) -> tuple[Session, Any]:
    found = scenario(request)
    parts = parts_of(found, **({"task": narrow()} | changes))
    _, module = discover.load_strategy(found.strategy_name, found.strategy_file)
    return module.build(parts, **found.scenario.options), found


def trained(request: str, steps: int = 2, **changes: Any) -> tuple[Session, dict[str, Any]]:
    session, found = session_for(request, **changes)
    return session, train(session, steps, found.strategy)[0]


EACH = [
    pytest.param(spec, marks=[pytest.mark.slow] if name == "compile" else [])  # which takes half a minute
    for spec in switched(every_word=True)
    for name in [spec.rpartition("+")[2].partition("=")[0]]
    if switching.switch_obstacle(SwitchOn(name=name, file=SWITCHES[name]), "cpu") is None
]


@pytest.fixture
def left() -> Iterator[None]:
    """What a switch enters for as long as a rank lives ends with the test."""
    yield
    module_of("compile").ENTERED.close()


@pytest.mark.usefixtures("group", "left")
@pytest.mark.parametrize("request_", EACH)
def test_each_switch_takes_effect_or_says_why_not(request_: str) -> None:
    session, ran = trained(request_)
    ((spec, instead),) = ran["switches"].items()
    assert request_.endswith(f"+{spec}")
    name = spec.partition("=")[0]
    declared = switching.load_switch(name, SWITCHES[name])
    shown = declared.label.format(value=session.parts.switches[name])
    assert (instead is None) == ran["label"].endswith(f" + {shown}")
    assert instead is None or instead in IDLE_HERE[name]


@pytest.mark.usefixtures("group", "left")
def test_a_loss_in_the_memory_of_a_graph_is_copied() -> None:
    """The next replay writes to where it lies; without graphs nothing does, and nothing is copied."""
    loss = torch.ones((), requires_grad=True)
    assert session_for("ddp+compile+cuda_graphs")[0].kept(loss).data_ptr() != loss.data_ptr()
    assert session_for("ddp")[0].kept(loss).data_ptr() == loss.data_ptr()


@pytest.mark.usefixtures("group")
def test_powersgd_trains_on_after_a_step_that_is_not_finite() -> None:
    session, _ = session_for("ddp_powersgd+o1", half="fp16")
    session.scaler._init_scale = 1024.0
    train(session, 4)
    skipped, scale = session.skipped_steps(), session.amp.backward
    session.amp.backward = lambda loss: scale(loss * torch.inf)
    train(session)
    session.amp.backward = scale
    train(session, 2)
    assert session.skipped_steps() == skipped + 1


@needs_fsdp2
@pytest.mark.usefixtures("group")
def test_a_fused_step_may_have_no_rule_for_shards(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(documented("WORKLOAD =").replace("SGD", "Adagrad"))
    mine = discover.load_workload("mine", str(tmp_path / "mine.py"))
    session, found = session_for("fsdp2", task=mine.task("cpu", {"width": 8}))
    assert not train(session, 1, found.strategy)[0]["optimizer_fused"]


@needs_fsdp2
@pytest.mark.usefixtures("group")
def test_weights_are_gathered_in_half_but_those_of_batch_norm(tmp_path: Path) -> None:
    layers = "nn.Sequential(nn.Linear(work.width, work.width), nn.BatchNorm1d(work.width)), nn.BatchNorm1d(work.width)"
    (tmp_path / "mine.py").write_text(documented("WORKLOAD =").replace("nn.ReLU()", layers))
    mine = discover.load_workload("mine", str(tmp_path / "mine.py"))
    session, _ = session_for("fsdp2_half", task=mine.task("cpu", {"width": 8}))
    types: list[torch.dtype] = []
    for layer in session.model.modules():
        if hasattr(layer, "weight"):
            layer.register_forward_pre_hook(lambda layer, *_: types.append(layer.weight.dtype))
    train(session)
    half, full = torch.bfloat16, torch.float32
    assert types == [half, half, full, full, half]


@needs_fsdp2
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("name", "blocks_stay"), [("fsdp2", False), ("fsdp2_no_reshard", True)])
def test_what_stays_gathered_for_the_backward_pass(name: str, blocks_stay: bool) -> None:
    """The weights that are in no block do: they would be gathered again at once."""
    gpt = discover.load_workload(*discover.resolve("gpt", discover.WORKLOAD))
    session, _ = session_for(name, task=gpt.task("cpu", gpt.workload.settings_on("cpu") | {"layers": 1, "context": 8}))
    session.forward(load_of(session.parts)())
    whole = {("blocks" in name, not isinstance(one, DTensor)) for name, one in session.model.named_parameters()}
    assert whole == {(True, blocks_stay), (False, True)}


@pytest.mark.usefixtures("group")
def test_a_number_is_no_loss_of_a_micro_batch() -> None:
    session, _ = session_for("ddp_accumulate")
    session._loss = lambda model, batch: 1.0  # type: ignore[assignment,return-value]
    with pytest.raises(BenchError, match="returned float; return a scalar tensor"):
        session.forward(load_of(session.parts)())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", ["averaging", "post_local_sgd"])
def test_averaged_weights_stay_where_they_are_in_the_layout_of_their_momentum(name: str) -> None:
    """Where CUDA graphs have recorded them, and in which a fused step goes through both."""
    session, found = session_for(f"{name}+channels_last")
    lay = [one.data_ptr() for one in session.model.parameters()]
    ran, _ = train(session, 4, found.strategy)
    assert [one.data_ptr() for one in session.model.parameters()] == lay
    state = session.optimizer.state.items()
    assert ran["optimizer_fused"] and all(one["momentum_buffer"].stride() == weight.stride() for weight, one in state)


IDLE_HERE = {
    "bf16": ("half is bf16 on the CPU anyway",),
    "fused": ("the workload's optimizer has fused=True anyway",),
    "untuned": ("cuDNN takes no part on the CPU",),
}
"""What a switch says that does nothing on the CPU, for the model of this test."""


@cache
def after_three_steps(request: str) -> dict[str, torch.Tensor]:
    return trained(request, steps=3)[0].model.state_dict()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", ["checkpointing", "foreach", "bucket_view", "static_graph"])
def test_it_trains_the_same_model(name: str) -> None:
    ours = after_three_steps(f"ddp+{name}")
    for key, tensor in after_three_steps("ddp").items():
        assert torch.allclose(ours[key].double(), tensor.double(), rtol=1e-3, atol=1e-5), key


def test_a_replica_computes_its_own_blocks_again() -> None:
    """DataParallel copies what a block has: what is bound to the block would compute with the first GPU's weights."""
    model = module_of("checkpointing").model(None, torch.nn.Sequential(torch.nn.Linear(2, 2)))
    replica: Any = model[0]._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(2, 2), torch.ones(2)
    assert replica(torch.ones(1, 2)).tolist() == [[1.0, 1.0]]


def test_the_blocks_of_lists_in_lists() -> None:
    """Lists compute nothing: neither FSDP2 nor checkpointing takes them."""
    norm, attention, last = torch.nn.LayerNorm(2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    layer = torch.nn.ModuleList([torch.nn.ModuleList([norm]), attention, torch.nn.ReLU()])
    model = torch.nn.Sequential(torch.nn.ModuleList([layer, last]))
    assert [*blocks(model)] == [norm, attention, last]
    two = torch.nn.ModuleDict({"a": torch.nn.ModuleList([norm, last]), "b": torch.nn.ModuleList([last, attention])})
    assert [*blocks(two)] == [norm, last, attention], "each once: FSDP2 shards a module once"
    whole = torch.nn.Sequential(norm, torch.nn.ReLU(), torch.nn.Sequential(attention), last)
    assert [*blocks(whole)] == [norm, attention, last], "of a model that is a list itself, too"


@pytest.mark.parametrize(("name", "fused", "foreach"), [("fused", True, False), ("foreach", False, True)])
def test_how_the_optimizer_steps(name: str, fused: bool, foreach: bool) -> None:
    optimizer = session_for(f"single+{name}")[0].optimizer
    for group in (optimizer.defaults, *optimizer.param_groups):
        assert (group["fused"], group["foreach"]) == (fused, foreach)
    assert optimizer._step_supports_amp_scaling == fused


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="needs torch 2.9: fp32_precision")
@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_on_or_off_in_all_there_is(on: bool) -> None:
    conv, matmul = torch.backends.cudnn.conv, torch.backends.cuda.matmul
    before = conv.fp32_precision, matmul.fp32_precision
    try:
        use_tf32(convolutions=on, products=on)
        assert {conv.fp32_precision, matmul.fp32_precision} == {"tf32" if on else "ieee"}
    finally:
        conv.fp32_precision, matmul.fp32_precision = before


def test_what_compiles_may_take_long_to_start() -> None:
    found = scenario("ddp+compile"), scenario("ddp"), scenario("deepspeed_zero1"), scenario("deepspeed_zero1+compile")
    assert [one.job.slow_start for one in launches(request_for(found), found, one_host(2))] == [10, 1, 5, 10]


@pytest.mark.usefixtures("group")
def test_keywords_reach_the_wrapper() -> None:
    session, ran = trained("ddp+bucket_mb=3+bucket_view+find_unused", steps=1)
    module = session.module
    assert (module.bucket_bytes_cap, module.gradient_as_bucket_view) == (3 << 20, True)
    assert module.find_unused_parameters
    assert ran["label"] == "torch DDP + buckets of 3 MiB + bucket_view + find_unused"


def test_cores_and_threads_are_known_as_switches_left_them(tmp_path: Path) -> None:
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    one = tmp_path / "one_core.py"
    begin = "def begin(parts): os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    one.write_text(f"import os\nfrom bench.seams import Switch\nSWITCH = Switch(summary='x', label='x')\n{begin}\n")
    try:
        _, ran = trained(f"single+{one}+threads={threads + 1}", steps=1)
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
    assert ran["bound_cores"] == (1 if len(cores) > 1 else None)
    assert (ran["threads"], ran["chosen_threads"]) == (threads + 1, threads + 1)
    assert ran["label"] == f"no wrapper + threads: {threads + 1} + x"
    plain, _ = session_for("single")
    assert (plain.bound_cores, plain.chosen_threads) == (None, None)


def test_switches_of_ones_own_are_called(mine: str, tmp_path: Path) -> None:
    """The other one is what CONTRIBUTING shows."""
    (tmp_path / "deterministic.py").write_text(documented("SWITCH ="))
    try:
        session, ran = trained(f"single+{mine}=3+{tmp_path}/deterministic.py", steps=1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert ran["switches"] == {"deterministic": None, "mine=3": None}
    assert ran["label"] == "no wrapper + deterministic + scaled by 3"
    plain = session_for("single")[0].module
    images = torch.ones(2, 3, 32, 32)
    session.module.load_state_dict(plain.state_dict())
    assert torch.allclose(session.module.eval()(images), 3 * plain.eval()(images))


def test_a_switch_without_effect_is_not_in_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model has no images to lay out."""
    monkeypatch.setattr(Parts, "build_model", lambda parts: nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000)))
    _, ran = trained("single+channels_last", steps=1)
    assert ran["label"] == "no wrapper"
    assert ran["switches"] == {"channels_last": "the first layer computes contiguous"}


def test_kept_memory_is_not_new_again() -> None:
    script = """
from bench.seams import discover, switching

switch = switching.switch_module("keep_memory", discover.names(discover.SWITCH)["keep_memory"])
assert "is new again" in switch.effect(None, {})
switch.begin(None)
assert switch.effect(None, {}) is None
"""
    python(script, {})
