"""The checksum of a workload's code changes with what is trained, and with nothing else."""

from pathlib import Path

import pytest

from bench.core.files import sha256
from bench.seams import discover
from bench.seams.code import code_sha256

CODE = '''\
"""What people read."""

from bench.seams import Workload

WORKLOAD = Workload(summary="mine", unit="images")
MEAN: tuple[float, ...] = (0.485, 0.456)


class Mine:
    """A note."""

    def at(self, index, *rest, scale=1e-3, **more):
        return f"{index:>{len(rest)}} {scale!r}"


def example(work, index):
    # a comment
    match index:
        case {"x": int(x), **others} if others:
            return None
    return [x @ y for x, y in zip(MEAN, MEAN, strict=True)]


def check(work):
    raise ValueError("a reason")
'''
OF_CODE = "be05ad0b267bfbe89ed5dc7a5083c5e4288c8b57f19e328cfad49dbcb2cb33ff"
SAME = {
    "a comment": ("# a comment", "# another"),
    "the layout": ("(0.485, 0.456)", "(\n    0.485,\n    0.456,\n)"),
    "the docstring": ("What people read", "Something else"),
    "a note in a class": ("A note.", "Another."),
    "the declaration": ('summary="mine"', 'summary="yours"'),
    "what is refused": ("a reason", "another reason"),
    "a script": ("def check", "def recipe(work):\n    return 'mine'\n\n\ndef check"),
}
OTHER = {
    "a number": ("0.456", "0.457"),
    "a name": ("MEAN, MEAN", "MEAN, mean"),
    "a default": ("1e-3", "1e-4"),
    "a text": (">{", "<{"),
    "an operator": ("x @ y", "x * y"),
    "a condition": ("if others", "if x"),
    "a type": ("int(x)", "str(x)"),
    "nothing in place of something": ("return None", "return"),
    "an empty text": ("0.456)", "0.456, '')"),
    "an import": ("from bench.seams import Workload", "from bench.seams import Workload, RequestError"),
    "a function more": ("def check", "def weight(batch):\n    return 1\n\n\ndef check"),
}


@pytest.mark.parametrize("what", SAME | OTHER)
def test_what_changes_it(tmp_path: Path, what: str) -> None:
    """Stored runs are compared by it, so it is the same in every Python."""
    old, new = (SAME | OTHER)[what]
    (tmp_path / "mine.py").write_text(CODE.replace(old, new, 1))
    assert old in CODE and (code_sha256(str(tmp_path / "mine.py")) == OF_CODE) == (what in SAME)


def test_what_is_taken_from_another_workload_counts(tmp_path: Path) -> None:
    file, other = tmp_path / "mine.py", tmp_path / "other.py"
    file.write_text("from bench.workloads.other import loss\n")
    sums = []
    for text in ("def loss(model, batch): return 1\n", "def loss(model, batch): return 1  # one\n", CODE):
        other.write_text(text)
        sums.append(code_sha256(str(file)))
    assert sums[0] == sums[1] != sums[2]


def test_built_in_workloads_record_the_commit(tmp_path: Path) -> None:
    name, file = discover.resolve("gpt", discover.WORKLOAD)
    found = discover.load_workload(name, file)
    built_in = found.task("cpu", found.workload.settings_on("cpu"))
    assert (built_in.sha256, built_in.code_sha256) == (None, code_sha256(file))
    own = tmp_path / "mine.py"
    own.write_text(Path(file).read_text())
    mine = discover.load_workload("mine", str(own)).task("cpu", found.workload.settings_on("cpu"))
    assert (mine.sha256, mine.code_sha256) == (sha256(str(own)), None)
