"""From ``ddp+channels_last+bucket_mb=50`` to a scenario with these switches on, and whether they go together.

A precision level behind the name makes a product that has no file: ``fsdp2+o1``.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from types import ModuleType

from bench.core.errors import RequestError, described
from bench.core.records import SwitchOn
from bench.seams import discover
from bench.seams.discover import SWITCH, Found
from bench.seams.strategy import LEVELS
from bench.seams.switch import Switch


def scenario(request: str, more: Sequence[str] = ()) -> Found:
    """The scenario that is asked for as ``NAME+SWITCH+SWITCH=VALUE``, with ``more`` switches on: those of ``--with``.

    Raises :class:`RequestError` that names the option.
    """
    named, specs = _split(request)
    found = discover.load(*discover.resolve(named))
    found = with_switches(found, specs, "--scenario") if specs else found
    return with_switches(found, more, "--with") if more else found


def _split(request: str) -> tuple[str, list[str]]:
    """A name or a path, either of which may have a plus in it, and the switches after it."""
    parts = request.split("+")
    known = discover.names()
    for count in range(len(parts), 0, -1):
        named = "+".join(parts[:count])
        if named in known or (named.endswith(".py") and os.path.isfile(named)):
            return named, parts[count:]
    return parts[0], parts[1:]


def with_switches(found: Found, specs: Sequence[str], option: str, *, named: bool = True) -> Found:
    """A scenario with more switches on, in the order of :func:`discover.names`, which its name has behind pluses.

    A precision level may be among them, which comes first. ``named``: False for those of the scenario's own file, which
    its name says nothing of. Raises :class:`RequestError`.
    """
    levels = [spec for spec in specs if spec.strip().lower() in LEVELS] if named else []
    for level in levels:
        found = _with_level(found, level.strip().lower(), option)
    on = {one.name: one for one in found.switches}
    for spec in (spec for spec in specs if spec not in levels):
        one = switch_on(spec, option)
        if one.name in on:
            raise RequestError(option, f"{one.name} is on twice in {found.name}", "turn it on once")
        on[one.name] = one
    place = {name: number for number, name in enumerate(discover.names(SWITCH))}
    ordered = tuple(sorted(on.values(), key=lambda one: (place.get(one.name, len(place)), one.name)))
    half = found.half
    for one in ordered:
        declared = load_switch(one.name, one.file)
        _check_goes_with(one, declared, found, list(on), option)
        half = declared.half or half
    with_them = replace(found, switches=ordered, half=half)
    return replace(with_them, name=found.base + with_them.turned_on) if named else with_them


def _with_level(found: Found, asked: str, option: str) -> Found:
    """A scenario in fp32 at another precision level."""
    level, has = LEVELS[asked], found.scenario.precision
    if has != "O0":
        raise RequestError(option, f"{found.name} is at {has} already", "leave the level out, or name one in fp32")
    known = found.strategy.precisions
    if level not in known:
        what = f"{level} does not go with {found.name}: its strategy has {', '.join(known)}"
        raise RequestError(option, what, "leave one of the two out")
    made = replace(found, scenario=replace(found.scenario, precision=level), level=asked)
    return replace(made, name=found.base + made.turned_on)


def switch_on(spec: str, option: str) -> SwitchOn:
    """The switch that is asked for as ``NAME`` or ``NAME=VALUE``. Raises :class:`RequestError`."""
    asked, equals, text = spec.strip().partition("=")
    name, file = discover.resolve(asked, replace(SWITCH, option=option))
    declared = load_switch(name, file)
    value = declared.value
    if equals:
        try:
            value = declared.value_of(text)  # type: ignore[assignment]
        except ValueError as error:
            remedy = "write its name alone" if declared.value is None else f"write {name}={declared.value}, say"
            raise RequestError(option, f"{name}: {error}", remedy) from error
    usual = value == declared.value
    return SwitchOn(name=name, file=file, value=True if value is None else value, usual=usual)


def _check_goes_with(one: SwitchOn, declared: Switch, found: Found, on: Sequence[str], option: str) -> None:
    """Raise :class:`RequestError` for a switch that this scenario cannot take."""
    other = next((name for name in declared.excludes if name in on), None)
    if other is not None:
        raise RequestError(
            option, f"{one.name} and {other} exclude each other", f"leave one of them out of {found.name}"
        )
    lacking = next((name for name in declared.needs if name not in on), None)
    if lacking is not None:
        raise RequestError(option, f"{one.name} needs {lacking}", f"add it: {found.base}+{lacking}+{one.name}")
    what = f"{one.name} does not go with {found.name}"
    wrappers = [kind.wrapper for kind in found.strategy.implementations]
    if declared.wrapper is not None and declared.wrapper not in wrappers:
        why = f"it sets what {declared.wrapper.rpartition('.')[2]} has"
        raise RequestError(option, f"{what}: {why}", "leave one of the two out")
    if reason := found.strategy.without.get(one.name):
        raise RequestError(option, f"{what}: {reason}", "leave one of the two out")
    level = found.scenario.precision
    if level not in declared.precisions:
        raise RequestError(
            option, f"{what}: it is for {', '.join(declared.precisions)}, not {level}", "leave one of the two out"
        )


@cache  # many scenarios may have it
def load_switch(name: str, file: str) -> Switch:
    """Execute a switch's file and take its declaration. Raises as :func:`discover.load_file`."""
    return discover.declared(_load_switch, Switch, name, file, SWITCH)


def _load_switch(name: str, file: str) -> Switch:
    declared: Switch = switch_module(name, file).SWITCH
    return declared


@cache
def switch_module(name: str, file: str) -> ModuleType:
    """The module that defines a switch's functions. Raises as :func:`discover.load_file`."""
    return discover.load_file(name, file, SWITCH)


def switch_obstacle(one: SwitchOn, device: str) -> str | None:
    """Why a switch cannot be had here, or None. Raises :class:`RequestError` where its file cannot say."""
    only = load_switch(one.name, one.file).device
    if only is not None and device != only:
        return f"{one.name} needs {'CUDA' if only == 'cuda' else 'the CPU'}, and this is {device}"
    return discover.declared(partial(_obstacle, device), str | None, one.name, one.file, SWITCH)  # type: ignore[arg-type]


def _obstacle(device: str, name: str, file: str) -> str | None:
    look = getattr(switch_module(name, file), "obstacle", None)
    if look is None:
        return None
    try:
        found = look(device)
    except Exception as error:  # whatever the user's function raises is the finding
        what = f"{file}:{discover.line_in(file, error)}: obstacle({device!r}) fails: {described(error)}"
        raise RequestError(SWITCH.option, what, "fix the file") from error
    return None if found is None else str(found)
