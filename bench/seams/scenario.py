"""The declaration of a scenario's file.

A scenario is one small file, ``scenarios/NAME.py``: a docstring that a person can learn from, and

    from bench.seams import Scenario

    SCENARIO = Scenario(summary="...", strategy="ddp", precision="O2")
    SCENARIO = Scenario(summary="...", strategy="averaging", options={"period": 8})
    SCENARIO = Scenario(summary="...", strategy="ddp", switches=("channels_last", "bucket_mb=50"))

A scenario with a strategy of its own declares it in place of a name, ``strategy=Strategy(...)``, and defines
``build(parts)``; ``CONTRIBUTING.md`` has an example.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.core.dtypes import HALVES
from bench.core.records import Setting
from bench.seams.strategy import APEX_MODULES, PRECISIONS, Strategy, names_in, one_of

NEEDS = ("cuda", *APEX_MODULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named way to train: a strategy with its options, a precision level, and switches.

    ``summary``: one line for ``bench list``. ``strategy``: the name of one, or its own. ``options``: keywords of its
    ``build``, which a table shows with its label. ``needs``: what must be there beyond torch and torchvision;
    ``packages``: what it imports besides, by the name that pip knows. ``half``: overrides the device's own choice (fp16
    on a GPU, bf16 on the CPU). ``switches``: those that are on, as ``NAME`` or ``NAME=VALUE``.

    Raises ``ValueError`` naming the field when a value is not allowed.
    """

    summary: str
    strategy: str | Strategy
    options: Mapping[str, Setting] = field(default_factory=dict)
    precision: str = "O0"
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    half: str | None = None
    switches: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str | Strategy):
            raise ValueError(f"strategy={self.strategy!r} is neither a name nor a Strategy")
        if not isinstance(self.options, Mapping) or not all(isinstance(one, Setting) for one in self.options.values()):
            raise ValueError(f"options={self.options!r} is not a dict of texts, numbers and bools")
        one_of("precision", self.precision, PRECISIONS)
        for need in self.needs:
            one_of("needs", need, NEEDS)
        if self.half is not None:
            one_of("half", self.half, tuple(HALVES))
        names_in("switches", self.switches)
        names_in("packages", self.packages)
        if not self.summary.strip():
            raise ValueError("summary is empty: say in one line what this scenario is")
