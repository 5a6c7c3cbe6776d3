"""A folder of runs as a history: which are nights, in which order, which are left out, and what was accepted."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin import gated
from standin.runs import DDP, FAST, write_run

from bench.analyse import verdicts
from bench.analyse.digest import of_run
from bench.analyse.history import nights
from bench.analyse.verdicts import judged
from bench.core.errors import RequestError
from bench.runs.document import State
from bench.runs.reader import read as read_run
from bench.runs.writer import RunWriter

UTC = "2026-01-03T00:00:00Z"


def night(folder: Path, day: int) -> Path:
    return gated.write(folder, gated.digest(day, [gated.usual("ddp", day), gated.usual("dp", day)]))


@pytest.fixture(scope="module")
def run_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("template"), [DDP, FAST], complete=False)
    writer = RunWriter.reopen(str(path))
    writer.judge(verdicts.judged(writer.frames()))
    writer.finish(complete=True, digest=of_run(writer.frames()), end=State(utc=UTC))
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, "the edit would change nothing"
    path.write_text(text.replace(old, new))


@pytest.fixture
def history(tmp_path: Path) -> Path:
    for day in (2, 0, 1):
        night(tmp_path, day)
    return tmp_path


def test_nights_are_in_the_order_of_their_start(history: Path) -> None:
    early = gated.digest(0, [gated.usual("ddp", 0)], utc="2025-12-31T23:00:00Z", run="20260202T020000Z-00000000")
    gated.write(history, early)
    found = nights.read(str(history))
    assert [one.digest["utc"][:10] for one in found.nights] == ["2025-12-31", "2026-01-01", "2026-01-02", "2026-01-03"]
    assert [row["scenario"] for row in found.nights[1].digest["scenarios"]] == ["ddp", "dp"]
    assert (found.left_out, found.accepted) == ([], {})


def test_a_sealed_digest_is_read_and_not_made_again(run_with_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nights.Night(path=str(run_with_tables), digest=of_run(judged(read_run(str(run_with_tables)))))
    monkeypatch.setattr(nights, "read_run", lambda path, **how: pytest.fail(f"{path} was read whole"))
    assert nights.read(str(run_with_tables.parent)).nights == [whole]


@pytest.mark.parametrize("spoil", ["another version", "another layout of run.json", "no digest"])
def test_a_missing_digest(run_with_tables: Path, tmp_path: Path, spoil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = nights.read(str(run_with_tables.parent)).nights
    path = Path(shutil.copytree(run_with_tables, tmp_path / "history" / run_with_tables.name))
    document = json.loads((path / "run.json").read_text())
    if spoil == "another version":
        monkeypatch.setattr("bench.runs.digests.VERSION", 99)
        monkeypatch.setattr("bench.analyse.digest.VERSION", 99)
    elif spoil == "another layout of run.json":
        (path / "run.json").write_text(json.dumps(document))
    else:  # as a bench before digests left it
        (path / "digest.json").unlink()
        gated.sealed_again(path, files={name: one for name, one in document["files"].items() if name != "digest.json"})
    found = nights.read(str(path.parent))
    assert found.left_out == []
    version = {"digest_version": 99} if spoil == "another version" else {}
    assert [one.digest for one in found.nights] == [before.digest | version]


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:250])


CHECKSUM = '  "digest.json": {\n   "sha256": "'


@pytest.mark.parametrize(
    ("file", "spoil", "why"),
    [
        ("digest.json", lambda path: edit(path, '"world_size": 2', '"world_size": 4'), "changed after it was sealed"),
        ("digest.json", torn, "changed after it was sealed"),
        ("digest.json", Path.unlink, "is missing"),
        ("run.json", lambda path: edit(path, CHECKSUM, CHECKSUM + "0"), "changed after it was sealed"),
        ("run.json", torn, "is damaged"),
        ("run.json", Path.unlink, "has no run.json"),
    ],
)
def test_torn_and_edited_runs_are_left_out(history: Path, file: str, spoil: Callable[[Path], object], why: str) -> None:
    sound = nights.read(str(history)).nights
    path = night(history, 3)
    spoil(path / file)
    (history / "notes").mkdir()  # no run, and not named like one
    found = nights.read(str(history))
    (left_out,) = found.left_out
    assert found.nights == sound and left_out.path == str(path)
    assert why in left_out.why and str(path) in left_out.why


NO_FILE: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link out of the folder": lambda path: path.symlink_to("/etc/hostname"),
    "65 MiB": lambda path: (path.touch(), os.truncate(path, 65 << 20)),
    "nested": lambda path: path.write_text('{"run": ' + "[" * 100_000),
    "of a wrong type": lambda path: path.write_text('{"run": [[]], "reason": {}, "utc": 1, "sha256": null}'),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", ["RUN", "RUN/run.json", "RUN/digest.json", "accepted/x.json", "accepted", "run.json"])
@pytest.mark.parametrize("made", NO_FILE)
def test_one_bad_entry_does_not_stop_the_rest(history: Path, made: str, place: str) -> None:
    ninth = night(history, 9)
    before = nights.read(str(history)).nights
    bad = history / place.replace("RUN", ninth.name)
    if place == "RUN":
        shutil.rmtree(bad)
    bad.parent.mkdir(exist_ok=True)
    bad.unlink(missing_ok=True)
    NO_FILE[made](bad)
    if bad.name == "digest.json" and bad.is_file() and not bad.is_symlink():
        sealed_as_it_is(bad)
    found = nights.read(str(history))
    assert found.nights == [one for one in before if "RUN" not in place or one.id != ninth.name]
    fine = place == "run.json" or (place, made) == ("accepted", "a folder")
    named = [Path(one.path) for one in found.left_out]
    assert named == ([] if fine else [ninth if "RUN" in place else bad])


def sealed_as_it_is(digest: Path) -> None:
    with digest.open("rb") as file:
        seal = {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "rows": 0}
    gated.sealed_again(digest.parent, files={"digest.json": seal})


def test_a_sealed_digest_with_a_figure_that_is_none(tmp_path: Path) -> None:
    path = night(tmp_path, 9)
    sound = (path / "digest.json").read_text()
    for column, values, why in (
        ("step_ms", [1.0, "fast"], "scenarios[1].launches.step_ms[1] must be float, not str"),
        ("step_ms", [1.0, True], "step_ms[1] must be float, not bool"),
        ("step_ms", [1.0, -1.0], "step_ms[1] must be from"),
        ("step_ms", [1.0, 1e101], "step_ms[1] is too large a number"),
        ("peak_total_mib", [1.0, 1e16], "peak_total_mib[1] must be from"),
        ("repeat", [0, None], "repeat[1] must be int"),
        ("repeat", [0, 2.5], "repeat[1] must be int, not float"),
        ("more", [1], "more is unknown"),
        ("step_ms", None, "step_ms is missing"),
        ("step_ms", [1.0], ": a value is not there for each launch"),
    ):
        digest = json.loads(sound)
        columns = digest["scenarios"][1]["launches"]
        columns[column] = values
        if values is None:
            del columns[column]
        (path / "digest.json").write_text(json.dumps(digest))
        sealed_as_it_is(path / "digest.json")
        (left_out,) = nights.read(str(tmp_path)).left_out
        assert why in left_out.why


def test_links_out_of_the_folder_are_left_out(history: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    ninth = night(elsewhere, 9)
    (history / ninth.name).symlink_to(ninth)
    (history / "accepted").symlink_to(elsewhere)
    found = nights.read(str(history))
    assert len(found.nights) == 3
    assert ["is a link out of" in one.why for one in found.left_out] == [True, True]
    with pytest.raises(RequestError, match="accepted is a link out of"):
        nights.accept(str(history), found.nights[0].path, "no matter", UTC)


def test_a_text_that_looks_like_a_seal_is_none(tmp_path: Path) -> None:
    label = '\n "complete": true,\n "files": {\n  "digest.json": {\n   "sha256": "' + "a" * 64 + '"\n  }\n }\n}\n'
    path = write_run(tmp_path, [DDP], complete=False, label=label)
    (path / "digest.json").write_text("{}")
    (left_out,) = nights.read(str(tmp_path)).left_out
    assert "is incomplete" in left_out.why


def test_what_was_accepted_holds_for_the_run_as_it_was(history: Path) -> None:
    first, second, third = nights.read(str(history)).nights
    for one in (first, second, third):
        nights.accept(str(history), one.path, f"because of {one.id}", UTC)
    found = nights.read(str(history))
    assert found.left_out == [] and found.nights == [first, second, third]
    reasons = {run: one.reason for run, one in found.accepted.items()}
    assert reasons == {one.id: f"because of {one.id}" for one in (first, second, third)}
    gated.sealed_again(Path(second.path), resumed=["later"])
    shutil.rmtree(third.path)
    (history / "accepted" / "torn.json").write_text('{"run": ')
    found = nights.read(str(history))
    assert list(found.accepted) == [first.id]
    why = " / ".join(one.why for one in found.left_out)
    assert f"{second.id} has changed since it was accepted" in why
    assert f"{third.id} was accepted and is no longer" in why
    assert "torn.json is damaged" in why


def test_accepting_again_replaces_the_reason(history: Path) -> None:
    one = nights.read(str(history)).nights[0]
    for reason in ("one", "another"):
        file = nights.accept(str(history), one.path, reason, UTC)
    assert nights.read(str(history)).accepted[one.id].reason == "another"
    assert [path.name for path in (history / "accepted").iterdir()] == [f"{one.id}.json"]
    Path(file).unlink()
    incomplete = write_run(history, [DDP], complete=False)
    with pytest.raises(RequestError, match="is incomplete"):
        nights.accept(str(history), str(incomplete), "no matter", UTC)
    assert list((history / "accepted").iterdir()) == []


@pytest.mark.parametrize("name", ["steps.parquet", "memory.parquet"])
def test_a_run_that_lacks_a_file_is_no_night(run_with_tables: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(run_with_tables, tmp_path / "history" / run_with_tables.name))
    (path / name).unlink()
    found = nights.read(str(path.parent))
    assert found.nights == [] and [one.why for one in found.left_out] == [f"{path / name} is missing"]


def test_a_run_counts_once_under_several_names(history: Path) -> None:
    before = nights.read(str(history)).nights
    own, copies = Path(before[1].path), ("20200101T000000Z-0000000a", "20990101T000000Z-0000000b")
    for copy in copies:
        shutil.copytree(own, history / copy)
    found = nights.read(str(history))
    assert found.nights == before
    why = [f"{history / copy} is a copy of {own.name}: both are the run {own.name}" for copy in copies]
    assert [one.why for one in found.left_out] == why
    shutil.rmtree(own)
    assert copies[0] in [one.id for one in nights.read(str(history)).nights]
