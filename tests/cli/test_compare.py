"""``bench compare``: what it prints, what it writes, and what it refuses."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench
from standin.gpu_runs import DDP2, DP, GPUS
from standin.runs import DDP, FINITE, GONE, Launch, write_run


def measured(out: Path, seed: int = 1, count: int = 5, also: list[Launch] | None = None, **about: Any) -> Path:
    """A run of ``ddp`` and ``ddp_o2`` whose launches scatter by half a percent; ``ddp_o2`` times as ``slower`` says."""
    draw, slower = random.Random(seed), about.pop("slower", 1.0)
    launches = []
    for _ in range(count):
        for one, times in ((DDP, 1.0), (FINITE, slower)):
            factor = times * draw.lognormvariate(0, 0.005)
            launches.append(replace(one, steps_ms=[[ms * factor for ms in rank] for rank in one.steps_ms]))
    return write_run(out, [*launches, *(also or [])], **about)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return measured(folder / "a", count=4), measured(folder / "b", seed=2, count=4, slower=1.1)


def verdicts(document: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(row["scenario"], row["metric"]): row["verdict"] for row in document["comparisons"]}


def test_only_the_slower_scenario_is_named(bench: Bench, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    base, new = pair
    code, out, err = bench("compare", base, new)
    assert (code, err) == (0, "")
    assert f"base: {base.name}" in out and f"new:  {new.name}" in out
    (line,) = [line for line in out.splitlines() if "slower:" in line]
    assert "\nnote: each run's drift is taken out of times" in out, "so base and new need not give the ratio"
    assert line.startswith("ddp_o2: slower: step time +") and "no difference found: step time of ddp" in out
    said = bench("compare", base, new, "--json")
    document, found = said.well(), verdicts(said.document)
    assert (document["base"]["run"], document["new"]["run"], document["files"]) == (base.name, new.name, [])
    assert found["ddp_o2", "step_time"] == found["ddp_o2", "throughput"] == "slower"
    assert found["ddp", "step_time"] == found["ddp_o2", "peak_memory"] == "no difference found"
    assert found["ddp", "energy"] == found["ddp", "loss_parity"] == "not comparable"
    assert "ddp_o2: slower" in said.err and not list(tmp_path.iterdir()), "nothing is written unasked"


def test_energy_and_memory_of_gpus_have_verdicts_too(bench: Bench, tmp_path: Path) -> None:
    sides = []
    for seed, watts in ((1, 1.0), (2, 0.8)):
        draw = random.Random(seed)
        launches: list[Launch] = []
        for _ in range(5):
            for one in (DP, DDP2):
                factor = draw.lognormvariate(0, 0.003)
                power = {gpu: (value or 0.0) * watts * factor for gpu, value in one.watts.items()}
                times = [[ms * factor for ms in rank] for rank in one.steps_ms]
                launches.append(replace(one, steps_ms=times, watts=power))
        sides.append(write_run(tmp_path / f"out{seed}", launches, gpus=GPUS))
    document = bench("compare", *sides, "--json").well()
    found = verdicts(document)
    assert found["dp", "energy"] == found["ddp", "energy"] == "less"
    base = {(row["scenario"], row["metric"]): row["base"] for row in document["comparisons"]}
    assert base["ddp", "energy"] == pytest.approx(1000 * (310 + 330) * 0.25 / 8, rel=0.01), "of 1,000 images"
    assert found["dp", "peak_memory"] == "no difference found", "the very same peak in every launch"


def test_scenarios_of_one_run(bench: Bench, tmp_path: Path) -> None:
    run = measured(tmp_path / "results", count=3, also=[GONE])
    document = bench("compare", run.name, "--scenario", "ddp_o2", "--json").well()
    (time,) = [row for row in document["comparisons"] if row["metric"] == "step_time"]
    assert (time["against"], time["verdict"]) == ("ddp", "faster")
    code, out, _ = bench("compare", "latest", "--scenario", "ddp,dp", "--against", "ddp_o2")
    assert code == 0 and "ddp against ddp_o2: slower" in out
    assert "dp: not comparable: dp: it is 'unsupported'" in out
    code, out, err = bench("compare", "latest", "--scenario", "dp")
    assert (code, err) == (12, "") and "not comparable" in out


def test_files_are_written_where_they_are_asked_for(bench: Bench, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    base, new = pair
    document = bench("compare", base, new, "--plot", "--json").well()
    names = ["reports/comparison.svg", "reports/comparison.png", "reports/comparison.md"]
    assert document["files"] == names
    assert (tmp_path / "reports/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "ddp_o2" in (tmp_path / "reports/comparison.svg").read_text()
    summary = (tmp_path / "reports/comparison.md").read_text()
    assert "| ddp_o2 | step time (ms) |" in summary and "| slower |" in summary
    assert bench("compare", base, new, "--out", "elsewhere")[0] == 0
    assert {path.suffix for path in (tmp_path / "elsewhere").iterdir()} == {".md", ".png", ".svg"}


def test_text_from_outside_stays_text(bench: Bench, tmp_path: Path) -> None:
    gone = replace(GONE, reason="two\nlines \x1b[31m<b> | *")
    sides = [measured(tmp_path / name, count=1, also=[gone], label="a\x1b[2J\nb") for name in "ab"]
    code, out, _ = bench("compare", *sides, "--plot")
    assert code == 0 and "\x1b" not in out and "(a\\x1b[2J b)" in out
    assert "dp: not comparable: it is 'unsupported' (two lines \\x1b[31m<b> | *) in the base run\n" in out
    assert r"two lines \\x1b\[31m\<b\> \| \*" in (tmp_path / "reports/comparison.md").read_text()
    assert "\x1b" not in (tmp_path / "reports/comparison.svg").read_text()


def test_an_incomplete_run_is_compared_on_request(bench: Bench, tmp_path: Path, pair: tuple[Path, Path]) -> None:
    base, new = pair[0], measured(tmp_path / "b", 2, 1, complete=False)
    bench("compare", base, new).refused(f"{new} is incomplete", "--allow-incomplete")
    assert bench("compare", base, new, "--allow-incomplete")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "RUN"),
        (("{a}",), 2, "give BASE and NEW, or --scenario ddp --against dp"),
        (("{a}", "{b}", "{a}"), 2, "3 runs were given"),
        (("{a}", "{a}"), 2, "is both BASE and NEW"),
        (("{a}", "nowhere"), 2, "there is no run 'nowhere'"),
        (("{a}", "{b}", "--against", "dp"), 2, "--against: it is for scenarios of one run"),
        (("{a}", "{b}", "--scenario", "ddp,"), 2, "--scenario: 'ddp,' has an empty name"),
        (("{a}", "--scenario", "ddp"), 2, "ddp would be compared with itself"),
        (("{a}", "{b}", "--scenario", "apex"), 12, "there is no scenario 'apex' here; choose from ddp, ddp_o2"),
        (("{a}", "--scenario", "ddp", "--against", "dp"), 12, "--against: there is no scenario 'dp' here"),
        (("{a}", "{b}", "--out", "{a}/run.json"), 2, "--out"),
        (("{a}", "{b}", "--out", ""), 2, "--out: it is empty"),
        (("{a}", ""), 2, "RUN: it is empty"),
    ],
)
def test_a_wrong_request_is_one_line(
    bench: Bench, tmp_path: Path, pair: tuple[Path, Path], arguments: tuple[str, ...], code: int, said: str
) -> None:
    a, b = pair
    bench("compare", *(argument.format(a=a, b=b) for argument in arguments)).refused(said, code=code)
    assert not list(tmp_path.iterdir())
