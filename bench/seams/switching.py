"""From ``ddp+channels_last+bucket_mb=50`` to a scenario with these switches on, and whether they go together.

A precision level behind the name makes a product that has no file: ``fsdp2+o1``.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from types import ModuleType

from bench.core.errors import RequestError, described
from bench.core.records import SwitchOn
from bench.seams import discover
from bench.seams.discover import SCENARIO, STRATEGY, SWITCH, Found, load_strategy, names
from bench.seams.execute import check_functions, check_values, declared, line_in, load_file
from bench.seams.scenario import Scenario
from bench.seams.strategy import LEVELS, Rank, Strategy
from bench.seams.switch import Switch


def load(name: str, file: str) -> Found:
    """Execute a scenario's file, and its strategy's, and take what they declare. Raises as :func:`load_file`."""
    found = declared(_load, Found, name, file, SCENARIO)
    if os.path.dirname(file) == SCENARIO.folder:
        return found
    if isinstance(found.scenario.strategy, str) and os.path.dirname(found.strategy_file) == STRATEGY.folder:
        return replace(found, strategy=load_strategy(found.strategy_name, found.strategy_file)[0])
    asked = found.strategy_name, found.strategy_file
    strategy = replace(found.strategy, ranks=partial(_own_ranks, *asked), obstacle=partial(_own_obstacle, *asked))
    return replace(found, strategy=strategy)


def _load(name: str, file: str) -> Found:
    module = load_file(name, file, SCENARIO)
    scenario: Scenario = module.SCENARIO
    if isinstance(scenario.strategy, Strategy):
        strategy, strategy_name, strategy_file = scenario.strategy, name, file
        if os.path.dirname(file) != SCENARIO.folder:
            check_values(strategy, file, SCENARIO)
            check_functions(module, file, STRATEGY, strategy)
    else:
        strategy_name = scenario.strategy
        files = names(STRATEGY)
        if strategy_name not in files:
            remedy = f"choose from {', '.join(files)}, or declare your own with strategy=Strategy(...)"
            raise RequestError("--scenario", f"{file}: there is no strategy={strategy_name!r}", remedy)
        strategy_file = files[strategy_name]
        strategy, its_module = load_strategy(strategy_name, strategy_file)
        _check_options(scenario, its_module, file)
    what = f"{file}: precision={scenario.precision!r}"
    if scenario.precision not in strategy.precisions:
        remedy = f"choose from {', '.join(strategy.precisions)}"
        raise RequestError("--scenario", f"{what} does not go with strategy {strategy_name!r}", remedy)
    if "apex.amp" in scenario.needs and "apex" not in strategy.amp:
        why = f"{what} by apex.amp does not go with strategy {strategy_name!r}"
        raise RequestError("--scenario", why, "take 'apex.amp' out of needs: the native one goes with it")
    found = Found(
        base=name,
        file=file,
        scenario=scenario,
        doc=(module.__doc__ or "").strip(),
        strategy=strategy,
        strategy_name=strategy_name,
        strategy_file=strategy_file,
        half=scenario.half,
    )
    if not scenario.switches:
        return found
    return with_switches(found, scenario.switches, "--scenario", named=False)


def _check_options(scenario: Scenario, strategy: ModuleType, file: str) -> None:
    """A value must be of its default's type, and positive if that is."""
    if not scenario.options:
        return
    parameters = inspect.signature(strategy.build).parameters
    defaults = {name: one.default for name, one in list(parameters.items())[1:] if one.kind is not one.VAR_KEYWORD}
    for name, value in scenario.options.items():
        if name not in defaults:
            remedy = f"choose from {', '.join(defaults)}" if defaults else "leave options out"
            raise RequestError("--scenario", f"{file}: build of its strategy has no option {name!r}", remedy)
        usual = defaults[name]
        if usual is None or usual is inspect.Parameter.empty:
            continue
        if isinstance(usual, bool | str):
            kind, alike = "a text" if isinstance(usual, str) else "True or False", type(value) is type(usual)
        else:
            kind = "a whole number" if isinstance(usual, int) else "a number"
            alike = type(value) is int or (type(value) is float and isinstance(usual, float))
            if usual > 0:
                kind, alike = f"{kind} above 0", alike and float(value) > 0
        if not alike:
            what = f"{file}: option {name}={value!r} is not {kind}"
            raise RequestError("--scenario", what, f"write {name}={usual!r}, say")


@cache
def _own_ranks(name: str, file: str, devices: int) -> tuple[Rank, ...]:
    """The result of ``ranks(devices)`` of a strategy's file."""

    def refusal(returned: object) -> RequestError:
        what = f"{file}: ranks({devices}) returned {returned!r}"
        return RequestError(STRATEGY.option, what, f"return a tuple of Rank, with devices below {devices}")

    def look(name: str, file: str) -> tuple[Rank, ...]:
        returned = load_strategy(name, file)[0].ranks(devices)
        if not isinstance(returned, tuple) or not all(isinstance(one, Rank) for one in returned):
            raise refusal(returned)
        return returned

    ranks = declared(look, tuple[Rank, ...], name, file, STRATEGY)
    given = set(range(devices))
    if not ranks or any(
        not one.devices or not given.issuperset(one.devices) or min(one.replicas, one.on_cpu or 1) < 1 for one in ranks
    ):
        raise refusal(ranks)
    return ranks


@cache
def _own_obstacle(name: str, file: str, device: str, devices: int) -> str | None:
    """The result of ``obstacle(device, devices)`` of a strategy's file."""

    def look(name: str, file: str) -> str | None:
        return load_strategy(name, file)[0].obstacle(device, devices)

    return declared(look, str | None, name, file, STRATEGY)  # type: ignore[arg-type]


def scenario(request: str, more: Sequence[str] = ()) -> Found:
    """The scenario that is asked for as ``NAME+SWITCH+SWITCH=VALUE``, with ``more`` switches on: those of ``--with``.

    Raises :class:`RequestError` that names the option.
    """
    parts, files = request.split("+"), discover.names()  # a name or a path may have a plus in it
    heads = ["+".join(parts[:count]) for count in range(len(parts), 0, -1)]
    named = next((one for one in heads if one in files or (one.endswith(".py") and os.path.isfile(one))), parts[0])
    specs = parts[named.count("+") + 1 :]
    found = load(*discover.resolve(named))
    found = with_switches(found, specs, "--scenario") if specs else found
    return with_switches(found, more, "--with") if more else found


def with_switches(found: Found, specs: Sequence[str], option: str, *, named: bool = True) -> Found:
    """A scenario with more switches on, in the order of :func:`discover.names`, which its name has behind pluses.

    A precision level may be among them, which comes first. ``named``: False for those of the scenario's own file, where
    levels have no place. Raises :class:`RequestError`.
    """
    levels = [spec for spec in specs if spec.strip().lower() in LEVELS] if named else []
    for asked in levels:
        level, has, offered = LEVELS[asked.strip().lower()], found.scenario.precision, found.strategy.precisions
        if has != "O0":
            raise RequestError(option, f"{found.name} is at {has} already", "leave the level out, or name one in fp32")
        if level not in offered:
            what = f"{level} does not go with {found.name}: its strategy has {', '.join(offered)}"
            raise RequestError(option, what, "leave one of the two out")
        found = replace(found, scenario=replace(found.scenario, precision=level), level=level.lower())
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
    return replace(found, switches=ordered, half=half)


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
    if other := next((name for name in declared.excludes if name in on), None):
        remedy = f"leave one of them out of {found.name}"
        raise RequestError(option, f"{one.name} and {other} exclude each other", remedy)
    if lacking := next((name for name in declared.needs if name not in on), None):
        raise RequestError(option, f"{one.name} needs {lacking}", f"add it: {found.base}+{lacking}+{one.name}")
    reason, level = found.strategy.without.get(one.name), found.scenario.precision
    if declared.wrapper not in (None, *(kind.wrapper for kind in found.strategy.implementations)):
        reason = f"it sets what {str(declared.wrapper).rpartition('.')[2]} has"
    elif not reason and level not in declared.precisions:
        reason = f"it is for {', '.join(declared.precisions)}, not {level}"
    if reason:
        what = f"{one.name} does not go with {found.name}: {reason}"
        raise RequestError(option, what, "leave one of the two out")


@cache  # many scenarios may have it
def load_switch(name: str, file: str) -> Switch:
    """Execute a switch's file and take its declaration. Raises as :func:`load_file`."""
    return declared(lambda name, file: switch_module(name, file).SWITCH, Switch, name, file, SWITCH)


@cache
def switch_module(name: str, file: str) -> ModuleType:
    """The module that defines a switch's functions. Raises as :func:`load_file`."""
    return load_file(name, file, SWITCH)


def switch_obstacle(one: SwitchOn, device: str) -> str | None:
    """Why a switch cannot be had here, or None. Raises :class:`RequestError` where its file cannot say."""
    only = load_switch(one.name, one.file).device
    if only is not None and device != only:
        return f"{one.name} needs {'CUDA and this is the CPU' if only == 'cuda' else 'the CPU and this is CUDA'}"
    return declared(partial(_obstacle, device), str | None, one.name, one.file, SWITCH)  # type: ignore[arg-type]


def _obstacle(device: str, name: str, file: str) -> str | None:
    look = getattr(switch_module(name, file), "obstacle", None)
    if look is None:
        return None
    try:
        why = look(device)
    except Exception as error:  # whatever the user's function raises is the finding
        what = f"{file}:{line_in(file, error)}: obstacle({device!r}) fails: {described(error)}"
        raise RequestError(SWITCH.option, what, "fix the file") from error
    return None if why is None else str(why)
