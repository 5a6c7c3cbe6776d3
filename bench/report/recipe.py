"""A training script of a scenario that a run measured, without bench: what to copy and go on with.

    python -m bench recipe latest --scenario ddp_o2 --out train.py

``train.py.j2`` has what all scripts have in common: arguments, seeds, data in the order that bench deals it out, the
precision levels, a checkpoint on rank 0, the loop. What a strategy does is in the strategy's own file, a
:class:`bench.seams.Recipe`; a workload of bench's own may define ``recipe(work)``, a :class:`bench.seams.WorkRecipe`,
and any other is imported from its file. What was in force is read off the launch (``effective``), not off the request.

A run may be somebody else's: nothing of it is executed, and what it says is put into the script as literals and as
comments of one line.
"""

import ast
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import signature
from keyword import iskeyword
from types import SimpleNamespace

from bench.analyse.analysed import Analysed
from bench.analyse.labels import what_ran
from bench.analyse.parity import DIVERGED, NOT_FINITE
from bench.console import count
from bench.core.dtypes import HALF_ON, HALVES
from bench.core.errors import RequestError
from bench.core.files import sha256
from bench.core.records import Setting
from bench.core.text import digits, printable
from bench.report.blocks import template
from bench.report.drawing import device
from bench.runs.document import Imported, RunDocument
from bench.runs.launches import Effective, LaunchRecord
from bench.seams import Recipe, WorkRecipe, discover, execute, switching
from bench.seams.code import code_sha256
from bench.seams.discover import SCENARIO, STRATEGY, SWITCH, WORKLOAD

LINE = 120
ANOTHER = "choose another with --scenario NAME"


def script(run: Analysed, scenario: str | None = None, *, file: str = "train.py") -> str:
    """The script for a scenario, by default the recommended one; ``file``: what its docstring calls it.

    Raises :class:`RequestError` where the run has no such scenario, or none that can be written down.
    """
    launch, ran = _chosen(run, scenario)
    values = _values(run.document, launch, ran, _recipe(run.document, launch, ran))
    command = f"{_launcher(launch, ran)} {shlex.quote(_plain(os.path.basename(file)))} --checkpoint checkpoint.pt"
    # It is Python, and each text of the run is a literal or plain.
    page = template("train.py.j2", autoescape=False, keep_trailing_newline=True)
    return page.render(**values, measured=_measured(run, launch, ran), command=command)


def _chosen(run: Analysed, scenario: str | None) -> tuple[LaunchRecord, Effective]:
    document = run.document
    if not document.planned:
        how = "imported" if document.of(Imported) else "attached"
        raise RequestError("RUN", f"{run.id} was {how}, so bench does not know how it trained", "give a run of bench")
    if document.instead:
        raise RequestError("RUN", f"{run.id} {run.document.instead} and measured nothing", "choose another")
    if document.workload.global_batch is None:
        raise RequestError("RUN", f"{run.id} does not say how large its batch was", "choose another")
    name = scenario or (document.recommendation.fastest if document.recommendation else None)
    if name is None:
        raise RequestError("RUN", f"{run.id} has no valid result to recommend", "name one with --scenario")
    launch = next((one for one in document.good if one.scenario == name and one.effective), None)
    if launch is None or launch.effective is None:
        names = ", ".join(dict.fromkeys(one.scenario for one in document.good)) or "none"
        raise RequestError("--scenario", f"{run.id} has no launch of {name} that ended well", f"it has {names}")
    (verdict,) = run.parity.loc[run.parity["launch"] == launch.launch, "verdict"]
    if verdict in (DIVERGED, NOT_FINITE):
        raise RequestError("--scenario", f"{name} is {verdict}: it does not train the same model", ANOTHER)
    return launch, launch.effective


def _recipe(document: RunDocument, launch: LaunchRecord, ran: Effective) -> Recipe:
    """The recipe of the strategy and the switches."""
    strategies, name = discover.names(STRATEGY), launch.scenario
    if launch.strategy not in strategies:
        raise RequestError("--scenario", f"{name} has a strategy of its own, which is not one of bench", ANOTHER)
    module = discover.load_strategy(launch.strategy, strategies[launch.strategy])[1]
    if not hasattr(module, "recipe"):
        what = f"the strategy {launch.strategy} has no recipe"
        raise RequestError("--scenario", what, f"{ANOTHER}, or define recipe in {strategies[launch.strategy]}")
    options = _options(document, name)
    unknown = options.keys() - signature(module.recipe).parameters.keys()
    if unknown:
        what = f"the strategy {launch.strategy} has no recipe with the option {min(unknown)}"
        raise RequestError("--scenario", what, ANOTHER)
    recipe: Recipe = module.recipe(**options)
    for switch in _switches(name, ran):
        recipe = recipe.with_switch(switch)
    return recipe


def _options(document: RunDocument, name: str) -> dict[str, Setting]:
    """The options that the scenario's file sets. It is read as text: nothing of it is executed."""
    base = name.replace("@", "+").partition("+")[0]
    source = document.sources.get(name) or document.sources.get(base)
    file = discover.names(SCENARIO).get(base) or (source.file if source else base)
    if not os.path.isfile(file):
        raise RequestError("--scenario", f"the file of {name}, {file}, is missing", f"bring it back, or {ANOTHER}")
    if source and source.sha256 != sha256(file):
        raise RequestError("--scenario", f"{file} is not what it was when {name} was measured", ANOTHER)
    calls = [node for node in ast.walk(_parsed(file)) if isinstance(node, ast.Call)]
    declaration = next((call for call in calls if getattr(call.func, "id", None) == "Scenario"), None)
    if declaration is None:
        raise RequestError("--scenario", f"{file} has no Scenario(...), so nothing says what its options are", ANOTHER)
    options = next((keyword.value for keyword in declaration.keywords if keyword.arg == "options"), None)
    try:
        return dict(ast.literal_eval(options)) if options else {}
    except (TypeError, ValueError) as error:
        what = f"{file} computes its options, and a recipe reads only what is written there"
        raise RequestError("--scenario", what, "write them as a dict of values") from error


def _switches(name: str, ran: Effective) -> Iterator[Recipe]:
    """The recipes of the switches that took effect, in the order in which a session applies them."""
    switches = discover.names(SWITCH)
    values: dict[str, Setting] = {}
    for switch, _, text in (spec.partition("=") for spec, instead in ran.switches.items() if not instead):
        what = f"{name} has the switch {switch} on"
        if switch not in switches:
            raise RequestError("--scenario", f"{what}, which is not one of bench", ANOTHER)
        declared = switching.load_switch(switch, switches[switch])
        if not hasattr(switching.switch_module(switch, switches[switch]), "recipe"):
            raise RequestError("--scenario", f"{what}, which a script cannot have", ANOTHER)
        try:
            values[switch] = declared.value_of(text) if text else True if declared.value is None else declared.value
        except ValueError as error:
            raise RequestError("--scenario", f"{what}, but {error}", ANOTHER) from error
    for switch in values:
        yield switching.switch_module(switch, switches[switch]).recipe(values)


def _values(document: RunDocument, launch: LaunchRecord, ran: Effective, recipe: Recipe) -> dict[str, object]:
    work = document.workload
    group, level = ran.backend is not None, ran.precision or "O0"
    own = _own(document)
    in_memory, real, collates = work.workers is None, work.data is not None, "collate" in _defined(_file(document))
    half = f"torch.{next((one for one in ran.compute_dtypes if one in HALVES.values()), HALVES[HALF_ON['cpu']])}"
    half_weights = level in ("O2", "O3")
    around = {"before_step", "after_step", "schedule"} & _defined(_file(document)) if own is None else set()
    scaled = ran.scaler is not None and ran.scaler["dynamic"]
    wrapped = {name: one for name, one in recipe.keywords.items() if name != "device_ids" or work.device == "cuda"}
    momentum = ran.optimizer.endswith(".SGD") and bool((ran.optimizer_settings or {}).get("momentum"))
    from_data = ["DataLoader"] * (not in_memory) + ["DistributedSampler"] + ["default_collate"] * (not collates)
    lines = [
        "import argparse",
        "import os",
        "import time",
        "from typing import Any",
        "import torch",
        "from torch.utils._pytree import tree_map_only",
        f"from itertools import {'count' if real and not in_memory else 'cycle, islice'}",
        f"from torch.utils.data import {', '.join(from_data)}",
        *(["import torch.distributed as dist"] if group else []),
        *(["from contextlib import nullcontext"] if recipe.quiet else []),
        *(own.imports if own else ("import runpy", "from types import SimpleNamespace")),
        *recipe.imports,
    ]
    model = own.model if own else ("workload.model", "WORK")
    return {
        "title": _wrapped(f"{work.title or work.name or 'training'}: {launch.scenario}."),
        "imports": _sorted(lines),
        "functions": own.example if own else "",
        "own_file": [] if own else _own_file(document),
        "example": "example(index)" if own else "workload.example(WORK, index)",
        "model": _called("net: Any =", *model, then="" if recipe.places else ".to(device)"),
        "loss": _loss(own, recipe.micro_batches, half if half_weights else None),
        "optimizer": _optimizer(own, recipe, level, ran.optimizer, scaled=scaled),
        "examples": work.examples or (work.global_batch or 1) * (work.pool_batches or 1),
        "work": work,
        "ran": ran,
        "replicas": launch.replicas,
        "parts": max(1, (launch.replicas or 1) // launch.processes),  # replicas that a process trains
        "in_memory": in_memory,
        "real": real,
        "collate": "workload.collate" if collates else "default_collate",
        "group": group,
        "precision": level,
        "half": half,
        "half_weights": half_weights,
        "around": around,
        "masters_view": level == "O2" and around & {"before_step", "after_step"},
        "scaled": scaled,
        "module": _called("module =", recipe.wrapper, "net", *_keywords(wrapped)) if recipe.wrapper else "module = net",
        "zero_momentum": momentum and ran.optimizer_fused,
        "recipe": recipe,
    }


def _launcher(launch: LaunchRecord, ran: Effective) -> str:
    hosts = len({rank.host for rank in launch.ranks}) or 1
    if ran.backend is None:
        return "python"
    where = "--standalone" if hosts == 1 else f"--nnodes {hosts} --rdzv-backend c10d --rdzv-endpoint FIRST-HOST:29400"
    return f"torchrun {where} --nproc-per-node {launch.processes // hosts}"


def _measured(run: Analysed, launch: LaunchRecord, ran: Effective) -> list[str]:
    """The speed that bench measured, as the lines of a comment."""
    (row,) = (row for row in run.overview.to_dict("records") if row["scenario"] == launch.scenario)
    document, launches = run.document, count(row["launches_ok"], "launch", "launches")
    return _wrapped(
        f"bench measured it in {run.id}: {digits(row['step_median_ms'], 4)} ms a step, "
        f"{digits(row['throughput_per_s'], 4)} {row['unit']} a second ({launches}, {device(document)}, "
        f"torch {document.versions.get('torch') or 'unknown'}; "
        f"{what_ran(ran)}). Numerics: {row['parity'] or 'not compared'}."
    )


def _wrapped(text: str) -> list[str]:
    """Lines of a docstring."""
    return textwrap.wrap(_plain(text), LINE - 4)


def _loss(own: WorkRecipe | None, pieces: int, half: str | None) -> str:
    """The loss of a batch, or of one of its ``pieces``. ``half``: the type of the model's inputs, if they are cast."""
    batch, share = ("batch", "") if pieces == 1 else ("part", f" / {pieces}")
    if own is None:
        cast = f"lambda *x: cast(torch.float32, module(*cast({half}, x)))"
        return f"workload.loss({cast if half else 'module'}, {batch}){share}"
    inputs = own.inputs.format(batch=batch)
    output = f"cast(torch.float32, module(cast({half}, {inputs})))" if half else f"module({inputs})"
    return own.loss.format(batch=batch, output=output) + share


def _optimizer(own: WorkRecipe | None, recipe: Recipe, level: str, ran: str, *, scaled: bool) -> str:
    """The lines that make ``updates``. ``ran``: the class that the launch had."""
    replaced = {**recipe.settings, **({"fused": "None"} if ran.rpartition(".")[2] in recipe.unfused else {})}
    parameters = "parameters" if level == "O2" else "net.parameters()"
    if own is not None:
        settings = {**own.settings, **replaced}
        return _called("updates: Any =", own.optimizer, parameters, *_keywords(settings))
    lines = [f"updates = workload.optimizer(WORK, {parameters})"]
    if replaced:
        lines.append("for group in (updates.defaults, *updates.param_groups):")
        lines.append(f"    group.update({', '.join(_keywords(replaced))})")
    if scaled and "fused" in replaced:
        lines.append(f"updates._step_supports_amp_scaling = {replaced['fused'] == 'True'}")
    return "\n".join(lines)


def _keywords(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


def _work(document: RunDocument) -> SimpleNamespace:
    """The argument of the workload's functions."""
    work = document.workload
    fixed = {"seed": work.seed, "global_batch": work.global_batch, "device": work.device, "data": work.data}
    for name in work.settings:
        if not name.isidentifier() or iskeyword(name) or name in fixed:
            what = f"its workload has the setting {name!r}, which no script can have"
            raise RequestError("RUN", what, "choose another")
    values = {**work.settings, **fixed}
    return SimpleNamespace(**{name: _Text(one) if isinstance(one, str) else one for name, one in values.items()})


def _own_file(document: RunDocument) -> list[str]:
    """The settings, and the workload from its file."""
    settings = (f"{name}={value!r}" for name, value in vars(_work(document)).items())
    path = f"**runpy.run_path({_Text(_file(document))!r})"
    workload = _called("workload: Any =", "SimpleNamespace", path, indent=0)
    return [_called("WORK =", "SimpleNamespace", *settings, indent=0), workload]


class _Text(str):
    """A text that is written with double quotes, where that is as good."""

    def __repr__(self) -> str:
        text = super().__repr__()
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text


def _own(document: RunDocument) -> WorkRecipe | None:
    """The recipe of a workload of bench's own; None of another one."""
    work = document.workload
    if work.sha256 is not None or work.workers is not None or "recipe" not in _defined(_file(document)):
        return None
    module = execute.load_file(work.name or "", _file(document), WORKLOAD)
    try:
        written: WorkRecipe = module.recipe(_work(document))
    except (AttributeError, TypeError, ValueError) as error:
        what = f"its workload has other settings than {work.name} takes today ({error})"
        raise RequestError("RUN", what, "measure it again") from error
    return written


def _file(document: RunDocument) -> str:
    """The file of the workload. Raises :class:`RequestError` where it is gone or has changed."""
    work = document.workload
    file = discover.names(WORKLOAD).get(work.name or "") if work.sha256 is None else work.file
    if not file or not os.path.isfile(file):
        raise RequestError("RUN", f"the file of its workload, {file or work.name}, is missing", "bring it back")
    if work.sha256 not in (None, sha256(file)) or work.code_sha256 not in (None, code_sha256(file)):
        raise RequestError("RUN", f"{file} is not what it was when the run was started", "start a new run")
    if "weight" in _defined(file):
        raise RequestError("RUN", f"{file} defines weight(batch), which a recipe cannot write down", "choose another")
    return os.path.abspath(file)


def _defined(file: str) -> set[str]:
    """The functions that a file defines; nothing of it is executed."""
    return {node.name for node in _parsed(file).body if isinstance(node, ast.FunctionDef)}


@cache
def _parsed(file: str) -> ast.Module:
    with open(file, encoding="utf-8") as content:
        try:
            return ast.parse(content.read())
        except (SyntaxError, ValueError) as error:
            raise RequestError("RUN", f"{file} is not Python ({error})", "fix the file") from error


def _plain(text: str) -> str:
    """A text that ends no comment and no docstring."""
    return " ".join(printable(text).replace("\\", "/").replace('"', "'").replace("×", "x").split())


def _called(target: str, function: str, *arguments: str, then: str = "", indent: int = 4) -> str:
    """A call, in lines as ruff breaks it."""
    line, longest = f"{target} {function}({', '.join(arguments)}){then}", LINE - indent
    if len(line) <= longest:
        return line
    inner = f"    {', '.join(arguments)}"
    inner = inner if len(inner) <= longest else "\n".join(f"    {one}," for one in arguments)
    return f"{target} {function}(\n{inner}\n){then}"


def _sorted(lines: Sequence[str]) -> list[str]:
    """Imports in the order of isort: those of Python, a blank line, the others; each line is of another module."""
    ordered = sorted(set(lines), key=lambda line: (line[0] != "i", line.split()[1]))
    own = [line for line in ordered if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
    return [*own, "", *(line for line in ordered if line not in own)]
