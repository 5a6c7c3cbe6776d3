"""``bench limits`` takes a step apart: what is planted lands in its own part, and in no other."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench, Plotting
from standin.planted import defined
from standin.schemas import is_valid
from test_workload import MLP, without

from bench.core.codec import decode
from bench.experiments import limits, prove
from bench.report import plots
from bench.runs.experiments import Ceilings

PLANTED_MS, EXAMPLES = 30.0, 8
SLEEP = f"time.sleep({PLANTED_MS / 1000})"
SORT = "out = out + 0 * torch.sort(torch.arange(500_000.0).flip(0))[0][0]"
"""By one thread: some 25 ms."""


def planted(kind: str) -> str:
    if kind == "data":
        source = MLP.replace("WORKLOAD = Workload(", 'WORKLOAD = Workload(\n    reads="nothing",')
        collate = defined("collate(examples)", SLEEP, "return torch.utils.data.default_collate(examples)")
        return source + defined("size(work)", "return 64") + collate
    body = ('out = model(batch["x"])', SORT if kind == "memory" else SLEEP, 'return cross_entropy(out, batch["y"])')
    return without("loss")(MLP) + defined("loss(model, batch)", *body)


def known(about: Mapping[str, Any]) -> Ceilings:
    kinds = [f"{kind} {name}" for kind in ("matrix products", "convolutions") for name in ("fp32", "bf16")]
    values = {"tflops": {kind: [0.1] for kind in kinds}, "launch_us": [2.0], "reasons": {}}
    values |= {"gib_per_s": {way: [5.0] for way in ("read", "write", "optimizer")}, "utc": "2026-01-01T00:00:00Z"}
    return decode(Ceilings, {**about, **values})


@pytest.mark.parametrize("kind", ["host", *(pytest.param(one, marks=pytest.mark.slow) for one in ("data", "memory"))])
def test_what_is_planted_lands_in_its_own_part(
    run_here: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, plotting: Plotting
) -> None:
    monkeypatch.setattr(limits, "from_cache", known)
    Path("mine.py").write_text(planted(kind))
    Path("data").mkdir()
    Path("data/one").touch()
    asked = ["--workload", "./mine.py", "--setting", "width=16", "--global-batch", str(EXAMPLES)]
    asked += ["--data", "data", "--workers", "0"] if kind == "data" else []
    few = ("--device", "cpu", "--scenario", "single", "--warmup", "1", "--iters", "2")
    done = run_here("limits", *asked, *few, "--json")
    document = done.well()
    parts = {row["part"]: row for row in document["limits"]}
    assert "single reaches " in done.err and "of what this machine can do on this model" in done.err
    others = sum(parts[name]["ms"] for name in ("data", "host", "memory", "kernels") if name != kind)
    if kind == "memory":  # it computes, and takes longer on a busy machine
        assert parts["memory"]["ms"] + parts["contention"]["ms"] > 5 * others
    else:
        assert parts[kind]["ms"] == pytest.approx(PLANTED_MS, abs=6.0) and others < 12.0
    (path,) = Path("results").iterdir()
    assert is_valid(path)
    if kind == "host":
        assert run_here("report", str(path)).code == 0
        page = Path("reports/index.html").read_text()
        assert "single reaches " in page.partition(">All scenarios<")[0], "the page's answer is that of the command"
        shown = run_here("show", str(path)).out
        assert shown.startswith("single reaches ") and shown.count("single reaches ") == 1
        assert "How far from the limit?" in page and "The account of a step" in page
        rows = list(csv.DictReader(Path("reports/limits.csv").read_text().splitlines()))
        spent = [float(row["ms"]) for row in rows if row["part"] not in ("step", "limit", "own limit")]
        assert sum(spent) == pytest.approx(next(float(row["ms"]) for row in rows if row["part"] == "step"))
        assert run_here("check", "--rows", str(path)).code == 0


def test_trainers_wait_for_their_server(run_here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is of the ranks that train."""
    monkeypatch.setattr(limits, "from_cache", known)
    few = ("--device", "cpu", "--scenario", "parameter_server", "--warmup", "1", "--iters", "2")
    done = run_here("limits", "--workload", "fashion_mlp", *few, "--json")
    (launch,) = done.document["experiments"]["limits"]["launches"]
    assert [one["communication"] > one["host"] for one in launch["spent_ms"]] == [True, True]


@pytest.mark.slow
def test_ceilings_are_measured_once(run_here: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(limits, "BUSY", 100.0)  # other tests run beside
    asked = ("limits", "--workload", "fashion_mlp", "--device", "cpu", "--scenario", "single", "--iters", "3", "--json")
    first, second = (run_here(*asked).document for _ in range(2))
    (measured,), (again,) = (one["experiments"]["limits"]["ceilings"] for one in (first, second))
    assert measured == again and min(measured["tflops"]["matrix products fp32"]) > 0.001
    assert [len(one["experiments"]["limits"]["measured"]) for one in (first, second)] == [1, 0]


def test_a_run_has_what_is_known(run_here: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "from_cache", known)
    Path("mlp.py").write_text(MLP)
    asked = ("--workload", "mlp.py", "--device", "cpu", "--warmup", "1", "--iters", "1")
    done = run_here("run", *asked, "--scenario", "ddp", "--json")
    document = done.well()
    of_limits = document["experiments"]["limits"]
    assert [one["processes"] for one in of_limits["ceilings"]] == [2]
    assert of_limits["launches"] == [] and of_limits["measured"] == []
    (row,) = document["arithmetic"]
    assert row["of_ceiling"] == pytest.approx(row["tflops_per_s"] / 2 / 0.1)


def test_a_prediction_is_measured(run_here: Bench, monkeypatch: pytest.MonkeyPatch, plotting: Plotting) -> None:
    plotting(plots.limits_plot)
    monkeypatch.setattr(limits, "from_cache", known)
    monkeypatch.setattr(prove, "candidates", lambda *given: [("mine+bucket_mb", {"communication": 0.2})])
    Path("mlp.py").write_text(MLP)
    declared = 'from bench.seams import Scenario\nSCENARIO = Scenario(summary="a file of a user", strategy="ddp")'
    Path("mine.py").write_text(declared)
    asked = ("--workload", "mlp.py", "--device", "cpu", "--warmup", "1", "--iters", "2", "--no-parity")
    done = run_here("run", *asked, "--scenario", "./mine.py", "--prove", "--json")
    assert done.code == 0, done.err
    assert "mine+bucket_mb was predicted to be " in done.err and "the prediction was " in done.err
    assert "mine reaches " in done.err and "of what this machine can do" in done.err
    document = done.document
    launches = [(one["scenario"], one["repeat"]) for one in document["experiments"]["prove"]["launches"]]
    first, second = "mine", "mine+bucket_mb"
    assert launches == [(first, 0), (second, 0), (second, 1), (first, 1), (first, 2), (second, 2)]
    (row,) = document["switch-predictions"]
    assert row["launches"] == 3 and row["verdict"] in ("right", "undecided", "too high", "too low")
    assert "nothing to resume" in run_here("run", "--resume", "latest").err
    assert run_here("report", "latest").code == 0
    page = Path("reports/index.html").read_text()
    assert Path("reports/limits.svg").exists()
    for question in ("Is my MFU normal?", "Is the GPU waiting for Python?", "What would help most?"):
        assert question in page
    assert "There is no MFU: a CPU has no nominal peak" in page and "bench run --prove" not in page
    assert re.search(r">[\d.,]+ ms, 100 ", page), "a phone has values below names"
