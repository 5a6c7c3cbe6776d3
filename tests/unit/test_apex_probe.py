"""Which of the things called ``apex`` lies there, told from its files without importing any of them."""

from pathlib import Path

import pytest

from bench.core.apex_files import classify, search_path

TREES = {
    "nvidia": ("amp/__init__.py", "parallel/__init__.py", "normalization/__init__.py", "optimizers/__init__.py"),
    "nvidia_without_amp": ("normalization/__init__.py", "optimizers/__init__.py", "contrib/__init__.py"),
    "pypi_unrelated": ("lib/__init__.py", "lib/libapex.py", "lib/apexutils.py"),
    "unknown": ("core.py",),
}
"""The files of a package ``apex`` beside its ``__init__.py``, by kind."""

SAID = {
    "nvidia_without_amp": "newer than 25.05",
    "pypi_unrelated": "unrelated PyPI project",
    "unknown": "no apex.amp and no apex.parallel",
}
EXPLODES = "raise AssertionError('apex was imported')\n"


def tree(root: Path, *files: str) -> Path:
    for name in ("__init__.py", *files):
        path = root / "apex" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(EXPLODES)
    return root


def test_where_there_is_none_it_says_how_to_get_one(tmp_path: Path) -> None:
    found = classify(path=[str(tmp_path)])
    assert (found.kind, found.path, found.amp, found.parallel) == ("absent", None, False, False)
    assert all(words in found.explanation for words in ("not installed", "25.05", "--apex"))


def test_both_modules_make_it_nvidias_up_to_25_05(tmp_path: Path) -> None:
    root = tree(tmp_path, *TREES["nvidia"])
    found = classify(path=[str(root)])
    assert (found.kind, found.path, found.amp, found.parallel) == ("nvidia", str(root / "apex"), True, True)
    assert str(root / "apex") in found.explanation


@pytest.mark.parametrize("kind", SAID)
def test_any_other_is_named_for_what_it_is_with_the_remedy(tmp_path: Path, kind: str) -> None:
    root = tree(tmp_path, *TREES[kind])
    found = classify(path=[str(root)])
    assert (found.kind, found.path, found.amp, found.parallel) == (kind, str(root / "apex"), False, False)
    assert SAID[kind] in found.explanation
    assert str(root / "apex") in found.explanation
    remedy = found.explanation.split("; ", 1)[1]
    assert all(words in remedy for words in ("25.05", "--apex", "--impl native"))


def test_half_of_an_apex_says_which_half_is_missing(tmp_path: Path) -> None:
    found = classify(path=[str(tree(tmp_path, "amp/__init__.py"))])
    assert (found.kind, found.amp, found.parallel) == ("unknown", True, False)
    assert "apex.parallel" in found.explanation
    assert "apex.amp" not in found.explanation


def test_a_module_may_be_a_file(tmp_path: Path) -> None:
    assert classify(path=[str(tree(tmp_path, "amp.py", "parallel.py"))]).kind == "nvidia"


def test_the_first_on_the_path_counts(tmp_path: Path) -> None:
    wrong = str(tree(tmp_path / "site", *TREES["pypi_unrelated"]))
    right = str(tree(tmp_path / "checkout", *TREES["nvidia"]))
    assert classify(path=[wrong, right]).kind == "pypi_unrelated"
    assert classify(path=[right, wrong]).kind == "nvidia"


# --apex


@pytest.mark.parametrize("checkout", ["nvidia-apex", "apex"])
@pytest.mark.parametrize("inside", ["", "apex"])
def test_a_checkout_and_the_package_in_it_are_the_same(tmp_path: Path, checkout: str, inside: str) -> None:
    root = tree(tmp_path / checkout, *TREES["nvidia"])
    given = str(root / inside)
    assert search_path(given) == str(root)
    assert classify(given).path == str(root / "apex")


def test_a_relative_path_with_a_slash_at_its_end_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "checkout", *TREES["nvidia"])
    monkeypatch.chdir(tmp_path)
    assert search_path("checkout/") == str(root)
    assert search_path("./checkout/apex/") == str(root)


def test_it_comes_before_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tree(tmp_path / "site", *TREES["pypi_unrelated"])))
    checkout = tree(tmp_path / "checkout", *TREES["nvidia"])
    assert classify().kind == "pypi_unrelated"
    assert classify(str(checkout)).kind == "nvidia"


@pytest.mark.parametrize("given", ["empty", "absent", "file"])
def test_a_path_without_a_package_is_none(tmp_path: Path, given: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert search_path(str(tmp_path / given)) is None
