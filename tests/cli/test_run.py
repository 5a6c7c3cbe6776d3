"""``python -m bench run`` as a person runs it: real launches on the CPU, from the command line to the sealed folder."""

import io
import json
import os
import re
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import Bench, in_this_process
from standin.planted import ALONE, planted, sleeping
from standin.processes import descendants, nobody_left, ranks_of, start
from standin.schemas import document_in, is_valid
from test_workload import MLP

from bench.analyse.parity import SAME, WITHIN_HALF
from bench.runs.check import findings
from bench.sites.local import WorkerHost

SMALL = ["--device", "cpu", "--workload", "fashion_mlp", "--setting", "width=32"]
WARMUP, ITERS = 1, 2
STEPS = ["--warmup", str(WARMUP), "--iters", str(ITERS), "--global-batch", "4"]
Comparison = tuple[dict[str, Any], str, Path]
HALF = ("ddp_o1", "ddp_o2", "ddp_o3", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")


@pytest.fixture(scope="module")
def comparison(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out, printed, shown = tmp_path_factory.mktemp("results"), io.StringIO(), io.StringIO()
    asked = ["run", "-v", *SMALL, *STEPS, "--out", str(out), "--json"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(shown):
        assert in_this_process(host, patch, asked) == 0, shown.getvalue()
    document = json.loads(printed.getvalue())
    assert is_valid(document["path"])
    return document, shown.getvalue(), Path(document["path"])


def test_all_ten_scenarios_run_and_say_what_ran(comparison: Comparison) -> None:
    document, said, _ = comparison
    assert [launch["status"] for launch in document["launches"]] == ["ok"] * 10
    ran = {launch["scenario"]: launch["effective"] for launch in document["launches"]}
    assert ran["single"]["wrapper"] == "torch.nn.modules.container.Sequential"
    assert ran["dp"]["wrapper"].endswith("DataParallel") and ran["dp"]["replicas"] == 1, "a pass-through on the CPU"
    assert ran["ddp"]["wrapper"] == "torch.nn.parallel.distributed.DistributedDataParallel"
    assert ran["apex_ddp"]["wrapper"] == "bench.worker.flat_bucket.FlatBucketDataParallel"
    for scenario, effective in ran.items():
        level = scenario[-2:].upper() if scenario[-2:] in ("o1", "o2", "o3") else "O0"
        assert effective["precision"] == level, scenario
        distributed = scenario not in ("single", "dp")
        assert (effective["backend"], effective["world_size"]) == (("gloo", 2) if distributed else (None, 1))
        assert effective["backend_class"] == ("ProcessGroupGloo" if distributed else None)
    verdicts = {row["scenario"]: row["verdict"] for row in document["parity"]}
    assert verdicts == {name: WITHIN_HALF if name in HALF else SAME for name in ran}
    slow = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert {name for name, one in ran.items() if one["bf16_by_fp32"]} == ({*HALF} if slow else set())
    assert ("native O2 bf16 by way of fp32" in said) == slow
    assert any(row["code"] == "slow half" for row in document["validity"]) == slow


def test_the_table_and_the_next_step_are_shown(comparison: Comparison) -> None:
    document, shown, path = comparison
    assert path.name == document["run"]
    assert f"python -m bench report {path}" in shown, "a run that is not in results is named by its folder"
    totals = {int(total) for total in re.findall(r"(?m)^\[\d+/(\d+)\] ", shown)}
    assert len(totals) == 1, "those in double precision and the reference are counted from the first launch on"
    table = shown.partition("of this run went:\n")[2].partition("\n\n")[0].splitlines()[2:]
    shares = {row.rsplit(maxsplit=2)[0]: int(row.rsplit(maxsplit=2)[2].rstrip("%")) for row in table}
    assert {"before the first launch", "starting", "measuring", "judging", "training", "answer"} <= shares.keys()
    assert sum(shares.values()) == pytest.approx(100, abs=len(shares)) and min(shares.values()) >= 0


def test_the_run_folder_is_as_designed(comparison: Comparison, run_here: Bench, tmp_path: Path) -> None:
    document, _, path = comparison
    stored = json.loads((path / "run.json").read_text())
    assert stored["complete"] is True and stored["launches"] == document["launches"]
    assert findings(str(path)) == [], "sealed with all its files; each rank has its steps, whose phases add up"
    again = sum(launch["processes"] for launch in stored["superseded"])  # held up by other work
    assert stored["files"]["steps.parquet"]["rows"] == (2 + 8 * 2 + again) * (WARMUP + ITERS)
    pids = pd.read_parquet(path / "memory.parquet").groupby("launch")["pid"].agg(set)
    for launch in document["launches"]:
        assert pids[launch["launch"]] == {rank["pid"] for rank in launch["ranks"]}
    held_up = [launch["scenario"] for launch in document["launches"] if not launch["checks"]["conservation_ok"]]
    for name in held_up:
        more = ("--no-parity", "--scenario", name, "--out", str(tmp_path / name), "--json")
        calm = run_here("run", *SMALL, *STEPS, *more)
        assert calm.document["launches"][0]["checks"]["conservation_ok"], name


def test_a_failed_scenario_does_not_stop_the_others(run_here: Bench, tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(planted("print('about to fail')\nraise ValueError('planted')", "group=False"))
    small = (*SMALL, "--iters", "2", "--no-parity", "--out", str(tmp_path / "out"))
    done = run_here("run", *small, "--scenario", f"{file},single")
    assert done.code == 1
    (path,) = (tmp_path / "out").iterdir()
    failed, good = document_in(tmp_path / "out")["launches"]
    reason = f"{file}:8: ValueError: planted"
    assert (failed["status"], failed["reason"], good["status"]) == ("error", reason, "ok")
    log = (path / failed["ranks"][0]["log"]).read_text()
    assert "about to fail" in log and "Traceback" in log
    assert f"planted: error: {reason}" in done.out and "for reliable numbers" in done.out
    alone = run_here("run", *small, "--scenario", str(file))
    assert alone.code == 1 and "for reliable numbers" not in alone.out, "nothing was measured"


def test_more_launches_of_what_is_invalid_are_not_suggested(run_here: Bench, tmp_path: Path) -> None:
    (tmp_path / "mlp.py").write_text(MLP.replace("return cross_entropy(", "return float('nan') * cross_entropy("))
    few = ("--device", "cpu", "--iters", "2", "--no-parity", "--out", str(tmp_path / "out"))
    done = run_here("run", "--workload", str(tmp_path / "mlp.py"), "--scenario", "single", *few)
    assert "No valid result" in done.out and "for reliable numbers" not in done.out


def test_an_interrupted_run_keeps_what_was_done(repository: Path, tmp_path: Path) -> None:
    of_two_ranks = sleeping(0.8).replace(ALONE, "")
    (tmp_path / "calm.py").write_text(of_two_ranks)
    names, out = f"ddp,{tmp_path / 'calm.py'}", tmp_path / "out"
    more = ("--scenario", names, "--warmup", "1", "--iters", "10", "--global-batch", "4")

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as some supervisors leave it

    running = start(repository, out, *more, small=SMALL, preexec_fn=begin)
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if "ddp:" in line and "ms a step" in line:  # its first launch is over, the second has begun
                break
        ranks_of(running, 2)
        time.sleep(1.0)
        family = descendants(running.pid)
        assert len(family) >= 4, "host, sampler and two ranks"
        os.kill(running.pid, signal.SIGINT)
        running.communicate(timeout=30)
        assert running.returncode == 130
    finally:
        running.kill()
    assert nobody_left(family)
    (path,), document = out.iterdir(), document_in(out)
    assert document["complete"] is False
    states = [(launch["scenario"], launch["status"], launch["reason"]) for launch in document["launches"]]
    assert states == [("ddp", "ok", None), ("calm", "killed", "interrupted")]
    steps = pd.read_parquet(path / "steps.parquet")
    assert len(steps[steps["launch"] == 1]) == 2 * 11
    kept = document["launches"][1]["failure"]["steps_kept"]
    assert sum(kept.values()) == len(steps[steps["launch"] == 2])


# Until the answer is precise, or the time for it is spent

SHORT = ("--ranks", "2", "--no-parity", "--warmup", "1", "--iters", "3")


def until(run_here: Bench, folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    scenario, out = folder / "calm.py", folder / "out"
    scenario.write_text(sleeping(0.05))
    done = run_here("run", *SMALL, *SHORT, "--scenario", str(scenario), "--out", str(out), *arguments)
    assert done.code == 0, done.err
    return document_in(out), done.out + done.err


def test_it_ends_when_the_answer_is_precise_enough(run_here: Bench, tmp_path: Path) -> None:
    document, shown = until(run_here, tmp_path, "--until-precision", "50%", "--budget", "2m")
    outcome = document["experiments"]["measure"]
    assert outcome["stopped_by"] == "precision", outcome
    state = outcome["scenarios"]["calm"]
    assert state["reached"] and 0 < state["half_width"] <= outcome["target"] == 0.5
    assert state["launches"] == len(document["launches"]) >= 3
    assert [launch["repeat"] for launch in document["launches"]] == list(range(state["launches"]))
    assert "imprecise" not in {finding["code"] for finding in document["validity"]}
    assert "more until every median is known within ±50 % or 2 min 0 s are spent" in shown


def test_it_ends_when_the_budget_is_spent_and_says_so(run_here: Bench, tmp_path: Path) -> None:
    document, shown = until(run_here, tmp_path, "--until-precision", "0.01%", "--budget", "2s")
    outcome = document["experiments"]["measure"]
    assert outcome["stopped_by"] == "budget", outcome
    spent = sum(launch["wall_s"] for launch in document["launches"])
    (last, *_) = reversed(document["launches"])
    assert spent - last["wall_s"] <= 2.0, "no launch was begun after the budget was spent"
    (finding,) = [finding for finding in document["validity"] if finding["code"] == "imprecise"]
    assert finding["scenario"] == "calm" and finding["launch"] is None and "--budget" in finding["remedy"]
    assert "±0.01 % or 2 s are spent" in shown
