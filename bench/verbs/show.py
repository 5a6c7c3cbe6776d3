"""``python -m bench show``: the answer and the table of a run again, as ``bench run`` printed them."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.console import align, columns
from bench.core.codec import encode
from bench.core.errors import FAILED, OK
from bench.experiments.lab import Finished
from bench.runs.experiments import BatchSearch, Scaling, Tuning
from bench.seams.experiment import experiments
from bench.verbs.options import Parser, latest_or, next_steps, people, reply

if TYPE_CHECKING:
    from bench.analyse.analysed import Analysed
    from bench.runs.document import RunDocument

DESCRIPTION = "Print the answer, the table and the warnings of a run.\n"
EPILOG = """\
examples:
  python -m bench show                     the latest run
  python -m bench show -v 8a1c             another one, by the last letters of its id, with what ran
  python -m bench runs                     what there is

Exit codes: 0 done; 2 there is no such run.
"""


def main(arguments: list[str]) -> int:
    parser = Parser("show", DESCRIPTION, EPILOG)
    parser.add_run(nargs="?")
    parser.add_argument("--allow-incomplete", action="store_true", help="also a run that was interrupted")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show what ran, and every warning by itself")
    options = parser.parse_args(arguments)
    from bench.analyse.analysed import Analysed
    from bench.runs.reader import read

    path = latest_or(options.run, options.results, finished=not options.allow_incomplete)
    run = Analysed.of(read(path, allow_incomplete=options.allow_incomplete))
    shown = answered(run, width=columns(people(options)), verbose=options.verbose)
    reply(options, *shown, document=lambda: for_programs(run))
    return OK


def finished(
    done: Finished,
    options: argparse.Namespace,
    lines: Callable[["Analysed", int | None], list[str]],
    document: Callable[["Analysed"], object],
) -> int:
    """Print what a command measured, for a terminal of a width, and what to do next; returns the exit code."""
    shown = lines(done.run, columns(people(options)))
    reply(options, "", *shown, "", next_steps(done.run.path), document=lambda: document(done.run))
    return FAILED if done.failed else OK


def for_programs(run: "Analysed") -> dict[str, object]:
    """A run as one JSON document: run.json, the summary, and the tables of what else was measured."""
    from bench.analyse.environments import differences, numerics, pairs
    from bench.analyse.ladder import ladder
    from bench.analyse.loader import found_by, rates, sentence, together
    from bench.analyse.memory_parts import parts
    from bench.analyse.verdicts import records
    from bench.report.values import of_experiments

    document = {"path": run.path, **encode(run.document), "summary": records(run.overview)}
    document |= {"memory_parts": records(parts(run.document)), "ladder": records(ladder(run))}
    document |= {name: records(table) for name, table in of_experiments(run).items()}
    if run.document.environments:
        compared = {"differences": differences(run.document), "pairs": pairs(run), "numerics": numerics(run)}
        document["environments_compared"] = compared
    if (swept := found_by(run.document)) is not None:
        both = together(run.document, run.good_stats)
        values = {"answer": sentence(swept, both), "enough": swept.enough, "rates": records(rates(swept, both))}
        document["input"] = values
    return document


def answered(run: "Analysed", *, width: int | None, verbose: bool) -> list[str]:
    """Answer, table, the rest of the recommendation, warnings. ``width``: of the terminal."""
    from bench.analyse.environments import numerics
    from bench.report.ladder import ladder_table, ladder_words
    from bench.report.loader import loader_table, loader_words
    from bench.report.summary import brief_summary
    from bench.report.tables import in_text
    from bench.report.verdict_tables import differences_table, pairs_table
    from bench.words import tuned
    from bench.words.advice import advice, findings, main_finding
    from bench.words.caveats import about_implementations

    document, table = run.document, run.overview
    if document.of(BatchSearch) is not None:
        return batches(document, width)
    if document.of(Scaling) is not None:
        from bench.report.scaling import on_terminal

        return on_terminal(run, width)
    beside = advice(document, table)
    if document.of(Tuning):  # whose answer names the leanest
        beside = [(name, text) for name, text in beside if not name.startswith("Least memory")]
    summary, ladder = brief_summary(table, verbose=verbose), ladder_table(run)
    answer = tuned.answer(run, table)
    loader, *about_loader = loader_words(run) or [""]
    experimented = [one for name, one in experiments().items() if name in document.experiments]
    return [
        *([loader, *in_text(loader_table(run), width=width), *about_loader, ""] if loader else []),
        *answer,
        *in_text(summary, width=width),
        *summary.notes,
        *([] if verbose else about_implementations(document)),
        "",
        *(f"{name}: {text}" for name, text in beside),
        *(text for one in experimented if one.sentences for text in one.sentences(run) if text not in answer),
        *([*in_text(ladder, width=width), *ladder.notes[:1], *ladder_words(run)] if ladder else []),
        *in_text(pairs_table(run), differences_table(run), width=width, notes=True),
        *numerics(run),
        *(findings if verbose else main_finding)(run),
    ]


def batches(document: "RunDocument", width: int | None) -> list[str]:
    """The largest batch of each scenario, as ``bench run --find-batch`` found it."""
    speed, memory = f"{document.workload.unit_short}/s", "peak MiB of a device"
    rows: list[tuple[str, ...]] = [("scenario", "largest batch", speed, memory, "the next one")]
    for name, one in document.begun(BatchSearch).scenarios.items():
        values = (one.largest, one.throughput_per_s, one.peak_mib)
        texts = ["-" if value is None else f"{value:,.0f}" for value in values]
        if one.stopped_by == "budget":
            texts[0] = f"{'at least ' if one.largest else ''}{texts[0]} (stopped by the budget)"
        rows.append((name, *texts, f"{one.too_large:,}: {one.why_not}" if one.too_large else "-"))
    return align(rows, left=("scenario", "the next one"), width=width).splitlines()
