"""Text from outside, such as a label or the name of a CPU, and numbers, on their way to people."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

Key = TypeVar("Key")
One = TypeVar("One")

LEAST = 0.0001  # a smaller loss or percentage is shown as `<0.0001`

_UNSEEN = re.compile(
    "[\0-\t\v-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
"""Characters that steer a terminal or the direction of writing, show nothing, or may not stand in XML."""


def printable(text: str) -> str:
    """``text`` with what is not to be seen as escapes such as ``\\x1b``, and white space other than line ends as
    blanks."""
    return _UNSEEN.sub(lambda match: " " if match[0].isspace() else ascii(match[0])[1:-1], text)


def plain(text: str) -> str:
    """Text from outside on one line."""
    return " ".join(printable(text).split())


def is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable()


def is_scenario(text: str) -> bool:
    """Whether a scenario can have this name: a comma separates scenarios."""
    return is_name(text) and "," not in text


def percent(part: float) -> str:
    """A part of 1 as people read it."""
    return f"{digits(100 * part)} %"


def digits(value: float, most: int = 2) -> str:
    """With this many significant digits, and without an exponent."""
    if not math.isfinite(value):
        return str(value)
    if value < 0:
        return f"-{digits(-value, most)}"
    rounded = float(f"{value:.{most - 1}e}")
    if 0 < rounded < LEAST:
        return f"<{LEAST}"
    decimals = max(0, most - 1 - math.floor(math.log10(rounded))) if rounded else 0
    shown = f"{rounded:,.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if decimals else shown


def signed(value: float, decimals: int = 1) -> str:
    """A change; one that rounds to nothing has no sign."""
    text = f"{value:+,.{decimals}f}"
    return text if text.strip("+-0.") else text[1:]


def ratio_text(ratio: float, decimals: int) -> str:
    """A ratio; of an end of an interval that is far beyond all sense, as with two noisy launches, no digits."""
    return f"{ratio:,.{decimals}f}" if ratio < 1e6 else "over 1,000,000"


def ends_text(low: float, high: float) -> str:
    """The ends of the interval of a ratio."""
    return f"{low:.2f} to {ratio_text(high, 2)}"


def size_text(size: float) -> str:
    """A number of bytes in the largest unit that it fills: ``64 MiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{digits(size / (1 << power), 4)} {unit}"
    return f"{size:,.0f} B"


def listed(names: Sequence[str], most: int | None = None) -> str:
    """``a, b and c``, or of more than ``most`` ``a, b and 3 more``; empty for none."""
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def by_key(pairs: Iterable[tuple[Key, One]]) -> dict[Key, list[One]]:
    """All that has the same key, such as the names for which one reason holds; keys in the order of their first one."""
    found: dict[Key, list[One]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return found
