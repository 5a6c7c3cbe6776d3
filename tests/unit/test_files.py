"""A file that somebody else put there is opened only if it is one, small enough, and where it says it is."""

import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path

import pytest

from bench.core import files
from bench.core.files import open_regular, read_json
from bench.runs.files import write_atomically


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.json").write_text("{}")
    return tmp_path / "run"


def test_a_file_and_links_within_its_folder_are_read(folder: Path) -> None:
    (folder / "link.json").symlink_to("a.json")
    (folder.parent / "also").symlink_to(folder)
    for file in (folder / "a.json", folder / "link.json", folder.parent / "also" / "link.json"):
        assert read_json(str(file), within=str(file.parent)) == {"a": 1}
    assert read_json(str(folder / "link.json")) == {"a": 1}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file: os.mkfifo(file), "not a regular file"),
        (lambda file: file.mkdir(), "not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "outside"),
        (lambda file: file.symlink_to("../b.json"), "outside"),
        (lambda file: file.symlink_to(file), "not a regular file"),
        (lambda file: file.write_bytes(b" " * 101), "it has 101 bytes, and at most 100 are read"),
        (lambda file: None, "No such file"),
    ],
)
@pytest.mark.timeout(10)
def test_anything_else_is_refused_and_named(folder: Path, make: object, says: str) -> None:
    file = folder / "x.json"
    make(file)  # type: ignore[operator]
    with pytest.raises(OSError, match=says) as caught:
        open_regular(str(file), limit=100, within=str(folder))
    assert str(caught.value.filename) == str(file)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular("/dev/zero", limit=100)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', "[-Infinity]", "9" * 5000, "", "\xff"])
def test_what_is_no_json_is_a_value_error(folder: Path, text: str) -> None:
    (folder / "a.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError):
        read_json(str(folder / "a.json"))


def test_a_file_system_without_locks_and_syncs_of_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "as of CIFS or vboxsf")

    def lock(descriptor: int, how: int) -> None:
        raise OSError(errno.EBADF, "as of NFS where a folder is open for reading")

    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(files, "UNLOCKED_S", -1.0)
    write_atomically(str(folder / "new"), b"text")
    with files.scratch_folder("bench-here-") as first, files.scratch_folder("bench-here-"):
        assert os.path.isdir(first) and (folder / "new").read_bytes() == b"text"


def test_what_a_killed_owner_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(files, "UNLOCKED_S", -1.0)
    (tmp_path / "bench-here-abcdefgh" / "inner").mkdir(parents=True)
    (tmp_path / "bench-there-abcdefg").mkdir()
    (tmp_path / "bench-here-ijklmnop").symlink_to(tmp_path / "bench-there-abcdefg")
    with files.scratch_folder("bench-here-") as first, files.scratch_folder("bench-here-") as second:
        left = {"bench-there-abcdefg", "bench-here-ijklmnop"}
        assert {entry.name for entry in tmp_path.iterdir()} == {Path(first).name, Path(second).name} | left
    assert {entry.name for entry in tmp_path.iterdir()} == left
