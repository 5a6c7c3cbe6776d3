"""The sections of a report as Markdown: what the page says, for issues and pull requests."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bench.report.blocks import Block, Facts, Fold, Grid
from bench.report.tables import inert

if TYPE_CHECKING:
    from bench.report.page import Section


def render(heading: str, sections: "Sequence[Section]") -> str:
    """All sections below each other."""
    parts = [f"# {heading}"]
    for section in sections:
        parts += _parts(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def _parts(section: "Section") -> Iterator[str]:
    yield f"## {inert(section.name)}"
    if section.label:
        yield f"Label: {inert(section.label)}"
    yield inert(section.about)
    yield inert(section.answer)
    yield inert(section.training)
    yield _facts(section.advice)
    yield bullets(section.caveats)
    for chapter in section.chapters:
        if chapter.in_markdown:
            yield f"### {inert(chapter.title)}"
            yield from _blocks(chapter.blocks)


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    """The blocks without the plots; a fold as its blocks under a heading."""
    for block in blocks:
        if isinstance(block, str):
            yield inert(block)
        elif isinstance(block, Grid) and block.table:
            yield block.table.as_markdown()
        elif isinstance(block, Facts):
            yield _facts(block.pairs)
        elif isinstance(block, Fold) and (within := list(_blocks(block.blocks))):
            yield f"#### {inert(block.title)}"
            yield from within


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- **{inert(about)}**: {inert(text)}" for about, text in pairs)


def bullets(texts: Iterable[str]) -> str:
    """A list, empty if there is nothing to list."""
    return "\n".join(f"- {inert(text)}" for text in texts)
