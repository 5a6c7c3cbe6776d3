"""``python -m bench list``: every scenario, and whether it can run here; workloads, strategies and sites."""

import sys
from typing import Any

from bench import machine
from bench.console import tell
from bench.core.errors import RequestError
from bench.core.records import SwitchOn
from bench.seams import discover, switching
from bench.seams.obstacle import obstacle
from bench.verbs.options import Parser, check_apex, print_json

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
    scenarios = []
    for name, file in discover.names().items():
        try:
            found = switching.load(name, file)
        except RequestError as error:  # a broken file of somebody's is a row of the table, not the end of it
            unknown = dict.fromkeys(("strategy", "precision", "needs", "doc"))
            broken = {"name": name, "summary": "", "runs_here": False, "reason": error.problem, "file": file}
            scenarios.append(broken | unknown)
            continue
        scenario = found.scenario
        reason = obstacle(found, device=device, impl=options.impl, apex_path=options.apex)
        reason = reason or found.strategy.obstacle(device, len(gpus) if device == "cuda" else RANKS)
        scenarios.append(
            {
                "name": name,
                "summary": scenario.summary,
                "strategy": found.strategy_name,
                "precision": scenario.precision,
                "needs": list(scenario.needs),
                "runs_here": reason is None,
                "reason": reason,
                "file": file,
                "doc": found.doc,
            }
        )
    workloads = [_workload(name, file, device) for name, file in discover.names(discover.WORKLOAD).items()]
    switches = [_switch(name, file, device) for name, file in discover.names(discover.SWITCH).items()]
    others = {kind.plural: list(discover.names(kind)) for kind in (discover.STRATEGY, discover.SITE)}
    if options.json:
        about = {"device": device, "gpus": [gpu.uuid for gpu in gpus]}
        print_json({**about, "scenarios": scenarios, "switches": switches, "workloads": workloads, **others})
        return 0
    indexes = ", ".join(str(gpu.index) for gpu in gpus)
    lines = [f"On GPU {indexes}:" if device == "cuda" else f"On the CPU ({machine.cores()} cores):", ""]
    lines += _yes_or_no(scenarios)
    lines += ["", "Switches, which --with and NAME+SWITCH turn on:", "", *_yes_or_no(switches)]
    lines += ["", "Workloads, which --workload chooses from:", ""]
    width = max(len(str(row["name"])) for row in workloads)
    for row in workloads:
        lines.append(f"  {row['name']:<{width}}  {row['summary'] or row['reason']}")
    lines += ["", f"Strategies, which a scenario names: {', '.join(others['strategies'])}"]
    lines += [f"Sites, which --site chooses from: {', '.join(others['sites'])}"]
    lines += ["", "Run one: python -m bench run --scenario ddp_o2", "All of the comparison: python -m bench run"]
    tell(*lines, file=sys.stdout)
    return 0


def _yes_or_no(rows: list[dict[str, Any]]) -> list[str]:
    """Lines that say what can run here, and why the rest cannot."""
    width, lines = max(len(row["name"]) for row in rows), []
    for row in rows:
        lines.append(f"  {row['name']:<{width}}  {'yes' if row['runs_here'] else 'no '}  {row['summary']}")
        if row["reason"]:
            lines.append(f"  {'':<{width}}       {row['reason']}")
    return lines


def _switch(name: str, file: str, device: str) -> dict[str, object]:
    """A switch; if its file is broken, the reason."""
    row: dict[str, object] = {"name": name, "summary": "", "runs_here": False, "reason": None, "file": file}
    try:
        declared = switching.load_switch(name, file)
        reason = switching.switch_obstacle(SwitchOn(name=name, file=file), device)
    except RequestError as error:
        return row | dict.fromkeys(("value", "choices", "excludes")) | {"reason": error.problem}
    return row | {
        "summary": declared.summary,
        "runs_here": reason is None,
        "reason": reason,
        "value": declared.value,
        "choices": list(declared.choices),
        "excludes": list(declared.excludes),
    }


def _workload(name: str, file: str, device: str) -> dict[str, object]:
    """A workload; if its file is broken, the reason."""
    row: dict[str, object] = {"name": name, "summary": "", "reason": None, "file": file}
    try:
        found = discover.load_workload(name, file)
    except RequestError as error:
        return row | dict.fromkeys(("unit", "global_batch", "settings", "reads", "doc")) | {"reason": error.problem}
    declared = found.workload
    return row | {
        "summary": declared.summary,
        "unit": declared.unit,
        "global_batch": declared.batch_on(device),
        "settings": declared.settings_on(device),
        "reads": declared.reads or None,
        "doc": found.doc,
    }
