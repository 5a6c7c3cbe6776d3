"""The recommendation of a run in words, with the results that it rests on."""

from dataclasses import dataclass

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.bars import all_mib, plus_minus, with_bar
from bench.analyse.comparison import LAUNCHES_WANTED, SLOWER, TOO_FEW, still_wanted
from bench.analyse.each import each_alone
from bench.analyse.recommendation import LEAN_ENOUGH, recommendations
from bench.analyse.validity import FEW, grouped
from bench.console import count
from bench.core.text import by_key, digits, ends_text, listed
from bench.runs.document import Attached, RunDocument, what_is_trained
from bench.runs.experiments import Tuning
from bench.runs.frames import TableRow
from bench.runs.reader import Run
from bench.words.bisected import in_words

Advice = tuple[str, str]  # a heading, and the advice


def answer(document: RunDocument, table: pd.DataFrame) -> str:
    """Which scenario is fastest, if this run can tell; a second sentence if one replica won. Of attached commands what
    a step takes."""
    if bisected := in_words(document):
        return bisected[0]
    if document.of(Attached) is None:
        return " ".join(f"{heading}: {text}" for heading, text in headlines(document, table))
    rows = table.to_dict("records")
    titles = [row["scenario"] for row in rows]
    if len(rows) == 1:
        titles = [what_is_trained(document.workload.title, document.workload.global_batch)]
    return " ".join(_of_command(title, row) for title, row in zip(titles, rows, strict=True))


def _of_command(what: str, row: TableRow) -> str:
    if _unknown(row["step_median_ms"]):
        return f"{what}: no valid result."
    time = f"{digits(row['step_median_ms'], 4)} {plus_minus(row, 'step_median_ms')}".rstrip()
    speed = "" if _unknown(row["throughput_per_s"]) else f", {row['throughput_per_s']:,.1f} {row['unit']} a second"
    peak = "" if _unknown(row["peak_total_mib"]) else f" at a peak of {row['peak_total_mib']:,.0f} {all_mib(row)}"
    return f"{what} ({row['what_ran']}): a step takes {time} ms{speed}{peak}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A whole training, for which a run is to say how long it takes. ``dataset_size``: in the unit of the workload."""

    epochs: int
    dataset_size: int


def training_s(row: TableRow | None, training: Training, end: str = "") -> float | None:
    """Seconds of a whole training with the scenario of a row of an overview, or None. ``end``: ``low_`` or ``high_`` of
    the speed."""
    per_s = None if row is None else row[f"throughput_{end}per_s"]
    return None if _unknown(per_s) else training.epochs * training.dataset_size / float(per_s)  # type: ignore[arg-type]


def time_to_train(document: RunDocument, table: pd.DataFrame, training: Training) -> str:
    """How long a whole training takes with the recommended scenario, and with the one that speeds are relative to."""
    what = f"{count(training.epochs, 'epoch')} of {training.dataset_size:,} {document.workload.unit}"
    take = "takes" if training.epochs == 1 else "take"
    rows = {row["scenario"]: row for row in table.to_dict("records")}
    advised = recommendations(document, table)
    best = rows.get(advised.fastest or "", next(iter(rows.values())) if document.of(Attached) else None)
    if best is None or (took := training_s(best, training)) is None:
        return f"How long {what} {take} is unknown: no valid result has a speed."
    ends = [training_s(best, training, end) for end in ("high_", "low_")]
    interval = f" ({_long(ends[0])} to {_long(ends[1])})" if ends[0] and ends[1] else ""
    name, base = best["scenario"], best["relative_to"]
    instead = None if base == name else training_s(rows.get(base), training)
    against = f", in place of {_long(instead)} with {base}" if instead else ""
    doubt = " These launches do not tell the two apart." if against and base in advised.not_told_apart else ""
    return f"{what} {take} {_long(took)}{interval} with {name}{against}, at this speed all the way.{doubt}"


def _long(seconds: float) -> str:
    """``3.1 days``, ``7.2 hours``, ``12 minutes``."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.{1 if seconds < 100 * size else 0}f} {unit}"
    return count(round(seconds), "second")


def is_clear(document: RunDocument, table: pd.DataFrame) -> bool:
    """True if the fastest scenario is significantly faster."""
    return any(one.tested and one.slower and not one.tied for one in _standings(document, table)[:1])


def more_wanted(document: RunDocument, table: pd.DataFrame) -> int | None:
    """About how many more launches of each would show a small difference; None if unknown or none are needed."""
    return next((one.more for one in _standings(document, table)[:1] if one.tied), None) or None


def headlines(document: RunDocument, table: pd.DataFrame) -> list[Advice]:
    """The fastest of all scenarios, and of those on several replicas if one replica won."""
    nothing = ("No valid result", "no scenario has results that can be trusted.")
    if table["why_not"].isna().any():  # good launches, of a batch that nobody knows
        nothing = ("No speed is known", "nothing says how many examples a step has.")
    finalist, alone = document.of(Tuning) is not None, len(document.request.scenarios) == 1
    only = "Only valid result" if not alone else "Only finalist" if finalist else "Result"
    return [_headline(one, only) for one in _standings(document, table)] or [nothing]


def advice(document: RunDocument, table: pd.DataFrame) -> list[Advice]:
    """The advice beside :func:`headlines`."""
    if document.of(Attached) or each_alone(document):
        return []
    why_not = by_key((reason, name) for name, reason in recommendations(document, table).left_out.items())
    left_out = "; ".join(f"{listed(scenarios)} ({reason})" for reason, scenarios in why_not.items())
    beside = [line for one in _standings(document, table) for line in _beside(one)]
    return [*beside, *([("Left out", f"{left_out}.")] if left_out else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the fastest of some scenarios stands against the others, as rows of an overview.

    ``tied``: those that enough launches did not tell from it; ``untested``: those that have, or it has, fewer.
    ``passed_over``: whether others are valid and have numerics that are not recommended. ``more``: about how many more
    launches of each would show a small difference, None if unknown. ``where``: which scenarios these are, for a
    sentence; empty for all.
    """

    best: TableRow
    leanest: TableRow | None
    tied: list[TableRow]
    untested: list[TableRow]
    slower: int
    passed_over: bool
    more: int | None
    where: str

    @property
    def rivals(self) -> bool:
        return bool(self.tied or self.untested or self.slower)

    @property
    def tested(self) -> bool:
        return bool(self.best["launches_ok"] >= LAUNCHES_WANTED)


def _standings(document: RunDocument, table: pd.DataFrame) -> list[Standing]:
    """Of all scenarios, and of those on several replicas where that says something new; none without a valid one."""
    advised, rows = recommendations(document, table), {row["scenario"]: row for row in table.to_dict("records")}
    several = f" on {document.workload.replicas} replicas"
    standings, column = [], "against_fastest"
    for one, where, verdicts in ((advised, "", column), (advised.parallel, several, f"{column}_parallel")):
        if one is None or one.fastest is None:
            continue
        rivals = [rows[name] for name in one.not_told_apart]
        wanted = [row[f"{verdicts}_more"] for row in rivals]
        standings.append(
            Standing(
                best=rows[one.fastest],
                leanest=rows.get(one.leanest),
                tied=[row for row in rivals if row[verdicts] != TOO_FEW],
                untested=[row for row in rivals if row[verdicts] == TOO_FEW],
                slower=sum(row[verdicts] == SLOWER for row in rows.values()),
                passed_over=any(_unknown(rows[name]["why_not"]) for name in one.left_out),
                more=None if not wanted or any(map(_unknown, wanted)) else int(max(wanted)),
                where=where,
            )
        )
    return standings


def _headline(one: Standing, only: str) -> Advice:
    best = one.best
    speed, base = speed_of(best), best["relative_to"]
    if best["scenario"] != base and not _unknown(best["relative_to_ddp"]):
        ends = "" if _unknown(best["relative_low"]) else f" ({ends_text(best['relative_low'], best['relative_high'])})"
        speed += f", {best['relative_to_ddp']:.2f}{ends} times as fast as {base}"
    if one.tied and one.tested:
        named = listed([row["scenario"] for row in (best, *one.tied)], 3)
        wanted = still_wanted(one.more)
        apart = f"{named} are not told apart by these launches{f'; {wanted}' if wanted else ''}"
        return f"No clear winner{one.where}", f"{apart}.{_reserve(best, *one.tied)}"
    heading = f"Fastest{one.where}"
    if not one.rivals:
        heading = f"{'Only one that can be recommended' if one.passed_over else only}{one.where}"
    elif not one.tested:
        launches = "one launch" if best["launches_ok"] == 1 else f"{best['launches_ok']} launches"
        heading += f", untested ({launches})"
    return heading, f"{speed}.{_reserve(best)}"


def speed_of(row: TableRow) -> str:
    """``ddp_o2, 236.2 ±3.1% img/s``."""
    return f"{row['scenario']}, {with_bar(row, 'throughput_per_s', ',.1f')} {row['unit_short']}/s"


def findings(run: Run) -> list[str]:
    """A line for each kind of finding and its remedy, the invalid ones first."""
    return [_finding(row, row["severity"]) for row in _grouped(run)]


def main_finding(run: Run) -> list[str]:
    """:func:`findings` in a line for the warnings, and one for each that makes results invalid.

    A busy machine is named first, since it explains what scatters; else what was found most often.
    """
    rows = _grouped(run)
    warnings = [row for row in rows if row["severity"] == "warning"]
    lines = [_finding(row, "invalid") for row in rows if row not in warnings]
    if warnings:
        main = max(warnings, key=lambda row: (row["code"] == "load", row["count"]))
        several = f"warning: {sum(row['count'] for row in warnings)} warnings, main cause"
        lines.append(_finding(main, several if len(warnings) > 1 else "warning"))
    return lines


def _grouped(run: Run) -> list[TableRow]:
    return grouped(Analysed.of(run).findings, run.document.request.scenarios).to_dict("records")


def _finding(row: TableRow, what: str) -> str:
    return f"{what}: {row['code']} in {row['scenarios']} ({row['what']}); {row['remedy']}"


def recommended(document: RunDocument, table: pd.DataFrame) -> dict[str, str]:
    """The marks of recommended scenarios in a plot: ``fastest``, if there is a winner, ``leanest`` or both."""
    marks: dict[str, str] = {}
    for one in _standings(document, table):
        also = ", and leanest at that speed" if one.leanest is one.best else ""
        fastest = "fastest, not told apart" if one.tied and one.tested else "fastest"
        marks[one.best["scenario"]] = f"{fastest}{also}{one.where}"
        if one.leanest is not None:
            marks.setdefault(one.leanest["scenario"], f"leanest at that speed{one.where}")
    return marks


def _beside(one: Standing) -> list[Advice]:
    """The leanest that is about as fast, and which launches are too few to tell."""
    best, lean = one.best, one.leanest
    if lean is None:
        text = "Unknown: no peak of memory is known of those that are as fast."
    else:
        text = f"{speed_of(lean)} at a peak of {lean['peak_total_mib']:,.0f} {all_mib(lean)}"
        if lean is best:
            text += "; nothing as fast uses less memory."
        else:
            less = f", with {100 * (1 - lean['peak_total_mib'] / best['peak_total_mib']):.0f} % less memory"
            less = "" if _unknown(best["peak_total_mib"]) else less
            slower = 100 * (1 - lean["throughput_per_s"] / best["throughput_per_s"])
            text += f": {abs(slower):.1f} % {'faster' if slower < 0.0 else 'slower'}{less}.{_reserve(lean)}"
    heading = f"Least memory within {100 * (1 - LEAN_ENOUGH):.0f} % of the fastest{one.where}"
    lines = [(heading, text)] if one.rivals or lean is not best else []
    if one.untested and one.tested:
        names = listed([row["scenario"] for row in one.untested])
        lines.append((f"Untested{one.where}", f"{names}, with fewer than {LAUNCHES_WANTED} launches."))
    return lines


def _reserve(*rows: TableRow) -> str:
    """Reservations about the results of these, apart from how few launches they come from."""
    reserves = []
    if any(_unknown(row["parity"]) for row in rows):
        reserves.append(f"whether {'each' if len(rows) > 1 else 'it'} trains the same model was not shown")
    warned = [row["findings"].split(", ") for row in rows if row["validity"] == "warning"]
    if doubts := dict.fromkeys(code for codes in warned for code in codes if code != FEW):
        reserves.append(f"low confidence: {', '.join(doubts)}")
    text = "; ".join(reserves)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _unknown(value: float | str | None) -> bool:
    return bool(pd.isna(value))
