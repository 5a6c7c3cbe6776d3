"""What an acceptance of bench on a GPU consists of, as values: checks and verdicts, the page.

Pure: ``gpu_acceptance.py`` does the work and hands over what came of it, so that all of this is tested without a GPU.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

VERDICTS = ("passed", "FAILED", "not shown", "not done", "not applicable here", "value")
PASSED, FAILED, NOT_SHOWN, NOT_DONE, NOT_HERE, VALUE = VERDICTS
"""Verdicts. Not shown: the noise was larger than what is looked for. Not done: it could have been, and was not. Not
applicable here: this machine has not what it needs (a second GPU, apex). Value: stated, and held against no bound."""

EXIT_CODES = ((FAILED, 1), (NOT_DONE, 12), (NOT_SHOWN, 11))
"""Of the gravest verdict; 0 where there is none of them."""

TESTS = "tests"
"""The item that is tests, which the page shows by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the page. ``part``: the item that it is of. ``value``: what was found. ``bound``: what it is held
    against. ``why``: if not passed."""

    part: str
    what: str
    verdict: str
    value: str = ""
    bound: str = ""
    why: str = ""


# From what the items left behind to checks


def of_comparison(part: str, what: str, document: Mapping[str, Any]) -> list[Check]:
    """The checks of a benchmark's ``--json`` (see ``paired.Answer``): its ratio against its bound, and what must hold
    besides. A bound that noise alone has missed is not shown; a ratio that is surely beyond it has failed.
    """
    (one,) = document["comparisons"]
    if one["ratio"] is None:
        checks = [Check(part=part, what=what, verdict=NOT_SHOWN, why="fewer than two pairs were measured")]
    else:
        (low, high), margin = one["interval_95"], one["margin"]
        least, most = (-math.inf, one["allowed"]) if margin is None else (1 - margin, 1 + margin)
        bound = f"upper 95 % bound ≤ {most:g}" if margin is None else f"95 % interval within 1 ± {margin:g}"
        each = (f"{one[kind]} {1e3 * statistics.median(one[f'{kind}_s']):.2f} ms" for kind in "ab")
        value = f"{one['ratio']:.4f} ({low:.4f} to {high:.4f}); {', '.join(each)}"
        verdict, why = NOT_SHOWN, "the noise is larger than the bound"
        if high < least or low > most:
            verdict, why = FAILED, "surely beyond the bound"
        if one["passed"]:
            verdict, why = PASSED, ""
        checks = [Check(part=part, what=what, verdict=verdict, value=value, bound=bound, why=why)]
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
        verdict, why, value = PASSED, "", f"{float(case.get('time') or 0):.1f} s"
        if broken:
            verdict, why = FAILED, " ".join((broken[0].get("message") or broken[0].text or "").split())[:300]
        elif skipped is not None:
            why, value = " ".join((skipped.get("message") or "").split()), ""
            verdict = NOT_DONE if why.startswith("not reached") else NOT_HERE
        checks.append(Check(part=part, what=what, verdict=verdict, value=value, why=why))
    return checks


def of_run(part: str, document: Mapping[str, Any], unsound: Sequence[str], *, on_gpu: bool) -> list[Check]:
    """The checks of a ``bench run --json``. ``unsound``: what ``bench check`` says of the folder.

    What is not held against the reference, as where the loss scaler skipped the first step, is not shown.
    Tiny steps on a CPU that others use need not add up as well as they must on a GPU, and tiny batches make training
    chaotic: not shown.
    """
    complete, parity = document["complete"], document["parity"]
    rows = [row for row in document["summary"] if complete or row["status"] != "killed"]  # as it was ended
    more = part.startswith("more")  # beside the ten, where a strategy may ask for what is not here
    absent = [row for row in rows if more and row["status"] == "unsupported"]
    rows = [row for row in rows if row not in absent]
    ok = [launch for launch in document["launches"] if launch["status"] == "ok"]
    checks = []

    def told(rows: Sequence[Mapping[str, Any]], *names: str) -> list[str]:
        return [f"{row['scenario']}: {', '.join(str(row[name]) for name in names)}" for row in rows]

    def check(what: str, wrong: Sequence[str], *, otherwise: str = FAILED, value: str = "", bound: str = "") -> None:
        verdict = otherwise if wrong else PASSED
        checks.append(Check(part=part, what=what, verdict=verdict, value=value, bound=bound, why="; ".join(wrong)))

    failed = told([row for row in rows if row["status"] != "ok"], "status", "reason")
    ran = f"{len(rows) - len(failed)} of {len(document['summary'])}"
    ended = [] if complete else ["the run was ended"]
    check("every scenario runs", failed or ended, otherwise=FAILED if failed else NOT_DONE, value=ran)
    apart = 100 * max((launch["checks"]["conservation_error"] for launch in ok), default=0.0)
    noisy = not on_gpu and all("do not add up" in text for text in unsound)
    check(
        "the run folder is sealed and sound",
        ended or unsound,
        otherwise=NOT_DONE if ended else NOT_SHOWN if noisy else FAILED,
        value=f"steps and wall time at most {apart:.3f} % apart",
        bound="bench check finds nothing",
    )
    unknown = told([row for row in rows if row["peak_total_mib"] is None], "memory_source")
    check("the memory of every scenario is known", unknown if ok else ["nothing ran"])
    switches = [(launch["scenario"], (launch["effective"] or {}).get("switches", {})) for launch in ok]
    idle = [f"{scenario}: {instead}" for scenario, of in switches for instead in of.values() if instead is not None]
    if idle:
        check("switches without effect here", idle, otherwise=VALUE)
    if absent:
        check("scenarios that cannot run here", told(absent, "reason"), otherwise=NOT_HERE)
    if not document["request"].get("parity", True):
        return checks
    held = [one for one in parity if not one["scenario"].endswith("_o3")]
    untrue = told([one for one in held if one["verdict"] in ("diverged", "not finite")], "verdict", "reason")
    unheld = told([one for one in held if one["verdict"] is None], "reason")
    references = document["experiments"].get("numerics", {}).get("references", ())
    untrue += [f"the reference: {one['reason']}" for one in references if one["status"] != "ok"]
    unreached = [] if references else ["the reference was not reached"]
    otherwise = NOT_DONE if unreached else FAILED if not ok or (untrue and on_gpu) else NOT_SHOWN
    wrong = unreached or ([] if ok else ["nothing ran"]) or untrue or unheld
    check("fp32, O1 and O2 train the model of the fp32 reference", wrong, otherwise=otherwise)
    return checks


# The page


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a page is made of, as JSON values.

    ``about``: circumstances, in the order in which they are shown. ``rehearsal``: made on the CPU, no evidence of any
    GPU. ``obstacle``: in one line with its remedy, why no GPU could be used. ``took_s``: by item. ``runs``: by title
    the rows of a run's scenarios.
    """

    about: Mapping[str, str]
    checks: Sequence[Check]
    took_s: Mapping[str, float]
    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    rehearsal: bool = False
    obstacle: str | None = None

    @property
    def exit_code(self) -> int:
        """By the gravest verdict; 12 where there was no GPU to judge and nothing failed."""
        verdicts = {check.verdict for check in self.checks}
        return next((code for verdict, code in EXIT_CODES if verdict in verdicts), 12 if self.obstacle else 0)


REHEARSAL = (
    "**Rehearsal on the CPU: no evidence of any GPU.** The machinery of the acceptance ran with tiny sizes, to see "
    "that it works; its values say nothing about bench on a GPU and nothing about this CPU."
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
    for title, rows in evidence.runs.items():
        parts += [f"## {_cell(title)}", _scenarios(rows)]
    tests = [check for check in evidence.checks if check.part == TESTS]
    if tests:
        parts += ["## `pytest -m gpu`", _checks(tests)]
    took = [(name, f"{took_s:.0f}") for name, took_s in evidence.took_s.items()]
    parts += ["## What could not be checked, and why", _undone(evidence.checks), "## Time"]
    parts.append(_table(("item", "took s"), took))
    return "\n\n".join(parts) + "\n"


def verdict_line(evidence: Evidence) -> str:
    """How many checks came out how."""
    counts = Counter(check.verdict for check in evidence.checks)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    return f"{len(evidence.checks)} checks: {told or 'none'}. Exit code {evidence.exit_code}."


def _checks(checks: Sequence[Check]) -> str:
    rows = [(one.what, one.value, one.bound, one.verdict, one.why) for one in checks]
    return _table(("check", "value", "bound", "verdict", "why"), rows)


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


VALUES = ("throughput_per_s", "step_median_ms", "relative_to_ddp", "peak_pid_mib", "peak_total_mib")


def _scenarios(of: Sequence[Mapping[str, Any]]) -> str:
    heads = ("scenario", "img/s", "step ms", "vs ddp", "MiB/PID", "MiB all", "source", "numerics", "status", "what ran")
    texts = ("memory_source", "parity", "status", "what_ran")
    rows = [
        (row["scenario"], *(_number(row[name]) for name in VALUES), *(row[name] or "-" for name in texts)) for row in of
    ]
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)])


def _cell(text: str) -> str:
    """On one line, with nothing that Markdown takes for a border, a tag or emphasis."""
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", " ".join(str(text).split()))


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, ",.2f" if abs(value) < 100 else ",.0f")
