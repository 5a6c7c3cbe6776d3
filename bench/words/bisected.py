"""The answer of ``bench bisect``, in a sentence."""

from bench.console import count
from bench.core.text import listed
from bench.runs.document import RunDocument
from bench.runs.experiments import Bisected, Level

WORDS = {
    "step time": ("slower", "faster", "a step takes", "times as long in", "as in"),
    "peak memory": ("larger", "leaner", "its peak of memory is", "times as large in", "as in"),
}
"""By metric what a candidate above the good end is called, one below it, and the words around its ratio."""


def in_words(document: RunDocument) -> list[str]:
    if (search := document.of(Bisected)) is None:
        return []
    names = [*search.candidates]
    good, bad = names[0], names[-1]
    otherwise = ("different", "different", f"{search.metric}:", "in", "of that in")
    more, less, what, times, as_in = WORDS.get(search.metric, otherwise)
    change = search.levels.get(bad)
    between = names[names.index(search.low) + 1 : names.index(search.high)]
    evidence = [] if change is None else [f"{what} {span_text(change)} {times} {bad} {as_in} {good}"]
    evidence.append(count(search.launches, "launch", "launches"))
    if search.ends_alike:
        answer = f"{bad} is as {good}, so there is nothing to search for"
    elif not search.ends_differ:
        answer = f"{bad} is not told apart from {good} within the budget"
    elif not search.decided:
        are = "is" if len(between) == 1 else "are"
        apart = f"{len(between)} between them {are} not told apart (--budget gives more)"
        answer = f"Between {search.low} and {search.high}, undecided within the budget: {apart}"
    else:
        what_it_is = search.candidates[search.high]
        who = f"{search.high} ({what_it_is})" if what_it_is else search.high
        who = f"One of {listed([*between, search.high])}" if between else who
        skipped = f" ({listed(between)} cannot be launched)" if between else ""
        answer = f"{who} is the first that is {more if change is None or change.ratio > 1.0 else less}{skipped}"
        evidence.insert(-1, f"at most {100 * search.error:.0f} % of such searches are wrong")
    return [f"{answer}: {'; '.join(evidence)}.", *(f"Skipped: {name}, {why}." for name, why in search.skipped.items())]


def ratio_text(level: Level | None) -> str:
    return "unknown" if level is None else f"{level.ratio:.4g}"


def interval_text(level: Level | None) -> str:
    return "" if level is None or level.low == level.high else f"{level.low:.4g} to {level.high:.4g}"


def span_text(level: Level | None) -> str:
    return f"{ratio_text(level)} ({interval_text(level)})" if interval_text(level) else ratio_text(level)
