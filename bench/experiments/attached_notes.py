"""The notes of a recorder (``bench/worker/attached``), one file for each process, and the ranks that they are of."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from bench.core.codec import decode, encode
from bench.core.files import Json, open_regular, parse_json
from bench.runs.fields import Amount, Count, Names, Pid
from bench.runs.frames import TableRow
from bench.runs.launches import Effective

NOTES_BYTES = 1 << 30  # of one process: a step takes some 40


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Who a process says that it is. ``python``: its version and its executable. ``effective``: what trains there."""

    pid: Pid
    rank: Count
    script: str | None
    python: tuple[str, ...]
    devices: Names
    effective: Effective


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A process's last note, and when it came. ``others``: calls of optimizers that are not the first, by class."""

    at_ns: int | None = None
    others: Mapping[str, Count] = field(default_factory=dict)
    allocator: Mapping[str, Amount] | None = None
    final_loss: float | str | None = None
    norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Notes:
    """The notes of a process. ``waits_ms``: for data, by mark. ``spans_ms``: steps by CUDA events, of the first
    marks."""

    about: About | None = None
    marks_ns: list[int] = field(default_factory=list)
    waits_ms: list[float | None] = field(default_factory=list)
    spans_ms: list[float] = field(default_factory=list)
    end: End = field(default_factory=End)
    problem: str | None = None

    @property
    def who(self) -> About:
        """Of a process that has begun to step."""
        assert self.about is not None
        return self.about

    @property
    def ran(self) -> Effective:
        return self.who.effective

    @property
    def cuda(self) -> bool:
        return self.ran.device["type"] == "cuda"

    @property
    def steps(self) -> int:
        return len(self.spans_ms) if self.cuda else max(0, len(self.marks_ns) - 1)

    @property
    def apart(self) -> float | None:
        """How far the steps by CUDA events are from the host's time for them; the host runs ahead of the device."""
        if not self.cuda:
            return None
        host_ms = (self.marks_ns[self.steps] - self.marks_ns[0]) / 1e6
        return abs(sum(self.spans_ms) - host_ms) / host_ms


def read(path: str, lines: int | None = None) -> Notes:
    """The notes of a process in the first ``lines`` (None: all), up to where it was killed or noted what it cannot."""
    notes, number = Notes(), 0
    written, _, code = os.path.basename(path).removesuffix(".jsonl").partition("-errno-")
    try:
        with open_regular(path, limit=NOTES_BYTES) as file:
            for number, line in enumerate(islice(file, lines), 1):  # noqa: B007
                if not line.endswith(b"\n"):
                    break
                _take(notes, parse_json(line))
        if code.isdecimal():
            notes.problem = f"PID {written.partition('-')[0]} could not write its notes: {os.strerror(int(code))}"
    except (OSError, ValueError) as error:
        owner = error.strerror if isinstance(error, OSError) else f"{error}, in line {number}"
        notes.problem = f"{path} is not what the recorder writes, or not readable for this user ({owner})"
    return notes


def _take(notes: Notes, line: Json) -> None:
    """Add a line. Raises ``ValueError`` for one that cannot be what ran."""
    if "begin" in line:
        notes.about = decode(About, line["begin"])
    if "ran" in line:
        notes.about = replace(notes.who, effective=decode(Effective, line["ran"]))
    if "problem" in line:
        notes.problem = decode(str, line["problem"])
    if "end" in line:
        notes.end = decode(End, encode(End()) | line["end"])
    notes.marks_ns += decode(tuple[int, ...], line.get("marks_ns", ()))
    notes.waits_ms += decode(tuple[float | None, ...], line.get("data_ms", ()))
    notes.spans_ms += decode(tuple[Amount, ...], line.get("cuda_ms", ()))


def ranks_of(notes: Sequence[Notes]) -> tuple[list[Notes], list[str]]:
    """The processes that are the ranks, in order, and what is left out. Of two with one number: the one of more steps.

    Numbers have no gaps: they count the ranks that step an optimizer on this host.
    """
    chosen: dict[int, Notes] = {}
    left = [one.problem for one in notes if one.problem]
    for one in sorted((one for one in notes if one.about), key=lambda one: -one.steps):
        rank = one.who.rank
        if rank in chosen:
            left.append(f"PID {one.who.pid} with {one.steps} steps, as rank {rank} is PID {chosen[rank].who.pid}")
        elif one.steps:
            chosen[rank] = one
    ranks = [chosen[rank] for rank in sorted(chosen)]
    world = max((one.ran.world_size for one in ranks), default=0)
    if world > len(ranks):
        left.append(f"{world - len(ranks)} of {world} ranks, which step no optimizer on this host")
    return ranks, left


def rows_of(notes: Notes, steps: int, warmup: int) -> Iterator[TableRow]:
    """The first ``steps`` of a rank."""
    start_ns = notes.marks_ns[0] if notes.marks_ns else 0
    for step in range(steps):
        host_ms = (notes.marks_ns[step + 1] - notes.marks_ns[step]) / 1e6
        step_ms = notes.spans_ms[step] if notes.cuda else host_ms
        data_ms = notes.waits_ms[step + 1] if step + 1 < len(notes.waits_ms) else None
        yield {"step": step, "warmup": step < warmup, "start_ns": start_ns, "data_ms": data_ms, "step_ms": step_ms}
        start_ns += round(step_ms * 1e6)


def usual_name(ran: Effective) -> str:
    """The scenario that this is, by bench's name."""
    names = {"torch DDP": "ddp", "apex DDP": "apex_ddp", "DataParallel": "dp", "torch FSDP": "fsdp"}
    plain = "single" if ran.world_size == 1 else "custom"
    return names.get(ran.label, "fsdp2" if ran.label == "torch FSDP2" else plain)


def why_nothing(notes: Sequence[Notes]) -> str:
    """Why there is no step among the notes of a command's processes."""
    if problem := next((one.problem for one in notes if one.problem), None):
        return problem
    if stepped := sum(len(one.marks_ns) for one in notes):
        return f"an optimizer stepped {stepped} time{'s' * (stepped > 1)} only, and a step is what lies between two"
    unseen = (
        "those of a class that is not torch.optim.Optimizer, as fastai's, are not seen, nor is Python with -I, -E or "
        "-S, another user or PYTHONPATH=src without :$PYTHONPATH"
    )
    return f"no optimizer of torch stepped in any Python process of it ({unseen})"
