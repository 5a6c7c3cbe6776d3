"""How something scales, in sentences: the answer, what is lost on what, and how far predictions can be trusted."""

import math
from collections.abc import Sequence

from bench.analyse import each
from bench.analyse.analysed import Analysed
from bench.analyse.predicted import largest_error, why_not
from bench.analyse.scaling import STRONG, WEAK, foreseen, scaled
from bench.console import count
from bench.core.text import digits, listed, signed
from bench.runs.experiments import Scaling

WORDS = {
    "communication": "communication",
    "skew": "waiting for the slowest rank",
    "input": "waiting for data",
    "computation": "slower computation",
}
LEAST_SHARE = 0.02  # smaller shares are not named
APART = 0.15
"""How much longer or shorter than measured steps those of a diagnostic launch may be before that is worth a word."""


def answer(run: Analysed) -> list[str]:
    """The efficiency on all devices, in a line for each curve."""
    scaling, lines = run.document.begun(Scaling), []
    if scaling.by_itself:
        return [slow_devices(run)]
    points, name = scaled(run), run.document.request.scenarios[0]
    for mode in scaling.modes:
        first, *_, last = [one for one in points if one.mode == mode]
        work = "the same batch on each" if mode == WEAK else f"the same batch of {last.global_batch} in all"
        if last.efficiency.value is None:
            lacking = last if last.step.value is None else first
            on = f"on {count(lacking.count, 'device')}: {lacking.failed or 'it was not measured'}"
            lines.append(f"{mode.title()} scaling of {name}: unknown ({on}).")
        else:
            rate, low, high = f"{100 * last.efficiency.value:.0f} %", last.efficiency.low, last.efficiency.high
            if low is not None and high is not None:
                rate += f" ({100 * low:.0f} to {100 * high:.0f} %)"
            lines.append(f"{mode.title()} scaling of {name}: {rate} efficient on {last.count} devices, {work}.")
    return lines


def slow_devices(run: Analysed) -> str:
    """Which devices are slow, and the threshold for that."""
    if (scan := each.scan_of(run)).bound is None:
        return "Whether a device is slow is unknown: too few launches ended well."
    bound = f"more than {100 * scan.bound:.1f} % slower than the median"
    if not scan.slow:
        slowest = max(scan.slower, key=lambda name: scan.slower[name])
        return f"No device is slow: none is {bound} ({slowest}, the slowest, {100 * scan.slower[slowest]:.1f} %)."
    named = listed([f"{name} ({100 * scan.slower[name]:.1f} % slower)" for name in scan.slow])
    verb = "is" if len(scan.slow) == 1 else "are"
    return f"{named} {verb} slow: among equal devices, one is {bound} in only 5 of 100 scans."


def sentences(run: Analysed) -> list[str]:
    """The time that the largest number of devices loses, on what, and the machine's part in it."""
    scaling, lines = run.document.begun(Scaling), []
    for mode in scaling.modes:
        last = [one for one in scaled(run) if one.mode == mode][-1]
        loss = last.loss
        if last.count == 1 or loss.total_ms is None:
            continue
        where = f"{mode.title()}: a step on {last.count} devices loses"
        named = [f"{100 * share:.0f} % {WORDS[name]}" for name, share in loss.shares.items() if share >= LEAST_SHARE]
        if loss.total_ms <= 0.0 or (last.efficiency.high or 0.0) >= 1.0:
            lines.append(f"{where} nothing that is distinguishable from 0.")
        elif loss.reason is not None:
            lines.append(f"{where} {loss.total_ms:,.1f} ms, and why is unknown: {loss.reason}.")
        elif named:
            lines.append(f"{where} {loss.total_ms:,.1f} ms: {', '.join(named)}.")
            rest, step = loss.rest_ms or 0.0, last.step.value or math.inf
            if abs(rest) > APART * step:
                apart = f"{100 * abs(rest) / step:.0f} % {'longer' if rest < 0 else 'shorter'}"
                lines[-1] += f" Low confidence: the diagnostic launch had {apart} steps."
    cores, on_host = run.document.machine.cores_usable, max(scaling.counts) // max(1, len(run.document.hosts))
    if run.document.workload.device == "cpu" and on_host > 1:
        crowded = cores and on_host > cores
        share = f"{on_host} ranks share {cores} cores" if crowded else "The ranks share caches and memory"
        where = " of a host" if len(run.document.hosts) > 1 else ""
        lines.append(f"{share}{where}, so computation slows down too, as it would not on devices of their own.")
    return lines


def about_predictions(run: Analysed, predict: Sequence[int] = (), what_if_mbit: float | None = None) -> list[str]:
    """How far to trust the predictions, or why there are none."""
    scaling = run.document.begun(Scaling)
    if (why := why_not(scaling)) is not None:
        return [f"Nothing is predicted: {why}."]
    checks, asked = foreseen(run, predict, what_if_mbit)
    error, lines = largest_error(checks), []
    if error is None:
        lines.append("The predictions could not be checked against a measured number of devices.")
    else:
        checked = [one for one in checks if one.error is not None]
        several = listed([f"{one.count} ({one.mode}, {signed(100 * (one.error or 0.0), 0)} %)" for one in checked])
        how = "left out of" if all(one.left_out for one in checked) else "which is also in"
        lines.append(
            f"Checked on {several} devices, {how} the fit of all-reduces: off by {100 * error:.0f} % at most. No "
            "measured step is in a prediction."
        )
    wanted = tuple(predict or scaling.to_predict) if STRONG in scaling.modes else ()
    if missing := [f"{count:,}" for count in wanted if (STRONG, count) not in {(one.mode, one.count) for one in asked}]:
        whole = max(scaling.counts) * scaling.batch_per_rank
        why = f"their share of the batch of {whole:,} was not computed, or is not a whole number"
        lines.append(f"Strong scaling on {listed(missing)} devices is not predicted: {why}.")
    for why in dict.fromkeys(one.why_not for one in asked if one.why_not):
        many = listed([f"{count:,}" for count in sorted({one.count for one in asked if one.why_not == why})])
        lines.append(f"Nothing is predicted for {many} devices: {why}; --what-if bandwidth=100Gbit assumes a ring.")
    beyond, count = max(((one.beyond, one.count) for one in asked if one.why_not is None), default=(0.0, 0))
    if beyond > 1.0:
        lines.append(
            f"{count:,} devices are {digits(beyond, 4)} times beyond what was measured; a prediction takes every "
            "device and link to be as fast as those measured, and no rank to wait for a slower one."
        )
    return lines
