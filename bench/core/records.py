"""Values that cross processes and files: the columns of the tables, GPUs and hosts.

The command line and the workers import it, so it needs the standard library alone. Units are in the names.
"""

from dataclasses import dataclass

SCHEMA_VERSION = 1  # of run.json and of the tables beside it; a reader refuses any other by name
PROBE_MIB = 512.0  # a rank in a container allocates as much once: its PID is the one whose value rises by that
STATUSES = ("ok", "oom", "timeout", "killed", "unsupported", "error")
PARITIES = ("same", "within half precision", "differs by design", "cannot tell", "diverged", "not finite")
"""The verdicts on numerics, from the best to the worst."""
UNTRUE = PARITIES[-2:]  # it trains another model, or none
PHASES = ("data", "forward", "backward", "optimizer")

LAUNCH_COLUMNS = {"launch": "int32", "scenario": "string"}  # the first columns of every table

STEP_COLUMNS = {
    **LAUNCH_COLUMNS,
    **dict.fromkeys(("repeat", "rank", "step"), "int32"),
    "warmup": "bool",
    "start_ns": "int64",
    **{f"{phase}_ms": "float64" for phase in (*PHASES, "step")},
    "loss": "float64",
    "host": "string",
}
"""One row per rank and step, warm-up steps included. ``start_ns``: CLOCK_MONOTONIC of ``host``; other hosts' differ."""

MEMORY_COLUMNS = {
    **LAUNCH_COLUMNS,
    "host": "string",
    "t_ns": "int64",
    "pid": "int64",
    "rank": "int32",
    "device": "string",
    "used_mib": "float64",
    "source": "string",
    "reason": "string",
    "pss_mib": "float64",
}
"""One row per sample, process and device. ``used_mib`` is null with a ``reason`` where it is unknown, never 0.

``source``: ``nvml_pid``, ``nvml_probe``, ``nvml_device_delta`` (see ``bench.machine.sample.attribution``),
``torch_allocator`` (a peak, not a sample), ``rss`` or ``unavailable``. ``pss_mib``: a CPU rank's proportional set size,
taken once, after the measured steps.
"""

ALLOCATOR = "torch_allocator"  # the source of torch's own peak, if the driver had none
MEMORY_SOURCES = ("nvml_pid", "nvml_probe", "nvml_device_delta", ALLOCATOR, "rss", "unavailable")

ACTIVITY_COLUMNS = ("sm_percent", "tensor_percent", "dram_percent", "nvlink_tx_mib_s", "nvlink_rx_mib_s")

LINK_COLUMNS = ("pcie_tx_kib", "pcie_rx_kib", "nvlink_tx_kib", "nvlink_rx_kib")

METRIC_COLUMNS = {  # of one device at one moment
    **dict.fromkeys(("utilisation_percent", "power_w", "energy_mj"), "float64"),
    **dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz", "temperature_c"), "float64"),
    "throttle_reasons": "int64",
    "used_mib": "float64",
}

DEVICE_COLUMNS = {
    **LAUNCH_COLUMNS,
    "host": "string",
    "t_ns": "int64",
    "device": "string",
    **METRIC_COLUMNS,
    "reason": "string",
    **dict.fromkeys(LINK_COLUMNS, "float64"),
    "mig": "bool",
    **dict.fromkeys(ACTIVITY_COLUMNS, "float64"),
    "activity_reason": "string",
}
"""One row per sample and GPU. ``energy_mj``: the driver's counter in millijoules; ``throttle_reasons``: NVML's bits.

``pcie_*`` and ``nvlink_*``: counters, in every tenth sample, null where the driver has none. NVML's GPM metrics, of the
time since the last sample with them: ``sm_percent`` (busy SMs), ``tensor_percent`` (time in tensor cores),
``dram_percent`` (of its bandwidth) and ``nvlink_*_mib_s``; null with ``activity_reason`` where unknown.
"""

NUMERICS_COLUMNS = {
    **LAUNCH_COLUMNS,
    **dict.fromkeys(("rank", "replicas"), "int32"),
    "twin": "bool",
    "quantity": "string",
    "position": "int32",
    "value": "float64",
    **dict.fromkeys(("computation", "step", "tensor"), "int32"),
}
"""One row per number that says what was trained (see ``bench.worker.probe`` and ``bench.worker.reference``).

``quantity``: of a launch in double precision and of the reference, by step and tensor, and ``position`` in its sketch,
``probed`` (the gradient) and ``buffer`` (what the step did to a buffer); ``alone`` (the gradient of the first replica
by itself). ``own``: the gradient of a measured launch in its own types, in a run of several interpreters.
``update_error`` and ``update_bound``: of a tensor and a step. ``loss`` of a step (``position``) of the reference.
``rank`` is null for the reference, and ``computation``, the place in its ``computations``, for a launch. ``twin``: with
weights moved by a rounding.
"""

DIAGNOSTIC_COLUMNS = {
    **LAUNCH_COLUMNS,
    "rank": "int32",
    "look": "string",
    **dict.fromkeys(("step", "pair"), "int32"),
    "synchronised": "bool",
    **{f"{phase}_ms": "float64" for phase in PHASES},
    **dict.fromkeys(("compute_ms", "comm_ms", "overlap_ms"), "float64"),
    **dict.fromkeys(("scatter_ms", "replicate_ms", "parallel_apply_ms", "gather_ms"), "float64"),
}
"""One row per rank and step of a diagnostic launch. A column is null where the probe ``look`` does not have it."""

ALWAYS_KNOWN = {  # by table the columns that are never null
    "steps": (*LAUNCH_COLUMNS, "repeat", "rank", "step", "warmup", "step_ms"),
    "memory": (*LAUNCH_COLUMNS, "t_ns", "pid", "rank", "source"),
    "device": (*LAUNCH_COLUMNS, "t_ns", "device"),
    "numerics": (*LAUNCH_COLUMNS, "quantity", "position", "value"),
    "diagnostics": (*LAUNCH_COLUMNS, "rank", "look", "step"),
}
RANGES: dict[str, tuple[int, int]] = {  # the least and the most of a number in any table
    **dict.fromkeys(
        ("launch", "repeat", "rank", "step", "replicas", "position", "pair", "computation", "tensor"), (0, 2**31 - 1)
    ),
    **dict.fromkeys(("start_ns", "t_ns", "pid", "throttle_reasons"), (0, 2**63 - 1)),
    **dict.fromkeys((f"{phase}_ms" for phase in (*PHASES, "step")), (0, 10**12)),
    **dict.fromkeys(("used_mib", "pss_mib", "power_w", "sm_clock_mhz", "memory_clock_mhz"), (0, 10**9)),
    **dict.fromkeys(("utilisation_percent", *ACTIVITY_COLUMNS[:3]), (0, 100)),
    **dict.fromkeys(ACTIVITY_COLUMNS[3:], (0, 10**9)),
    "temperature_c": (-273, 1000),
    **dict.fromkeys(("energy_mj", *LINK_COLUMNS), (0, 10**18)),
    **dict.fromkeys(("comm_ms", "compute_ms", "overlap_ms"), (-(10**12), 10**12)),
    **dict.fromkeys(("loss", "value"), (-(10**40), 10**40)),
    **dict.fromkeys((f"{part}_ms" for part in ("scatter", "replicate", "parallel_apply", "gather")), (0, 10**12)),
}
NOT_FINITE = ("loss", "value")  # columns of what a training computes, which may be NaN or infinite

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. ``index``: its place in PCI order, which is what ``--gpus`` counts; None: unknown to the driver.

    ``compute_capability``: such as ``"9.0"``. ``power_limit_w``: the limit in force. ``driver``: the driver's version.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_total_mib: float | None
    compute_capability: str | None
    power_limit_w: float | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of a site: its name, the cores that bench may use there, and the UUIDs of its GPUs that were chosen."""

    name: str
    cores: int
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOn:
    """A switch that is on: its name, the file that defines it, and its value, which is True if it takes none.

    ``usual``: whether that is its default, which its name leaves out.
    """

    name: str
    file: str
    value: Setting = True
    usual: bool = True

    @property
    def spec(self) -> str:
        """As it is asked for, such as ``bucket_mb=50``."""
        return self.name if self.usual else f"{self.name}={self.value}"


def canonical_json(value: object) -> str:
    """One text for one value: sorted keys, no spaces, no NaN (raises ``ValueError``)."""
    import json  # here, since 'bench list' needs none of it

    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
