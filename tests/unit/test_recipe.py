"""Scripts that ``bench recipe`` writes: what they may be, and that they train what was measured."""

import ast
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench, measured, needs_fsdp2
from standin import complaints, documented, ranks
from standin.runs import Launch, analysed, write_run

from bench.analyse.analysed import Analysed
from bench.core.errors import RequestError
from bench.core.files import sha256
from bench.report import chapters
from bench.report.blocks import Code, Fold
from bench.report.recipe import script
from bench.runs.document import Recommendation
from bench.runs.reader import read
from bench.seams import discover, switching
from bench.sites.local import WorkerHost

SETTINGS = {"model": "resnet18", "image_size": 32, "classes": 1000}
SETTINGS |= {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
SCALER = {"class": "torch.amp.grad_scaler.GradScaler", "dynamic": True, "scale": 65536.0}
PLAIN = ("single", "ddp", "fsdp2", "ddp_accumulate", "dp", "zero1", "replicate", "averaging", "post_local_sgd")
NAMES = {name: (name, "O0") for name in PLAIN} | {f"ddp_o{level}": ("ddp", f"O{level}") for level in (1, 2, 3)}
NAMES |= {"ddp_bf16_hook": ("ddp_hooks", "O0"), "ddp_powersgd": ("ddp_hooks", "O0"), "apex_ddp_o2": ("apex_ddp", "O2")}
NAMES |= {"hsdp": ("fsdp2", "O0"), "fsdp2_half": ("fsdp2", "O1"), "ddp_accumulate+o1": ("ddp_accumulate", "O1")}
MANY = ("channels_last", "bucket_mb=50", "bucket_view", "static_graph", "foreach", "checkpointing")
MLP = documented("WORKLOAD = ").replace("nn.ReLU()", "nn.BatchNorm1d(work.width), nn.ReLU()")
MLP = MLP.replace("lr=0.01", "lr=0.1, momentum=0.9")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    launches = []
    for name, (strategy, precision) in NAMES.items():
        usual = "ddp" if strategy not in ("single", "dp") else strategy
        launches.append(Launch(name, [[9, 40, 41]] * 2, [[100.0]] * 2, strategy=usual, precision=precision))
    folder = write_run(tmp_path_factory.mktemp("recipe"), launches, about={"workload": {"settings": SETTINGS}})
    return analysed(folder)


@pytest.fixture
def run_of(written: Analysed) -> Callable[..., Analysed]:
    """``run_of(about, **ran)``: with other values of its workload, and of what ran in every launch. ``ranks``: of each
    group."""

    def changed(about: Mapping[str, Any] | None = None, ranks: int = 2, **ran: Any) -> Analysed:
        launches = []
        for launch in written.document.launches:  # what Launch has for all alike
            name, alone = launch.scenario, launch.scenario in ("single", "dp")
            replicas = 4 if "accumulate" in name else 1 if name == "single" else 2
            how = {"strategy": NAMES[name][0], "processes": 1 if alone else ranks, "replicas": replicas}
            what = {"backend": None if alone else "gloo"} | ran
            launches.append(replace(launch, **how, effective=replace(launch.effective, **what)))
        workload = replace(written.document.workload, **(about or {}))
        run = replace(written, document=replace(written.document, workload=workload, launches=tuple(launches)))
        vars(run).update(parity=written.parity, overview=written.overview)
        return run

    return changed


@pytest.mark.parametrize(
    ("on_gpu", "workers", "data"), [(False, None, False), (True, None, False), (True, 2, False), (True, 2, True)]
)
def test_a_script_is_short_plain_and_sound(
    run_of: Callable[..., Analysed], tmp_path: Path, on_gpu: bool, workers: int | None, data: bool
) -> None:
    """It passes ruff's check and format, and mypy, and imports nothing of bench; ``data``: of a workload of the
    user's."""
    gpu = {"device": "cuda"} if on_gpu else {}
    ran: dict[str, Any] = {"scaler": SCALER, "compute_dtypes": ("float16",)} if on_gpu else {}
    about = gpu | {"workers": workers, "prefetch": 2 if workers else None}
    files = []
    if data:
        mine = tmp_path / "mine" / "m.py"
        mine.parent.mkdir()
        mine.write_text(MLP + "\n\ndef collate(examples):\n    return examples\n")
        about |= {"name": "mine", "file": str(mine), "sha256": sha256(str(mine)), "settings": {"width": 32}}
        about |= {"data": "/tmp"}
        ran |= {"cudnn_benchmark": True, "optimizer_settings": {"momentum": 0.9}}
    for on in (), MANY:
        run = run_of(about, **ran, switches=dict.fromkeys(on))
        for name in NAMES:
            text = script(run, name)
            assert len(text.splitlines()) <= 120 or "checkpointing" in on
            assert "import bench" not in text and "from bench" not in text
            assert ("set PYTHONPATH to its checkout" in text) == ("runpy.run_path(" in text)
            assert ("torchrun --standalone --nproc-per-node 2" in text) == (name not in ("single", "dp"))
            assert run.id in text and ("GradScaler" in text) == on_gpu and ("workload.collate(" in text) == data
            files.append(tmp_path / f"{name}_{len(on)}.py")
            files[-1].write_text(text)
    check_style(*files)
    if workers and not data:  # once is enough: it takes seconds
        how = ["--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={tmp_path}", "--strict"]
        assert complaints("mypy", *how, *files) == ""


def test_one_rank_forms_a_group_too(run_of: Callable[..., Analysed]) -> None:
    """As on a machine with one GPU: DDP fails without a group."""
    for name, grouped in (("ddp", True), ("single", False)):
        text = script(run_of(ranks=1), name)
        assert ("torchrun --standalone --nproc-per-node 1" in text) == grouped
        assert ("dist.init_process_group(" in text) == grouped


def test_its_first_lines_can_be_copied(written: Analysed) -> None:
    how = script(written, "ddp", file="folder/train it.py").splitlines()[2]
    assert shlex.split(how)[-3:] == ["train it.py", "--checkpoint", "checkpoint.pt"]


def check_style(*scripts: Path) -> None:
    rules = ["--isolated", "--line-length", "120", "--target-version", "py311"]
    select = ["--select", "E,F,W,I,UP,B,SIM,C4,PIE,RET,RUF"]
    assert complaints("ruff", "check", *rules, *select, *scripts) == ""
    assert complaints("ruff", "format", "--check", *rules, *scripts) == ""


def test_texts_of_a_run_end_no_string_and_no_line(run_of: Callable[..., Analysed]) -> None:
    """A run may be somebody else's, and its script is executed."""
    attack = '"""\nimport os; os.system("x")\n\\"""'
    settings = SETTINGS | {"model": "resnet\"18\"\n'''; import os", "classes": "1), print("}
    text = script(run_of({"title": attack, "settings": settings}), "ddp")
    assert not [node for node in ast.walk(ast.parse(text)) if getattr(node, "attr", None) == "system"]
    literals = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert settings["model"] in literals and settings["classes"] in literals


@pytest.mark.parametrize(
    ("scenario", "about", "ran", "says"),
    [
        ("ddp_o7", {}, {}, "--scenario: .* has no launch of ddp_o7"),
        (None, {}, {}, "no valid result to recommend"),
        ("ddp", {"settings": {"model": "resnet18"}}, {}, "other settings than resnet101 takes today"),
        ("ddp", {"sha256": None, "settings": {"x=1); import os; (y": 1}}, {}, "which no script can have"),
        ("ddp", {"global_batch": None}, {}, "does not say how large its batch was"),
        ("ddp", {"sha256": "0" * 64, "file": __file__}, {}, "is not what it was"),
        ("ddp", {"code_sha256": "0" * 64}, {}, "is not what it was"),
        ("ddp", {}, {"numa": None}, "^--scenario: ddp has the switch numa on, which a script cannot have"),
        ("ddp", {}, {"mine": None}, "^--scenario: ddp has the switch mine on, which is not one of bench"),
        ("ddp", {}, {"bucket_mb=x": None}, "^--scenario: .* bucket_mb on, but 'x' is not a whole number"),
    ],
)
def test_what_cannot_be_written_down(
    run_of: Callable[..., Analysed], scenario: str | None, about: dict[str, Any], ran: dict[str, None], says: str
) -> None:
    run = run_of(about, switches=ran)
    with pytest.raises(RequestError, match=says):
        script(run, scenario)


def test_the_page_ends_with_the_recommended_recipe(run_of: Callable[..., Analysed]) -> None:
    run = run_of()
    advised = replace(run.document, recommendation=Recommendation(fastest="ddp_o1"))
    run = replace(run, document=advised)
    last = chapters.of_run(chapters.Material(run=run, plots={}))[-1]
    (_, fold) = last.blocks
    assert last.slug == "recipe" and isinstance(fold, Fold)
    assert fold.blocks == (Code(script(run, "ddp_o1")),)
    unwritten = replace(advised, workload=replace(advised.workload, name="mine", sha256="0" * 64, file="/gone.py"))
    said = chapters.of_run(chapters.Material(run=replace(run, document=unwritten), plots={}))[-1]
    assert said.blocks == ("There is no script of ddp_o1: the file of its workload, /gone.py, is missing.",)


def test_fsdp2_leaves_the_step_of_sgd_to_torch(run_of: Callable[..., Analysed]) -> None:
    """``fused=False`` would be a loop over all weights on a GPU; Adam's fused step has a rule for shards."""
    assert "weight_decay=0.0001, fused=None)" in script(run_of(), "fsdp2")
    assert "fused=True)" in script(run_of(optimizer="torch.optim.adamw.AdamW"), "fsdp2")


@pytest.mark.parametrize(
    ("switches", "line"),
    [
        ({"channels_last": None}, "net = net.to(**nhwc)"),
        ({"bucket_mb=50": None}, "bucket_cap_mb=50"),
        ({"bucket_mb": None}, "bucket_cap_mb=100"),
        ({"bucket_view": None, "static_graph": None}, "(net, gradient_as_bucket_view=True, static_graph=True)"),
        ({"compile": None}, "module.compile()"),
        ({"compile=no_optimization": None}, 'torch._dynamo.config.optimize_ddp = "no_optimization"'),
        ({"compile": None, "cuda_graphs": None}, 'module.compile(mode="reduce-overhead")'),
        ({"tf32=off": None}, "torch.backends.cuda.matmul.allow_tf32 = False"),
        ({"sync_bn": None}, "convert_sync_batchnorm(net)"),
        ({"foreach": None}, "weight_decay=0.0001, fused=False, foreach=True"),
    ],
)
def test_switches_are_written(run_of: Callable[..., Analysed], switches: dict[str, None], line: str) -> None:
    text = script(run_of(switches=switches), "ddp")
    assert text.count(line) == 1
    assert line not in script(run_of(switches=dict.fromkeys(switches, "it had no effect")), "ddp")


def test_every_switch_has_a_recipe_or_none_on_purpose() -> None:
    files = discover.names(discover.SWITCH)
    without = {name for name, file in files.items() if not hasattr(switching.switch_module(name, file), "recipe")}
    assert without == {"numa"}


IMPORTED: dict[str, Any] = {"file": "times.csv", "sha256": "0" * 64, "utc": "2026-01-02T03:04:05Z"}
IMPORTED |= {"measured_utc": None, "hardware": [], "times": "a step", "left_out": []}
ATTACHED = {"commands": {}, "step": "optimizer", "times": "clock", "launches": []}


@pytest.mark.parametrize(
    ("about", "how", "says"),
    [
        ({"importing": IMPORTED}, {}, "RUN: {run} was imported, so bench does not know how it trained; "),
        ({"attaching": ATTACHED}, {}, "RUN: {run} was attached, so bench does not know how it trained; "),
        ({}, {"losses": [6.0, 5.0, math.nan]}, "--scenario: ddp is not finite: it does not train the same model; "),
        ({}, {"checks": {"final_weights_alike": False}}, "--scenario: ddp is diverged: it does not train the same"),
    ],
    ids=["imported", "attached", "not-finite", "diverged"],
)
def test_runs_without_a_recipe(tmp_path: Path, bench: Bench, about: Any, how: dict[str, Any], says: str) -> None:
    launches = [Launch("ddp", [[9, 40, 41]] * 2, **how)]
    folder = write_run(tmp_path, launches, about={"workload": {"settings": SETTINGS}, "experiments": about})
    out = tmp_path / "train.py"
    bench("recipe", folder, "--scenario", "ddp", "--out", out).refused(f"bench: error: {says.format(run=folder.name)}")
    assert not out.exists()


def test_an_unfinished_run_has_no_recipe(tmp_path: Path, bench: Bench) -> None:
    launches, about = [Launch("ddp", [[9, 40, 41]] * 2)], {"workload": {"settings": SETTINGS}}
    finished = write_run(tmp_path, launches, about=about)
    begun = write_run(tmp_path, launches, about=about, complete=False)
    how = f"{begun} is incomplete: it was interrupted, or is still being written; finish it with 'python -m bench run "
    bench("recipe", begun, "--scenario", "ddp").refused(how)
    said = bench("recipe", "latest", "--results", tmp_path, "--scenario", "ddp")
    assert finished.name in said.out and f"note: {begun} is not finished" in said.err


def test_an_existing_file_is_left_alone(tmp_path: Path, bench: Bench) -> None:
    folder = write_run(tmp_path, [Launch("ddp", [[9, 40, 41]] * 2)], about={"workload": {"settings": SETTINGS}})
    out = tmp_path / "train.py"
    ask = ("recipe", folder, "--scenario", "ddp", "--out", out)
    assert bench(*ask)[0] == 0
    written = out.read_text()
    assert "DistributedDataParallel" in written
    for more in ([], ["--json"]):
        code, _, error = bench(*ask, *more)
        assert (code, error.count("\n"), out.read_text()) == (2, 1, written)
        assert error.startswith("bench: error: --out: ")


Start = Callable[..., str]
Trained = Callable[..., list[str]]


def by_torchrun(file: Path, processes: int, *arguments: str) -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    command = [sys.executable, *launcher, str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def trained(host: WorkerHost, tmp_path: Path) -> Trained:
    """Trains what the scripts of a run say, in two parts with a checkpoint in between, against its record; what the
    last of them printed."""

    def check(
        names: tuple[str, ...], iters: int, within: float = 1e-6, start: Start = ranks.run, **changes: Any
    ) -> list[str]:
        run = Analysed.of(measured(host, tmp_path, names, iters=iters, parity=False, **changes))
        for name in (one.scenario for one in run.document.launches):
            file = tmp_path / f"{name.replace('+', '_').replace('=', '_')}.py"
            file.write_text(script(run, name))
            steps = run.steps[run.steps["scenario"] == name].groupby("step")["loss"].mean()
            processes = next(one.processes for one in run.document.launches if one.scenario == name)
            more = ("--log-every", "1", "--checkpoint", f"{file.stem}.pt", "--steps")
            outputs = [start(file, processes, *more, str(last)) for last in (2, len(steps))]
            losses = [float(one) for one in re.findall(r"loss ([^,\n]+)", "".join(outputs))]
            assert losses == pytest.approx(list(steps), rel=within), name
        return outputs

    return check


AROUND = """

def before_step(model, optimizer):
    from torch.nn.utils import clip_grad_norm_

    clip_grad_norm_(model[-1].parameters(), 0.1)


def after_step(model, optimizer):
    import torch

    torch._foreach_mul_([weight.data for weight in model[0].parameters()], 0.9)


def schedule(optimizer):
    from torch.optim.lr_scheduler import ExponentialLR

    return ExponentialLR(optimizer, 0.5)
"""


@pytest.mark.parametrize(
    ("scenario", "start"),
    [
        ("single", ranks.run),
        pytest.param("ddp_o2", by_torchrun, marks=pytest.mark.slow),
        pytest.param("fsdp2", by_torchrun, marks=(pytest.mark.slow, needs_fsdp2)),
    ],
)
def test_a_script_of_the_users_workload(trained: Trained, tmp_path: Path, scenario: str, start: Start) -> None:
    """Under FSDP2 of one whose optimizer keeps no state."""
    (tmp_path / "mlp.py").write_text((MLP.replace(", momentum=0.9", "") if scenario == "fsdp2" else MLP) + AROUND)
    found = discover.load_workload("mlp", str(tmp_path / "mlp.py"))
    outputs = trained((scenario,), 4, start=start, task=found.task("cpu", found.workload.settings_on("cpu")))
    assert not [output for output in outputs if "UserWarning" in output]
    check_style(tmp_path / f"{scenario}.py")


@pytest.mark.slow
def test_a_scenario_of_the_users_with_switches(trained: Trained, tmp_path: Path) -> None:
    text = 'from bench.seams import Scenario\nSCENARIO = Scenario(summary="mine", strategy="averaging", options={})\n'
    (tmp_path / "mine.py").write_text(text.replace("{}", '{"period": 2}'))
    trained((f"{tmp_path / 'mine.py'}+foreach+checkpointing",), 4, model="shufflenet_v2_x0_5")
    assert "PeriodicModelAverager(period=2)" in (tmp_path / "mine_checkpointing_foreach.py").read_text()
    (tmp_path / "mine.py").write_text(text)
    run = Analysed.of(read(str(next((tmp_path / "out").iterdir()))))
    with pytest.raises(RequestError, match="is not what it was when mine"):
        script(run, "mine+checkpointing+foreach")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "names",
    [
        ("single", "ddp", "ddp_o1", "ddp_o2", "ddp_o3", "fsdp2", "ddp_accumulate"),
        ("dp", "zero1", "replicate", "averaging", "post_local_sgd", "ddp_bf16_hook", "ddp_fp16_hook"),
        ("ddp+bucket_mb=2+bucket_view", "ddp+static_graph+foreach", "ddp+find_unused", "ddp_o2+channels_last"),
        ("ddp+checkpointing", "fsdp2+checkpointing", "ddp_accumulate+channels_last", "zero1+foreach"),
        ("ddp+compile",),
        ("fsdp2_half", "hsdp"),
    ],
    ids=["usual", "others", "switches", "with-blocks", "compiled", "sharded"],
)
def test_scripts_train_what_was_measured(trained: Trained, names: tuple[str, ...]) -> None:
    trained(names, *((4, 1e-4) if names == ("ddp+compile",) else (9,)))
