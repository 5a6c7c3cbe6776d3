"""The answer of the gate: on a terminal, for programs, as JUnit XML, and as Markdown for the page of a job."""

import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from bench.analyse.between_runs import BETWEEN_RUNS, TITLES, UNITS
from bench.analyse.comparable import OTHERWISE
from bench.analyse.history import gate
from bench.analyse.history.gate import Judged, Outcome
from bench.console import count
from bench.core.text import by_key, listed, plain, printable
from bench.report import markdown
from bench.report.tables import UNKNOWN, Cell, Table, as_change, digits, inert, numeric, tabulate, text

TONES = {
    **dict.fromkeys((gate.REGRESSED, *gate.ABSENT), "bad"),
    **dict.fromkeys(gate.UNDECIDED, "doubt"),
    **dict.fromkeys((gate.OK, gate.BETTER), "good"),
}
JUNIT = {
    gate.REGRESSED: "failure",
    **dict.fromkeys(gate.ABSENT, "error"),
    **dict.fromkeys((*gate.UNDECIDED, gate.NOT_RUN), "skipped"),
}
"""The element of a test case by verdict; one that passes has none."""
FEW = 5
"""More values than these are counted, not named."""
MOST_A_NIGHT = 50  # launches of each scenario: more are not advised
LONG = 12
"""A terminal shows this many rows of a table and the lines above it."""


def sentence(outcome: Outcome) -> str:
    """The outcome in one line, gravest first."""
    if outcome.accepted is not None:
        objections = _named(outcome, (gate.REGRESSED, *gate.ABSENT)) or "passes"
        return f"Accepted by a person ({plain(outcome.accepted)}): {objections}; against {outcome.against}"
    if outcome.verdict == gate.REGRESSED:
        return f"Regressed: {_named(outcome, (gate.REGRESSED,))}; against {outcome.against}"
    if outcome.obstacles:
        return f"Not comparable: nothing in {outcome.against} is of the same work: {'; '.join(outcome.obstacles)}"
    if outcome.verdict == gate.MISSING:
        return f"Missing or not comparable: {_named(outcome, (*gate.ABSENT, gate.NOT_RUN))}; against {outcome.against}"
    if outcome.verdict == gate.INCONCLUSIVE:
        if not outcome.base and all(row.verdict in (gate.NEW, gate.NOT_RUN) for row in outcome.rows):
            what = "there is nothing to hold this run against"
            return f"Inconclusive: {what} in {outcome.against}: it is the first of its base"
        return f"Inconclusive: {_named(outcome, gate.UNDECIDED)}; against {outcome.against}"
    held = sum(row.verdict in (gate.OK, gate.BETTER) for row in outcome.rows)
    scenarios = len({row.scenario for row in outcome.rows if row.verdict != gate.NOT_RUN})
    return f"No regression: {count(held, 'value')} of {count(scenarios, 'scenario')} against {outcome.against}"


def remedies(outcome: Outcome) -> list[str]:
    if outcome.accepted is not None:
        return []
    verdicts = {row.verdict for row in outcome.rows}
    if outcome.obstacles and outcome.folder is None:
        return ["measure both with the same workload on the same number and model of devices"]
    if outcome.obstacles:
        return ["keep this run there and the next one is held against it; or give the history of the same work"]
    lines = []
    run = outcome.called or outcome.run
    without = [row for row in outcome.rows if row.verdict == gate.MISSING and row.status is not None]
    if any(row.status not in ("ok", "unsupported") for row in without):
        again = f": python -m bench {outcome.verb} --resume {run}" if outcome.verb else " in a new run"
        lines.append(f"repeat what failed{again}")
    cannot = [row for row in without if row.status == "unsupported"]
    if cannot:
        lines.append(
            f"install what {_who(cannot, outcome)} needs (python -m bench list says what is missing here), "
            "or gate the others with --scenario"
        )
    invalid = [row for row in without if row.status == "ok"]
    if invalid:
        lines.append(
            f"measure {_who(invalid, outcome)} again in a new run ('--resume' keeps what is invalid); "
            f"what to fix before: python -m bench report {run}"
        )
    if gate.TOO_FEW in verdicts:
        lines.append("measure with --launches 5, or --profile nightly")
    if verdicts & {gate.TOO_NOISY, gate.UNCERTAIN}:
        wanted = max((row.wanted for row in outcome.rows if row.wanted is not None), default=None)
        more = "" if wanted is None else f", and measure every night with --launches {wanted}"
        if wanted is not None and wanted > MOST_A_NIGHT:
            more = ", since more launches cannot make up for so much noise; what may cause it: python -m bench doctor"
        lines.append(f"stop other jobs{more}")
    if outcome.folder is None and any(row.verdict == gate.NEW and OTHERWISE in (row.why or "") for row in outcome.rows):
        lines.append("give a base that was measured in the same way, such as a new one from the same place")
    about = () if outcome.folder is None else _about_the_base(outcome, shlex.quote(outcome.folder), verdicts)
    return [*lines, *about]


def _about_the_base(outcome: Outcome, folder: str, verdicts: set[str]) -> Iterator[str]:
    accept = f"python -m bench accept {shlex.quote(outcome.run)} --reason 'WHY' --history {folder}"
    anew = f"let the base start anew with it{'' if outcome.kept else f', once it is in {folder}'}: {accept}"
    otherwise = any(row.why in (gate.NOT_THERE, gate.NO_VALUE, gate.NO_VERDICT) for row in outcome.rows)
    if verdicts & {gate.REGRESSED, gate.NOT_COMPARABLE} or otherwise:
        yield f"if this is intended, {anew}"
    if gate.REGRESSED in verdicts:
        yield f"when it began: python -m bench history {folder}"
    elif gate.BETTER in verdicts:
        better = _who([row for row in outcome.rows if row.verdict == gate.BETTER], outcome)
        yield f"better: {better}; the base starts anew if the next night is better too; at once: {accept}"
    if gate.NEW in verdicts:
        nights = count(outcome.rule.nights, "night")
        yield f"keep this run in {folder}: the next one is held against it, and from {nights} on by prediction bounds"


def as_text(outcome: Outcome, width: int | None = None) -> str:
    """For a terminal of this width, if any: the outcome (again below a long table), what to do, the table, warnings."""
    table = table_of(outcome.rows, outcome)
    lines = [sentence(outcome), *(f"  - {line}" for line in remedies(outcome))]
    if outcome.rows:
        lines += ["", table.as_text(width, repeats=False)]
    lines += _reasons(outcome)
    lines += [f"warning: {plain(text)}" for text in outcome.warnings]
    lines += [f"note: {text}" for text in table.notes]
    if outcome.folder is None and outcome.rows:
        lines.append(f"note: the bounds are over launches within each run; {BETWEEN_RUNS}")
    if width is not None and len(outcome.rows) > LONG:
        lines += ["", sentence(outcome)]
    return "\n".join(lines)


def as_markdown(outcome: Outcome) -> str:
    """For the summary page of a job: what is wrong first, all rows below."""
    wrong = [row for row in outcome.rows if row.verdict not in (gate.OK, gate.BETTER, gate.NOT_RUN)]
    everything = table_of(outcome.rows, outcome)
    parts = [
        f"## Gate: {outcome.verdict}",
        inert(sentence(outcome)),
        markdown.bullets(remedies(outcome)),
        table_of(wrong, outcome).as_markdown().partition("\n\n")[0] if wrong else "",
        markdown.bullets(_reasons(outcome)),
        markdown.bullets(f"Warning: {text}" for text in outcome.warnings),
        f"<details><summary>All {len(outcome.rows)} values</summary>\n\n{everything.as_markdown()}\n\n</details>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_junit(outcome: Outcome) -> str:
    """JUnit XML: a test case for each scenario and metric, of which none fails in a run that a person accepted."""
    suite = ElementTree.Element("testsuite", name="bench gate")
    properties = ElementTree.SubElement(suite, "properties")
    values = {name: getattr(outcome, name) for name in ("run", "verdict", "against")}
    for name, value in {**values, "base": " ".join(outcome.base)}.items():
        ElementTree.SubElement(properties, "property", name=name, value=printable(value))
    tags = []
    for row in outcome.rows:
        names = {"classname": printable(f"bench.gate.{row.scenario}"), "name": TITLES[row.metric]}
        case = ElementTree.SubElement(suite, "testcase", names)
        text = printable(_about(row))
        tag = JUNIT.get(row.verdict)
        if tag is not None and outcome.verdict != gate.ACCEPTED:
            tags.append(tag)
            element = ElementTree.SubElement(case, tag, message=text)
            if tag != "skipped":
                element.set("type", row.verdict)
                element.text = text  # some readers of JUnit show the one, some the other
        ElementTree.SubElement(case, "system-out").text = f"{row.verdict}: {text}"
    suite.set("tests", str(len(outcome.rows)))
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(tags.count(tag)))
    ElementTree.indent(suite, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def for_programs(outcome: Outcome) -> dict[str, object]:
    computed = ("verdict", "exit_code", "no_base", "base")
    said = {"sentence": sentence(outcome), "remedies": remedies(outcome)}
    return {**asdict(outcome), **{name: getattr(outcome, name) for name in computed}, **said}


def table_of(rows: Sequence[Judged], outcome: Outcome) -> Table:
    columns = (
        text("scenario", lambda row: row.scenario),
        text("metric", lambda row: TITLES[row.metric] + (f" ({UNITS[row.metric]})" if UNITS[row.metric] else "")),
        numeric("tonight", lambda row: digits(row.tonight)),
        numeric("base", lambda row: digits(row.base)),
        numeric("change", lambda row: as_change(row.ratio)),
        numeric("bound", lambda row: as_change(row.bound)),
        numeric("nights", lambda row: str(len(row.nights)) if row.nights else UNKNOWN),
        text("verdict", lambda row: Cell(text=row.verdict, tone=TONES.get(row.verdict, ""))),
    )
    rule = outcome.rule
    smallest = ", ".join(f"{TITLES[name]} {100 * value:g} %" for name, value in rule.thresholds.items())
    note = (
        "change: tonight against the base; bound: the change beyond which it is regressed, from the "
        f"{100 * rule.level:g} % prediction bound over {rule.nights} nights (for all scenarios of a metric "
        f"together) and at least {smallest}; with fewer nights the lower confidence bound of the change must be "
        f"beyond {100 * rule.before:g} %"
    )
    return tabulate(columns, rows, [note] if any(row.ratio is not None for row in rows) else [])


def _reasons(outcome: Outcome) -> list[str]:
    """Why values have no better verdict, a line for each reason."""
    rows = [row for row in outcome.rows if not (outcome.obstacles and row.verdict in gate.ABSENT)]
    alike = by_key(((row.verdict, plain(row.why)), row) for row in rows if row.why is not None)
    return [f"{verdict}: {_who(of, outcome)}: {why}" for (verdict, why), of in alike.items()]


def _named(outcome: Outcome, verdicts: Sequence[str]) -> str:
    """The values with these verdicts: those with a change first, the worst of them before the others."""
    rows = [row for row in outcome.rows if row.verdict in verdicts]
    one_by_one = [row for row in rows if row.ratio is not None or (row.metric == gate.PARITY and row.base is not None)]
    texts = [_shortly(row) for row in sorted(one_by_one, key=lambda row: -(row.ratio or 0.0))]
    others = sorted((row for row in rows if row not in one_by_one), key=lambda row: verdicts.index(row.verdict))
    called = {(gate.MISSING, "ok"): "measured, and invalid"}
    rest = by_key((called.get((row.verdict, row.status or ""), row.verdict), row) for row in others)
    return listed([*texts, *(f"{_who(rows, outcome)} ({what})" for what, rows in rest.items())], FEW)


def _who(rows: Sequence[Judged], outcome: Outcome) -> str:
    """``ddp, dp peak memory``: scenarios all of whose metrics are meant, and metrics of others."""
    texts = []
    for name in dict.fromkeys(row.scenario for row in rows):
        metrics = [row.metric for row in rows if row.scenario == name]
        whole = len(metrics) == sum(row.scenario == name for row in outcome.rows)
        texts += [name] if whole else [f"{name} {TITLES[metric]}" for metric in metrics]
    return listed(texts, FEW)


def _shortly(row: Judged) -> str:
    who = f"{row.scenario} {TITLES[row.metric]}"
    if row.ratio is None:
        return f"{who} {row.tonight or row.verdict}, was {row.base}"
    if row.verdict == gate.REGRESSED and row.why is not None:  # within its bound
        return f"{who} {row.why}"
    return f"{who} {as_change(row.ratio)} (bound {as_change(row.bound)})"


def _about(row: Judged) -> str:
    parts = [f"{digits(row.tonight)} against {digits(row.base)} {UNITS[row.metric]}".rstrip()]
    if row.ratio is not None:
        parts.append(f"{as_change(row.ratio)}, bound {as_change(row.bound)}")
    if row.nights:
        parts.append(f"base of {count(len(row.nights), 'night')}")
    if row.why:
        parts.append(plain(row.why))
    return "; ".join(parts)
