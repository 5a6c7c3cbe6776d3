"""A history of nights whose truth is known: digests (:mod:`standin.gated`) with what is planted."""

import hashlib
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from . import gated

FIRST_NIGHT = datetime(2021, 1, 4, 1, 30, tzinfo=UTC)
CPU = {"device": "cpu", "hardware": ["A CPU"], "conditions": {"host": "host", "driver": None, "power_limit_w": []}}

Factor = Callable[[int, str], float]
"""By what the step time of a night (from 0) and a scenario is more than usual."""


def write_nights(
    out: Path,
    count: int,
    *,
    scenarios: Sequence[str] = gated.TEN,
    launches: int = 5,
    slower: Factor = lambda night, scenario: 1.0,
    also: Callable[[int, dict[str, Any]], None] = lambda night, digest: None,
    gpu: bool = False,
    repeat_commit: int = 1,
) -> list[Path]:
    """So many nights in ``out``, the oldest first; returns their folders.

    A night has a level of its own, and so has each launch (standard deviations of logarithms: 0.006 and 0.005).
    ``slower``: what is planted. ``also``: changes a digest before it is sealed. ``repeat_commit``: nights that have the
    same commit. ``gpu``: on GPUs that tell their energy, else on the CPU.
    """
    noise = random.Random(1)
    written = []
    for night in range(count):
        when = FIRST_NIGHT + timedelta(days=night)
        rows = []
        for place, name in enumerate(scenarios):
            level = 200.0 / (1 + place) * slower(night, name) * noise.lognormvariate(0.0, 0.006)
            times = [level * noise.lognormvariate(0.0, 0.005) for _ in range(launches)]
            rows.append(gated.scenario(name, times, memory=2000.0 + 100 * place))
            if gpu:
                energies_j = [2.5 * level * noise.lognormvariate(0.0, 0.01) for _ in times]
                rows[-1]["launches"] |= {"energy_per_1000_j": energies_j, "sm_clock_mhz": [1755.0] * launches}
        about = {
            "run": f"{when:%Y%m%dT%H%M%SZ}-{noise.getrandbits(32):08x}",
            "utc": f"{when:%Y-%m-%dT%H:%M:%SZ}",
            "git": {"commit": hashlib.sha1(str(night // repeat_commit).encode()).hexdigest(), "dirty": False},
        }
        said = gated.digest(night, rows, **about, **({} if gpu else CPU))
        also(night, said)
        written.append(gated.write(out, said))
    return written
