"""Gradients are views into DDP's buckets, which saves a copy of all of them, and their memory."""

from bench.seams import DDP, Recipe, Switch

SWITCH = Switch(summary="gradients are views into DDP's buckets", label="bucket_view", wrapper=DDP)


def wrapper(parts):
    return {"gradient_as_bucket_view": True}


def effect(session, ran):
    on = getattr(session.module, "gradient_as_bucket_view", False)
    return None if on else "the wrapper has gradient_as_bucket_view=False"


def recipe(switches):
    return Recipe(keywords={"gradient_as_bucket_view": "True"})
