"""May two runs be set against each other, and what differs between them apart from what is being asked?

Pure functions on digests (:mod:`bench.analyse.digest`). Three answers, from grave to harmless:

- :func:`obstacles`: another workload, world size, or model of GPU (on the CPU: of CPU). The comparison is refused.
- :func:`scenario_obstacle`: something else ran under the name of one scenario (apex in one run, the native
  implementation in the other), it failed, it is missing, or its results are invalid.
  Of an attached run it is a difference, since its scenario is whatever the command trains.
- :func:`differences`: another driver, torch, power limit, host and the like, or something that an imported run does
  not record: a warning.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from statistics import median

from bench.core.errors import NotComparable
from bench.core.records import ALLOCATOR, UNTRUE, canonical_json
from bench.core.text import by_key
from bench.runs.digests import LOOKED_AT
from bench.runs.digests import Digest as Digest
from bench.runs.digests import Entry as Entry

SOURCES = {"peak_total_mib": "memory_source", "peak_pid_mib": "memory_source", "energy_per_1000_j": "energy_source"}
"""Where a scenario of a digest says how these values were measured. All others are measured in one way."""

OTHERWISE = "measured in another way"
CLOCKS_APART = 0.03  # of the SM clock, from which on it is reported

PRESENTED = ("hash", "file", "title", "unit", "unit_short", "settings", "data_sha256")
"""Of a workload: what follows from the rest, or only says what to call it and where it is."""

STATED = ("global_batch", "device", "replicas")
"""All that is known of an attached script's work: its warm-up is what bench left out, and the rest is the script's."""

WORDS = {
    "name": "workload",
    "replicas": "world size",
    "warmup": "warm-up",
    "pool_batches": "distinct batches",
    "zero_init_residual": "zero-initialised residuals",
    "sha256": "the workload's file",
    "code_sha256": "the workload's code",
    "workers": "loader workers",
    "power_limit_w": "power limit (W)",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "cpu": "CPU",
    "os": "operating system",
}


def key(digest: Digest) -> tuple[str, str | None, tuple[str, ...], int | None]:
    """Equal values are of one series: workload (by its hash, if it has one), device, hardware, world size."""
    attached = digest.get("attached")
    work = digest["workload"].get("hash") or canonical_json(
        [_work(digest), attached and [one["command"] for one in attached["commands"].values()]]
    )
    return work, digest["device"], tuple(sorted(digest["hardware"])), digest["replicas"]


def obstacles(base: Digest, new: Digest) -> list[str]:
    """Why no value of ``new`` is comparable with one of ``base``, each with both values; empty if they are."""
    works = _work(base), _work(new)
    reasons = [_against(name, *values) for name, values in _pairs(*works) if _differ(*values)]
    if not reasons and _differ(base["workload"].get("hash"), new["workload"].get("hash")):
        lack = [_word(name) for name in works[0].keys() ^ works[1].keys()]
        why = f"only one run records {', '.join(sorted(lack))}" if lack else "the checksums of the two differ"
        reasons.append(f"another workload: {why}")
    if _differ(base["device"], new["device"]):
        return reasons  # that the models differ then goes without saying
    models = [Counter(name for name in run["hardware"] if name is not None) for run in (base, new)]
    same_count = len(base["hardware"]) == len(new["hardware"])
    if all(models) and (models[0] != models[1] if same_count else set(models[0]) != set(models[1])):
        what = "CPU model" if base["device"] == "cpu" else "GPU model"
        ours, theirs = (
            " + ".join(f"{count} x {name}" if count > 1 else name for name, count in model.items()) for model in models
        )
        reasons.append(f"{what}: {ours} against {theirs}")
    return reasons


def refuse_unlike(base: Digest, new: Digest) -> None:
    """Raises :class:`NotComparable` for runs of different work."""
    if why := obstacles(base, new):
        remedy = "measure both with the same workload on the same number and model of devices"
        raise NotComparable(f"{new['run']} cannot be compared with {base['run']}: {'; '.join(why)}; {remedy}")


def differences(base: Digest, new: Digest) -> list[str]:
    """Other differences, and what is not known to be the same: one line each."""
    return [*changed(base, new), *not_known(base, new)]


def changed(base: Digest, new: Digest) -> list[str]:
    """Conditions, and SM clocks, scenario by scenario: each precision has a clock of its own."""
    differ = [_against(name, *both) for name, both in _pairs(_of_place(base), _of_place(new)) if _differ(*both)]
    ours, theirs = (
        {
            scenario["scenario"]: median(clocks)
            for scenario in digest["scenarios"]
            if (clocks := [clock for clock in scenario["launches"]["sm_clock_mhz"] if clock])
        }
        for digest in (base, new)
    )
    apart = [
        f"{name} {clock:.0f} MHz against {theirs[name]:.0f}"
        for name, clock in ours.items()
        if name in theirs and abs(theirs[name] / clock - 1.0) > CLOCKS_APART
    ]
    return [*differ, *([f"SM clock (median over launches): {'; '.join(apart)}"] if apart else [])]


def other_sources(base: Digest, new: Digest, column: str) -> list[str]:
    """That a value of some scenarios was measured in another way: one line for each pair of ways."""
    ours, theirs = ({one["scenario"]: source_of(one, column) for one in digest["scenarios"]} for digest in (base, new))
    whys = {name: other_source(ours.get(name), source) for name, source in theirs.items()}
    of_pair = by_key((why, name) for name, why in whys.items() if why is not None)
    return [f"{SOURCES[column].removesuffix('_source')} {why} ({', '.join(names)})" for why, names in of_pair.items()]


def scenario_obstacle(base: Entry | None, new: Entry | None, *, attached: bool = False) -> str | None:
    """Why a scenario of one run cannot be compared with that of the other, from their entries in the digests.

    ``attached``: one of the runs is, and what ran may differ.
    """
    for side, scenario in (("base", base), ("new", new)):
        if (why := unusable(scenario)) is not None:
            return f"{why} in the {side} run"
    assert base is not None and new is not None  # or else unusable
    if not attached and _differ(base["what_ran"] or None, new["what_ran"] or None):
        return f"something else ran: {base['what_ran']} against {new['what_ran']}"
    if _differ(base["world_size"], new["world_size"]):
        return f"another world size: {base['world_size']} against {new['world_size']}"
    return None


def source_of(scenario: Entry, column: str) -> str | None:
    """How a value of its launches was measured, ``nvml_pid`` or the like; None if there is one way, or it is unknown.

    Samples that are ``unavailable`` do not count, nor does torch's own peak in a total, of which it is no part.
    """
    sources = scenario.get(SOURCES[column]) if column in SOURCES else None
    return _ways(sources, total=column == "peak_total_mib") if sources else None


@cache
def _ways(sources: str, *, total: bool) -> str | None:
    ways = set(sources.split("+")) - {"unavailable", ""}
    if total:
        ways = ways - {ALLOCATOR} or ways
    return "+".join(sorted(ways)) or None


@cache
def other_source(base: str | None, new: str | None) -> str | None:
    """Why values of these sources (:func:`source_of`) are not comparable; None if not known to differ."""
    return f"{OTHERWISE}: {base} against {new}" if _differ(base, new) else None


def unusable(scenario: Entry | None) -> str | None:
    """Why a scenario has no usable results in its own run, to be read before "in the ... run"; None if it has.

    One failed launch is enough, and one ``invalid`` finding, but for a verdict on numerics: a model that diverges has a
    speed all the same.
    """
    if scenario is None:
        return "it is missing"
    if scenario["status"] != "ok":
        return f"it is {scenario['status']!r}" + (f" ({scenario['reason']})" if scenario["reason"] else "")
    if not scenario["launches"]["launch"]:
        return "it has no launch"
    grave = [code for code in scenario["invalid"] if code not in UNTRUE]
    return f"its results are invalid ({', '.join(grave)})" if grave else None


def _work(digest: Digest) -> dict[str, object]:
    work = digest["workload"]
    fields = work | work.get("settings", {}) | {"device": digest["device"], "replicas": digest["replicas"]}
    if work.get("hash"):
        names, workers = work.get("data_sha256"), work.get("workers")
        fields["data"] = f"files {names[:12]}" if names else "synthetic"
        fields["workers"] = "none, all batches in memory" if workers is None else workers
    kept = STATED if digest.get("attached") else fields.keys() - {*PRESENTED}
    if work.get("code_sha256"):
        fields["code_sha256"] = work["code_sha256"][:12]
    return {name: value for name, value in fields.items() if name in kept}


def _pairs(ours: Mapping[str, object], theirs: Mapping[str, object]) -> Iterator[tuple[str, tuple[object, object]]]:
    for name in dict.fromkeys([*ours, *theirs]):
        yield name, (ours.get(name), theirs.get(name))


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _of_place(digest: Digest) -> dict[str, object]:
    conditions = {name: value for name, value in digest["conditions"].items() if name != LOOKED_AT}
    if digest["device"] == "cpu":
        conditions.pop("cpu", None)  # there it is the hardware
    limits = [limit for limit in conditions.get("power_limit_w") or () if limit is not None]
    return conditions | {"power_limit_w": sorted(limits) or None}


def not_known(base: Digest, new: Digest) -> Iterator[str]:
    """Facts that one run or both do not record: a line for each kind."""
    workload = base["workload"].get("hash")
    same = workload is not None and workload == new["workload"].get("hash")
    work = [] if same else [name for name, both in _pairs(_work(base), _work(new)) if None in both]
    if not base["hardware"] or not new["hardware"]:
        work.append("hardware")
    if work:
        yield f"not known to be the same work: {', '.join(map(_word, work))}"
    if half := [name for name, both in _pairs(_of_place(base), _of_place(new)) if both.count(None) == 1]:
        yield f"not known to be the same, since only one run says it: {', '.join(map(_word, half))}"


def _against(name: str, one: object, other: object) -> str:
    return f"{_word(name)}: {_text(one)} against {_text(other)}"


def _word(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
