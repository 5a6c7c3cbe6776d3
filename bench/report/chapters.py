"""The chapters of a run's page and of ``summary.md``, in the order of a reader's questions.

To add a table or a plot, put it into a chapter; to add a chapter, write a function and name it in :data:`CHAPTERS`. A
plot is one that :data:`bench.report.plots.DRAWINGS` draws, by its name. What a run does not have is None and left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analyse import checkpoints, published, restarts, scaling_words
from bench.analyse.all_reduce import samples as measured_all_reduces
from bench.analyse.all_reduce import sentences as about_all_reduces
from bench.analyse.analysed import Analysed
from bench.analyse.caveats import failures
from bench.analyse.questions import questions
from bench.analyse.scaling import foreseen
from bench.core.errors import RequestError
from bench.report import all_reduce, device_tables, launch_tables, recipe, tables, verdict_tables
from bench.report.blocks import Block, Chapter, Code, Facts, Files, Fold, Grid, PagePlot
from bench.report.checkpoint_tables import checkpoint_table
from bench.report.each import each_table
from bench.report.facts import facts
from bench.report.ladder import ladder_table, ladder_words
from bench.report.loader import loader_table, loader_words
from bench.report.restart_tables import restart_table
from bench.report.scaling import prediction_table, scaling_table
from bench.report.search import search_table, search_words
from bench.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

NO_DIAGNOSIS = (
    "This run has no diagnostic launch: python -m bench run --diagnose shows what communication costs, how much of it "
    "is exposed, and what a step is spent on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What chapters are made of: a run, its overview, and its plots by name."""

    run: Analysed
    table: "pd.DataFrame"
    plots: Mapping[str, PagePlot]


def of_run(material: Material) -> list[Chapter]:
    """The chapters that have something to say about a run."""
    return [found for chapter in CHAPTERS if (found := chapter(material)) is not None and found.blocks]


def _scenarios(of: Material) -> Chapter:
    table = tables.summary_table(of.run, of.table)
    nothing = None if of.plots else f"There is nothing to plot: {failures(of.run.document, ())}."
    return _chapter("summary", "All scenarios", Grid("All scenarios", table), nothing)


def _search(of: Material) -> Chapter | None:
    table = search_table(of.run)
    if table is None:
        return None
    fold = _fold(f"All candidates ({len(table.rows)})", Grid("All candidates", table))
    return _chapter("search", "How was the winner found?", of.plots.get("search"), *search_words(of.run), fold)


def _scaling(of: Material) -> Chapter | None:
    table, scaling = scaling_table(of.run), of.run.document.scaling
    if table is None or scaling is None:
        return None
    reduced = all_reduce.bandwidth_table(measured_all_reduces(scaling.bandwidth))
    return _chapter(
        "scaling",
        "What do more devices bring?",
        of.plots.get("scaling"),
        Grid("Efficiency by number of devices", table, fold_notes=True),
        *scaling_words.sentences(of.run),
        _grid("Predictions", prediction_table(*foreseen(of.run)), fold_notes=True),
        *scaling_words.about_predictions(of.run),
        of.plots.get("all-reduces"),
        _fold("All-reduces by size", _grid("All-reduces", reduced, fold_notes=True)),
        *about_all_reduces(scaling.bandwidth),
    )


def _each(of: Material) -> Chapter | None:
    table = each_table(of.run)
    if table is None:
        return None
    blocks = _blocks(of.plots.get("each"), Grid("Every device by itself", table, fold_notes=True))
    return Chapter(slug="each", title="Is a device slow?", blocks=blocks)


def _trust(of: Material) -> Chapter:
    scatter = verdict_tables.statistics_table(of.run)
    why = "all checks of all launches passed" if scatter else "no launch ended well"
    return _chapter(
        "findings",
        "Can these results be trusted?",
        _grid("Findings", verdict_tables.findings_table(of.run), fold_notes=True) or f"Nothing was found: {why}.",
        _fold(
            "How much steps vary",
            of.plots.get("step-times"),
            _grid("How much steps vary", scatter, fold_notes=True),
        ),
    )


def _numerics(of: Material) -> Chapter:
    table = verdict_tables.parity_table(of.run)
    nothing = "No launch of this run ended well, so there is nothing to compare with the reference."
    return _chapter(
        "numerics",
        "Does each scenario still train the same model?",
        Facts(tuple(verdict_tables.verdicts(of.run))) if table else nothing,
        verdict_tables.no_reference(of.run.document) if table else None,
        _fold("Errors, limits and bounds", _grid("Parity with the fp32 reference", table, fold_notes=True)),
        _fold("Losses step by step", of.plots.get("losses")),
    )


def _time(of: Material) -> Chapter:
    communication = verdict_tables.communication_table(of.run)
    files = sorted(name for name in of.run.document.files if name.startswith("traces/"))
    traces = Files("Open them in Perfetto (ui.perfetto.dev) or chrome://tracing:", tuple(files)) if files else None
    phases = of.plots.get("phases")
    if communication is None:
        missing = None if of.run.document.attached else NO_DIAGNOSIS
        return _chapter("time", "Where does the time go?", phases, missing)
    spent = _grid("Profiled time by category", verdict_tables.spent_table(of.run), fold_notes=True)
    return _chapter(
        "time",
        "Where does the time go?",
        of.plots.get("time-spent") or phases,
        Grid("What synchronisation costs", communication, fold_notes=True),
        *verdict_tables.communication_words(of.run),
        _fold("Profiled time by category", spent),
        _fold("DataParallel's forward pass", _grid("Parts", verdict_tables.data_parallel_table(of.run))),
        _fold("Phases of a step", phases if "time-spent" in of.plots else None),
        _fold(f"Traces ({len(files)})", traces),
    )


def _loader(of: Material) -> Chapter | None:
    table = loader_table(of.run)
    if table is None:
        return None
    name = "The loader alone, training alone, and both together"
    words = loader_words(of.run)[1:]
    return _chapter("loader", "Is it the loader?", of.plots.get("loader"), Grid(name, table), *words)


def _memory(of: Material) -> Chapter:
    ranks = "Memory of each rank" if of.run.document.workload.device == "cpu" else "Memory beside torch"
    known = "memory" in of.plots or "memory-stack" in of.plots
    return _chapter(
        "memory",
        "Where does the memory go?",
        of.plots.get("trade-off"),
        None if known else "No sample of this run shows the memory of a process.",
        _fold(
            "What the memory of a rank holds",
            of.plots.get("memory-parts"),
            _grid("What the memory of a rank holds", device_tables.memory_parts_table(of.run), fold_notes=True),
        ),
        _fold(ranks, _grid(ranks, device_tables.beside_torch_table(of.run))),
        _fold("Memory of each process over time", of.plots.get("memory")),
        _fold("Memory on each device over the whole run", of.plots.get("memory-stack")),
    )


def _energy(of: Material) -> Chapter:
    return _chapter(
        "energy",
        "Energy and heat",
        _grid("Energy and heat", device_tables.energy_table(of.run)) or device_tables.no_energy(of.run),
        _fold("Power of each device over the whole run", of.plots.get("power")),
    )


def _checkpoints(of: Material) -> Chapter:
    return _chapter(
        "checkpoints",
        "What does a checkpoint cost?",
        *checkpoints.in_words(of.run.document),
        _grid("What a checkpoint costs", checkpoint_table(of.run), fold_notes=True),
    )


def _restarts(of: Material) -> Chapter:
    return _chapter(
        "restarts",
        "What does the loss of a rank cost?",
        *restarts.in_words(of.run.document),
        _grid("What the loss of a rank costs", restart_table(of.run), fold_notes=True),
    )


def _ladder(of: Material) -> Chapter:
    return _chapter(
        "ladder",
        "What does each step gain?",
        *ladder_words(of.run),
        of.plots.get("ladder"),
        _grid("Each rung against the one before", ladder_table(of.run), fold_notes=True),
    )


def _questions(of: Material) -> Chapter:
    folds = (Fold(asked, (answer,)) for asked, answer in questions(of.run))
    return _chapter("questions", "Questions and answers", *folds)


def _published(of: Material) -> Chapter:
    ratios, seconds = tables.published_ratios(of.run), tables.published_table(of.run)
    nothing = "No launch of this run ended well, so there is nothing to compare with the published times."
    return _chapter(
        "published",
        "Beside the published comparison",
        f"Published in “{published.TITLE}”, a Korean blog post whose title says: {published.TITLE_IN_ENGLISH}. "
        f"{published.PUBLISHED_WORKLOAD}.",
        _grid("Time relative to ddp, here and published", ratios) or nothing,
        _fold("Elapsed seconds", of.plots.get("elapsed"), _grid("Elapsed seconds", seconds)),
    )


def _recipe(of: Material) -> Chapter | None:
    """The training script of the recommended scenario; None without a recommendation."""
    advised = of.run.document.recommendation
    if not of.run.document.planned or advised is None or advised.fastest is None:
        return None
    command = f"python -m bench recipe {of.run.id} --scenario {advised.fastest} --out train.py"
    try:
        text = recipe.script(of.run, advised.fastest)
    except RequestError as error:
        blocks: tuple[Block, ...] = (f"There is no script of {advised.fastest}: {error.problem}.",)
    else:
        blocks = (f"Or into a file: {command}", Fold(f"train.py of {advised.fastest}", (Code(text),)))
    return Chapter(slug="recipe", title="A training script to copy", blocks=blocks, in_markdown=False)


def _how(of: Material) -> Chapter:
    run = of.run
    launches = launch_tables.launches_table(run)
    return Chapter(
        slug="how",
        title="How was it measured?",
        blocks=_blocks(
            _fold("Machine, versions and workload", Facts(tuple(facts(run.document)))),
            _fold("What ran in detail", *_what_ran(run)),
            _fold(f"Launches ({len(launches.rows)})", Grid("Launches", launches, fold_notes=True)),
        ),
        in_markdown=False,
    )


def _what_ran(run: Analysed) -> tuple[Block, ...]:
    alike, table = launch_tables.details(run)
    return _blocks(
        Grid("What ran in detail", table), *(("The same for all scenarios:", Facts(tuple(alike))) if alike else ())
    )


CHAPTERS: tuple[Callable[[Material], Chapter | None], ...] = (
    _scenarios,
    _search,
    _scaling,
    _each,
    _trust,
    _numerics,
    _time,
    _loader,
    _memory,
    _energy,
    _checkpoints,
    _restarts,
    _ladder,
    _questions,
    _published,
    _how,
    _recipe,
)
"""In the order of the page."""


def _chapter(slug: str, title: str, *blocks: Block | None) -> Chapter:
    return Chapter(slug=slug, title=title, blocks=_blocks(*blocks))


def _blocks(*blocks: Block | None) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block is not None)


def _grid(name: str, table: Table | None, *, fold_notes: bool = False) -> Grid | None:
    return Grid(name, table, fold_notes) if table else None


def _fold(title: str, *blocks: Block | None) -> Fold | None:
    """A fold of what is there; None for nothing."""
    return Fold(title, _blocks(*blocks)) if any(block is not None for block in blocks) else None
