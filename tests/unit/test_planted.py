"""Faults planted in real launches show where they were planted, in the right size and with the right name.

All of them are in one run of two ranks, which mostly sleep and train a single convolution with torch DDP over gloo. A
rank notes how long each of its sleeps took: a phase must hold that, however busy the machine is, and in the least
disturbed step nothing else to speak of.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import measured
from standin.planted import planted
from standin.workloads import tiny

from bench import machine
from bench.analyse.analysed import Analysed
from bench.runs import check
from bench.runs.document import Recommendation
from bench.runs.reader import Run
from bench.sites.local import WorkerHost
from bench.words.caveats import caveats

WARMUP, ITERS = 3, 24

SOURCE = planted("""
    import json
    import time
    import torch
    from torch import nn
    from bench.worker import loop

    alone = {alone}

    def small(model):
        module = nn.Sequential(model.conv1, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return module if alone else nn.parallel.DistributedDataParallel(module)

    session = parts.session(wrap=small)
    forward, chain = session.forward, loop._chain
    slept = {{"load": [], "forward": [], "after": []}}

    def sleep(what, seconds):
        began = time.perf_counter()
        time.sleep(seconds)
        slept[what].append(1000 * (time.perf_counter() - began))

    def planted_forward(batch):
        step = len(slept["forward"])
        sleep("forward", {forward})
        return forward((batch[0], batch[1] % 8))

    def planted_chain(session, load, *rest):
        def planted_load():
            step = len(slept["load"])
            sleep("load", {load})
            return load()
        chain(session, planted_load, *rest)
        sleep("after", {after})
        print("slept", json.dumps(slept), flush=True)

    session.forward, loop._chain = planted_forward, planted_chain
    {more}
    return session
""")
"""``forward`` and ``load``: seconds of sleep in these phases, by ``step`` and ``parts.rank``; ``after``: at the end."""

SMALL: dict[str, Any] = {"task": tiny(), "global_batch": 2, "parity": False}
HONEST = {"forward": "0.01", "load": "0", "after": "0", "alone": "False", "more": "pass"}

PLANTED: dict[str, dict[str, str]] = {
    "plain": {},
    "slow_loader": {"load": "0.02 + 0.02 * (step % 2)"},
    "slow_rank": {
        "load": "0.2 * parts.rank * (step % 9 == 8)",
        "more": "torch.set_num_threads(torch.get_num_threads() + parts.rank)",
    },
    "slow_start": {"forward": f"0.04 if step < {WARMUP + ITERS // 3} else 0.01", "after": "0.05"},
    "uneven": {"alone": "True", "forward": "0.01 + 0.01 * parts.rank"},
}


@pytest.fixture(scope="module")
def run(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("planted")
    files = [folder / f"{name}.py" for name in PLANTED]
    for file in files:
        file.write_text(SOURCE.format(**(HONEST | PLANTED[file.stem])))
    return measured(host, folder, list(map(str, files)), warmup=WARMUP, iters=ITERS, **SMALL)


def of_rank(run: Run, scenario: str, rank: int) -> pd.DataFrame:
    """The measured steps of the launch that counts, with what the rank slept in them: ``slept_load`` and so on (ms)."""
    (launch,) = [one.launch for one in run.document.launches if one.scenario == scenario]
    steps = run.steps[(run.steps["launch"] == launch) & (run.steps["rank"] == rank)].sort_values("step")
    log = next(Path(run.path).glob(f"logs/launch-{launch:03}-{scenario}-rank{rank}.log")).read_text()
    slept = json.loads(log.rpartition("slept ")[2].splitlines()[0])
    steps = steps.assign(**{f"slept_{phase}": slept[phase][: len(steps)] for phase in ("load", "forward")})
    return steps[~steps["warmup"]].set_index("step")


def is_theirs(measured: pd.Series, slept: pd.Series, least_ms: float = 2.0) -> bool:
    """Whether a phase holds what was slept in it, and at the least no more than ``least_ms`` beside it."""
    more = measured - slept
    return bool(more.min() >= 0 and more.min() < least_ms)


def codes(run: Run, scenario: str) -> dict[str, str]:
    about = [finding for finding in run.document.validity if finding.scenario == scenario]
    return {finding.code: finding.severity for finding in about if finding.launch is not None}


def test_20_ms_in_the_loader_are_20_ms_of_data(run: Run) -> None:
    for rank in (0, 1):
        steps = of_rank(run, "slow_loader", rank)
        assert steps["slept_load"].min() >= 20 and steps["slept_load"].max() >= 40
        assert is_theirs(steps["data_ms"], steps["slept_load"])
        assert is_theirs(steps["forward_ms"], steps["slept_forward"], 5.0) and steps["optimizer_ms"].min() < 2
        assert is_theirs(steps["step_ms"], steps["slept_load"] + steps["slept_forward"], 10.0)
    assert codes(run, "slow_loader")["input-bound"] == "warning"
    shares = Analysed.of(run).stats.frame.set_index("scenario")["data_share"]
    assert shares["plain"] < shares["slow_loader"] / 2


def test_a_slow_rank_is_slow_for_all(run: Run) -> None:
    waiting, slow = (of_rank(run, "slow_rank", rank) for rank in (0, 1))
    at = slow.index[slow.index % 9 == 8]
    assert len(at) == ITERS // 9 + 1
    assert is_theirs(slow["data_ms"], slow["slept_load"]) and slow.loc[at, "data_ms"].min() >= 200
    assert waiting.loc[at, "data_ms"].min() < 2, "it is not its own data that rank 0 waits for"
    steps = Analysed.of(run).iterations.frame.query("scenario == 'slow_rank' and not warmup").set_index("step")
    assert steps.loc[at, "step_ms"].min() >= 200
    ready_ns = slow["start_ns"] + 1e6 * (slow["data_ms"] + slow["forward_ms"])
    averaged_ns = waiting["start_ns"] + 1e6 * (waiting["data_ms"] + waiting["forward_ms"] + waiting["backward_ms"])
    assert (averaged_ns > ready_ns).all(), "it waits where gradients are averaged"
    assert waiting.loc[at, "backward_ms"].median() > 100 > waiting["backward_ms"].drop(at).median()


def test_ranks_that_are_apart_are_a_finding(run: Run) -> None:
    (found,) = [one for one in run.document.validity if (one.scenario, one.code) == ("uneven", "skew")]
    assert found.severity == "warning" and "rank 1 is slowest most often" in found.text


def test_too_many_threads_make_a_launch_invalid(run: Run) -> None:
    assert codes(run, "slow_rank")["unequal"] == "invalid"
    assert "unequal" not in codes(run, "plain")
    table = Analysed.of(run).overview.set_index("scenario")
    assert table.loc["slow_rank", "validity"] == "invalid" and "unequal" in table.loc["slow_rank", "why_not"]


def test_time_outside_of_phases_is_invalid(run: Run) -> None:
    assert codes(run, "slow_start")["phases"] == "invalid"
    (launch,) = [launch for launch in run.document.launches if launch.scenario == "slow_start"]
    window_ms = min(of_rank(run, "slow_start", rank)["step_ms"].sum() for rank in (0, 1))
    assert launch.checks.conservation_error >= 0.99 * 50 / (window_ms + 50)
    assert {"slow_rank", "slow_start"} <= set((run.document.recommendation or Recommendation()).left_out)


@pytest.mark.parametrize("times", [1, 9])
def test_a_launch_under_load_is_measured_once_more(host: WorkerHost, tmp_path: Path, times: int) -> None:
    """Time is hidden in the first launch, or in every one, while another process has a core."""
    hidden, launches = tmp_path / "hidden.py", tmp_path / "launches"
    launches.mkdir()
    held = f"(os.mkdir({str(launches)!r} + f'/{{os.getpid()}}') or len(os.listdir({str(launches)!r})) <= {times})"
    about = {"alone": "True", "after": "0.08 * held", "more": "pass"}
    source = SOURCE.format(**HONEST | about)
    hidden.write_text(source.replace("    import torch\n", f"    import os, torch\n    held = {held}\n", 1))
    endless = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(endless) for _ in range(1 + machine.cores() // 5)]
    try:
        made = measured(host, tmp_path, [str(hidden)], warmup=1, iters=9, replicas=1, **SMALL)
    finally:
        for other in others:
            other.kill()
            other.wait()
    document = made.document
    (first,), (second,) = document.superseded, document.launches
    assert (first.launch, second.launch, first.repeat, second.repeat) == (1, 2, 0, 0), "and no third"
    assert first.status == "ok" and first.reason is not None
    assert re.match(r"launch 1 of hidden, .* differ by \d+\.\d % while others kept \d\.\d of the \d+ co", first.reason)
    assert set(made.steps["launch"]) == {1, 2}, "its steps are there still"
    assert list(Analysed.of(made).stats.frame["launch"]) == [2]
    assert check.findings(made.path) == []
    assert f"Not counted: {first.reason}." in caveats(document, Analysed.of(made).overview)
    texts = [finding.text for finding in document.validity if finding.code == "phases"]
    assert [" while others kept " in text for text in texts] == [True] * (times > 1)
