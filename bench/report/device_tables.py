"""The tables of a run's costs beside time: energy and heat, and memory beside what torch says of it."""

import pandas as pd

from bench.analyse import memory as held
from bench.analyse import memory_parts
from bench.analyse.analysed import Analysed
from bench.core.text import by_key, listed
from bench.report import tables
from bench.report.tables import UNKNOWN, Cell, Table, bounded, is_unknown, numeric, tabulate, text, words_of
from bench.runs.frames import TableRow
from bench.runs.reader import Run

ENERGY_SOURCES = {
    "counter": "the driver's own counter of the whole board",
    "estimated": "sampled power, integrated (no counter, or less than 10 s of measured steps)",
}

MEMORY_SOURCES = {
    "nvml_pid": "what the driver lists for the process",
    "nvml_probe": "the same, under the PID whose value rose when the rank allocated a probe (in a container)",
    "nvml_device_delta": "the rise of the GPU's level since before the launch, where nobody else was on it",
    "torch_allocator": "the driver gave nothing, so there is torch's own peak alone, without CUDA's context",
    "rss": "the resident set of the process",
    "unavailable": "nothing can be known",
}


def energy_table(run: Analysed) -> Table | None:
    """Energy, power, clocks, heat and traffic over the measured steps; None where no device was sampled in them."""
    table = run.energy
    if table.empty:
        return None
    energy, power, clock = "energy of the measured steps", "power (W)", "SM clock (MHz)"

    def throttle(row: TableRow) -> Cell:
        reasons = UNKNOWN if is_unknown(row["throttle"]) else row["throttle"] or "nothing"
        return Cell(text=reasons, tone=tables.TONES.get(row["verdict"], ""), wrap=reasons != UNKNOWN)

    columns = (
        text("scenario", "scenario"),
        numeric("launches", "launches"),
        bounded("J per launch", "energy_j", ",.0f", group=energy),
        bounded(f"J per 1,000 {run.document.workload.unit}", "energy_per_1000_j", ",.0f", group=energy),
        text("source", lambda row: UNKNOWN if is_unknown(row["energy_j"]) else row["energy_source"], group=energy),
        bounded("mean", "mean_power_w", ",.0f", group=power),
        numeric("peak", "peak_power_w", ",.0f", group=power),
        numeric("median", "sm_clock_mhz", ",.0f", group=clock),
        numeric("lowest", "min_sm_clock_mhz", ",.0f", group=clock),
        numeric("SMs busy", "sm_percent", ".0f", group="activity (%)"),
        numeric("tensor cores", "tensor_percent", ".0f", group="activity (%)"),
        numeric("DRAM", "dram_percent", ".0f", group="activity (%)"),
        numeric("sent", "gpm_nvlink_tx_mib_s", ",.0f", group="NVLink by GPM (MiB/s)"),
        numeric("received", "gpm_nvlink_rx_mib_s", ",.0f", group="NVLink by GPM (MiB/s)"),
        numeric("highest °C", "max_temperature_c", ".0f"),
        text("held back by", throttle),
        numeric("sent", "pcie_tx_mib_s", ",.0f", group="PCIe (MiB/s)"),
        numeric("received", "pcie_rx_mib_s", ",.0f", group="PCIe (MiB/s)"),
        numeric("sent", "nvlink_tx_mib_s", ",.0f", group="NVLink (MiB/s)"),
        numeric("received", "nvlink_rx_mib_s", ",.0f", group="NVLink (MiB/s)"),
    )
    by_scenario = {row["scenario"]: row for row in table.to_dict("records")}
    records = [by_scenario[name] for name in run.document.request.scenarios if name in by_scenario]
    return tabulate(columns, records, _energy_notes(table)).known()


def _energy_notes(table: pd.DataFrame) -> list[str]:
    notes = [
        "Over the measured steps of a launch, summed over its devices; energy and mean power are means over launches, "
        "clocks, temperature and peak power are of all devices and launches."
    ]
    used = sorted({source for text in table["energy_source"].dropna() for source in text.split("+")})
    if used:
        notes.append(f"Sources of energy: {'; '.join(f'{name}: {ENERGY_SOURCES[name]}' for name in used)}.")
    for what, reason in (("Energy", "energy_reason"), ("Activity", "activity_reason")):
        lacking = table[table[reason].notna()]
        notes += tables.unknown_of(what, zip(lacking[reason], lacking["scenario"], strict=True))
    return [*notes, "A dash, or no column: the driver does not offer it, or too few samples are in the window."]


def no_energy(run: Run) -> str:
    why = "no launch that ended well has a sample of a device within its measured steps"
    if run.document.workload.device == "cpu":
        why = "they are measured on GPUs only"
    return f"Energy, power and heat are unknown: {why}."


def beside_torch_table(run: Analysed) -> Table | None:
    """The memory of each rank of a launch of each scenario, from whoever knows; None where nobody does."""
    on_cpu = run.document.workload.device == "cpu"
    sizes = dict.fromkeys(("allocated_mib", "reserved_mib", "context_mib"), "float64")
    table = held.resident(run.document.launches, run.memory) if on_cpu else run.beside_torch.astype(sizes)
    chosen = held.largest_launches(run.document, run.peaks)
    launches = [chosen[name] for name in run.document.request.scenarios if name in chosen]
    rows = [row for launch in launches for row in table[table["launch"] == launch].to_dict("records")]
    if not rows:
        return None
    return _resident_table(rows) if on_cpu else _driver_table(run, rows)


def memory_parts_table(run: Run) -> Table | None:
    """The parts of a rank's memory, and the predicted peak beside the measured one; None if that is unknown."""
    table = memory_parts.largest(memory_parts.parts(run.document))
    if table.empty:
        return None
    there = [part for part in memory_parts.PARTS if (table[f"{part}_mib"] >= 0.05).any()]
    columns = (
        text("scenario", "scenario"),
        numeric("rank", "rank"),
        *(numeric(part, f"{part}_mib", ",.1f", group="what it holds (MiB)") for part in there),
        numeric("predicted peak", "predicted_mib", ",.1f", group="MiB in total"),
        numeric("measured peak", "measured_mib", ",.1f", group="MiB in total"),
        numeric("rest", "rest_mib", ",.1f", group="MiB in total"),
    )
    notes = [
        "Of each scenario the first launch that ended well, and of it the rank that needs most; read off the live "
        "objects in a step after all measured ones. masters: fp32 copies of the weights and their gradients. buckets: "
        "the copy of the gradients that torch DDP exchanges. gathered: the most whole weights of FSDP2 at a time.",
        "predicted peak: all parts, but of gradients and activations (what autograd keeps) the larger, since one comes "
        "when the other goes. rest: code, what allocators keep, and what passes make on the way, as workspaces.",
    ]
    unknown = table[table["reason"].notna()].to_dict("records")
    notes += [f"Activations of {row['scenario']} are unknown: {row['reason']}." for row in unknown]
    return tabulate(columns, table.to_dict("records"), notes)


WHICH = (
    "Of each scenario the launch that the summary's peak is from. All are peaks of their own times, so they need not "
    "add up to the peak of all processes together."
)

PROCESS = (
    text("scenario", "scenario"),
    numeric("launch", lambda row: Cell(text=str(row["launch"]), launch=int(row["launch"]))),
    numeric("rank", "rank"),
    numeric("PID", "pid", ".0f"),
)


def _driver_table(run: Run, rows: list[TableRow]) -> Table:
    indices = {gpu.uuid: gpu.index for gpu in run.document.machine.gpus}
    columns = (
        *PROCESS,
        numeric("GPU", lambda row: str(indices.get(row["device"], row["device"]))),
        numeric("the driver's peak MiB", "peak_mib", ",.0f"),
        text("source", _memory_source),
        numeric("allocated MiB", "allocated_mib", ",.0f", group="torch's peaks"),
        numeric("reserved MiB", "reserved_mib", ",.0f", group="torch's peaks"),
        numeric("difference: context and libraries MiB", "context_mib", ",.0f"),
    )
    rows.sort(key=lambda row: (indices.get(row["device"], len(indices)), str(row["device"])))
    rows.sort(key=lambda row: (run.document.request.scenarios.index(row["scenario"]), row["rank"]))
    sources = (f"{name}: {MEMORY_SOURCES[name]}" for name in dict.fromkeys(map(_memory_source, rows)))
    notes = [
        WHICH,
        "allocated: what tensors held at most; reserved: what torch took from the driver for them. The difference to "
        "the driver's peak: CUDA's context, the kernels of the libraries, and what NCCL and cuDNN take past torch; "
        "below 0 the driver was asked too seldom to see the peak.",
        f"Sources: {'; '.join(sources)}.",
    ]
    return tabulate(columns, rows, notes)


def _memory_source(row: TableRow) -> str:
    return row["source"] if isinstance(row["source"], str) else "torch_allocator"


def _resident_table(rows: list[TableRow]) -> Table:
    columns = (
        *PROCESS,
        numeric("RSS peak MiB", "rss_mib", ",.0f"),
        numeric("the kernel's peak MiB", "kernel_peak_mib", ",.0f"),
        numeric("PSS MiB", "pss_mib", ",.0f"),
    )
    notes = [
        WHICH,
        "RSS: the resident set, in which shared pages count in each process; the peak of its samples, and the kernel's "
        "own (ru_maxrss). PSS: a page of n processes counts 1/n, so ranks add up; sampled after the measured steps.",
    ]
    of = by_key((why, row["scenario"]) for row in rows for why in words_of(row, "reason") if why)
    notes += [f"Unknown of {listed([*dict.fromkeys(names)])}: {why}." for why, names in of.items()]
    return tabulate(columns, rows, notes)
