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
from typing import Annotated

from bench.core.dtypes import HALVES
from bench.core.records import Setting
from bench.seams.strategy import APEX_MODULES, PRECISIONS, Strategy

NEEDS = ("cuda", *APEX_MODULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named way to train: a strategy with its options, a precision level, and switches.

    ``summary``: one line for ``bench list``. ``strategy``: the name of one, or its own. ``options``: keywords of its
    ``build``, which a table shows with its label. ``needs``: what must be there beyond torch and torchvision;
    ``packages``: what it imports besides, by the name that pip knows. ``half``: overrides the device's own choice (fp16
    on a GPU, bf16 on the CPU). ``switches``: those that are on, as ``NAME`` or ``NAME=VALUE``.
    """

    summary: str
    strategy: str | Strategy
    options: Mapping[str, Setting] = field(default_factory=dict)
    precision: Annotated[str, PRECISIONS] = "O0"
    needs: tuple[Annotated[str, NEEDS], ...] = ()
    packages: tuple[str, ...] = ()
    half: Annotated[str, tuple(HALVES)] | None = None
    switches: tuple[str, ...] = ()
