"""The threads of each rank: those that torchrun leaves it (OMP_NUM_THREADS=1), or any other number.

Without it every rank has its equal share of the cores.
"""

from bench.seams import Recipe, Switch

SWITCH = Switch(summary="the threads of each rank", label="threads: {value}", value=1, device="cpu", searched_on=())


def begin(parts):
    import torch

    torch.set_num_threads(parts.switches["threads"])


def effect(session, ran):
    return None if ran["threads"] == session.parts.switches["threads"] else f"the rank has {ran['threads']} threads"


def recipe(switches):
    return Recipe()  # how many there are is read off the launch
