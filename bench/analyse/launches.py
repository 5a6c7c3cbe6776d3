"""Which launches a figure may come from: those that ended well, and the one that stands for its scenario in a plot."""

from collections.abc import Iterator
from typing import Any

import pandas as pd


def ok_rows(document: dict[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the launches that are ``ok``: a launch that failed may have left the steps of some of its ranks."""
    ok = [launch["launch"] for launch in document["launches"] if launch["status"] == "ok"]
    good = frame["launch"].isin(ok)
    return frame if good.all() else frame[good]


def how_many(document: dict[str, Any]) -> str:
    """How many launches of each scenario are ``ok``, whatever was asked for: ``3 to 9 launches``."""
    ok = [launch["scenario"] for launch in document["launches"] if launch["status"] == "ok"]
    counts = sorted({ok.count(scenario) for scenario in ok}) or [0]
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{many} launch{'' if many == '1' else 'es'}"


def only(frame: pd.DataFrame, wanted: "pd.Series[bool]") -> pd.DataFrame:
    """The rows that are wanted: the frame itself where all are, which may have millions of them."""
    return frame if wanted.all() else frame[wanted]


def by_launch(frame: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """The rows of one launch after the other. ``groupby`` would copy all of them at once."""
    places: dict[Any, Any] = frame.groupby("launch").indices
    for launch, own in places.items():
        yield int(launch), frame.take(own)


def shown(document: dict[str, Any], frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """For each scenario with rows in ``frame`` the launch to show: its first that is ``ok``, else its first with rows.

    In the order of the request.
    """
    with_rows = set(frame["launch"].unique())
    chosen: dict[str, dict[str, Any]] = {}
    for scenario in document["request"]["scenarios"]:
        mine = [
            launch
            for launch in document["launches"]
            if launch["scenario"] == scenario and launch["launch"] in with_rows
        ]
        if mine:
            chosen[scenario] = next((launch for launch in mine if launch["status"] == "ok"), mine[0])
    return chosen
