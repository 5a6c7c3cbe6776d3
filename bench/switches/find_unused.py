"""Look for parameters that took no part in the loss, in every step: what a model with unused parameters needs."""

from bench.seams import DDP, Recipe, Switch

SWITCH = Switch(
    summary="DDP looks for parameters without a gradient in every step",
    label="find_unused",
    wrapper=DDP,
    searched_on=(),
)


def wrapper(parts):
    return {"find_unused_parameters": True}


def effect(session, ran):
    on = getattr(session.module, "find_unused_parameters", False)
    return None if on else "the wrapper has find_unused_parameters=False"


def recipe(switches):
    return Recipe(keywords={"find_unused_parameters": "True"})
