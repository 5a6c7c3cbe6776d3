"""What a newcomer does, in an empty environment: the README, models of others, and scripts of others by ``attach``.

Each command that is printed as the next one is run, too. Packages come from the registry; without it these tests are
skipped. ``BENCH_EXAMPLES=DIR`` names a checkout of github.com/pytorch/examples, whose mnist and imagenet are attached.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin import ROOT
from standin.planted import defined

from bench.analyse.parity import SAME
from bench.verbs.sets import scenarios_of

pytestmark = pytest.mark.slow

PACKAGES = ("timm", "transformers", "lightning", "accelerate", "deepspeed")
NEXT = re.compile(r"[Nn]ext: (python -m bench.*)")
SMALL = "--device cpu --warmup 1 --iters 2 --launches 1"

WORKLOAD = """
from bench.seams import Workload

WORKLOAD = Workload(summary="a model of others", unit="examples", global_batch={"cpu": 8, "cuda": 8})
"""
WORKLOAD += defined("optimizer(work, parameters)", "return torch.optim.AdamW(parameters, lr=1e-3)")
DRAW = "torch.Generator().manual_seed(index)"
TIMM = defined("model(work)", "import timm", 'return timm.create_model("resnet10t", num_classes=10)')
TIMM += defined("example(work, index)", f"return torch.randn(3, 32, 32, generator={DRAW}), index % 10")
TIMM += defined("loss(model, batch)", "return cross_entropy(model(batch[0]), batch[1])")
GPT2 = defined(
    "model(work)",
    "from transformers import GPT2Config, GPT2LMHeadModel",
    "return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))",
)
GPT2 += defined("example(work, index)", f"return torch.randint(100, (16,), generator={DRAW})")
GPT2 += defined("loss(model, batch)", "return model(input_ids=batch, labels=batch).loss")
LIGHTNING = """
import lightning
import torch


class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(32, 10)

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.TensorDataset(torch.randn(640, 32), torch.randint(10, (640,)))
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Small(), torch.utils.data.DataLoader(data, batch_size=32))
"""
ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(32, 10)
data = torch.utils.data.TensorDataset(torch.randn(640, 32), torch.randint(10, (640,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)
net, updates, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), loader)
for _ in range(2):
    for inputs, labels in loader:
        updates.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(net(inputs), labels))
        updates.step()
"""
MNIST = "{python} {examples}/mnist/main.py --epochs 1 --batch-size 32 --no-accel"
IMAGENET = (
    "{python} {examples}/imagenet/main.py --arch resnet18 --epochs 1 --batch-size 4 --workers 1 --no-accel pictures"
)

Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with bench and the packages, of an environment that had nothing."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    own = str(home / "bin" / "python")
    uv = [str(home / "bin" / "uv"), "pip", "install", "-q", "--python", str(home), "-e", f"{ROOT}[dev]", *PACKAGES]
    for command in ([own, "-m", "pip", "install", "-q", "uv"], uv):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the packages cannot be had: {done.stderr.strip()[-200:]}")
    return own


@pytest.fixture
def shell(python: str, tmp_path: Path) -> Shell:
    places = {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}", "BENCH_CACHE_DIR": str(tmp_path / "c")}
    os.symlink(ROOT / "scenarios", tmp_path / "scenarios")

    def run(command: str) -> str:
        about: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | places, "capture_output": True, "text": True}
        done = subprocess.run(shlex.split(command), **about)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        assert "Traceback" not in done.stdout + done.stderr, (command, done.stderr[-2000:])
        return done.stdout + done.stderr

    return run


def followed(shell: Shell, command: str, folder: Path) -> None:
    """Run a command and the next ones that it prints; one that compares takes the run before."""
    before = sorted(path.name for path in folder.glob("results/*"))
    printed = shell(command)
    commands = [one for line in NEXT.findall(printed) for one in re.split(", (?:or|then) ", line)]
    for one in commands:
        if "OTHER-RUN" not in one or before:
            shell(one.replace("OTHER-RUN", before[-1] if before else ""))


def test_the_first_look(shell: Shell, tmp_path: Path) -> None:
    shell("python -m bench doctor")
    shell("python -m bench list")
    asked = f"--model resnet18 --image-size 32 --scenario single,ddp,ddp_o1 {SMALL}"
    followed(shell, f"python -m bench run {asked}", tmp_path)


def test_frameworks_train_the_same(shell: Shell, tmp_path: Path) -> None:
    small = "--workload fashion_mlp --setting width=31 --global-batch 6 --ranks 3"
    shell(f"python -m bench run --set frameworks {small} {SMALL}")
    (run,) = tmp_path.glob("results/*/run.json")
    verdicts = {one["scenario"]: one["verdict"] for one in json.loads(run.read_text())["parity"]}
    assert verdicts == dict.fromkeys((found.name for found in scenarios_of(None, "frameworks")), SAME)


@pytest.mark.parametrize("model", [TIMM, GPT2], ids=["timm", "gpt2"])
def test_a_model_of_others(shell: Shell, tmp_path: Path, model: str) -> None:
    (tmp_path / "mine.py").write_text(WORKLOAD + model)
    followed(shell, f"python -m bench run --workload mine.py --scenario single,ddp,ddp_o1 {SMALL}", tmp_path)


@pytest.mark.parametrize(
    "script", [LIGHTNING, ACCELERATE, MNIST, IMAGENET], ids=["lightning", "accelerate", "mnist", "imagenet"]
)
def test_a_script_of_others(shell: Shell, python: str, tmp_path: Path, script: str) -> None:
    from in_turns import digits

    command = f"{python} train.py"
    (tmp_path / "train.py").write_text(script)
    if "{examples}" in script:
        examples = os.environ.get("BENCH_EXAMPLES")
        if examples is None:
            pytest.skip("BENCH_EXAMPLES names no checkout of github.com/pytorch/examples")
        command = script.format(python=python, examples=examples)
        digits(tmp_path.parent / "data" / "MNIST" / "raw")
        pictures(tmp_path / "pictures")
    for _ in range(2):
        followed(shell, f"python -m bench attach --scenario mine -- {command}", tmp_path)


def pictures(folder: Path) -> None:
    from PIL import Image

    for number in range(32):
        path = folder / ("train" if number < 24 else "val") / f"kind{number % 2}" / f"{number}.jpeg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 64), 50).convert("RGB").save(path)
