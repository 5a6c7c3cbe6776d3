"""Segments of torch's CUDA allocator that grow: less of the memory is lost to fragments (PYTORCH_CUDA_ALLOC_CONF)."""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="the CUDA allocator's segments grow, against fragments",
    label="expandable segments",
    device="cuda",
    searched_on=(),
)
SETTING = "expandable_segments:True"


def begin(parts):
    import torch

    set_to = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # before torch 2.10 CUDA had its own
    (set_to or torch.cuda.memory._set_allocator_settings)(SETTING)


def effect(session, ran):
    import torch

    grows = any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot())
    return None if grows else "no segment of the allocator is expandable"


def recipe(switches):
    return Recipe(
        begin=f"""\
set_to = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # before torch 2.10 CUDA had its own
(set_to or torch.cuda.memory._set_allocator_settings)("{SETTING}")"""
    )
