"""The GPUs of this host as the driver describes them, how they reach each other, and which pynvml asks it."""

import os
from contextlib import closing
from dataclasses import asdict
from itertools import combinations

from bench.core.files import text_from
from bench.machine import nvml


def facts() -> dict[str, object]:
    """``gpus``: a dict each; ``gpus_reason``: why there are none, or which is left out; ``driver``; ``topology``."""
    known: dict[str, object] = {"gpus": [], "gpus_reason": None, "driver": {}, "topology": []}
    try:  # which is asked for also where there is no driver
        known["pynvml"] = {"path": nvml.import_pynvml().__file__, "problem": None}
    except nvml.NvmlUnavailable as error:
        known["pynvml"] = {"path": None, "problem": str(error)}
    try:
        session = nvml.Nvml()
    except nvml.NvmlUnavailable as error:
        return {**known, "gpus_reason": str(error), "driver": dict.fromkeys(("version", "nvml", "cuda"))}
    with closing(session):
        listed, known["gpus_reason"] = session.gpus()
        known["driver"] = session.versions()
        known["gpus"] = [
            {**asdict(gpu), "numa_node": numa_node(gpu.pci_bus_id), **session.details(gpu.uuid)} for gpu in listed
        ]
        known["topology"] = [
            {"between": [one.index, other.index], **session.path(one.uuid, other.uuid)}
            for one, other in combinations(listed, 2)
        ]
    return known


def numa_node(pci_bus_id: str, root: str = "/sys/bus/pci/devices") -> int | None:
    """The NUMA node that a device hangs on, from sysfs; None where the machine has one node only, or does not tell."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    path = os.path.join(root, f"{domain[-4:]}:{rest}", "numa_node")
    node = int(text_from(path, 0) or -1)
    return node if node >= 0 else None
