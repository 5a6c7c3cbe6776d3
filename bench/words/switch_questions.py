"""The cost or gain of switches, in words: each scenario with one against the same without it."""

import pandas as pd

from bench.analyse.analysed import Analysed
from bench.analyse.ladder import turned_on
from bench.core.text import listed
from bench.words.pairs import Answer, chance, pair_of, times


def partners(run: Analysed, switch: str) -> list[tuple[str, str]]:
    """The scenarios with this switch, each beside the same without it, as far as both were asked for."""
    names = run.document.request.scenarios
    by_parts = {frozenset(turned_on(name).items()): name for name in names}
    pairs = []
    for name in names:
        parts = turned_on(name)
        without = by_parts.get(frozenset((key, value) for key, value in parts.items() if key != switch))
        if switch in parts and without is not None:
            pairs.append((name, without))
    return pairs


def _against(run: Analysed, switch: str) -> list[str]:
    """A sentence for each pair that has figures."""
    measured = set(run.good_figures.frame["scenario"])
    texts = []
    for name, without in partners(run, switch):
        if {name, without} <= measured:
            pair = pair_of(run, name, without)
            texts.append(f"A step of {name} takes {times(pair)} as long as one of {without}. {chance(pair)}")
    return texts


def _idle(run: Analysed, switch: str) -> list[str]:
    """Launches in which the switch had no effect."""
    seen = [
        f"In {launch.scenario} it had no effect: {instead}."
        for launch in run.document.good
        for spec, instead in (launch.effective.switches if launch.effective else {}).items()
        if spec.partition("=")[0] == switch and instead is not None
    ]
    return list(dict.fromkeys(seen))


def unused_parameters(run: Analysed, table: pd.DataFrame) -> Answer | None:
    texts = []
    for switch in ("find_unused", "static_graph"):
        texts += _against(run, switch)
        for name, without in partners(run, switch):
            failed = [one for one in run.document.launches if one.scenario == without and one.status == "error"]
            if any("Expected to have finished reduction" in (one.reason or "") for one in failed):  # DDP's words
                trains = name in set(run.good_figures.frame["scenario"])
                text = f"{without} fails: DDP waits for the gradients of parameters that take no part in the loss."
                texts.append(f"{text} {name} {'trains' if trains else 'does not train either'}.")
    return ("What do unused parameters cost?", " ".join(texts)) if texts else None


def sync_bn(run: Analysed, table: pd.DataFrame) -> Answer | None:
    texts = _against(run, "sync_bn") + _idle(run, "sync_bn")
    return ("What does SyncBatchNorm cost?", " ".join(texts)) if texts else None


def threads(run: Analysed, table: pd.DataFrame) -> Answer | None:
    said = _against(run, "threads") + _idle(run, "threads")
    return ("What does torchrun's OMP_NUM_THREADS=1 cost?", " ".join(said)) if said else None


def channels_last(run: Analysed, table: pd.DataFrame) -> Answer | None:
    texts = _against(run, "channels_last") + _idle(run, "channels_last")
    return ("Is channels_last faster here?", " ".join(texts)) if texts else None


def compiled(run: Analysed, table: pd.DataFrame) -> Answer | None:
    texts = _against(run, "compile")
    if not texts:
        return None
    did = {launch.scenario: launch.effective.compiled for launch in run.document.good if launch.effective}
    graphs = [
        f"{name} compiled for {one.seconds:,.0f} s (a rank, apart from the measured steps), into {one.graphs} graphs "
        f"with {one.graph_breaks} breaks"
        for name, one in did.items()
        if one is not None
    ]
    texts += [f"{listed(graphs)}."] if graphs else []
    return "Is torch.compile faster, and what does compiling take?", " ".join([*texts, *_idle(run, "compile")])
