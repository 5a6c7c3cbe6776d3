"""The scenarios that ``--scenario``, ``--set`` and ``--with`` ask for."""

import argparse

from bench import machine
from bench.console import say
from bench.core.errors import RequestError, closest
from bench.experiments.plan.ladder import ALONE, RUNGS
from bench.seams import discover, switching
from bench.seams.discover import SWITCH, Found
from bench.seams.switching import scenario

LADDER = "ladder"
PUBLISHED = "published"
MORE_SETS = ("strategies", "frameworks", LADDER, "all")
"""Beside those that are lists of names."""


def scenarios_of(
    asked: list[str] | None, set_: str | None = None, switches: list[str] | None = None, device: str = "auto"
) -> tuple[Found, ...]:
    """Each with its switches on. Raises :class:`RequestError` in the name of the option that is wrong."""
    if set_ is not None and asked is not None:
        raise RequestError("--set", "--scenario names scenarios, too", "leave one of them out")
    names = ",".join(asked or named(set_ or PUBLISHED, device))
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise RequestError("--scenario", "no scenario is named", "name one, or leave the option out for all ten")
    more = [part.strip() for part in ",".join(switches or ()).split(",")] if switches is not None else []
    scenarios: dict[str, Found] = {}
    for part in parts:
        one = scenario(part, more)
        if one.name in scenarios:
            raise RequestError("--scenario", f"{one.name} is named twice", "use --launches R to repeat it")
        scenarios[one.name] = one
    if set_ == LADDER:  # of which this machine may not be able to climb all
        kind = machine.choose_device(device)[0]
        for one in list(scenarios.values()):
            if reason := next(filter(None, (switching.switch_obstacle(on, kind) for on in one.switches)), None):
                say(f"{one.name} is left out: {reason}")
                del scenarios[one.name]
    return tuple(scenarios.values())


def with_untuned(scenarios: tuple[Found, ...], options: argparse.Namespace) -> tuple[Found, ...]:
    """The ten, and on several GPUs ``ddp_untuned``, which goes without cuDNN's search as ``dp`` does there."""
    device, gpus, _ = machine.choose_device(options.device)
    if device == "cpu" or len(machine.choose_gpus(options.gpus, gpus)) < 2:
        return scenarios
    return (*scenarios, scenario("ddp_untuned", options.switches or []))


def named(name: str, device: str = "auto") -> tuple[str, ...]:
    """The scenarios of a set."""
    shipped = discover.names()
    if name in ("strategies", "frameworks"):  # each in full precision
        declared = {one: switching.load(one, file).scenario for one, file in shipped.items()}
        full = {one: scenario for one, scenario in declared.items() if scenario.precision == "O0"}
        return tuple(one for one, scenario in full.items() if bool(scenario.packages) == (name == "frameworks"))
    if name == LADDER:
        kind = machine.choose_device(device)[0]
        return RUNGS[kind] + ALONE[kind]
    if name == "all":
        return (*shipped, *switched())
    sets: dict[str, tuple[str, ...]] = {PUBLISHED: discover.DEFAULT, "scenarios": tuple(shipped)}
    if name not in sets:
        raise RequestError("--set", f"there is no set {name!r}", closest(name, [*MORE_SETS, *sets]))
    return sets[name]


def switched(every_word: bool = False) -> tuple[str, ...]:
    """Each switch in the scenario that it is tried on; ``every_word``: once for each word that it takes."""
    names = []
    for name, file in discover.names(SWITCH).items():
        one = switching.load_switch(name, file)
        names.append(f"{one.tried_on}+{name}")
        if every_word:
            names += [f"{one.tried_on}+{name}={word}" for word in one.choices if word != one.value]
    return tuple(names)
