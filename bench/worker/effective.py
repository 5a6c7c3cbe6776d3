"""The implementation that really ran, read off the live objects after the steps, never off the request."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.core.dtypes import HALVES
from bench.core.job import Job
from bench.seams.strategy import Strategy
from bench.seams.switching import load_switch
from bench.worker import by_fp32, live, workload
from bench.worker.live import TypeWatch, class_name, dtype_name, observed_level
from bench.worker.precision import Amp, ApexAmp
from bench.worker.session import Session

Ran = dict[str, Any]
""":class:`bench.runs.launches.Effective` as JSON values."""


def read(session: Session, strategy: Strategy, watch: TypeWatch) -> Ran:
    """Describe the session that just trained."""
    model, device = session.model, session.parts.device
    found: Ran = {
        **live.of_training(model, session.module, session.optimizer, device, session.replicas()),
        "parallel_impl": _parallel_impl(session),
        "precision_impl": _precision_impl(session),
        "weights": _weights(model),
        "compute_dtypes": sorted(dtype_name(dtype) for dtype in watch.outputs),
        "optimizer_settings": workload.settings_of(session.optimizer),
        "scaler": _scaler(session),
        # such as ProcessGroupNCCL2, which is "nccl" since torch 2.15 (pytorch/pytorch#192281)
        "backend_class": type(dist.group.WORLD._get_backend(device)).__name__ if dist.is_initialized() else None,
        "memory_format": watch.memory_format,
        "bf16_instructions": None if device.type == "cuda" else live.bf16_instructions(),
        "bf16_by_fp32": by_fp32.ByFp32.used,
        "bound_cores": session.bound_cores,
        "chosen_threads": session.chosen_threads,
        "versions": versions(),
        "compiled": _compiled(),
    }
    found["precision"] = observed_level(found)
    found["apex_kernels"] = _apex_kernels(found)
    looks = session.parts.functions("effect")
    on = session.parts.job.switches
    found["switches"] = {one.spec: looks[one.name](session, found) if one.name in looks else None for one in on}
    took = [one for one in on if found["switches"][one.spec] is None]
    options = ", ".join(f"{name} {value}" for name, value in session.parts.job.options.items())
    label = _label(strategy, found) + (f" [{options}]" if options else "")
    switches = (load_switch(one.name, one.file).label.format(value=one.value) for one in took)
    found["label"] = " + ".join((label, *switches))
    return found


def contradictions(effective: Ran, job: Job, strategy: Strategy, implementation: str | None) -> list[str]:
    """Where what ran (``effective``, from :func:`read`) is not what the scenario's name says: nothing, in an honest
    launch.
    """
    found, precision, half = [], job.precision, job.half
    if effective["precision"] != precision:
        ran = effective["precision"] or "no level"
        parts = ("parameter", "batch_norm", "compute", "optimizer")
        types = ", ".join(f"{part} {' and '.join(effective[f'{part}_dtypes']) or 'none'}" for part in parts)
        found.append(f"{precision} was asked for, but {ran} ran: {types}")
    half_name = HALVES[half]
    if precision != "O0" and set(effective["compute_dtypes"]) - {"float32"} != {half_name}:
        found.append(f"half means {half_name} here, but layers gave {' and '.join(effective['compute_dtypes'])}")
    if precision in ("O1", "O2") and half == "fp16" and effective["scaler"] is None:
        found.append(f"{precision} in fp16 means a dynamic loss scale, but there is no scaler")
    for one in strategy.implementations:
        if one.name == implementation and one.wrapper is not None and effective["wrapper"] != one.wrapper:
            found.append(f"{one.label} means {one.wrapper}, but the wrapper is {effective['wrapper']}")
        if one.name == implementation and one.wrapper is None and effective["parallel_impl"] is not None:
            found.append(f"{one.label} was asked for, but the wrapper is {effective['wrapper']}")
    if effective["weights"] != strategy.weights:
        found.append(f"weights are declared {strategy.weights}, but they are {effective['weights']}")
    return found


def versions() -> dict[str, object]:
    """Versions of what computes."""
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() and dist.is_nccl_available() else None
    return {
        "torch": torch.__version__,
        **workload.versions(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def _label(strategy: Strategy, found: Ran) -> str:
    """By the wrapper that is there; of a strategy that names none, what it calls itself and the wrapper."""
    if strategy.alone_label is not None and found["replicas"] == 1:
        return strategy.alone_label
    for one in strategy.implementations:
        if one.wrapper == found["wrapper"] or (one.wrapper is None and found["parallel_impl"] is None):
            return one.label
    wrapper = "" if found["parallel_impl"] is None else f" ({found['wrapper'].split('.')[-1]})"
    return strategy.label + wrapper


def _compiled() -> dict[str, object] | None:
    """The graphs of ``torch.compile`` in this process (:class:`bench.runs.launches.Compiled`); None if there are
    none."""
    if "torch._dynamo.utils" not in sys.modules:  # importing it takes a second
        return None
    from torch._dynamo import utils

    if not utils.counters["stats"]["unique_graphs"]:
        return None
    return {
        "seconds": float(utils.calculate_time_spent().get("total_wall_time", 0.0)),
        "graphs": int(utils.counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(utils.counters["graph_break"].values()),
    }


def _weights(model: nn.Module) -> str:
    """Whether every weight is whole on this rank (``replicated``), or in shards (``sharded``: torch's DTensor, or as
    DeepSpeed's stage 3 has them)."""
    placements = (one for p in model.parameters() for one in getattr(p, "placements", ()))
    sharded = any(one.is_shard() for one in placements) or any(hasattr(p, "ds_tensor") for p in model.parameters())
    return "sharded" if sharded else "replicated"


def _parallel_impl(session: Session) -> str | None:
    """Whose wrapper it is: ``torch``, ``apex``, ``native`` (bench's own) or ``custom``; None without one."""
    if session.module is session.model:
        return None
    owner = type(session.module).__module__.split(".")[0]
    return {"torch": "torch", "apex": "apex", "bench": "native"}.get(owner, "custom")


def _precision_impl(session: Session) -> str:
    """Whose precision it is: ``torch`` for plain fp32, ``apex``, ``native`` (bench's own) or ``custom``."""
    if isinstance(session.amp, ApexAmp):
        return "apex"
    if type(session) is not Session or type(session.amp) is not Amp:
        return "custom"
    return "torch" if session.amp.precision.level == "O0" else "native"


def _apex_kernels(found: Ran) -> bool | None:
    """Whether apex has its compiled kernels; without, Python stands in. None where nothing of apex ran."""
    if "apex" not in (found["parallel_impl"], found["precision_impl"]):
        return None
    from apex.multi_tensor_apply import multi_tensor_applier

    return bool(multi_tensor_applier.available)


def _scaler(session: Session) -> dict[str, object] | None:
    if session.scaler is None:
        return None
    scaler, by_apex = session.scaler, isinstance(session.amp, ApexAmp)
    scale = scaler.loss_scale() if by_apex else scaler.get_scale()
    return {"class": class_name(scaler), "dynamic": not by_apex or bool(scaler.dynamic), "scale": float(scale)}
