"""What the gate takes for worse: numbers that options may replace, without numpy and scipy for ``--help``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STEP_TIME, MEMORY = "step_time", "peak_memory"

METRICS = {STEP_TIME: "step_ms", MEMORY: "peak_total_mib"}
"""The value of a launch in a digest, by metric. Lower is better."""

FEWEST_NIGHTS = 3  # for a prediction bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The thresholds, as fractions. ``thresholds``: by metric, with a prediction bound; ``before``: without one."""

    nights: int = 10
    level: float = 0.99
    thresholds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, 0.01))
    before: float = 0.03
