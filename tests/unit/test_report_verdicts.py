"""What a report says of runs beside their speeds: recommendation, findings, numerics, and where the time goes."""

import csv
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Bench, Plotting
from standin import numerics
from standin.documents import diagnostic, ran_with, reference, with_records
from standin.runs import APEX, BROKEN, DDP, FAST, FINITE, GONE, HOSTILE, Launch, analysed, effective, timed, write_run
from test_report import Page, plot_of, svg_texts

from bench.analyse import validity, verdicts
from bench.analyse.analysed import Analysed
from bench.analyse.comparison import ALIKE, SLOWER
from bench.analyse.parity import BY_DESIGN, CANNOT_TELL, DIVERGED, SAME, WITHIN_HALF, loss_curves
from bench.analyse.recommendation import recommendation, recommendations
from bench.core.codec import encode
from bench.core.text import percent
from bench.report import drawing, launch_tables, plots, summary, tables, values, verdict_tables
from bench.report import runs as report
from bench.runs.document import Recommendation
from bench.runs.experiments import Diagnosis, Numerics, Tuning
from bench.runs.launches import Compiled
from bench.runs.writer import RunWriter
from bench.words.advice import advice, answer, headlines, is_clear, recommended
from bench.words.questions import mixed_precision, questions
from bench.words.tuned import DOUBTFUL
from bench.words.tuned import answer as answer_of_search

CATEGORIES = {"casts": 4.0, "loss scaling": 0.0, "convolutions": 20.0, "other": 6.0}
SINGLE = Launch("single", [[20, 10, 10, 10, 10]], [[100.0]], strategy="single")
OFF = replace(FINITE, losses=[6.0, 6.0, 6.0, 7.0, 6.0])


def with_reference(*gradients: tuple[str, float]) -> Callable[[RunWriter], None]:
    """A reference whose loss is 6, and by scenario how far off its gradients in double precision are."""
    computations = tuple(numerics.computation(replicas) for replicas in (1, 2))

    def write(writer: RunWriter) -> None:
        rows = numerics.of_reference(computations, loss=[6.0] * 4, alone=1.5)
        writer.note(Numerics(references=(reference(computations=computations, step_ms=(1.0, 1.0)),)), numerics=rows)
        for launch, (scenario, off) in enumerate(gradients, start=50):
            double = numerics.double(launch, scenario)
            writer.add_to(Numerics, double, "doubles", numerics=numerics.in_double(launch, off))

    return write


def diagnosed(writer: RunWriter) -> None:
    for launch, name in ((90, "ddp"), (91, "apex_ddp")):
        about = {"launch": launch, "scenario": name}
        rows = []
        for pair, cost in enumerate((30.0, 31.0, 30.0, 29.0)):
            for synchronised in (True, False):
                step = {**about, "rank": 0, "look": "pairs", "step": 2 * pair + (not synchronised), "pair": pair}
                rows.append({**step, "synchronised": synchronised, "backward_ms": 100.0 + cost * synchronised})
        for number in range(4) if name == "ddp" else ():
            step = {**about, "rank": 0, "look": "logger", "step": number, "overlap_ms": 50.0}
            rows.append({**step, "compute_ms": 120.0 + number % 2, "comm_ms": 55.0 + number % 2})
        profile = {"steps": 3, "step_ms": 40.0, "categories": CATEGORIES, "trace": None}
        looks = [{"reasons": {"pairs": None}, "profile": profile}]
        record = {**about, "strategy": name, "precision": "O0", "effective": effective(name, "O0"), "looks": looks}
        writer.add_to(Diagnosis, diagnostic(**record, status="ok", reason=None), diagnostics=rows)
    gone = {"launch": 92, "scenario": "dp", "strategy": "dp", "precision": "O0", "status": "error", "reason": HOSTILE}
    writer.add_to(Diagnosis, diagnostic(**gone))
    traces = Path(writer.path) / "traces"
    traces.mkdir()
    (traces / "ddp-rank0.json.gz").write_bytes(b"trace")


def everything(writer: RunWriter) -> None:
    with_reference(("ddp", 1e-9), ("ddp_o2", 0.012), ("apex_ddp", 1e-9))(writer)
    diagnosed(writer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    folder = tmp_path_factory.mktemp("whole")
    launches = [DDP, OFF, APEX, GONE]
    return analysed(write_run(folder, launches, label=HOSTILE, also=everything))


def texts_of(run: Analysed, *drawings: Callable[..., object]) -> str:
    """The page with these plots alone: all of them take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "DRAWINGS", drawings)
        page = Page(report.render([run])["index.html"].decode())
        return page.text.replace("\u00a0%", " %")  # the two stay on one line


def table_of(run: Analysed) -> "pd.DataFrame":
    return values.of_run(run, run.overview)


def test_recommendation_names_the_leanest_with_bars(tmp_path: Path) -> None:
    fast, lean = timed({"ddp": (40, 41, 42)}, 200.0), timed({"ddp_o2": (41, 42, 43)}, 150.0)
    run = analysed(write_run(tmp_path, [*fast, *lean, *timed({"ddp_o3": (81, 82, 83)}, 50.0)]))
    said = dict([*headlines(run.document, table_of(run)), *advice(run.document, table_of(run))])
    assert said["Fastest"].startswith("ddp, 195.2 ±6.2% img/s.")
    leanest = "ddp_o2, 190.5 ±6.1% img/s at a peak of 150 MiB in total (sum of RSS): 2.4 % slower, with 25 % less"
    assert said["Least memory within 5 % of the fastest"].startswith(leanest)
    assert "whether it trains the same model was not shown" in said["Fastest"].lower()
    assert "Left out" not in said
    assert recommended(run.document, table_of(run)) == {"ddp": "fastest", "ddp_o2": "leanest at that speed"}
    tied = table_of(run).assign(against_fastest=[None, ALIKE, SLOWER])
    assert recommended(run.document, tied)["ddp"] == "fastest, not told apart"
    hardly = table_of(run).assign(peak_total_mib=table_of(run)["peak_total_mib"].replace(150.0, 199.9))
    assert recommendation(hardly).leanest == "ddp", "that is no less memory to speak of"


def test_plots_of_speed_mark_the_recommended(whole: Analysed) -> None:
    plot = plot_of(whole, "speed")
    named = [text for text in svg_texts(plot.svg) if text in ("ddp", "ddp_o2", "apex_ddp")]
    table = table_of(whole).sort_values("throughput_per_s", ascending=False)
    assert named == [name for name in table["scenario"] if name in named] and len(named) > 1
    assert "One launch of each scenario: untested" in plot.caption and "Hatched bars" in plot.caption
    assert "diverged" in svg_texts(plot.svg) and "url(#h" in plot.svg
    plot = plot_of(whole, "trade-off")
    marks = {"fastest, and leanest at that speed", "recommended", "diverged", "left out of the recommendation"}
    assert marks <= set(svg_texts(plot.svg))
    assert "no error bars" in plot.caption and "Left out: apex_ddp (no value)" in plot.caption


def test_an_interval_of_speed_beyond_the_axis_has_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = analysed(write_run(tmp_path, timed({"ddp": (10.0, 40.0, 160.0)})))
    (row,) = table_of(run).to_dict("records")
    ends: list[float] = []
    monkeypatch.setattr(drawing, "interval", lambda axes, low, high, y, cap="": ends.append(high))
    plot = plot_of(run, "speed")
    assert "one that ends at the edge goes on beyond it" in plot.caption
    assert ends and set(ends) == {row["throughput_high_per_s"]} and ends[0] > 10 * row["throughput_per_s"]


def test_ticks_of_a_slow_speed_differ(tmp_path: Path) -> None:
    plot = plot_of(analysed(write_run(tmp_path, timed({"ddp": (3300.0,)}))), "speed")
    ticks = [text for text in svg_texts(plot.svg) if re.fullmatch(r"[\d.]+", text)]
    assert len(ticks) == len(set(ticks)) > 3


def test_o1_against_o0_is_adjusted_over_all_pairs(tmp_path: Path) -> None:
    """Between the two alone p is below 0.05; among the ten pairs of five scenarios chance does as much."""
    steps = {"ddp": (40.0, 40.6, 40.3), "ddp_o1": (41.6, 41.0, 41.3), "single": (39.9, 40.5, 41.0)}
    steps |= {"ddp_o2": (40.6, 40.1, 40.9), "ddp_o3": (41.1, 40.4, 40.2)}
    run = analysed(write_run(tmp_path, timed(steps)))
    question = "Is O1 slower than no AMP (ddp_o1 against ddp)?"
    said = dict(questions(run))[question]
    assert said.startswith("Perhaps: its step takes 1.02 times") and "This could well be noise" in said
    assert re.search(r"which is faster \(about \d+ more launches of each would show a difference of 2 %\)\.", said)
    assert "Do not act on it" not in said and "on this CPU" not in said
    run = ran_with(run, {"bf16_instructions": False})
    assert "This holds for this CPU, which has no instructions for bf16" in dict(questions(run))[question]
    table = Analysed.of(run).overview.copy()
    table.loc[table["scenario"] == "ddp_o1", "why_not"] = "not finite"
    vars(run).update(overview=table)
    _, said = mixed_precision(run, "ddp_o1", "ddp")
    assert "Do not act on it: the results of ddp_o1 (not finite) cannot be trusted." in said


def test_questions_about_strategies(tmp_path: Path) -> None:
    steps = {"ddp_accumulate": (40.0, 40.1, 40.2), "ddp_accumulate_sync": (50.0, 50.1, 50.3)}
    steps |= {"ddp_accumulate_8": (40.0, 40.1, 40.2), "ddp_accumulate_8_sync": (80.0, 80.1, 80.3)}
    steps |= {"ddp": (10.0, 10.0, 10.0), "fsdp2": (15.0, 15.0, 15.0)}
    said = dict(questions(analysed(write_run(tmp_path, timed(steps)))))
    gain = said["What does no_sync gain with gradient accumulation?"]
    assert "takes 1.25 times (95 % interval" in gain and "Unlikely to be noise" in gain
    assert "takes 2.00 times" in gain
    why = said["Is FSDP slower than DDP here, and why?"]
    assert why.startswith("A step of fsdp2 takes 1.50 times") and "--diagnose" in why
    assert "By phase (medians, ms): data " in why


def test_why_fsdp_is_slower_where_the_profiler_saw_no_kernel(tmp_path: Path) -> None:
    looks = [{"profile": {"step_ms": 9.0, "trace": None, "categories": {"casts": 0.0}}}]

    def blind(writer: RunWriter) -> None:
        for number, name in enumerate(("ddp", "fsdp2"), start=90):
            writer.add_to(Diagnosis, diagnostic(launch=number, scenario=name, looks=looks))

    run = write_run(tmp_path, timed({"ddp": (10.0, 10.0, 10.0), "fsdp2": (15.0, 15.0, 15.0)}), also=blind)
    why = dict(questions(analysed(run)))["Is FSDP slower than DDP here, and why?"]
    assert "is spent on is unknown: the profiler saw no kernel" in why and "--diagnose" not in why


def test_questions_about_replicas_that_start_apart_and_their_channels(tmp_path: Path) -> None:
    """Channels are those of one launch."""
    apart = replace(DDP, checks=dict.fromkeys(("initial_weights_alike", "final_weights_alike"), False))
    run = analysed(write_run(tmp_path, [apart]))
    profile = {"step_ms": 40.0, "categories": {}, "trace": None}
    of_ranks = ({"P2P/CUMEM": 20, "NET/Socket/0": 1}, {"P2P/CUMEM": 4})
    looks = [{"profile": profile, "nccl": {"transports": of, "algorithms": {}}} for of in of_ranks]
    launches = tuple(diagnostic(launch=90 + place, scenario="ddp", looks=looks) for place in range(2))
    run = replace(run, document=with_records(run.document, Diagnosis(launches=launches)))
    said = dict(questions(run))
    together = said["How do the replicas come to hold the same weights?"]
    assert together.startswith("They do not: already before the first step")
    way = said["Which way do the ranks exchange?"]
    assert way.startswith("By P2P/CUMEM (24 channels) and NET/Socket/0 (1 channel), as its own log says.")


def test_compiling_pays_back(tmp_path: Path) -> None:
    run = analysed(write_run(tmp_path, timed({"ddp": (40.0, 40.1, 40.2), "ddp+compile": (20.0, 20.1, 20.2)})))
    compiled = Compiled(seconds=30.0, graphs=2, graph_breaks=1)
    ran = ({"compiled": compiled if one.scenario == "ddp+compile" else None} for one in run.document.launches)
    said = dict(questions(ran_with(run, *ran)))["Is torch.compile faster, and what does compiling take?"]
    assert said.startswith("A step of ddp+compile takes 0.50 times")
    assert "30 s, apart from the measured steps, into 2 graphs with 1 break; 1,500 steps gain that back." in said


def test_replicas_are_compared_among_themselves(tmp_path: Path) -> None:
    steps = {"single": (10.0, 10.1, 10.2), "ddp": (40.0, 42.0, 41.0), "ddp_o1": (42.5, 40.5, 41.5)}
    steps |= {"ddp_o3": (81.0, 80.0, 82.0)}
    run = analysed(write_run(tmp_path, timed(steps)))
    found = recommendations(run.document, table_of(run))
    assert (found.fastest, found.not_told_apart) == ("single", ()), "all others are slower, beyond chance"
    assert (found.parallel.fastest, found.parallel.not_told_apart) == ("ddp", ("ddp_o1",))
    first, second = answer(run.document, table_of(run)).split(". No clear")
    assert first.startswith("Fastest: single, ") and is_clear(run.document, table_of(run))
    assert summary.summary_table(run).marked == 0
    assert re.match(r" winner on 2 replicas: ddp and ddp_o1 .* about \d+ more launches of each would", second)


def test_what_nobody_can_tell_comes_second(tmp_path: Path) -> None:
    steps = {"single": (10.0, 10.1, 10.2), "ddp": (40.0, 41.0, 42.0), "ddp_o1": (20.0, 21.0, 20.5)}
    run = analysed(write_run(tmp_path, timed(steps)))

    def chosen(**verdicts: str) -> Recommendation:
        return recommendation(table_of(run).assign(parity=table_of(run)["scenario"].map(verdicts)))

    assert chosen().fastest == "single", "nothing is known of any"
    found = chosen(single=CANNOT_TELL, ddp=SAME, ddp_o1=CANNOT_TELL)
    why = f"numerics: {CANNOT_TELL}"
    assert (found.fastest, found.left_out) == ("ddp", {"single": why, "ddp_o1": why})
    assert chosen(single=CANNOT_TELL, ddp=CANNOT_TELL, ddp_o1=WITHIN_HALF).fastest == "ddp_o1"
    assert chosen(single=CANNOT_TELL, ddp=CANNOT_TELL, ddp_o1=CANNOT_TELL).fastest == "single"
    assert chosen(single=CANNOT_TELL, ddp=DIVERGED).fastest == "single", "what is false is no better"


def test_the_fastest_is_that_without_drift(tmp_path: Path) -> None:
    """The faster one has more launches, and the later ones are slow."""
    slower = [Launch("ddp", [[9, ms, ms]], [[100.0]]) for ms in (100.0, 120.0, 140.0)]
    faster = [Launch("ddp_o1", [[9, ms, ms]], [[100.0]], precision="O1") for ms in (95.0, 114.0, 133.1, 152.0)]
    in_turn = [one for pair in zip(slower, faster, strict=False) for one in pair]
    run = analysed(write_run(tmp_path, [*in_turn, faster[-1]]))
    assert recommendations(run.document, table_of(run)).fastest == "ddp_o1" and is_clear(run.document, table_of(run))
    assert dict(questions(run))["Which is fastest, and by how much?"].startswith("ddp_o1. A step of the next, ddp, ")


def test_what_is_passed_over_for_its_numerics_is_valid(tmp_path: Path) -> None:
    run = analysed(write_run(tmp_path, timed({"ddp": (40.0, 41.0, 42.0), "ddp_powersgd": (20.0, 20.1, 20.2)})))
    run.parity["verdict"] = run.parity["scenario"].map({"ddp": SAME, "ddp_powersgd": BY_DESIGN})
    assert headlines(run.document, table_of(run))[0][0] == "Only one that can be recommended"
    assert [name for name, _ in advice(run.document, table_of(run))] == ["Left out"], "and there is no leaner one"
    said = dict(questions(run))["Which is fastest, and by how much?"]
    assert said == "ddp is the only scenario that can be recommended, so it has nothing to beat."


def test_recommendation_without_figures_or_memory(tmp_path: Path) -> None:
    nothing = analysed(write_run(tmp_path / "nothing", [GONE]))
    assert headlines(nothing.document, table_of(nothing))[0][0] == "No valid result"
    assert advice(nothing.document, table_of(nothing)) == [("Left out", "dp (unsupported).")]
    blind = analysed(write_run(tmp_path / "blind", [APEX]))
    said = dict(advice(blind.document, table_of(blind)))
    assert said["Least memory within 5 % of the fastest"].startswith("Unknown")
    _, lean = answer_of_search(searched(blind, "apex_ddp"), table_of(blind))
    assert lean == "Leanest within 5 %: unknown, as no peak of memory is known"


def test_findings_that_ask_for_the_same_share_a_row() -> None:
    def finding(launch: int | None, scenario: str, code: str, severity: str, text: str) -> dict[str, Any]:
        about = {"launch": launch, "scenario": scenario, "code": code, "severity": severity, "size": launch}
        return {**about, "text": text, "remedy": f"cure {code}"}

    many = [finding(n, f"s{n % 10}", "unsteady", "warning", f"{n} %") for n in range(70)]
    few = finding(None, "s1", "few launches", "warning", "1 launch")
    hot = [finding(n, "s3", "throttled", "invalid", "hot") for n in (13, 3)]
    found = pd.DataFrame([*many, few, *hot]).astype({"launch": "Int64"})
    hot, unsteady, few = validity.grouped(found).to_dict("records")
    assert (hot["code"], hot["severity"], hot["count"]) == ("throttled", "invalid", 2)
    assert (unsteady["code"], unsteady["severity"], unsteady["count"]) == ("unsteady", "warning", 70)
    assert (few["code"], few["count"]) == ("few launches", 1)
    assert (hot["where"], hot["what"], hot["remedy"]) == ("s3 (3, 13)", "hot", "cure throttled")
    assert unsteady["where"].startswith("s0 (0, 10, 20, 30, 40, 50, 60), s1 (1, 11,")
    assert unsteady["what"] == "s9, launch 69: 69 %"
    assert (few["scenarios"], few["where"]) == ("s1", "s1")
    assert validity.grouped(found.iloc[:0]).empty
    names = [f"s{number}" for number in reversed(range(10))]
    (_, unsteady, _) = validity.grouped(found, names).to_dict("records")
    assert unsteady["scenarios"] == "all 10 scenarios" and unsteady["where"].startswith("s9 (9, 19,")


def test_summary_shows_verdicts_with_their_codes(whole: Analysed) -> None:
    table = summary.summary_table(whole)
    at = [column.heading for column in table.columns].index("validity")
    cells = {row[0].text: [(cell.text, cell.tone) for cell in row[at : at + 2]] for row in table.rows}
    assert cells["ddp"] == [("warning", "doubt"), ("same", "good")]
    assert cells["ddp_o2"] == [("invalid", "bad"), ("diverged", "bad")]
    assert [text for text, _ in cells["dp"]] == ["–", "–"]
    assert [row[at].small for row in table.rows if row[0].text == "ddp_o2"] == ["spread, few launches, diverged"]


def test_launches_show_drift_skew_outliers_and_load(tmp_path: Path) -> None:
    steps = [[9, 10, 10, 11, 11, 12, 12], [9, 8, 8, 8, 8, 8, 8]]
    alone = Launch("single", steps[:1])
    run = analysed(write_run(tmp_path, [replace(Launch("ddp", steps), checks={"foreign_cores": 0.75}), GONE, alone]))
    table = launch_tables.launches_table(run)
    at = [column.heading for column in table.columns].index("last third vs first (%)")
    assert [cell.text for cell in table.rows[0][at : at + 4]] == ["+20.0", "31.6", "0", "0.75"]
    assert table.rows[0][at + 1].small == "rank 0"
    assert "unsteady" in table.rows[0][at + 4].text and "load" in table.rows[0][at + 4].text
    assert {cell.text for cell in table.rows[1][at : at + 5]} == {"–"}
    assert [cell.text for cell in table.rows[2][at : at + 2]] == ["+20.0", "–"]


def test_parity_shows_errors_and_what_rounding_does(whole: Analysed) -> None:
    table = verdict_tables.parity_table(whole)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    # in double: gradient 1e-9 off, update and buffers exact; no own step was recorded; a replica alone is 1.5 off
    assert rows["ddp"] == ["same", "0", "<0.0001 %", "0 %", "0 %", tables.UNKNOWN, "150 %", "0 %", "yes → yes"]
    assert rows["ddp_o2"][:3] == ["diverged", "1", "1.2 %"]
    assert (percent(-0.5), percent(100.0)) == ("-50 %", "10,000 %")


def test_parity_of_a_run_without_a_reference_says_so(tmp_path: Path) -> None:
    lost = replace(DDP, checks={"final_weights_alike": False})
    run = analysed(write_run(tmp_path, [lost, FAST, APEX]))
    table = verdict_tables.parity_table(run)
    verdicts = {row[0].text: (row[1].text, row[1].small) for row in table.rows}
    assert verdicts["ddp"] == ("diverged", "the ranks hold different parameters after the last step")
    assert verdicts["ddp_o2"][0] == "not finite"
    assert verdicts["apex_ddp"][0] == "not shown" and "--no-parity" in verdicts["apex_ddp"][1]
    assert "--no-parity" in (verdict_tables.no_reference(run.document) or "")
    assert [verdict for verdict, _ in verdict_tables.verdicts(run)] == ["not finite", "diverged", "not shown"]
    assert table.rows[0][-1].text == "yes → no"
    failed = with_records(run.document, Numerics(references=(reference(launch=9, status="oom", reason=HOSTILE),)))
    said = f"The reference failed (oom): {HOSTILE}, so nothing can be said"
    assert said in (verdict_tables.no_reference(failed) or "")


def searched(run: Analysed, *finalists: str, baseline: str | None = None) -> Analysed:
    """The run as that of a search that chose these, the first of them as the winner."""
    about = {"asked": finalists, "budget_s": 60.0, "memory_limit_mib": None, "floor": "half", "allow": ()}
    search = Tuning(**about, baseline=baseline, finalists=finalists, leanest=finalists[0])
    return replace(run, document=with_records(run.document, search))


def test_a_search_names_no_loser(tmp_path: Path) -> None:
    """The baseline stays where nothing is told apart from it, and where the winner of the race is slower than it. Of
    equal finalists without a baseline the winner is recommended."""
    steps = {"ddp": (40.0, 41.0, 42.0), "ddp_o1": (39.4, 40.4, 41.4), "ddp_o3": (80.0, 81.0, 82.0)}
    run = analysed(write_run(tmp_path, timed(steps)))
    table = table_of(run).assign(parity="same")
    cases = (
        ("ddp_o3", "ddp", "Nothing beat ddp: ddp, * not distinguishable from ddp_o1; ddp_o3, ahead in the race, *"),
        ("ddp_o1", "ddp", "Nothing beat ddp: ddp, * not distinguishable from ddp_o1 [*"),
        ("ddp_o1", "ddp_o3", "Fastest: ddp_o1, * not distinguishable from ddp [*"),
    )
    for winner, baseline, expected in cases:
        found = searched(run, winner, baseline=baseline)
        first, *rest = answer_of_search(found, table)
        assert fnmatchcase(first, expected.replace("[", "[[]")), first
        gain = ["Gain over ddp_o3"] * (baseline == "ddp_o3")
        assert [line.partition(":")[0] for line in rest] == ["Leanest within 5 %", *gain]
        advised = recommendations(found.document, table).fastest
        assert advised is not None and f": {advised}, " in first, "runs and recipe name the same"
    noisy = analysed(write_run(tmp_path, timed({"ddp": (40.0, 90.0, 42.0), "ddp_o1": (12.0, 60.0, 13.0)})))
    first, *_ = answer_of_search(searched(noisy, "ddp_o1", baseline="ddp"), table_of(noisy).assign(parity="same"))
    assert first.startswith("Nothing clearly beat ddp: ddp, ") and "; not distinguishable from ddp_o1 [" in first
    for winner, advised in (("ddp", "ddp"), ("ddp_o1", "ddp_o1"), ("ddp_o3", "ddp_o1")):
        found = recommendations(searched(run, winner).document, table)
        assert {found.fastest, *found.not_told_apart} == {"ddp", "ddp_o1"} and found.fastest == advised


def test_the_leanest_is_held_against_what_a_search_recommends(tmp_path: Path) -> None:
    """The baseline, where nothing is told apart from it: what needs more memory is not leaner."""
    mib = {"ddp": 100.0, "ddp_o1": 98.0, "ddp_o2": 110.0}
    steps = {"ddp": (40.0, 47.0, 41.0), "ddp_o1": (41.0, 39.0, 40.5), "ddp_o2": (39.0, 38.0, 42.0)}
    run = analysed(write_run(tmp_path, [replace(one, memory_mib=[[mib[one.scenario]]]) for one in timed(steps)]))
    table = table_of(run).assign(parity="same")
    found = searched(run, "ddp_o2", baseline="ddp").document
    advised = recommendations(found, table)
    assert (advised.fastest, advised.leanest) == ("ddp", "ddp_o1")
    assert "% faster, with 2 % less memory." in dict(advice(found, table))["Least memory within 5 % of the fastest"]
    for peak_mib in (105.0, 99.9):  # more, and hardly less
        other = table.assign(peak_total_mib=[100.0, peak_mib, 110.0])
        assert recommendations(found, other).leanest == "ddp"


def test_a_winner_of_a_race_that_is_left_out_has_its_reason(tmp_path: Path) -> None:
    hot = {"throttle": {"verdict": "invalid", "devices": {"GPU-a": ["thermal slowdown"]}}}
    winner = [replace(one, checks=hot) for one in timed({"ddp_o1": (20.0, 21.0, 22.0)})]
    run = analysed(write_run(tmp_path, [*timed({"ddp": (40.0, 41.0, 42.0)}), *winner]))
    first, *_ = answer_of_search(searched(run, "ddp_o1", "ddp", baseline="ddp"), table_of(run))
    assert "Nothing beat ddp: ddp, " in first and "; ddp_o1, ahead in the race, is left out: throttled [" in first


def test_a_race_without_an_end_or_with_unjudged_numerics_says_so(whole: Analysed) -> None:
    found = searched(whole, "ddp")
    search = replace(found.document.begun(Tuning), finalists=())
    run = replace(found, document=replace(with_records(found.document, search), complete=False))
    (answer,) = answer_of_search(run, table_of(whole))
    assert answer == "No finalists were chosen yet: if the search was interrupted, bench tune --resume goes on with it."
    for verdict, warned in (("cannot tell", True), ("same", False)):
        first, *_ = answer_of_search(found, Analysed.of(whole).overview.assign(parity=verdict))
        assert first.startswith("Fastest: ddp, ") and (f"numerics {verdict}{DOUBTFUL}" in first) is warned


def test_losses_and_those_of_the_reference(whole: Analysed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = loss_curves(whole.document, whole.iterations, whole.numerics)
    off = curves[curves["scenario"] == "ddp_o2"].set_index("step")
    assert (off.loc[3, "loss"], off.loc[3, "reference"]) == (7.0, 6.0) and pd.isna(off.loc[4, "reference"])
    assert "reference, in fp32" in svg_texts(plot_of(whole, "losses").svg)
    broken = replace(FAST, losses=[math.nan, math.inf, math.nan, math.nan, math.nan])
    plot = plot_of(analysed(write_run(tmp_path / "one", [DDP, broken])), "losses")
    assert "reference, in fp32" not in svg_texts(plot.svg) and "ddp_o2 (no value)" in plot.caption
    only = analysed(write_run(tmp_path / "none", [broken]))
    assert plots.losses(only) is None and "not finite" in texts_of(only)
    monkeypatch.setattr(drawing, "MOST_COLUMNS", 1)  # of the steps that the band is drawn from, none has a loss
    few = replace(FAST, losses=[math.nan, 6.0, math.inf, 5.0, 4.0])
    assert "<svg" in plot_of(analysed(write_run(tmp_path / "few", [few])), "losses").svg


@pytest.mark.parametrize(
    ("lean_mib", "said"),
    [(950.0, " Not from 0: the axis of memory and speed."), (50.0, " Not from 0: the axis of speed.")],
)
def test_the_axes_and_bars_of_the_trade_off(lean_mib: float, said: str, tmp_path: Path) -> None:
    fast = [Launch("ddp", [[9, ms, ms]], [[1000.0 + ms]]) for ms in (40.0, 40.5)]
    lean = Launch("ddp_o2", [[9, 41.0, 41.0]], [[lean_mib]])
    plot = plot_of(analysed(write_run(tmp_path, [*fast, lean])), "trade-off")
    assert plot.caption.partition("cover each other.")[2] == said
    for bar in ("speed-bar", "peak-bar"):
        assert f'id="{bar}-ddp"' in plot.svg and f'id="{bar}-ddp_o2"' not in plot.svg


def test_where_the_time_goes_explains_the_difference(whole: Analysed) -> None:
    table = verdict_tables.communication_table(whole)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert rows["ddp"] == ["5.5", "DDP's logger", "30.0", "100.0", "55.5", "50.0", "20.5", "no", "4"]
    assert rows["apex_ddp"] == ["30.0", "paired difference", "30.0", "100.0", "–", "–", "–", "–", "4"]
    assert table.rows[2][2].small == f"error: {HOSTILE}"
    spent = verdict_tables.spent_table(whole)
    assert [cell.text for cell in spent.rows[0]] == ["ddp", "4.0", "20.0", "6.0", "30.0", "40.0"], "no 0.0"
    assert [cell.small for cell in spent.rows[0][1:3]] == ["13.3 %", "66.7 %"]
    assert {"convolutions", "casts", "the profiled step"} <= set(svg_texts(plot_of(whole, "time-spent").svg))


def test_parts_of_data_parallel_have_a_table(tmp_path: Path) -> None:
    def write(writer: RunWriter) -> None:
        parts = {"scatter_ms": 1.0, "replicate_ms": 5.0, "parallel_apply_ms": 20.0, "gather_ms": 0.5}
        row = {"launch": 90, "scenario": "dp", "rank": 0, "look": "data_parallel", "step": 0, **parts}
        look = {"reasons": {"pairs": "one process"}, "profile": {"step_ms": 9.0, "categories": CATEGORIES}}
        about = {"launch": 90, "scenario": "dp", "strategy": "dp", "precision": "O0", "status": "ok", "reason": None}
        writer.add_to(Diagnosis, diagnostic(**about, effective=effective("dp", "O0"), looks=[look]), diagnostics=[row])

    run = analysed(write_run(tmp_path, [Launch("dp", [[9, 8]], strategy="dp")], also=write))
    table = verdict_tables.data_parallel_table(run)
    assert [cell.text for cell in table.rows[0]] == ["dp", "1.00", "5.00", "20.00", "0.50"]
    assert "replicate ms" in texts_of(run)


def test_page_markdown_and_tables_have_every_section(whole: Analysed, plotting: Plotting) -> None:
    files = report.render([whole])
    page = Page(files["index.html"].decode())
    assert "traces/ddp-rank0.json.gz" in page.texts
    assert f"error: {HOSTILE}" in page.text
    text = files["summary.md"].decode()
    assert "- **Left out**: ddp_o2 (diverged); dp (unsupported)." in text
    assert "<script>" not in text and "30.0 (28.7 to 31.3)" in text
    names = ("findings", "parity", "communication", "time-spent")
    rows = {name: list(csv.DictReader(StringIO(files[f"{name}.csv"].decode()))) for name in names}
    assert [row["verdict"] for row in rows["parity"]] == ["same", "diverged", "same"]
    assert float(rows["communication"][0]["cost_ms"]) == 30.0
    assert rows["time-spent"][0]["convolutions"] == "20.0"
    assert {row["run"] for table in rows.values() for row in table} == {whole.id}


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ([GONE, BROKEN], "Nothing was found: no launch ended well."),
        ([DDP], "ddp is the only scenario with valid results"),
        ([DDP, replace(FINITE, scenario="ddp_o1")], "What its time is spent on was not looked at: --diagnose"),
        ([APEX], "was not computed (as with --no-parity)"),
    ],
    ids=["all failed", "one scenario", "no diagnosis", "no memory"],
)
def test_pages_of_partial_runs(launches: list[Launch], expected: str, tmp_path: Path) -> None:
    text = texts_of(analysed(write_run(tmp_path, launches, complete=False), allow_incomplete=True))
    assert expected in text
    assert "python -m bench run --diagnose shows what communication costs" in text
    assert "NaN" not in text and "nan" not in text.split()


def test_verdicts_in_run_json_have_every_digit(tmp_path: Path) -> None:
    tiny = 3.0000000000000073e-12
    run = analysed(write_run(tmp_path, [DDP, OFF, APEX], also=with_reference(("ddp", tiny))))
    said = verdicts.judged(run).document
    assert said.parity[0].gradient_error == run.parity["gradient_error"].iloc[0] == tiny
    assert said.parity[1].gradient_error is None
    assert any(one.launch is None for one in said.validity), "about a scenario as a whole"
    table = pd.DataFrame({"a": [math.inf, 0.1], "b": [None, ["x", math.nan]], "c": pd.array([1, None], dtype="Int64")})
    table["d"] = np.array([1, 2], dtype=np.int8)
    rows = verdicts.records(table)
    assert rows == [{"a": None, "b": None, "c": 1, "d": 1}, {"a": 0.1, "b": ["x", None], "c": None, "d": 2}]
    stored = encode([said, rows])
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored


def test_terminal_and_json_say_what_the_page_says(tmp_path: Path, bench: Bench, plotting: Plotting) -> None:
    plotting(plots.speeds, plots.trade_off)
    run = write_run(tmp_path / "results", [DDP, OFF, APEX, GONE], also=everything)
    code, said, _ = bench("show", "-v", "latest")
    assert code == 0 and "\nLeft out: ddp_o2 (diverged); dp (unsupported).\n" in said
    assert said.count("invalid: diverged in ddp_o2 (") == 1
    reported = bench("report", "--json")
    assert "findings.csv, parity.csv, communication.csv, time-spent.csv and 2 plots" in reported.err
    document = reported.document
    (choice,) = document["recommendation"]
    assert (choice["fastest"], choice["leanest"], choice["parallel"]) == ("ddp", "ddp", None)
    assert choice["not_told_apart"] == ["apex_ddp"]
    assert choice["left_out"] == {"ddp_o2": "diverged", "dp": "unsupported"}
    assert [row["verdict"] for row in document["parity"]] == ["same", "diverged", "same"]
    assert {row["code"] for row in document["validity"]} >= {"diverged", "few launches"}
    assert document["communication"][0]["agree"] is False
    assert document["energy"] == [] and {row["rss_mib"] for row in document["memory"]} >= {300.0, 200.0}
    assert document["questions"][0]["question"] == "Which is fastest, and by how much?"
    assert {row["run"] for name in document if name not in ("page", "files") for row in document[name]} == {run.name}
