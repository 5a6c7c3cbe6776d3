"""Two runs, compared: what is called a difference, and what never is."""

import json
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from standin import gated

from bench.analyse import between_runs
from bench.analyse.between_runs import NOT_COMPARABLE, Row, of_memory
from bench.analyse.comparable import key, obstacles
from bench.analyse.comparison import verdict_of
from bench.analyse.multiplicity import against_one, level
from bench.core.codec import encode
from bench.report.comparison import as_text, for_programs, forest
from bench.report.drawing import styled
from bench.runs.document import WorkloadRecord

Digest = dict[str, Any]


def scenario(name: str, step_ms: list[float], **about: Any) -> dict[str, Any]:
    made = gated.scenario(name, step_ms, memory=1200.0, what_ran=f"torch {name}", memory_source="rss", **about)
    made["launches"]["peak_pid_mib"] = [600.0] * len(step_ms)
    return made


def set_all(run: Digest, column: str, value: float | None) -> None:
    columns = run["scenarios"][0]["launches"]
    columns[column] = [value] * len(columns["launch"])


def digest(run: str, *scenarios: dict[str, Any]) -> Digest:
    return gated.digest(
        0, scenarios, run=run, conditions={"host": "host", "bench": "0.1.0", "power_limit_w": []}, findings=[]
    )


def launches(centre: float, seed: int, count: int = 5, noise: float = 0.005) -> list[float]:
    draw = random.Random(seed)
    return [centre * draw.lognormvariate(0, noise) for _ in range(count)]


def rows(compared: between_runs.Compared) -> dict[tuple[str, str], Row]:
    return {(row.scenario, row.metric): row for row in compared.rows}


@pytest.fixture
def base() -> Digest:
    return digest("base", scenario("ddp", launches(40, 1)), scenario("dp", launches(50, 2)))


@pytest.fixture
def new() -> Digest:
    return digest("new", scenario("ddp", launches(42, 3)), scenario("dp", launches(50, 4)))


def attached(run: str, script: str, of: dict[str, Any], **work: Any) -> Digest:
    """Of a script that bench was attached to; nothing is known of its work but what is given."""
    record = encode(WorkloadRecord(device="cpu", replicas=2, **work))
    command = {"command": ["python", script], "script": {"file": f"/{script}", "sha256": "0123456789abcdef"}}
    about = {"commands": {of["scenario"]: command}}
    return digest(run, of) | {"workload": record, "device": "cpu", "attached": about}


def test_script_against_script_says_what_differs() -> None:
    """They go by other names, and train in other ways: that is the question, and no obstacle."""
    old = attached("old", "a.py", scenario("dp", launches(50, 1)), global_batch=8, warmup=10)
    new = attached("new", "b.py", scenario("ddp", launches(40, 2)), global_batch=8, warmup=2)
    assert obstacles(old, new) == []
    compared = between_runs.runs(old, new)
    row = rows(compared)["ddp", "step_time"]
    assert (row.against, row.verdict) == ("dp", "faster")
    warnings = "\n".join(compared.warnings)
    assert "old was attached to: python a.py; /a.py, SHA-256 0123456789ab; its model and data are unknown" in warnings
    assert "something else ran: torch dp against torch ddp" in warnings and "global batch" not in warnings
    assert obstacles(old, attached("n", "b.py", new["scenarios"][0], global_batch=16)) == ["global batch: 8 against 16"]
    unknown = between_runs.runs(old, attached("n", "b.py", new["scenarios"][0])).warnings
    assert "not known to be the same work: global batch" in unknown
    again = attached("again", "a.py", scenario("dp", launches(50, 1)), global_batch=8, warmup=3)
    assert key(old) == key(again) != key(new), "a series goes by the command"


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        ([2.0, 2.0, 2.0], [2.0, 2.0, 2.0001], "no difference found"),
        ([2.0, 2.0, 2.0], [2.0, 2.01, 2.02], "no difference found"),
        ([2.0, 2.0, 2.0], [2.1, 2.11, 2.1], "higher"),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.0], "lower"),
        ([2.0, 2.1], [1.0, 1.1], "too few launches"),
        ([-2.0, -2.1, -2.0], [1.0, 1.1, 1.0], "not comparable"),
    ],
)
def test_final_losses_of_commands(base: list[float], new: list[float], verdict: str) -> None:
    """Of launches without any scatter a difference counts only beyond what rounding makes."""
    sides = []
    for run, losses in (("old", base), ("new", new)):
        of = scenario("ddp", [50.0] * len(losses))
        about = [
            {"launch": launch, "final_loss": loss, "startup_ms": 9.0}
            for launch, loss in zip(of["launches"]["launch"], losses, strict=True)
        ]
        side = attached(run, "a.py", of)
        sides.append(side | {"attached": side["attached"] | {"launches": about}})
    of_runs = rows(between_runs.runs(*sides))
    assert of_runs["ddp", "final_loss"].verdict == verdict
    assert of_runs["ddp", "start_up"].n_base == len(base) and of_runs["ddp", "wall_time"].reason == "unknown in both"


def test_throughput_is_no_test_of_its_own(base: Digest, new: Digest) -> None:
    found = rows(between_runs.runs(base, new))
    time, speed = found["ddp", "step_time"], found["ddp", "throughput"]
    assert speed.ratio == pytest.approx(1 / time.ratio)  # type: ignore[operator]
    assert (speed.low, speed.high) == pytest.approx((1 / time.high, 1 / time.low))  # type: ignore[operator]
    assert (speed.verdict, speed.change) == ("slower", "worse")
    assert speed.p_adjusted == time.p_adjusted
    tested = [row.p for (_, metric), row in found.items() if metric in ("step_time", "peak_memory")]
    assert len(tested) == 4
    of_times = [found[name, "step_time"].p for name in dict.fromkeys(name for name, _ in found)]
    adjusted = against_one(of_times, [0.0] * len(of_times))[0]
    assert adjusted is not None and time.p_adjusted == pytest.approx(adjusted * 0.05 / float(level(5)))


def test_a_metric_one_side_lacks_is_not_comparable(base: Digest, new: Digest) -> None:
    set_all(new, "throughput_per_s", None)
    set_all(new, "peak_total_mib", None)
    row = rows(between_runs.runs(base, new))["ddp", "peak_memory"]
    assert (row.column, row.verdict) == ("peak_pid_mib", "no difference found"), "of one process it is known"
    set_all(new, "peak_pid_mib", None)
    found = rows(between_runs.runs(base, new))
    assert found["ddp", "peak_memory"].reason == "unknown in the new run"
    assert (found["ddp", "peak_memory"].column, found["ddp", "peak_memory"].base) == ("peak_total_mib", 1200.0)
    assert found["ddp", "energy"].reason == "unknown in both"
    assert (found["ddp", "throughput"].verdict, found["ddp", "throughput"].p_adjusted) == (NOT_COMPARABLE, None)
    assert found["ddp", "step_time"].verdict == "slower", "the rest is compared all the same"


def test_memory_has_words_of_its_own(base: Digest, new: Digest) -> None:
    set_all(new, "peak_total_mib", 1400.0)
    for sides, said in (((base, new), ("more", "worse")), ((new, base), ("less", "better"))):
        row = rows(between_runs.runs(*sides))["ddp", "peak_memory"]
        assert (row.verdict, row.change) == said
    base["scenarios"][0]["memory_source"], new["scenarios"][0]["memory_source"] = "nvml_pid", "torch_allocator"
    row = rows(between_runs.runs(base, new))["ddp", "peak_memory"]
    assert (row.verdict, row.reason) == (NOT_COMPARABLE, "measured in another way: nvml_pid against torch_allocator")
    base["scenarios"][0]["memory_source"] = "torch_allocator+unavailable"
    row = rows(between_runs.runs(base, new))["ddp", "peak_memory"]
    assert row.reason is None, "a sample that was lost changes no value"


@pytest.mark.parametrize(
    ("base_mib", "new_mib", "processes", "verdict"),
    [
        ([20000.0] * 5, [20000.0] * 5, 1, "no difference found"),
        ([20000.0] * 5, [20002.0] * 5, 1, "no difference found"),
        ([20000.0] * 5, [20090.0] * 5, 1, "no difference found"),
        ([20000.0] * 5, [20400.0] * 5, 1, "slower"),
        ([20400.0] * 5, [20000.0] * 5, 1, "faster"),
        ([200.0] * 5, [202.0] * 5, 1, "no difference found"),
        ([200.0] * 5, [210.0] * 5, 8, "no difference found"),
        ([200.0] * 5, [210.0] * 5, 1, "slower"),
        ([1000.0, 1100.0, 900.0], [1030.0, 1130.0, 940.0], 2, "no difference found"),
        ([20000.0] * 2, [30000.0] * 2, 1, "too few launches"),
        ([20000.0], [30000.0] * 5, 1, "too few launches"),
    ],
)
def test_memory_without_scatter(base_mib: list[float], new_mib: list[float], processes: int, verdict: str) -> None:
    found = of_memory(base_mib, new_mib, processes)
    assert verdict_of(found.ratio, found.p) == verdict
    if found.low is not None and found.high is not None and found.ratio is not None:
        assert found.low < found.ratio < found.high, "no value is known without any doubt"
    assert found.p is None or 0.0 < found.p <= 1.0


@pytest.mark.parametrize(
    ("before", "after", "verdict", "change"),
    [
        ("same", "same", "no difference found", "none"),
        ("same", "within half precision", "worse", "worse"),
        ("within half precision", "diverged", "worse", "worse"),
        ("not finite", "diverged", "better", "better"),
        (None, "same", NOT_COMPARABLE, None),
    ],
)
def test_numerics(base: Digest, new: Digest, before: str | None, after: str, verdict: str, change: str | None) -> None:
    base["scenarios"][0]["parity"], new["scenarios"][0]["parity"] = before, after
    row = rows(between_runs.runs(base, new))["ddp", "loss_parity"]
    assert (row.base, row.new, row.verdict, row.change) == (before, after, verdict, change)
    assert row.p is None, "there is nothing to test"


def test_drift_hides_no_difference_within_a_run() -> None:
    """It gets slower by 5 % from launch to launch; what is 2 % apart is so in every round, and is found."""
    places = {"ddp": (0, 3, 4, 7, 8), "dp": (1, 2, 5, 6, 9)}
    usual_ms = {"ddp": (40.0, 40.04, 39.96, 40.0, 40.04), "dp": (40.76, 40.88, 40.84, 40.72, 40.8)}
    drifting = {name: [ms * 1.05**at for ms, at in zip(usual_ms[name], places[name], strict=True)] for name in places}
    run = digest("run", *(scenario(name, times) for name, times in drifting.items()))
    for one in run["scenarios"]:
        one["launches"]["launch"] = list(places[one["scenario"]])
    found = between_runs.scenarios(run, ["dp"], "ddp")
    row, speed = rows(found)["dp", "step_time"], rows(found)["dp", "throughput"]
    assert found.within and row.against == "ddp", "that something else ran is the question here"
    assert row.verdict == "slower" and row.ratio == pytest.approx(1.02, abs=0.003)
    assert row.low is not None and row.low > 1.01, "the interval is that of the verdict"
    assert (speed.low, speed.high) == pytest.approx((1 / row.high, 1 / row.low))  # type: ignore[operator]
    assert any(note.startswith("launches are compared round by round") for note in as_text(found).split("note: "))


def test_how_many_more_launches_are_wanted_is_said() -> None:
    noisy = (scenario("ddp", launches(at, seed, noise=0.03)) for at, seed in ((40, 1), (41, 3)))
    compared = between_runs.runs(*(digest("a", one) for one in noisy))
    row = rows(compared)["ddp", "step_time"]
    assert row.verdict == "no difference found" and row.more is not None and row.more > 0
    wanted = f"about {row.more} more launches of each would show a difference of 2 %"
    assert f"step time of ddp ({wanted})" in as_text(compared)


def test_an_interval_without_an_end_is_null_in_json() -> None:
    wide = between_runs.runs(*(digest(name, scenario("ddp", [1e-100, 1e200])) for name in "ab"))
    row = rows(wide)["ddp", "step_time"]
    assert row.high is not None and math.isinf(row.high)
    document = json.loads(json.dumps(for_programs(wide), allow_nan=False))
    assert document["comparisons"][0]["high"] is None
    assert "over 1,000,000" in as_text(wide)
    with styled():
        assert forest(wide) is not None


@pytest.mark.parametrize("times", [1.01, 1.5, 5.0, 60.0, 3000.0])
def test_the_ticks_of_a_wide_axis_have_room(times: float) -> None:
    name = "a_scenario_with_a_name_that_is_so_long_that_panels_are_narrow"
    sides = (digest("base", scenario(name, launches(40, 1))), digest("new", scenario(name, launches(40 * times, 3))))
    with styled():
        plot = forest(between_runs.runs(*sides))
        assert plot is not None
        renderer = plot.figure.canvas.get_renderer()
        for axes in plot.figure.axes:
            ticks = [tick.get_window_extent(renderer) for tick in axes.get_xticklabels() if tick.get_text()]
            assert len(ticks) > 1 and not any(one.overlaps(other) for one, other in pairwise(ticks))


def test_a_drawn_interval_agrees_with_its_verdict() -> None:
    """Many effects around what can be told, so that 95 % intervals and adjusted verdicts disagree."""
    names = [f"s{number:02}" for number in range(12)]
    base = digest("base", *(scenario(name, launches(40, number)) for number, name in enumerate(names)))
    shifted = (launches(40 * (1 + number / 600), 300 + number) for number in range(12))
    new = digest("new", *(scenario(name, times) for name, times in zip(names, shifted, strict=True)))
    found = [row for row in between_runs.runs(base, new).rows if row.metric == "step_time"]
    beyond = [not row.verdict_low < 1.0 < row.verdict_high for row in found if row.verdict_low and row.verdict_high]
    assert beyond == [row.verdict in ("faster", "slower") for row in found]
    alone = [not row.low < 1.0 < row.high for row in found if row.low and row.high]
    assert any(beyond) and alone != beyond


def test_the_forest_plot_shows_every_ratio(base: Digest, new: Digest) -> None:
    new["scenarios"].append(scenario("ddp_o1", launches(30, 5)))
    compared = between_runs.runs(base, new)
    with styled():
        plot = forest(compared)
    assert plot is not None
    for row in compared.rows:
        if row.metric in ("step_time", "peak_memory") and row.ratio is not None:
            assert f"{row.ratio:.3f}  " in plot.svg
    assert "peak memory, new ÷ base" in plot.svg and "energy" not in plot.svg
    assert "ddp_o1: not comparable: it is missing in the base run" in plot.caption
