"""Which figures should not be believed, or only with a grain of salt, and what to do about each.

A *finding* is about one launch or, where ``launch`` is null, about a scenario as a whole. ``invalid``: the figure is
wrong or is of something else. ``warning``: it is right for what happened, and that may not be what was meant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.analyse.parity import UNTRUE
from bench.analyse.steps import per_launch

UNSTEADY = 0.01
"""Last third of a launch's steps against its first: by how much their medians may be apart."""

SPREAD = 0.10
"""Middle half of a launch's steps, and range of a scenario's launches, relative to the median."""

SKEW = 0.05
"""(max - min) / median over ranks, median over steps."""

INPUT_BOUND = 0.10
"""Share of the data phase in the step."""

FOREIGN_CORES = {"cpu": 0.10, "cuda": 0.50}
"""Share of the usable cores that others may keep busy: on the CPU they take it from what is measured."""

FEWEST_LAUNCHES = 3

THERMAL = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons: hardware slowdown, software and hardware thermal slowdown, power brake."""

POWER_CAP = 0x04

COLUMNS = ("launch", "scenario", "code", "severity", "text", "remedy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with a figure, and what to do."""

    code: str
    severity: str
    text: str
    remedy: str


def findings(document: dict[str, Any], steps: pd.DataFrame, device: pd.DataFrame, parity: pd.DataFrame) -> pd.DataFrame:
    """One row per finding: ``launch`` (null for a scenario as a whole), ``scenario, code, severity, text, remedy``.

    ``parity``: as from :func:`bench.analyse.parity.parity`. Launches that failed have a status and no findings.
    """
    figures = per_launch(steps).set_index("launch")
    bits = device.dropna(subset=["throttle_reasons"]).groupby("launch")["throttle_reasons"].agg(_any_bit)
    rows = []
    good = [launch for launch in document["launches"] if launch["status"] == "ok"]
    cores = {launch["effective"]["affinity"] for launch in good}
    for launch in good:
        if launch["launch"] not in figures.index:
            continue
        figure = figures.loc[launch["launch"]].to_dict()
        about = [
            *_time(figure, document["request"]),
            *_checks(launch, document),
            *_threads(launch, cores),
            *_gpu(int(bits.get(launch["launch"], 0)), launch["checks"].get("foreign")),
        ]
        rows += [_row(launch["launch"], launch["scenario"], finding) for finding in about]
    for scenario, group in figures[figures.index.isin([launch["launch"] for launch in good])].groupby("scenario"):
        rows += [_row(None, scenario, finding) for finding in _scenario(scenario, group["median_ms"], document)]
    for verdict in parity[parity["verdict"].isin(UNTRUE)].to_dict("records"):
        rows.append(_row(verdict["launch"], verdict["scenario"], _untrue(verdict)))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"launch": "Int64"})


def by_scenario(found: pd.DataFrame, scenarios: list[str]) -> dict[str, str]:
    """``invalid``, ``warning`` or ``valid`` for each of ``scenarios``: the gravest of its findings."""
    gravest = found.groupby("scenario")["severity"].agg(lambda severities: min(severities))  # "invalid" < "warning"
    return {scenario: str(gravest.get(scenario, "valid")) for scenario in scenarios}


def grouped(found: pd.DataFrame) -> pd.DataFrame:
    """:func:`findings` for people: one row for all with the same code and remedy, the invalid ones first.

    ``code, severity``; ``scenarios``: their names, separated by commas; ``where``: the names with the numbers of the
    launches; ``what``: what was found, of several the first one with its launch; ``remedy``; ``count``: of findings.
    """
    order: dict[Any, int] = {"invalid": 0, "warning": 1}
    place: dict[Any, int] = {name: number for number, name in enumerate(dict.fromkeys(found["scenario"]))}
    rows = []
    for (code, severity, remedy), mine in found.groupby(["code", "severity", "remedy"], sort=False):
        mine = mine.sort_values("scenario", key=lambda names: names.map(place), kind="stable")
        texts = list(dict.fromkeys(mine["text"]))
        rows.append(
            {
                "code": code,
                "severity": severity,
                "scenarios": ", ".join(dict.fromkeys(mine["scenario"])),
                "where": ", ".join(_where(name, of["launch"]) for name, of in mine.groupby("scenario", sort=False)),
                "what": texts[0] if len(texts) == 1 else _for_example(mine.iloc[0].to_dict()),
                "remedy": remedy,
                "count": len(mine),
            }
        )
    rows.sort(key=lambda row: order[row["severity"]])
    return pd.DataFrame(rows, columns=["code", "severity", "scenarios", "where", "what", "remedy", "count"])


def _where(scenario: Any, launches: pd.Series) -> str:
    """``ddp (2, 12)``; the name alone for a finding about the scenario as a whole."""
    numbers = [str(number) for number in sorted(launches.dropna())]
    return f"{scenario} ({', '.join(numbers)})" if numbers else str(scenario)


def _for_example(first: dict[Any, Any]) -> str:
    launch = "" if pd.isna(first["launch"]) else f", launch {first['launch']}"
    return f"{first['scenario']}{launch}: {first['text']}"


def _row(launch: int | None, scenario: Any, finding: Finding) -> dict[str, Any]:
    about = {name: getattr(finding, name) for name in ("code", "severity", "text", "remedy")}
    return {"launch": launch, "scenario": scenario, **about}


def _time(figure: dict[str, Any], request: dict[str, Any]) -> Iterator[Finding]:
    """What the steps themselves show."""
    drift = figure["drift"]
    if pd.notna(drift) and abs(drift) > UNSTEADY:
        yield Finding(
            code="unsteady",
            severity="warning",
            text=f"its last third is {abs(drift):.1%} {'slower' if drift > 0 else 'faster'} than its first",
            remedy=f"raise --warmup (it was {request['warmup']}), and keep other work and heat away",
        )
    middle = figure["iqr_ms"] / figure["median_ms"]
    if middle >= SPREAD:
        yield Finding(
            code="spread",
            severity="warning",
            text=f"the middle half of its steps spans {middle:.0%} of their median",
            remedy=f"keep other work away and raise --iters (it was {request['iters']})",
        )
    if figure["skew"] > SKEW:
        yield Finding(
            code="skew",
            severity="warning",
            text=f"its ranks are {figure['skew']:.0%} apart; rank {figure['slowest_rank']:.0f} is slowest most often",
            remedy="see which phase of that rank is longer, and what else uses its device or cores",
        )
    if figure["data_share"] > INPUT_BOUND:
        yield Finding(
            code="input-bound",
            severity="warning",
            text=f"{figure['data_share']:.0%} of its step is waiting for data",
            remedy="speed the input up before comparing ways to train: they all wait for it",
        )


def _checks(launch: dict[str, Any], document: dict[str, Any]) -> Iterator[Finding]:
    """What was verified while it ran."""
    checks = launch["checks"]
    if not checks.get("conservation_ok", True):
        yield Finding(
            code="phases",
            severity="invalid",
            text=f"its steps and the wall time differ by {checks['conservation_error']:.1%}",
            remedy="measure again; if it stays, report it: a part of the time is not accounted for",
        )
    if checks.get("skipped_steps"):
        yield Finding(
            code="skipped steps",
            severity="warning",
            text=f"the loss scaler skipped {checks['skipped_steps']} optimizer steps, which made those cheaper",
            remedy=f"raise --warmup (it was {document['request']['warmup']}) so that the loss scale settles before",
        )
    usable = document["machine"]["cores_usable"]
    foreign = checks.get("foreign_cores")
    if foreign is not None and foreign > FOREIGN_CORES[document["workload"]["device"]] * usable:
        yield Finding(
            code="load",
            severity="warning",
            text=f"others kept {foreign:.1f} of the {usable} cores busy meanwhile",
            remedy="stop what else runs here (top shows it), and measure again",
        )


def _threads(launch: dict[str, Any], cores: set[int]) -> Iterator[Finding]:
    """Whether every rank had what it was meant to have."""
    differ = launch["checks"].get("ranks_differ") or []
    ran = launch["effective"]
    planned = max(1, ran["affinity"] // launch["processes"])
    unequal = []
    if differ:
        unequal.append(f"its ranks differ in {', '.join(differ)}")
    if ran["threads"] != planned:
        unequal.append(f"its ranks had {ran['threads']} threads where {planned} were planned")
    if len(cores) > 1:
        unequal.append(f"launches of this run had {' and '.join(map(str, sorted(cores)))} cores")
    if unequal:
        yield Finding(
            code="unequal",
            severity="invalid",
            text="; ".join(unequal),
            remedy="leave threads and affinity alone while bench runs, in scenarios too, and measure again",
        )


def _gpu(bits: int, foreign: Any) -> Iterator[Finding]:
    """What the driver said of the GPUs meanwhile."""
    if bits & THERMAL:
        yield Finding(
            code="throttled",
            severity="invalid",
            text=f"a GPU was slowed down by heat or by its power supply (reasons {bits:#x})",
            remedy="cool it, or lower its power limit for all scenarios alike (nvidia-smi -pl), and measure again",
        )
    elif bits & POWER_CAP:
        yield Finding(
            code="power cap",
            severity="warning",
            text="a GPU ran at its power limit, so its clock followed the limit and not the work",
            remedy="compare only with runs at the same limit (nvidia-smi -q -d POWER)",
        )
    if foreign:
        yield Finding(
            code="shared GPU",
            severity="invalid",
            text=f"other processes used the GPU meanwhile: {foreign}",
            remedy="wait until they are done, or choose other GPUs with --gpus, and measure again",
        )


def _scenario(scenario: Any, medians: pd.Series, document: dict[str, Any]) -> Iterator[Finding]:
    """What the launches of a scenario show together."""
    if len(medians) < FEWEST_LAUNCHES:
        yield Finding(
            code="few launches",
            severity="warning",
            text=f"{len(medians)} launch{'es' if len(medians) > 1 else ''}: nothing can be said about chance",
            remedy="measure with --profile standard, or with --launches 5",
        )
    apart = float((medians.max() - medians.min()) / medians.median())
    if len(medians) > 1 and apart >= SPREAD:
        yield Finding(
            code="spread",
            severity="warning",
            text=f"the medians of its launches are {apart:.0%} apart",
            remedy="keep other work away, then add launches (--until-precision 2%)",
        )
    wanted = document["precision"]
    if wanted is not None and not wanted["scenarios"].get(scenario, {"reached": True})["reached"]:
        width = wanted["scenarios"][scenario]["half_width"]
        asked = f"±{100 * wanted['target']:g}%"
        yield Finding(
            code="imprecise",
            severity="warning",
            text=f"±{100 * width:.2g}% is what was reached of the {asked} asked for"
            if width is not None
            else f"no interval, where {asked} was asked for",
            remedy=f"raise --budget (it was {wanted['budget_s'] / 60:g}m), or keep other work away",
        )


def _untrue(verdict: dict[Any, Any]) -> Finding:
    return Finding(
        code=verdict["verdict"],
        severity="invalid",
        text=verdict["reason"],
        remedy="do not train with it as it is: its numerics are not those of the fp32 reference (see parity)",
    )


def _any_bit(values: pd.Series) -> int:
    bits = 0
    for value in values:
        bits |= int(value)
    return bits
