"""The colours of pages and plots, by name: one on a light page and one on a dark page.

What is written has a contrast of 4.5 or more with the page, what is only drawn 3 (``grid`` and ``shade`` are grounds).
A strategy has a hue, and the precision level its lightness and a mark.
"""

from bisect import bisect
from colorsys import hls_to_rgb

THEME: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14181d"),
    "ink": ("#1b2129", "#e8ebef"),
    "muted": ("#5c6672", "#9da7b3"),
    "grid": ("#e2e6ea", "#2b323a"),
    "shade": ("#eef1f4", "#20262d"),
    "data": ("#916e0d", "#e3b93f"),
    "forward": ("#626eb7", "#7c86c4"),
    "backward": ("#5a4a9c", "#a99be8"),
    "optimizer": ("#b35573", "#d9819d"),
    "casts": ("#c8443a", "#ee7f74"),
    "loss-scaling": ("#b35b20", "#f2ac7c"),
    "convolutions": ("#4c78b0", "#6d9bd6"),
    "matrix-products": ("#8a4fa3", "#c08bd6"),
    "attention": ("#a8326f", "#e07fb0"),
    "layer-norm": ("#3b7d5a", "#7fc79f"),
    "batch-norm": ("#39719f", "#a6cdee"),
    "gradients-of-replicas": ("#54457f", "#8f7fc4"),
    "bucket-copies": ("#6d5c30", "#c0a96f"),
    "communication": ("#1d6f6a", "#58b8b0"),
    "other": ("#6a757f", "#94a0ac"),
    "good": ("#197c49", "#5cc98f"),
    "doubt": ("#906000", "#dfb04a"),
    "bad": ("#b42318", "#ff8f85"),
    "line-0": ("#1f5fbf", "#6aa5f5"),
    "line-1": ("#bb560d", "#f39a52"),
    "line-2": ("#2b834a", "#62c583"),
    "line-3": ("#a8329a", "#dd7fd1"),
    "line-4": ("#7a6a10", "#cdb945"),
    "line-5": ("#0d7f91", "#55c8da"),
    "line-6": ("#b3263c", "#f07f8f"),
    "line-7": ("#4f5d6e", "#aebacb"),
}
"""By name the colour on a light page and on a dark one."""
DASHES = {
    "solid": "-",
    "dotted": (0, (1, 1)),
    "dashed": (0, (3.2, 1)),
    "dash-dot": (0, (4, 1, 1, 1)),
    "short": (0, (1.5, 1)),
}
"""A strategy's kind of line, so that its hue is not the only sign of it."""
HUES = {"grey": (210, 0.08), "red": (2, 0.68), "orange": (25, 0.85), "olive": (58, 0.7), "green": (130, 0.5)}
HUES |= {"teal": (168, 0.7), "cyan": (192, 0.8), "blue": (217, 0.72), "violet": (262, 0.55), "magenta": (316, 0.5)}
"""Of a strategy: degrees on the colour wheel, and saturation."""
LEVELS = {"o0": (9.5, 3.3), "o1": (6.2, 5.2), "o2": (4.2, 8.2), "o3": (3.0, 13.0)}
"""Of a precision level: the contrast of its colour with the page, the light one and the dark one. Marks need 3 (WCAG
2.2, 1.4.11); no text has these colours."""

MARKERS = {"o0": "o", "o1": "s", "o2": "^", "o3": "D"}
"""A level's mark, so that its lightness is not the only sign of it."""


def contrast(one: str, other: str) -> float:
    """Of two colours, from 1 to 21; from 4.5 on text can be read (WCAG 2.2, 1.4.3)."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _shade(hue: str, wanted: float, paper: str) -> str:
    """The colour of this hue with the wanted contrast to the page."""
    degrees, saturation = HUES[hue]
    steps = range(256) if _luminance(paper) > 0.5 else range(255, -1, -1)

    def at(lightness: int) -> str:
        rgb = hls_to_rgb(degrees / 360, lightness / 255, saturation)
        return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)

    return at(steps[bisect(steps, -wanted, key=lambda lightness: -contrast(at(lightness), paper)) - 1])


THEME |= {
    f"{hue}-{level}": (_shade(hue, wanted[0], THEME["paper"][0]), _shade(hue, wanted[1], THEME["paper"][1]))
    for hue in HUES
    for level, wanted in LEVELS.items()
}
