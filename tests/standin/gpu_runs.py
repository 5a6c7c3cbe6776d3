"""Launches on two GPUs that were written by hand, with what the driver and torch would have said of them."""

from dataclasses import dataclass, field
from typing import Any

from bench.machine.nvml import NO_GPM
from standin.documents import sample
from standin.runs import SECOND_NS, Launch

FIRST, SECOND = "GPU-ffff", "GPU-aaaa"
"""In the order of their index, which is not that of their UUIDs."""

GPUS: list[dict[str, Any]] = [
    {"index": index, "uuid": uuid, "name": "NVIDIA Some GPU <b>80GB</b>", "driver": "555.1"}
    for index, uuid in enumerate((FIRST, SECOND))
]

Held = dict[tuple[int, str], float | None]
"""MiB by rank and GPU; None where the driver does not tell."""

STEPS_MS = [1000.0, *[500.0] * 24]
"""A warm-up step of 1 s, and measured ones that last 12 s."""


STEADY = {"memory_clock_mhz": 2600.0, "utilisation_percent": 97.0, "mig": False, "activity_reason": NO_GPM}


@dataclass
class OnGpus(Launch):
    """A launch of 16 s: the memory of each rank on each GPU, and what is sampled of each GPU.

    ``watts``: power by GPU over the measured steps (a third of it before and after; null where None). ``bits``: the
    throttle reasons by GPU, for the third second of the measured steps. ``reserved``: torch's peak by rank and GPU.
    """

    held: Held = field(default_factory=dict)
    reserved: dict[tuple[int, str], float] = field(default_factory=dict)
    watts: dict[str, float | None] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    source: str = "nvml_pid"
    apart_s: int = 17

    def pid(self, launch: int, rank: int) -> int:
        return 4000 + 10 * launch + rank

    def record(self, launch: int, repeat: int) -> dict[str, Any]:
        record = super().record(launch, repeat)
        ranks = sorted({rank for rank, _ in self.held} | set(range(len(self.steps_ms))))
        record["ranks"] = []
        for rank in ranks:
            peaks = {}
            for (of, gpu), mib in self.reserved.items():
                if of == rank:
                    peaks |= {f"max_allocated_mib.{gpu}": mib - 300.0, f"max_reserved_mib.{gpu}": mib}
            sums = {"initial_sha256": "a" * 64, "final_sha256": "b" * 64}
            record["ranks"].append({"rank": rank, "pid": self.pid(launch, rank), "allocator": peaks or None, **sums})
        record["processes"] = len(ranks)
        record["first_failed_rank"] = len(ranks) - 1 if self.status == "error" else None
        if record["effective"]:
            dp = self.strategy == "dp"
            record["effective"] |= {"replicas": 2, "world_size": len(ranks), "backend": None if dp else "nccl"}
            record["effective"] |= {"device": {"type": "cuda"}, "threads": 2 // len(ranks)}
        return record

    def memory_rows(self, launch: int) -> list[dict[str, Any]]:
        about = {"launch": launch, "scenario": self.scenario, "host": "host"}
        begin_ns = launch * self.apart_s * SECOND_NS
        unknown = {"used_mib": None, "source": "unavailable", "reason": "the driver hid <it>"}
        return [
            sample(t_ns=begin_ns + tick * SECOND_NS // 4, pid=self.pid(launch, rank), rank=rank, device=gpu, **about)
            | (unknown if used is None else {"used_mib": min(1.0, tick / 8) * used, "source": self.source})
            for (rank, gpu), used in self.held.items()
            for tick in range(61)
        ]

    def device_rows(self, launch: int) -> list[dict[str, Any]]:
        about, rows = {"launch": launch, "scenario": self.scenario, "host": "host"}, []
        for gpu, watts in self.watts.items():
            energy_mj = 1e9
            for tick in range(157):
                at_s = tick / 10 - 2.0  # since the measured steps began
                measured = 0 <= at_s <= 12
                power = None if watts is None else watts if measured else watts / 3
                energy_mj += 0.0 if power is None else power * 100.0
                slow = 2 <= at_s < 3
                t_ns = launch * self.apart_s * SECOND_NS + tick * SECOND_NS // 10
                row = {
                    "power_w": power,
                    "energy_mj": None if power is None else energy_mj,
                    "sm_clock_mhz": 1200.0 if slow else 1800.0,
                    "temperature_c": 60.0 + self.bits.get(gpu, 0) % 7,
                    "throttle_reasons": self.bits.get(gpu, 0) if slow else 0,
                    "pcie_tx_kib": 1024.0 * 50 * tick / 10,
                    "pcie_rx_kib": 1024.0 * 80 * tick / 10,
                    "reason": None if watts is not None else "Not Supported",
                }
                rows.append(sample("device", **about, **STEADY, **row, t_ns=t_ns, device=gpu))
        return rows


DP = OnGpus(
    "dp",
    [STEPS_MS],
    strategy="dp",
    held={(0, FIRST): 9000.0, (0, SECOND): 6000.0},
    reserved={(0, FIRST): 8400.0, (0, SECOND): 5500.0},
    watts={FIRST: 300.0, SECOND: 200.0},
)
DDP2 = OnGpus(
    "ddp",
    [[ms / 2 if at else ms for at, ms in enumerate([*STEPS_MS, *STEPS_MS[1:]])]] * 2,
    held={(0, FIRST): 7000.0, (1, SECOND): 7100.0},
    reserved={(0, FIRST): 6300.0, (1, SECOND): 6400.0},
    watts={FIRST: 310.0, SECOND: 330.0},
    bits={SECOND: 0x4},
)
