"""The questions that the published comparison left open, answered from the results of one run and nothing else."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from bench.analyse.account import accounts
from bench.analyse.analysed import Analysed
from bench.analyse.communication import data_parallel, spent
from bench.analyse.comparison import ALIKE, TOO_FEW, against_fastest
from bench.analyse.launches import looked_at
from bench.analyse.loader import INPUT_BOUND
from bench.analyse.memory import largest_launches, peak_by_process
from bench.analyse.memory_parts import ddp_against_shards
from bench.analyse.recommendation import recommendable
from bench.analyse.validity import HOST_BOUND
from bench.console import count
from bench.core.records import PHASES
from bench.core.text import by_key, listed, percent, signed
from bench.runs.document import Attached
from bench.runs.experiments import NO_KERNELS, Diagnosis, Tuning
from bench.runs.frames import TableRow
from bench.runs.launches import Effective
from bench.runs.reader import Run
from bench.words.pairs import Answer, chance, compiled, longer, pair_of, times, turning_on, unused_parameters

GROWING, FRAGMENTED = 0.01, 0.2
"""Of the memory of a process: growth while steps are measured, and what torch reserved and tensors never held."""

O1_PAIRS = {"ddp_o1": "ddp", "apex_ddp_o1": "apex_ddp", "fsdp2_half": "fsdp2"}
"""Each scenario of O1 and the same in full precision; both with the same switches."""

FRAMEWORKS = {
    "accelerate_ddp": "ddp",
    "lightning_ddp": "ddp",
    "deepspeed_zero1": "zero1",
    "deepspeed_zero2": "fsdp2_no_reshard",
    "deepspeed_zero3": "fsdp2",
}
"""Frameworks' ways of training, each with torch's own."""

SWITCHES = {
    "sync_bn": "What does SyncBatchNorm cost?",
    "channels_last": "Is channels_last faster here?",
    "threads": "What does torchrun's OMP_NUM_THREADS=1 cost?",
}


def questions(run: Run) -> list[Answer]:
    run = Analysed.of(run)
    bases = ((name, *name.partition("+")) for name in run.document.request.scenarios)
    o1_pairs = [(name, O1_PAIRS[base] + plus + on) for name, base, plus, on in bases if base in O1_PAIRS]
    answers: list[Callable[[Analysed], Answer | None]] = [
        fastest,
        loader,
        python,
        dataparallel,
        fsdp,
        *(partial(mixed_precision, half=half, full=full) for half, full in o1_pairs),
        no_sync,
        unused_parameters,
        *(partial(turning_on, switch=switch, question=question) for switch, question in SWITCHES.items()),
        frameworks,
        compiled,
        transport,
        same_weights,
        memory,
        growing,
        lambda run: ddp_against_shards(run.document),
        epochs,
    ]
    return [answered for answer in answers if (answered := answer(run)) is not None]


def loader(run: Analysed) -> Answer | None:
    """Of an attached script, whose DataLoader was watched; a sweep of the input has a chapter of its own."""
    shares = run.good_stats.frame.groupby("scenario", sort=False)["data_share"].median().dropna()
    if not run.document.of(Attached) or shares.empty:
        return None
    each = [percent(share) + f" ({name})" * (len(run.overview) > 1) for name, share in shares.items()]
    text = f"A step waits for its DataLoader for {listed(each)} of its time, on average over steps."
    bound = f" Above {100 * INPUT_BOUND:.0f} % it is input-bound: raise num_workers of the DataLoader."
    return "Is it the loader?", text + (bound if shares.max() > INPUT_BOUND else "")


def python(run: Analysed) -> Answer | None:
    """By how far the host was ahead at the end of a step, in the rank that was least so. The account of a step, which
    looks within it, answers by itself."""
    shares: dict[str, list[float]] = {}
    step_ms = run.good_stats.frame.set_index("launch")["median_ms"]
    for launch in run.document.good:
        leads = [rank.host_lead_ms for rank in launch.ranks if rank.host_lead_ms is not None]
        if leads and launch.launch in step_ms.index:
            shares.setdefault(launch.scenario, []).append(min(leads) / float(step_ms[launch.launch]))
    if not shares or accounts(run):
        return None
    waits = [name for name, of in shares.items() if sorted(of)[len(of) // 2] < HOST_BOUND]
    least = min(min(of) for of in shares.values())
    if not waits:
        ahead = f"Not at the end of a step, when the host is at least {100 * least:.0f} % of a step ahead"
        text = f"{ahead}. 'bench limits' finds what it waits within a step."
    else:
        text = (
            f"In {listed(waits)}: the host is less than {100 * HOST_BOUND:.0f} % of a step ahead, so these tie on the "
            "speed of Python. --batch-per-rank 64, +compile or +compile+cuda_graphs give the GPU more to do."
        )
    return "Is the GPU waiting for Python?", text


def epochs(run: Analysed) -> Answer | None:
    """Of real data: the first epoch may read a disk, and the later ones memory."""
    work = run.document.workload
    if work.examples is None or work.global_batch is None:
        return None
    each, frame = work.examples // work.global_batch, run.good_iterations.frame
    measured = frame[~frame["warmup"]]
    parts = {"the first": measured[measured["step"] < each], "later ones": measured[measured["step"] >= each]}
    texts = [
        f"in {name} a step takes {of['step_ms'].mean():,.1f} ms, {of['data_ms'].mean():,.1f} of them for data"
        if len(of)
        else f"no step of {name} counts"
        for name, of in parts.items()
    ]
    return "Is the first epoch slower?", f"An epoch has {each:,} step{'s' * (each != 1)}: {', '.join(texts)} (means)."


def fastest(run: Analysed) -> Answer | None:
    table = run.overview
    if run.document.of(Attached) and len(table) < 2:
        return None
    question = "Which is fastest, and by how much?"
    names = recommendable(table, searched=run.document.of(Tuning) is not None)["scenario"]
    rivals = against_fastest(run.rounds, names, looked_at(run.document))
    if names.empty:
        return question, "No scenario of this run can be recommended, so none is called the fastest."
    if not rivals:
        only = "with valid results" if table["why_not"].isna().sum() == 1 else "that can be recommended"
        if run.document.of(Tuning) and len(table) == 1:
            only = "that the search chose"
        return question, f"{names.iloc[0]} is the only scenario {only}, so it has nothing to beat."
    second = min(rivals, key=lambda row: row["ratio"])
    text = f"{second['base']}. A step of the next, {second['scenario']}, takes {times(second)} as long."
    return question, f"{text} {chance(second)}"


def dataparallel(run: Analysed) -> Answer | None:
    if not _measured(run, "dp", "ddp"):
        return None
    question = "Why is DataParallel slower than DDP?"
    if _effective(run, "dp").replicas == 1:
        where = "on the CPU" if run.document.workload.device == "cpu" else "on one GPU"
        return question, (
            f"This run cannot tell: {where} DataParallel is a pass-through, one process that calls the model as it is. "
            "Nothing was scattered, replicated or gathered."
        )
    text = f"{longer(run, 'dp', 'ddp')} {_why(run, 'dp', 'ddp')}"
    if _effective(run, "dp").cudnn_benchmark is False and _effective(run, "ddp").cudnn_benchmark:
        step_ms = dict(zip(run.overview["scenario"], run.overview["step_median_ms"], strict=True))
        text += " cuDNN's search for algorithms is off for dp, whose threads would search in every step"
        if math.isnan(untuned := step_ms.get("ddp_untuned", math.nan)):
            text += ": run ddp_untuned beside it to see that part."
        else:
            search, own = signed(untuned - step_ms["ddp"]), signed(step_ms["dp"] - untuned)
            text += f". Without it ddp takes {search} ms (ddp_untuned): {own} ms are DataParallel's own."
    for part in data_parallel(run.diagnostics).to_dict("records"):
        if part["scenario"] == "dp":
            text += (
                " In its forward pass, with the devices idle in between, replicating the weights takes "
                f"{part['replicate_ms']:,.1f} ms, scattering the input {part['scatter_ms']:,.1f} ms, gathering the "
                f"output {part['gather_ms']:,.1f} ms, and computing {part['parallel_apply_ms']:,.1f} ms."
            )
    return question, text


def fsdp(run: Analysed) -> Answer | None:
    if not _measured(run, "fsdp2", "ddp"):
        return None
    return "Is FSDP slower than DDP here, and why?", f"{longer(run, 'fsdp2', 'ddp')} {_why(run, 'fsdp2', 'ddp')}"


def _measured(run: Analysed, *names: str) -> bool:
    return set(names) <= set(run.good_stats.frame["scenario"])


def _why(run: Analysed, scenario: str, base: str) -> str:
    """The difference between its step and the base's: by phase, and by operators where the profiler looked at both."""
    of: Any = run.phases
    apart = (f"{phase} {signed(of.loc[scenario, f'{phase}_ms'] - of.loc[base, f'{phase}_ms'])}" for phase in PHASES)
    text = f"By phase (medians, ms): {', '.join(apart)}."
    costs: Any = spent(run.document).set_index("scenario").drop(columns="step_ms")
    if not {scenario, base} <= set(costs.index):
        looked_at = {one.scenario for one in run.document.begun(Diagnosis).launches if one.looks}
        why = f"is unknown: {NO_KERNELS}" if {scenario, base} <= looked_at else "was not looked at: --diagnose shows it"
        return f"{text} What its time is spent on {why}."
    extra = (costs.loc[scenario] - costs.loc[base]).sort_values(key=abs, ascending=False)
    most = listed([f"{name} {more:+.1f} ms" for name, more in extra.items() if abs(more) >= 0.05], 4)
    return f"{text} Under the profiler it differs by {most or 'nothing'}."


def mixed_precision(run: Analysed, half: str, full: str) -> Answer | None:
    if not _measured(run, half, full):
        return None
    question = f"Is O1 slower than no AMP ({half} against {full})?"
    pair = pair_of(run, half, full)
    slower = pair["ratio"] > 1
    sure = pair["verdict"] not in (TOO_FEW, ALIKE)
    opening = ("Yes" if slower else "No") if sure else ("Perhaps" if slower else "Probably not")
    text = f"{opening}: its step takes {times(pair)} as long. {chance(pair)}"
    rows = [row for row in run.overview.to_dict("records") if row["scenario"] in (half, full)]
    if doubts := [f"{row['scenario']} ({row['why_not']})" for row in rows if pd.notna(row["why_not"])]:
        text += f" Do not act on it: the results of {listed(doubts)} cannot be trusted."
    if _effective(run, half).bf16_instructions is False:
        text += " This holds for this CPU, which has no instructions for bf16, and says nothing about others or GPUs."
    return question, f"{text} {_why(run, half, full)}"


def no_sync(run: Analysed) -> Answer | None:
    texts = []
    for once in (name for name in run.document.request.scenarios if _measured(run, name, f"{name}_sync")):
        pair = pair_of(run, f"{once}_sync", once)
        ran = _effective(run, once)
        each = f"each of {(ran.replicas or 0) // max(1, ran.world_size or 1)} micro-batches"
        texts.append(f"Exchanging gradients after {each} instead of once takes {times(pair)} as long. {chance(pair)}")
    return ("What does no_sync gain with gradient accumulation?", " ".join(texts)) if texts else None


def transport(run: Analysed) -> Answer | None:
    channels: Counter[str] = Counter()
    for launch in run.document.begun(Diagnosis).launches:
        channels |= sum((Counter(look.nccl.transports) for look in launch.looks), Counter())  # the most of any launch
    if not channels:
        return None
    ways = [f"{name} ({count(number, 'channel')})" for name, number in channels.items()]
    text = f"By {listed(ways)}, as its own log says."
    if any(name.startswith("NET/Socket") for name in channels):
        text += " NET/Socket is TCP: where the hosts have InfiniBand or RoCE, NCCL does not see it"
        text += " (on Kubernetes: bench submit --rdma)."
    return "Which way do the ranks exchange?", text


def frameworks(run: Analysed) -> Answer | None:
    texts = [longer(run, *pair) for pair in FRAMEWORKS.items() if _measured(run, *pair)]
    return ("What does the framework cost?", " ".join(texts)) if texts else None


def growing(run: Analysed) -> Answer | None:
    """By samples while steps are measured, and on a GPU by what torch reserved beside what tensors held."""
    if run.memory.empty or not run.document.good:
        return None
    grown = by_key((one.scenario, run.growth[one.launch]) for one in run.document.good if one.launch in run.growth)
    usual = {name: sorted(of)[len(of) // 2] for name, of in grown.items()}
    leaks = [f"{name} by {mib:,.0f} MiB ({percent(share)})" for name, (mib, share) in usual.items() if share > GROWING]
    parts = ["Whether it grows is not known: steps were measured for too short a time; raise --iters."]
    if grown:
        parts = [f"No process grows by more than {percent(GROWING)} while steps are measured (median of launches)."]
    if leaks:
        kept = "look for what each step keeps, such as a loss with its graph"
        parts = [f"It grows while steps are measured: {listed(leaks)}; {kept}."]
    if len(torch := run.beside_torch.dropna(subset=["allocated_mib", "reserved_mib"])):
        beyond = (1.0 - torch["allocated_mib"] / torch["reserved_mib"]).groupby(torch["scenario"]).max()
        most = str(beyond.idxmax())
        parts.append(f"Of what torch reserved, tensors never held {percent(beyond[most])} (most of all in {most}).")
        if beyond[most] > FRAGMENTED:
            parts.append("+expandable_segments is for fragments.")
    return "Is memory fragmented or growing?", " ".join(parts)


def same_weights(run: Analysed) -> Answer | None:
    """How the replicas come to hold the same weights, shown by the checksums of every rank."""
    shared = [one for one in run.document.good if one.processes > 1 and one.checks.final_weights_alike is not None]
    if not shared:
        return None
    question = "How do the replicas come to hold the same weights?"
    started = sum(bool(one.checks.initial_weights_alike) for one in shared)
    alike = [one for one in shared if one.checks.final_weights_alike]
    if not started:
        return question, "They do not: already before the first step they hold different parameters in every launch."
    text = (
        f"They start from the same weights ({started} of {len(shared)} launches: equal SHA-256 of all parameters of "
        "every rank before the first step), and every step adds the same to them."
    )
    compared = run.parity.dropna(subset=["gradient_alone", "gradient_error"])
    for row in compared[:1].to_dict("records"):
        text += (
            f" By itself the gradient of one replica is {percent(row['gradient_alone'])} away from the average; "
            f"after the all-reduce that of every rank of {row['scenario']} is {percent(row['gradient_error'])} away "
            "from what one process computes that has the whole batch."
        )
    if alike:
        names = listed(list(dict.fromkeys(one.scenario for one in alike)))
        text += (
            f" After the last step all ranks hold the same parameters, bit for bit, in {len(alike)} of them ({names})."
        )
    if lost := dict.fromkeys(one.scenario for one in shared if one not in alike):
        text += f" In {listed(list(lost))} they do not: the ranks train different models."
    return question, text


def memory(run: Analysed) -> Answer | None:
    peaks, chosen = peak_by_process(run.memory), largest_launches(run.document, run.peaks)
    measured = run.overview.dropna(subset="peak_total_mib").sort_values("peak_total_mib")
    mib = {row["scenario"]: f"({row['peak_total_mib']:,.0f} MiB)" for row in measured.to_dict("records")}
    parts = []
    if len(mib) > 1:
        least, *_, most = mib
        parts = [f"{most} has the highest peak of all processes together {mib[most]}, {least} the lowest {mib[least]}."]
    indices = {gpu.uuid: gpu.index for gpu in run.document.machine.gpus}
    for scenario in [name for name in ("dp", "ddp") if name in chosen]:
        own = peaks[peaks["launch"] == chosen[scenario]]
        held = own.groupby(["rank", "pid", "device"], observed=True)["peak_mib"].max()
        peaks_of = held.reset_index().assign(index=lambda rows: rows["device"].map(indices))
        rows: list[TableRow] = peaks_of.sort_values(["index", "rank"]).to_dict("records")
        processes = len({row["pid"] for row in rows})
        where: list[str] = ["" if pd.isna(row["index"]) else f" on GPU {row['index']:.0f}" for row in rows]
        amounts = [f"{row['peak_mib']:,.0f} MiB{place}" for row, place in zip(rows, where, strict=True)]
        parts.append(f"{scenario}: {'one process' if processes == 1 else f'{processes} processes'}, {listed(amounts)}.")
        sizes = [row["peak_mib"] for row in rows]
        if processes == 1 and max(sizes) > 1.01 * min(sizes) > 0:
            most, least = (where[sizes.index(size)] for size in (max(sizes), min(sizes)))
            parts.append(f"Its peak{most} is {max(sizes) / min(sizes):.2f} times that{least}.")
    return ("Which uses the most memory?", " ".join(parts)) if parts else None


def _effective(run: Run, scenario: str) -> Effective:
    return next(launch.effective for launch in run.document.good if launch.scenario == scenario and launch.effective)
