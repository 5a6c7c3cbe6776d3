"""Real runs of the same code pass the gate, and a scenario that was made 10 % slower is found, and no other."""

import json
from pathlib import Path

import pytest
from conftest import CommandLine
from standin.sleeping import sleeping

SLEEP_S = 0.25
SLOWER = 1.10
NAMES = ("first", "second")

MEASURED = (
    *("--device", "cpu", "--ranks", "1", "--model", "resnet18", "--image-size", "32", "--global-batch", "2"),
    *("--warmup", "1", "--iters", "7", "--launches", "4", "--no-parity", "--no-diagnose", "--wait"),
)


@pytest.mark.slow  # 24 launches of two seconds that are slept
@pytest.mark.timeout(900)
def test_the_slower_scenario_is_named(run_here: CommandLine, tmp_path: Path) -> None:
    results = str(tmp_path / "results")

    def measured(folder: str, slow: str | None = None) -> str:
        (tmp_path / folder).mkdir()
        files = [tmp_path / folder / f"{name}.py" for name in NAMES]
        for file in files:
            file.write_text(sleeping(SLEEP_S * (SLOWER if file.stem == slow else 1.0)))
        done = run_here("run", *MEASURED, "--scenario", ",".join(map(str, files)), "--out", results, "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["path"])

    def gate(new: str, *against: str) -> tuple[int, set[tuple[str, str]], dict[str, float]]:
        done = run_here("gate", new, *against, "--json")
        rows = json.loads(done.stdout)["rows"]
        ratios = {row["scenario"]: row["ratio"] for row in rows if row["metric"] == "step_time"}
        regressed = {(row["scenario"], row["metric"]) for row in rows if row["verdict"] == "regressed"}
        return done.returncode, regressed, ratios

    base, same, slower = measured("base"), measured("same"), measured("slower", "second")
    code, regressed, ratios = gate(same, "--baseline", base)
    assert code in (0, 11) and not regressed, ratios
    for against in (("--baseline", base), ("--history", results)):
        code, regressed, ratios = gate(slower, *against)
        assert (code, regressed) == (10, {("second", "step_time")}), ratios
        assert ratios["second"] == pytest.approx(SLOWER, abs=0.03)
    compared = json.loads(run_here("compare", base, slower, "--json").stdout)["comparisons"]
    verdicts = {row["scenario"]: row["verdict"] for row in compared if row["metric"] == "step_time"}
    assert verdicts["second"] == "slower"
