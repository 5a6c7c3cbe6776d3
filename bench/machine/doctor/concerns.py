"""Concerns that follow from the facts: each finding with its consequence and remedy. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.machine import foreign, nvml, throttle, wheel

Facts = dict[str, Any]  # of `bench.machine.doctor`, as JSON values; None: unknown
LEVELS = ("problem", "warning", "note")
"""A problem keeps something from being measured, a warning skews results, a note is good to know."""


@dataclass(frozen=True, slots=True)
class Concern:
    """``level``: one of :data:`LEVELS`. ``about``: what it concerns. The other three are one line each."""

    level: str
    about: str
    finding: str
    consequence: str
    remedy: str


def concerns(report: Facts) -> list[Concern]:
    """All concerns about the facts of ``bench.machine.doctor``, the gravest first."""
    every = [*_driver(report), *_torch(report), *_apex(report["torch"]), *_host(report["host"])]
    for gpu in report["gpus"]:
        every += [*_gpu(gpu), *_company(gpu, report["host"])]
    every += _together(report["gpus"], report["topology"])
    return sorted(every, key=lambda finding: LEVELS.index(finding.level))


def _driver(report: Facts) -> Iterator[Concern]:
    problem, reason = report["pynvml"]["problem"], report["gpus_reason"]
    if problem is not None:
        what, _, remedy = problem.partition("; ")
        unknown = "no GPU is found; memory, power and energy of GPUs stay unknown"
        yield Concern("problem", "pynvml", what, unknown, remedy)
    if reason is None or reason == problem:
        return
    what, _, remedy = reason.partition("; ")
    if report["gpus"]:
        yield Concern("warning", "GPUs", what, "runs do not use it, and indices count without it", remedy)
    else:
        on_cpu = "runs measure the CPU (gloo, bf16), whose ratios do not carry to GPUs"
        yield Concern("note", "GPUs", what, on_cpu, remedy)


def _torch(report: Facts) -> Iterator[Concern]:
    torch, gpus = report["torch"], report["gpus"]
    if torch.get("bf16_instructions") is False and not gpus:
        slow = "O1 to O3 compute in fp32 and round, so they gain no speed, which says nothing about GPUs or other CPUs"
        remedy = "measure O1 to O3 on a GPU, or on a CPU with AVX-512"
        yield Concern("warning", "torch", "this CPU has no instructions for bf16", slow, remedy)
    for name in ("torch", "torchvision"):
        problem = torch["problem"] or torch[f"{name}_problem"]
        if problem is not None:
            finding = f"{name} does not import: {problem}" if problem != "not installed" else f"{name}: {problem}"
            remedy = "install torch>=2.6 and a matching torchvision, or name an interpreter with --python"
            yield Concern("problem", name, finding, "nothing can be measured with this interpreter", remedy)
            return
    if not gpus:
        if not torch["gloo"]:
            yield _no_backend("gloo", "the CPU")
        return
    if torch["cuda"] is None:
        finding = f"torch {torch['torch']} was built without CUDA"
        remedy = "install a build with CUDA (see pytorch.org), or name an interpreter with --python"
        yield Concern("problem", "torch", finding, "the GPUs of this machine cannot be measured", remedy)
        return
    if torch["nccl"] is None:
        yield _no_backend("nccl", "GPUs")
    newest = report["driver"].get("cuda")
    for about, finding, remedy in wheel.problems(torch["cuda"], torch["architectures"], newest, gpus):
        yield Concern("problem", about, finding, "every launch on a GPU fails, and 'bench run' refuses", remedy)


def _no_backend(backend: str, where: str) -> Concern:
    stops = f"no distributed scenario runs on {where}"
    return Concern("problem", "torch", f"torch was built without {backend}", stops, "use another build of torch")


def _apex(torch: Facts) -> Iterator[Concern]:
    if torch["problem"] is not None:
        return
    problems, extras = torch["apex"]["problems"], torch["apex"]["extras"]
    missing = [name for name, problem in problems.items() if problem is not None]
    absent = [name for name, there in extras.items() if not there]
    if missing:
        what, _, remedy = problems[missing[0]].partition("; ")
        native = "O1-O3 and apex DDP run as bench's native implementation, and every table says so"
        yield Concern("note", "apex", f"{' and '.join(missing)}: {what}", native, remedy)
    elif absent:
        slower = "apex uses Python where its kernels are missing, which may be slower"
        remedy = "build apex with its extensions if that is what you want to compare"
        yield Concern("note", "apex", f"apex is there without {', '.join(absent)}", slower, remedy)


def _host(host: Facts) -> Iterator[Concern]:
    cores, quota, shm_mib = host["cores_usable"], host["cpu_quota"], host["shm_mib"]
    if host["governor"] not in (None, "performance"):
        finding = f"the frequency governor is {host['governor']}"
        varying = "clocks follow the load, so launches differ"
        yield Concern("warning", "CPU", finding, varying, "sudo cpupower frequency-set -g performance")
    if host["load_1min"] - (host["cores_online"] - cores) > cores / 2:  # others may have what a quota leaves them
        finding = f"other work is running (load {host['load_1min']:.1f} on {host['cores_online']} cores)"
        yield Concern("warning", "CPU", finding, "its share of the cores skews the results", "wait until it is done")
    if quota is not None and quota < host["cores_of_affinity"]:
        finding = f"the control group allows {quota:g} cores' worth of time on {host['cores_of_affinity']} cores"
        stopped = f"ranks have {cores} threads in all; when it is used up, all stop, which shows as outliers of 100 ms"
        remedy = "pin cores instead (docker run --cpuset-cpus), or raise the limit"
        yield Concern("warning", "CPU", finding, stopped, remedy)
    if shm_mib is not None and shm_mib < 1024:
        about = "container" if host["container"] else "host"
        full = "NCCL and gloo exchange through it, and fail or slow down when it is full"
        remedy = "docker run --shm-size 8g, or --ipc host"
        yield Concern("warning", about, f"/dev/shm has {shm_mib} MiB", full, remedy)


def _gpu(gpu: Facts) -> Iterator[Concern]:
    about, smi = f"GPU {gpu['index']}", f"sudo nvidia-smi -i {gpu['index']}"
    if gpu["mig"]:
        whole = "bench measures whole GPUs, and 'bench run' refuses this one"
        yield Concern("problem", about, "MIG is on", whole, f"use another GPU, or where it is yours {smi} -mig 0")
    if gpu["persistence"] is False:
        cold = "the driver unloads between launches: start-up takes seconds longer and clocks begin cold"
        yield Concern("warning", about, "persistence mode is off", cold, "sudo nvidia-smi -pm 1")
    mode = f"its compute mode is {gpu['compute_mode']}"
    if gpu["compute_mode"] == "prohibited":
        yield Concern("problem", about, mode, "no process may compute on it", f"{smi} -c DEFAULT")
    if gpu["compute_mode"] == nvml.EXCLUSIVE:
        single = "bench's launches, one process on each GPU, run; a second process on it does not"
        yield Concern("note", about, mode, single, f"{smi} -c DEFAULT, to compare two programs on one GPU")
    limit, default = gpu["power_limit_w"], gpu["default_power_limit_w"]
    if limit and default and limit < 0.99 * default:
        finding = f"its power limit is {limit:.0f} W where {default:.0f} W is usual"
        slower = "it slows down at the cap, and compares with no other machine of its model"
        yield Concern("warning", about, finding, slower, f"{smi} -pl {default:.0f}, unless this is intended")
    lanes, most_lanes = gpu["pcie_width"], gpu["max_pcie_width"]
    if lanes and most_lanes and lanes < most_lanes:
        finding = f"it has {lanes} of {most_lanes} PCIe lanes"
        narrow = "data loading, and communication without NVLink, have that much less bandwidth"
        yield Concern("warning", about, finding, narrow, "reseat the card, or check which slot it is in")
    bits = gpu["now"]["throttle_reasons"]
    if bits is not None and throttle.verdict(bits) == "invalid":
        finding = f"it slows down now: {', '.join(throttle.names(bits))}"
        remedy = "fix its cooling or its power supply before you measure"
        yield Concern("warning", about, finding, "launches that run like that are marked invalid", remedy)


def _company(gpu: Facts, host: Facts) -> Iterator[Concern]:
    about = f"GPU {gpu['index']}"
    computing, drawing = ([(pid, mib) for pid, _, mib in gpu[kind]] for kind in ("processes", "graphics"))
    occupied, busy = gpu["occupied_mib"], gpu["now"]["utilisation_percent"]
    used = foreign.in_use(computing, drawing, occupied, busy)
    processes = {pid: name or "name unknown" for pid, name, _ in gpu["processes"] + gpu["graphics"]}
    named = [f"PID {pid} ({name})" for pid, name in processes.items()]
    if used and (occupied or 0) > foreign.OCCUPIED_MIB:
        named.append(f"{occupied:,.0f} MiB occupied")
    if used and (busy or 0) > foreign.BUSY_PERCENT:
        named.append(f"{busy:.0f} % busy")
    if used:
        finding = f"others are using it: {', '.join(named)}"
        refused = "'bench run' refuses it, because their work would skew the results"
        remedy = "wait, choose others with --gpus, or measure beside them with --force"
        yield Concern("warning", about, finding, refused, remedy)
    elif drawing:
        finding = f"something draws on it: {', '.join(named)}"
        remedy = "choose a GPU without a screen with --gpus if there is one"
        yield Concern("warning", about, finding, "its share of the GPU skews the results", remedy)
    if gpu["processes_reason"] is not None and not gpu["mig"]:
        finding = f"its processes are unknown: {gpu['processes_reason']}"
        partly = "memory per process is known only where a rank is alone on it, or not at all"
        yield Concern("warning", about, finding, partly, "measure on Linux itself, with a newer driver")
    elif host["own_pid_namespace"]:
        known = sum(name is not None for _, name, _ in gpu["processes"])
        now = f"now {len(gpu['processes'])}, of which {known} have a name here"
        finding = f"bench has its own PID namespace, and the driver may list PIDs of the host, or none ({now})"
        partly = "memory is then known from the level of the device (source nvml_device_delta), or not at all"
        yield Concern("note", about, finding, partly, "docker run --pid host")


def _together(gpus: list[Facts], topology: list[Facts]) -> Iterator[Concern]:
    names = sorted({gpu["name"] for gpu in gpus})
    if len(names) > 1:
        finding = f"they are of {len(names)} models: {', '.join(names)}"
        slowest = "in data parallel every step waits for the slowest"
        yield Concern("warning", "GPUs", finding, slowest, "choose equal ones with --gpus")
    cut = [path["between"] for path in topology if path["p2p"] is False]
    if cut:
        pairs = ", ".join(f"{one}-{other}" for one, other in cut[:6]) + (" and more" if len(cut) > 6 else "")
        through_host = "what they exchange goes through host memory, so communication is slower"
        remedy = "choose GPUs that reach each other; in a virtual machine or behind an IOMMU, enable P2P (ACS off)"
        yield Concern("warning", "topology", f"no peer access between GPUs {pairs}", through_host, remedy)
    nodes = sorted({gpu["numa_node"] for gpu in gpus if gpu["numa_node"] is not None})
    if len(nodes) > 1:
        finding = f"the GPUs are on NUMA nodes {', '.join(map(str, nodes))}"
        skewed = "ranks with memory on the other node copy more slowly, which shows as skew"
        yield Concern("note", "topology", finding, skewed, "compare GPUs of one node first, with --gpus")
