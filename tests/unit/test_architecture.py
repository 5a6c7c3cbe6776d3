"""What machines keep so that nobody has to remember it: style, types, and the direction of imports."""

import re
import shutil
from pathlib import Path

import pytest
from standin import complaints

CHECKS = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"])
SLOW = pytest.param(["mypy"], marks=pytest.mark.slow)


@pytest.mark.parametrize("command", [*CHECKS, SLOW], ids=" ".join)
def test_the_code_and_the_recipes_pass_the_checks(repository: Path, tmp_path: Path, command: list[str]) -> None:
    """Each complete file that CONTRIBUTING shows, kept where it says, and what is there already."""
    here = tmp_path / "checkout"
    here.mkdir()
    command = [*command, "--cache-dir", str(repository / ".mypy_cache")] if command == ["mypy"] else command
    shutil.copy(repository / "pyproject.toml", here)
    for name in ("bench", "scenarios", "nightly", "tests", "benchmarks"):
        shutil.copytree(repository / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = (repository / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"^```(?:python|text)\n(\"\"\".*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(shown) >= 3
    for number, source in enumerate(shown):
        kinds = {"WORKLOAD = ": "bench/workloads", "SWITCH = ": "bench/switches", "SITE = ": "bench/sites"}
        folder = next((folder for word, folder in kinds.items() if word in source), "scenarios")
        (here / folder / f"shown_{number}.py").write_text(source)
    assert complaints(*command, cwd=here) == ""


def test_ci_runs_the_second_command_of_the_readme(repository: Path) -> None:
    script = (repository / ".ci" / "run").read_text()
    command, slow = re.findall(r"^.*-m pytest(?:.*\\\n)*.*", script, re.MULTILINE)
    readme = (repository / "README.md").read_text()
    assert command.endswith("-m pytest -n 3 --dist loadfile") and command in readme
    assert re.search(r"^python3 -m venv .*-m bench run$", readme, re.MULTILINE), "the first ends in the main job"
    assert "-m slow" in slow and "cuda_pretended," in slow, "what runs only where there are GPUs"
