"""``python -m bench gate``: may this run pass, given the nights before it?"""

import argparse
import os
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.analyse import comparable
from bench.analyse.history import nights
from bench.analyse.history.rule import FEWEST_NIGHTS, MEMORY, STEP_TIME, Rule
from bench.console import columns, count, passing, say
from bench.core.errors import NotComparable, RequestError, closest
from bench.runs.files import check_file, stored, unwritable, utf8, write_atomically
from bench.runs.names import find, last_finished
from bench.seams.experiment import verb_of
from bench.verbs.options import DEFAULT_OUT, Parser, called, people, percentage, reply, scenario_names, whole_number

if TYPE_CHECKING:
    from bench.analyse.history.gate import Base, Outcome

DESCRIPTION = """\
Hold a run against the nights before it, scenario by scenario: step time, peak memory, and the verdict on numerics.

A value has regressed when it lies beyond the 99% prediction bound of the last ten accepted nights of the same work on
the same hardware, and by more than 1%. Before there are ten, and with --baseline, tonight's launches are held against
those of the base: regressed when the lower confidence bound of their ratio is beyond 3%. Numerics may not get worse.

A night is accepted, scenario by scenario, when it passes against those accepted before it: the gate decides that again
from the first night on, and stores nothing. A night that is worse on purpose is accepted by a person, with
'bench accept', and the base of what is worse starts anew with it. Keep the nights in a folder of their own: any run of
the same work in DIR counts as one. Give it the same number of launches every night, five or more.

Verdicts: ok; better (by as much as would be regressed); regressed; new (there is no base, or none that was
measured in this way), too few launches, uncertain (beyond 3%, possibly noise) or too noisy (10% could not have
been seen); missing (no value, and there should be one) or not comparable; not run (cannot run here, and never did).
"""
EPILOG = """\
examples:
  python -m bench gate latest --history results              the latest run against those before it
  python -m bench gate NEW --history DIR --junit gate.xml --markdown gate.md
  python -m bench gate NEW --baseline RUN                    against one run
  python -m bench gate NEW --history DIR --threshold 2%      slower by less than 2% is no regression

Exit codes: 0 nothing regressed, or a person accepted this run; 10 something regressed; 12 nothing did, and a scenario
or a value is missing, failed or not comparable, or a --scenario was never measured; 11 nothing of that, and something
could not be decided: no base, too few launches, uncertain, too noisy; 2 the request is wrong, or this run is damaged or
incomplete.
"""

LISTED = 10
"""Runs of the history that are left out, and are named one by one."""


def main(arguments: list[str]) -> int:
    parser = Parser("gate", DESCRIPTION, EPILOG)
    parser.add_argument("run", metavar="NEW", help="a folder, a run id or 'latest'")
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument("--history", metavar="DIR", help="the folder that holds the nights; NEW may be among them")
    against.add_argument("--baseline", metavar="RUN", help="a single run instead")
    parser.add_argument("--scenario", metavar="NAME[,NAME...]", help="only these (default: all of NEW and of the base)")
    where = "where run ids are (default: results; 'latest' with --history: there)"
    parser.add_argument("--results", metavar="DIR", help=where)
    add_thresholds(parser)
    parser.add_argument("--junit", metavar="FILE", help="write a test case for each scenario and metric")
    parser.add_argument("--markdown", metavar="FILE", help="write a summary for the page of a job")
    options = parser.parse_args(arguments)
    for option in ("junit", "markdown"):
        if (file := getattr(options, option)) is not None:
            check_file(f"--{option}", file)
    if options.junit and options.markdown and os.path.realpath(options.junit) == os.path.realpath(options.markdown):
        raise RequestError("--markdown", f"{options.markdown} is where --junit writes", "give two files")
    rule, path = rule_from(options), _new(options)
    with passing(f"reading the nights in {options.history}" if options.history else "reading two runs"):
        new, only = nights.read_one(path), scenario_names(options.scenario)
        if options.baseline is not None:
            path = find(options.baseline, options.results or DEFAULT_OUT, "--baseline")
            outcome = _against_one(new, nights.read_one(path, "--baseline"), rule, only)
        else:
            history = nights.read(options.history, meanwhile=import_what_judges)
            outcome = _against_history(new, history, options.history, rule, only)
    from bench.report import gate

    outcome = replace(outcome, verb=verb_of(stored(new.path).get("experiments", ())))
    for option, form in (("junit", gate.as_junit), ("markdown", gate.as_markdown)):
        if (file := getattr(options, option)) is not None:
            try:
                write_atomically(file, utf8(form(outcome)))
            except OSError as error:
                raise unwritable(f"--{option}", file, error, "give another file") from error
    reply(options, gate.as_text(outcome, columns(people(options))), document=lambda: gate.for_programs(outcome))
    return outcome.exit_code


def import_what_judges() -> None:
    from bench.analyse.history import trends  # noqa: F401


def _level(text: str) -> float:
    value = percentage(text)
    if value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is the level of a bound, and below 50%; 99% is usual")
    return value


def add_thresholds(parser: argparse.ArgumentParser) -> None:
    usual = Rule()
    base = f"accepted nights that make a base (default: {usual.nights})"
    many = partial(whole_number, least=FEWEST_NIGHTS)
    parser.add_argument("--nights", type=many, default=usual.nights, metavar="N", help=base)
    early = "of both while the base has fewer nights, and with --baseline"
    for option, kind, default, text in (
        ("--level", _level, usual.level, "of the prediction bound, over all scenarios of a metric"),
        ("--threshold", percentage, usual.thresholds[STEP_TIME], "a step time that rose by less has not regressed"),
        ("--memory-threshold", percentage, usual.thresholds[MEMORY], "the same of peak memory"),
        ("--early-threshold", percentage, usual.before, early),
    ):
        about = f"{text} (default: {100 * default:g}%%)"
        parser.add_argument(option, type=kind, default=default, metavar="PERCENT", help=about)


def rule_from(options: argparse.Namespace) -> Rule:
    return Rule(
        nights=options.nights,
        level=options.level,
        thresholds={STEP_TIME: options.threshold, MEMORY: options.memory_threshold},
        before=options.early_threshold,
    )


def _new(options: argparse.Namespace) -> str:
    """The folder of the run: among the results, or in the history, whose last finished one may be ``latest``."""
    if options.run == "latest" and options.history is not None and options.results is None:
        last = last_finished(options.history) or find("latest", options.history)  # one that says what is wrong with it
        say(f"note: 'latest' is {last}")
        return last
    if options.run not in ("", "latest") and options.history is not None:
        inside: str = os.path.join(options.history, options.run)
        if not os.path.isdir(os.path.join(options.results or DEFAULT_OUT, options.run)) and os.path.isdir(inside):
            return inside
    return find(options.run, options.results or DEFAULT_OUT)


def _against_one(new: nights.Night, old: nights.Night, rule: Rule, only: list[str] | None) -> "Outcome":
    from bench.analyse.history import gate

    if os.path.realpath(new.path) == os.path.realpath(old.path):
        raise RequestError("--baseline", f"{old.path} is NEW itself", "give another run")
    tonight = gate.measured(new.id, new.digest, only)
    before = gate.measured(old.id, old.digest, only)
    _check_names(only, [*tonight, *before], new)
    why = comparable.obstacles(old.digest, new.digest)
    base = {name: (one,) for name, one in before.items() if one.why is None and not why}
    rows = gate.judge(tonight, base, rule)
    silent = [row for row in rows if row.why in (gate.NO_BASE_VALUE, gate.NO_BASE_VERDICT)]
    rows = [row for row in rows if row not in silent]
    return gate.Outcome(
        run=new.id,
        called=called(new.path),
        rows=tuple(gate.unlike(rows, "; ".join(why)) if why else rows),
        rule=rule,
        against=f"the run {old.id}",
        folder=None,
        obstacles=tuple(why),
        warnings=(
            *(f"{old.id} says nothing of {metric}: not judged" for metric in sorted({row.metric for row in silent})),
            *(() if why else _differences(old, new)),
        ),
    )


def _against_history(
    new: nights.Night, history: nights.Nights, folder: str, rule: Rule, only: list[str] | None
) -> "Outcome":
    """Replay the earlier nights of the same series, and judge this one against the base that they leave."""
    from bench.analyse.history import gate

    others = [
        night
        for night in history.nights  # without the run that is judged, and copies of it
        if night.digest["run"] != new.digest["run"] and night.id != new.id
    ]
    before = [night for night in others if new.digest["utc"] is None or night.when < new.when]
    key = comparable.key(new.digest)
    alike = [night for night in before if comparable.key(night.digest) == key]
    tonight = gate.measured(new.id, new.digest, only)
    base, unsound = _sound_base(alike, rule, list(history.accepted), only)
    _check_names(only, [*tonight, *base], new)
    rows = gate.judge(tonight, base, rule)
    why: list[str] = []
    if before and not alike:
        obstacles = comparable.obstacles(before[-1].digest, new.digest) or ["another series"]
        why = [*obstacles, f"as of {before[-1].id}, the last of {len(before)}"]
    accepted = history.accepted.get(new.id)
    later, most = len(others) - len(before), max(map(len, base.values()), default=0)
    used = {one.night for measured in base.values() for one in measured}
    left_out = [*history.left_out, *unsound]
    last = next((night for night in reversed(alike) if night.id in used), None)
    return gate.Outcome(
        run=new.id,
        called=called(new.path),
        rows=tuple(gate.unlike(rows, "; ".join(why)) if why else rows),
        rule=rule,
        against=f"{count(most, 'accepted night')} in {folder}" if most else folder,
        folder=folder,
        kept=os.path.realpath(os.path.dirname(new.path)) == os.path.realpath(folder),
        obstacles=tuple(why),
        accepted=None if accepted is None else accepted.reason,
        warnings=(
            *([f"{count(later, 'later run')} in {folder} not looked at"] if later else []),
            *(f"left out: {run.why}" for run in left_out[:LISTED]),
            *([f"and {len(left_out) - LISTED} more are left out: see --json"] if len(left_out) > LISTED else []),
            *(_differences(last, new) if last else ()),
        ),
        left_out=tuple(left_out),
    )


def _sound_base(
    alike: list[nights.Night], rule: Rule, accepted: list[str], only: list[str] | None
) -> "tuple[Base, list[nights.LeftOut]]":
    """The base that these nights leave, of verified runs alone; and the runs that are not sound."""
    from bench.analyse.history import gate

    last = deque(gate.replay([(night.id, night.digest) for night in alike], rule, accepted, only), maxlen=1)
    base = last[0][1] if last else {}
    rests_on = {one.night for measured in base.values() for one in measured}
    unsound: list[nights.LeftOut] = []
    for night in alike:
        if night.id in rests_on:
            try:
                nights.verify(night.path)
            except RequestError as error:
                unsound.append(nights.LeftOut(path=night.path, why=error.problem))
    if not unsound:
        return base, []
    paths = {one.path for one in unsound}
    base, more = _sound_base([night for night in alike if night.path not in paths], rule, accepted, only)
    return base, [*unsound, *more]


def _check_names(only: list[str] | None, names: list[str], new: nights.Night) -> None:
    """Refuse a scenario that is nowhere: what is missing never passes."""
    for name in only or ():
        if name not in names:
            remedy = closest(name, [str(one["scenario"]) for one in new.digest["scenarios"]], cutoff=0.4)
            raise NotComparable(f"--scenario: there is no scenario {name!r} in NEW or in its base; {remedy}")


def _differences(old: nights.Night, new: nights.Night) -> list[str]:
    return [f"different since {old.id}: {text}" for text in comparable.differences(old.digest, new.digest)]
