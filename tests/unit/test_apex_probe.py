"""Which of the things called ``apex`` lies there, told from its files without importing any of them."""

from pathlib import Path
from typing import Any

import pytest

from bench.core.apex_files import classify, search_path

NVIDIA = ("amp/__init__.py", "parallel/__init__.py", "normalization/__init__.py", "optimizers/__init__.py")
UNRELATED = ("lib/__init__.py", "lib/libapex.py", "lib/apexutils.py")

EXPLODES = "raise AssertionError('apex was imported')\n"


def tree(root: Path, *files: str) -> Path:
    for name in ("__init__.py", *files):
        path = root / "apex" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(EXPLODES)
    return root


@pytest.mark.parametrize(
    ("files", "kind", "has", "says"),
    [
        (NVIDIA, "nvidia", (True, True), "with apex.amp and apex.parallel"),
        (("amp.py", "parallel.py"), "nvidia", (True, True), "with apex.amp and apex.parallel"),
        ((*NVIDIA[2:], "contrib/__init__.py"), "nvidia_without_amp", (False, False), "newer than 25.05"),
        (UNRELATED, "pypi_unrelated", (False, False), "unrelated PyPI project"),
        (("core.py",), "unknown", (False, False), "no apex.amp and no apex.parallel"),
        (NVIDIA[:1], "unknown", (True, False), "it has no apex.parallel"),
    ],
)
def test_each_is_named_for_what_it_is(tmp_path: Path, files: Any, kind: str, has: object, says: str) -> None:
    found = classify(path=[str(tree(tmp_path, *files))])
    assert (found.kind, found.path, (found.amp, found.parallel)) == (kind, str(tmp_path / "apex"), has)
    assert says in found.explanation and f"{tmp_path}/apex" in found.explanation
    remedy = found.explanation.partition("; ")[2]
    assert all((words in remedy) == (kind != "nvidia") for words in ("25.05", "--apex", "--impl native"))


def test_where_there_is_none_it_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [search_path(str(tmp_path / given)) for given in (".", "absent", "file")] == [None] * 3
    found = classify(path=[str(tmp_path)])
    assert (found.kind, found.path, found.amp, found.parallel) == ("absent", None, False, False)
    assert all(words in found.explanation for words in ("not installed", "25.05", "--apex"))


@pytest.mark.parametrize("checkout", ["nvidia-apex", "apex"])
@pytest.mark.parametrize("given", ["{here}", "{here}/apex", "{name}/", "./{name}/apex/"])
def test_a_checkout_and_the_package_in_it_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: str, given: str
) -> None:
    root = tree(tmp_path / checkout, *NVIDIA)
    monkeypatch.chdir(tmp_path)
    given = given.format(here=root, name=checkout)
    assert search_path(given) == str(root)
    assert classify(given).path == str(root / "apex")


def test_it_comes_before_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tree(tmp_path / "site", *UNRELATED)))
    checkout = tree(tmp_path / "checkout", *NVIDIA)
    assert classify().kind == "pypi_unrelated"
    assert classify(str(checkout)).kind == "nvidia"
