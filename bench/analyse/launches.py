"""Which launches a value may come from: those that ended well, and the one that stands for its scenario in a plot."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bench.runs.document import RunDocument
from bench.runs.frames import TableRow
from bench.runs.launches import LaunchRecord

if TYPE_CHECKING:
    import pandas as pd

NOT_RUN = "not run"  # an interrupted run did not come to the scenario, or this one was about something else


def ok_rows(document: RunDocument, frame: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of the launches that are ``ok``: a launch that failed may have left the steps of some of its ranks."""
    return only(frame, frame["launch"].isin([launch.launch for launch in document.good]))


def looked_at(document: RunDocument) -> int:
    """How many launches of each scenario a verdict had before others were added (``--resume RUN --launches N``).

    0 where none were. A run that was interrupted had no verdict: its rounds are not whole, or it has no reference yet.
    ``--until-precision`` looks at the scatter alone, which spends as much as a verdict on one launch.
    """
    from bench.runs.experiments import IntervalTargetRecord, Numerics  # here, since a history needs none of them

    most = max(Counter(one.scenario for one in document.good).values(), default=0)
    looks = [int(document.of(IntervalTargetRecord) is not None and most > (document.request.launches or 0))]
    references = document.begun(Numerics).references
    for part in document.resumed:
        counts = Counter(one.scenario for one in document.good if one.launch < part.launch)
        whole = len(set(counts.values())) == 1 and all(one.launch < part.launch for one in references)
        if whole and any(one.launch >= part.launch for one in document.good):
            looks.append(max(counts.values()))
    return looks[-1]


def across_environments(document: RunDocument) -> list[tuple[str, str, LaunchRecord, LaunchRecord]]:
    """Each scenario in each interpreter but the first: their names, a launch in the first one and one in the other."""
    first, *others = document.environments or ("",)
    launches = {(one.scenario.removesuffix(f"@{one.environment}"), one.environment): one for one in document.good[::-1]}
    return [
        (name, other, launches[name, first], launches[name, other])
        for name in dict.fromkeys(one.scenario.removesuffix(f"@{one.environment}") for one in document.good)
        for other in others
        if (name, first) in launches and (name, other) in launches
    ]


def how_many(document: RunDocument) -> str:
    """How many launches of each scenario are ``ok``, whatever was asked for: ``3 to 9 launches``."""
    counts = sorted(Counter(launch.scenario for launch in document.good).values()) or [0]
    many = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
    return f"{many} launch{'' if many == '1' else 'es'}"


def ended(launches: Sequence[LaunchRecord]) -> tuple[str, str | None]:
    """Status and reason of the first of a scenario's launches that did not end well, else of its first."""
    first = min(launches, key=lambda launch: launch.status == "ok", default=None)
    return (NOT_RUN, "this run has no launch of it") if first is None else (first.status, first.reason)


def failures(document: RunDocument, names: Sequence[str]) -> str:
    """Which of the run's scenarios are not among ``names``, and why; may be empty."""
    states = {one.scenario: "no value" if one.status == "ok" else one.status for one in document.launches[::-1]}
    missing = [scenario for scenario in document.request.scenarios if scenario not in names]
    return ", ".join(f"{scenario} ({states.get(scenario, NOT_RUN)})" for scenario in missing)


def only(frame: "pd.DataFrame", wanted: "pd.Series[bool]") -> "pd.DataFrame":
    """The rows that are wanted: the frame itself where all are, which may have millions of them."""
    return frame if wanted.all() else frame[wanted]


def joined(sources: Iterable[str]) -> str | None:
    """Sources of values, each perhaps several with + between them, as one: ``nvml_pid+rss``; None without any."""
    return "+".join(sorted({one for text in sources for one in text.split("+")})) or None


def different(texts: "pd.Series[str]") -> str | None:
    """The different ones in a line; None without any."""
    return "; ".join(dict.fromkeys(texts.dropna())) or None


def by_launch(frame: "pd.DataFrame") -> "Iterator[tuple[int, pd.DataFrame]]":
    """The rows of one launch after the other. ``groupby`` would copy all of them at once."""
    places: TableRow = frame.groupby("launch").indices
    for launch, own in places.items():
        together = own[-1] - own[0] + 1 == len(own)
        yield int(launch), frame.iloc[own[0] : own[-1] + 1] if together else frame.take(own)


def shown(document: RunDocument, frame: "pd.DataFrame") -> dict[str, LaunchRecord]:
    """For each scenario with rows in ``frame`` the launch to show: the first that is ``ok``, else the first."""
    with_rows = set(frame["launch"].unique())
    in_turn = [launch for launch in (*document.good, *document.launches) if launch.launch in with_rows]
    first = {launch.scenario: launch for launch in reversed(in_turn)}
    return {name: first[name] for name in document.request.scenarios if name in first}
