"""What nightly.sh needs that is no work for a shell: do findings end the night, is a run sealed, and its summary.

    python -m nightly.summary doctor doctor.json --stop-at problem --gpus 0,1
    python -m nightly.summary sealed /srv/bench-history/.incoming/RUN
    python -m nightly.summary write reports/nightly --code 10 --gate 10 --history /srv/bench-history --kept yes

The standard library (and what of bench needs no more) alone, because a summary is also written of a night on which
nothing else could be imported.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.core.errors import RequestError
from bench.core.text import printable
from bench.runs.digests import stored
from bench.runs.reader import verified

SPOILED = 3
"""The exit code of nightly.sh where the doctor's findings end the night."""

LEVELS = {"problem": ("problem",), "warning": ("problem", "warning"), "never": ()}
"""By ``--stop-at``: the levels of findings that end the night."""

VERDICTS = {
    0: "no regression found",
    1: "failed",
    2: "the request is wrong",
    SPOILED: "not measured: the doctor found what spoils it",
    10: "regressed",
    11: "inconclusive",
    12: "missing or not comparable",
    130: "interrupted",
}
NIGHTS = 20
"""How many nights a row of bars shows, tonight's included."""

BARS = "▁▂▃▄▅▆▇█"
FULL_HEIGHT = 0.05
"""What a row of bars spans at least, relative to its lowest night: half a percent is at most one step of it."""


def main(arguments: list[str] | None = None) -> int:
    """Do as asked; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    doctor = verbs.add_parser("doctor", help=f"exit code {SPOILED} where a finding ends the night")
    doctor.add_argument("report", type=Path, help="what 'bench doctor --json' printed")
    doctor.add_argument("--stop-at", choices=LEVELS, default="problem")
    doctor.add_argument("--gpus", default="", help="those that are measured, as 'bench run' takes them")
    sealed = verbs.add_parser("sealed", help="exit code 1 where a run is unfinished, damaged or changed")
    sealed.add_argument("run")
    write = verbs.add_parser("write", help="write summary.md")
    write.add_argument("out", type=Path)
    write.add_argument("--code", type=int, required=True, help="with which the night ends")
    write.add_argument("--gate", required=True, help="the gate's exit code, or 'none' if it was not reached")
    write.add_argument("--history", type=Path, required=True)
    write.add_argument("--kept", choices=("yes", "no"), required=True)
    options = parser.parse_args(arguments)
    if options.verb == "doctor":
        return _examine(options.report, options.stop_at, options.gpus)
    if options.verb == "sealed":
        return _verify(options.run)
    text = summary(options.out, options.code, options.gate, options.history, kept=options.kept == "yes")
    (options.out / "summary.md").write_text(printable(text), encoding="utf-8")
    return 0


def _examine(report: Path, stop_at: str, gpus: str) -> int:
    """Tell every problem and warning in a line; the exit code says whether the night ends."""
    found = json.loads(report.read_text(encoding="utf-8"))
    ends = [finding for finding in of_interest(found, gpus) if finding["level"] in LEVELS[stop_at]]
    for finding in of_interest(found, gpus):
        if finding["level"] != "note":
            print(printable(f"nightly: doctor: {finding['level']}: {_sentence(finding)}"))
    if ends:
        print(printable(f"nightly: error: doctor: {_sentence(ends[0])}; or go on in spite of it with --stop-at never"))
    return SPOILED if ends else 0


def _verify(run: str) -> int:
    """Every file of a run against its seal. What its values are worth is the gate's business and not asked here."""
    try:
        verified(run, allow_incomplete=False)
    except RequestError as error:
        print(printable(f"nightly: error: {error.problem}"))
        return 1
    return 0


def _sentence(finding: dict[str, str]) -> str:
    return f"{finding['about']}: {finding['finding']}: {finding['consequence']}; {finding['remedy']}"


def of_interest(report: dict[str, Any], gpus: str) -> list[dict[str, str]]:
    """The doctor's findings without those about a GPU that ``gpus`` (indices or UUIDs, by comma) leaves out.

    An empty ``gpus`` leaves none out.
    """
    chosen = {name.strip() for name in gpus.split(",") if name.strip()}
    left_out = {
        f"GPU {gpu['index']}" for gpu in report["gpus"] if chosen and not chosen & {str(gpu["index"]), gpu["uuid"]}
    }
    return [finding for finding in report["findings"] if finding["about"] not in left_out]


def summary(out: Path, code: int, gate: str, history: Path, *, kept: bool) -> str:
    """The Markdown of a night: how it ended and why, the gate's own words, values, findings, and what lies where."""
    tonight = next((_digest(file.parent) for file in (out / "results").glob("*/digest.json")), None)
    parts = [f"# Nightly benchmark: {_headline(code, gate)}", _about(tonight, _kept(out, kept)), _errors(out)]
    if (out / "gate.md").is_file():
        parts.append((out / "gate.md").read_text(encoding="utf-8"))
    if tonight:
        nights = [*earlier(history, tonight), tonight]
        parts += [_values(nights), _plot(tonight)]
    parts += [_findings(out), _files(out)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _headline(code: int, gate: str) -> str:
    said = VERDICTS.get(code, f"failed with exit code {code}")
    judged = VERDICTS[int(gate)] if gate != "none" and int(gate) in VERDICTS else None
    return said if judged in (None, said) else f"{judged} (exit code {code}: {said})" if code else f"{judged}, allowed"


def _kept(out: Path, kept: bool) -> str:
    """Whether the run is in the history, and of which scenarios it is nothing that later nights are held against."""
    if not kept:
        return "not kept in the history"
    no_base = (_json(out / "gate.json") or {}).get("no_base", ())
    return "kept in the history" + (f", but as no base for {', '.join(map(_inert, no_base))}" if no_base else "")


def _about(tonight: dict[str, Any] | None, kept: str) -> str:
    if tonight is None:
        return "No launch was measured."
    git, conditions = tonight.get("git") or {}, tonight["conditions"]
    commit = f"commit `{git['commit'][:12]}`{' with local changes' if git.get('dirty') else ''}" if git else ""
    hardware = tonight["hardware"]
    where = " + ".join(f"{hardware.count(name)} × {name}" for name in dict.fromkeys(hardware))
    if tonight.get("device") == "cpu":
        ranks = tonight["replicas"]
        where = f"{ranks} CPU rank{'' if ranks == 1 else 's'} on {', '.join(hardware)}"
    versions = [f"{name} {conditions[name]}" for name in ("driver", "torch", "cuda", "nccl") if conditions.get(name)]
    facts = [f"Run `{tonight['run']}`", commit, _inert(where), *map(_inert, versions)]
    return " · ".join(fact for fact in (*facts, kept) if fact)


def _errors(out: Path) -> str:
    """What bench and the script had to say that is an error, each once."""
    log = out / "night.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    told = dict.fromkeys(line for line in lines if re.match(r"(bench|nightly): error: ", line))
    return "\n".join(f"- {_inert(line)}" for line in told)


def _digest(folder: Path) -> dict[str, Any] | None:
    """None if it is missing, or damaged: the gate has named it."""
    try:
        return stored(str(folder))
    except RequestError:
        return None


def earlier(history: Path, tonight: dict[str, Any]) -> list[dict[str, Any]]:
    """The digests of the nights before ``tonight`` that measured the same work on the same hardware, oldest first."""
    found: list[dict[str, Any]] = []
    for folder in sorted((path for path in history.iterdir() if path.name < tonight["run"]), reverse=True):
        digest = _digest(folder) if folder.is_dir() else None
        if digest and all(digest[key] == tonight[key] for key in ("workload", "hardware")):
            found.append(digest)
        if len(found) == NIGHTS - 1:
            break
    return found[::-1]


def _values(nights: Sequence[dict[str, Any]]) -> str:
    """A table of tonight's values, each row with its last nights as bars."""
    by_night = [{one["scenario"]: one for one in night["scenarios"]} for night in nights]
    unit = _inert(nights[-1]["workload"]["unit_short"])
    lines = [f"| scenario | {unit}/s | step ms | MiB/PID | status | last nights |", "|---|---:|---:|---:|---|---|"]
    for name, one in by_night[-1].items():
        values = [
            _number(mean(one, "throughput_per_s"), 1),
            _number(mean(one, "step_ms"), 2),
            _number(largest(one, "peak_pid_mib"), 0),
        ]
        steps = [mean(night[name], "step_ms") if name in night else None for night in by_night]
        status = f"invalid ({', '.join(one['invalid'])})" if one.get("validity") == "invalid" else one["status"]
        lines.append(f"| {' | '.join([_inert(name), *values, _inert(status), bars(steps)])} |")
    about = (
        f"Bars are the step time of the last {len(nights)} nights, tonight's at the end: higher is slower, and a row "
        f"spans at least {FULL_HEIGHT:.0%}."
        if len(nights) > 1
        else "There is no earlier night of the same work on the same hardware."
    )
    about = f"Geometric means over the launches, and the largest process. {about}"
    return "\n".join(["## Tonight", "", *lines, "", about])


def mean(scenario: dict[str, Any], metric: str) -> float | None:
    """The geometric mean of a value over a scenario's launches; None where there is none."""
    values = [value for value in scenario["launches"][metric] if value]
    return statistics.geometric_mean(values) if values else None


def largest(scenario: dict[str, Any], metric: str) -> float | None:
    """The largest of a value over a scenario's launches; None where there is none."""
    return max(filter(None, scenario["launches"][metric]), default=None)


def bars(values: Sequence[float | None]) -> str:
    """One bar for each value, from the lowest to the highest or over :data:`FULL_HEIGHT`; a dot where there is none.

    >>> bars([100.0, 100.5, None, 105.0])
    '▁▂·█'
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return "".join("·" if value is None else BARS[0] for value in values)
    low = min(known)
    span = max(max(known) - low, FULL_HEIGHT * low)
    top = len(BARS) - 1
    return "".join("·" if value is None else BARS[round((value - low) / span * top)] for value in values)


def _plot(tonight: dict[str, Any]) -> str:
    """Throughput by scenario, as a Mermaid chart: the form of a plot that a CI page draws from Markdown."""
    rates = {one["scenario"]: mean(one, "throughput_per_s") for one in tonight["scenarios"]}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    if not known:
        return ""
    unit, *names = (re.sub(r"[^\w .-]", "_", name) for name in (tonight["workload"]["unit_short"], *known))
    return "\n".join(
        [
            "```mermaid",
            '%%{init: {"themeVariables": {"xyChart": {"plotColorPalette": "#3572b0"}}}}%%',
            "xychart-beta horizontal",
            f'    title "Throughput ({unit}/s)"',
            f"    x-axis [{', '.join(map(json.dumps, names))}]",
            f"    y-axis 0 --> {_decimal(max(known.values()) * 1.05)}",
            f"    bar [{', '.join(map(_decimal, known.values()))}]",
            "```",
        ]
    )


def _decimal(value: float) -> str:
    """Without an exponent, which Mermaid does not read."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _findings(out: Path) -> str:
    report = _json(out / "doctor.json")
    if report is None:
        return ""
    found = report["findings"]
    told = [finding for finding in found if finding["level"] != "note"]
    notes = len(found) - len(told)
    lines = [f"- **{finding['level']}**, {_inert(_sentence(finding))}" for finding in told]
    more = f"{notes} notes are in `doctor.json`." if notes else ""
    return "\n".join(["## What the doctor found", "", *(lines or ["Nothing that spoils a measurement."]), "", more])


def _files(out: Path) -> str:
    """Where the plots are: a summary on a CI page shows no image out of an artifact."""
    whats = {
        "report/index.html": "tonight with its plots",
        "history/history.html": "all nights with their plots",
        "results": "the sealed run: every step of every rank",
        "junit.xml": "the gate for tools that read JUnit",
        "night.log": "what was printed",
    }
    lines = [f"- `{name}`: {what}" for name, what in whats.items() if (out / name).exists()]
    return "\n".join(["## In the artifact", "", *lines]) if lines else ""


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _inert(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\|<>`*_\[\]])", r"\\\1", " ".join(str(text).split()))


def _json(file: Path) -> Any:
    """What a file holds; None where there is no such file, or one that was being written when all was killed."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
