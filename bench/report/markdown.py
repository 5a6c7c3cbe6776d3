"""The sections of a report as Markdown: what the page says, for issues and pull requests."""

import re
from collections.abc import Iterator, Sequence

from bench.report.page import Section
from bench.report.tables import Table


def render(sections: Sequence[Section]) -> str:
    """All sections below each other."""
    parts = ["# Training in data parallel and in mixed precision"]
    for section in sections:
        parts += _parts(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def _parts(section: Section) -> Iterator[str]:
    yield f"## {inert(section.id)}"
    if section.label:
        yield f"Label: {inert(section.label)}"
    yield inert(section.answer)
    yield "\n".join(f"- **{inert(about)}**: {inert(text)}" for about, text in section.advice)
    yield _list(section.caveats)
    yield table(section.summary)
    if section.findings:
        yield f"### What was found\n\n{table(section.findings)}"
    if section.questions:
        yield "### Questions and answers"
        for question, said in section.questions:
            yield f"#### {inert(question)}\n\n{inert(said)}"
    if section.parity:
        yield f"### Does it still train the same model?\n\n{table(section.parity)}"
    yield "### Where the time goes"
    if section.communication is None:
        yield inert(section.no_diagnosis)
    else:
        yield table(section.communication)
        yield _list(section.communication_words)
        yield from (table(one) for one in (section.data_parallel, section.spent) if one is not None)
        yield _list([f"Trace for Perfetto or Chrome: {name}" for name in section.traces])
    if section.memory:
        yield f"### {section.about_memory}\n\n{table(section.memory)}"
    yield f"### Energy and heat\n\n{table(section.energy) if section.energy else inert(section.no_energy)}"
    if section.published:
        yield f"### The published form\n\n{table(section.published)}"
    if section.statistics:
        yield f"### How the steps scatter\n\n{table(section.statistics)}"


def _list(texts: Sequence[str]) -> str:
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
    flat = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)  # within a word it is no emphasis
