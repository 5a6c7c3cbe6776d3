"""How far a step is from what this machine can do: its tables."""

from bench.analyse.analysed import Analysed
from bench.analyse.limits import achieved
from bench.report.tables import Table, figure, is_unknown, ranged, tabulate, text
from bench.runs.experiments import Limits


def arithmetic_table(run: Analysed) -> Table | None:
    """TFLOP/s and MFU of each scenario; None where the work of a step is not known."""
    rows, work = achieved(run).to_dict("records"), run.document.begun(Limits).work
    if work is None or not rows:
        return None
    columns = (
        text("scenario", "scenario"),
        text("type", "type"),
        figure("devices", "devices", "d"),
        ranged("TFLOP/s", ("tflops_per_s", "tflops_per_s_low", "tflops_per_s_high"), ",.3g"),
        figure("nominal TFLOP/s of a device", "nominal_tflops", ",.1f"),
        figure("MFU", "mfu", ".1%"),
    )
    forward, backward = work.forward_flops / 1e9, work.backward_flops / 1e9
    sources = dict.fromkeys(str(row["nominal"]) for row in rows)
    unknown = all(is_unknown(row["nominal_tflops"]) for row in rows)
    notes = [
        f"An example takes {forward:,.3g} GFLOP forward and {backward:,.3g} backward (convolutions, matrix products "
        "and attention, as torch.utils.flop_counter counts them); what is computed again, as with activation "
        "checkpointing, does not count. TFLOP/s: over all devices, with its 95 % interval over launches.",
        "MFU: of the dense nominal peak of all devices. "
        + ("It is unknown" if unknown else "The nominal peak")
        + f": {'; '.join(sources)}.",
    ]
    return tabulate(columns, rows, notes)
