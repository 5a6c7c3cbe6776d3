"""The workload's file in a measured process: its functions, what they were given, and whether it was obeyed."""

import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from numbers import Integral
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bench.core.errors import BenchError, RequestError
from bench.core.files import sha256
from bench.core.job import Training
from bench.core.records import Setting
from bench.seams import discover, execute
from bench.worker.fingerprint import checksum

Batch = Any
"""Tensors in tuples, lists, dicts and dataclasses: an example, what ``collate`` makes of several, or an output."""

Forward = Callable[..., Any]
"""The model, or whatever a strategy and a precision made of it: called with the model's inputs."""

Loss = Callable[[Forward, Batch], Tensor]
"""``loss(model, batch)``: the mean loss of a batch, a scalar; it calls the model itself."""

NO_MEMORY = ("can't allocate memory", "storage size calculation overflowed", "bad_alloc")
"""In torch's errors where there is no room for a tensor on the CPU."""

AWAKE = (0.1, 0.3)
"""Between these are the elements of a parameter that the workload's model begins with at 0."""

HYPERPARAMETERS = {"learning_rate": "lr"}
"""Settings by another name in torch's optimizers."""


class Work:
    """The argument of a workload's functions: its settings as attributes, and ``seed``, ``global_batch``, ``device``,
    and ``data``: the folder of real data, or None.

    ``used``: the settings that were read, since one that is not changes nothing.
    """

    def __init__(self, workload: Training) -> None:
        self.seed, self.global_batch, self.device = workload.seed, workload.global_batch, workload.device
        self.data = workload.data
        self.used: set[str] = set()
        self._settings = workload.settings
        self._name = workload.name

    def __getattr__(self, name: str) -> Setting:
        """Raises ``AttributeError`` for what is not a setting."""
        if name.startswith("_") or name not in self._settings:
            raise AttributeError(f"the workload {self._name} has no setting {name!r}")
        self.used.add(name)
        return self._settings[name]


class _Opened:
    """The workload that this process trains."""

    def __init__(self, workload: Training) -> None:
        self.identity = workload.hash()
        self.module: ModuleType = execute.load_file(workload.name, workload.file, discover.WORKLOAD)
        if workload.sha256 not in (None, sha256(workload.file)):
            raise RequestError("--workload", f"{workload.file} has changed since the run began", "start a new run")
        self.work = Work(workload)


_opened: list[_Opened] = []


def _open(workload: Training) -> _Opened:
    if not _opened or _opened[0].identity != workload.hash():
        _opened[:] = [_Opened(workload)]
    return _opened[0]


def build_model(workload: Training) -> nn.Module:
    """The model on the CPU, in fp32, with the weights that the seed gives on every rank."""
    opened = _open(workload)
    torch.manual_seed(workload.seed)
    return opened.module.model(opened.work)


def build_in_double(workload: Training) -> tuple[nn.Module, bool]:
    """The model on the CPU in double precision, and whether it is the workload's narrow one. No parameter is all zeros:
    branches that begin idle are awake, and every tensor has a gradient. Whatever a loss makes of a batch is cast."""
    opened = _open(workload)
    torch.manual_seed(workload.seed)
    narrow: nn.Module | None = opened.module.narrow(opened.work) if hasattr(opened.module, "narrow") else None
    model = (build_model(workload) if narrow is None else narrow).double()
    model.register_forward_pre_hook(lambda _, *given: cast_floats(given, torch.float64), with_kwargs=True)
    generator = torch.Generator().manual_seed(workload.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(torch.empty(parameter.shape).uniform_(*AWAKE, generator=generator))
    return model, narrow is not None


def build_optimizer(workload: Training, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Raises :class:`RequestError` for what is none, or makes no step without being given something."""
    opened = _open(workload)
    made = opened.module.optimizer(opened.work, list(parameters))  # which may be gone through more than once
    what = f"{workload.file}: optimizer(work, parameters) returned {type(made).__name__}"
    if not hasattr(made, "param_groups"):
        raise RequestError("--workload", what, "return a torch.optim.Optimizer")
    step = getattr(type(made), "step", None)  # that of an instance may be in the wrapper of a scheduler
    try:
        if step is not None:
            signature(step).bind(made)
    except TypeError as error:
        what = f"{what}, whose step() cannot be called without arguments ({error})"
        remedy = "choose another one, or measure your script with bench attach"
        raise RequestError("--workload", what, remedy) from error
    return made


def tiny(model: nn.Module) -> list[Tensor]:
    """A parameter on the CPU for each of a model's, with one element in as many dimensions."""
    return [torch.zeros((1,) * one.dim(), requires_grad=True) for one in model.parameters()]


class Around:
    """A workload's own work around each step of an optimizer that updates these ``parameters`` of ``model``. ``steps``:
    False where another process makes the steps, and the schedule alone goes on."""

    def __init__(
        self,
        workload: Training,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: list[Tensor],
        *,
        steps: bool = True,
    ) -> None:
        self.workload, self.model, self.optimizer = workload, model, optimizer
        file = _open(workload).module
        names = ("before_step", "after_step") if steps else ("", "")
        self.before_step, self.after_step = (getattr(file, name, None) for name in names)
        updated = dict(zip(map(id, model.parameters()), parameters, strict=True))
        self._updated = [
            (module._parameters, name, updated[id(ours)])
            for module in model.modules()
            for name, ours in module._parameters.items()
            if ours is not None and updated[id(ours)] is not ours
        ]
        schedule = getattr(file, "schedule", None)
        self.scheduler: Any = schedule(optimizer) if schedule else None

    def before(self) -> None:
        self._call(self.before_step)

    def after(self) -> None:
        self._call(self.after_step)
        if self.scheduler is not None:
            self.scheduler.step()

    def _call(self, function: Callable[..., object] | None) -> None:
        """Call it; meanwhile the parameters of the model, and of its modules, are the ones that are updated."""
        if function is None:
            return
        computing = [(held, name, held[name]) for held, name, _ in self._updated]
        for held, name, one in self._updated:
            held[name] = one
        try:
            function(self.model, self.optimizer)
        finally:
            for held, name, one in computing:
                held[name] = one

    def skip(self, steps: int) -> None:
        """Bring the schedule to where it is after this many steps."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, that the optimizer did not step
            for _ in range(steps if self.scheduler is not None else 0):
                self.scheduler.step()

    def off_schedule(self, steps: int) -> list[str]:
        """Where the learning rates are not those that the schedule gives to another optimizer after this many steps."""
        if self.scheduler is None:
            return []
        both = self.optimizer.param_groups, self._after(steps)
        rates, expected = ([group["lr"] for group in groups] for groups in both)
        wrong = f"the learning rate is {rates}, but after {steps} steps the schedule says {expected}"
        return [wrong] * (rates != expected)

    def scheduled(self, steps: int) -> set[str]:
        """What the schedule changes of groups of parameters in this many steps."""
        if self.scheduler is None:
            return set()
        pairs = zip(self._after(0), self._after(steps), strict=True)
        return {name for begin, end in pairs for name in end if name != "params" and end[name] != begin.get(name)}

    def _after(self, steps: int) -> list[dict[str, Any]]:
        """The groups of parameters of another optimizer, after this many steps of the schedule."""
        parameters = tiny(self.model)
        other = build_optimizer(self.workload, parameters)
        Around(self.workload, self.model, other, parameters).skip(steps)
        return other.param_groups


def flag_effect(optimizer: torch.optim.Optimizer, workload: Training, flag: str) -> str | None:
    """Why a flag of the optimizer, such as ``fused``, did nothing; None if it is on, and by a switch alone."""
    if not optimizer.defaults.get(flag):
        return f"the optimizer has {flag}=False"
    usual = build_optimizer(workload, [torch.zeros(1, requires_grad=True)])
    return f"the workload's optimizer has {flag}=True anyway" if usual.defaults.get(flag) else None


def loss_of(workload: Training) -> Loss:
    return _open(workload).module.loss


def example_of(workload: Training) -> Callable[[int], Batch]:
    """Raises :class:`BenchError` if there is more or less real data than when the run began."""
    opened = _open(workload)
    if workload.data is not None and (count := opened.module.size(opened.work)) != workload.examples:
        began = f"{workload.examples} examples when the run began and {count} now"
        raise BenchError(f"{workload.data} had {began}; start a new run")
    return lambda index: opened.module.example(opened.work, index)


def collate_of(workload: Training) -> Callable[[list[Batch]], Batch]:
    return getattr(_open(workload).module, "collate", torch.utils.data.default_collate)


def weight_of(workload: Training) -> Callable[[Batch], float] | None:
    """How much a part of a batch counts in the mean; None: all count the same, as they have equally many examples."""
    return getattr(_open(workload).module, "weight", None)


def tensors_in(tree: Batch) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found


def map_tensors(function: Callable[[Any], object], tree: Batch, kind: type = Tensor) -> Batch:
    """A batch with ``function`` applied to each of its tensors (or what is of another ``kind``); other values stay as
    they are."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, PackedSequence):  # whose batch_sizes stay on the CPU
        data, *indices = (map_tensors(function, tree[at], kind) for at in (0, 2, 3))
        return tree._make((data, tree.batch_sizes, *indices))
    entries = _entries(tree)
    return tree if entries is None else _alike(tree, [map_tensors(function, value, kind) for value in entries])


def cast_floats(tree: Batch, dtype: torch.dtype) -> Batch:
    """The same tree of tuples, lists and dicts with every floating-point tensor in ``dtype``."""
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def _entries(tree: Batch) -> Sequence[Any] | None:
    """The values of a tuple, list, dict or dataclass; None of anything else."""
    if isinstance(tree, dict | UserDict):
        return list(tree.values())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)]
    return tree if isinstance(tree, tuple | list) else None


def _alike(tree: Batch, parts: Sequence[Any]) -> Batch:
    """What is like ``tree``, with these :func:`_entries`: names, and attributes of a dict, stay."""
    if isinstance(tree, list):
        return [*parts]
    if hasattr(tree, "_fields"):
        return tree._make(parts)
    if isinstance(tree, tuple):
        return tuple(parts)
    made = copy(tree)
    if isinstance(tree, dict | UserDict):  # also one that is a dataclass too
        for key, part in zip(tree, parts, strict=True):
            made[key] = part
    else:
        for field, part in zip(fields(tree), parts, strict=True):
            object.__setattr__(made, field.name, part)  # it may be frozen
    return made


def cut(tree: Batch, examples: int, pieces: int) -> list[Batch]:
    """A batch of this many ``examples`` in pieces of equal size, one after the other: what has an entry for each
    example is cut, and anything else is in every piece.
    """
    if isinstance(tree, Tensor) and tree.dim() and len(tree) == examples:
        return list(tree.chunk(pieces))
    entries = _entries(tree)
    if entries is None:
        return [tree] * pieces
    whole = any(isinstance(one, Tensor) and one.dim() and len(one) == examples for one in entries)
    if isinstance(tree, tuple | list) and len(tree) == examples and not whole:
        size = examples // pieces
        return [tree[start : start + size] for start in range(0, examples, size)]
    parts = [cut(value, examples, pieces) for value in entries]
    return [_alike(tree, [part[piece] for part in parts]) for piece in range(pieces)]


def wrong_loss(workload: Training, loss: Any) -> RequestError | None:
    """Why what ``loss`` returned cannot be trained; None where it can."""
    if getattr(loss, "ndim", None) != 0:
        given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        what = f"{workload.file}: loss(model, batch) returned {given}"
        return RequestError("--workload", what, "return a scalar tensor, such as its mean")
    if not loss.requires_grad:
        what = f"{workload.file}: loss(model, batch) returned a tensor without a gradient"
        return RequestError("--workload", what, "compute it from what the model returns")
    return None


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The hyperparameters that an optimizer's groups of parameters have, where all have the same."""
    first, *others = optimizer.param_groups
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, str | int | float) and all(group.get(name) == value for group in others)
    }


def contradictions(workload: Training, hyperparameters: dict[str, object]) -> list[str]:
    """Where what was built is not what the settings say. ``hyperparameters``: as from :func:`settings_of`."""
    found = []
    for name, value in workload.settings.items():
        key = HYPERPARAMETERS.get(name, name)
        actual = hyperparameters.get(f"initial_{key}", hyperparameters.get(key, value))  # initial: of a schedule
        if actual != value:
            begun = " (a schedule must begin with the setting)" * hasattr(_open(workload).module, "schedule")
            found.append(f"the setting {name} is {value}, but the optimizer has {actual}{begun}")
    if unused := sorted(set(workload.settings) - _open(workload).work.used):
        found.append(f"nothing in {workload.file} uses the setting {' or '.join(unused)}")
    return found


def versions() -> dict[str, str]:
    """Versions of what the workload declares that it imports."""
    names = _opened[0].module.WORKLOAD.imports if _opened else ()
    return {name: str(getattr(sys.modules[name], "__version__", "unknown")) for name in names if name in sys.modules}


def prepare(workload: Training) -> None:
    """Import, in the worker host, what every rank will. Raises :class:`RequestError` where that fails."""
    for name in _open(workload).module.WORKLOAD.imports:
        try:
            import_module(name)
        except Exception as error:  # whatever a broken package raises
            what = f"{workload.file} imports {name}, which {sys.executable} cannot: {type(error).__name__}: {error}"
            raise RequestError("--workload", what, "install it there, or name another interpreter") from error


def examine(workload: Training) -> dict[str, object]:
    """``example_bytes``: of one example, None for more than this process may take. ``examples``: how many there are of
    real data. Raises :class:`RequestError` where it cannot be trained with these settings.
    """
    opened = _open(workload)
    try:
        if hasattr(opened.module, "check"):
            opened.module.check(opened.work)
        examples = None if workload.data is None else opened.module.size(opened.work)
        if examples is not None and not isinstance(examples, Integral):
            what = f"{workload.file}: size(work) returned {type(examples).__name__}"
            raise RequestError("--workload", what, "return how many examples there are, a whole number")
        if examples is not None and examples < workload.global_batch:
            what = f"{workload.data} has {examples} examples, and a global batch takes {workload.global_batch}"
            raise RequestError("--data", what, "give more data, or a smaller --global-batch")
        made, tensors = set[str](), list[Tensor]()
        for _ in range(2):
            tensors.clear()  # there may be no room for two
            tensors += tensors_in(opened.module.example(opened.work, 0))
            made.add(checksum(one for one in tensors if one.layout is torch.strided and not one.is_nested))
        if not tensors:
            what = f"{workload.file}: example(work, 0) has no tensor"
            raise RequestError("--workload", what, "return a tensor, or a tuple, list or dict of them")
        if len(made) > 1:
            what = f"{workload.file}: example(work, 0) gives another example when it is called again"
            raise RequestError("--workload", what, "draw it from torch.Generator().manual_seed(work.seed + index)")
        return {"example_bytes": sum(tensor.nbytes for tensor in tensors), "examples": examples and int(examples)}
    except RequestError:
        raise
    except Exception as error:  # whatever the user's functions raise is the finding
        if isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in NO_MEMORY):
            return {"example_bytes": None, "examples": None}
        at = execute.line_in(workload.file, error)
        what = f"{workload.file}:{at} fails with these settings: {type(error).__name__}: {error}"
        option, remedy = "--workload", "fix the file"
        if workload.data is not None:
            option, remedy = "--data", f"give a folder with {opened.module.WORKLOAD.reads}"
            what = f"{workload.data} cannot be used: {what}"
        raise RequestError(option, " ".join(what.split()), remedy) from error
