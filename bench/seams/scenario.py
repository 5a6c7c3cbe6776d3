"""What a scenario file declares.

A scenario is one small file, ``scenarios/NAME.py``: a docstring that a person can learn from, and

    from bench.seams import Scenario

    SCENARIO = Scenario(summary="...", strategy="ddp", precision="O2")

A scenario with a strategy of its own declares it in place of a name, ``strategy=Strategy(...)``, and defines
``build(parts)``; ``CONTRIBUTING.md`` has an example.
"""

from dataclasses import dataclass

from bench.seams.strategy import APEX_MODULES, PRECISIONS, Strategy, one_of

NEEDS = ("cuda", *APEX_MODULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named way to train: a strategy and a precision level.

    ``summary``: one line for ``bench list``. ``strategy``: the name of one, or its own. ``needs``: what must be there
    beyond torch and torchvision. ``half``: overrides the device's own choice (fp16 on a GPU, bf16 on the CPU).

    Raises ``ValueError`` naming the field when a value is not allowed.
    """

    summary: str
    strategy: str | Strategy
    precision: str = "O0"
    needs: tuple[str, ...] = ()
    half: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str | Strategy):
            raise ValueError(f"strategy={self.strategy!r} is neither a name nor a Strategy")
        one_of("precision", self.precision, PRECISIONS)
        for need in self.needs:
            one_of("needs", need, NEEDS)
        if self.half is not None:
            one_of("half", self.half, ("fp16", "bf16"))
        if not self.summary.strip():
            raise ValueError("summary is empty: say in one line what this scenario is")
