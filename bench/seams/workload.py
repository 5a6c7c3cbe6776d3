"""A workload's declaration: the training that every scenario of a run does.

A workload is one file, ``bench/workloads/NAME.py`` or your own: a declaration that needs the standard library alone,
and functions that import torch inside.

    from bench.seams import Workload

    WORKLOAD = Workload(summary="...", unit="samples", global_batch={"cpu": 8, "cuda": 128}, settings={"width": 64})

    def model(work): ...                  # a module on the CPU with random weights; bench seeds before
    def example(work, index): ...         # tensors, by index alone: the same in every process
    def loss(model, batch): ...           # the mean loss of a batch, a scalar tensor; calls the model itself
    def optimizer(work, parameters): ...

``work`` has the settings as attributes, and ``seed``, ``global_batch`` and ``device``. An example is a tensor or a
tuple, list or dict of them. A file may also define ``collate(examples)`` (default: torch's), ``check(work)``, which
refuses settings with a ``RequestError``, and ``weight(batch)``: what a part of a batch counts in the mean where that is
not the number of its examples but, say, of its boxes; a number or a tensor, which ranks add up in each step.

``narrow(work)`` makes the model with fewer weights in its layers, for what is judged in double precision, where a large
one would take most of a short run; None: it has no narrower one.

``before_step(model, optimizer)`` is called when the gradients of all ranks are there, in fp32 and unscaled, as for
clipping; ``after_step(model, optimizer)`` behind the optimizer's step, as for an average of the weights. Their
``model`` has the parameters that the optimizer updates, which may be master weights. ``schedule(optimizer)`` makes a
scheduler, whose ``step()`` ends each step. All three are for several copies of the model in one process, so what they
keep from step to step belongs on the optimizer.

A workload that ``reads`` real data has its folder in ``work.data``, or None: then ``example`` makes some of the same
form. It defines ``size(work)``, the number of examples in the folder, which is called first in each process. What is
drawn at random, such as a crop, depends on the seed and the index too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from bench.core.records import Setting
from bench.seams.switch import DEVICES

FUNCTIONS = ("model(work)", "example(work, index)", "loss(model, batch)", "optimizer(work, parameters)")
MAY_DEFINE = (
    *("collate(examples)", "weight(batch)", "check(work)", "size(work)", "narrow(work)"),
    *("before_step(model, optimizer)", "after_step(model, optimizer)", "schedule(optimizer)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The training of every scenario of a run.

    ``unit``: what is counted, in the plural, such as ``samples``; ``unit_short``: in tables. ``global_batch``: the
    default, one number or one by kind of device. ``settings``: what ``--setting NAME=VALUE`` changes, with defaults,
    likewise; a value keeps the type of its default. ``title``: with settings in braces; default: its name. ``imports``:
    modules that are imported once for all ranks. ``example_mib``: what autograd keeps of one example in fp32; with it,
    the default batch halves until it fits a GPU. ``units_per_example``: a number, or the name of the setting that has
    it. ``reads``: what ``--data`` must hold, in words; empty if it reads no data.
    """

    summary: str
    unit: str
    unit_short: str = ""
    global_batch: int | Mapping[str, int]
    settings: Mapping[str, Setting | Mapping[str, Setting]] = field(default_factory=dict)
    title: str = ""
    imports: tuple[str, ...] = ()
    example_mib: float = 0.0
    units_per_example: int | str = 1
    reads: str = ""

    def contradiction(self) -> str | None:
        """The problem with values that each have the type of their field, or None."""
        for name, default in {"global_batch": self.global_batch, **self.settings}.items():
            if isinstance(default, Mapping) and set(default) != set(DEVICES):
                return f"{name}={default!r} does not have one value each for cpu and cuda"
            if not name.isidentifier():
                return f"settings: {name!r} is not a name"
        if self.example_mib < 0:
            return f"example_mib={self.example_mib!r} is not a number of MiB"
        for device in DEVICES:
            settings = self.settings_on(device)
            each, batch = self.units_in(settings), self.batch_on(device)
            if type(each) is not int or each < 1:
                what = "neither a whole number of at least 1 nor a setting that is one"
                return f"units_per_example={self.units_per_example!r} is {what}"
            if batch < 1:
                return f"global_batch={batch!r} is not a whole number of at least 1"
            try:
                self.title_of(settings)
            except (KeyError, IndexError, AttributeError, ValueError) as error:
                return f"title={self.title!r} cannot be made of the settings: {error}"
        return None

    def batch_on(self, device: str) -> int:
        return self.global_batch if isinstance(self.global_batch, int) else self.global_batch[device]

    def settings_on(self, device: str) -> dict[str, Setting]:
        return {
            name: default[device] if isinstance(default, Mapping) else default
            for name, default in self.settings.items()
        }

    def units_in(self, settings: Mapping[str, Setting]) -> int:
        """Units of one example with these settings."""
        each = self.units_per_example
        return cast(int, settings.get(each)) if isinstance(each, str) else each

    def title_of(self, settings: Mapping[str, object]) -> str:
        """The title with these settings, such as ``resnet101, 64 px``; empty for its name."""
        return self.title.format_map(settings)


def setting_from(text: str, default: Setting) -> Setting:
    """``text`` as a value of the type of ``default``. Raises ``ValueError`` that says which type that is."""
    if isinstance(default, str):
        return text
    kind, word = next(
        (kind, word)
        for kind, word in ((bool, "true or false"), (int, "a whole number"), (float, "a finite number"))
        if isinstance(default, kind)
    )
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not {word}")
    return value
