"""Over what the ranks of this process group talk, as far as it tells, and what that link is nominally capable of."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from bench.core.files import text_from


def transport(environment: Mapping[str, str]) -> dict[str, object]:
    """``backend``; ``library``: whose version; ``interface``: the one that gloo was told to use; ``nominal_mbit``: what
    the interface says of itself, of several the slowest; ``reason``: why something is unknown.
    """
    backend = str(dist.get_backend())
    known: dict[str, object] = {"backend": backend, "library": None, "interface": None, "nominal_mbit": None}
    if backend.startswith("nccl"):
        version = ".".join(map(str, torch.cuda.nccl.version()))
        why = "NCCL does not report its path; NCCL_DEBUG=INFO writes it to the logs of the ranks"
        return known | {"library": f"NCCL {version}", "reason": why}
    if not (interface := environment.get("GLOO_SOCKET_IFNAME")):
        return known | {"reason": "GLOO_SOCKET_IFNAME is not set, and gloo does not report which interface it chose"}
    speeds = {name: nominal_mbit(name) for name in interface.split(",")}
    unknown = [name for name, mbit in speeds.items() if mbit is None]
    return known | {
        "interface": interface,
        "nominal_mbit": None if unknown else min(filter(None, speeds.values())),
        "reason": f"{', '.join(unknown)} has no nominal speed" if unknown else None,
    }


def nominal_mbit(interface: str, root: str = "/sys/class/net") -> float | None:
    """The nominal speed of an interface (Mbit/s); None where it has none, as a loopback."""
    speed = text_from(f"{root}/{interface}/speed", 0).strip()
    return float(speed) if speed.isdigit() and int(speed) else None
