"""Several interpreters, named after what tells them apart: torch, else CUDA, cuDNN, NCCL, else their paths."""

import os
import re
from collections.abc import Callable, Sequence

from bench.core.channel import Message
from bench.core.errors import RequestError
from bench.machine.doctor import torch_facts

SHORTER: tuple[Callable[[str], str], ...] = (
    lambda version: ".".join(version.split(".")[:2]),
    lambda version: version.partition("+")[0],
    str,
)
"""Of a version the forms that are tried, the shortest first: 2.10, 2.10.1, 2.10.1+cpu."""


def named(pythons: Sequence[str]) -> dict[str, str]:
    """The path of each interpreter by its name. Raises :class:`RequestError` for one that has no usable torch."""
    if len({*pythons}) < len(pythons):
        raise RequestError("--python", "an interpreter is named twice", "name each once, and --launches R to repeat")
    children = [torch_facts.ask(apex_path=None, python=python) for python in pythons]
    answers = [torch_facts.answer(child) for child in children]
    for python, facts in zip(pythons, answers, strict=True):
        problem = facts["problem"] or facts["torch_problem"]
        if problem is not None:
            raise RequestError("--python", f"{python}: torch: {problem}", "name another one")
    return dict(zip(names(pythons, answers), pythons, strict=True))


def names(pythons: Sequence[str], facts: Sequence[Message]) -> list[str]:
    """``facts``: of each interpreter what :mod:`bench.worker.facts` says."""
    names = [""] * len(pythons)
    for library in ("torch", "cuda", "cudnn", "nccl"):
        versions = [str(one.get(library) or "none") for one in facts]
        if len({*versions}) > 1:
            forms = ([shorter(version) for version in versions] for shorter in SHORTER)
            shown = next(form for form in forms if len({*form}) == len({*versions}))
            what = "" if library == "torch" else library
            names = [f"{before}-{what}{one}".strip("-") for before, one in zip(names, shown, strict=True)]
        if len({*names}) == len(pythons):
            break
    else:
        parts = [[part for part in os.path.abspath(python).split(os.sep)[::-1] if part] for python in pythons]
        columns = list(zip(*parts, strict=False))
        telling = next((column for column in columns if len({*column}) == len(pythons)), None)
        names = [f"{before}-{part}".strip("-") for before, part in zip(names, telling or "123456789", strict=False)]
    return [re.sub(r"[^\w.-]", "-", name) for name in names]
