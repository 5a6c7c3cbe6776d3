"""Promise DDP that every step uses the same parameters in the same order: it finds unused ones in the first step."""

from bench.seams import DDP, Recipe, Switch

SWITCH = Switch(
    summary="DDP is promised the same graph in every step",
    label="static_graph",
    excludes=("find_unused",),
    wrapper=DDP,
)


def wrapper(parts):
    return {"static_graph": True}


def effect(session, ran):
    return None if getattr(session.module, "static_graph", False) else "the wrapper has static_graph=False"


def recipe(switches):
    return Recipe(keywords={"static_graph": "True"})
