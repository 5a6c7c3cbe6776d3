"""Which algorithm all-reduces take, by number of ranks and size: where it changes, no fit holds any longer.

NCCL's log names it, but writing the log takes time in small all-reduces. So only diagnostic launches have a log. They
reduce once, untimed, each size that the launches of all-reduces time. For numbers of ranks that were not measured it is
that of the nearest ones. It is unknown where those differ, for more GPUs linked by NVLink than were measured, and
between hosts if all were measured on one: there NCCL goes over a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.runs.document import RunDocument
from bench.runs.experiments import Scaling


def family(algorithm: str | None) -> str:
    """``RING`` of ``RING/LL``: the protocol is a break in the times at most."""
    return (algorithm or "").partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithms:
    """``read``: by measured number of ranks, of NCCL's log, by algorithm the bytes of the smallest and of the largest;
    nothing without a log. ``nvlink``: whether GPUs are linked by it. ``per_host``: GPUs of a host, None where that does
    not matter."""

    read: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    nvlink: bool = False
    per_host: int | None = None

    @classmethod
    def of(cls, document: RunDocument) -> "Algorithms":
        scaling = document.begun(Scaling)
        read = {one.processes: dict[str, tuple[int, ...]]() for one in scaling.bandwidth}
        read |= {
            one.processes: {
                name.removeprefix("AllReduce "): (sizes[0], sizes[-1])
                for name, sizes in one.looks[0].nccl.algorithms.items()
                if name.startswith("AllReduce ")
            }
            for one in scaling.diagnostics
            if one.looks
        }
        talked = [one.transport for one in scaling.bandwidth if one.transport and one.transport.backend == "nccl"]
        per_host = min(len(one.gpus) for one in document.machines)
        return cls(
            read=read,
            nvlink=any((one.interface or "").startswith("NVLink") for one in talked),
            per_host=per_host if talked and per_host else None,
        )

    def at(self, ranks: int, size: float) -> str | None:
        """Such as ``RING/LL``, or ``network RING/LL`` between hosts; without the algorithm where no log names one.
        None: maybe that of no number that was measured."""
        between = self._between_hosts(ranks)
        alike = [one for one in self.read if self._between_hosts(one) == between]
        below = max((one for one in alike if one <= ranks), default=None)
        above = min((one for one in alike if one >= ranks), default=None)
        nearest = {_nearest(self.read[one], size) for one in (below, above) if one is not None}
        if len({family(one) for one in nearest}) > 1 or (self.nvlink and not between and above is None):
            return None
        return f"{'network' if between else ''} {min(nearest, default='')}".strip()

    def why(self, ranks: int) -> str:
        """Why the algorithm of this number is unknown."""
        if self._between_hosts(ranks):
            return f"a host has {self.per_host:,} GPUs, and between hosts NCCL goes over a network"
        if ranks > max(self.read):
            return "over NVLink NCCL may take another algorithm with more GPUs than were measured"
        return "NCCL takes one algorithm with fewer ranks and another with more"

    def _between_hosts(self, ranks: int) -> bool:
        return self.per_host is not None and ranks > self.per_host


RING = Algorithms()  # one ring, whatever the number of ranks: gloo's


def _nearest(sizes: Mapping[str, tuple[int, ...]], size: float) -> str:
    """The algorithm whose sizes are nearest; of several that have it, that with the fewest others."""
    rank = {name: (beyond(of, size), of[-1] / max(of[0], 1)) for name, of in sizes.items()}
    return min(rank, key=rank.__getitem__, default="")


def beyond(sizes: Sequence[int], size: float) -> float:
    """How many times as small as the smallest of these a size is, or as large as the largest; 1 in between."""
    return max(1.0, sizes[0] / max(size, 1.0), size / max(sizes[-1], 1))
