"""What NVIDIA's driver says about GPUs and the processes on them: the one place that talks to ``pynvml``.

    python -c "from bench.nvml import list_gpus; print(list_gpus())"

NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers devices in its own order, so a device is named by its UUID everywhere,
and an index is a position in PCI order (``CUDA_DEVICE_ORDER=PCI_BUS_ID``). A figure that the driver does not give is
None with a reason: an error of one metric on one device leaves all others as they are.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from bench.errors import BenchError

LIBRARY = "libnvidia-ml.so.1"
"""The soname that pynvml loads."""

METRICS = (
    "utilisation_percent",
    "power_w",
    "energy_mj",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "throttle_reasons",
    "used_mib",
)
"""The figures of one device at one moment, as in ``bench.records.DEVICE_COLUMNS``."""

NO_FIGURE = "the driver gives no figure here (NVML_VALUE_NOT_AVAILABLE)"

_SIGNS_OF_A_DRIVER = (
    "/dev/nvidiactl",
    "/proc/driver/nvidia/version",
    f"/usr/lib/wsl/lib/{LIBRARY}",
)
_NOT_AVAILABLE = (None, 2**32 - 1, 2**64 - 1)
_MIB = 2**20
_ATTEMPTS = 4


class NvmlUnavailable(BenchError):
    """NVML cannot be used here: one line, ``problem; remedy``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. ``index``: its place in PCI order, which is what ``--gpus`` counts. ``driver``: the driver's version.

    ``compute_capability``: such as ``"9.0"``. ``power_limit_w``: the limit in force. Both, and ``memory_total_mib``,
    are None where the driver does not tell.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_total_mib: float | None
    compute_capability: str | None
    power_limit_w: float | None
    driver: str | None


def driver_present() -> bool:
    """Whether there is a driver to ask, seen from its files alone (a stand-in on ``LD_LIBRARY_PATH`` is one, too)."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    libraries = [os.path.join(folder, LIBRARY) for folder in folders if folder]
    return any(os.path.exists(path) for path in (*_SIGNS_OF_A_DRIVER, *libraries))


def list_gpus() -> tuple[list[Gpu], str | None]:
    """The GPUs of this host in PCI order, and in one line why there are none or which one is left out."""
    try:
        nvml = Nvml()
    except NvmlUnavailable as error:
        return [], str(error)
    try:
        return nvml.gpus()
    finally:
        nvml.close()


class Nvml:
    """A session with the driver: one ``nvmlInit``, one handle per device.

    Raises :class:`NvmlUnavailable` when there is no driver, no (or a foreign) ``pynvml``, or the driver refuses. What
    fails later is told beside the figure that it cost, and nothing is raised.
    """

    def __init__(self) -> None:
        self._pynvml = pynvml = _import_pynvml()
        # A driver without the newest symbols raises the second one, which is no NVMLError.
        self._errors: tuple[type[Exception], ...] = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
        try:
            pynvml.nvmlInit()
        except self._errors as error:
            raise NvmlUnavailable(
                f"NVML does not start: {_line(error)}; mend the driver until nvidia-smi works, or use --device cpu"
            ) from error
        self._handles: dict[str, Any] = {}
        self._list_processes: Callable[[Any], Any] = pynvml.nvmlDeviceGetComputeRunningProcesses
        self._throttle_reasons: Callable[[Any], Any] = pynvml.nvmlDeviceGetCurrentClocksEventReasons
        self._reads: dict[str, tuple[Callable[[Any], Any], float]] = {
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
        """The devices in PCI order, and why there are none or which one is left out (its driver's error)."""
        pynvml = self._pynvml
        count, reason = self._try(pynvml.nvmlDeviceGetCount)
        if reason is not None:
            return [], f"NVML does not count the GPUs: {reason}; mend the driver until nvidia-smi works"
        driver = self.versions()["driver"]
        found: list[tuple[tuple[int, int, int], dict[str, Any]]] = []
        problems = []
        for number in range(count):
            entry, reason = self._try(partial(self._describe, number))
            if reason is None:
                found.append(entry)
            else:
                problems.append(f"the GPU that nvidia-smi numbers {number} is left out: {reason}; reset or replace it")
        if not count:
            problems.append("the driver lists no GPU; start the container with its GPUs, or use --device cpu")
        found.sort(key=lambda entry: entry[0])
        gpus = [Gpu(index=index, driver=driver, **fields) for index, (_, fields) in enumerate(found)]
        return gpus, "; ".join(problems) or None

    def processes(self, uuid: str) -> tuple[list[tuple[int, float | None]], str | None]:
        """``(pid, used_mib)`` of every compute process on a device, and why the list or a figure in it is missing.

        A process that is there without a figure has ``used_mib`` None.
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
            used = [(int(row.pid), _scaled(row.usedGpuMemory, 1 / _MIB)) for row in rows]
            return used, NO_FIGURE if any(mib is None for _, mib in used) else None
        return [], reason

    def device_sample(self, uuid: str) -> dict[str, Any]:
        """Every one of :data:`METRICS` now, and ``reason``: which of them are None and why, or None.

        ``utilisation_percent`` is the share of the driver's last sampling period with a kernel on the device;
        ``energy_mj`` the driver's counter since it was loaded; ``used_mib`` the whole device, the driver's reserve
        included; ``throttle_reasons`` NVML's bits (``nvmlClocksEventReasons``).
        """
        handle, reason = self._try(partial(self._handle, uuid))
        if reason is not None:
            return unknown_sample(reason)
        sample: dict[str, Any] = {}
        reasons = []
        for metric, (read, unit) in self._reads.items():
            value, reason = self._try(partial(read, handle))
            sample[metric] = _scaled(value, unit)
            if reason is not None:
                reasons.append(f"{metric}: {reason}")
        return {**sample, "reason": "; ".join(reasons) or None}

    def versions(self) -> dict[str, str | None]:
        """``driver`` and ``nvml``, None where the driver does not tell."""
        return {
            "driver": self._try(self._pynvml.nvmlSystemGetDriverVersion)[0],
            "nvml": self._try(self._pynvml.nvmlSystemGetNVMLVersion)[0],
        }

    def close(self) -> None:
        """End the session."""
        self._handles.clear()
        self._try(self._pynvml.nvmlShutdown)

    def _describe(self, number: int) -> tuple[tuple[int, int, int], dict[str, Any]]:
        """The place in PCI order of the device that NVML numbers ``number``, and the fields of its :class:`Gpu`."""
        pynvml = self._pynvml
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        memory = self._try(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total)[0]
        capability = self._try(partial(pynvml.nvmlDeviceGetCudaComputeCapability, handle))[0]
        power_limit = self._try(partial(pynvml.nvmlDeviceGetPowerManagementLimit, handle))[0]
        fields = {
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "name": pynvml.nvmlDeviceGetName(handle),
            "pci_bus_id": pci.busId,
            "memory_total_mib": _scaled(memory, 1 / _MIB),
            "compute_capability": None if capability is None else "{}.{}".format(*capability),
            "power_limit_w": _scaled(power_limit, 1e-3),
        }
        return (pci.domain, pci.bus, pci.device), fields

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _running(self, handle: Any) -> Any:
        try:
            return self._list_processes(handle)
        except self._pynvml.NVMLLibraryMismatchError:
            self._list_processes = self._pynvml.nvmlDeviceGetComputeRunningProcesses_v2
            return self._list_processes(handle)

    def _read_throttle_reasons(self, handle: Any) -> Any:
        try:
            return self._throttle_reasons(handle)
        except self._pynvml.NVMLError_FunctionNotFound:  # drivers before R535 have the older name alone
            self._throttle_reasons = self._pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
            return self._throttle_reasons(handle)

    def _try(self, call: Callable[[], Any]) -> tuple[Any, str | None]:
        """What ``call`` gives, or None and the reason."""
        try:
            value = call()
        except self._errors as error:
            return None, _line(error)
        return (None, NO_FIGURE) if value in _NOT_AVAILABLE else (value, None)


def unknown_sample(reason: str) -> dict[str, Any]:
    """What :meth:`Nvml.device_sample` gives for a device of which nothing is known."""
    return {**dict.fromkeys(METRICS), "reason": reason}


def _scaled(value: int | None, unit: float) -> float | None:
    """``value * unit``, None staying None and bits (unit 1) staying an integer."""
    return None if value is None else value * unit


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _import_pynvml() -> ModuleType:
    """The module of nvidia-ml-py. Raises :class:`NvmlUnavailable` where it would not work, and says what to do."""
    if not driver_present():
        raise NvmlUnavailable(
            "there is no NVIDIA driver on this host; install it, start the container with its GPUs, or use --device cpu"
        )
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise NvmlUnavailable("the module pynvml is not installed; pip install nvidia-ml-py") from error
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise NvmlUnavailable(
            f"the deprecated project 'pynvml' shadows nvidia-ml-py ({pynvml.__file__}); "
            "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    module: ModuleType = pynvml
    return module
