"""``list`` and ``--help``: at once, without importing anything heavy, and whatever others have installed."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import separately
from standin import ROOT, install
from standin.gated import TEN

from bench.cli import VERBS

HEAVY = {"torch", "torchvision", "apex", "numpy", "pandas", "scipy", "pyarrow", "matplotlib", "rich", "jinja2"}
CONTRACT = {
    "list": ["--json"],
    "run": [
        *("--scenario", "--device", "--gpus", "--ranks", "--nproc", "--workload", "--model", "--image-size"),
        *("--global-batch", "--batch-per-rank", "--warmup", "--iters", "--launches", "--profile", "--impl", "--apex"),
        *("--python", "--out", "--label", "--json"),
    ],
    "report": ["RUN", "--out"],
}


bench = cache(separately)


def listed(*arguments: str, **environment: str) -> Any:
    done = bench("list", "--device", "cpu", "--json", *arguments, **environment)
    assert done.err == ""
    return done.well()


# list


def test_all_ten_run_on_the_cpu() -> None:
    document = listed()
    assert (document["device"], document["gpus"]) == ("cpu", [])
    rows = {row["name"]: row for row in document["scenarios"]}
    assert tuple(rows)[:10] == TEN
    for name in TEN:
        assert (rows[name]["runs_here"], rows[name]["reason"]) == (True, None)
        assert Path(rows[name]["file"]).is_file() and rows[name]["summary"] and rows[name]["doc"]
        assert rows[name]["precision"] == (name[-2:].upper() if "_o" in name else "O0")
        assert rows[name]["strategy"] == re.sub("_o.$", "", name) and isinstance(rows[name]["needs"], list)
    spread = rows["ddp_two_devices"]
    assert not spread["runs_here"] and "two GPUs for each rank" in spread["reason"]


def test_apex_on_the_cpu_leaves_some_scenarios() -> None:
    rows = listed("--impl", "apex")["scenarios"]
    assert [row["name"] for row in rows[:10] if row["runs_here"]] == ["single", "dp", "ddp"]
    for row in rows[3:10]:
        assert "apex needs CUDA" in row["reason"] and "--impl" in row["reason"]


def test_a_broken_scenario_is_a_row_of_the_list(tmp_path: Path) -> None:
    files = {"their_module.py": "import os\nSCENARIO = = 1\n", "leaver.py": "import os\nos._exit(0)\n"}
    install(tmp_path, {"hierarchical": "their_module", "ghost": "gone", "leaver": "leaver"}, files)
    rows = {row["name"]: row for row in listed(PYTHONPATH=str(tmp_path))["scenarios"]}
    assert tuple(rows)[:10] == TEN and {"hierarchical", "ghost"} <= set(rows)
    assert rows["ghost"]["reason"] == "the entry point 'ghost' names a missing module gone"
    assert all(row["runs_here"] for name, row in rows.items() if name in TEN)
    assert f"{tmp_path / 'their_module.py'}:2 " in rows["hierarchical"]["reason"]
    assert "left with exit status 0" in rows["leaver"]["reason"]
    people = bench("list", "--device", "cpu", PYTHONPATH=str(tmp_path))
    assert (people.code, people.err) == (0, "")
    assert re.search(r"hierarchical +no ", people.out) and "their_module.py:2" in people.out
    lines = [line.split(maxsplit=2) for line in people.out.splitlines()]
    assert [line[0] for line in lines if len(line) == 3 and line[1] == "yes"][:10] == [*TEN]


# What is imported for it

EACH_HELP = """
import contextlib, io, json, sys
from bench.cli import VERBS, main
shown = {}
for verb in (None, *VERBS):
    with contextlib.redirect_stdout(io.StringIO()) as shown[verb or ""]:
        assert main([*([verb] if verb else []), "--help"]) == 0
print(json.dumps([{name: text.getvalue() for name, text in shown.items()}, sorted(sys.modules)]))
"""


@cache
def each_help() -> tuple[dict[str, str], set[str]]:
    """The help of bench ("") and of each verb, and the packages that one process imported to show all of them."""
    done = subprocess.run([sys.executable, "-c", EACH_HELP], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    shown, modules = json.loads(done.stdout)
    return shown, {module.split(".")[0] for module in modules}


def test_help_is_light_and_tells_what_a_verb_takes() -> None:
    shown, packages = each_help()
    assert packages & HEAVY == set()
    assert [verb for verb in VERBS if not re.search(rf"^  {verb} +\S", shown[""], re.MULTILINE)] == []
    for verb, text in shown.items():
        assert text.startswith(f"usage: python -m bench {verb}"), verb
        assert [option for option in CONTRACT.get(verb, []) if option not in text] == [], verb
    assert all(f"\n  {name} " in shown["submit"] for name in ("slurm", "trainjob", "pytorchjob", "skypilot"))


@pytest.mark.parametrize("verb", VERBS)
def test_torchrun_takes_no_option_of_bench(verb: str) -> None:
    """Each option has a name that torchrun leaves to bench: no beginning of one of its own, which may be ambiguous."""
    from torch.distributed.run import get_args_parser

    launcher = get_args_parser()
    theirs = [name for action in launcher._actions for name in action.option_strings]
    rows = re.findall(r"^  (-.+?)(?:  |$)", each_help()[0][verb], re.MULTILINE)
    options = [re.findall(r"(?<![\w-])--?[a-z][\w-]*", row) for row in rows]
    assert ["-h", "--help"] in options
    for names in options:
        left = [name for name in names if name in theirs or not any(other.startswith(name) for other in theirs)]
        assert left, f"torchrun takes {names} for options of its own"
        assert launcher.parse_args(["-m", "bench", verb, left[-1]]).training_script_args == [verb, left[-1]]


def test_a_list_imports_nothing_heavy() -> None:
    done = bench("list", "--json", PYTHONPROFILEIMPORTTIME="1")
    assert done.code == 0, done.err
    modules = {line.rsplit("|", 1)[1].strip() for line in done.err.splitlines() if line.startswith("import time:")}
    assert "bench.cli" in modules
    assert {module.split(".")[0] for module in modules} & HEAVY == set()


@pytest.mark.parametrize("arguments", [("check", "."), ("list", "--device", "cpu")], ids=" ".join)
def test_nothing_of_the_working_directory_is_executed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    names = ("argparse", "glob", "json", "mine", "secrets", "socket", "subprocess", "torch")
    install(tmp_path, {"evil": "mine"}, {f"{name}.py": "open('executed', 'w').write(__file__)\n" for name in names})
    done = separately(*arguments, here=tmp_path)
    assert not (tmp_path / "executed").exists() and "evil" not in done.out
    assert done.code == (2 if arguments[0] == "check" else 0), done.err
