"""A workload is one file: one that is not images goes through every verb, and a wrong one is refused in a line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Bench, Plotting, done_here
from standin import documented
from standin.schemas import document_in

from bench.analyse.parity import SAME, WITHIN_HALF
from bench.report import plots
from bench.sites.local import WorkerHost

MLP = documented("WORKLOAD = ")

SMALL = ("--device", "cpu", "--scenario", "single", "--warmup", "1", "--iters", "2", "--launches", "1")


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("mlp")
    (here / "mlp.py").write_text(MLP)
    much = ("--warmup", "2", "--iters", "12", "--diagnose", "--setting", "width=32", "--device", "cpu", "--scenario")
    return done_here(host, here / "out", "run", "--workload", str(here / "mlp.py"), *much, "dp,ddp_o1")


def test_every_launch_trains_the_same_model(run: Path) -> None:
    document = json.loads((run / "run.json").read_text())
    launches = [*document["launches"], *document["experiments"]["diagnose"]["launches"]]
    assert {launch["status"] for launch in launches} == {"ok"} and len(launches) == 4
    verdicts = {row["scenario"]: row["verdict"] for row in document["parity"]}
    assert verdicts == {"dp": SAME, "ddp_o1": WITHIN_HALF}, "as single and ddp are in test_own_steps.py"
    workload = document["workload"]
    assert (workload["name"], workload["unit"], workload["settings"]) == ("mlp", "samples", {"width": 32})
    assert len(workload["sha256"]) == 64 and workload["global_batch"] == 64
    for launch in document["launches"]:
        ran = launch["effective"]
        assert ran["model"] == "torch.nn.modules.container.Sequential"
        assert sum(ran["parameter_dtypes"].values()) == 32 * 32 + 32 + 32 * 10 + 10
        assert (ran["optimizer"], ran["optimizer_settings"]["lr"]) == ("torch.optim.sgd.SGD", 0.01)


def test_it_is_reported_in_its_own_unit(run: Path, bench: Bench, tmp_path: Path, plotting: Plotting) -> None:
    plotting(plots.speeds)
    code, _, shown = bench("report", run, "--out", tmp_path / "reports")
    assert code == 0, shown
    for name in ("summary.md", "index.html"):
        (file,) = (tmp_path / "reports").rglob(name)
        text = re.sub(r"<svg.*?</svg>|data:[^\"]*", "", file.read_text(), flags=re.DOTALL)
        assert "samples/s" in text and ("mlp, global batch 64" in text or name == "summary.md")
        assert not re.search(r"\bimages?\b|\bimg/s\b", text)


# Wrong files


def without(function: str) -> Callable[[str], str]:
    return lambda source: re.sub(rf"def {function}\(", f"def _{function}(", source)


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda source: source.replace(old, new)


Changed = tuple[Callable[[str], str], tuple[str, ...]]

WRONG: dict[str, Changed] = {
    "no declaration": (replaced("WORKLOAD =", "WORKLAOD ="), ("declares no WORKLOAD", "add WORKLOAD = Workload(...)")),
    "a batch that is none": (replaced('"cpu": 64', '"cpu": 0'), ("global_batch=0", "at least 1")),
    "a batch for half of the devices": (replaced('"cuda": 4096', '"tpu": 1'), ("global_batch=", "cpu and cuda")),
    "a setting of a wrong type": (replaced('"width": 256', '"width": None'), ("settings['width'] must be",)),
    "a setting that bench has": (replaced('"width": 256', '"seed": 1'), ("'seed'", "taken: ", "global_batch")),
    "a title of what is not set": (replaced('unit="s', 'title="{depth}", unit="s'), ("title=", "'depth'")),
    **{f"no {name}": (without(name), (f"no function {name}", "define")) for name in ("model", "example", "optimizer")},
    "a misspelt function": (replaced("def optimizer", "def optimiser"), ("no function optimizer", "rename optimiser")),
    "a misspelt optional one": (lambda source: source + "\ndef wieght(batch): ...\n", ("rename wieght to weight",)),
    "a function of other arguments": (replaced("def loss(model, batch)", "def loss(batch)"), ("loss", "define loss(")),
}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("--workload", "resnet11"), ("--workload", "did you mean resnet101")),
        (("--workload", "./resnet101.py"), ("--workload", "takes the name", "rename the file")),
        (("--workload", "./mlp.py", "--model", "resnet18"), ("--model", "mlp has no setting 'model'", "width")),
        (("--workload", "./mlp.py", "--image-size", "32"), ("--image-size", "'image_size'", "width")),
        (("--setting", "width=5"), ("--setting", "resnet101 has no setting 'width'", "momentum")),
        (("--setting", "momentum"), ("--setting", "'momentum'", "NAME=VALUE")),
        (("--setting", "classes=many"), ("--setting", "classes", "a whole number")),
        (("--setting", "momentum=nan"), ("--setting", "momentum", "a finite number")),
    ],
    ids=" ".join,
)
def test_wrong_settings(asked: tuple[str, ...], says: tuple[str, ...], bench: Bench, tmp_path: Path) -> None:
    for name in ("mlp", "resnet101"):
        (tmp_path / f"{name}.py").write_text(MLP)
    bench("run", *asked, *SMALL, "--out", "out").refused(*says)
    assert not (tmp_path / "out").exists()


# Refused by the worker host, before anything is written


@pytest.mark.parametrize("setting", ["heads=0", "width=-4"])
def test_a_transformer_has_at_least_one_of_each(setting: str, run_here: Bench) -> None:
    asked = ("--workload", "gpt", "--setting", setting, "--device", "cpu", "--scenario", "single", "--out", "out")
    run_here("run", *asked).refused(f"--setting: {setting} is not at least 1; give a larger number")
    assert not Path("out").exists()


CHECK = """

def check(work):
    from bench.seams import RequestError

    raise RequestError("--setting", "width is 256", "choose 128")
"""
TRIED: dict[str, Changed] = {
    "a module that is missing": (replaced('unit="s', 'imports=("absent_module",), unit="s'), ("absent_module",)),
    "an example that fails": (replaced("torch.randn(32, g", "torch.radn(32, g"), ("mine.py:20", "radn")),
    "an example without a tensor": (replaced('return {"x"', 'return "x"\n    {"x"'), ("has no tensor", "return")),
    "an example that changes": (
        replaced("randn(32, generator=random)", "randn(32)"),
        ("example(work, 0) gives another example when it is called again; draw it from",),
    ),
    "an example without end": (replaced("torch.randn(32", "torch.randn(10**13"), ("more than half of the memory",)),
    "a model that is none": (replaced("return nn.S", "return {} and nn.S"), ("model(work) returned dict; return a",)),
    "a loss of each sample": (
        replaced('batch["y"])', 'batch["y"], reduction="none")'),
        ("loss(model, batch) returned a tensor of shape [32]; return a scalar tensor",),
    ),
    "a loss without a gradient": (replaced('batch["y"])', 'batch["y"]).detach()'), ("without a gradient; compute it",)),
    "a batch that is changed": (
        replaced('model(batch["x"])', 'model(batch["x"].mul_(2))'),
        ("loss(model, batch) changes the batch in place, and made-up data comes again; change a copy",),
    ),
    "layers without weights": (
        replaced("nn.Linear(32,", "nn.LazyLinear("),
        ("model(work) returned a model whose lazy layers have no weights yet; call it once",),
    ),
    "complex weights": (
        replaced("nn.Sequential(nn", "nn.Sequential(nn.Linear(1, 1, dtype=__import__('torch').cfloat), nn"),
        ("a model with complex weights, which no level of precision has; keep them as torch.view_as_real gives them",),
    ),
    "shapes that do not fit": (
        replaced("nn.Linear(32,", "nn.Linear(33,"),
        ("fails on a batch of 32: RuntimeError: ", "shapes cannot be multiplied", "fix the file"),
    ),
    "an optimizer that is none": (replaced("return SGD(", "SGD("), ("optimizer(work, parameters) returned NoneType",)),
    "an optimizer that takes a closure": (
        replaced("SGD(parameters, lr=0.01, fused=True)", "__import__('torch').optim.LBFGS(parameters)"),
        ("returned LBFGS, whose step() cannot be called without", "'closure'", "; choose another one, or measure your"),
    ),
    "several shapes": (replaced("randn(32, g", "randn(32 + index, g"), ("of equal shape, or define collate",)),
    "settings that it refuses": (lambda source: source + CHECK, ("--setting: width is 256; choose 128",)),
}


@pytest.mark.parametrize(("change", "says"), (WRONG | TRIED).values(), ids=WRONG | TRIED)
def test_wrong_files(change: Callable[[str], str], says: tuple[str, ...], run_here: Bench, tmp_path: Path) -> None:
    source = change(MLP)
    assert source != MLP
    (tmp_path / "mine.py").write_text(source)
    run_here("run", "--workload", "./mine.py", *SMALL, "--out", "out").refused("bench: error: --", *says)
    assert not (tmp_path / "out").exists()


# Obeyed, or an error


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (replaced('"width": 256', '"width": 256, "depth": 3'), "uses the setting depth"),
        (replaced('"width": 256', '"width": 256, "lr": 0.5'), "the setting lr is 0.5, but the optimizer has 0.01"),
        (replaced('batch["y"])', 'batch["y"]).item()'), "returned float; return a scalar tensor"),
    ],
    ids=["unused", "contradicted", "a number as loss"],
)
def test_a_disobeyed_setting(change: Callable[[str], str], says: str, run_here: Bench, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(change(MLP))
    work = ("--workload", str(tmp_path / "mine.py"), "--no-parity")
    assert run_here("run", *work, *SMALL, "--out", str(tmp_path / "out")).code == 1
    (launch,) = document_in(tmp_path / "out")["launches"]
    assert launch["status"] == "error" and says in launch["reason"]
