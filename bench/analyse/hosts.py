"""In what the hosts of a run differ that may show in its values. Pure."""

from collections.abc import Iterator, Sequence

from bench.runs.document import HostRecord

CLOCKS_APART_S = 1.0  # from which on a difference of clocks is a finding: logs of several hosts are read side by side
BUSY = 0.5  # the load per core from which on a host has other work to do


def unlike(hosts: Sequence[HostRecord]) -> Iterator[str]:
    """Each difference to the first host, in a few words."""
    for other in hosts[1:]:
        first = hosts[0]
        for what, ours, theirs in _facts(first, other):
            if ours is not None and theirs is not None and ours != theirs:
                yield f"{what}: {ours} on {first.name}, {theirs} on {other.name}"
        loads = [(one.start.load_1min or 0.0) / (one.machine.cores_usable or 1) for one in (first, other)]
        if (loads[0] > BUSY) != (loads[1] > BUSY):
            yield f"load per core when it began: {loads[0]:.1f} on {first.name}, {loads[1]:.1f} on {other.name}"
        if other.clock_offset_s is not None and abs(other.clock_offset_s) - (other.clock_error_s or 0) > CLOCKS_APART_S:
            yield f"the clock of {other.name} is {other.clock_offset_s:+.1f} s from that of {first.name}"


def _facts(first: HostRecord, other: HostRecord) -> Iterator[tuple[str, object, object]]:
    for what in ("cpu", "cores_usable", "os", "governor", "python"):
        yield what.replace("_", " "), getattr(first.machine, what), getattr(other.machine, what)
    for name in first.versions.keys() | other.versions.keys():
        yield name, first.versions.get(name, "none"), other.versions.get(name, "none")
    machines = first.machine, other.machine
    ours, theirs = (", ".join(sorted({gpu.driver for gpu in one.gpus if gpu.driver})) or None for one in machines)
    yield "driver", ours, theirs
    commits = [one.git and f"{one.git.commit}{' with changes' * one.git.dirty}" for one in machines]
    yield "commit of bench", commits[0], commits[1]
