"""The page: one HTML file with everything in it, which needs no network and opens from a disk.

Tables are sorted by the embedded ``vendor/sortable.min.js``, the only script; its hash stands in the page's policy, so
that nothing else runs or is loaded. Hovering over a plot shows the titles in its SVG. All of the page can be read
without JavaScript, and prints unfolded.
"""

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.core.errors import RequestError
from bench.core.text import printable
from bench.report.blocks import HERE, Chapter, template
from bench.report.drawing import Plot
from bench.report.theme import THEME
from bench.runs.files import replace_all, unwritable


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A run or a track of nights on a page. ``about``: what was trained, where and when. ``folder``: the run's, from
    the page, with ``/`` between its parts. ``training``: how long a whole training takes."""

    name: str
    label: str | None = None
    about: str = ""
    folder: str = ""
    answer: str
    training: str = ""
    clear: bool = False
    advice: Sequence[tuple[str, str]] = ()
    caveats: Sequence[str] = ()
    chart: Plot | None = None
    chapters: Sequence[Chapter]


def placed(plots: Iterable[Plot], *, files: str = "") -> tuple[dict[str, Plot], dict[str, bytes]]:
    """Plots for a page by name, and their files, the names of which begin with ``files``."""
    in_page: dict[str, Plot] = {}
    contents: dict[str, bytes] = {}
    for plot in plots:
        names = (f"{files}{plot.name}.svg", f"{files}{plot.name}.png")
        contents.update(zip(names, (plot.svg.encode(), plot.png), strict=True))
        in_page[plot.name] = replace(plot, files=names)
    return in_page, contents


def render(sections: Sequence[Section], *, title: str, heading: str, files: Sequence[str] = ()) -> str:
    """The page of these sections as HTML; every value is escaped. ``files``: names of the tables beside it."""
    script = (HERE / "vendor" / "sortable.min.js").read_text(encoding="utf-8")  # which sorts tables, with its licence
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    about = {"title": title, "heading": heading, "files": files, "theme": THEME}
    return printable(form().render(sections=sections, script=script, script_sha256=sha256, **about))


def _together(value: object) -> object:
    """Text in which no line ends between a number and its per cent; what is marked up already stays as it is."""
    return re.sub(r"(?<=\d) %", "\u00a0%", value) if type(value) is str else value


form = partial(template, "page.html.j2", autoescape=True, finalize=_together)


def put(files: dict[str, bytes], out: str) -> list[str]:
    targets = {os.path.join(out, name): content for name, content in files.items()}
    for target in targets:
        if os.path.isdir(target):
            raise RequestError("--out", f"{target} is a folder", "move it away, or give another folder")
    try:
        os.makedirs(out, exist_ok=True)
        replace_all(targets)
    except OSError as error:
        raise unwritable("--out", error.filename or out, error, "give another folder") from error
    return list(targets)
