"""Files that a test plants: scenarios with a strategy of their own, of which a test says what it builds; and functions
of workloads."""

from textwrap import dedent, indent

ALONE = "ranks=one_rank_for_all, group=False"


def planted(build: str, declared: str = "", *, scenario: str = "") -> str:
    """The file. ``build``: the body of its ``build(parts)``, which begins in line 7; ``declared``: more fields of its
    strategy, such as :data:`ALONE`; ``scenario``: those of the scenario."""
    fields = f'summary="planted", strategy=Strategy(label="planted", {declared}), {scenario}'
    body = indent(dedent(build).strip("\n"), "    ")
    names = "Scenario, Strategy, one_rank_for_all, rank_per_device"
    return f"from bench.seams import {names}\n\nSCENARIO = Scenario({fields})\n\n\ndef build(parts):\n{body}\n"


def failing(fault: str, condition: str = "parts.rank == 1", then: str = 'parts.build("ddp")', how: str = "") -> str:
    """One whose ranks do this where the condition holds, in line 9; ``how``: fields of the strategy."""
    modules = "import os, shutil, signal, socket, subprocess, sys, threading, time, torch"
    return planted(f"{modules}\nif {condition}:\n{indent(fault, '    ')}\nreturn {then}", how)


def hooked(method: str, code: str, *how: str, build: str = 'parts.build("ddp")') -> str:
    """One whose session does this before each call of its ``method``, with what that is ``given``."""
    calls = f"def first(*given):\n{indent(dedent(code).strip(), '    ')}\n    return then(*given)"
    return planted(
        f"session = {build}\nthen = session.{method}\n\n{calls}\n\nsession.{method} = first\nreturn session", *how
    )


def defined(signature: str, *lines: str) -> str:
    """A function of a workload's file that has these lines, and torch."""
    modules = ("import time, torch", "from torch import nn", "from torch.nn.functional import cross_entropy")
    body = "\n".join([*modules, *lines])
    return f"\n\ndef {signature}:\n{indent(body, '    ')}\n"


def sleeping(seconds: float) -> str:
    """One whose steps mostly sleep, so that other work on the machine changes little: a convolution, or an MLP."""
    return planted(SLEEPING.format(seconds=seconds), ALONE)


SLEEPING = """
    import time

    from torch import nn

    def small(model):
        images = hasattr(model, "conv1")
        return nn.Sequential(model.conv1, nn.AdaptiveAvgPool2d(1), nn.Flatten()) if images else model

    session = parts.session(wrap=small)
    forward = session.forward

    def sleepy(batch):
        time.sleep({seconds})
        return forward((batch[0][:2], batch[1][:2] % 8))

    session.forward = sleepy
    return session
"""
