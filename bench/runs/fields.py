"""The types of fields in run.json, with what values they can have (:mod:`bench.core.codec` checks them)."""

from typing import Annotated

from bench.core.codec import Between, Length, Moment, OneOf
from bench.core.records import PARITIES, STATUSES
from bench.seams.strategy import DASHES, HUES, PRECISIONS

Name = Annotated[str, Length(255)]  # of a scenario, a strategy and what else is part of a file's name
File = Annotated[str, Length(4096)]
Names = tuple[str, ...]
Count = Annotated[int, Between(0, 10**9)]  # how many, or which of them, from 0
Several = Annotated[int, Between(1, 10**6)]  # of ranks, replicas and what else there is at least one of
Batch = Annotated[int, Between(1, 10**9)]
Amount = Annotated[float, Between(0, 10**15)]
"""Of time, memory, energy: what is measured, in the unit that is in the name."""
Flops = Annotated[float, Between(0, 10**24)]  # floating-point operations
Utc = Annotated[str, Moment()]
Status = Annotated[str, OneOf(STATUSES)]
Parity = Annotated[str, OneOf(PARITIES)]
Severity = Annotated[str, OneOf(("invalid", "warning"))]
DeviceKind = Annotated[str, OneOf(("cpu", "cuda"))]
Precision = Annotated[str, OneOf(PRECISIONS)]
Hue = Annotated[str, OneOf(HUES)]
Dash = Annotated[str, OneOf(DASHES)]
Elements = Annotated[int, Between(0, 10**15)]
Pid = Annotated[int, Between(0, 2**63 - 1)]
