"""The sections of a report as Markdown: what the page says, for issues and pull requests."""

import re
from collections.abc import Iterable, Iterator, Sequence

from bench.core.text import printable
from bench.report.page import NO_DIAGNOSIS, Section
from bench.report.tables import Table


def render(sections: Sequence[Section]) -> str:
    """All sections below each other."""
    parts = ["# Data-parallel and mixed-precision benchmark"]
    for section in sections:
        parts += _parts(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def _parts(section: Section) -> Iterator[str]:
    tables = section.tables
    yield f"## {inert(section.run.id)}"
    if section.run.document.request.label:
        yield f"Label: {inert(section.run.document.request.label)}"
    yield from map(inert, section.loader[:1])
    yield inert(section.answer)
    yield "\n".join(f"- **{inert(about)}**: {inert(text)}" for about, text in section.advice)
    yield bullets(section.caveats)
    yield _titled("", tables["summary"])
    yield _titled("What was found", tables["findings"])
    if section.questions:
        yield "### Questions and answers"
        for question, said in section.questions:
            yield f"#### {inert(question)}\n\n{inert(said)}"
    yield _titled("Does it still train the same model?", tables["parity"])
    yield "### Where the time goes"
    if tables["communication"] is None:
        yield inert(NO_DIAGNOSIS)
    else:
        yield _titled("", tables["communication"])
        yield bullets(section.communication)
        yield from (_titled("", tables[name]) for name in ("data_parallel", "spent"))
        yield bullets([f"Trace for Perfetto or Chrome: {name}" for name in section.traces])
    yield _titled("What the memory of a rank holds", tables["memory_parts"])
    yield _titled("The loader alone, training alone, and both together", tables["loader"])
    yield _titled(section.about_memory, tables["memory"])
    yield _titled("Energy and heat", tables["energy"]) or f"### Energy and heat\n\n{inert(section.no_energy)}"
    yield _titled("The published form", tables["published"])
    yield _titled("How the steps scatter", tables["statistics"])


def _titled(title: str, content: Table | None) -> str:
    """A table below its title if it has one; empty if there is no table."""
    if content is None:
        return ""
    return f"### {title}\n\n{table(content)}" if title else table(content)


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
        cells = (inert(f"{cell.text} ({cell.small})" if cell.small else cell.text) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {inert(note)}" for note in content.notes)]).rstrip()


def inert(text: str) -> str:
    """Text on one line that Markdown shows as it is: no table border, tag, entity, link, emphasis or code."""
    flat = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", " ".join(printable(text).split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)  # within a word it is no emphasis
