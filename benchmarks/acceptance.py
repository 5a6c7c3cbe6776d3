"""What an acceptance of bench on a GPU consists of, as values: checks and verdicts, the page.

Pure: ``gpu_acceptance.py`` does the work and hands over what came of it, so that all of this is tested without a GPU.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
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

TESTS = "tests"
"""The item that is tests, which the page shows by themselves."""


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

    def check(what: str, wrong: Sequence[str], figure: str = "", bound: str = "", lenient: bool = False) -> Check:
        verdict = PASSED if not wrong else NOT_SHOWN if lenient and not on_gpu else FAILED
        return Check(part=part, what=what, verdict=verdict, figure=figure, bound=bound, why="; ".join(wrong))

    ok = [launch for launch in document["launches"] if launch["status"] == "ok"]
    failed = [f"{row['scenario']}: {row['status']}, {row['reason']}" for row in rows if row["status"] != "ok"]
    apart = 100 * max((launch["checks"]["conservation_error"] for launch in ok), default=0.0)
    unknown = [f"{row['scenario']}: {row['memory_source']}" for row in rows if row["peak_total_mib"] is None]
    untrue = [
        f"{one['scenario']}: {one['verdict']}, {one['reason']}"
        for one in document["parity"]
        if one["verdict"] in ("diverged", "not finite") and not one["scenario"].endswith("_o3")
    ]
    unheld = [
        f"{one['scenario']}: {one['reason']}"
        for one in document["parity"]
        if one["verdict"] is None and not one["scenario"].endswith("_o3")
    ]
    reference = next(iter(document["experiments"].get("numerics", {}).get("references", ())), None)
    if reference is not None and reference["status"] != "ok":
        untrue.append(f"the reference: {reference['reason']}")
    sealed = check(
        "the run folder is sealed and sound",
        unsound,
        f"steps and wall time at most {apart:.3f} % apart",
        "bench check finds nothing",
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
    checks = [every, sealed, check("the memory of every scenario is known", unknown if ok else ["nothing ran"])]
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
        checks.append(numerics)
    return checks


# The page


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a page is made of, as JSON values.

    ``about``: circumstances, in the order in which they are shown. ``rehearsal``: made on the CPU, no evidence of any
    GPU. ``obstacle``: in one line with its remedy, why no GPU could be used. ``took``: seconds by item. ``run``: of the
    ten scenarios. ``more_runs``: others, by their titles.
    """

    about: Mapping[str, str]
    checks: Sequence[Check]
    took: Mapping[str, float]
    rehearsal: bool = False
    obstacle: str | None = None
    run: Mapping[str, Any] | None = None
    more_runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """By the gravest verdict; 12 where there was no GPU to judge and nothing failed."""
        verdicts = {check.verdict for check in self.checks}
        return next((code for verdict, code in EXIT_CODES if verdict in verdicts), 12 if self.obstacle else 0)


def document(evidence: Evidence) -> dict[str, Any]:
    """For programs."""
    run = evidence.run
    return {
        "schema": 3,
        "exit_code": evidence.exit_code,
        "rehearsal": evidence.rehearsal,
        "obstacle": evidence.obstacle,
        "about": dict(evidence.about),
        "checks": [asdict(check) for check in evidence.checks],
        "took_s": dict(evidence.took),
        "run": run["run"] if run else None,
        "summary": run["summary"] if run else None,
        "more_runs": {
            title: {"run": one["run"], "summary": one["summary"]} for title, one in evidence.more_runs.items()
        },
    }


REHEARSAL = (
    "**Rehearsal on the CPU: no evidence of any GPU.** The machinery of the acceptance ran with tiny sizes, to see "
    "that it works; its figures say nothing about bench on a GPU and nothing about this CPU."
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
        _checks([check for check in evidence.checks if check.part != TESTS]),
    ]
    if evidence.run is not None:
        parts += ["## The scenarios", _scenarios(evidence.run)]
    for title, one in evidence.more_runs.items():
        parts += [f"## {_cell(title)}", _scenarios(one)]
    tests = [check for check in evidence.checks if check.part == TESTS]
    if tests:
        parts += ["## `pytest -m gpu`", _checks(tests)]
    parts += ["## What could not be checked, and why", _undone(evidence.checks)]
    parts.append("## Time")
    parts.append(_table(("item", "took s"), [(name, f"{took_s:.0f}") for name, took_s in evidence.took.items()]))
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
    """Those without an answer, by the reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in checks:
        if one.verdict in (NOT_DONE, NOT_HERE, NOT_SHOWN):
            reasons.setdefault((one.verdict, one.why), []).append(one.what)
    lines = [
        f"- {_cell(', '.join(names))} ({verdict}): {_cell(why or 'see the checks')}"
        for (verdict, why), names in reasons.items()
    ]
    return "\n".join(lines) or "Nothing."


def _scenarios(run: Mapping[str, Any]) -> str:
    rows = []
    for row in run["summary"]:
        shown = [_number(row[name], form) for name, form in (("throughput_per_s", ".1f"), ("step_median_ms", ".2f"))]
        shown += [_number(row["relative_to_ddp"], ".2f")]
        shown += [_number(row[name], ",.0f") for name in ("peak_pid_mib", "peak_total_mib")]
        texts = (row["memory_source"], row["parity"], row["status"], row["what_ran"])
        rows.append((row["scenario"], *shown, *(str(value or "-") for value in texts)))
    heads = ("scenario", "img/s", "step ms", "vs ddp", "MiB/PID", "MiB all", "source", "numerics", "status", "what ran")
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)])


def _cell(text: str) -> str:
    """On one line, with nothing that Markdown takes for a border, a tag or emphasis."""
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", " ".join(str(text).split()))


def _number(value: Any, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)
