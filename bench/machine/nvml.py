"""NVIDIA's driver on GPUs and the processes on them: the one place that talks to ``pynvml``.

    python -c "from bench.machine.nvml import list_gpus; print(list_gpus())"

NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers devices in its own order, so devices are named by UUID, and an index
is a position in PCI order (``CUDA_DEVICE_ORDER=PCI_BUS_ID``). A missing value is None with a reason.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from time import perf_counter_ns
from types import ModuleType
from typing import Any, TypeVar

from bench.core.errors import BenchError
from bench.core.files import text_from
from bench.core.records import ACTIVITY_COLUMNS, LINK_COLUMNS, METRIC_COLUMNS, RANGES, Gpu

T = TypeVar("T")

Foreign = Any  # a value of pynvml, which has no types
LIBRARY = "libnvidia-ml.so.1"  # the soname that pynvml loads
REQUIREMENT = "'nvidia-ml-py>=12.560'"  # as a shell takes it; the version is that of `pyproject.toml`

NO_GPM = "this GPU has no GPM metrics; Hopper and later have them"
FIRST = "activity is known between two samples, and this is the first"
SOON = "the driver counts activity anew every 100 ms, and this sample came too soon"
GPM_PERIOD_NS = 150_000_000  # between two samples of GPM at least: NVML's manual asks for more than 100 ms

NO_VALUE = "the driver gives no value here (NVML_VALUE_NOT_AVAILABLE)"
ZERO = "the driver gives 0 bytes for a process that is there, as R560 does in a container"

EXCLUSIVE = "exclusive process"  # the compute mode in which one process at a time can use a GPU, as clusters set it

_SIGNS_OF_A_DRIVER = ("/dev/nvidiactl", "/proc/driver/nvidia/version", f"/usr/lib/wsl/lib/{LIBRARY}")
_NOT_AVAILABLE = (None, 2**32 - 1, 2**64 - 1)
_NO_PID = (0, 2**32 - 1)
_MIB = 2**20
_ATTEMPTS = 4
_ALL_LINKS = 2**32 - 1
_LANE_MBIT = {1: 2_000, 2: 4_000, 3: 7_877, 4: 15_754, 5: 31_508, 6: 60_500}
"""The rate of a PCIe lane one way by generation, its line code taken off (8b/10b, then 128b/130b, then flits)."""
_P2P = {"p2p": 0, "nvlink": 2}
"""NVML_P2P_CAPS_INDEX_READ and _NVLINK: pynvml has the first one as a tuple, which its own function refuses."""

SCRAMBLED = (
    "the driver's list was scrambled (PID 0, PID 4294967295, or a PID with two values), as by early R535; update the "
    "driver"
)
MIG_ENERGY = "MIG is on, and the counter is that of the whole GPU"


class NvmlUnavailable(BenchError):
    """NVML cannot be used here: one line, ``problem; remedy``."""


def driver_present() -> bool:
    """Whether the files of a driver are here (or of a stand-in on ``LD_LIBRARY_PATH``)."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    libraries = [os.path.join(folder, LIBRARY) for folder in folders if folder]
    return any(os.path.exists(path) for path in (*_SIGNS_OF_A_DRIVER, *libraries))


def _asked(question: "Callable[[Nvml], T]", unknown: Callable[[str], T]) -> T:
    """The answer of a session of its own, or what is ``unknown`` where NVML cannot be used, for this reason."""
    try:
        with closing(Nvml()) as nvml:
            return question(nvml)
    except NvmlUnavailable as error:
        return unknown(str(error))


def list_gpus() -> tuple[list[Gpu], str | None]:
    """The GPUs of this host in PCI order, and in one line why there are none or which one is left out."""
    return _asked(Nvml.gpus, lambda why: ([], why))


def cut_up(uuids: Sequence[str]) -> list[str]:
    """Those of these GPUs that are cut into MIG slices. Raises :class:`NvmlUnavailable`."""
    if not uuids:
        return []
    with closing(Nvml()) as nvml:
        return [*filter(nvml.mig, uuids)]


def newest_cuda() -> str | None:
    """The newest CUDA that the driver supports, such as ``13.2``; None: unknown."""
    return _asked(lambda nvml: nvml.versions()["cuda"], lambda why: None)


def link_between(uuids: Sequence[str]) -> tuple[str | None, float | None]:
    """:meth:`Nvml.link` of GPUs of this host; None where NVML cannot be used."""
    return _asked(lambda nvml: nvml.link(uuids), lambda why: (None, None))


class Nvml:
    """A session with the driver: one ``nvmlInit``, one handle per device.

    Raises :class:`NvmlUnavailable` when there is no driver, no (or a foreign) ``pynvml``, or the driver refuses. Later
    errors are not raised: they are the reason of the value that they cost. ``scrambled``: lists that were dropped.
    """

    def __init__(self) -> None:
        if not driver_present():
            problem = "there is no NVIDIA driver on this host"
            raise NvmlUnavailable(f"{problem}; install it, start the container with its GPUs, or use --device cpu")
        self._pynvml = pynvml = import_pynvml()
        # No NVMLErrors: the second is raised of a driver without the newest symbols, the third of a name in Latin-1.
        self._errors = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
        try:
            pynvml.nvmlInit()
        except self._errors as error:
            remedy = "fix the driver until nvidia-smi works, or use --device cpu"
            raise NvmlUnavailable(f"NVML does not start: {_line(error)}; {remedy}") from error
        self.scrambled = 0
        self._handles: dict[str, Foreign] = {}
        self._mig: dict[str, bool] = {}
        self._gpm: dict[str, tuple[Foreign, int]] = {}
        self._list_processes: Callable[[Foreign], Foreign] = pynvml.nvmlDeviceGetComputeRunningProcesses
        self._throttle_reasons: Callable[[Foreign], Foreign] = pynvml.nvmlDeviceGetCurrentClocksEventReasons
        self._reads: dict[str, tuple[Callable[[Foreign], Foreign], float]] = {
            "utilisation_percent": (lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, 1.0),
            "power_w": (pynvml.nvmlDeviceGetPowerUsage, 1e-3),
            "energy_mj": (pynvml.nvmlDeviceGetTotalEnergyConsumption, 1.0),
            "sm_clock_mhz": (lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM), 1.0),
            "memory_clock_mhz": (lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM), 1.0),
            "temperature_c": (lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU), 1.0),
            "throttle_reasons": (self._read_throttle_reasons, 1),
            # The first version of the structure, in which "used" has the driver's own reserve in it on every driver.
            "used_mib": (lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used, 1 / _MIB),
        }

    def gpus(self) -> tuple[list[Gpu], str | None]:
        """The devices in PCI order, and why there are none or which one is left out. Those that this process may not
        use, as where Slurm constrains devices, are counted by NVML, and neither by CUDA nor here."""
        pynvml = self._pynvml
        count, reason = self._try(pynvml.nvmlDeviceGetCount)
        if reason is not None:
            return [], f"NVML does not count the GPUs: {reason}; fix the driver until nvidia-smi works"
        driver = self.versions()["version"]
        entries = []
        problems = []
        for number in range(count):
            entry, reason = self._try(self._describe, number)
            if reason is None:
                entries.append(entry)
            elif reason != _line(pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)):
                problems.append(f"the GPU that nvidia-smi numbers {number} is left out: {reason}; reset or replace it")
        if not entries and not problems:
            none = "this process may use none of the GPUs here; ask for one, as by srun --gpus"
            none = none if count else "the driver lists no GPU; start the container with its GPUs"
            problems.append(f"{none}, or use --device cpu")
        entries.sort(key=lambda entry: entry[0])
        gpus = [Gpu(index=index, driver=driver, **fields) for index, (_, fields) in enumerate(entries)]
        return gpus, "; ".join(problems) or None

    def processes(self, uuid: str) -> tuple[list[tuple[int, float | None]], str | None]:
        """``(pid, used_mib)`` of every compute process on a device, and why the list or a value in it is missing.

        A process that is there without a value, or with one of 0, has ``used_mib`` None; one that is listed twice with
        the same value is there once.
        """
        pynvml = self._pynvml
        reason = None
        for _ in range(_ATTEMPTS):
            try:
                rows = self._running(self._handle(uuid))
            except pynvml.NVMLError_InsufficientSize as error:
                reason = f"{_line(error)}, {_ATTEMPTS} times"  # processes came between the two calls; again
                continue
            except self._errors as error:
                return [], _line(error)
            used = [(int(row.pid), _scaled(row.usedGpuMemory or None, 1 / _MIB)) for row in rows]
            twice = len(dict(used)) < len(used) and not self.mig(uuid)  # under MIG it may be in two instances
            used = list(dict.fromkeys(used)) if twice else used
            if any(pid in _NO_PID for pid, _ in used) or (twice and len(dict(used)) < len(used)):
                self.scrambled += 1
                return [], SCRAMBLED
            if any(row.usedGpuMemory == 0 for row in rows):
                return used, ZERO
            return used, self._no_value(uuid) if any(mib is None for _, mib in used) else None
        return [], reason

    def graphics(self, uuid: str) -> list[tuple[int, float | None]]:
        """``(pid, used_mib)`` of every process that draws on a device, such as a display server; as far as is known."""
        rows = self._ask(uuid, self._pynvml.nvmlDeviceGetGraphicsRunningProcesses) or []
        return [(int(row.pid), _scaled(row.usedGpuMemory or None, 1 / _MIB)) for row in rows]

    def used_mib(self, uuid: str) -> tuple[float | None, str | None]:
        """The device's memory in use, as in :meth:`device_sample`, or why it is unknown."""
        memory, reason = self._try(lambda: self._pynvml.nvmlDeviceGetMemoryInfo(self._handle(uuid)).used)
        return _scaled(memory, 1 / _MIB), reason

    def occupied_mib(self, uuid: str) -> tuple[float | None, str | None]:
        """The memory that processes occupy, without the driver's reserve if that is known (since R510)."""
        pynvml = self._pynvml
        memory = self._ask(uuid, pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        return self.used_mib(uuid) if memory is None or memory.used in _NOT_AVAILABLE else (memory.used / _MIB, None)

    def mig(self, uuid: str) -> bool:
        """Whether the device is cut into MIG instances. Asked once: it cannot change while in use."""
        if uuid not in self._mig:
            mode = self._ask(uuid, self._pynvml.nvmlDeviceGetMigMode)
            self._mig[uuid] = mode is not None and mode[0] == self._pynvml.NVML_DEVICE_MIG_ENABLE
        return self._mig[uuid]

    def process_name(self, pid: int) -> str | None:
        """The name of a process that the driver lists, from the driver or ``/proc``; None where neither knows."""
        name, _ = self._try(self._pynvml.nvmlSystemGetProcessName, pid)
        return str(name or text_from(f"/proc/{pid}/comm", 0).strip()) or None

    def device_sample(self, uuid: str, *, links: bool = True) -> dict[str, Foreign]:
        """``METRIC_COLUMNS`` and ``LINK_COLUMNS`` (KiB) now, ``mig``, and ``reason``: which are None and why.

        GPM metrics (``ACTIVITY_COLUMNS``) are of the time since they were last known, or None with ``activity_reason``.
        ``utilisation_percent``: the share of the driver's last sampling period with a kernel on the device;
        ``energy_mj``: the driver's counter since it was loaded, None under MIG, as it is that of the whole GPU;
        ``used_mib``: the driver's reserve included; ``throttle_reasons``: NVML's bits (``nvmlClocksEventReasons``).
        Without ``links`` those counters are None and not asked for.
        """
        handle, reason = self._try(self._handle, uuid)
        if reason is not None:
            return unknown_sample(reason)
        sample: dict[str, object] = {}
        reasons: dict[str, str] = {}
        for metric, (read, unit) in self._reads.items():
            value, reason = self._try(read, handle)
            sample[metric] = _scaled(value, unit)
            if reason is not None:
                reasons[metric] = reason
        if len(reasons) == len(METRIC_COLUMNS) and len(set(reasons.values())) == 1:  # such as a GPU that is lost
            return unknown_sample(reasons.popitem()[1])
        mig = self.mig(uuid)
        if mig:
            sample["energy_mj"], reasons["energy_mj"] = None, MIG_ENERGY
        counters, problems = self._read_links(handle) if links else (dict.fromkeys(LINK_COLUMNS), {})
        why = "; ".join(f"{metric}: {reason}" for metric, reason in (reasons | problems).items())
        activity, reason = self._try(self._gpm_since, uuid)
        return {**sample, "reason": why or None, **counters, "mig": mig, **(activity or unknown_activity(reason))}

    def _gpm_since(self, uuid: str) -> dict[str, object]:
        """The GPM metrics of a GPU since they were last known, and why some are None."""
        pynvml, handle = self._pynvml, self._handle(uuid)
        before, taken_ns = self._gpm.get(uuid, (None, -GPM_PERIOD_NS))
        if before is None and not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return unknown_activity(NO_GPM)
        if (now_ns := perf_counter_ns()) < taken_ns + GPM_PERIOD_NS:
            return unknown_activity(SOON)
        now = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle, now)
        except self._errors:
            pynvml.nvmlGpmSampleFree(now)
            raise
        self._gpm[uuid] = now, now_ns
        if before is None:
            return unknown_activity(FIRST)
        try:
            return self._gpm_between(before, now)
        finally:
            pynvml.nvmlGpmSampleFree(before)

    def _gpm_between(self, before: Foreign, now: Foreign) -> dict[str, object]:
        pynvml = self._pynvml
        names = ("SM_UTIL", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL", "NVLINK_TOTAL_TX_PER_SEC", "NVLINK_TOTAL_RX_PER_SEC")
        metrics = [getattr(pynvml, f"NVML_GPM_METRIC_{name}") for name in names]
        asked = pynvml.c_nvmlGpmMetricsGet_t(
            version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(metrics), sample1=before, sample2=now
        )
        for place, metric in enumerate(metrics):
            asked.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(asked)
        known, reasons = dict[str, object](), list[str]()
        for name, one in zip(ACTIVITY_COLUMNS, asked.metrics, strict=False):
            least, most = RANGES[name]
            if one.nvmlReturn != pynvml.NVML_SUCCESS:
                reasons.append(f"{name}: {_line(pynvml.NVMLError(one.nvmlReturn))}")
            elif least <= one.value <= most:
                known[name] = one.value
            else:
                reasons.append(f"{name}: the driver says {one.value:g}, which cannot be")
        return unknown_activity("; ".join(reasons) or None) | known

    def versions(self) -> dict[str, str | None]:
        """The driver's ``version``, that of ``nvml``, and the newest ``cuda`` that it supports; None: unknown."""
        pynvml = self._pynvml
        cuda, _ = self._try(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return {
            "version": self._try(pynvml.nvmlSystemGetDriverVersion)[0],
            "nvml": self._try(pynvml.nvmlSystemGetNVMLVersion)[0],
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }

    def details(self, uuid: str) -> dict[str, object]:
        """More than :class:`Gpu` has, for a page about the device; None where the driver does not know.

        ``processes`` and ``graphics``: (PID, name, MiB); ``now``: :meth:`device_sample`.
        """
        pynvml = self._pynvml
        ask = partial(self._ask, uuid)
        memory, ecc = ask(pynvml.nvmlDeviceGetMemoryInfo), ask(pynvml.nvmlDeviceGetEccMode)
        persistence = ask(pynvml.nvmlDeviceGetPersistenceMode)
        compute_modes = {
            pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
            pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive thread",
            pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
            pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: EXCLUSIVE,
        }
        rows, reason = self.processes(uuid)
        return {
            "free_mib": None if memory is None else memory.free / _MIB,
            "occupied_mib": self.occupied_mib(uuid)[0],
            "default_power_limit_w": _scaled(ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit), 1e-3),
            "max_sm_clock_mhz": ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
            "mig": self.mig(uuid),
            "ecc": None if ecc is None else bool(ecc[0]),
            "persistence": None if persistence is None else bool(persistence),
            "compute_mode": compute_modes.get(ask(pynvml.nvmlDeviceGetComputeMode)),
            "pcie_generation": ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
            "pcie_width": ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
            "max_pcie_width": ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
            "processes": [[pid, self.process_name(pid), mib] for pid, mib in rows],
            "processes_reason": reason,
            "graphics": [[pid, self.process_name(pid), mib] for pid, mib in self.graphics(uuid)],
            "now": self.device_sample(uuid),
        }

    def path(self, one: str, other: str) -> dict[str, object]:
        """How two devices reach each other: ``level``, the closest thing that both hang on; ``p2p`` and ``nvlink``:
        whether one can read the other's memory, at all and over NVLink. None: unknown."""
        pynvml = self._pynvml
        ask = partial(self._ask, (one, other))
        levels = {
            pynvml.NVML_TOPOLOGY_INTERNAL: "the same board",
            pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
            pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
            pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "a PCIe host bridge",
            pynvml.NVML_TOPOLOGY_NODE: "the same NUMA node",
            pynvml.NVML_TOPOLOGY_SYSTEM: "the link between CPU sockets",
        }
        able = {name: ask(pynvml.nvmlDeviceGetP2PStatus, index) for name, index in _P2P.items()}
        return {
            "level": levels.get(ask(pynvml.nvmlDeviceGetTopologyCommonAncestor)),
            **{name: None if status is None else status == pynvml.NVML_P2P_STATUS_OK for name, status in able.items()},
        }

    def link(self, uuids: Sequence[str]) -> tuple[str | None, float | None]:
        """The link between these devices, NVLink or else PCIe, and the nominal rate of the slowest (Mbit/s)."""
        pynvml = self._pynvml
        if all(self.path(one, other)["nvlink"] for one, other in pairwise(uuids)):
            active, rates_mbit = [], []
            for uuid in uuids:
                ask = partial(self._ask, uuid)
                states = [ask(pynvml.nvmlDeviceGetNvLinkState, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
                active.append(states.count(pynvml.NVML_FEATURE_ENABLED))
                answers = ask(pynvml.nvmlDeviceGetFieldValues, [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
                speed = self._field(answers[0])[0] if answers else None  # of a link, in MB/s
                rates_mbit.append(8.0 * (speed or 0))
            return f"NVLink, {min(active)} links a GPU", min(active) * min(rates_mbit) or None
        lanes = []
        for uuid in uuids:
            generation = self._ask(uuid, pynvml.nvmlDeviceGetMaxPcieLinkGeneration)  # an idle GPU takes a lower one
            width = self._ask(uuid, pynvml.nvmlDeviceGetCurrPcieLinkWidth)
            if generation not in _LANE_MBIT or not width:
                return "PCIe", None
            lanes.append((float(_LANE_MBIT[generation] * width), f"PCIe gen {generation} ×{width}"))
        mbit, name = min(lanes)
        return name, mbit

    def close(self) -> None:
        """End the session."""
        for sample, _ in self._gpm.values():
            self._try(self._pynvml.nvmlGpmSampleFree, sample)
        self._gpm.clear()  # to free one twice ends the process
        self._try(self._pynvml.nvmlShutdown)

    def _describe(self, number: int) -> tuple[tuple[int, int, int], dict[str, object]]:
        """The place in PCI order of the device that NVML numbers ``number``, and the fields of its :class:`Gpu`."""
        pynvml = self._pynvml
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        name, reason = self._try(pynvml.nvmlDeviceGetName, handle)
        memory, _ = self._try(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        capability, _ = self._try(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        power_limit, _ = self._try(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
        fields = {
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "name": name or f"name unknown ({reason})",
            "pci_bus_id": pci.busId,
            "memory_total_mib": _scaled(memory, 1 / _MIB),
            "compute_capability": None if capability is None else "{}.{}".format(*capability),
            "power_limit_w": _scaled(power_limit, 1e-3),
        }
        return (pci.domain, pci.bus, pci.device), fields

    def _ask(self, uuids: str | tuple[str, str], function: Callable[..., Foreign], *arguments: object) -> Foreign:
        """The answer of ``function`` for one or two devices, or None."""
        of = (uuids,) if isinstance(uuids, str) else uuids
        return self._try(lambda: function(*map(self._handle, of), *arguments))[0]

    def _handle(self, uuid: str) -> Foreign:
        if uuid not in self._handles:
            self._handles[uuid] = self._pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _no_value(self, uuid: str) -> str:
        if self.mig(uuid):
            return "MIG is on, and the driver gives no value for a process on the whole GPU"
        if os.path.exists("/dev/dxg"):
            return f"{NO_VALUE}: WSL2's driver has none of a process"
        return NO_VALUE

    def _read_links(self, handle: Foreign) -> tuple[dict[str, object], dict[str, str]]:
        """The counters of ``LINK_COLUMNS``, in one call (that for PCIe alone waits 20 ms each), and why one is None."""
        pynvml = self._pynvml
        fields = {
            "pcie_tx_kib": (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1 / 1024),
            "pcie_rx_kib": (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1 / 1024),
            "nvlink_tx_kib": ((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS), 1.0),
            "nvlink_rx_kib": ((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS), 1.0),
        }
        asked = [field for field, _ in fields.values()]
        answers, reason = self._try(lambda: list(pynvml.nvmlDeviceGetFieldValues(handle, asked)))
        if reason is not None:
            return dict.fromkeys(LINK_COLUMNS), dict.fromkeys(LINK_COLUMNS, reason)
        values: dict[str, object] = dict.fromkeys(LINK_COLUMNS)
        problems: dict[str, str] = {}
        for (name, (_, unit)), answer in zip(fields.items(), answers, strict=True):
            value, reason = self._field(answer)
            if value is None:
                problems[name] = reason or NO_VALUE
            else:
                values[name] = value * unit
        return values, problems

    def _field(self, answer: Foreign) -> tuple[int | None, str | None]:
        """A field's value, or None and the reason."""
        pynvml = self._pynvml
        if answer.nvmlReturn != pynvml.NVML_SUCCESS:
            return None, _line(pynvml.NVMLError(answer.nvmlReturn))
        narrow = answer.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value = answer.value.uiVal if narrow else answer.value.ullVal
        return (None, NO_VALUE) if value in _NOT_AVAILABLE else (value, None)

    def _running(self, handle: Foreign) -> Foreign:
        try:
            return self._list_processes(handle)
        except self._pynvml.NVMLLibraryMismatchError:
            self._list_processes = self._pynvml.nvmlDeviceGetComputeRunningProcesses_v2
            return self._list_processes(handle)

    def _read_throttle_reasons(self, handle: Foreign) -> Foreign:
        try:
            return self._throttle_reasons(handle)
        except self._pynvml.NVMLError_FunctionNotFound:  # drivers before R535 only know the older name
            self._throttle_reasons = self._pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
            return self._throttle_reasons(handle)

    def _try(self, function: Callable[..., Foreign], *arguments: object) -> tuple[Foreign, str | None]:
        """The answer of ``function``, or None and the reason."""
        try:
            value = function(*arguments)
        except self._errors as error:
            return None, _line(error)
        return (None, NO_VALUE) if value in _NOT_AVAILABLE else (value, None)


def unknown_sample(reason: str) -> dict[str, object]:
    """:meth:`Nvml.device_sample` of a device of which nothing is known."""
    unknown = {**dict.fromkeys(METRIC_COLUMNS), "reason": reason, **dict.fromkeys(LINK_COLUMNS), "mig": None}
    return unknown | unknown_activity(reason)


def unknown_activity(reason: str | None) -> dict[str, object]:
    """No GPM metric, for this reason."""
    return {**dict.fromkeys(ACTIVITY_COLUMNS), "activity_reason": reason}


def _scaled(value: int | None, unit: float) -> float | None:
    """None stays None, and bits (unit 1) stay an integer."""
    return None if value is None else value * unit


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def import_pynvml() -> ModuleType:
    """The module of nvidia-ml-py, whether or not there is a driver. Raises :class:`NvmlUnavailable`."""
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise NvmlUnavailable(f"the module pynvml is not installed; pip install {REQUIREMENT}") from error
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        remedy = f"pip uninstall pynvml && pip install --force-reinstall {REQUIREMENT}"
        raise NvmlUnavailable(f"the deprecated project 'pynvml' shadows nvidia-ml-py ({pynvml.__file__}); {remedy}")
    if not hasattr(pynvml, "NVMLLibraryMismatchError"):
        raise NvmlUnavailable(f"this nvidia-ml-py is too old ({pynvml.__file__}); pip install {REQUIREMENT}")
    module: ModuleType = pynvml
    return module
