"""``--until-precision`` on real launches: they end when the answer is precise, or when the time for it is spent."""

import json
from pathlib import Path
from typing import Any

from conftest import CommandLine
from standin.sleeping import sleeping

SMALL = ("--device", "cpu", "--ranks", "2", "--workload", "fashion_mlp", "--setting", "width=32", "--no-parity")
SHORT = ("--warmup", "1", "--iters", "3")


def measured(run_here: CommandLine, folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    scenario, out = folder / "calm.py", folder / "out"
    scenario.write_text(sleeping(0.05))
    done = run_here("run", *SMALL, *SHORT, "--scenario", str(scenario), "--out", str(out), *arguments)
    assert done.returncode == 0, done.stderr
    (path,) = out.iterdir()
    return json.loads((path / "run.json").read_text()), done.stdout + done.stderr


def test_it_ends_when_the_answer_is_precise_enough(run_here: CommandLine, tmp_path: Path) -> None:
    document, shown = measured(run_here, tmp_path, "--until-precision", "50%", "--budget", "2m")
    outcome = document["experiments"]["measure"]
    assert outcome["stopped_by"] == "precision", outcome
    state = outcome["scenarios"]["calm"]
    assert state["reached"] and 0 < state["half_width"] <= outcome["target"] == 0.5
    assert state["launches"] == len(document["launches"]) >= 3
    assert [launch["repeat"] for launch in document["launches"]] == list(range(state["launches"]))
    assert "imprecise" not in {finding["code"] for finding in document["validity"]}
    assert "more until every median is known within ±50 % or 2 min 0 s are spent" in shown


def test_it_ends_when_the_budget_is_spent_and_says_so(run_here: CommandLine, tmp_path: Path) -> None:
    document, shown = measured(run_here, tmp_path, "--until-precision", "0.01%", "--budget", "2s")
    outcome = document["experiments"]["measure"]
    assert outcome["stopped_by"] == "budget", outcome
    assert outcome["budget_s"] == 2.0 and outcome["target"] == 0.0001
    assert outcome["scenarios"]["calm"]["reached"] is False
    spent = sum(launch["wall_s"] for launch in document["launches"])
    (last, *_) = reversed(document["launches"])
    assert spent - last["wall_s"] <= 2.0, "no launch was begun after the budget was spent"
    (finding,) = [finding for finding in document["validity"] if finding["code"] == "imprecise"]
    assert "±0.01%" in finding["text"] and "--budget" in finding["remedy"]
    assert finding["scenario"] == "calm" and finding["launch"] is None
    assert "±0.01 % or 2 s are spent" in shown
