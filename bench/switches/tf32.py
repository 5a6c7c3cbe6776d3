"""TF32 on or off, in convolutions and in matrix products: torch has it on in convolutions and off in matrix products.

TF32 computes products of fp32 numbers with 10 bits of their significands. ``tf32=off`` is strict fp32.
"""

from bench.seams import Recipe, Switch

SWITCH = Switch(
    summary="TF32 in convolutions and matrix products: on, or off for strict fp32",
    label="TF32 {value}",
    value="on",
    choices=("on", "off"),
    device="cuda",
)


def begin(parts):
    from bench.worker.precision import use_tf32

    on = parts.switches["tf32"] == "on"
    use_tf32(convolutions=on, products=on)


def effect(session, ran):
    wanted = session.parts.switches["tf32"] == "on"
    other = [name for name, on in ran["tf32"].items() if on is (not wanted)]
    return f"{' and '.join(other)} compute with TF32 {'off' if wanted else 'on'}" if other else None


def recipe(switches):
    on = switches["tf32"] == "on"
    return Recipe(begin=f"torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = {on}")
