"""What a scenario file declares.

A scenario is one small file, ``scenarios/NAME.py``: a docstring that a person can learn from, and

    from bench.seams.scenario import Scenario

    SCENARIO = Scenario(summary="...", strategy="ddp", precision="O2")

A scenario with a strategy of its own says ``strategy="custom"`` and defines ``setup(job)``, which imports torch inside
and returns a :class:`bench.worker.session.Session`; ``CONTRIBUTING.md`` has an example.
"""

from dataclasses import dataclass

STRATEGIES = ("single", "dp", "ddp", "apex_ddp", "custom")
PRECISIONS = ("O0", "O1", "O2", "O3")
NEEDS = ("cuda", "distributed", "apex.amp", "apex.parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named way to train: a parallel strategy and a precision level.

    ``summary``: one line for ``bench list``. ``strategy``: one of :data:`STRATEGIES`. ``precision``: one of
    :data:`PRECISIONS`. ``needs``: what must be there beyond torch and torchvision, out of :data:`NEEDS`.
    ``half``: ``"fp16"`` or ``"bf16"`` to override the device's own choice (fp16 on a GPU, bf16 on the CPU).
    ``one_process``: for ``custom`` only: one process drives all devices, as in DataParallel.

    Raises ``ValueError`` naming the field when a value is not one of those above.
    """

    summary: str
    strategy: str
    precision: str = "O0"
    needs: tuple[str, ...] = ()
    half: str | None = None
    one_process: bool = False

    def __post_init__(self) -> None:
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("precision", self.precision, PRECISIONS)
        for need in self.needs:
            _one_of("needs", need, NEEDS)
        if self.half is not None:
            _one_of("half", self.half, ("fp16", "bf16"))
        if not self.summary.strip():
            raise ValueError("summary is empty: say in one line what this scenario is")

    def processes(self, devices: int) -> int:
        """How many ranks this scenario has on ``devices`` chosen devices (CPU: on ``--nproc`` ranks)."""
        return 1 if self.strategy in ("single", "dp") or self.one_process else devices

    def replicas(self, devices: int) -> int:
        """Into how many equal parts the global batch is cut."""
        return 1 if self.strategy == "single" else devices

    @property
    def distributed(self) -> bool:
        """Whether its ranks form a process group (also when there is only one of them)."""
        return self.strategy in ("ddp", "apex_ddp") or "distributed" in self.needs


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field}={value!r} is not one of {', '.join(allowed)}")
