"""The parts of a report: chapters of blocks. ``page.html.j2`` and :mod:`bench.report.markdown` render every block.

Text is as it is in the run; whoever renders a block escapes it.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from bench.report.tables import Table

if TYPE_CHECKING:
    from jinja2 import Template

    from bench.report.drawing import Plot

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Grid:
    """A table, or None and no block, under its name. ``fold_notes``: how to read it is shown on demand."""

    kind: ClassVar[str] = "grid"
    name: str
    table: Table | None
    fold_notes: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a name and a text."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """A file to copy, as it is."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are shown on demand, and always in print."""

    kind: ClassVar[str] = "fold"
    title: str
    blocks: "tuple[Block, ...]"


Block: TypeAlias = "str | Plot | Grid | Facts | Code | Fold"


def there(*blocks: "Block | None") -> tuple[Block, ...]:
    """Those blocks that have something in them."""
    return tuple(one for one in blocks if one is not None and not (isinstance(one, Grid) and one.table is None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A part of the page with its heading. ``slug``: of its link. ``in_markdown``: ``summary.md`` has it, too."""

    slug: str
    title: str
    blocks: tuple[Block, ...]
    in_markdown: bool = True


def chapter_of(slug: str, title: str, *blocks: "Block | None", in_markdown: bool = True) -> Chapter:
    return Chapter(slug=slug, title=title, blocks=there(*blocks), in_markdown=in_markdown)


def filled(*chapters: Chapter | None) -> list[Chapter]:
    """Those chapters that have a block."""
    return [one for one in chapters if one is not None and one.blocks]


def fold(title: str, *blocks: "Block | None") -> Fold | None:
    """A fold of what is there; None for nothing."""
    return Fold(title, there(*blocks)) if there(*blocks) else None


@cache
def template(name: str, **how: Any) -> "Template":
    """A template of this folder, in which a name without a value is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **how
    )
    return environment.get_template(name)
