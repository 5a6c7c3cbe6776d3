"""What an acceptance of bench on a GPU consists of, as values: checks and verdicts, estimates, parts, the page.

Pure: ``gpu_acceptance.py`` does the work and hands over what came of it, so that all of this is tested without a GPU.
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from xml.etree import ElementTree

PASSED, FAILED, NOT_SHOWN, NOT_DONE, NOT_HERE, FIGURE = (
    "passed",
    "FAILED",
    "not shown",
    "not done",
    "not applicable here",
    "figure",
)
"""Verdicts. Not shown: the noise was larger than what is looked for. Not done: it could have been, and was not. Not
applicable here: this machine has not what it needs (a second GPU, apex). Figure: stated, and held against no bound."""

EXIT_CODES = ((FAILED, 1), (NOT_DONE, 12), (NOT_SHOWN, 11))
"""Of the gravest verdict; 0 where there is none of them."""

RATE_OF = {"O0": "tf32", "O1": "fp16", "O2": "fp16", "O3": "fp16"}
"""Whose matrix rate a level is held against on a GPU: convolutions in fp32 use TF32, as torch has it."""

TESTS = ("tests_alone", "tests")
"""The items that are tests, which the page shows by themselves."""

MANY = 8
"""How many checks that have no answer for one and the same reason are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the page. ``part``: the item that it is of. ``figure``: what was found. ``bound``: what it is held
    against. ``why``: if not passed."""

    part: str
    what: str
    verdict: str
    figure: str = ""
    bound: str = ""
    why: str = ""


def exit_code(checks: Sequence[Check]) -> int:
    """0 all passed; 1 one failed; 12 one was not done; 11 one could not be shown for noise."""
    verdicts = {check.verdict for check in checks}
    return next((code for verdict, code in EXIT_CODES if verdict in verdicts), 0)


# Time

BETWEEN_S, SEAL_S = 1.0, 6.0
"""Between two launches of a run, and at its end."""

REFERENCE_STEPS = 9 + 14
"""Of the reference besides two for each step of a launch: first gradients, and the probes with their twins."""

WHOLE = 0.8
"""The share of a part that must be left for something longer than a part to be begun."""

STRICT = 2.5
"""What a step without TF32 takes, over one with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What this machine takes, in seconds, for planning: assumed until ``gpu_probe.py step`` has measured it.

    ``host_s``: until a worker host is ready. ``launch_s``: a launch besides all steps but its first, ``first_s``.
    ``step_s``: of fp32 at the full batch on one device, which no scenario is much slower than.
    """

    host_s: float = 10.0
    launch_s: float = 22.0
    first_s: float = 12.0
    step_s: float = 0.16
    measured: bool = False

    def run_s(self, launches: int, steps: float, reference: bool = False) -> float:
        """A ``bench run`` of so many launches, with so many steps each."""
        seconds = self.host_s + SEAL_S + launches * (self.launch_s + BETWEEN_S + steps * self.step_s)
        return seconds + reference * (self.launch_s + STRICT * self.step_s * (REFERENCE_STEPS + 2 * steps))

    def warm_s(self, together: int) -> float:
        """Until a benchmark's launch is warm, with as many others side by side."""
        return self.host_s + self.launch_s + together * 12 * self.step_s

    def block(self, most: int, seconds: float) -> int:
        """The steps of a block of at most so many seconds."""
        return max(1, min(most, int(seconds / self.step_s)))


def most_that_fit(least: int, most: int, seconds: Callable[[int], float], room_s: float) -> int:
    """The largest number that takes no longer than ``room_s``; ``least`` where none does."""
    return next((number for number in range(most, least, -1) if seconds(number) <= room_s), least)


def fits(needs_s: float, left_s: float, room_s: float) -> bool:
    """Whether an item is begun when ``left_s`` of the ``room_s`` seconds of a part are left: if it can end in them, or
    if it is longer than any part and this one is nearly whole. The next part goes on with it.
    """
    return needs_s <= left_s or (needs_s > room_s and left_s >= WHOLE * room_s)


def parts(seconds: Mapping[str, float], left_s: float, room_s: float) -> list[list[str]]:
    """Which items each call does: down the list, whatever still fits.

    ``seconds``: by item, the most important first. ``left_s``: of this call, and ``room_s`` of each to come.
    """
    made: list[list[str]] = []
    ahead = dict(seconds)
    while ahead:
        room, part = room_s if made else left_s, []
        for name, needs_s in ahead.items():
            if fits(needs_s, room, room_s):
                part.append(name)
                room -= needs_s
        made.append(part)
        ahead = {name: needs_s for name, needs_s in ahead.items() if name not in part}
    return made


def besides_steps(document: Mapping[str, Any]) -> float | None:
    """Seconds that the longest launch of a run took besides its steps, None where no launch is ``ok``."""
    steps = document["request"]["warmup"] + document["request"]["iters"]
    step_ms = {row["scenario"]: row["step_median_ms"] for row in document["summary"]}
    took_s = [
        launch["wall_s"] - steps * step_ms[launch["scenario"]] / 1e3
        for launch in document["launches"]
        if launch["status"] == "ok" and step_ms.get(launch["scenario"]) is not None
    ]
    return max(took_s, default=None)


# From what the items left behind to checks


def of_comparison(part: str, what: str, document: Mapping[str, Any]) -> list[Check]:
    """The checks of a benchmark's ``--json`` (see ``paired.Answer``): its ratio against its bound, and what must hold
    besides. A bound that noise alone has missed is not shown; a ratio that is surely beyond it has failed.
    """
    (one,) = document["comparisons"]
    checks = []
    if one["ratio"] is None:
        checks.append(Check(part=part, what=what, verdict=NOT_SHOWN, why="fewer than two pairs were measured"))
    else:
        low, high = one["interval_95"]
        if one["margin"] is not None:
            bound = f"95 % interval within 1 ± {one['margin']:g}"
            beyond = high < 1 - one["margin"] or low > 1 + one["margin"]
        else:
            bound = f"upper 95 % bound ≤ {one['allowed']:g}"
            beyond = low > one["allowed"]
        figure = (
            f"{one['ratio']:.4f} ({low:.4f} to {high:.4f}); {one['a']} {1e3 * statistics.median(one['a_s']):.2f} ms, "
        )
        figure += f"{one['b']} {1e3 * statistics.median(one['b_s']):.2f} ms"
        verdict = PASSED if one["passed"] else FAILED if beyond else NOT_SHOWN
        why = "" if one["passed"] else "surely beyond the bound" if beyond else "the noise is larger than the bound"
        checks.append(Check(part=part, what=what, verdict=verdict, figure=figure, bound=bound, why=why))
    for check in document["checks"]:
        verdict = PASSED if check["passed"] else NOT_SHOWN if check["by_noise"] else FAILED
        checks.append(Check(part=part, what=f"{what}: {check['text']}", verdict=verdict))
    return checks


def of_tests(part: str, junit: str) -> list[Check]:
    """One check per test, from pytest's JUnit file. Raises ``ElementTree.ParseError`` for a file that is none."""
    checks = []
    for case in ElementTree.fromstring(junit).iter("testcase"):
        what = case.get("name")
        if what is None:
            continue  # what was running when pytest was ended has a time and no name
        skipped, broken = case.find("skipped"), [*case.iter("failure"), *case.iter("error")]
        figure = f"{float(case.get('time') or 0):.1f} s"
        if broken:
            why = " ".join((broken[0].get("message") or broken[0].text or "").split())[:300]
            checks.append(Check(part=part, what=what, verdict=FAILED, figure=figure, why=why))
        elif skipped is not None:
            why = " ".join((skipped.get("message") or "").split())
            verdict = NOT_DONE if why.startswith("not reached") else NOT_HERE
            checks.append(Check(part=part, what=what, verdict=verdict, why=why))
        else:
            checks.append(Check(part=part, what=what, verdict=PASSED, figure=figure))
    return checks


def of_run(part: str, document: Mapping[str, Any], unsound: Sequence[str], *, on_gpu: bool) -> list[Check]:
    """The checks of a ``bench run --json``. ``unsound``: what ``bench check`` says of the folder.

    What is not held against the reference, as where the loss scaler skipped the first step, is not shown.
    Tiny steps on a CPU that others use need not add up as well as they must on a GPU, and tiny batches make training
    chaotic: not shown.
    """
    rows = [row for row in document["summary"] if document["complete"] or row["status"] != "killed"]  # as it was ended
    more = part.startswith("more")  # beside the ten, where a strategy may ask for what is not here
    absent = [row for row in rows if more and row["status"] == "unsupported"]
    rows = [row for row in rows if row not in absent]
    inexact = {one["scenario"] for one in document["launches"] if one.get("strategy") == "ddp_hooks"}

    def check(what: str, wrong: Sequence[str], figure: str = "", bound: str = "", lenient: bool = False) -> Check:
        verdict = PASSED if not wrong else NOT_SHOWN if lenient and not on_gpu else FAILED
        return Check(part=part, what=what, verdict=verdict, figure=figure, bound=bound, why="; ".join(wrong))

    ok = [launch for launch in document["launches"] if launch["status"] == "ok"]
    failed = [f"{row['scenario']}: {row['status']}, {row['reason']}" for row in rows if row["status"] != "ok"]
    errors = [launch["checks"]["conservation_error"] for launch in ok]
    apart = [launch["scenario"] for launch in ok if not launch["checks"]["conservation_ok"]]
    unknown = [f"{row['scenario']}: {row['memory_source']}" for row in rows if row["peak_total_mib"] is None]
    untrue = [
        f"{one['scenario']}: {one['verdict']}, {one['reason']}"
        for one in document["parity"]
        if one["verdict"] in ("diverged", "not finite") and not one["scenario"].endswith("_o3")
        if one["scenario"] not in inexact or one["verdict"] == "not finite"  # what compresses is to diverge
    ]
    unheld = [
        f"{one['scenario']}: {one['reason']}"
        for one in document["parity"]
        if one["verdict"] is None and not one["scenario"].endswith("_o3")
    ]
    reference = document["reference"]
    if reference is not None and reference["status"] != "ok":
        untrue.append(f"the reference: {reference['reason']}")
    strayed = [one["scenario"] for one in document["parity"] if one["scenario"].endswith("_o3")]
    story = ", ".join(f"{row['scenario']}: {row['parity']}" for row in rows if row["scenario"] in strayed)
    sealed = check(
        "the run folder is sealed and sound",
        unsound,
        bound="bench check finds nothing",
        lenient=all("do not add up" in text for text in unsound),
    )
    numerics = check(
        "fp32, O1 and O2 train the model of the fp32 reference", untrue if ok else ["nothing ran"], lenient=bool(ok)
    )
    if unheld and numerics.verdict == PASSED:
        numerics = replace(numerics, verdict=NOT_SHOWN, why="; ".join(unheld))
    every = check("every scenario runs", failed, f"{len(rows) - len(failed)} of {len(document['summary'])}")
    if not document["complete"]:
        sealed = replace(sealed, verdict=NOT_DONE, why="the run was ended")
        every = every if failed else replace(every, verdict=NOT_DONE, why="the run was ended")
    checks = [
        every,
        sealed,
        check(
            "steps add up to the wall time in every launch",
            apart,
            f"at most {100 * max(errors, default=0.0):.3f} % apart",
            "0.5 %",
            lenient=True,
        ),
        check("the memory of every scenario is known", unknown if ok else ["nothing ran"]),
    ]
    idle = [
        f"{launch['scenario']}: {instead}"
        for launch in ok
        for instead in (launch["effective"] or {}).get("switches", {}).values()
        if instead is not None
    ]
    if idle:
        checks.append(Check(part=part, what="switches without effect here", verdict=FIGURE, why="; ".join(idle)))
    if absent:
        why = "; ".join(f"{row['scenario']}: {row['reason']}" for row in absent)
        checks.append(Check(part=part, what="scenarios that cannot run here", verdict=NOT_HERE, why=why))
    if document["request"].get("parity", True):
        if reference is None:
            numerics = replace(numerics, verdict=NOT_DONE, why="the reference was not reached")
        about_o3 = Check(part=part, what="O3 against the fp32 reference", verdict=FIGURE, figure=story)
        checks += [numerics, about_o3] if story else [numerics]
    if on_gpu and part == "scenarios":
        levels = {launch["scenario"]: launch["effective"] for launch in ok if launch["precision"] != "O0"}
        wrong = [name for name, ran in levels.items() if ran["compute_dtypes"] != ["float16"]]
        scaled = [
            name
            for name, ran in levels.items()
            if (ran["scaler"] is not None) != name.endswith(("_o1", "_o2")) and ran["precision_impl"] == "native"
        ]
        checks.append(check("O1 to O3 computed in fp16, O1 and O2 with a loss scaler", [*wrong, *scaled]))
    return checks


def of_search(document: Mapping[str, Any]) -> list[Check]:
    """The largest batch of each scenario, from ``bench run --find-batch --json``."""
    checks = []
    for name, found in document["batch_search"]["scenarios"].items():
        what = f"largest global batch of {name}"
        if found["largest"] is None:
            checks.append(Check(part="batch", what=what, verdict=FAILED, why=str(found["why_not"])))
            continue
        figure = f"{found['largest']} ({found['throughput_per_s']:.0f} img/s, {found['peak_mib'] or 0:,.0f} MiB)"
        above = (
            f"{found['too_large']} does not: {found['why_not']}" if found["too_large"] else "nothing larger was tried"
        )
        ended = "" if found["stopped_by"] is None else f"the search ended by its {found['stopped_by']}; "
        checks.append(Check(part="batch", what=what, verdict=FIGURE, figure=figure, why=ended + above))
    return checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a scenario makes of the device. Shares are of what was measured in the same run; None where unknown."""

    scenario: str
    img_s: float
    step_ms: float
    tflops: float
    rate: str | None
    matrix_share: float | None
    gb_s: float
    copy_share: float


def speeds(document: Mapping[str, Any], probe: Mapping[str, Any], *, replicas: int) -> list[Speed]:
    """Achieved operations and bytes a second of each scenario that ran, for one device.

    ``document``: of ``bench run --json``. ``probe``: of ``gpu_probe.py measure``. Operations: the counted ones of an
    image x the global batch / the step time / devices; bytes likewise, with those that do not depend on the batch.
    """
    found = []
    batch = document["workload"]["global_batch"]
    levels = {launch["scenario"]: launch["precision"] for launch in document["launches"]}
    rates = probe["rates"]["matrix_tflops"]
    for row in document["summary"]:
        if row["status"] != "ok" or row["step_median_ms"] is None:
            continue
        level, step_s = levels[row["scenario"]], row["step_median_ms"] / 1e3
        counted = probe["counts"][level]
        devices = 1 if row["scenario"] == "single" else replicas
        tflops = counted["flops_per_image"] * batch / step_s / devices / 1e12
        moved = counted["bytes_fixed"] + counted["bytes_per_image"] * batch / devices
        rate = RATE_OF[level] if RATE_OF[level] in rates else None
        found.append(
            Speed(
                scenario=row["scenario"],
                img_s=row["throughput_per_s"],
                step_ms=row["step_median_ms"],
                tflops=tflops,
                rate=rate,
                matrix_share=tflops / rates[rate] if rate else None,
                gb_s=moved / step_s / 1e9,
                copy_share=moved / step_s / 1e9 / probe["rates"]["copy_gb_s"],
            )
        )
    return found


# The page


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a page is made of, as JSON values.

    ``about``: circumstances, in the order in which they are shown. ``rehearsal``: made on the CPU, no evidence of any
    GPU. ``obstacle``: in one line with its remedy, why no GPU could be used. ``took``: seconds by item, as planned and
    as they were. ``run``: of the ten scenarios. ``more_runs``: others, by their titles. ``probe``: of ``gpu_probe.py
    rates``.
    """

    about: Mapping[str, str]
    checks: Sequence[Check]
    took: Mapping[str, tuple[float, float]]
    rehearsal: bool = False
    obstacle: str | None = None
    run: Mapping[str, Any] | None = None
    more_runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None
    replicas: int = 1

    @property
    def speeds(self) -> "Sequence[Speed]":
        """Of the ten scenarios, where the device's rates are known; without meaning on a CPU."""
        if self.run is None or self.probe is None or self.rehearsal:
            return ()
        return speeds(self.run, self.probe, replicas=self.replicas)

    @property
    def exit_code(self) -> int:
        """By the gravest verdict; 12 where there was no GPU to judge and nothing failed."""
        code = exit_code(self.checks)
        return code or (12 if self.obstacle else 0)


def document(evidence: Evidence) -> dict[str, Any]:
    """For programs. Raises ``ValueError`` where a figure is not finite."""
    run = evidence.run
    made = {
        "schema": 2,
        "exit_code": evidence.exit_code,
        "rehearsal": evidence.rehearsal,
        "obstacle": evidence.obstacle,
        "about": dict(evidence.about),
        "checks": [asdict(check) for check in evidence.checks],
        "planned_and_took_s": dict(evidence.took),
        "run": run["run"] if run else None,
        "summary": run["summary"] if run else None,
        "more_runs": {
            title: {"run": one["run"], "summary": one["summary"]} for title, one in evidence.more_runs.items()
        },
        "speeds": [asdict(speed) for speed in evidence.speeds],
        "probe": evidence.probe,
    }
    json.dumps(made, allow_nan=False)
    return made


REHEARSAL = (
    "**Rehearsal on the CPU: no evidence of any GPU.** The machinery of the acceptance ran with tiny sizes, to see "
    "that it works; its figures say nothing about bench on a GPU and nothing about this CPU."
)
HOW_COUNTED = """\
- TFLOP/s: {flops:.1f} GFLOP an image (two for each multiply-add of the convolutions and linear layers of one step,
  forward and backward, counted by `torch.utils.flop_counter.FlopCounterMode` on this model) x the global batch / the
  step time{devices}. Its share is of the rate of {size} x {size} x {size} matrix products measured in the same run:
  fp32 against TF32 (as torch computes convolutions), O1 to O3 against fp16.
- GB/s: the bytes that the operators of one step read and write, counted one by one as if none were fused and no cache
  helped, / the step time: an estimate and no hardware counter (caches make it less, layout changes inside cuDNN make it
  more). Its share is of a copy of {copied:.1f} GiB measured in the same run, reads and writes counted.
- What DDP adds to a step (copies into buckets, the all-reduce) is in its time and in neither count."""

ONE_DEVICE = (
    "One device says nothing about communication: with a world size of one, torch DDP, apex DDP and DataParallel have "
    "nobody to talk to. What differs between them here is what they cost a process that is alone."
)


def page(evidence: Evidence) -> str:
    """The Markdown page."""
    parts = [f"# bench, accepted on {_cell(evidence.about.get('GPU', 'no GPU'))}"]
    if evidence.rehearsal:
        parts = ["# bench, acceptance rehearsed on the CPU", REHEARSAL]
    elif evidence.obstacle:
        parts = ["# bench: no GPU could be used", f"**{_cell(evidence.obstacle)}**"]
    parts += [
        verdict_line(evidence),
        "## How it was made",
        _table(("", ""), [(name, value) for name, value in evidence.about.items()]),
        "## Checks",
        _checks([check for check in evidence.checks if check.part not in TESTS]),
    ]
    if evidence.run is not None:
        parts += ["## The scenarios", _scenarios(evidence.run, evidence.speeds)]
        if evidence.speeds and evidence.probe:
            parts.append(_how_counted(evidence))
        if evidence.replicas == 1 and not evidence.rehearsal:
            parts.append(ONE_DEVICE)
    for title, one in evidence.more_runs.items():
        parts += [f"## {_cell(title)}", _scenarios(one, ())]
    if evidence.probe is not None:
        parts += ["## What the device can do", _rates(evidence.probe)]
    tests = [check for check in evidence.checks if check.part in TESTS]
    if tests:
        parts += ["## `pytest -m gpu`", _checks(tests)]
    parts += ["## What could not be checked, and why", _undone(evidence.checks)]
    parts.append("## Time")
    rows = [(name, f"{planned_s:.0f}", f"{took_s:.0f}") for name, (planned_s, took_s) in evidence.took.items()]
    parts.append(_table(("item", "planned s", "took s"), rows))
    return "\n\n".join(parts) + "\n"


def verdict_line(evidence: Evidence) -> str:
    """How many checks came out how."""
    counts = dict.fromkeys((PASSED, FAILED, NOT_SHOWN, NOT_DONE, NOT_HERE, FIGURE), 0)
    for check in evidence.checks:
        counts[check.verdict] += 1
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    return f"{len(evidence.checks)} checks: {told or 'none'}. Exit code {evidence.exit_code}."


def _checks(checks: Sequence[Check]) -> str:
    rows = [(one.what, one.figure, one.bound, one.verdict, one.why) for one in checks]
    return _table(("check", "figure", "bound", "verdict", "why"), rows)


def _undone(checks: Sequence[Check]) -> str:
    """Those without an answer, by the reason: many that share one are counted."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in checks:
        if one.verdict in (NOT_DONE, NOT_HERE, NOT_SHOWN):
            reasons.setdefault((one.verdict, one.why), []).append(one.what)
    lines = []
    for (verdict, why), names in reasons.items():
        told = ", ".join(names) if len(names) <= MANY else f"{', '.join(names[:MANY])} and {len(names) - MANY} more"
        lines.append(f"- {_cell(told)} ({verdict}): {_cell(why or 'see the checks')}")
    return "\n".join(lines) or "Nothing."


def _scenarios(run: Mapping[str, Any], found: Sequence[Speed]) -> str:
    by_name = {speed.scenario: speed for speed in found}
    rows = []
    for row in run["summary"]:
        speed = by_name.get(row["scenario"])
        figures = [_number(row[name], form) for name, form in (("throughput_per_s", ".1f"), ("step_median_ms", ".2f"))]
        figures.append(_number(row["relative_to_ddp"], ".2f"))
        if speed is None:
            figures += ["-"] * 4 * bool(found)
        else:
            share = "-" if speed.matrix_share is None else f"{100 * speed.matrix_share:.0f} % of {speed.rate}"
            figures += [f"{speed.tflops:.2f}", share, f"{speed.gb_s:.0f}", f"{100 * speed.copy_share:.0f} %"]
        figures += [_number(row["peak_pid_mib"], ",.0f"), _number(row["peak_total_mib"], ",.0f")]
        told = (row["memory_source"], row["parity"], row["status"], row["what_ran"])
        rows.append((row["scenario"], *figures, *(str(value or "-") for value in told)))
    achieved = ("TFLOP/s", "of matrix rate", "GB/s", "of copy rate") if found else ()
    heads = ("scenario", "img/s", "step ms", "vs ddp", *achieved)
    return _table((*heads, "MiB/PID", "MiB all", "source", "numerics", "status", "what ran"), rows)


def _how_counted(evidence: Evidence) -> str:
    assert evidence.probe is not None
    rates = evidence.probe["rates"]
    return HOW_COUNTED.format(
        flops=evidence.probe["counts"]["O0"]["flops_per_image"] / 1e9,
        size=rates["matrix_size"],
        copied=rates["copied_bytes"] / 2**30,
        devices="" if evidence.replicas == 1 else f" / {evidence.replicas} devices (1 for `single`)",
    )


def _rates(probe: Mapping[str, Any]) -> str:
    rates = probe["rates"]
    rows = [(f"matrix products, {name}", f"{value:.2f} TFLOP/s") for name, value in rates["matrix_tflops"].items()]
    rows.append(("copy within the memory, reads and writes", f"{rates['copy_gb_s']:.0f} GB/s"))
    return _table(("", "median of five windows"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)])


def _cell(text: str) -> str:
    """On one line, with nothing that Markdown takes for a border, a tag or emphasis."""
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", " ".join(str(text).split()))


def _number(value: Any, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def reference_name(gpu: str, utc_date: str) -> str:
    """The folder under ``results/reference/`` for a GPU and a date (``2026-01-31``)."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return f"{slug}-{utc_date.replace('-', '')}"
