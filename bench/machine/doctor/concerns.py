"""What the facts mean for a measurement: each finding with its consequence, and what to do about it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.machine import foreign, nvml, throttle

LEVELS = ("problem", "warning", "note")
"""A problem keeps something from being measured, a warning spoils figures, a note is good to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """``level``: one of :data:`LEVELS`. ``about``: what it concerns. The other three are one line each."""

    level: str
    about: str
    finding: str
    consequence: str
    remedy: str


def concerns(report: dict[str, Any]) -> list[Concern]:
    """All that is to be said about the facts of ``bench.machine.doctor``, the gravest first."""
    found = [*_driver(report), *_torch(report), *_apex(report["torch"]), *_host(report["host"])]
    for gpu in report["gpus"]:
        found += _gpu(gpu, report["host"])
    found += _together(report["gpus"], report["topology"])
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _driver(report: dict[str, Any]) -> Iterator[Concern]:
    problem = report["pynvml"]["problem"]
    if problem is not None:
        what, _, remedy = problem.partition("; ")
        yield Concern(
            level="problem",
            about="pynvml",
            finding=what,
            consequence="no GPU is found, and memory, power and energy of GPUs stay unknown",
            remedy=remedy,
        )
    reason = report["gpus_reason"]
    if reason is None or reason == problem:
        return
    what, _, remedy = reason.partition("; ")
    if report["gpus"]:
        yield Concern(
            level="warning",
            about="GPUs",
            finding=what,
            consequence="runs do not use it, and indices count without it",
            remedy=remedy,
        )
    else:
        yield Concern(
            level="note",
            about="GPUs",
            finding=what,
            consequence="runs measure the CPU (gloo, bf16), whose ratios do not carry to GPUs",
            remedy=remedy,
        )


def _torch(report: dict[str, Any]) -> Iterator[Concern]:
    torch = report["torch"]
    if torch.get("bf16_instructions") is False and not report["gpus"]:
        yield Concern(
            level="warning",
            about="torch",
            finding="this CPU has no instructions for bf16",
            consequence="on it O1 to O3 take many times as long as fp32, which says nothing about GPUs or other CPUs",
            remedy="measure --scenario single,dp,ddp,apex_ddp here, or take --model resnet18 --image-size 32",
        )
    for name in ("torch", "torchvision"):
        problem = torch["problem"] or torch[f"{name}_problem"]
        if problem is not None:
            yield Concern(
                level="problem",
                about=name,
                finding=f"{name} does not import: {problem}" if problem != "not installed" else f"{name}: {problem}",
                consequence="nothing can be measured with this interpreter",
                remedy="install torch>=2.6 and a torchvision that goes with it, or name an interpreter with --python",
            )
            return
    if not report["gpus"]:
        if not torch["gloo"]:
            yield _no_backend("gloo", "the CPU")
        return
    if torch["cuda"] is None:
        yield Concern(
            level="problem",
            about="torch",
            finding=f"torch {torch['torch']} was built without CUDA",
            consequence="the GPUs of this machine cannot be measured",
            remedy="install a build with CUDA (see pytorch.org), or name an interpreter with --python",
        )
        return
    if torch["nccl"] is None:
        yield _no_backend("nccl", "GPUs")
    newest = report["driver"].get("cuda")
    if newest is not None and int(torch["cuda"].split(".")[0]) > int(newest.split(".")[0]):
        yield Concern(
            level="problem",
            about="CUDA",
            finding=f"torch wants CUDA {torch['cuda']}, and the driver supports up to {newest}",
            consequence="torch finds no usable GPU",
            remedy="update the driver, or install a torch that was built for an older CUDA",
        )
    for gpu in report["gpus"]:
        architecture = "sm_" + (gpu["compute_capability"] or "").replace(".", "")
        if gpu["compute_capability"] and torch["architectures"] and not _runs(architecture, torch["architectures"]):
            yield Concern(
                level="problem",
                about=f"GPU {gpu['index']}",
                finding=f"torch has no code for its {architecture} (only {', '.join(torch['architectures'])})",
                consequence="kernels fail on it, or are compiled when they are first used",
                remedy="install a torch that was built for it, or choose others with --gpus",
            )


def _runs(architecture: str, built: list[str]) -> bool:
    """Code for the same major version and no newer minor one runs, and so does PTX of anything older."""
    major, minor = architecture[3:-1], architecture[-1:]
    same = any(one[3:-1] == major and one[-1:] <= minor for one in built if one.startswith("sm_") and one[3:].isdigit())
    return same or any(one.startswith("compute_") for one in built)


def _no_backend(backend: str, where: str) -> Concern:
    return Concern(
        level="problem",
        about="torch",
        finding=f"torch was built without {backend}",
        consequence=f"no distributed scenario runs on {where}",
        remedy="use another build of torch",
    )


def _apex(torch: dict[str, Any]) -> Iterator[Concern]:
    if torch["problem"] is not None:
        return
    apex = torch["apex"]
    missing = [name for name, problem in apex["problems"].items() if problem is not None]
    if missing:
        problem = apex["problems"][missing[0]]
        what, _, remedy = problem.partition("; ")
        yield Concern(
            level="note",
            about="apex",
            finding=f"{' and '.join(missing)}: {what}",
            consequence="O1-O3 and apex DDP run as bench's native implementation, and are called so in every table",
            remedy=remedy,
        )
    elif not all(apex["extras"].values()):
        absent = ", ".join(name for name, there in apex["extras"].items() if not there)
        yield Concern(
            level="note",
            about="apex",
            finding=f"apex is there without {absent}",
            consequence="apex works in Python where its kernels are missing, and may be slower than it could be",
            remedy="build apex with its extensions if that is what you want to compare",
        )


def _host(host: dict[str, Any]) -> Iterator[Concern]:
    if host["governor"] not in (None, "performance"):
        yield Concern(
            level="warning",
            about="CPU",
            finding=f"the frequency governor is {host['governor']}",
            consequence="clocks follow the load, so launches differ from one another",
            remedy="sudo cpupower frequency-set -g performance",
        )
    if host["load_1min"] > host["cores_usable"] / 2:
        yield Concern(
            level="warning",
            about="CPU",
            finding=f"other work is running (load {host['load_1min']:.1f} on {host['cores_usable']} cores)",
            consequence="its share of the cores is in the figures",
            remedy="wait until it is done",
        )
    quota = host["cpu_quota"]
    if quota is not None and quota < host["cores_usable"]:
        yield Concern(
            level="warning",
            about="CPU",
            finding=f"the container may use {quota:g} cores' worth of time on {host['cores_usable']} cores",
            consequence="threads are stopped for the rest of each period, which shows as outliers of up to 100 ms",
            remedy="pin cores instead (docker run --cpuset-cpus), or raise the limit",
        )
    if host["shm_mib"] is not None and host["shm_mib"] < 1024:
        yield Concern(
            level="warning",
            about="container" if host["container"] else "host",
            finding=f"/dev/shm has {host['shm_mib']} MiB",
            consequence="NCCL and gloo exchange through it, and fail or fall back to slower ways when it is full",
            remedy="docker run --shm-size 8g, or --ipc host",
        )
    if host["rapl_reason"] is not None:
        what, _, remedy = host["rapl_reason"].partition("; ")
        yield Concern(
            level="note",
            about="energy",
            finding=what,
            consequence="the energy of runs on the CPU is unknown",
            remedy=remedy or "measure on the bare machine where you need it",
        )


def _gpu(gpu: dict[str, Any], host: dict[str, Any]) -> Iterator[Concern]:
    about = f"GPU {gpu['index']}"
    if gpu["mig"]:
        yield Concern(
            level="problem",
            about=about,
            finding="MIG is on",
            consequence="a rank sees one instance of it, and its energy and its processes' memory stay unknown",
            remedy=f"sudo nvidia-smi -i {gpu['index']} -mig 0",
        )
    if gpu["persistence"] is False:
        yield Concern(
            level="warning",
            about=about,
            finding="persistence mode is off",
            consequence="the driver is unloaded between launches: start-up takes seconds longer and clocks begin cold",
            remedy="sudo nvidia-smi -pm 1",
        )
    mode = gpu["compute_mode"]
    if mode == "prohibited":
        yield Concern(
            level="problem",
            about=about,
            finding="its compute mode is prohibited",
            consequence="no process may compute on it",
            remedy=f"sudo nvidia-smi -i {gpu['index']} -c DEFAULT",
        )
    if mode == nvml.EXCLUSIVE:
        yield Concern(
            level="note",
            about=about,
            finding="its compute mode is exclusive process",
            consequence="bench's launches, one process on each GPU, run; what puts a second process there does not",
            remedy=f"sudo nvidia-smi -i {gpu['index']} -c DEFAULT, for comparisons of two programs on one GPU",
        )
    limit, default = gpu["power_limit_w"], gpu["default_power_limit_w"]
    if limit and default and limit < 0.99 * default:
        yield Concern(
            level="warning",
            about=about,
            finding=f"its power limit is {limit:.0f} W where {default:.0f} W is usual",
            consequence="it slows down at the cap, and compares with no other machine of its model",
            remedy=f"sudo nvidia-smi -i {gpu['index']} -pl {default:.0f}, unless it is meant so",
        )
    if gpu["pcie_width"] and gpu["max_pcie_width"] and gpu["pcie_width"] < gpu["max_pcie_width"]:
        yield Concern(
            level="warning",
            about=about,
            finding=f"it has {gpu['pcie_width']} of {gpu['max_pcie_width']} PCIe lanes",
            consequence="data loading, and communication without NVLink, have that much less bandwidth",
            remedy="reseat the card, or see which slot it is in",
        )
    bits = gpu["now"]["throttle_reasons"]
    if bits is not None and throttle.verdict(bits) == "invalid":
        yield Concern(
            level="warning",
            about=about,
            finding=f"it slows down now: {', '.join(throttle.names(bits))}",
            consequence="launches that run like that are marked invalid",
            remedy="mend its cooling or its power supply before you measure",
        )
    yield from _company(gpu, about, host)


def _company(gpu: dict[str, Any], about: str, host: dict[str, Any]) -> Iterator[Concern]:
    named = [f"PID {pid} ({name or 'name unknown'})" for pid, name, _ in gpu["processes"]]
    occupied, busy = gpu["occupied_mib"], gpu["now"]["utilisation_percent"]
    if (occupied or 0) > foreign.OCCUPIED_MIB:
        named.append(f"{occupied:,.0f} MiB occupied")
    if (busy or 0) > foreign.BUSY_PERCENT:
        named.append(f"{busy:.0f} % busy")
    if named:
        yield Concern(
            level="warning",
            about=about,
            finding=f"others are using it: {', '.join(named)}",
            consequence="'bench run' refuses it, because their work would be in the figures",
            remedy="wait, choose others with --gpus, or measure beside them with --force",
        )
    if gpu["processes_reason"] is not None and not gpu["mig"]:
        yield Concern(
            level="warning",
            about=about,
            finding=f"its processes are not told: {gpu['processes_reason']}",
            consequence="memory per process is known by other means only where a rank is alone on it, or not at all",
            remedy="measure on Linux itself, with a newer driver",
        )
    elif host["own_pid_namespace"]:
        listed, known = len(gpu["processes"]), sum(name is not None for _, name, _ in gpu["processes"])
        yield Concern(
            level="note",
            about=about,
            finding="bench has a PID namespace of its own, and the driver may list PIDs of the host, or none "
            f"(now {listed}, of which {known} have a name here)",
            consequence="memory is then told by the level of the device (source nvml_device_delta), or not at all",
            remedy="docker run --pid host",
        )


def _together(gpus: list[dict[str, Any]], topology: list[dict[str, Any]]) -> Iterator[Concern]:
    names = sorted({gpu["name"] for gpu in gpus})
    if len(names) > 1:
        yield Concern(
            level="warning",
            about="GPUs",
            finding=f"they are of {len(names)} models: {', '.join(names)}",
            consequence="in data parallel every step waits for the slowest",
            remedy="choose equal ones with --gpus",
        )
    cut = [path["between"] for path in topology if path["p2p"] is False]
    if cut:
        pairs = ", ".join(f"{one}-{other}" for one, other in cut[:6]) + (" and more" if len(cut) > 6 else "")
        yield Concern(
            level="warning",
            about="topology",
            finding=f"no peer access between GPUs {pairs}",
            consequence="what they exchange goes through host memory, so communication is slower",
            remedy="choose GPUs that reach each other; in a virtual machine or behind an IOMMU, enable P2P (ACS off)",
        )
    nodes = sorted({gpu["numa_node"] for gpu in gpus if gpu["numa_node"] is not None})
    if len(nodes) > 1:
        yield Concern(
            level="note",
            about="topology",
            finding=f"the GPUs hang on NUMA nodes {', '.join(map(str, nodes))}",
            consequence="ranks whose memory lies on the other node copy more slowly, which shows as skew",
            remedy="compare GPUs of one node first, with --gpus",
        )
