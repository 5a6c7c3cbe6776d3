"""The sections of a report as Markdown: what the page says, for issues and pull requests."""

import re
from collections.abc import Iterable, Iterator, Sequence

from bench.core.text import printable
from bench.report.blocks import Block, Code, Facts, Files, Fold, Grid
from bench.report.page import Section
from bench.report.tables import Table


def render(sections: Sequence[Section]) -> str:
    """All sections below each other."""
    parts = ["# Data-parallel and mixed-precision benchmark"]
    for section in sections:
        parts += _parts(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def _parts(section: Section) -> Iterator[str]:
    yield f"## {inert(section.run.id)}"
    if section.run.document.request.label:
        yield f"Label: {inert(section.run.document.request.label)}"
    yield inert(section.answer)
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
        elif isinstance(block, Grid):
            yield table(block.table)
        elif isinstance(block, Facts):
            yield _facts(block.pairs)
        elif isinstance(block, Files):
            yield f"{inert(block.about)}\n\n{bullets(block.names)}"
        elif isinstance(block, Code):
            yield f"````python\n{printable(block.text)}````"
        elif isinstance(block, Fold) and (within := list(_blocks(block.blocks))):
            yield f"#### {inert(block.title)}"
            yield from within


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- **{inert(about)}**: {inert(text)}" for about, text in pairs)


def bullets(texts: Iterable[str]) -> str:
    """A list, empty if there is nothing to list."""
    return "\n".join(f"- {inert(text)}" for text in texts)


def table(content: Table) -> str:
    """A table with its notes below it."""
    headings = [f"{column.group} {column.heading}".strip() for column in content.columns]
    lines = [
        f"| {' | '.join(inert(text) for text in headings)} |",
        f"| {' | '.join('---:' if column.number else '---' for column in content.columns)} |",
    ]
    for row in content.rows:
        more = [(cell.text, cell.small or cell.beside) for cell in row]
        lines.append(f"| {' | '.join(inert(f'{text} ({small})' if small else text) for text, small in more)} |")
    return "\n".join([*lines, "", *(f"- {inert(note)}" for note in content.notes)]).rstrip()


def inert(text: str) -> str:
    """Text on one line that Markdown shows as it is: no table border, tag, entity, link, emphasis or code."""
    flat = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", " ".join(printable(text).split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)  # within a word it is no emphasis
