"""The recorder of ``bench attach`` in the script's processes: it notes when an optimizer has stepped, and what trains.

A step is what lies between two calls of the first optimizer that steps in a process; calls of the others are counted.
The notes of a process go to a file of its own in the folder ``BENCH_ATTACH``, a line of JSON about every second, so
that little is lost where it is killed:

    {"begin": {...}}                                   before the first mark, which is when all that is slow is done
    {"marks_ns": [...], "data_ms": [...], "cuda_ms": [...]}   host time of each mark, the wait for data before it, steps
    {"ran": {...}}                                     what trains, once a forward pass was seen
    {"end": {...}}                                     or {"problem": "..."}

Nothing here synchronises a device, prints, or raises: what fails is written down, and the script goes on without it.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import sys
import time
import weakref
from collections import Counter, deque
from contextlib import suppress
from functools import wraps
from threading import get_ident
from time import perf_counter_ns
from typing import Any

PERIOD_NS = 1_000_000_000
"""Between two lines of a file."""
LOSSES = 10
"""The last ones, whose mean is the final loss."""
MOST_PASSES = 1000
"""Of one step, that its loss is the sum of."""
FIRST_STEPS = 3
"""Whose norms are noted, where ``BENCH_ATTACH_NUMERICS`` is set."""
UNKNOWN = (
    *("backend_class", "compiled", "bf16_instructions", "bound_cores", "chosen_threads"),
    *("precision", "apex_kernels"),
)
"""Of a script that bench did not write."""
LATE_S = 1.0
"""How long the end of the script may wait for the last events."""


class State:
    """Of one process. ``marks``, ``waits``, ``spans``: what is not written yet. ``events``: of CUDA, not read yet.
    ``passes``: the losses of the backward passes whose gradients are added up."""

    def __init__(self) -> None:
        self.path = ""
        self.note: Any = None
        self.size = 0
        self.off = False
        self.first: Any = None
        self.calls = 0
        self.others: Counter[str] = Counter()
        self.marks: list[int] = []
        self.waits: list[float | None] = []
        self.spans: list[float] = []
        self.events: deque[Any] = deque()
        self.spare: list[Any] = []
        self.cuda: Any = None  # the module torch.cuda, where a GPU trains
        self.stream: Any = None
        self.watch: Any = None
        self.ran: dict[str, Any] = {}
        self.flushed_ns = 0
        self.passes: deque[Any] = deque(maxlen=MOST_PASSES)
        self.losses: deque[Any] = deque(maxlen=LOSSES)
        self.norms: dict[str, float] = {}


STATE = State()
WAITED_NS: dict[int, int] = {}
"""For data, by thread, since its last mark."""
WAITING: set[int] = set()


def watch_optimizers(optimizers: Any) -> None:
    """``optimizers``: the module ``torch.optim.optimizer``."""
    if not hasattr(optimizers, "register_optimizer_step_post_hook"):
        raise RuntimeError("the command's torch is older than 2.0, and does not tell when an optimizer steps")
    on_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled code calls it and does not trace it
    optimizers.register_optimizer_step_post_hook(on_step)
    clear = optimizers.Optimizer.zero_grad

    @wraps(clear)
    def zero_grad(*args: object, **more: object) -> object:
        STATE.passes.clear()
        return clear(*args, **more)

    zero_grad._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizers.Optimizer.zero_grad = zero_grad
    os.register_at_fork(after_in_child=_forget)
    leave = os._exit

    def leave_with_notes(status: int) -> Any:
        _end()
        leave(status)

    os._exit = leave_with_notes


def watch_loaders(loaders: Any) -> None:
    """``loaders``: the module ``torch.utils.data.dataloader``."""
    for kind, name in ((loaders.DataLoader, "__iter__"), (loaders._BaseDataLoaderIter, "__next__")):
        setattr(kind, name, _timed(getattr(kind, name)))


def _timed(function: Any) -> Any:
    """The same, with its time added to that of its thread; within another one it is part of that."""

    @wraps(function)
    def timed(*args: object, **more: object) -> object:
        thread = get_ident()
        if thread in WAITING:
            return function(*args, **more)
        WAITING.add(thread)
        start_ns = perf_counter_ns()
        try:
            return function(*args, **more)
        finally:
            WAITED_NS[thread] = WAITED_NS.get(thread, 0) + perf_counter_ns() - start_ns
            WAITING.discard(thread)

    return timed


def _forget() -> None:
    """A fork has none of its parent's steps."""
    global STATE
    STATE = State()
    WAITED_NS.clear()
    WAITING.clear()


def on_step(optimizer: Any, args: object, kwargs: object) -> None:
    state = STATE
    if state.off:
        return
    disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
    if state.note is None and disable:  # a compiled training step compiles what it calls, too
        state.note = disable(_note)
    (state.note or _note)(state, optimizer)


def _note(state: State, optimizer: Any) -> None:
    try:
        if state.first is None or state.first() is not optimizer:
            if state.first is not None and state.first() is not None:
                state.others[type(optimizer).__name__] += 1
                state.passes.clear()
                return
            _begin(state, optimizer)
        if state.stream is not None:
            if state.cuda.is_current_stream_capturing():
                raise RuntimeError("the optimizer's step is part of a CUDA graph, whose replays call no hook")
            event = state.spare.pop() if state.spare else state.cuda.Event(enable_timing=True)
            event.record(state.stream())
            state.events.append(event)
            _read_events(state)
        thread, now_ns = get_ident(), perf_counter_ns()
        state.marks.append(now_ns)
        state.waits.append(WAITED_NS[thread] / 1e6 if thread in WAITED_NS else None)
        if thread in WAITED_NS:
            WAITED_NS[thread] = 0
        state.calls += 1
        if state.passes:
            state.losses.append(list(state.passes))
            state.passes.clear()
        if state.calls <= FIRST_STEPS and os.environ.get("BENCH_ATTACH_NUMERICS"):
            _note_norms(state, optimizer)
        if now_ns - state.flushed_ns > PERIOD_NS or state.calls == 2:  # by then a forward pass was seen
            state.flushed_ns = now_ns
            _flush(state)
    except Exception as error:  # noqa: BLE001  # whatever it is, the script goes on
        _give_up(state, error)


def _watch_backward(torch: Any) -> None:
    """Have losses kept, without what they were made of. They are read at the end, when they are there."""
    backward = torch.autograd.backward
    if hasattr(backward, "_bench"):
        return

    def noting(tensors: Any, *args: object, **more: object) -> Any:
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            STATE.passes.append(tensors.detach())
        return backward(tensors, *args, **more)

    noting._bench = noting._torchdynamo_disable = True  # type: ignore[attr-defined]
    noting.__wrapped__ = backward  # type: ignore[attr-defined]
    torch.autograd.backward = noting


def _note_norms(state: State, optimizer: Any) -> None:
    """Of the gradients, and of the weights after the step."""
    parameters = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad.detach() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for name, tensors in (("gradients", gradients), ("weights", parameters)):
        square = sum(float(getattr(t, "_local_tensor", t).double().square().sum()) for t in tensors)
        state.norms[f"{name}, step {state.calls}"] = square**0.5


def _final_loss(state: State) -> float | str | None:
    """None where it is unknown, which it is with a loss scaler; text where it is not finite."""
    if state.ran.get("scaler") or not state.losses or (state.events and not state.events[-1].query()):
        return None
    loss = sum(float(loss) for passes in state.losses for loss in passes) / len(state.losses)
    return loss if abs(loss) < float("inf") else str(loss)


def _give_up(state: State, error: Exception) -> None:
    state.off = True
    try:
        _open(state)
        _flush(state)
        _write(state, {"problem": f"{type(error).__name__}: {error}"})
    except OSError as refused:
        with suppress(OSError):  # a full disk still takes another name
            os.rename(state.path, state.path.replace(".jsonl", f"-errno-{refused.errno}.jsonl"))
    except Exception:  # noqa: BLE001  # there is nobody to tell
        pass


def _begin(state: State, optimizer: Any) -> None:
    """Everything that takes long, before the first mark; of a later optimizer, whose forerunner is gone, nothing."""
    state.first = weakref.ref(optimizer)
    if state.path:
        return
    _open(state)
    from multiprocessing.util import Finalize  # processes of multiprocessing leave without atexit

    atexit.register(_end)
    Finalize(None, _end, exitpriority=100)
    import torch

    device = next((p.device for group in optimizer.param_groups for p in group["params"]), torch.device("cpu"))
    about = _about(optimizer, device, state)
    _write(state, {"begin": about})
    state.ran = about["effective"]
    if device.type == "cuda":
        state.cuda, state.stream = torch.cuda, lambda: torch.cuda.current_stream(device)
    _watch_backward(torch)


def _open(state: State) -> None:
    if not state.path:
        state.path = os.path.join(os.environ["BENCH_ATTACH"], f"{os.getpid()}-{time.time_ns()}.jsonl")


def _write(state: State, line: dict[str, object]) -> None:
    """The line, or nothing of it. No descriptor is kept: a script that closes all gives its number to its own file."""
    text = (json.dumps(line) + "\n").encode()
    size = state.size + len(text)
    file = os.open(state.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while text:
            text = text[os.write(file, text) :]
    except OSError:
        os.ftruncate(file, state.size)
        raise
    finally:
        os.close(file)
    state.size = size


def _flush(state: State) -> None:
    if state.watch is not None and state.calls > 1:
        state.watch.stop()
        state.ran["compute_dtypes"] = sorted(map(_live().dtype_name, state.watch.outputs))
        state.ran["memory_format"] = state.watch.memory_format
        if state.watch.outputs:
            state.ran["precision"] = _live().observed_level(state.ran)
        _write(state, {"ran": state.ran})
        state.watch = None
    if state.marks:
        _write(state, {"marks_ns": state.marks, "data_ms": state.waits, "cuda_ms": state.spans})
        state.marks, state.waits, state.spans = [], [], []


def _read_events(state: State) -> None:
    """The steps whose events the device has passed. An event that is done is used again."""
    while len(state.events) > 1 and state.events[1].query():
        first = state.events.popleft()
        state.spans.append(first.elapsed_time(state.events[0]))
        state.spare.append(first)


def _end() -> None:
    state = STATE
    if not state.path or state.off:
        return
    state.off = True
    try:
        deadline_s = time.monotonic() + LATE_S
        _read_events(state)
        while len(state.events) > 1 and time.monotonic() < deadline_s:
            time.sleep(0.001)
            _read_events(state)
        _flush(state)
        import torch

        peaks = _live().peaks(torch.device("cpu" if state.stream is None else "cuda"))
        peaks = {name: mib for name, mib in peaks.items() if mib}
        end = {"at_ns": perf_counter_ns(), "others": state.others, "allocator": peaks}
        _write(state, {"end": {**end, "final_loss": _final_loss(state), "norms": state.norms}})
    except Exception as error:  # noqa: BLE001
        _give_up(state, error)


def _live() -> Any:
    name = "_bench_attached_live"
    if name not in sys.modules:
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "live.py")
        spec: Any = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _about(optimizer: Any, device: Any, state: State) -> dict[str, Any]:
    """Who this is, and what trains here as :class:`bench.runs.launches.Effective` has it."""
    import torch
    import torch.distributed as dist

    live = _live()
    group = dist.is_available() and dist.is_initialized()
    modules, scaler = _living(torch)
    parameters = [p for group_ in optimizer.param_groups for p in group_["params"]]
    root = _root(modules, {id(p) for p in parameters})
    wrapper = next((m for m in root.modules() if type(m).__name__ in WRAPPERS), root) if root is not None else None
    model = _inner(wrapper)
    if model is not None and not any(type(m).__name__ == "OptimizedModule" for m in modules):
        state.watch = live.TypeWatch(model, outside=True)
    of_model = list(model.parameters()) if model is not None else parameters
    cuda = device.type == "cuda"
    numbers = {name: value for name, value in optimizer.defaults.items() if type(value) in (bool, int, float)}
    label, kind = _label(wrapper, model)
    devices = getattr(wrapper, "device_ids", None) if label == "DataParallel" else None
    replicas = max(dist.get_world_size() if group else 1, len(devices or ()))
    gpus = devices or [device.index] if cuda else []
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    ran = {
        **live.of_training(model, wrapper, optimizer, device, replicas),
        **dict.fromkeys(UNKNOWN),
        "label": label,
        "parallel_impl": kind,
        "precision_impl": "torch",
        "weights": "sharded" if any(hasattr(p, "to_local") for p in of_model) else "replicated",
        "compute_dtypes": [],
        "optimizer_settings": numbers,
        "scaler": scaler,
        "memory_format": "unknown",
        "switches": {},
        "bf16_by_fp32": False,
        "versions": {"torch": str(torch.__version__), "cuda": torch.version.cuda if cuda else None},
    }
    return {
        "pid": os.getpid(),
        "rank": dist.get_rank() if group else int(os.environ.get("RANK") or 0),
        "script": _text(os.path.abspath(script)) if script else None,
        "python": [sys.version.split()[0], _text(sys.executable)],
        "devices": [live.device_uuid(torch.device("cuda", index)) for index in gpus],
        "effective": ran,
    }


def _text(path: str) -> str:
    """Bytes that are no text in this locale are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def _living(torch: Any) -> tuple[list[Any], dict[str, Any] | None]:
    """The modules of the process, and the loss scaler. By the type alone: a proxy may load a library when asked."""
    modules, scaler = [], None
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.nn.Module):
            modules.append(thing)
        elif kind.__name__ in ("GradScaler", "ShardedGradScaler") and getattr(thing, "_enabled", False):
            scaler = {"class": _live().class_name(thing), "dynamic": True, "scale": float(thing.get_scale())}
    return modules, scaler


def _root(modules: list[Any], trained: set[int]) -> Any:
    """The outermost module that has a parameter of the optimizer's."""
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [m for m in modules if id(m) not in inner and any(id(p) in trained for p in m.parameters())]
    return max(roots, key=lambda root: sum(1 for _ in root.modules()), default=None)


def _inner(module: Any) -> Any:
    """The model in its wrappers."""
    for name in ("_orig_mod", "_fsdp_wrapped_module", "module"):
        inner = getattr(module, "_modules", {}).get(name)
        if inner is not None and type(module).__name__ in (*WRAPPERS, "OptimizedModule"):
            return _inner(inner)
    return module


def _label(wrapper: Any, model: Any) -> tuple[str, str | None]:
    """Bench's label for this way to train, and whose it is (None: nobody's)."""
    if wrapper is None:
        return "unknown", None
    owner, name = type(wrapper).__module__.split(".")[0], type(wrapper).__name__
    if name in WRAPPERS and owner in ("torch", "apex"):
        return {"DistributedDataParallel": owner + " DDP", "DataParallel": name}.get(name, "torch FSDP"), owner
    if hasattr(type(model), "unshard") and name.startswith("FSDP"):
        return "torch FSDP2", "torch"
    return "no wrapper", None
