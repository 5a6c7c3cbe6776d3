"""The tests for a GPU, without one: what they import is there. mypy reads them, but not the sources that they plant."""

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest

FILES = sorted((Path(__file__).resolve().parents[1] / "gpu").glob("test_*.py"))
IMPORT = re.compile(r"^\s*(?:from (?P<module>[\w.]+) )?import (?P<names>[\w., ]+)$", flags=re.MULTILINE)


def imports_in_strings(file: Path) -> list[tuple[str, str | None]]:
    """(module, name or None) of each import in the sources that a test plants."""
    texts = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
    lines = [match for text in texts if isinstance(text, str) and "\n" in text for match in IMPORT.finditer(text)]
    rows: list[tuple[str, str | None]] = []
    for line in lines:
        for name in (part.partition(" as ")[0] for part in line["names"].split(",")):
            rows.append((line["module"], name.strip()) if line["module"] else (name.strip(), None))
    return rows


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_a_planted_source_imports_is_there(file: Path) -> None:
    for module, name in imports_in_strings(file):
        found = importlib.import_module(module)
        if name is not None and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")


def test_planted_sources_are_seen() -> None:
    rows = [row for file in FILES for row in imports_in_strings(file)]
    assert ("bench.seams", "Scenario") in rows and ("torch", None) in rows


def test_mypy_reads_them(repository: Path) -> None:
    settings = (repository / "pyproject.toml").read_text()
    assert '"tests/gpu", "benchmarks"' in settings


def test_tests_of_a_gpu_say_that_they_were_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, other = (SimpleNamespace(get_closest_marker=lambda name, is_gpu=is_gpu: is_gpu) for is_gpu in (True, False))
    for limit, item in (("1e9", gpu), ("0", other)):
        monkeypatch.setenv(conftest.GPU_TESTS_LIMIT, limit)
        conftest.pytest_runtest_setup(item)
    with pytest.raises(pytest.skip.Exception, match="not reached within 0 s"):
        conftest.pytest_runtest_setup(gpu)
