"""What machines keep so that nobody has to remember it: style, types, and the direction of imports."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["importlinter.cli", "lint"],
    ],
    ids=" ".join,
)
def test_a_checker_is_content(repository: Path, command: list[str]) -> None:
    if importlib.util.find_spec(command[0].split(".")[0]) is None:
        pytest.skip(f"{command[0]} is not installed: pip install -e '.[dev]'")
    program = ["-c", "from importlinter.cli import lint_imports_command as main; main()"]
    arguments = program if command[0].startswith("importlinter") else ["-m", *command]
    done = subprocess.run([sys.executable, *arguments], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_line_answers_without_heavy_imports(repository: Path) -> None:
    heavy = ("torch", "torchvision", "pandas", "scipy", "matplotlib", "pyarrow", "rich", "pynvml", "apex")
    for arguments in (["--help"], ["list"], ["list", "--json"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "bench", *arguments],
            cwd=repository,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
        assert "bench.cli" in imported, "the list of imports is not what is looked for"
        assert not imported & set(heavy), arguments


def test_ci_runs_the_second_command_of_the_readme(repository: Path) -> None:
    script = (repository / ".ci" / "run").read_text()
    command = script.strip().splitlines()[-1]
    assert command.endswith("-m pytest -n 2 --dist loadfile")
    assert command in (repository / "README.md").read_text()
