"""A run in a page: all that a comparison with other runs needs, so that thousands of nights are read in seconds.

It is sealed in the run folder as ``digest.json``. Everything in it follows from ``run.json`` and the tables, from which
:func:`of_run` makes it again for a run that has none.

    {"digest_version": 1, "run", "utc", "label", "profile", "git": {"commit", "dirty"}, "imported": null | {...},
     "attached": null | {...},
     "workload": {..., "hash"}, "device": "cuda" | "cpu", "hardware": [names of the GPUs, or of the CPU], "replicas",
     "conditions": {host, cpu, cores, driver, torch, cuda, cudnn, nccl, power limits, governor, ...; looked_at, where
                    launches were added: how many of each scenario an earlier verdict had},
     "scenarios": [{"scenario", "what_ran", "world_size", "status", "reason", "validity", "invalid": [codes],
                    "parity", "loss_error", "memory_source", "energy_source",
                    "launches": [{"launch", "repeat", METRICS..., "sm_clock_mhz"}]}]}

A scenario has a figure per launch that is ``ok``: the replicate of every comparison. What is unknown is null.
"""

from typing import Any

import pandas as pd

from bench.analyse import devices
from bench.analyse.analysed import Analysed
from bench.analyse.labels import what_ran
from bench.analyse.launches import LOOKED_AT, ended, joined, looked_at, ok_rows
from bench.analyse.parity import CANNOT_TELL, by_scenario
from bench.core.codec import encode
from bench.core.records import Gpu
from bench.runs.digests import VERSION
from bench.runs.document import Attached, Imported, RunDocument
from bench.runs.reader import Run

METRICS = {
    "step_ms": "median step time",
    "throughput_per_s": "throughput",
    "peak_pid_mib": "peak memory of the largest process",
    "peak_total_mib": "peak memory of all processes",
    "energy_per_1000_j": "energy per 1,000 examples",
}
"""The figures of a launch, and what they are called. Lower is better, except of throughput."""


def of_run(run: Run) -> dict[str, Any]:
    """The digest of a run whose ``validity`` and ``parity`` stand in its document."""
    analysed = Analysed.of(run)
    document, units = run.document, run.document.workload.units
    memory, devices_ok = analysed.peaks.set_index("launch"), ok_rows(document, analysed.devices)
    energy = devices.per_launch(run.device, analysed.good_iterations, units, devices_ok).set_index("launch")
    figures = _figures(analysed, memory, energy)
    sources = {"memory_source": memory["source"], "energy_source": energy["energy_source"]}
    return {
        "digest_version": VERSION,
        "run": run.id,
        "utc": document.start.utc,
        "label": document.request.label,
        "profile": document.request.profile,
        "git": encode((document.of(Attached) or document.machine).git),
        "imported": encode(document.of(Imported)),
        "attached": encode(document.of(Attached)),
        "workload": encode(document.workload),
        "device": document.workload.device,
        "hardware": _hardware(document),
        "replicas": document.workload.replicas,
        "conditions": _conditions(document),
        "scenarios": [_scenario(one, document, figures, sources) for one in dict.fromkeys(document.request.scenarios)],
    }


def _figures(run: Analysed, memory: pd.DataFrame, energy: pd.DataFrame) -> dict[int, dict[str, float | None]]:
    """:data:`METRICS` by launch, and the clock of the slowest GPU (median over the measured steps)."""
    units = run.document.workload.units
    times = run.good_figures.frame.set_index("launch")["median_ms"]
    clocks = ok_rows(run.document, run.devices).groupby("launch")["sm_clock_mhz"].min()
    known = {
        "step_ms": times,
        "throughput_per_s": 1000.0 * (float("nan") if units is None else units) / times,
        "peak_pid_mib": memory["peak_pid_mib"],
        "peak_total_mib": memory["peak_total_mib"],
        "energy_per_1000_j": energy["energy_per_1000_j"],
        "sm_clock_mhz": clocks,
    }
    return {
        int(launch): {name: _known(of[launch]) if launch in of else None for name, of in known.items()}
        for launch in times.index
    }


def _known(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _hardware(document: RunDocument) -> list[str]:
    if (imported := document.of(Imported)) is not None:
        return list(imported.hardware)
    if document.workload.device == "cpu":
        return [str(document.machine.cpu)]
    return [gpu.name for gpu in _gpus(document)]


def _gpus(document: RunDocument) -> list[Gpu]:
    chosen = document.request.devices
    return [gpu for gpu in document.machine.gpus if gpu.uuid in chosen]


def _conditions(document: RunDocument) -> dict[str, object]:
    machine, gpus = document.machine, _gpus(document)
    ran = next((launch.effective for launch in document.launches if launch.effective), None)
    return {
        "host": machine.host,
        "os": machine.os,
        "cpu": machine.cpu,
        "cores": machine.cores_usable,
        "governor": machine.governor,
        "driver": next((gpu.driver for gpu in gpus), None),
        "power_limit_w": [gpu.power_limit_w for gpu in gpus],
        "python": document.versions.get("python"),
        **{name: document.versions.get(name) for name in ("torch", "torchvision", "cuda", "cudnn", "nccl")},
        **(ran.versions if ran else {}),
        "bench": None if document.of(Imported) else document.bench,
        **({LOOKED_AT: before} if (before := looked_at(document)) else {}),
    }


def _scenario(
    name: str, document: RunDocument, figures: dict[int, dict[str, float | None]], sources: dict[str, pd.Series]
) -> dict[str, Any]:
    mine = [launch for launch in document.launches if launch.scenario == name]
    found = [one for one in document.validity if one.scenario == name]
    good = [launch for launch in mine if launch.status == "ok"]
    numbers = [launch.launch for launch in good]
    first = next(iter(good or mine), None)
    ran = first.effective if first else None
    status, reason = ended(mine)
    unknown: dict[str, float | None] = dict.fromkeys((*METRICS, "sm_clock_mhz"))
    return {
        "scenario": name,
        "what_ran": what_ran(ran),
        "world_size": ran.replicas if ran else first.replicas if first else None,
        "status": status,
        "reason": reason,
        "validity": min((one.severity for one in found), default="valid") if good else None,  # "invalid" < "warning"
        "invalid": list(dict.fromkeys(one.code for one in found if one.severity == "invalid")) if good else [],
        **_parity(name, document),
        **{kind: joined(of[of.index.isin(numbers)].dropna()) for kind, of in sources.items()},
        "launches": [{"launch": one.launch, "repeat": one.repeat, **figures.get(one.launch, unknown)} for one in good],
    }


def _parity(name: str, document: RunDocument) -> dict[str, object]:
    mine = [one for one in document.parity if one.scenario == name]
    if not mine:
        return {"parity": None, "loss_error": None}
    gravest = by_scenario(pd.DataFrame(encode(mine))).iloc[0]
    verdict = gravest["verdict"] if gravest["verdict"] != CANNOT_TELL else None  # which is neither better nor worse
    return {"parity": verdict if isinstance(verdict, str) else None, "loss_error": _known(gravest["loss_error"])}
