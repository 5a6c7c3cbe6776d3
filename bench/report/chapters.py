"""The chapters of a run's page and of ``summary.md``, in the order of a reader's questions.

To add a table or a plot, put it into a chapter; to add a chapter, write a function and name it in :data:`CHAPTERS`. A
plot is one that :data:`bench.report.plots.DRAWINGS` draws, by its name. What a run does not have is None and left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from bench.analyse import published
from bench.analyse.analysed import Analysed
from bench.analyse.each import each_alone
from bench.analyse.environments import numerics as numerics_between
from bench.analyse.launches import failures
from bench.core.errors import RequestError
from bench.report import device_tables, launch_tables, recipe, verdict_tables
from bench.report.blocks import Block, Chapter, Code, Facts, Fold, Grid, chapter_of, filled, fold
from bench.report.comparison import since_before
from bench.report.drawing import Plot
from bench.report.ladder import ladder_table, ladder_words
from bench.report.summary import published_tables, summary_table
from bench.report.tables import Cell, tabulate, text
from bench.runs.document import Attached
from bench.seams.experiment import experiments
from bench.words.questions import questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A run and its plots by name."""

    run: Analysed
    plots: Mapping[str, Plot]


def of_run(material: Material) -> list[Chapter]:
    makers = OF_DEVICES if each_alone(material.run.document) else CHAPTERS
    made = [make(material) for make in makers]
    return filled(*chain.from_iterable(one if isinstance(one, list) else [one] for one in made))


def _scenarios(of: Material) -> Chapter:
    summary = Grid("All scenarios", summary_table(of.run), fold_notes=False)
    nothing = None if of.plots else f"There is nothing to plot: {failures(of.run.document, ())}."
    return chapter_of("summary", "All scenarios", summary, nothing)


def _experiments(of: Material, *, leads: bool) -> list[Chapter]:
    """``leads``: those that the run is about, which stand above all that is said of each scenario."""
    declared = [one for name, one in experiments().items() if name in of.run.document.experiments]
    return [one.chapter(of) for one in declared if one.chapter is not None and one.leads is leads]


def _trust(of: Material) -> Chapter:
    scatter, findings = verdict_tables.statistics_table(of.run), verdict_tables.findings_table(of.run)
    why = "all checks of all launches passed" if scatter else "no launch ended well"
    return chapter_of(
        "findings",
        "Can these results be trusted?",
        Grid("Findings", findings) if findings else f"Nothing was found: {why}.",
        fold(
            "How much steps vary",
            of.plots.get("step-times"),
            of.plots.get("distribution"),
            Grid("How much steps vary", scatter),
        ),
    )


def _environments(of: Material) -> Chapter:
    return chapter_of(
        "environments",
        "What do the interpreters change?",
        Grid("Time of each scenario", verdict_tables.pairs_table(of.run)),
        *numerics_between(of.run),
        Grid("What differs between them", verdict_tables.differences_table(of.run)),
    )


def _numerics(of: Material) -> Chapter | None:
    if of.run.document.of(Attached):  # the page says above that nothing is known of them
        return None
    table, why_not = verdict_tables.parity_table(of.run), verdict_tables.no_reference(of.run.document)
    judged = [one for one in verdict_tables.verdicts(of.run) if not why_not or one[0] != "not shown"]
    return chapter_of(
        "numerics",
        "Does each scenario still train the same model?",
        Facts(tuple(judged)) if judged else None,
        why_not if table else "No launch of this run ended well, so there is nothing to compare with the reference.",
        fold("Errors, limits and bounds", Grid("Parity with the fp32 reference", table)),
        fold("Losses step by step", of.plots.get("losses")),
    )


def _time(of: Material) -> Chapter:
    communication = verdict_tables.communication_table(of.run)
    files = sorted(name for name in of.run.document.files if name.startswith("traces/"))
    traces = text("trace", lambda name: Cell(text=name, files=(("open", name),)))
    where = ["Open them in Perfetto (ui.perfetto.dev) or chrome://tracing."]
    phases, spent = of.plots.get("phases"), of.plots.get("time-spent")
    missing = (
        "This run has no diagnostic launch: python -m bench run --diagnose shows what communication costs, how "
        "much of it is exposed, and what a step is spent on."
    )
    return chapter_of(
        "time",
        "Where does the time go?",
        spent or phases,
        missing if communication is None and not of.run.document.of(Attached) else None,
        Grid("What synchronisation costs", communication),
        fold("All ranks over a few steps", of.plots.get("ranks")),
        fold("Elapsed time, cold start and warm-up included", of.plots.get("elapsed")),
        fold("Profiled time by category", Grid("Profiled time", verdict_tables.spent_table(of.run))),
        fold("DataParallel's forward pass", Grid("Parts", verdict_tables.data_parallel_table(of.run))),
        fold("Phases of a step", phases if spent else None),
        fold(f"Traces ({len(files)})", Grid("Traces", tabulate([traces], files, where) if files else None)),
    )


def _memory(of: Material) -> Chapter:
    ranks = "Memory of each rank" if of.run.document.workload.device == "cpu" else "Memory beside torch"
    sampled = "memory" in of.plots or "memory-stack" in of.plots
    held = Grid("Parts of the memory", device_tables.memory_parts_table(of.run))
    return chapter_of(
        "memory",
        "Where does the memory go?",
        of.plots.get("trade-off"),
        None if sampled else "No sample of this run shows the memory of a process.",
        fold("What the memory of a rank holds", of.plots.get("memory-parts"), held),
        fold(ranks, Grid(ranks, device_tables.beside_torch_table(of.run))),
        fold("Memory of each process over time", of.plots.get("memory")),
        fold("Memory on each device over the whole run", of.plots.get("memory-stack")),
    )


def _energy(of: Material) -> Chapter:
    table = device_tables.energy_table(of.run)
    return chapter_of(
        "energy",
        "Energy and heat",
        Grid("Energy and heat", table) if table else device_tables.no_energy(of.run),
        fold("Power of each device over the whole run", of.plots.get("power")),
    )


def _published(of: Material) -> Chapter | None:
    if of.run.good_iterations.frame.empty or not published.is_alike(of.run.document):
        return None
    ratios, elapsed = published_tables(of.run)
    return chapter_of(
        "published",
        "Beside the published comparison",
        f"Published in a Korean blog post, “{published.TITLE}” (translated). {published.PUBLISHED_WORKLOAD}.",
        Grid("Time relative to ddp, here and published", ratios),
        fold("Elapsed seconds", Grid("Elapsed seconds", elapsed)),
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
    return chapter_of("recipe", "A training script to copy", *blocks, in_markdown=False)


def _how(of: Material) -> Chapter:
    launches = launch_tables.launches_table(of.run)
    alike, table = launch_tables.details(of.run)
    same = ("The same for all scenarios:", Facts(tuple(alike))) if alike else ()
    return chapter_of(
        "how",
        "How was it measured?",
        fold("Machine, versions and workload", Facts(tuple(launch_tables.facts(of.run.document)))),
        fold("What ran in detail", Grid("What ran in detail", table), *same) if launches.rows else None,
        fold(f"Launches ({len(launches.rows)})", Grid("Launches", launches)) if launches.rows else None,
        in_markdown=False,
    )


CHAPTERS: tuple[Callable[[Material], Chapter | list[Chapter] | None], ...] = (
    _scenarios,
    _environments,
    partial(_experiments, leads=True),
    lambda of: since_before(of.run, of.plots.get("since-before")),
    _trust,
    _numerics,
    _time,
    partial(_experiments, leads=False),
    _memory,
    _energy,
    lambda of: chapter_of(
        "ladder",
        "What does each step gain?",
        *ladder_words(of.run),
        of.plots.get("ladder"),
        Grid("Each rung against the one before", ladder_table(of.run)),
    ),
    lambda of: chapter_of("questions", "Questions and answers", *(Fold(q, (text,)) for q, text in questions(of.run))),
    _published,
    _how,
    _recipe,
)
"""In the order of the page."""

OF_DEVICES = (partial(_experiments, leads=True), _memory, _energy, _how)
"""Those of a run that measured devices, each by itself: it has no scenarios to judge."""
