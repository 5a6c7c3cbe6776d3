"""This host, as its files and NVML describe it; imports no torch."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.core import control_group
from bench.core.control_group import available_memory_bytes as available_memory_bytes
from bench.core.errors import RequestError
from bench.core.files import text_from
from bench.core.records import Gpu, Host
from bench.machine import nvml

if TYPE_CHECKING:
    from bench.core.channel import Message
    from bench.runs.document import Git, Machine, State

RECORDED_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "GLOO_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "NVIDIA_TF32_")
DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel waits for the one before",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "torch asks the driver for the memory of each tensor",
    "TORCH_DISTRIBUTED_DEBUG": "ranks compare what they exchange before each exchange",
}
"""Variables with which no time is one of training, and what they do. The last one counts on the CPU, too."""

FILES, FILES_OF_RANK = 24, 4
"""Open at one time. Two ranks do with 28; with 20 they wait for what never comes."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_OR_CPU = ", or use --device cpu"
GPU_NAMES = ("GPU-", "MIG-", *"0123456789")
"""How :data:`VISIBLE` begins where it names a GPU, and the CPU is not what was meant; anything else hides them all."""


def here(devices: tuple[str, ...]) -> tuple[Host, ...]:
    """This host, as the only one of a site. ``devices``: the UUIDs of the chosen GPUs."""
    return (Host(name=os.uname().nodename, cores=cores(), devices=devices),)


def cores() -> int:
    """How many cores this process may keep busy: those of its affinity, within the quota of its control group."""
    allowed, quota = len(os.sched_getaffinity(0)), control_group.cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def choose_device(asked: str) -> tuple[str, list[Gpu], str | None]:
    """``cpu`` or ``cuda``, the GPUs in PCI order, and in one line which of them is left out.

    ``auto`` takes the CPU if there is no driver or the environment hides the GPUs. Raises :class:`RequestError` for
    ``cuda`` without a GPU, and for ``auto`` with a broken driver or an environment that names a GPU that is not here,
    as in a container that was started without its GPUs.
    """
    if asked == "cpu":
        return "cpu", [], None
    gpus, why = visible_gpus()
    if gpus:
        return "cuda", gpus, why
    assert why is not None
    problem, remedy = why.split("; ", 1)
    named = os.environ.get(VISIBLE, "").strip()
    if named.startswith(GPU_NAMES):
        raise RequestError(VISIBLE, f"it names '{named}', and {problem}", remedy)
    if asked == "cuda":
        raise RequestError("--device", f"cuda was asked for, but {problem}", remedy)
    if nvml.driver_present() and not problem.startswith(VISIBLE):
        unusable = f"there is an NVIDIA driver, but no GPU can be used: {problem}"
        raise RequestError("--device", unusable, remedy.removesuffix(_OR_CPU) + _OR_CPU)
    return "cpu", [], None


def visible_gpus() -> tuple[list[Gpu], str | None]:
    """The GPUs of this host that ``CUDA_VISIBLE_DEVICES`` leaves to this process; why there are none, or one less.

    NVML ignores the variable. As CUDA reads it: indices or beginnings of UUIDs, up to the first that names no GPU. CUDA
    counts the fastest first, and those that are alike in PCI order, which is ours. Which of several kinds it takes for
    faster is not known here: raises :class:`RequestError` where that decides which GPUs are left.
    """
    here, why_none = nvml.list_gpus()
    named = os.environ.get(VISIBLE)
    if named is None or not here:
        return here, why_none
    left: list[Gpu] = []
    for name in (part.strip() for part in named.split(",")):
        by_uuid = name.startswith("GPU-")
        match = [gpu for gpu in here if name == str(gpu.index) or (by_uuid and gpu.uuid.startswith(name))]
        if len(match) != 1:
            break
        left += match
    unlike = len({(gpu.name, gpu.memory_total_mib) for gpu in here}) > 1
    counted = any(name.strip().isdigit() for name in named.split(","))
    if counted and unlike and 0 < len(set(left)) < len(here) and os.environ.get(ORDER) != "PCI_BUS_ID":
        problem = f"'{named}' counts GPUs of several kinds, the fastest first, and which CUDA takes for that is unknown"
        raise RequestError(VISIBLE, problem, f"name them by UUID (nvidia-smi -L), or set {ORDER}=PCI_BUS_ID")
    hidden = f"{VISIBLE}={named} hides every GPU; unset it, or use --device cpu"
    if named.strip().startswith("MIG-"):
        hidden = f"bench measures whole GPUs, not MIG slices; ask for a whole GPU{_OR_CPU}"
    elif named.strip().startswith(GPU_NAMES):
        hidden = f"the driver does not list it; correct it{_OR_CPU}"
    return [gpu for gpu in here if gpu in left], why_none if left else hidden


def refuse_slices(devices: tuple[str, ...]) -> None:
    """Raises :class:`RequestError` for a GPU that is cut into MIG slices: a rank would see one of them."""
    for uuid in nvml.cut_up(devices):
        what = f"GPU {uuid} is cut into MIG slices, and bench measures whole GPUs"
        raise RequestError("--gpus", what, f"choose another{_OR_CPU}; where it is yours, 'nvidia-smi -mig 0' ends MIG")


def refuse_debugging(device: str) -> None:
    """Raises :class:`RequestError` where one of :data:`DEBUGGING` is on."""
    for name, what in DEBUGGING.items():
        value = os.environ.get(name, "")
        of_cuda = "CUDA" in name and device == "cuda" and value not in ("", "0")
        if of_cuda or (name.startswith("TORCH_") and value.upper() == "DETAIL"):
            raise RequestError(name, f"with {value!r}, which is for debugging, {what}", f"unset {name}")


def refuse_unfit_torch(description: "Message", gpus: Iterable[Gpu]) -> None:
    """Raises :class:`RequestError` where no launch could compute on these GPUs. ``description``: of the worker host."""
    from bench.machine import wheel

    cuda, newest = description["cuda_built"], nvml.newest_cuda()
    for what, problem, remedy in wheel.problems(cuda, description["architectures"], newest, map(asdict, gpus)):
        raise RequestError("--device", f"{what}: {problem}", remedy)


def refuse_missing_directory() -> None:
    """Raises :class:`RequestError` in a working directory that was removed, and where there is no folder for temporary
    files: importing torch ends the process there."""
    import tempfile

    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise RequestError("run", "the working directory was removed", "change to one that exists") from error
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        what = "neither it nor /tmp can be written, and torch needs a folder for temporary files"
        raise RequestError("TMPDIR", what, "set it to one that can be written") from error


def refuse_missing_libraries() -> None:
    """Raises :class:`ModuleNotFoundError` where a run could not be written, or its answer not be given, at its end."""
    for name in ("pandas", "pyarrow", "rich", "scipy"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def refuse_few_files(ranks: int) -> None:
    """Raises :class:`RequestError` if this many ranks could not open their files; some would wait for minutes."""
    import resource  # here and below: what 'bench list' has no use for would take a tenth of its time

    needed, limit = FILES + FILES_OF_RANK * ranks, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < needed:  # unlimited is -1
        problem = f"{limit} open files are too few for {ranks} rank{'s' * (ranks > 1)}"
        raise RequestError("ulimit -n", problem, f"set {needed} at least, as by 'ulimit -n {needed}'")


def choose_gpus(asked: str | None, here: list[Gpu]) -> tuple[str, ...]:
    """UUIDs of GPUs named by PCI index or UUID, with commas between; all by default. Raises :class:`RequestError`."""
    if asked is None:
        return tuple(gpu.uuid for gpu in here)
    chosen: list[str] = []
    names = ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in here)
    for name in (part.strip() for part in asked.split(",")):
        match = [gpu.uuid for gpu in here if name in (str(gpu.index), gpu.uuid)]
        if not match:
            raise RequestError("--gpus", f"there is no GPU {name!r}", f"choose from {names}")
        if match[0] in chosen:
            raise RequestError("--gpus", f"GPU {name} is named twice", "name each GPU once")
        chosen += match
    return tuple(chosen)


def describe(gpus: Sequence[Gpu], left_out: str | None = None) -> "Machine":
    """The machine as it stands in run.json. ``left_out``: which GPU cannot be used, and why."""
    import platform
    import re

    from bench.runs.document import Machine

    model = re.search(r"^model name\s*:(.*)", text_from("/proc/cpuinfo", 0), re.MULTILINE)
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return Machine(
        host=os.uname().nodename,
        os=platform.platform(),
        python=platform.python_version(),
        cpu=model[1].strip() if model else os.uname().machine,
        cores_usable=cores(),
        cores_online=os.cpu_count(),
        memory_gib=round(control_group.meminfo("MemTotal") / 2**30, 1),
        governor=text_from("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", 0).strip() or None,
        turbo_disabled=text_from("/sys/devices/system/cpu/intel_pstate/no_turbo", 0).strip() or None,
        container=_container(),
        gpus=tuple(gpus),
        gpus_reason=left_out,
        environment=recorded_environment(),
        git=git(checkout, "bench/*.py", "scenarios/*.py") if os.path.exists(f"{checkout}/.git") else None,
    )


def state() -> "State":
    """The load and the free memory, which change while a run lasts."""
    from bench.runs.document import State

    free_gib = round(available_memory_bytes() / 2**30, 2)
    return State(utc=utc_now(), load_1min=os.getloadavg()[0], memory_available_gib=free_gib)


def taken(busy: float, among: int) -> float:
    """How many of this process's cores others use, who keep ``busy`` cores busy: first those of all ``among``
    that its quota denies it."""
    return max(0.0, busy - (among - cores()))


def foreign_cores(busy_s: float, wall_s: float) -> float:
    """The same over ``wall_s``, of what others added to :func:`busy_s`."""
    return taken(busy_s / wall_s, len(os.sched_getaffinity(0)))


def busy_s() -> float:
    """CPU seconds that the usable cores have been busy since the machine was started, with anybody's work."""
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *numbers = line.split()
            if name in usable:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, numbers[:8])
                ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def age_s() -> float:
    """How long ago this process was started."""
    from bench.core.children import born

    return time.clock_gettime(time.CLOCK_BOOTTIME) - (born(os.getpid()) or 0) / os.sysconf("SC_CLK_TCK")


def utc_now() -> str:
    """The time for people, in UTC (ISO 8601)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def recorded_environment() -> dict[str, str]:
    """The variables that steer torch, CUDA and the communication libraries; never one that looks like a secret."""
    from bench.machine import redact

    return {
        name: redact.without_secrets(value)
        for name, value in sorted(os.environ.items())
        if name.startswith(RECORDED_PREFIXES) and not redact.is_secret(name)
    }


def _container() -> str | None:
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None


def git(folder: str, *untracked: str) -> "Git | None":
    """Commit and dirty flag of the checkout that a folder is in, or None. ``untracked``: new files that count."""
    import subprocess

    from bench.runs.document import Git

    def ask(*words: str) -> str:
        call = ["git", "--no-optional-locks", "-C", folder, *words]  # people work in there meanwhile
        return subprocess.run(call, capture_output=True, text=True, errors="replace", check=True).stdout.strip()

    try:
        commit = ask("rev-parse", "HEAD")
        dirty = ask("status", "--porcelain", "--untracked-files=no")
        if untracked:
            dirty += ask("status", "--porcelain", "--untracked-files=all", "--", *untracked)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Git(commit=commit, dirty=bool(dirty))
