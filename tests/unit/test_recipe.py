"""Scripts that ``bench recipe`` writes: what they may be, and that they train what was measured."""

import ast
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import measured
from standin.runs import Launch, analysed, write_run

from bench.analyse.analysed import Analysed
from bench.analyse.intervals import estimate
from bench.analyse.overview import overview
from bench.cli import main
from bench.core.errors import RequestError
from bench.experiments.recipe_check import Checked, worst_loss
from bench.report import chapters
from bench.report.blocks import Code, Fold
from bench.report.recipe import script
from bench.runs.document import Recommendation
from bench.seams import discover
from bench.sites.local import WorkerHost

SETTINGS = {
    "model": "resnet18",
    "image_size": 32,
    "classes": 1000,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-4,
}
SCALER = {"class": "torch.amp.grad_scaler.GradScaler", "dynamic": True, "scale": 65536.0}
NAMES = {
    "single": ("single", "O0"),
    "ddp": ("ddp", "O0"),
    "ddp_o1": ("ddp", "O1"),
    "ddp_o2": ("ddp", "O2"),
    "ddp_o3": ("ddp", "O3"),
    "fsdp2": ("fsdp2", "O0"),
    "ddp_accumulate": ("ddp_accumulate", "O0"),
}
MLP = '''
"""An MLP."""
from bench.seams import Workload

WORKLOAD = Workload(summary="an MLP", unit="samples", global_batch=8, settings={"width": 32})


def model(work):
    from torch import nn

    return nn.Sequential(nn.Linear(8, work.width), nn.BatchNorm1d(work.width), nn.ReLU(), nn.Linear(work.width, 4))


def example(work, index):
    import torch

    made = torch.Generator().manual_seed(work.seed + index)
    return {"x": torch.randn(8, generator=made), "y": torch.randint(4, (), generator=made)}


def loss(model, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["x"]), batch["y"])


def optimizer(work, parameters):
    from torch.optim import SGD

    return SGD(parameters, lr=0.1, momentum=0.9)
'''


def run_of(folder: Path, about: dict[str, Any] | None = None, **ran: Any) -> Analysed:
    """A run that was written by hand, with every scenario of :data:`NAMES`. ``about``: other values of its workload."""
    launches = []
    for name, (strategy, precision) in NAMES.items():
        usual = "ddp" if strategy != "single" else "single"
        one = Launch(name, [[9, 40, 41]] * 2, [[100.0]] * 2, strategy=usual, precision=precision, ran=ran)
        launches.append(one)
    path = write_run(folder, launches, about={"workload": {"settings": SETTINGS} | (about or {})})
    run = analysed(str(path))
    document = run.document
    for launch in document.launches:  # what Launch has for all alike
        single = launch.scenario == "single"
        object.__setattr__(launch, "strategy", NAMES[launch.scenario][0])
        object.__setattr__(launch, "processes", 1 if single else 2)
        object.__setattr__(launch, "replicas", {"single": 1, "ddp_accumulate": 4}.get(launch.scenario, 2))
    return run


@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "cuda"])
@pytest.mark.parametrize("workers", [None, 2])
def test_a_script_is_short_plain_and_sound(tmp_path: Path, on_gpu: bool, workers: int | None) -> None:
    """It passes ruff's check and format, and mypy, and imports nothing of bench."""
    gpu = {"device": "cuda", "half": "fp16"} if on_gpu else {}
    ran = {"scaler": SCALER, "compute_dtypes": ["float16"]} if on_gpu else {}
    run = run_of(tmp_path / "results", gpu | {"workers": workers, "prefetch": 2 if workers else None}, **ran)
    files = []
    for name in NAMES:
        text = script(run, name)
        (tmp_path / f"{name}.py").write_text(text)
        assert len(text.splitlines()) <= 120
        assert "import bench" not in text and "from bench" not in text
        assert ("torchrun --standalone --nproc-per-node 2" in text) == (name != "single")
        assert run.id in text and ("GradScaler" in text) == on_gpu
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(text)
    rules = ["--isolated", "--line-length", "120", "--target-version", "py311"]
    select = ["--select", "E,F,W,I,UP,B,SIM,C4,PIE,RET,RUF"]
    for tool in (["ruff", "check", *rules, *select], ["ruff", "format", "--check", *rules]):
        done = subprocess.run([sys.executable, "-m", *tool, *map(str, files)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    if on_gpu:  # once is enough: it takes seconds
        how = ["--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={tmp_path}", "--strict"]
        for file in files:
            file.rename(tmp_path / "train.py")
            done = subprocess.run([sys.executable, "-m", "mypy", *how, str(tmp_path / "train.py")], capture_output=True)
            assert done.returncode == 0, done.stdout.decode()
            if workers is None:
                break


def test_texts_of_a_run_end_no_string_and_no_line(tmp_path: Path) -> None:
    """A run may be somebody else's, and its script is executed."""
    attack = '"""\nimport os; os.system("x")\n\\"""'
    settings = SETTINGS | {"model": "resnet\"18\"\n'''; import os", "classes": "1), print("}
    text = script(run_of(tmp_path, {"title": attack, "settings": settings}), "ddp")
    assert not [node for node in ast.walk(ast.parse(text)) if getattr(node, "attr", None) == "system"]
    literals = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert settings["model"] in literals and settings["classes"] in literals
    with pytest.raises(RequestError, match="which no script can have"):
        script(run_of(tmp_path, {"sha256": None, "settings": {"x=1); import os; (y": 1}}), "ddp")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scenario": "ddp_o7"}, "--scenario: .* has no launch of ddp_o7"),
        ({"scenario": None}, "no valid result to recommend"),
        ({"about": {"settings": {"model": "resnet18"}}}, "other settings than resnet101 takes today"),
        ({"about": {"name": "nothing"}}, "is missing"),
        ({"about": {"sha256": "0" * 64, "file": __file__}}, "is not what it was"),
        ({"about": {"code_sha256": "0" * 64}}, "is not what it was"),
    ],
)
def test_what_cannot_be_written_down(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    run = run_of(tmp_path, changes.get("about"))
    with pytest.raises(RequestError, match=says):
        script(run, changes.get("scenario", "ddp"))


def test_the_page_ends_with_the_recipe_of_its_recommendation(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    advised = replace(run.document, recommendation=Recommendation(fastest="ddp_o1"))
    run = replace(run, document=advised)
    last = chapters.of_run(chapters.Material(run=run, table=overview(run), plots={}))[-1]
    (_, fold) = last.blocks
    assert last.slug == "recipe" and isinstance(fold, Fold)
    assert fold.blocks == (Code(script(run, "ddp_o1")),)
    unwritten = replace(advised, workload=replace(advised.workload, name="mine", sha256="0" * 64, file="/gone.py"))
    said = chapters.of_run(chapters.Material(run=replace(run, document=unwritten), table=overview(run), plots={}))[-1]
    assert said.blocks == ("There is no script of ddp_o1: the file of its workload, /gone.py, is missing.",)


def test_switches_are_not_left_out_in_silence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"switches on \(channels_last\)"):
        script(run_of(tmp_path, switches={"channels_last": None}), "ddp")


def test_an_existing_file_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, [Launch("ddp", [[9, 40, 41]] * 2)], about={"workload": {"settings": SETTINGS}})
    out = tmp_path / "train.py"
    out.write_text("mine")
    assert main(["recipe", str(folder), "--scenario", "ddp", "--out", str(out)]) == 2
    assert "--out" in capsys.readouterr().err and out.read_text() == "mine"
    out.unlink()
    assert main(["recipe", str(folder), "--scenario", "ddp", "--out", str(out)]) == 0
    assert "DistributedDataParallel" in out.read_text()


@pytest.mark.parametrize(
    ("ratios", "speed"),
    [
        ([1.0, 1.01, 0.99, 1.0], "as fast"),
        ([1.1, 1.11, 1.09], "slower"),
        ([0.9, 0.91, 0.89], "faster"),
        ([0.9, 1.1, 1.0], "unclear"),
        ([1.0], "unclear"),
    ],
)
def test_how_fast_a_script_is(ratios: list[float], speed: str) -> None:
    assert Checked(ratio=estimate(ratios), worst=0.0, losses=10).speed == speed


def test_losses_of_a_script_are_held_to_the_record(tmp_path: Path) -> None:
    run = run_of(tmp_path)  # without a reference, so that little is allowed
    recorded = [6.0, 6.0, 6.0]
    assert worst_loss(run, "ddp", recorded) == 0.0
    assert worst_loss(run, "ddp", [6.0, 6.0 * (1 + 2e-6), 6.0]) == pytest.approx(2.0, rel=1e-3)
    assert not Checked(ratio=estimate([1.0]), worst=worst_loss(run, "ddp", [6.0, math.nan, 6.0]), losses=3).same


def test_pairs_are_of_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", str(tmp_path), "--pairs", "3"]) == 2
    assert "--pairs: it has no effect without --check" in capsys.readouterr().err


def losses_of(file: Path, processes: int, *more: str) -> list[float]:
    """What a script prints of each step, under torchrun."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, *(start if processes > 1 else []), str(file), "--log-every", "1", *more],
        capture_output=True,
        text=True,
        cwd=file.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines() if "loss" in line]


@pytest.fixture
def trained(host: WorkerHost, tmp_path: Path) -> Callable[..., None]:
    def check(names: tuple[str, ...], iters: int, resume: bool, **changes: Any) -> None:
        run = Analysed.of(measured(host, tmp_path, names, iters=iters, parity=False, **changes))
        for name in names:
            file = tmp_path / f"{name}.py"
            file.write_text(script(run, name))
            steps = run.steps[run.steps["scenario"] == name].groupby("step")["loss"].mean()
            processes = next(one.processes for one in run.document.launches if one.scenario == name)
            found = losses_of(file, processes, "--steps", str(len(steps)))
            assert found == pytest.approx(list(steps), rel=1e-6)
            if resume:
                parts = [["--steps", "2"], ["--steps", str(len(steps))]]
                again = [losses_of(file, processes, "--checkpoint", f"{name}.pt", *part) for part in parts]
                assert [len(part) for part in again] == [2, len(steps) - 2]
                assert [*again[0], *again[1]] == pytest.approx(list(steps), rel=1e-6)

    return check


def test_a_script_of_a_workload_of_the_users_trains_what_was_measured(
    trained: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "mlp.py"
    file.write_text(MLP)
    found = discover.load_workload("mlp", str(file))
    trained(("ddp_o2",), 3, False, task=found.task("cpu", found.workload.settings_on("cpu")))


@pytest.mark.slow
def test_scripts_train_what_was_measured_and_go_on_from_a_checkpoint(trained: Callable[..., None]) -> None:
    trained(tuple(NAMES), 9, True)
