"""A scenario whose steps mostly sleep, so that other work on the machine changes little: a convolution, or an MLP."""

SOURCE = """
from bench.seams import Scenario, Strategy, one_rank_for_all

SCENARIO = Scenario(summary="sleeps", strategy=Strategy(label="planted", ranks=one_rank_for_all, group=False))


def build(parts):
    import time

    from torch import nn

    def small(model):
        images = hasattr(model, "conv1")
        return nn.Sequential(model.conv1, nn.AdaptiveAvgPool2d(1), nn.Flatten()) if images else model

    session = parts.session(wrap=small)
    forward = session.forward

    def sleepy(batch):
        time.sleep({seconds})
        return forward((batch[0][:2], batch[1][:2] % 8))

    session.forward = sleepy
    return session
"""


def sleeping(seconds: float) -> str:
    """Its file, with steps of about this length."""
    return SOURCE.format(seconds=seconds)
