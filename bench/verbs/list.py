"""``python -m bench list``: every scenario, and whether it can run here; workloads, strategies and sites."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench import machine
from bench.console import tell
from bench.core.errors import RequestError
from bench.core.records import SwitchOn
from bench.seams import discover, switching
from bench.seams.execute import Kind
from bench.seams.obstacle import obstacle
from bench.verbs.options import Parser, check_apex, print_json

Row = dict[str, Any]
RANKS = 2
"""On the CPU, by default."""

DESCRIPTION = """\
Every scenario, what it is, and whether it can run on this machine and if not why; then switches, workloads, strategies
and sites.
"""
EPILOG = """\
Scenarios are small files: scenarios/*.py here, those of installed packages (entry point group bench.scenarios), and any
file of your own: python -m bench run --scenario ./mine.py. So are workloads: bench/workloads/*.py, the group
bench.workloads, and python -m bench run --workload ./mine.py
"""


def main(arguments: list[str]) -> int:
    parser = Parser("list", DESCRIPTION, EPILOG)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where (default: auto)")
    parser.add_argument("--impl", choices=("auto", "native", "apex"), default="auto", help="whose O1-O3 and apex DDP")
    parser.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05 or older")
    options = parser.parse_args(arguments)
    check_apex(options.apex)
    device, gpus, _ = machine.choose_device(options.device)

    def scenario(name: str, file: str) -> Row:
        loaded = switching.load(name, file)
        reason = obstacle(loaded, device=device, impl=options.impl, apex_path=options.apex)
        reason = reason or loaded.obstacle(device, len(gpus) if device == "cuda" else RANKS)
        return {
            "summary": loaded.scenario.summary,
            "strategy": loaded.strategy_name,
            "precision": loaded.scenario.precision,
            "needs": list(loaded.scenario.needs),
            "runs_here": reason is None,
            "reason": reason,
            "doc": loaded.doc,
        }

    def switch(name: str, file: str) -> Row:
        declared = switching.load_switch(name, file)
        reason = switching.switch_obstacle(SwitchOn(name=name, file=file), device)
        more = {"choices": list(declared.choices), "excludes": list(declared.excludes), "value": declared.value}
        return {"summary": declared.summary, "runs_here": reason is None, "reason": reason, **more}

    def workload(name: str, file: str) -> Row:
        loaded = discover.load_workload(name, file)
        return {
            "summary": loaded.workload.summary,
            "unit": loaded.workload.unit,
            "global_batch": loaded.workload.batch_on(device),
            "settings": loaded.workload.settings_on(device),
            "reads": loaded.workload.reads or None,
            "doc": loaded.doc,
        }

    scenarios = _rows(discover.SCENARIO, scenario, "strategy", "precision", "needs", "doc")
    switches = _rows(discover.SWITCH, switch, "value", "choices", "excludes")
    workloads = _rows(discover.WORKLOAD, workload, "unit", "global_batch", "settings", "reads", "doc")
    others = {kind.plural: list(discover.names(kind)) for kind in (discover.STRATEGY, discover.SITE)}
    if options.json:
        where = {"device": device, "gpus": [gpu.uuid for gpu in gpus]}
        print_json({**where, "scenarios": scenarios, "switches": switches, "workloads": workloads, **others})
        return 0
    indexes = ", ".join(str(gpu.index) for gpu in gpus)
    lines = [f"On GPU {indexes}:" if device == "cuda" else f"On the CPU ({machine.cores()} cores):", ""]
    lines += _yes_or_no(scenarios)
    lines += ["", "Switches, which --with and NAME+SWITCH turn on:", "", *_yes_or_no(switches)]
    lines += ["", "Workloads, which --workload chooses from:", ""]
    width = max(len(str(row["name"])) for row in workloads)
    lines += [f"  {row['name']:<{width}}  {row['summary'] or row['reason']}" for row in workloads]
    lines += ["", f"Strategies, which a scenario names: {', '.join(others['strategies'])}"]
    lines += [f"Sites, which --site chooses from: {', '.join(others['sites'])}"]
    lines += ["", "Run one: python -m bench run --scenario ddp_o2", "All of the comparison: python -m bench run"]
    tell(*lines, file=sys.stdout)
    return 0


def _rows(kind: Kind, declared: Callable[[str, str], Row], *unknown: str) -> list[Row]:
    """A row for each file of a seam; of a broken file, the reason, and nothing in the columns that are ``unknown``."""
    rows = []
    for name, file in discover.names(kind).items():
        row: Row = {"name": name, "summary": "", "reason": None, "file": file}
        try:
            rows.append(row | declared(name, file))
        except RequestError as error:
            rows.append(row | dict.fromkeys(unknown) | {"runs_here": False, "reason": error.problem})
    return rows


def _yes_or_no(rows: list[Row]) -> Iterator[str]:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        yield f"  {row['name']:<{width}}  {'yes' if row['runs_here'] else 'no '}  {row['summary']}"
        if row["reason"]:
            yield f"  {'':<{width}}       {row['reason']}"
