"""The memory of each rank by purpose, and the peak that follows from it beside the measured one.

Weights, optimizer state, buckets and what FSDP2 gathers are there all the time. Activations grow in the forward pass;
in the backward pass gradients take their place, so that the peak has the larger of the two.
"""

import math

import pandas as pd

from bench.core.text import signed
from bench.runs.document import RunDocument
from bench.runs.frames import TableRow
from bench.runs.launches import MemoryHeld, RankRecord

LASTING = ("parameters", "masters", "optimizer", "buffers", "buckets", "gathered", "batch")
PARTS = (*LASTING, "gradients", "activations")
SHARDED = ("fsdp2", "fsdp2_no_reshard", "zero1")
KNOWN = (*PARTS, "early_gradients")
FOLLOWING = ("predicted_mib", "measured_mib", "rest_mib", "reason")
COLUMNS = ("launch", "scenario", "rank", *(f"{part}_mib" for part in KNOWN), *FOLLOWING)


def parts(document: RunDocument) -> pd.DataFrame:
    """One row per rank of the first ``ok`` launch of each scenario that knows its parts (MiB): :data:`COLUMNS`.
    ``reason``: why the activations are unknown.

    ``predicted_mib``: the peak that follows from the parts, null without activations. ``measured_mib``: the measured
    peak less what the process held before there was a model, which is torch's own peak of tensors on GPUs, and on the
    CPU that of the resident set. ``rest_mib``: measured less predicted.
    """
    rows: list[TableRow] = []
    knowing = [one for one in document.good if any(rank.memory for rank in one.ranks)]
    for launch in {one.scenario: one for one in reversed(knowing)}.values():
        for rank in launch.ranks:
            if (memory := rank.memory) is not None:
                row = {"launch": launch.launch, "scenario": launch.scenario, "rank": rank.rank, "reason": memory.reason}
                row |= {f"{part}_mib": getattr(memory, f"{part}_mib") for part in KNOWN}
                row |= {"predicted_mib": predicted(memory), "measured_mib": measured_mib(rank, memory)}
                rows.append(row)
    rows.sort(key=lambda row: row["launch"])
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table = table.astype({name: "float64" for name in table.columns if name.endswith("_mib")})
    return table.assign(rest_mib=table["measured_mib"] - table["predicted_mib"])


def predicted(memory: MemoryHeld) -> float | None:
    """The peak (MiB) that follows from the parts; None if the activations are unknown."""
    if memory.activations_mib is None:
        return None
    lasting: float = sum(getattr(memory, f"{part}_mib") for part in LASTING)
    return lasting + max(memory.gradients_mib or 0.0, memory.early_gradients_mib + memory.activations_mib)


def measured_mib(rank: RankRecord, memory: MemoryHeld) -> float | None:
    """The rank's peak, less what it held before there was a model (MiB)."""
    peaks = rank.allocator or {}
    of_tensors = [size for name, size in peaks.items() if name.startswith("steady_allocated_mib.")]
    peak = math.fsum(of_tensors) if of_tensors else peaks.get("max_rss_mib")
    return None if peak is None else max(0.0, peak - memory.before_mib)


def largest(table: pd.DataFrame) -> pd.DataFrame:
    """Of each scenario the rank with the highest predicted peak, or else measured one."""
    order = table.sort_values(["predicted_mib", "measured_mib"], ascending=False, kind="stable")
    return table.loc[order.drop_duplicates("scenario").index.sort_values()].reset_index(drop=True)


def ddp_against_shards(document: RunDocument) -> tuple[str, str] | None:
    """Whether DDP takes more memory than one process and FSDP would take less. A table has the parts one by one."""
    rows = {row["scenario"]: row for row in largest(parts(document)).to_dict("records")}
    ddp = rows.get("ddp")
    if ddp is None or math.isnan(ddp["predicted_mib"]):
        return None
    texts = [f"A rank of ddp needs {ddp['predicted_mib']:,.1f} MiB."]
    if ddp["buckets_mib"]:
        holds = "gradients."
        if ddp["gradients_mib"]:
            holds = "a second copy of the gradients, which one process does not have; gradient_as_bucket_view saves it."
        texts.append(f"Its buckets hold {holds}")
    others = [name for name in ("single", *SHARDED) if name in rows and not math.isnan(rows[name]["predicted_mib"])]
    for name in others:
        more = 100 * (rows[name]["predicted_mib"] / ddp["predicted_mib"] - 1)
        aside = ", with the whole batch" if name == "single" else ""
        gathered = rows[name]["gathered_mib"]
        aside += f", of which it gathers at most {gathered:,.1f} at a time" if gathered else ""
        texts.append(f"{name} needs {rows[name]['predicted_mib']:,.1f} MiB ({signed(more, 0)} %){aside}.")
    ranks = next(launch.processes for launch in document.good if launch.scenario == "ddp")
    if not set(others) & set(SHARDED) and ranks > 1 and not ddp["masters_mib"]:
        lasting_mib = (ddp["parameters_mib"] + ddp["optimizer_mib"]) / ranks + ddp["buffers_mib"] + ddp["batch_mib"]
        dealt_out_mib = lasting_mib + max((ddp["gradients_mib"] or ddp["buckets_mib"]) / ranks, ddp["activations_mib"])
        texts.append(
            f"FSDP2 on {ranks} ranks would need about {dealt_out_mib:,.1f} MiB by arithmetic, "
            "and the weights of the block that computes."
        )
    return "Does DDP take more memory, and would FSDP take less?", " ".join(texts)
