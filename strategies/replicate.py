"""The composable ``replicate`` of torch: DDP as hooks on the model itself, without a wrapper around it."""

from bench.seams import Recipe, Strategy

STRATEGY = Strategy(label="replicate", hue="teal", dash="solid")


def build(parts):
    from torch.distributed._composable.replicate import replicate

    return parts.session(wrap=replicate, quiet="the composable API has no step without synchronisation")


def recipe():
    imports = ("from torch.distributed._composable.replicate import replicate",)
    return Recipe(imports=imports, wrap="replicate(net)", note="The composable replicate is not a public API of torch.")
