"""From what the ranks of a launch report to the rows of its tables."""

import itertools
import math
from typing import Any

from bench.core.records import PHASES, Job

Rows = list[dict[str, Any]]


def of(job: Job, results: list[dict[str, Any]], partial: list[dict[str, Any]]) -> dict[str, Rows]:
    """The rows for each table, by what the launch is for. Arguments as in :class:`bench.seams.site.Outcome`."""
    if job.purpose == "diagnose":
        return {"diagnostics": diagnostic_rows(job, results)}
    if job.purpose in ("checkpoint", "restart", "bandwidth", "exchanges"):
        return {}
    if job.purpose == "reference":
        return {"numerics": reference_rows(job, results)}
    if job.purpose == "double":
        return {"numerics": double_rows(job, results)}
    if job.purpose == "input":
        return {"steps": step_rows(job, results)}
    steps = step_rows(job, results) + partial_step_rows(job, partial)
    return {"steps": steps, "numerics": update_rows(job, 0, results[0].get("updates", []) if results else [])}


def check(job: Job, results: list[dict[str, Any]]) -> None:
    """Raise ``ValueError`` that names a rank whose times cannot be those of its steps: its clock stands still, say."""
    numbers = [result.get("rank") if isinstance(result, dict) else None for result in results]
    if not set(numbers) <= set(range(job.processes)) or len(set(numbers)) < len(numbers):
        raise ValueError(f"they are of the ranks {numbers}, and there are {job.processes}")
    if job.purpose not in ("measure", "input"):
        return
    for result in results:
        for window, steps in (("warmup", job.workload.warmup), ("measured", job.iters)):
            times_ms = result[window]["step_ms"]
            if len(times_ms) != steps:
                raise ValueError(f"rank {result['rank']} has {len(times_ms)} steps in place of {steps} ({window})")
            for name in ("step_ms", *(f"{phase}_ms" for phase in PHASES)):
                for ms in result[window][name]:
                    if not (0 <= ms < math.inf and (ms or name != "step_ms")):
                        raise ValueError(f"the clock of rank {result['rank']} is wrong: {name} is {ms} ({window})")


def step_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of steps.parquet of one launch: warm-up steps first, numbered on."""
    columns = ("start_ns", *(f"{phase}_ms" for phase in PHASES), "step_ms", "loss")
    rows: Rows = []
    for result in results:
        head = {"launch": job.launch, "scenario": job.scenario, "repeat": job.repeat, "rank": result["rank"]}
        head["host"] = job.ranks[result["rank"]].host
        numbers = itertools.count()
        for window in ("warmup", "measured"):
            for values in zip(*(result[window][name] for name in columns), strict=True):
                at = {"step": next(numbers), "warmup": window == "warmup"}
                rows.append({**head, **at, **dict(zip(columns, values, strict=True))})
    return rows


def partial_step_rows(job: Job, partial: list[dict[str, Any]]) -> Rows:
    """The rows of steps.parquet of the ranks that did not finish: their losses are unknown."""
    head = {"launch": job.launch, "scenario": job.scenario, "repeat": job.repeat}
    return [
        {**head, **of, "warmup": row["step"] < job.workload.warmup, "loss": None, **row}
        for result in partial
        for of in ({"rank": result["rank"], "host": job.ranks[result["rank"]].host},)
        for row in result["steps"]
    ]


def double_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of numerics.parquet of a launch in double precision: those of rank 0, and the gradients of each rank
    that differs."""
    rows: Rows = []
    for result in results:
        double, about = result["double"], {"rank": result["rank"]}
        if result["rank"] == 0 or double["gradients"] != results[0]["double"]["gradients"]:
            rows += _by_step(job, "probed", double["gradients"], **about)
        if result["rank"] == 0:
            rows += _by_step(job, "buffer", double["buffers"], **about)
            for step, updates in enumerate(double["updates"]):
                rows += update_rows(job, step, updates)
    return rows


def update_rows(job: Job, step: int, updates: list[tuple[float, float]]) -> Rows:
    """By how much the update of each tensor is off, and may be (:data:`bench.worker.probe.Updates`), on rank 0."""
    rows: Rows = []
    for tensor, values in enumerate(updates):
        for quantity, value in zip(("update_error", "update_bound"), values, strict=True):
            rows += _numbers(job, quantity, [value], rank=0, step=step, tensor=tensor)
    return rows


def reference_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    """The rows of each pass, by the place of its computation."""
    rows: Rows = []
    for place, done in enumerate(done for result in results for done in result["passes"]):
        about = {"computation": place, "replicas": done["computation"]["replicas"], "twin": False}
        rows += _numbers(job, "loss", done["loss"], **about)
        for quantity, name in (("probed", "gradients"), ("buffer", "buffers"), ("alone", "alone")):
            rows += _by_step(job, quantity, done[name], **about)
        for quantity, name in (("probed", "twin_gradients"), ("buffer", "twin_buffers")):
            rows += _by_step(job, quantity, done[name], **about | {"twin": True})
    return rows


def diagnostic_rows(job: Job, results: list[dict[str, Any]]) -> Rows:
    rows: Rows = []
    for result in results:
        for probe, of in result["probes"].items():
            head = {"launch": job.launch, "scenario": job.scenario, "rank": result["rank"], "look": probe}
            rows += [{**head, "step": step, **values} for step, values in enumerate(of["rows"])]
    return rows


def _by_step(job: Job, quantity: str, steps: list[list[list[float]]], **about: Any) -> Rows:
    return [row for step, of in enumerate(steps) for row in _by_tensor(job, quantity, of, step=step, **about)]


def _by_tensor(job: Job, quantity: str, tensors: list[list[float]], **about: Any) -> Rows:
    return [
        row for tensor, values in enumerate(tensors) for row in _numbers(job, quantity, values, tensor=tensor, **about)
    ]


def _numbers(job: Job, quantity: str, values: list[float], **about: Any) -> Rows:
    head = {"launch": job.launch, "scenario": job.scenario, "quantity": quantity, **about}
    return [{**head, "position": position, "value": value} for position, value in enumerate(values)]
