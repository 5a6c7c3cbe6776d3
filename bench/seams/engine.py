"""An engine: what starts one bench on each of several hosts, and how it is asked to.

An engine is one file, ``bench/sites/engines/NAME.py`` or ``bench submit --engine ./mine.py``: ``ENGINE = Engine(...)``,
and three functions. ``specification(asked)`` returns the text that the engine takes, with ``asked.nodes`` in one place;
``call(asked)`` says how its client is given that text; ``notes(asked)`` are commands for afterwards, by what they are
for. The secret, by which the hosts know each other, stands in no specification.
"""

from dataclasses import dataclass, field
from typing import Annotated

SECRET = "BENCH_SECRET"  # the variable that each host finds the secret in

JOB = "BENCH_JOB"
"""The variable with a name that no other job has, for an engine that restarts hosts without telling them so."""

FILE = "{file}"
"""In a client's command: the file with the specification. Without it the client reads standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The declaration of an engine's file. ``client``: the program that submits. ``gpu_type``: whether a type of GPU,
    as in H100:8, is ``needed``, ``optional`` or ``unused``. ``results``: where results go in the image that the engine
    runs, which is a volume; None if it runs none."""

    summary: str
    client: str
    gpu_type: Annotated[str, ("needed", "optional", "unused")] = "optional"
    results: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The run to submit. ``run``: the words after ``python -m bench``. ``out``: where the run goes. ``gpus``: per node.
    ``image`` and ``claim``: None if it runs no image. ``python``: this interpreter. ``folder``: where the user is.
    ``source``: the checkout of bench, None if bench is installed. ``rdma``: the resource of Kubernetes through which
    a pod gets its RDMA devices, such as ``rdma/hca_shared_devices_a``; None for none."""

    name: str
    nodes: int
    run: tuple[str, ...]
    out: str
    gpus: int
    gpu_type: str | None
    image: str | None
    claim: str | None
    python: str
    folder: str
    source: str | None
    rdma: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How the client is started. ``before``: what it reads ahead of the specification. ``environment``: is added."""

    command: tuple[str, ...]
    before: str = ""
    environment: dict[str, str] = field(default_factory=dict)
