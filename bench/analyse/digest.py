"""A run in a page: all that a comparison with other runs needs, so that thousands of nights are read in seconds.

It is sealed in the run folder as ``digest.json``, in the form of :class:`bench.runs.digests.Form`. Everything in it
follows from ``run.json`` and the tables, from which :func:`of_run` makes it again for a run that has none.

A scenario has a value per launch that is ``ok``, the replicate of every comparison. What is unknown is null.
"""

import pandas as pd

from bench.analyse import devices
from bench.analyse.analysed import Analysed
from bench.analyse.labels import what_ran
from bench.analyse.launches import ended, joined, looked_at, ok_rows
from bench.analyse.parity import CANNOT_TELL, by_scenario
from bench.analyse.verdicts import json_value
from bench.core.codec import encode
from bench.runs.digests import LOOKED_AT, VERSION, Digest, Entry
from bench.runs.document import Attached, Imported, RunDocument
from bench.runs.reader import Run

VERSIONS = ("python", "torch", "torchvision", "cuda", "cudnn", "nccl")


def of_run(run: Run) -> Digest:
    """The digest of a run whose ``validity`` and ``parity`` stand in its document."""
    analysed = Analysed.of(run)
    document, units = run.document, run.document.workload.units
    memory, devices_ok = analysed.peaks.set_index("launch"), ok_rows(document, analysed.devices)
    energy = devices.per_launch(run.device, analysed.good_iterations, units, devices_ok).set_index("launch")
    times = analysed.good_stats.frame.set_index("launch")["median_ms"]
    columns = {
        "step_ms": times,
        "throughput_per_s": 1000.0 * (float("nan") if units is None else units) / times,
        "peak_pid_mib": memory["peak_pid_mib"],
        "peak_total_mib": memory["peak_total_mib"],
        "energy_per_1000_j": energy["energy_per_1000_j"],
        "sm_clock_mhz": devices_ok.groupby("launch")["sm_clock_mhz"].min(),  # of the slowest GPU
    }
    machine, gpus = document.machine, document.gpus
    cpus = [str(one.cpu) for one in document.machines]
    hardware = cpus if document.workload.device == "cpu" else [gpu.name for gpu in gpus]
    imported = document.of(Imported)
    ran = next((launch.effective for launch in document.launches if launch.effective), None)
    sources = {"memory_source": memory["source"], "energy_source": energy["energy_source"]}
    return {
        "digest_version": VERSION,
        "run": run.id,
        "utc": document.start.utc,
        "label": document.request.label,
        "profile": document.request.profile,
        "git": encode((document.of(Attached) or document.machine).git),
        "imported": encode(imported),
        "attached": encode(document.of(Attached)),
        "workload": encode(document.workload),
        "device": document.workload.device,
        "hardware": list(imported.hardware) if imported else hardware,
        "replicas": document.workload.replicas,
        "conditions": {
            "host": machine.host,
            "os": machine.os,
            "cpu": machine.cpu,
            "cores": machine.cores_usable,
            "governor": machine.governor,
            "driver": next((gpu.driver for gpu in gpus), None),
            "power_limit_w": [gpu.power_limit_w for gpu in gpus],
            **{name: document.versions.get(name) for name in VERSIONS},
            **(ran.versions if ran else {}),
            "bench": None if imported else document.bench,
            **({LOOKED_AT: before} if (before := looked_at(document)) else {}),
        },
        "scenarios": [_scenario(one, document, columns, sources) for one in dict.fromkeys(document.request.scenarios)],
    }


def _scenario(name: str, document: RunDocument, values: dict[str, pd.Series], sources: dict[str, pd.Series]) -> Entry:
    launches = [launch for launch in document.launches if launch.scenario == name]
    findings = [one for one in document.validity if one.scenario == name]
    good = [launch for launch in launches if launch.status == "ok"]
    numbers = [launch.launch for launch in good]
    first = next(iter(good or launches), None)
    ran = first.effective if first else None
    status, reason = ended(launches)
    verdict, loss_error = None, None
    if judged := [one for one in document.parity if one.scenario == name]:
        gravest = by_scenario(pd.DataFrame(encode(judged))).iloc[0]
        loss_error = json_value(gravest["loss_error"])
        if isinstance(gravest["verdict"], str) and gravest["verdict"] != CANNOT_TELL:  # neither better nor worse
            verdict = gravest["verdict"]
    return {
        "scenario": name,
        "what_ran": what_ran(ran),
        "world_size": ran.replicas if ran else first.replicas if first else None,
        "status": status,
        "reason": reason,
        "validity": min((one.severity for one in findings), default="valid") if good else None,  # "invalid" < "warning"
        "invalid": list(dict.fromkeys(one.code for one in findings if one.severity == "invalid")) if good else [],
        "parity": verdict,
        "loss_error": loss_error,
        **{kind: joined(of[of.index.isin(numbers)].dropna()) for kind, of in sources.items()},
        "launches": {
            "launch": numbers,
            "repeat": [one.repeat for one in good],
            **{key: [json_value(value) for value in of.reindex(numbers)] for key, of in values.items()},
        },
    }
