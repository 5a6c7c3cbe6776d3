"""A folder of runs as a history: which are nights, in which order, which are left out, and what was accepted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from standin.runs import DDP, FAST, write_run

from bench import nights, store
from bench.analyse.digest import of_run
from bench.errors import RequestError

UTC = "2026-01-03T00:00:00Z"


def digested(folder: Path, utc: str, **changes: Any) -> Path:
    """A run of that time with a digest, as ``bench run`` leaves it."""
    path = write_run(folder, [DDP, FAST], complete=False, **changes)
    writer = store.RunWriter.reopen(str(path))
    writer.document["start"]["utc"] = utc
    writer.finish(complete=True, digest=of_run, end={"utc": utc})
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, "the edit would change nothing"
    path.write_text(text.replace(old, new))


@pytest.fixture
def history(tmp_path: Path) -> Path:
    for day in ("03", "01", "02"):
        digested(tmp_path, f"2026-01-{day}T00:00:00Z")
    return tmp_path


def test_nights_are_in_the_order_of_their_start_and_not_of_their_names(history: Path) -> None:
    found = nights.read(str(history))
    assert [night.digest["utc"][8:10] for night in found.nights] == ["01", "02", "03"]
    assert [row["scenario"] for row in found.nights[0].digest["scenarios"]] == ["ddp", "ddp_o2"]
    assert (found.left_out, found.accepted) == ([], {})


def test_a_sealed_digest_is_read_and_not_made_again(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [
        nights.Night(path=night.path, digest=of_run(store.read(night.path)))
        for night in nights.read(str(history)).nights
    ]
    monkeypatch.setattr(store, "read", lambda path: pytest.fail(f"{path} was read whole"))
    assert nights.read(str(history)).nights == whole


@pytest.mark.parametrize("spoil", ["remove it", "another version", "another layout of run.json"])
def test_a_run_without_a_usable_digest_gets_one(history: Path, spoil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (before, *_) = nights.read(str(history)).nights
    if spoil == "remove it":
        shutil.rmtree(before.path)
        path = write_run(history, [DDP, FAST])  # as a bench before digests left it
        assert not (path / "digest.json").exists()
    elif spoil == "another version":
        monkeypatch.setattr("bench.analyse.digest.VERSION", 2)
    else:
        file = Path(before.path) / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text())))
    found = nights.read(str(history))
    assert (len(found.nights), found.left_out) == (3, [])
    if spoil == "another version":
        assert {night.digest["digest_version"] for night in found.nights} == {2}
    else:
        scenarios = [night.digest["scenarios"] for night in found.nights]
        assert all(one == before.digest["scenarios"] for one in scenarios)


def test_incomplete_torn_and_edited_runs_are_left_out_and_named(history: Path) -> None:
    sound = nights.read(str(history)).nights
    spoilt = {}
    for name, file, old, new in (
        ("digest edited", "digest.json", '"step_ms": 40.0', '"step_ms": 39.0'),
        (
            "its checksum edited",
            "run.json",
            '  "digest.json": {\n   "sha256": "',
            '  "digest.json": {\n   "sha256": "0',
        ),
    ):
        path = digested(history, "2026-01-05T00:00:00Z")
        edit(path / file, old, new)
        spoilt[name] = path
    for name, file, length in (("run.json torn", "run.json", 2000), ("digest torn", "digest.json", 200)):
        path = digested(history, "2026-01-06T00:00:00Z")
        (path / file).write_bytes((path / file).read_bytes()[:length])
        spoilt[name] = path
    spoilt["incomplete"] = write_run(history, [DDP], complete=False)
    spoilt["without digest.json"] = digested(history, "2026-01-07T00:00:00Z")
    (spoilt["without digest.json"] / "digest.json").unlink()
    spoilt["without run.json"] = digested(history, "2026-01-07T00:00:00Z")
    (spoilt["without run.json"] / "run.json").unlink()
    (history / "notes").mkdir()  # no run, and not named like one
    found = nights.read(str(history))
    assert found.nights == sound
    why = {Path(one.path): one.why for one in found.left_out}
    assert set(why) == set(spoilt.values())
    for name, reason in (
        ("digest edited", "changed after it was sealed"),
        ("its checksum edited", "changed after it was sealed"),
        ("run.json torn", "is damaged"),
        ("digest torn", "changed after it was sealed"),
        ("incomplete", "is incomplete"),
        ("without digest.json", "is missing"),
        ("without run.json", "has no run.json"),
    ):
        assert reason in why[spoilt[name]] and str(spoilt[name]) in why[spoilt[name]], name


def test_a_text_that_looks_like_a_seal_is_none(tmp_path: Path) -> None:
    label = '\n "complete": true,\n "files": {\n  "digest.json": {\n   "sha256": "' + "a" * 64 + '"\n  }\n }\n}\n'
    path = write_run(tmp_path, [DDP], complete=False, label=label)
    (path / "digest.json").write_text("{}")
    (left_out,) = nights.read(str(tmp_path)).left_out
    assert "is incomplete" in left_out.why


def test_verify_sees_what_the_digest_does_not_need(history: Path) -> None:
    night = nights.read(str(history)).nights[0]
    nights.verify(night)
    edit(Path(night.path) / "run.json", '"host": "host"', '"host": "other"')
    assert night in nights.read(str(history)).nights
    with pytest.raises(RequestError, match=r"run\.json was changed after it was sealed"):
        nights.verify(night)
    with pytest.raises(RequestError, match=r"run\.json was changed after it was sealed"):
        nights.read_one(night.path)


def test_a_folder_that_is_no_history_is_refused(history: Path) -> None:
    with pytest.raises(RequestError, match="--history: there is no folder"):
        nights.read(str(history / "absent"))
    with pytest.raises(RequestError, match="is a run itself; give the folder that holds"):
        nights.read(nights.read(str(history)).nights[0].path)
    (history / "empty").mkdir()
    assert nights.read(str(history / "empty")).nights == []


def test_what_was_accepted_holds_for_the_run_as_it_was(history: Path) -> None:
    first, second, third = nights.read(str(history)).nights
    for night in (first, second, third):
        nights.accept(str(history), night.path, f"because of {night.id}", UTC)
    found = nights.read(str(history))
    assert found.left_out == [] and found.nights == [first, second, third]
    assert {run: one.reason for run, one in found.accepted.items()} == {
        night.id: f"because of {night.id}" for night in (first, second, third)
    }
    store.RunWriter.reopen(second.path).finish(complete=True, digest=of_run, end={"utc": "later"})
    shutil.rmtree(third.path)
    (history / "accepted" / "torn.json").write_text('{"run": ')
    found = nights.read(str(history))
    assert list(found.accepted) == [first.id]
    why = " / ".join(one.why for one in found.left_out)
    assert f"{second.id} has changed since it was accepted" in why
    assert f"{third.id} was accepted and is no longer" in why
    assert "torn.json is damaged" in why


def test_accepting_again_replaces_and_an_unsound_run_is_refused(history: Path) -> None:
    night = nights.read(str(history)).nights[0]
    for reason in ("one", "another"):
        file = nights.accept(str(history), night.path, reason, UTC)
    assert nights.read(str(history)).accepted[night.id].reason == "another"
    assert [path.name for path in (history / "accepted").iterdir()] == [f"{night.id}.json"]
    Path(file).unlink()
    incomplete = write_run(history, [DDP], complete=False)
    with pytest.raises(RequestError, match="is incomplete"):
        nights.accept(str(history), str(incomplete), "no matter", UTC)
    assert list((history / "accepted").iterdir()) == []
