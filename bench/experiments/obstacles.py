"""Why a scenario, or a whole request, cannot run here: found before the first launch."""

import os
from collections.abc import Sequence

from bench.core.errors import RequestError
from bench.core.records import Host
from bench.experiments.plan import Request, host_of_each
from bench.seams import discover, switching
from bench.seams.discover import Found
from bench.seams.obstacle import not_installed
from bench.seams.obstacle import obstacle as _files_tell
from bench.seams.site import Event, interpreter_of
from bench.seams.strategy import Strategy

INTERFACES = {"cpu": "GLOO_SOCKET_IFNAME", "cuda": "NCCL_SOCKET_IFNAME"}
"""The variable by which a user names network interfaces. Gloo needs all of them. One is enough for NCCL, which takes
beginnings of names; after ``=`` whole ones, after ``^`` all others."""


def of_each(
    scenarios: tuple[Found, ...], request: Request, host: Event | None = None, hosts: Sequence[Host] = ()
) -> dict[str, str | None]:
    """By scenario the reason why it cannot run here, or None. ``host``: as for :func:`obstacle`."""
    return {found.name: obstacle(found, request, host) or _across(found, request, hosts) for found in scenarios}


def _across(found: Found, request: Request, hosts: Sequence[Host]) -> str | None:
    """Why a scenario cannot run on several hosts."""
    if len(hosts) < 2:
        return None
    host_of = host_of_each(request, hosts)
    ranks = found.strategy.ranks(request.replicas)
    if any(len({host_of[device].name for device in rank.devices}) > 1 for rank in ranks):
        return f"one process of it would drive the devices of {len(hosts)} hosts; run it on one of them"
    if host_of[ranks[0].devices[0]] != hosts[0]:
        return "its rank 0 would not be on the first host, where all ranks meet; run it on one host"
    return None


def refuse_if_nothing_runs(obstacles: dict[str, str | None]) -> None:
    reasons = [reason for reason in obstacles.values() if reason is not None]
    if len(reasons) == len(obstacles):
        raise RequestError("--scenario", f"none of {', '.join(obstacles)} can run here", reasons[0])


def refuse_unreachable_loopback(scenarios: tuple[Found, ...], device: str) -> None:
    """Raises :class:`RequestError` where ranks that form a group could not meet: they would look for each other for
    minutes, or for an interface that is missing."""
    import socket  # which 'bench list' has no use for

    groups = [found.name for found in scenarios if found.strategy.group]
    here = [name for _, name in socket.if_nameindex()]
    variable = INTERFACES[device]
    value, by_nccl = os.environ.get(variable, ""), device == "cuda"
    names = set(value.removeprefix("=" * by_nccl).split(",")) - {""}
    whole = not by_nccl or value.startswith("=")
    has = {name for name in names for one in here if (one == name if whole else one.startswith(name))}
    if groups and names - has and not (by_nccl and (has or value.startswith("^"))):
        problem = f"this host has no network interface {min(names - has)!r}"
        raise RequestError(variable, problem, f"unset {variable}, or choose from {', '.join(here)}")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=1.0).close()
    except OSError as error:
        if groups:
            problem = f"ranks of {', '.join(groups)} meet on 127.0.0.1, and it cannot be reached ({error.strerror})"
            what = "bring the loopback interface up ('ip link set lo up'), or leave these out"
            raise RequestError("--scenario", problem, what) from error


def obstacle(found: Found, request: Request, host: Event | None = None) -> str | None:
    """Why the scenario cannot run here, judged by the machine and, once known, by what the worker host imported."""
    reason = _files_tell(found, device=request.device, impl=request.impl, apex_path=request.apex_path, packages=False)
    reason = reason or found.obstacle(request.device, request.replicas) or _other_half(found, request)
    parts, devices = found.strategy.replicas(request.replicas), found.strategy.training_devices(request.replicas)
    if reason is None and request.global_batch % parts:
        cut = f"it cuts the {request.global_batch} examples of a step into {parts} equal parts"
        reason = f"{cut}; use a --global-batch that is divisible by {parts}"
    if reason is not None or host is None:
        return reason
    host = interpreter_of(host, found.environment)
    if lacking := [package for package in found.scenario.packages if package not in host["packages"]]:
        return not_installed(lacking[0])
    since, installed = found.strategy.torch_on_cpu, host["torch"]
    if request.device == "cpu" and tuple(map(int, installed.split(".")[:2])) < since:
        return f"on the CPU it needs torch {since[0]}.{since[1]}, and this is {installed}; install a newer one"
    if request.global_batch == parts and host["needs_two"] and _as_shipped(found):
        enough = f"--batch-per-rank {2 * parts // devices}" if request.per_rank else f"--global-batch {2 * parts}"
        return f"its batch norm would have one example at a time, and needs two; use {enough} or more"
    if found.strategy.threads and drives_several_gpus(request, found.strategy) and not host["in_rows"]:
        cuts = f"{found.strategy.label} cuts each tensor of a batch along its first dimension"
        return f"{cuts}, and here those have no row for each example; leave it out, or use one GPU"
    if found.strategy.rpc and not host["rpc"]:
        return "this torch was built without torch.distributed.rpc; use another build"
    if request.device == "cuda" and host["cuda_built"] is None:
        return "this torch was built without CUDA; install a build with CUDA, or use --device cpu"
    backend = "nccl" if request.device == "cuda" else "gloo"
    if found.strategy.group and not host[backend]:
        return f"this torch was built without {backend}; use another build"
    wanted = {need for need in found.scenario.needs if need.startswith("apex.")}
    if request.impl == "apex":
        wanted |= found.apex_modules
    return next((host["apex"]["problems"][need] for need in sorted(wanted) if host["apex"]["problems"][need]), None)


def _as_shipped(found: Found) -> bool:
    """Whether the batch norm of a model stays what it is: code that bench does not ship may replace it."""
    names = discover.names(discover.STRATEGY).values()
    switches = [switching.load_switch(one.name, one.file) for one in found.switches]
    own = {one.file for one in found.switches} - {*discover.names(discover.SWITCH).values()}
    return found.strategy_file in names and not own and not any(one.joins_norms for one in switches)


def _other_half(found: Found, request: Request) -> str | None:
    """Why autocast would compute in another type than the scenario says."""
    in_threads = found.strategy.threads and drives_several_gpus(request, found.strategy)
    if not (in_threads and found.scenario.precision == "O1" and found.half == "bf16"):
        return None
    return f"the threads of {found.strategy.label} have autocast in fp16, not in bf16; leave bf16 out, or use one GPU"


def drives_several_gpus(request: Request, strategy: Strategy) -> bool:
    """Whether a process drives several GPUs, whose kernels run at the same time: their times add up to no step."""
    return bool(request.devices) and any(len(rank.devices) > 1 for rank in strategy.ranks(request.replicas))
