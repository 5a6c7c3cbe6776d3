"""``python -m bench show``: the answer and the table of a run again, as ``bench run`` printed them."""

import sys
from typing import TYPE_CHECKING

from bench.console import columns, tell
from bench.core.codec import encode
from bench.core.errors import OK
from bench.runs.experiments import Scaling, Tuning
from bench.seams.experiment import experiments
from bench.verbs.looked_at import latest_or
from bench.verbs.options import Parser, print_json

if TYPE_CHECKING:
    import pandas as pd

    from bench.analyse.analysed import Analysed

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
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help="a folder, a run id or 'latest'")
    parser.add_argument("--results", default="results", metavar="DIR", help="where run ids are (default: results)")
    parser.add_argument("--allow-incomplete", action="store_true", help="also a run that was interrupted")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show what ran, and every warning by itself")
    options = parser.parse_args(arguments)
    from bench.analyse.analysed import Analysed
    from bench.runs.reader import read

    path = latest_or(options.run, options.results, finished=not options.allow_incomplete)
    run = Analysed.of(read(path, allow_incomplete=options.allow_incomplete))
    table = run.overview
    people = sys.stderr if options.json else sys.stdout
    tell(*answered(run, table, width=columns(people), verbose=options.verbose), file=people)
    if options.json:
        print_json(for_programs(run, table))
    return OK


def for_programs(run: "Analysed", table: "pd.DataFrame") -> dict[str, object]:
    """A run as one JSON document: run.json, the summary, and the tables of what else was measured."""
    from bench.analyse.environments import differences, numerics, pairs
    from bench.analyse.ladder import ladder
    from bench.analyse.loader import found_by, rates, sentence, together
    from bench.analyse.memory_parts import parts
    from bench.analyse.verdicts import records
    from bench.report.values import of_experiments

    found = {"path": run.path, **encode(run.document), "summary": records(table)}
    found |= {"memory_parts": records(parts(run.document)), "ladder": records(ladder(run))}
    found |= {name: records(table) for name, table in of_experiments(run).items()}
    if run.document.environments:
        found["environments_compared"] = {
            "differences": differences(run.document),
            "pairs": pairs(run),
            "numerics": numerics(run),
        }
    swept = found_by(run.document)
    if swept is None:
        return found
    both = together(run.document, run.good_figures)
    about = {"answer": sentence(swept, both), "enough": swept.enough, "rates": records(rates(swept, both))}
    return found | {"input": about}


def answered(run: "Analysed", table: "pd.DataFrame", *, width: int | None, verbose: bool) -> list[str]:
    """Answer, table, the rest of the recommendation, warnings. ``width``: of the terminal."""
    from bench.report.tables import brief_summary
    from bench.words import tuned
    from bench.words.advice import advice, findings, main_finding
    from bench.words.caveats import about_implementations

    said = (
        *(() if verbose else ("Fastest", "No clear winner")),
        *(("Least memory",) if run.document.of(Tuning) else ()),
    )
    if run.document.of(Scaling) is not None:
        from bench.report.scaling import on_terminal

        return on_terminal(run, width)
    summary = brief_summary(table, verbose=verbose)
    told = [one.sentences for name, one in experiments().items() if name in run.document.experiments and one.sentences]
    return [
        *_loader(run, width),
        *tuned.answer(run, table),
        "",
        summary.as_text(width),
        *summary.notes,
        *([] if verbose else about_implementations(run.document)),
        "",
        *(f"{about}: {text}" for about, text in advice(run.document, table) if not about.startswith(said)),
        *(text for one in told for text in one(run)),
        *_ladder(run, width),
        *_environments(run, width),
        *(findings if verbose else main_finding)(run),
    ]


def _ladder(run: "Analysed", width: int | None) -> list[str]:
    """What each rung of a ladder gains; nothing of another run."""
    from bench.report.ladder import ladder_table, ladder_words

    table = ladder_table(run)
    if table is None:
        return []
    return ["", table.as_text(width), *table.notes[:1], *ladder_words(run)]


def _environments(run: "Analysed", width: int | None) -> list[str]:
    """What several interpreters change; nothing of a run in one."""
    from bench.analyse.environments import numerics
    from bench.report.environments import differences_table, pairs_table

    tables = [table for table in (pairs_table(run), differences_table(run)) if table is not None]
    return [line for table in tables for line in ("", table.as_text(width), *table.notes)] + numerics(run)


def _loader(run: "Analysed", width: int | None) -> list[str]:
    """What a sweep of the input found; nothing of another run."""
    from bench.report.loader import loader_table, loader_words

    table, words = loader_table(run), loader_words(run)
    rates = [] if table is None else ["", table.as_text(width), *table.notes]
    return [*words[:1], *rates, *words[1:], *([""] if words else [])]
