"""The introduction of a host before a run, and why some hosts cannot work together. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.core.errors import RequestError
from bench.core.records import Host
from bench.runs.document import Machine
from bench.runs.fields import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A host as it describes itself. ``bench``: its version, and a checksum of its files. ``asked``: the options of
    its command, as ``--with``; ``devices``: its chosen GPUs."""

    bench: str
    device: str
    cores: int
    devices: Names
    machine: Machine
    asked: Mapping[str, object] = field(default_factory=dict)


def refuse_unlike(leader: Hello, other: Hello, name: str) -> None:
    """Raises :class:`RequestError` for the first difference that hosts must not have."""
    if other.bench != leader.bench:
        problem = f"{name} has version {other.bench}, and the first host {leader.bench}"
        raise RequestError("bench", problem, "install the same version on all hosts")
    for option in {**leader.asked, **other.asked}:
        ours, theirs = (one.asked.get(option) for one in (leader, other))
        if ours != theirs:
            problem = f"{name} was asked for {_shown(theirs)}, and the first host for {_shown(ours)}"
            raise RequestError(option, problem, "start the same command on all hosts")
    if other.device != leader.device:
        problem = f"{name} would measure on {other.device}, and the first host on {leader.device}"
        raise RequestError("--device", problem, "choose one with --device, or see 'python -m bench doctor' there")
    ours, theirs = (
        sorted({gpu.name for gpu in one.machine.gpus if gpu.uuid in one.devices}) for one in (leader, other)
    )
    if ours != theirs:
        problem = f"{name} has {' and '.join(theirs)}, and the first host {' and '.join(ours)}"
        raise RequestError("--gpus", problem, "choose GPUs of one model, or leave that host out")


def _shown(value: object) -> str:
    if value in (None, []):
        return "nothing"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def named(machines: Sequence[Machine]) -> list[str]:
    """A name for each host: its hostname, with its number appended if several have the same."""
    names = [one.host or "host" for one in machines]
    return [f"{name}-{number}" if names.count(name) > 1 else name for number, name in enumerate(names)]


def placed(hello: Hello, name: str) -> Host:
    return Host(name=name, cores=hello.cores, devices=hello.devices)
