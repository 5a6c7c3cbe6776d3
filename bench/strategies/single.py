"""One process, one device: the model as it is."""

from bench.seams import Implementation, Recipe, Strategy, one_rank

STRATEGY = Strategy(
    label="no wrapper",
    ranks=one_rank,
    group=False,
    implementations=(Implementation(name="torch", label="no wrapper", wrapper=None),),
    hue="grey",
    dash="dotted",
)


def build(parts):
    return parts.session()


def recipe():
    return Recipe()
