"""The tables of what a run took beside time: energy and heat, and memory beside what torch says of it."""

from typing import TYPE_CHECKING

from bench.analyse import devices
from bench.analyse import memory as held
from bench.analyse.analysed import Analysed
from bench.analyse.bars import plus_minus
from bench.analyse.launches import ok_rows
from bench.analyse.steps import scenarios
from bench.report.tables import UNKNOWN, Cell, Column, Record, Table, number, of_run
from bench.runs.reader import Run

if TYPE_CHECKING:
    import pandas as pd

VERDICT_TONES = {"invalid": "bad", "warning": "doubt"}

ENERGY_SOURCES = {
    "counter": "the driver's own counter of the whole board",
    "estimated": "sampled power, integrated (no counter, or less than 10 s of measured steps)",
    "rapl": "the counter of the CPU package, with all else that ran on it",
}

MEMORY_SOURCES = {
    "nvml_pid": "what the driver lists for the process",
    "nvml_probe": "the same, under the PID whose figure rose when the rank allocated a probe (in a container)",
    "nvml_device_delta": "the rise of the GPU's level since before the launch, where nobody else was on it",
    "torch_allocator": "the driver gave nothing, so there is torch's own peak alone, without CUDA's context",
    "rss": "the resident set of the process",
    "unavailable": "nothing can be known",
}


def for_csv(run: Analysed) -> dict[str, "pd.DataFrame"]:
    """These tables in full, by the names of their files, each with the run's id as its first column."""
    tables = {
        "energy": ok_rows(run.document, run.devices),
        "memory-beside-torch": held.beside_torch(run.document.good, ok_rows(run.document, run.memory)),
    }
    return {name: of_run(run, table) for name, table in tables.items()}


def memory_of(run: Analysed) -> "pd.DataFrame":
    """The memory of each rank of every ``ok`` launch: beside torch's on GPUs, both sizes on the CPU."""
    if run.document.workload.device == "cpu":
        return of_run(run, held.resident(run.document.launches, run.memory))
    return of_run(run, held.beside_torch(run.document.good, ok_rows(run.document, run.memory)))


def energy_table(run: Analysed) -> Table | None:
    """Energy, power, clocks, heat and traffic over the measured steps; None where no device was sampled in them."""
    table = run.energy
    if table.empty:
        return None
    columns = (
        Column(heading="scenario"),
        Column(heading="launches", number=True),
        Column(heading="J per launch", number=True, group="energy of the measured steps"),
        Column(heading="J per 1,000 images", number=True, group="energy of the measured steps"),
        Column(heading="source", group="energy of the measured steps"),
        Column(heading="mean", number=True, group="power (W)"),
        Column(heading="peak", number=True, group="power (W)"),
        Column(heading="median", number=True, group="SM clock (MHz)"),
        Column(heading="lowest", number=True, group="SM clock (MHz)"),
        Column(heading="highest °C", number=True),
        Column(heading="held back by"),
        Column(heading="sent", number=True, group="PCIe (MiB/s)"),
        Column(heading="received", number=True, group="PCIe (MiB/s)"),
        Column(heading="sent", number=True, group="NVLink (MiB/s)"),
        Column(heading="received", number=True, group="NVLink (MiB/s)"),
    )
    known = {row["scenario"]: row for row in table.to_dict("records")}
    rows = [_energy_cells(known[name]) for name in scenarios(run.document) if name in known]
    return Table(columns=columns, rows=tuple(rows), notes=tuple(_energy_notes(run, table)))


def _energy_cells(row: Record) -> tuple[Cell, ...]:
    return (
        Cell(text=str(row["scenario"])),
        Cell(text=str(row["launches"])),
        Cell(text=number(row["energy_j"], ",.0f"), small=plus_minus(row, "energy_j")),
        Cell(text=number(row["energy_per_1000_images_j"], ",.0f"), small=plus_minus(row, "energy_per_1000_images_j")),
        Cell(text=UNKNOWN if number(row["energy_j"], "") == UNKNOWN else str(row["energy_source"])),
        Cell(text=number(row["mean_power_w"], ",.0f"), small=plus_minus(row, "mean_power_w")),
        Cell(text=number(row["peak_power_w"], ",.0f")),
        Cell(text=number(row["sm_clock_mhz"], ",.0f")),
        Cell(text=number(row["min_sm_clock_mhz"], ",.0f")),
        Cell(text=number(row["max_temperature_c"], ".0f")),
        _throttle(row),
        *(Cell(text=number(row[f"{link}_mib_s"], ",.0f")) for link in devices.LINKS),
    )


def _throttle(row: Record) -> Cell:
    """Why the devices ran slower than they could, in the colour of what it makes of the launch."""
    if not isinstance(row["throttle"], str):
        return Cell(text=UNKNOWN)
    return Cell(text=row["throttle"] or "nothing", tone=VERDICT_TONES.get(row["verdict"], ""), wrap=True)


def _energy_notes(run: Run, table: "pd.DataFrame") -> list[str]:
    notes = [
        "Over the measured steps of a launch, summed over its devices; energy and mean power are means over launches, "
        "clocks, temperature and peak power are of all devices and launches.",
    ]
    used = sorted({source for text in table["energy_source"].dropna() for source in text.split("+")})
    if used:
        notes.append(f"Sources of energy: {'; '.join(f'{name}: {ENERGY_SOURCES[name]}' for name in used)}.")
    if table["verdict"].isin(list(VERDICT_TONES)).any():
        notes.append(
            "A launch that heat or the hardware's protection held back is invalid: its figures are those of its "
            "cooling. A power cap is a warning: compare only under equal caps."
        )
    notes += [
        f"Energy of {row['scenario']} is unknown, or that of a launch: {row['energy_reason']}."
        for row in table.to_dict("records")
        if isinstance(row["energy_reason"], str)
    ]
    lacking = {
        "power": table["peak_power_w"],
        "clocks": table["sm_clock_mhz"],
        "temperature": table["max_temperature_c"],
        "what holds a device back": table["throttle"],
        "PCIe traffic": table["pcie_tx_mib_s"],
        "NVLink traffic": table["nvlink_tx_mib_s"],
    }
    absent = [name for name, values in lacking.items() if values.isna().all()]
    if absent:
        packages = all(str(name).startswith("package-") for name in run.device["device"].unique())
        why = "the kernel counts the energy of a CPU package alone" if packages else "the driver offers none of them"
        notes.append(f"Unknown in all scenarios: {', '.join(absent)}; {why}, or too few samples lie in the window.")
    return notes


def no_energy(run: Run) -> str:
    """In one line why there is no energy table."""
    told = [(launch.checks.cpu_energy or {}).get("reason") for launch in run.document.launches]
    reasons = list(dict.fromkeys(reason for reason in told if reason))
    if reasons:
        return f"Energy, power and heat are unknown: {'; '.join(reasons)}."
    if len(run.device):
        return "Energy, power and heat are unknown: no launch that ended well has a sample within its measured steps."
    return "Energy, power and heat are unknown: this run has no samples of a device, and does not say why."


def beside_torch_table(run: Analysed) -> Table | None:
    """The memory of each rank of a launch of each scenario, from whoever knows; None where nobody does."""
    chosen = held.largest_launches(run.document, run.peaks)
    on_cpu = run.document.workload.device == "cpu"
    return _resident_table(run, chosen) if on_cpu else _driver_table(run, chosen)


def _chosen_rows(run: Run, table: "pd.DataFrame", chosen: dict[str, int]) -> list[Record]:
    """The rows of the chosen launches in the order of the scenarios."""
    rows = {name: table[table["launch"] == launch].to_dict("records") for name, launch in chosen.items()}
    return [row for name in scenarios(run.document) for row in rows.get(name, [])]


WHICH = (
    "Of each scenario the launch that the summary's peak is from. All are peaks of their own times, so they need not "
    "add up to the peak of all processes together."
)

PROCESS = (
    Column(heading="scenario"),
    Column(heading="launch", number=True),
    Column(heading="rank", number=True),
    Column(heading="PID", number=True),
)


def _driver_table(run: Run, chosen: dict[str, int]) -> Table | None:
    mine = ok_rows(run.document, run.memory)
    table = held.beside_torch(run.document.good, mine)
    table = table.astype(dict.fromkeys(("allocated_mib", "reserved_mib", "context_mib"), "float64"))
    found = _chosen_rows(run, table, chosen)
    if not found:
        return None
    columns = (
        *PROCESS,
        Column(heading="GPU", number=True),
        Column(heading="the driver's peak MiB", number=True),
        Column(heading="source"),
        Column(heading="allocated MiB", number=True, group="torch's peaks"),
        Column(heading="reserved MiB", number=True, group="torch's peaks"),
        Column(heading="difference: context and libraries MiB", number=True),
    )
    indices = {gpu.uuid: gpu.index for gpu in run.document.machine.gpus}
    found.sort(key=lambda row: (scenarios(run.document).index(row["scenario"]), row["rank"], _index(row, indices)))
    rows = []
    for row in found:
        source = row["source"] if isinstance(row["source"], str) else "torch_allocator"
        rows.append(
            (
                Cell(text=str(row["scenario"])),
                Cell(text=str(row["launch"])),
                Cell(text=str(row["rank"])),
                Cell(text=number(row["pid"], ".0f")),
                Cell(text=str(indices.get(row["device"], row["device"]))),
                Cell(text=number(row["peak_mib"], ",.0f"), small=_why_unknown(mine, row)),
                Cell(text=source),
                Cell(text=number(row["allocated_mib"], ",.0f")),
                Cell(text=number(row["reserved_mib"], ",.0f")),
                Cell(text=number(row["context_mib"], ",.0f")),
            )
        )
    used = list(dict.fromkeys(cells[6].text for cells in rows))
    notes = [
        WHICH,
        "allocated: what tensors held at most; reserved: what torch took from the driver for them. The difference is "
        "the driver's peak less what torch reserved: CUDA's context, the kernels of the libraries, and what NCCL and "
        "cuDNN take past torch.",
        f"Sources: {_sources(used)}.",
    ]
    if any(row["context_mib"] < 0 for row in found):
        notes.append("A difference below zero says that the driver was asked too seldom to see the peak.")
    if table["reserved_mib"].isna().all():
        notes.append("Torch's peaks are unknown: no rank of this run recorded them.")
    return Table(columns=columns, rows=tuple(rows), notes=tuple(notes))


def _index(row: Record, indices: dict[str, int]) -> tuple[int, str]:
    return indices.get(row["device"], len(indices)), str(row["device"])


def _sources(used: list[str]) -> str:
    return "; ".join(f"{name}: {MEMORY_SOURCES[name]}" if name in MEMORY_SOURCES else name for name in used)


def _why_unknown(memory: "pd.DataFrame", row: Record) -> str:
    """Why the driver's figure is missing; empty where it is known."""
    if number(row["peak_mib"], "") != UNKNOWN:
        return ""
    same = (memory["launch"] == row["launch"]) & (memory["rank"] == row["rank"])
    own = same & ((memory["device"] == row["device"]) | memory["device"].isna())
    return "; ".join(memory.loc[own, "reason"].dropna().unique())


def _resident_table(run: Run, chosen: dict[str, int]) -> Table | None:
    table = held.resident(run.document.launches, run.memory)
    found = _chosen_rows(run, table, chosen)
    if not found:
        return None
    columns = (
        *PROCESS,
        Column(heading="RSS peak MiB", number=True),
        Column(heading="the kernel's peak MiB", number=True),
        Column(heading="PSS peak MiB", number=True),
    )
    reasons = list(dict.fromkeys(row["reason"] for row in found if isinstance(row["reason"], str)))
    alike = len(reasons) == 1 and all(isinstance(row["reason"], str) for row in found)
    rows = [
        (
            Cell(text=str(row["scenario"])),
            Cell(text=str(row["launch"])),
            Cell(text=str(row["rank"])),
            Cell(text=str(row["pid"])),
            Cell(text=number(row["rss_mib"], ",.0f")),
            Cell(text=number(row["kernel_peak_mib"], ",.0f")),
            Cell(
                text=number(row["pss_mib"], ",.0f"),
                small=row["reason"] if isinstance(row["reason"], str) and not alike else "",
            ),
        )
        for row in found
    ]
    notes = [
        WHICH,
        "RSS: the resident set, in which pages that processes share count in each of them, so ranks do not add up; "
        "the peak of its samples, and beside it the kernel's own (ru_maxrss), which misses nothing between samples. "
        "PSS: the proportional set size, in which a page of n processes counts 1/n, so they do; it is sampled far more "
        "seldom, and its peak may have been missed. Torch has no allocator of its own on the CPU to stand beside.",
    ]
    if alike:
        notes.append(f"PSS is unknown: {reasons[0]}.")
    return Table(columns=columns, rows=tuple(rows), notes=tuple(notes))
