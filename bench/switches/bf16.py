"""Half means bf16, also on a GPU, where it is fp16 by default. It has the exponent of fp32: no loss scale."""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="half means bf16 on a GPU too: no loss scale",
    label="bf16",
    half="bf16",
    precisions=("O1", "O2", "O3"),
    tried_on="ddp_o1",
    searched_on=("cuda",),  # on the CPU half is bf16 anyway
)


def effect(session, ran):
    if session.parts.device.type == "cpu":
        return "half is bf16 on the CPU anyway"
    computed = ran["compute_dtypes"]
    return None if "bfloat16" in computed else f"it computes in {' and '.join(computed)}"


def recipe(switches):
    return Recipe()  # what computes in which type is read off the launch
