"""From what the ranks of a launch report to the rows of its tables."""

import itertools
import math
from collections.abc import Callable

from bench.core.channel import Message as Result
from bench.core.job import Job
from bench.core.records import PHASES
from bench.runs.frames import TableRow

Rows = list[TableRow]
Results = list[Result]
"""The results of the ranks."""
Maker = Callable[[Job, Results, Results], dict[str, Rows]]
"""Makes the rows of a launch, by table, of the results of its ranks and of what those sent that did not finish."""


def measured(job: Job, results: Results, partial: Results) -> dict[str, Rows]:
    """The steps of a launch, also of ranks that did not finish, and by how much its updates are off. In a run of
    several interpreters also its gradients."""
    steps, first = step_rows(job, results) + partial_step_rows(job, partial), results[0] if results else {}
    numerics = update_rows(job, 0, first.get("updates", []))
    for twin, tensors in enumerate(first.get("own_gradients", [])):
        for tensor, values in enumerate(tensors):
            numerics += numbers(job, "own", values, rank=0, step=0, tensor=tensor, twin=bool(twin))
    return {"steps": steps, "numerics": numerics}


def check(job: Job, results: Results) -> None:
    """Raise ``ValueError`` that names a rank whose times cannot be those of its steps: its clock stands still, say."""
    numbers = [result.get("rank") if isinstance(result, dict) else None for result in results]
    if not set(numbers) <= set(range(job.processes)) or len(set(numbers)) < len(numbers):
        raise ValueError(f"they are of the ranks {numbers}, and there are {job.processes}")
    if job.purpose not in ("measure", "loading"):
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


def step_rows(job: Job, results: Results) -> Rows:
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


def partial_step_rows(job: Job, partial: Results) -> Rows:
    """The rows of steps.parquet of the ranks that did not finish: their losses are unknown."""
    head = {"launch": job.launch, "scenario": job.scenario, "repeat": job.repeat}
    return [
        {**head, **of, "warmup": row["step"] < job.workload.warmup, "loss": None, **row}
        for result in partial
        for of in ({"rank": result["rank"], "host": job.ranks[result["rank"]].host},)
        for row in result["steps"]
    ]


def update_rows(job: Job, step: int, updates: list[tuple[float, float]]) -> Rows:
    """By how much the update of each tensor is off, and may be (:data:`bench.worker.probe.Updates`), on rank 0."""
    rows: Rows = []
    for tensor, values in enumerate(updates):
        for quantity, value in zip(("update_error", "update_bound"), values, strict=True):
            rows += numbers(job, quantity, [value], rank=0, step=step, tensor=tensor)
    return rows


def numbers(job: Job, quantity: str, values: list[float], **more: object) -> Rows:
    head = {"launch": job.launch, "scenario": job.scenario, "quantity": quantity, **more}
    return [{**head, "position": position, "value": value} for position, value in enumerate(values)]
