"""A switch's declaration: one thing that is turned on in training and goes with many strategies and precision levels.

A switch is one file, ``bench/switches/NAME.py`` or your own: a declaration that needs the standard library alone, and
functions, which import torch inside. A file defines those that it needs. They are called in this order:

    from bench.seams import Switch

    SWITCH = Switch(summary="...", label="channels_last")

    def obstacle(device): ...             # why it cannot be had here, or None; standard library alone
    def begin(parts): ...                 # settings of the process
    def model(parts, model): ...          # the model that is cast to its precision, then wrapped
    def wrapper(parts): ...               # keywords for the wrapper of the strategy, as a dict
    def optimizer(parts): ...             # what the optimizer's groups of parameters get, as a dict
    def module(parts, module): ...        # the wrapped model
    def batch(parts, batch): ...          # in each step: what the forward pass gets
    def effect(session, ran): ...         # None if it took effect, else what was seen instead
    def recipe(switches): ...             # how it is written in a script without bench; standard library alone

``parts`` is a :class:`bench.worker.session.Parts`; ``parts.switches`` has the values of all that are on, by name.
``ran`` is what was read off the live objects after the last step (:mod:`bench.worker.effective`), as a dict.
``recipe`` returns a :class:`bench.seams.Recipe`; a switch that does not define it cannot be written in a script.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from bench.core.dtypes import HALVES
from bench.core.records import Setting
from bench.seams.strategy import PRECISIONS

DEVICES = ("cpu", "cuda")
Device = Annotated[str, DEVICES]
MAY_DEFINE = (
    *("obstacle(device)", "begin(parts)", "model(parts, model)", "wrapper(parts)", "optimizer(parts)"),
    *("module(parts, module)", "batch(parts, batch)", "effect(session, ran)", "recipe(switches)"),
)
RECOVERABLE = ("kernels", "memory", "optimizer", "fresh", "contention", "communication", "stragglers", "data", "host")
"""Parts of a step that a switch may shorten (:mod:`bench.analyse.account`)."""
MOST = 10**6  # of a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One thing that is turned on in training.

    ``summary``: one line for ``bench list``. ``label``: what tables and plots show, with ``{value}`` where it has one.
    ``value``: the default of ``NAME=VALUE``, a whole number or a word; None if it takes none. ``choices``: the words.
    ``excludes``: switches that it cannot be combined with; ``needs``: those that must be on with it. ``overwrites``:
    what a step returns lies where the next step's will, so the loss is copied. ``wrapper``: the class that it gives
    keywords to, so that it goes with strategies that declare it. ``precisions``: the levels that it goes with.
    ``device``: the only kind that it can be had on. ``half``: what half means with it. ``tried_on``: the scenario that
    ``--set all`` turns it on in. ``searched_on``: where ``bench tune`` tries it unasked; nowhere for what cannot gain
    speed. ``slow_start``: how many times as long as without it a launch may take until its first step is over.
    ``double``: whether it is on where numerics are judged in double precision. ``joins_norms``: whether batch norm sees
    the batches of all ranks. ``recovers``: by kind of device and part of a step (:data:`RECOVERABLE`) the share
    that the switch is expected to save, which ``bench run --prove`` predicts from and scores. ``already``: the field of
    ``effective`` in run.json that is true where it is on anyway. ``convolutions``: whether it is for these alone.
    """

    summary: str
    label: str
    value: int | str | None = None
    choices: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    overwrites: bool = False
    wrapper: str | None = None
    precisions: tuple[Annotated[str, PRECISIONS], ...] = PRECISIONS
    device: Device | None = None
    half: Annotated[str, tuple(HALVES)] | None = None
    tried_on: str = "ddp"
    searched_on: tuple[Device, ...] = DEVICES
    slow_start: float = 1.0
    double: bool = True
    joins_norms: bool = False
    recovers: Mapping[Device, Mapping[Annotated[str, RECOVERABLE], float]] = field(default_factory=dict)
    already: str | None = None
    convolutions: bool = False

    def contradiction(self) -> str | None:
        """The problem with values that each have the type of their field, or None."""
        if not all(0.0 < share <= 1.0 for shares in self.recovers.values() for share in shares.values()):
            return f"recovers={self.recovers!r}: a share is above 0 and at most 1"
        if not 1 <= self.slow_start <= 100:
            return f"slow_start={self.slow_start!r} is not a number from 1 to 100"
        try:
            if self.value is not None:
                self.value_of(str(self.value))
        except ValueError as error:
            return f"value={self.value!r}: {error}"
        return None

    def value_of(self, text: str) -> Setting:
        """The value that ``text`` is. Raises ``ValueError`` that says what is allowed."""
        if self.value is None:
            raise ValueError("it takes no value")
        if isinstance(self.value, str):
            if text not in self.choices:
                raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}")
            return text
        if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) <= MOST:
            raise ValueError(f"{text[:20]!r} is not a whole number from 1 to {MOST:,}")
        return int(text)
