"""docs/own.md, "My training step has ...": each of its files trains, and is judged rightly."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Bench, needs_fsdp2
from standin import ROOT
from standin.planted import defined, planted
from standin.schemas import document_in
from test_workload import MLP, without

from bench.analyse.parity import CANNOT_TELL, DIVERGED, SAME, WITHIN_HALF

_, SECTION = (ROOT / "docs" / "own.md").read_text().split("## My training step has ...\n")
SNIPPETS = dict(re.findall(r"^### \.\.\. ([^\n]+)\n[^#]*?^```python\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE))
OPTIMIZER = "optimizer(work, parameters)"
CLIPPED_IN_A_HOOK = defined(
    OPTIMIZER,
    "made = torch.optim.SGD(parameters, lr=0.01)",
    'weights = made.param_groups[0]["params"]',
    "made.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(weights, 0.01) and None)",
    "return made",
)
LAST_LAYER = defined(OPTIMIZER, "return torch.optim.SGD(list(parameters)[-2:], lr=0.01)")
SPECTRAL = defined(
    "model(work)",
    "first = nn.utils.parametrizations.spectral_norm(nn.Linear(32, work.width))",
    "return nn.Sequential(first, nn.ReLU(), nn.Linear(work.width, 10))",
)
IN_FP32 = defined("loss(model, batch)", 'return cross_entropy(model(batch["x"].float() / 255), batch["y"])')
PARTS = defined("before_step(model, optimizer)", "nn.utils.clip_grad_norm_(model[-1].parameters(), 0.001)")
PARTS += defined("after_step(model, optimizer)", "with torch.no_grad():", "    model[0].weight.clamp_(-0.05, 0.05)")
OWN = """
def optimizer(work, parameters):
    import torch

    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                group["steps"] = group.get("steps", 0) + 1
                for one in group["params"]:
                    {change}

    return Own(parameters, {{"lr": 0.01}})
"""
IN_PLACE = OWN.format(change='one.sub_(one.grad.mul_(group["lr"] / group["steps"]))')
MIXES = OWN.format(change="one.add_(torch.zeros(one.shape))")
OTHERS = {
    "a hook that clips": CLIPPED_IN_A_HOOK,
    "an optimizer of the last layer alone": LAST_LAYER,
    "optimizers in a list": SNIPPETS["several optimizers"]
    .replace("self.first, self.second = first, second", "self.both = [first, second]")
    .replace("self.first.step()", "self.both[0].step()")
    .replace("self.second.step()", "self.both[1].step()"),
    "buffers that each forward pass goes by": SPECTRAL,
    "an optimizer of what is not frozen": LAST_LAYER.replace("list(parameters)[-2:]", "filter(is_trained, parameters)")
    + "\n\ndef is_trained(weight):\n    return weight.requires_grad\n",
    "inputs that the loss makes fp32": IN_FP32,
    "parts of the model around the step": PARTS,
    "an optimizer that works in place": IN_PLACE,  # as those of schedulefree
    "... with a schedule": IN_PLACE + "\n\n" + SNIPPETS["a learning-rate schedule"],
}
CONVOLUTION = defined(
    "model(work)",
    "layers = nn.Conv2d(2, work.width, 3), nn.Flatten(), nn.Linear(4 * work.width, 10)",
    "return nn.Sequential(nn.Unflatten(1, (2, 4, 4)), *layers)",
)
SPARE = defined("model(work)", "made = nn.Linear(32, 10)", "made.spare = nn.Linear(work.width, 10)", "return made")
WIDE = defined(
    "model(work)", "return nn.Sequential(nn.Linear(32, 8 * work.width), nn.ReLU(), nn.Linear(8 * work.width, 10))"
)
GROUPED = """
def model(work, exact=False):
    from torch import nn

    class Grouped(nn.Linear):
        def forward(self, x):
            if x.element_size() == 8 and not exact:  # as torch._grouped_mm
                raise RuntimeError("Expected mat_a to be Float32, BFloat16 or Float16 matrix, got Double")
            return super().forward(x)

    return nn.Sequential(nn.Linear(32, work.width), Grouped(work.width, 10))
"""
NARROW = "\n\ndef narrow(work):\n    return model(work, exact=True)\n"
JOINED = defined(
    "collate(examples)",
    'return {name: torch.cat([torch.stack([one[name]] * 2) for one in examples]) for name in ("x", "y")}',
)


def workload(folder: Path, snippet: str) -> Path:
    source = MLP
    for name in re.findall(r"^def (\w+)", snippet, re.MULTILINE):
        source = without(name)(source)
    (folder / "mine.py").write_text(f"{source}\n\n{snippet}")
    return folder / "mine.py"


def trained(run_here: Bench, folder: Path, snippet: str, *scenarios: str, code: int = 0) -> dict[str, Any]:
    small = ("--setting", "width=16", "--device", "cpu", "--warmup", "1", "--iters", "8", "--out", str(folder / "out"))
    work = ("--workload", str(workload(folder, snippet)), "--scenario", ",".join(scenarios))
    done = run_here("run", *work, *small)
    assert done.code == code, done.err
    return document_in(folder / "out")


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {row["scenario"]: row["verdict"] for row in found["parity"]}


AROUND = {title: code for title, code in SNIPPETS.items() if "optimizer):" in code}
USUAL = ("single", "ddp", "ddp_o2", "ddp_accumulate")


@pytest.mark.parametrize("step", [*(title for title in SNIPPETS if title not in AROUND), *OTHERS])
def test_it_is_judged_rightly(run_here: Bench, tmp_path: Path, step: str) -> None:
    found = trained(run_here, tmp_path, (SNIPPETS | OTHERS)[step], *USUAL)
    assert verdicts(found) == {**dict.fromkeys(USUAL, SAME), "ddp_o2": WITHIN_HALF}


@needs_fsdp2
def test_own_steps_are_judged_rightly(run_here: Bench, tmp_path: Path) -> None:
    names = (*USUAL, "fsdp2", "zero1", "parameter_server", "apex_ddp_o1")
    assert len(AROUND) == 3
    found = trained(run_here, tmp_path, "\n\n".join(AROUND.values()), *names)
    assert verdicts(found) == {**dict.fromkeys(names, SAME), **dict.fromkeys(("ddp_o2", "apex_ddp_o1"), WITHIN_HALF)}
    for launch in found["launches"]:
        rate = launch["effective"]["optimizer_settings"]["lr"]
        assert rate == pytest.approx(0.01, rel=1e-3) and rate != 0.01, "after the warm-up of the schedule"


def test_a_parameter_server_takes_weights_in_any_groups_and_layout(run_here: Bench, tmp_path: Path) -> None:
    names = ("parameter_server", "parameter_server+channels_last")
    found = trained(run_here, tmp_path, CONVOLUTION + "\n\n" + SNIPPETS["several optimizers"], *names)
    assert verdicts(found) == dict.fromkeys(names, SAME)


@pytest.mark.parametrize(
    ("snippet", "scenario", "says"),
    [
        (JOINED, "ddp_accumulate", "entry for each of its 32 examples"),  # each micro-batch would be all of it
        (SNIPPETS["several optimizers"], "zero1", "Both takes second besides parameters; leave zero1 out"),
        pytest.param(MIXES, "fsdp2", "its optimizer makes plain tensors", marks=needs_fsdp2),
        (SPARE, "ddp", "some weights had no part in the loss, which DDP waits for; add find_unused"),
    ],
)
def test_what_cannot_be_trained_so(run_here: Bench, tmp_path: Path, snippet: str, scenario: str, says: str) -> None:
    (launch,) = trained(run_here, tmp_path, snippet, scenario, code=1)["launches"]
    assert launch["status"] == "error" and says in launch["reason"]


@needs_fsdp2
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9: Muon")
def test_an_optimizer_that_computes_in_bf16(run_here: Bench, tmp_path: Path) -> None:
    """Its update is another one where shards add up in another order, but not by as much as with a wrong sign."""
    wrong = 'session = parts.build("ddp")\nsession.optimizer.first.param_groups[0]["lr"] *= -1\nreturn session'
    (tmp_path / "planted.py").write_text(planted(wrong))
    snippet = f"{WIDE}\n\n{SNIPPETS['several optimizers'].replace('AdamW', 'Muon')}"
    found = trained(run_here, tmp_path, snippet, "ddp", "ddp_o2", "fsdp2", str(tmp_path / "planted.py"))
    expected = {"ddp": SAME, "ddp_o2": WITHIN_HALF, "fsdp2": CANNOT_TELL, "planted": DIVERGED}
    assert verdicts(found) == expected


def test_what_has_no_double_precision(run_here: Bench, tmp_path: Path) -> None:
    (row,) = trained(run_here, tmp_path, GROUPED, "single", code=1)["parity"]
    assert row["verdict"] == CANNOT_TELL and "let narrow(work) of the workload make a model" in row["reason"]


def test_a_narrow_model_may_compute_otherwise(run_here: Bench, tmp_path: Path) -> None:
    assert verdicts(trained(run_here, tmp_path, GROUPED + NARROW, "single")) == {"single": SAME}


PLANTED = {
    "another rate": ('session.optimizer.param_groups[0]["lr"] *= 2', "dropout and label smoothing", DIVERGED),
    "no clipping": ("session.around.before_step = None", "gradient clipping", DIVERGED),
    "a rate of its own": ("session.around.scheduler.step = lambda: None", "a learning-rate schedule", None),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_strategy_that_leaves_it_out(run_here: Bench, tmp_path: Path, case: str) -> None:
    wrong, step, verdict = PLANTED[case]
    (tmp_path / "planted.py").write_text(planted(f'session = parts.build("ddp")\n{wrong}\nreturn session'))
    snippet = SNIPPETS[step].replace("1.0", "0.01")
    found = trained(run_here, tmp_path, snippet, str(tmp_path / "planted.py"), code=int(verdict is None))
    (launch,) = found["launches"]
    if verdict is None:
        assert launch["status"] == "error" and "the schedule says" in launch["reason"]
    else:
        assert verdicts(found) == {"planted": verdict}
