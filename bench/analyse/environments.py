"""Several interpreters in one run: what differs between them, and what that does to time and numerics."""

import math
from dataclasses import asdict

from bench.analyse.analysed import Analysed
from bench.analyse.comparison import of_pairs
from bench.analyse.launches import across_environments, looked_at
from bench.analyse.parity import between_environments
from bench.core.text import listed, percent
from bench.runs.document import RunDocument
from bench.runs.frames import TableRow

COARSE_OWN = 0.5  # a bound on a relative error that hides whatever changed


def differences(document: RunDocument) -> list[TableRow]:
    """A row for each version or path that is not the same in all environments: ``what``, and its value by name."""
    paths = document.request.more.get("pythons", {})
    versions_of: dict[str, TableRow] = {
        name: {"interpreter": paths.get(name), **versions, "executable": None}
        for name, versions in document.environments.items()
    }
    for launch in document.good:
        if launch.environment and launch.effective:
            versions_of[launch.environment] |= launch.effective.versions
    names = dict.fromkeys(name for versions in versions_of.values() for name in versions)
    rows = [{"what": name, **{one: versions_of[one].get(name) for one in versions_of}} for name in names]
    return [row for row in rows if len({row[one] for one in versions_of}) > 1]


def pairs(run: Analysed) -> list[TableRow]:
    """Each scenario in each environment against the first: ``scenario``, ``environment``, ``against`` and the fields of
    :class:`bench.analyse.comparison.Comparison`; p-values are adjusted over all rows."""
    both = across_environments(run.document)
    tested = of_pairs(run.rounds, [(base.scenario, new.scenario) for *_, base, new in both], looked_at(run.document))
    return [
        {"scenario": name, "environment": other, "against": base.environment, **asdict(one)}
        for (name, other, base, _), one in zip(both, tested, strict=True)
    ]


def numerics(run: Analysed) -> list[str]:
    """How results differ from those of the first environment, a sentence each; one for all that is rounding."""
    texts, within = [], dict[str, float]()
    first = next(iter(run.document.environments), "")
    for row in between_environments(run.document, run.numerics):
        name, where = row["scenario"] or "the reference", row["environment"]
        how = "in its own types" if row["scenario"] else "in double precision"
        bound = percent(row["bound"])
        off = f"by {percent(row['error'])}" if math.isfinite(row["error"]) else "to numbers that are not finite"
        if not row["error"] <= row["bound"]:
            texts.append(
                f"The gradients of {name} changed beyond rounding from {first} to {where}: {off} {how} (worst "
                f"tensor, at the same weights and batch; rounding may do {bound})."
            )
        elif row["bound"] > COARSE_OWN:
            texts.append(f"Of {name} on {where} it cannot be decided: rounding alone may change a gradient by {bound}.")
        else:
            within[name] = max(within.get(name, 0.0), row["error"])
    if within:
        worst = listed([f"{name} {percent(off)}" for name, off in within.items()])
        texts.append(f"Within rounding of {first}, by the gradient of the worst tensor: {worst}.")
    return texts
