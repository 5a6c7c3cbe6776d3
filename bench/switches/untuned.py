"""cuDNN's autotuning off: algorithms are chosen by rules and not by trial, as ``dp`` does on several GPUs."""

from bench.seams import Recipe, Switch

SWITCH = Switch(summary="cuDNN chooses its algorithms without trying them", label="no autotuning", searched_on=())


def begin(parts):
    import torch

    torch.backends.cudnn.benchmark = False


def effect(session, ran):
    if ran["cudnn_benchmark"] is None:
        return "cuDNN takes no part on the CPU"
    return "cuDNN tries its algorithms" if ran["cudnn_benchmark"] else None


def recipe(switches):
    return Recipe()  # whether cuDNN tries its algorithms is read off the launch
