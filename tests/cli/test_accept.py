"""bench accept: a person says that a night is as it should be, and the gate goes by it."""

import json
import shutil
from pathlib import Path

import pytest
from standin import gated

from bench.cli import main

NAMES = ("ddp", "dp", "ddp_o2")
REASON = "checks for NaN in every step"


@pytest.fixture
def slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four nights in which ddp takes 5 % longer, after ten in which it does not; the first is the current folder."""
    monkeypatch.chdir(tmp_path)
    gated.nights(tmp_path / "results", 10, NAMES)
    return [
        gated.write(
            tmp_path / "results",
            gated.digest(day, [gated.usual(name, day, at, 1.05 if at == 0 else 1.0) for at, name in enumerate(NAMES)]),
        )
        for day in range(10, 14)
    ]


def gate(path: Path) -> int:
    return main(["gate", str(path), "--history", str(path.parent)])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_accepted_night_passes_and_becomes_the_base(slower: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert [gate(path) for path in slower] == [10, 10, 10, 10]
    before = files(slower[0].parent)
    capsys.readouterr()
    assert main(["accept", slower[1].name, "--reason", f"  {REASON} \n", "--json"]) == 0
    told = capsys.readouterr()
    assert f"Accepted {slower[1].name}: {REASON}" in told.err and f"accepted/{slower[1].name}.json" in told.err
    said = json.loads(told.out)
    assert (said["run"], said["reason"]) == (slower[1].name, REASON)
    assert json.loads(Path(said["file"]).read_text())["utc"] == said["utc"]
    after = files(slower[0].parent)
    (new,) = after.keys() - before.keys()
    assert new == f"accepted/{slower[1].name}.json" and before.items() <= after.items(), "runs are left as they are"
    assert json.loads(after[new])["reason"] == REASON
    assert [gate(path) for path in slower] == [10, 0, 0, 0]
    out = capsys.readouterr().out
    assert f"Accepted by a person ({REASON}): ddp step time +5." in out
    assert main(["gate", str(slower[3]), "--history", str(slower[0].parent), "--json"]) == 0
    rows = {(row["scenario"], row["metric"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["ddp", "step_time"]["nights"] == [slower[1].name, slower[2].name], "it starts anew"
    assert len(rows["dp", "step_time"]["nights"]) == 10, "what was not worse does not"


def test_check_does_not_take_it_for_a_run(slower: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    main(["accept", str(slower[0]), "--reason", REASON])
    capsys.readouterr()
    Path("results/reference").mkdir()
    main(["check", *(str(path) for path in slower[0].parent.iterdir())])
    out = capsys.readouterr().out
    assert f"{slower[0].name}: " in out and "accepted" not in out and "reference" not in out
    for name in ("accepted", "reference"):
        assert main(["check", f"results/{name}"]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1) and f"RUN: there is no run in results/{name}" in said.err
    kept = Path("results/reference/h100-2026-01-01") / slower[0].name
    shutil.copytree(slower[0], kept)
    main(["check", "results/reference", "--json"])
    assert [run["path"] for run in json.loads(capsys.readouterr().out)["runs"]] == [str(kept)], "in its stead"
    named_so = Path("results/20260101T000000Z-00000000")
    named_so.mkdir()
    main(["check", str(slower[0]), str(named_so)])
    assert f"{named_so.name}: {named_so} is not a run folder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("latest",), ("--reason", "required")),
        (("latest", "--reason", " \n"), ("--reason: it is empty; say why",)),
        (("absent", "--reason", "x"), ("there is no run 'absent'",)),
        (("", "--reason", "x"), ("RUN: it is empty",)),
        (("latest", "--reason", "x", "--history", ""), ("--history: it is empty",)),
        (("results", "--reason", "x"), ("is not a run folder",)),
        (("results/{run}", "--reason", "x", "--history", "absent"), ("RUN:", "is not in absent; copy it there first")),
        (("results/{run}", "--reason", "x", "--history", "elsewhere"), ("is not in elsewhere",)),
        (("{run}", "--reason", "x", "--history", "elsewhere"), ("there is no run",)),
        (("{torn}", "--reason", "x"), ("digest.json was changed after it was sealed",)),
        (("{run}", "--reason", "x"), ("--history: {here}/results/accepted cannot be written: File exists; ",)),
    ],
)
def test_what_cannot_be_accepted(
    slower: list[Path], arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("elsewhere").mkdir()
    Path("results/accepted").touch()
    (slower[3] / "digest.json").write_text("{}")
    before = files(Path())
    code = main(["accept", *(text.format(run=slower[0].name, torn=slower[3].name) for text in arguments)])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "") and said.err.count("\n") == 1
    for word in words:
        assert word.format(here=Path.cwd()) in said.err, said.err
    assert files(Path()) == before
