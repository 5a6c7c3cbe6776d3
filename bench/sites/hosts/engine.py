"""The variables that an engine gives to each bench that it starts: the number of its host, how many there are, where
the first is.

    torchrun --nnodes 2 --nproc-per-node 1 --node-rank 0 --master-addr node0 --master-port 29500 -m bench run

Pure: from the variables of the environment to a :class:`Started`, by the names that each engine documents.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from bench.core.errors import RequestError
from bench.seams.engine import JOB, SECRET

Environment = Mapping[str, str]

SECRET_FILE = f"{SECRET}_FILE"
SAME_SECRET = f"export {SECRET}=$(openssl rand -hex 16) once, and start all hosts with the same"
NO_RUN_ID = ("", "none")  # torchrun's ID of a run without a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How this bench was started. ``name``: of the engine. ``index``: of this host, from 0. ``count``: of hosts.

    ``address`` and ``port``: of the first host, for all to meet at; empty and 0 for one host alone. ``agent_store``:
    whether torchrun itself listens there, with a store in which the first host says where it can be found.
    ``attempt``: how often the engine has restarted this host. ``run``: what the engine calls the job, if anything.
    """

    name: str
    index: int
    count: int
    address: str = ""
    port: int = 0
    agent_store: bool = False
    attempt: int = 0
    run: str | None = None


def engine_of(environment: Environment) -> Started | None:
    """The engine that started this bench; None if no engine did.

    Raises :class:`RequestError`, naming the variable, if one is missing or malformed, and for more than one process
    per host.
    """
    for signs, read in ENGINES:
        if any(sign in environment for sign in signs):
            engine = _meeting(read(environment), environment, "PET_" if read is _pet else "")
            if not 0 <= engine.index < engine.count:
                problem = f"{engine.name} gives this host number {engine.index}, and there are {engine.count}"
                raise RequestError(signs[0], problem, "number hosts from 0, each once")
            return engine
    return None


def _torchrun(environment: Environment) -> Started:
    count, ranks = _number(environment, "GROUP_WORLD_SIZE"), _number(environment, "WORLD_SIZE")
    if ranks != count:
        raise _too_many("torchrun", ranks, count, "--nproc-per-node 1")
    run = environment["TORCHELASTIC_RUN_ID"]
    return Started(
        name="torchrun",
        index=_number(environment, "GROUP_RANK"),
        count=count,
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
        run=None if run in NO_RUN_ID else run,
    )


def _pet(environment: Environment) -> Started:
    """TrainJob, and PyTorchJob if it sets these names too. They count hosts; its WORLD_SIZE does not."""
    nodes = environment.get("PET_NNODES", "")
    if ":" in nodes:
        what = f"{nodes!r} is a range, and each run has a fixed number of hosts"
        raise RequestError("PET_NNODES", what, "give one number, or start bench with torchrun")
    return Started(
        name="PyTorchJob" if "RANK" in environment else "TrainJob",
        index=_number(environment, "PET_NODE_RANK"),
        count=_number(environment, "PET_NNODES"),
        run=environment.get(JOB) or None,
    )


def _plain(environment: Environment) -> Started:
    """``env://``: PyTorchJob, and people who export these four by hand."""
    count, here = _number(environment, "WORLD_SIZE"), _number(environment, "LOCAL_WORLD_SIZE", default=1)
    if here > 1:
        raise _too_many("the engine", count, max(1, count // here), "one process per host")
    return Started(name="env://", index=_number(environment, "RANK"), count=count)


def _slurm(environment: Environment) -> Started:
    step = "SLURM_STEP_NUM_NODES" in environment
    count = _number(environment, "SLURM_STEP_NUM_NODES" if step else "SLURM_NNODES")
    if not step and count > 1:  # a batch script is one process, whatever srun may start in it
        what = f"the job has {count} nodes, and srun did not start this bench: the others have none"
        raise RequestError("SLURM_NNODES", what, "use srun --ntasks-per-node 1 python -m bench" + _alone(environment))
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", default=count) if step else count
    if tasks > count:
        raise _too_many("srun", tasks, count, "--ntasks-per-node 1")
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((environment[name] for name in names if environment.get(name)), "")
    return Started(
        name="Slurm",
        index=_number(environment, "SLURM_PROCID"),
        count=count,
        address=first_of(nodes),
        attempt=_number(environment, "SLURM_RESTART_COUNT", default=0),
        run=environment.get("SLURM_JOB_ID"),
    )


def _cloud(environment: Environment, name: str, variables: tuple[str, str, str, str]) -> Started:
    """``variables``: those of the number of the host, of how many there are, of addresses, and of the job."""
    index, count, addresses, run = variables
    return Started(
        name=name,
        index=_number(environment, index),
        count=_number(environment, count, default=1),
        address=(environment.get(addresses, "").split() or [""])[0],
        run=environment.get(run),
    )


SKYPILOT = ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_TASK_ID")
DSTACK = ("DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP", "DSTACK_RUN_NAME")


ENGINES: tuple[tuple[tuple[str, ...], Callable[[Environment], Started]], ...] = (
    (("TORCHELASTIC_RUN_ID",), _torchrun),
    (("PET_NNODES", "PET_NODE_RANK"), _pet),
    (("RANK", "WORLD_SIZE"), _plain),
    (("SLURM_PROCID",), _slurm),
    (SKYPILOT[:1], partial(_cloud, name="SkyPilot", variables=SKYPILOT)),
    (DSTACK[:1], partial(_cloud, name="dstack", variables=DSTACK)),
)
"""By the variables that show which engine started this process. The first match counts: Slurm may start torchrun."""


def _meeting(engine: Started, environment: Environment, prefix: str) -> Started:
    """The engine with where all hosts meet: at the address that it names, unless a variable does. ``prefix``: of both
    variables."""
    if engine.count == 1:
        return replace(engine, address="")
    address = environment.get(f"{prefix}MASTER_ADDR") or environment.get("MASTER_ADDR") or engine.address
    if not address:
        remedy = "set it to the address of the first host, the same on all hosts"
        raise _missing(f"{prefix}MASTER_ADDR", remedy + _alone(environment))
    own = f"{prefix}MASTER_PORT"
    port = _number(environment, own if own in environment else "MASTER_PORT")
    if not 0 < port < 1 << 16:
        raise RequestError(own, f"{port} is not a port", "set it to a port that is free on the first host")
    return replace(engine, address=address, port=port)


def first_of(nodes: str) -> str:
    """The first name of a list as Slurm writes it: ``gpu[03-05,9],head`` begins with ``gpu03``."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).partition(",")[0]


def _number(environment: Environment, name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise _missing(name, REMEDIES.get(name, "start bench with your engine, once per host, or unset the others"))
    if not re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
        raise RequestError(name, f"{text!r} is not a whole number", "have the engine set it")
    return int(text)


REMEDIES = {
    "MASTER_PORT": "export MASTER_PORT=29500, a port that is free on the first host, the same on all hosts",
    "RANK": "set it to the number of this host, 0 on the first, or unset WORLD_SIZE",
    "WORLD_SIZE": "set it to the number of hosts, or unset RANK",
}


def _missing(name: str, remedy: str) -> RequestError:
    return RequestError(name, "it is not set, and this is one of several hosts", remedy)


def _alone(environment: Environment) -> str:
    """The remedy where what an engine has set is there for something else, as in a shell in one of its containers."""
    signs = [sign for signs, _ in ENGINES for sign in signs if sign in environment]
    return f", or unset {' and '.join(signs)} to measure this host alone" if signs else ""


def _too_many(who: str, processes: int, hosts: int, remedy: str) -> RequestError:
    what = f"{who} started {processes} processes on {hosts} host{'s' * (hosts != 1)}, and bench starts ranks itself"
    return RequestError(remedy.split(" ")[0] if remedy.startswith("-") else "WORLD_SIZE", what, f"use {remedy}")


def secret_of(environment: Environment) -> bytes | RequestError:
    """The secret of the hosts, or why there is none: hosts meet before they say so, since all of them are to end."""
    if text := environment.get(SECRET, "").strip():
        return text.encode()
    file = environment.get(SECRET_FILE)
    if not file:
        what = "it is not set, and several hosts need it to recognise each other"
        return RequestError(SECRET, what, SAME_SECRET + _alone(environment))
    try:
        with open(file, "rb") as opened:
            secret = opened.read(1 << 16).strip()
    except OSError as error:
        return RequestError(SECRET_FILE, f"{file} cannot be read: {error.strerror}", "name a file with one")
    return secret or RequestError(SECRET_FILE, f"{file} is empty", "write one into it: openssl rand -hex 16")
