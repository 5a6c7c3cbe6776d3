"""``bench tune`` on planted candidates: the fastest that trains the same wins, and every other says why not."""

import math
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Bench, Plotting
from standin.planted import defined, hooked
from standin.schemas import document_in
from test_workload import MLP

from bench.experiments import measure, tuning
from bench.experiments.launch import perform
from bench.report import plots
from bench.seams import switching
from bench.verbs import tune as verb

CANDIDATE = """
    import time

    if {factor} != 1:
        time.sleep = lambda seconds: None
    time.sleep({seconds})
    given = ({factor} * given[0],)
"""
CANDIDATES = {"quick": (0.05, 1.0), "slow": (0.1, 1.0), "wrong": (0.0, 1.5), "slowest": (1.0, 1.0)}
"""Seconds that a step sleeps, and what the loss is multiplied by: ``wrong`` trains something else, and never sleeps."""

SLEEPY = "\n\n_loss = loss" + defined("loss(model, batch)", "time.sleep(0.03)", "return _loss(model, batch)")
"""So that what never sleeps is the fastest on a busy machine, too, and is judged."""

LATER_S = 600.0
"""Of the budget, by the time of the interruption."""


@pytest.fixture
def asked(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "mlp.py").write_text(MLP + SLEEPY)
    for name, (seconds, factor) in CANDIDATES.items():
        (tmp_path / f"{name}.py").write_text(hooked("backward", CANDIDATE.format(seconds=seconds, factor=factor)))
    names = ",".join(str(tmp_path / f"{name}.py") for name in CANDIDATES)
    small = ("--device", "cpu", "--warmup", "1", "--iters", "4", "--setting", "width=32", "--allow", "none")
    return ("--workload", "mlp.py", "--scenario", names, *small)


def late(where: Any, number: int, patch: pytest.MonkeyPatch, *, by_s: float = 2 * LATER_S, cut: bool = False) -> Any:
    """The launches that are performed ``where``. From that of this number on it is ``by_s`` later: unless said, so late
    that the budget is over. ``cut``: the one after it is interrupted."""
    launched: list[str] = []

    def perform_late(job: Any, *rest: Any) -> Any:
        if cut and len(launched) == number:
            raise KeyboardInterrupt
        launched.append(job.scenario)
        if len(launched) == number:
            patch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + by_s))
        return perform(job, *rest)

    patch.setattr(where, "perform", perform_late)
    return launched


@pytest.mark.slow
def test_an_interrupted_search_goes_on(
    run_here: Bench, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, plotting: Plotting
) -> None:
    plotting(plots.search_plot)
    launched = late(tuning, 3, monkeypatch, by_s=LATER_S, cut=True)
    monkeypatch.setattr(tuning, "FEWEST_S", 2.0)
    cut = run_here("tune", *asked)
    go_on = f"go on with: python -m bench tune --resume {next(Path('results').iterdir()).name}"
    assert cut.code == 130 and go_on in cut.err, cut.err
    first = document_in(Path("results"))
    raced = first["experiments"]["tuning"]
    assert first["complete"] is False and [one["scenario"] for one in raced["launches"]] == launched
    monkeypatch.setattr(tuning, "time", time)
    launched.clear()
    launched += ["not interrupted again"] * 4

    for other, what in (("run", "that run is of bench tune"), ("scale", "that run is not of bench scale")):
        run_here(other, "--resume", "latest").refused(f"--resume: {what}; go on with bench tune --resume ")
    done = run_here("tune", "--resume", "latest")
    assert done.code == 0, done.err
    document = document_in(Path("results"))
    search = document["experiments"]["tuning"]
    assert search["launches"][:3] == raced["launches"], "nothing is done twice"
    assert document["complete"] and search["stopped_by"] == "race"
    assert search["spent_s"] > raced["spent_s"] > LATER_S, "what is left of the budget, and no more"
    assert search["candidates"]["wrong"]["why_not"] == "numerics: diverged"
    assert search["candidates"]["slow"]["beaten"].endswith("% slower than ddp")
    assert re.match(r"too slow: [1-4] of 5 steps in 2 s, and was stopped", search["candidates"]["slowest"]["beaten"])
    assert search["finalists"][0] == "ddp" and "wrong" not in search["finalists"]
    assert document["request"]["scenarios"] == search["finalists"]
    fresh = {(one["scenario"], one["repeat"]) for one in document["launches"]}
    assert fresh == {(name, repeat) for name in search["finalists"] for repeat in range(5)}
    numbers = {one["launch"] for one in search["launches"]}
    assert not numbers & {one["launch"] for one in document["launches"]}, "what chose is not what is reported"
    assert done.out.splitlines()[1].startswith("Nothing beat ddp: ddp, ")
    assert "Leanest within 5 %: " in done.out and "Gain over ddp" not in done.out
    assert run_here("check", "--rows", "latest").code == 0
    shown = run_here("show", "latest")
    assert shown.out.splitlines()[0].startswith("Nothing beat ddp: ddp, ")
    assert run_here("report").code == 0
    text = Path("reports/index.html").read_text()
    several = len(search["finalists"]) > 1
    assert "Leanest within" not in text and text.count("Least memory within 5 %") == several, "it is named once"
    assert "How was the winner found?" in text and "numerics: diverged" in text and Path("reports/search.svg").is_file()
    assert "was decided after its last round, by the launches until then" in text, "and speeds by all of them"


@pytest.mark.slow
def test_the_budget_ends_the_rounds_of_the_finalists(
    run_here: Bench, asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine becomes busy while they are measured: their third launch ends after the budget."""
    launched = late(measure, 3, monkeypatch)
    two = [one.replace(f",{tmp_path}/slow.py,{tmp_path}/wrong.py,{tmp_path}/slowest.py", "") for one in asked]
    done = run_here("tune", *two, "--budget", "10m")
    document = document_in(Path("results"))
    finalists, rounds = document["experiments"]["tuning"]["finalists"], document["request"]["launches"]
    assert rounds == math.ceil(3 / len(finalists)) and len(launched) == rounds * len(finalists), launched
    assert done.code == 0 and f"the budget ends after {rounds} round" in done.err, done.err
    assert document["complete"] and document["experiments"]["tuning"]["spent_s"] > 2 * LATER_S
    before = len(launched)
    again = run_here("tune", "--resume", "latest")
    assert again.code == 0 and len(launched) == before, "there is nothing to resume"


def test_who_is_left_out_is_named(run_here: Bench, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is spent after two launches: what they showed is measured again."""
    launched = late(tuning, 2, monkeypatch)
    done = run_here("tune", *asked, "--budget", "10m")
    assert done.code == 0 and launched == ["ddp", "quick"], (launched, done.err)
    assert "Not tried within the budget: slow, wrong and slowest" in done.out, done.out
    assert "the budget ended the search" in done.out


def test_the_memory_that_is_needed_fits_into_the_limit_that_is_named() -> None:
    assert [tuning.needed_gib(mib) for mib in (1024, 410.0, 0.1)] == [1.0, 0.41, 0.01]


def test_the_most_promising_come_first() -> None:
    """In case the budget ends before the others' turn: other levels of the baseline, half before fp32 on a GPU."""
    found = [switching.scenario(name) for name in ("single", "ddp_o2", "ddp", "apex_ddp_o1", "ddp_untuned")]
    for device, expected in (("cuda", "ddp ddp_o2 ddp_untuned"), ("cpu", "ddp ddp_untuned ddp_o2")):
        ordered = sorted(found, key=lambda one: verb._promise(one, device))
        assert [one.name for one in ordered][:3] == expected.split()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(
            ("--memory-limit", "0.01", "--scenario", "ddp"),
            ("error: --memory-limit: nothing fits into 0.01 GiB", "the least that trains is"),
            marks=pytest.mark.slow,
        ),
        (("--allow", "bucket_mb=x"), ("error: --allow: bucket_mb: 'x' is not a whole number", "write bucket_mb=100")),
        (("--budget", "1s"), ("error: --budget: to compare two of 5 candidates takes about", "give at least")),
    ],
)
def test_a_search_that_cannot_find_anything(
    run_here: Bench, asked: tuple[str, ...], given: tuple[str, ...], said: tuple[str, ...]
) -> None:
    done = run_here("tune", *asked, *given)
    last = done.err.splitlines()[-1]
    assert done.code == 2 and all(text in last for text in said), last


@pytest.mark.slow
def test_the_batch_grows_while_that_is_faster(run_here: Bench) -> None:
    """A step sleeps as long for any batch, so that a larger one is faster for each example; at 32 it fails."""
    failing = SLEEPY.replace("0.03)", "0.05)\n    assert len(batch['y']) <= 16, 'too large a batch'")
    Path("mlp.py").write_text(MLP + failing)
    small = ("--warmup", "1", "--iters", "3", "--setting", "width=32", "--allow", "none", "--global-batch", "8")
    where = ("--device", "cpu", "--ranks", "1", "--json")
    work = ("--workload", "mlp.py", "--scenario", "ddp")
    done = run_here("tune", *work, *small, *where, "--tune-batch")
    document = done.well()
    assert list(document["batches"]) == ["8", "16", "32"] and document["workload"]["global_batch"] == 16
    assert document["experiments"]["numerics"]["references"][0]["status"] == "ok"
    assert "times the speed" in document["batches"]["16"] and "too large" in document["batches"]["32"]
    assert "Global batch 16: " in done.err and "(chosen)" in done.err
    assert len(list(Path("results").iterdir())) == 3, "a run for each batch"


@pytest.mark.parametrize(("made", "name"), [("ddp+o3", "ddp_o3"), ("fsdp2+o1", "fsdp2+o1"), ("ddp+o1+fused", None)])
def test_a_product_has_the_name_of_its_scenario(made: str, name: str | None) -> None:
    hunt: Any = SimpleNamespace(found={})
    assert tuning._Hunt._as_known(hunt, switching.scenario(made)).name == (name or made)
