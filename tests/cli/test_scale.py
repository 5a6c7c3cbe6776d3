"""``bench scale`` for real on two ranks: curves, what is lost, all-reduces, predictions, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from conftest import Bench, Plotting
from standin.planted import hooked, planted
from standin.schemas import document_in
from test_workload import MLP

from bench import machine
from bench.analyse.scaling import _loss
from bench.experiments import scaling
from bench.experiments.launch import perform
from bench.report import plots


@pytest.mark.slow
def test_an_interrupted_run_goes_on(run_here: Bench, monkeypatch: pytest.MonkeyPatch, plotting: Plotting) -> None:
    plotting(plots.scaling_plot, plots.bandwidth_plot)
    Path("mlp.py").write_text(MLP)
    work = ("--workload", "mlp.py", "--setting", "width=32", "--warmup", "1", "--iters", "6")
    launched: list[Any] = []

    def interrupted(job: Any, *rest: Any) -> Any:
        if len(launched) == 2:
            raise KeyboardInterrupt
        launched.append((job.processes, job.workload.global_batch))
        return perform(job, *rest)

    monkeypatch.setattr(scaling, "perform", interrupted)
    asked = ("--device", "cpu", "--counts", "2", "--launches", "2", "--global-batch", "8")
    assert run_here("scale", *work, *asked, "--what-if", "bandwidth=4Gbit").code == 130
    assert launched == [(1, 4), (1, 8)] and document_in(Path("results"))["complete"] is False
    launched[:] = [()] * 3
    other = run_here("run", "--resume", "latest")
    assert other.code == 2 and "bench scale --resume" in other.err
    done = run_here("scale", "--resume", "latest", "--json")
    document = done.well()
    known = document["experiments"]["scaling"]
    points = {(one["replicas"], one["global_batch"], one["repeat"]) for one in known["launches"]}
    assert points == {(1, batch, repeat) for batch in (4, 8) for repeat in (0, 1)}, "those on two are the run's own"
    assert [(one["replicas"], one["repeat"]) for one in document["launches"]] == [(2, 0), (2, 1)]
    assert [one["replicas"] for one in known["diagnostics"]] == [2]
    alone, together = (
        {one["ran_threads"] for launch in launches for one in launch["ranks"]}
        for launches in (known["launches"], document["launches"])
    )
    assert alone == together, "a rank is as fast by itself as among others"
    (weak_1, weak_2, strong_1, strong_2) = document["scale"]["points"]
    assert (weak_1["efficiency"], strong_1["efficiency"]) == (1.0, 1.0)
    assert weak_2["efficiency"] == pytest.approx(weak_1["step_ms"] / weak_2["step_ms"], rel=0.5)
    assert strong_2["efficiency"] == pytest.approx(strong_1["step_ms"] / strong_2["step_ms"] / 2, rel=0.5)
    lost = weak_2["loss"]
    assert lost["communication_ms"] is not None or "less than with one device" in lost["reason"]
    computing = [(one["processes"], one["global_batch"]) for one in known["exchanges"]]
    assert computing == [(1, 4), (1, 8), (2, 2), (2, 4), (2, 8)]
    exchanged = known["exchanges"][0]["exchanges"]
    parameters = document["launches"][0]["effective"]["parameter_dtypes"]["float32"]
    gradients = [one["bytes"] for one in exchanged if one["phase"] == "backward"]
    assert sum(gradients) == 4 * parameters, "DDP exchanges every gradient, in fp32"
    predicted = [(one["mode"], one["count"]) for one in document["scale"]["predictions"]]
    assert predicted == [*(("weak", count) for count in (4, 8, 16)), ("strong", 4), ("strong", 8)]
    assert "Strong scaling on 16 devices is not predicted" in done.err
    assert [(one["mode"], one["measured_ms"]) for one in document["scale"]["checks"]] == [
        ("weak", pytest.approx(weak_2["step_ms"])),
        ("strong", pytest.approx(strong_2["step_ms"])),
    ]
    assert run_here("check", "--rows", "latest").code == 0

    again = run_here("scale", "--resume", "latest", "--predict", "64", "--what-if", "bandwidth=1GB")
    assert again.out.splitlines()[1].startswith("Weak scaling of ddp: ")
    assert "Predictions on a link of 8,000 Mbit/s, and on the measured one to check" in again.out
    assert "32 times beyond" in again.out
    assert run_here("show", "latest").out.startswith("Weak scaling of ddp: ")
    assert run_here("report").code == 0
    page = Path("reports/index.html").read_text()
    assert "What do more devices bring?" in page and "Predictions on a link of 4,000 Mbit/s, and on" in page
    files = {one.name for one in Path("reports").iterdir()}
    assert files >= {"scaling.svg", "all-reduces.svg", "scaling.csv", "predictions.csv"}


def test_parts_that_are_no_account() -> None:
    """A share is from 0 to 100 %: where the diagnostic launch was faster than one device by itself, there are none."""
    times = {"data_ms": 0.0, "forward_ms": 4.0, "optimizer_ms": 1.0}
    rows = [
        {"launch": 3, "look": "pairs", "pair": pair, "synchronised": on, "rank": rank}
        | {"backward_ms": 5 + 4 * on, **times}
        for pair in range(3)
        for on in (False, True)
        for rank in range(2)
    ]
    launch: Any = SimpleNamespace(launch=3, reason=None, looks=())
    for ideal_ms, communication_ms, why in ((10.1, 4.0, None), (14.0, None, "computation takes 4.0 ms less than with")):
        lost = _loss(pd.DataFrame(rows), [launch], 16.0, ideal_ms, 0.0)
        assert lost.communication_ms == communication_ms and (why or "") in (lost.reason or "")
        assert all(0.0 <= share <= 1.0 for share in lost.shares.values()) and bool(lost.shares) is (why is None)


SLOW_PART = """
    import os
    import time

    first = min(os.sched_getaffinity(os.getppid()))
    time.sleep(0.02 if min(os.sched_getaffinity(0)) == first else 0.2)
"""


@pytest.mark.skipif(machine.cores() < 2, reason="one core is all that there is to compare")
def test_each_device_by_itself_names_the_slow_one(run_here: Bench, plotting: Plotting) -> None:
    plotting(plots.each_plot)
    Path("mlp.py").write_text(MLP)
    Path("planted.py").write_text(hooked("backward", SLOW_PART))
    work = ("--workload", "mlp.py", "--setting", "width=32", "--warmup", "1", "--iters", "4")
    asked = ("--each", "--nproc", "2", "--device", "cpu", "--scenario", "./planted.py")
    done = run_here("scale", *asked, *work, "--json")
    document = done.well()
    slots = [one["slot"] for one in document["experiments"]["scaling"]["launches"]]
    assert document["launches"] == [] and slots == [0, 1, 1, 0, 0, 1]
    fast, slow = document["scale"]["devices"]
    assert slow["name"].endswith("part 2 of 2 of the cores")
    assert fast["step"]["value"] < slow["step"]["value"]
    assert slow["is_slow"] and not fast["is_slow"] and document["scale"]["scan"]["slow"] == [slow["name"]]
    assert f"{slow['name']} (" in done.err and " is slow: " in done.err
    assert run_here("check", "--rows", "latest").code == 0
    (row,) = run_here("runs", "--json").well()["runs"]
    assert (row["launches"], row["fastest"]) == (6, "2 devices, each by itself")
    assert run_here("report").code == 0
    page = Path("reports/index.html").read_text()
    assert "Is a device slow?" in page and Path("reports/each.svg").is_file()
    untrue = ("No valid result", "not run", "no launch ended well", "Launches (0)")
    assert [text for text in untrue if text in page] == []


@pytest.mark.slow
def test_ranks_without_a_group_reduce_nothing(run_here: Bench) -> None:
    Path("mlp.py").write_text(MLP)
    Path("alone.py").write_text(planted("return parts.session()", "group=False"))
    work = ("--workload", "mlp.py", "--warmup", "1", "--iters", "3", "--global-batch", "8", "--launches", "1")
    done = run_here("scale", *work, "--device", "cpu", "--scenario", "./alone.py", "--json")
    scaling = done.well()["experiments"]["scaling"]
    assert (len(scaling["diagnostics"]), scaling["bandwidth"], scaling["exchanges"]) == (1, [], [])
    assert "there is no diagnostic launch" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--counts", "0"), "--counts: '0' is not a whole number of at least 1"),
        (("--counts", "1"), "--counts: there is one device"),
        (("--counts", "1,8", "--ranks", "4"), "--counts: 8 is more than the 4 ranks of --ranks; leave --ranks out"),
        (("--ranks", "1"), "--ranks/--nproc: there is one device"),
        (("--counts", "2,3", "--batch-per-rank", "1"), "--counts: 3 examples are not divisible by 2 devices"),
        (("--counts", "2", "--global-batch", "3"), "--global-batch: 3 images are not divisible by 2"),
        (("--scenario", "single"), "--scenario: single trains 1 replica on 2 devices"),
        (("--scenario", "dp"), "--scenario: dp trains 1 replica on 2 devices; choose one with a replica on each"),
        (("--scenario", "ddp,dp"), "--scenario: bench scale is about one scenario"),
        (("--what-if", "bandwidth=100Gb"), "--what-if: '100Gb' is not a number with one of the units"),
        (("--what-if", "latency=1ms"), "--what-if: 'latency=1ms' is not bandwidth=VALUE"),
        (("--what-if", "bandwidth=0Gbit"), "--what-if: '0Gbit' is not a bandwidth"),
        (("--predict", "-4"), "--predict: "),
        (("--each", "--counts", "1,2"), "--counts: --each measures every device by itself; leave one of them out"),
        (("--each", "--launches", "1"), "--launches: one launch of each shows no scatter to judge by"),
        (("--each", "--ranks", "1"), "--ranks/--nproc: there is one device, and nothing to compare it with"),
        (("--each", "--nproc", "9999"), "--ranks/--nproc: 9999 parts of"),
    ],
)
def test_what_is_refused(bench: Bench, arguments: tuple[str, ...], said: str) -> None:
    bench("scale", "--device", "cpu", *arguments).refused(said)
