"""The answer of ``bench bisect``, in a sentence."""

from bench.core.text import listed
from bench.runs.document import RunDocument
from bench.runs.experiments import Bisected, Level

WORDS = {
    "step time": ("slower", "faster", "a step takes"),
    "peak memory": ("larger", "leaner", "its peak of memory is"),
}
"""By figure what a candidate above the good end is called, one below it, and what the ratio is of."""


def in_words(document: RunDocument) -> list[str]:
    search = document.of(Bisected)
    if search is None:
        return []
    good, bad = next(iter(search.candidates)), [*search.candidates][-1]
    more, less, what = WORDS.get(search.figure, ("different", "different", f"{search.figure}:"))
    change = search.levels.get(bad)
    names = [*search.candidates]
    between = names[names.index(search.low) + 1 : names.index(search.high)]
    sure = f"at most {100 * search.error:.0f} % of such searches are wrong"
    launches = f"{search.launches} launches"
    if not search.ends_differ:
        apart = f" ({what} {span_text(change)} of that)" if change else ""
        answer = f"{bad} is not told apart from {good} within the budget{apart}; {launches}."
        if search.ends_alike:
            answer = f"{bad} is as {good}{apart}: there is nothing to search for; {launches}."
    elif not search.decided:
        answer = (
            f"Between {search.low} and {search.high}, undecided within the budget: {len(between)} between them are not "
            f"told apart; {what} {span_text(change)} in {bad} of that in {good}; {launches}. --budget gives more."
        )
    else:
        word = more if change is None or change.ratio > 1.0 else less
        who = f"{search.high}" if not between else f"One of {listed([*between, search.high])}"
        what_it_is = f" ({search.candidates[search.high]})" if not between and search.candidates[search.high] else ""
        skipped = f" ({listed(between)} cannot be launched)" if between else ""
        answer = (
            f"{who}{what_it_is} is the first that is {word}{skipped}: {what} {span_text(change)} in {bad} of that in "
            f"{good}; {sure}; {launches}."
        )
    return [answer, *(f"Skipped: {name}, {why}." for name, why in search.skipped.items())]


def ratio_text(level: Level | None) -> str:
    return "unknown" if level is None else f"{level.ratio:.4g}"


def interval_text(level: Level | None) -> str:
    return "" if level is None or level.low == level.high else f"{level.low:.4g} to {level.high:.4g}"


def span_text(level: Level | None) -> str:
    return f"{ratio_text(level)} ({interval_text(level)})" if interval_text(level) else ratio_text(level)
