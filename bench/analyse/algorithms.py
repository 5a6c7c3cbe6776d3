"""Which algorithm all-reduces take, by number of ranks and size: where it changes, no fit holds any longer.

NCCL's log names it, but writing the log takes time in small all-reduces. So only diagnostic launches have a log. They
reduce once, untimed, each size that the launches of all-reduces time. For numbers of ranks that were not measured, and
without a log, two signs of a change are known. With more than four GPUs, NCCL reduces in the NVSwitches (NVLS) from
2 MiB on (NCCL 2.27 on eight H200). Between hosts it uses a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.runs.document import RunDocument
from bench.runs.experiments import Scaling

NVLS_ABOVE, NVLS_BYTES = 4, 2 << 20
NVLS_CAPABILITY = 9  # the first generation of GPUs whose NVSwitches reduce: Hopper


def family(algorithm: str | None) -> str:
    """``RING`` of ``RING/LL``: the protocol is a break in the times at most."""
    return (algorithm or "").partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithms:
    """``read``: of NCCL's log, by number of ranks and algorithm the bytes of the smallest and of the largest. ``nvls``:
    whether NCCL can reduce in these NVSwitches. ``per_host``: GPUs of a host, None where that does not matter."""

    read: Mapping[int, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    nvls: bool = False
    per_host: int | None = None

    @classmethod
    def of(cls, document: RunDocument) -> "Algorithms":
        scaling = document.begun(Scaling)
        read = {
            one.processes: {
                name.removeprefix("AllReduce "): (sizes[0], sizes[-1])
                for name, sizes in one.looks[0].nccl.algorithms.items()
                if name.startswith("AllReduce ")
            }
            for one in scaling.diagnostics
            if one.looks
        }
        talked = [one.transport for one in scaling.bandwidth if one.transport and one.transport.backend == "nccl"]
        machines = [host.machine for host in document.hosts] or [document.machine]
        per_host = min(len(one.gpus) for one in machines)
        able = [float(gpu.compute_capability or 0) >= NVLS_CAPABILITY for one in machines for gpu in one.gpus]
        linked = any((one.interface or "").startswith("NVLink") for one in talked)
        return cls(
            read={ranks: of for ranks, of in read.items() if of},
            nvls=linked and bool(able) and all(able),
            per_host=per_host if talked and per_host else None,
        )

    def at(self, ranks: int, size: float) -> str | None:
        """Such as ``RING/LL``, or ``network RING/LL`` between hosts; empty where none is known. None: it changes
        between the nearest numbers that were read."""
        network = "network " if self._between_hosts(ranks) else ""
        if ranks in self.read:
            return network + _nearest(self.read[ranks], size)
        sign = self._between_hosts(ranks), self._sign(ranks, size)
        alike = [one for one in self.read if (self._between_hosts(one), self._sign(one, size)) == sign]
        below = max((one for one in alike if one < ranks), default=None)
        above = min((one for one in alike if one > ranks), default=None)
        nearest = {_nearest(self.read[one], size) for one in (below, above) if one is not None}
        if len({family(one) for one in nearest}) > 1:
            return None
        return network + min(nearest, default=self._sign(ranks, size))

    def why(self, ranks: int) -> str:
        """The change of algorithm before this number, in words."""
        if self._between_hosts(ranks):
            return f"a host has {self.per_host:,} GPUs, and between hosts NCCL goes over a network"
        if self.nvls and ranks > NVLS_ABOVE:
            return f"NCCL reduces in the NVSwitches with more than {NVLS_ABOVE} GPUs"
        return "NCCL takes one algorithm with fewer ranks and another with more"

    def _between_hosts(self, ranks: int) -> bool:
        return self.per_host is not None and ranks > self.per_host

    def _sign(self, ranks: int, size: float) -> str:
        if not self.nvls or self._between_hosts(ranks):
            return ""
        return "NVLS" if ranks > NVLS_ABOVE and size >= NVLS_BYTES else "RING"


RING = Algorithms()  # one ring, whatever the number of ranks: gloo's


def _nearest(sizes: Mapping[str, tuple[int, ...]], size: float) -> str:
    """The algorithm whose sizes are nearest; of several that have it, that with the fewest others."""

    return min(sizes, key=lambda name: (beyond(sizes[name], size), sizes[name][-1] / max(sizes[name][0], 1)))


def beyond(sizes: Sequence[int], size: float) -> float:
    """How many times as small as the smallest of these a size is, or as large as the largest; 1 in between."""
    return max(1.0, sizes[0] / max(size, 1.0), size / max(sizes[-1], 1))
