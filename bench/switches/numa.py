"""Each rank on the cores of one NUMA node: that of its GPU, or on the CPU the ranks in turn."""

import os
from glob import glob

from bench.seams import Switch

SWITCH = Switch(summary="each rank on the cores of the NUMA node of its GPU", label="NUMA binding")

NODES = "/sys/devices/system/node/node[0-9]*/cpulist"
DEVICES = "/sys/bus/pci/devices"
GPUS = "/proc/driver/nvidia/gpus/*/information"
"""What the driver says of the GPU at each PCI address."""


def obstacle(device):
    return "this machine has one NUMA node: there is nothing to choose" if len(nodes()) < 2 else None


def begin(parts):
    if not (shared := cores(parts) & os.sched_getaffinity(0)):
        from bench.core.errors import BenchError

        why = "numa: this process may use no core of its GPU's NUMA node"
        raise BenchError(f"{why}; give it some (taskset, --cpuset-cpus), or leave numa out")
    os.sched_setaffinity(0, shared)


def effect(session, ran):
    return None if ran["affinity"] <= len(cores(session.parts)) else f"the rank may use {ran['affinity']} cores"


def cores(parts):
    """Those of this rank's node."""
    there = nodes()
    number = sorted(there)[parts.local_rank % len(there)] if parts.device.type == "cpu" else node_of(parts)
    return there.get(number, set())


def nodes():
    """The cores of each node that has any, by its number: some have memory alone, as those of a GPU may."""
    found = {}
    for path in glob(NODES):
        with open(path, encoding="ascii") as file:
            if text := file.read().strip():
                found[int(os.path.basename(os.path.dirname(path)).removeprefix("node"))] = cores_in(text)
    return found


def node_of(parts):
    import torch

    about = torch.cuda.get_device_properties(parts.device)
    if hasattr(about, "pci_bus_id"):
        address = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    else:  # torch 2.6
        address = address_of(parts.devices[0])
    with open(f"{DEVICES}/{address}/numa_node", encoding="ascii") as file:
        return max(0, int(file.read()))


def address_of(uuid):
    from bench.core.errors import BenchError

    for path in glob(GPUS):
        with open(path, encoding="utf-8", errors="replace") as file:
            if uuid in file.read():
                return os.path.basename(os.path.dirname(path))
    raise BenchError("numa: neither torch nor the driver tells where the GPU is; update torch, or leave numa out")


def cores_in(text):
    """``0-3,8`` as a set."""
    spans = [part.partition("-") for part in text.split(",")]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}
