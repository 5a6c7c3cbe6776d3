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
    yield f"## {_inert(section.id)}"
    if section.label:
        yield f"Label: {_inert(section.label)}"
    yield _inert(section.answer)
    yield "\n".join(f"- **{_inert(about)}**: {_inert(text)}" for about, text in section.advice)
    yield _list(section.caveats)
    yield _table(section.summary)
    if section.findings:
        yield f"### What was found\n\n{_table(section.findings)}"
    if section.questions:
        yield "### Questions and answers"
        for question, said in section.questions:
            yield f"#### {_inert(question)}\n\n{_inert(said)}"
    if section.parity:
        yield f"### Does it still train the same model?\n\n{_table(section.parity)}"
    yield "### Where the time goes"
    if section.communication is None:
        yield _inert(section.no_diagnosis)
    else:
        yield _table(section.communication)
        yield _list(section.communication_words)
        yield from (_table(table) for table in (section.data_parallel, section.spent) if table is not None)
        yield _list([f"Trace for Perfetto or Chrome: {name}" for name in section.traces])
    if section.memory:
        yield f"### {section.about_memory}\n\n{_table(section.memory)}"
    yield f"### Energy and heat\n\n{_table(section.energy) if section.energy else _inert(section.no_energy)}"
    if section.published:
        yield f"### The published form\n\n{_table(section.published)}"
    if section.statistics:
        yield f"### How the steps scatter\n\n{_table(section.statistics)}"


def _list(texts: Sequence[str]) -> str:
    return "\n".join(f"- {_inert(text)}" for text in texts)


def _table(table: Table) -> str:
    headings = [f"{column.group} {column.heading}".strip() for column in table.columns]
    lines = [
        f"| {' | '.join(_inert(text) for text in headings)} |",
        f"| {' | '.join('---:' if column.number else '---' for column in table.columns)} |",
    ]
    for row in table.rows:
        cells = (_inert(f"{cell.text} ({cell.small})" if cell.small else cell.text) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- {_inert(note)}" for note in table.notes)]).rstrip()


def _inert(text: str) -> str:
    """Text on one line that Markdown shows as it is: no table border, tag, entity, link, emphasis or code."""
    flat = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat)  # within a word it is no emphasis
