"""Run folders: what is written is what is read, and what was cut off, changed or lost is refused by name."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial, reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import full_after
from jsonschema import Draft202012Validator
from standin import ROOT, complaints, refusal
from standin.documents import document, launch, sample
from standin.runs import APEX, BROKEN, DDP, FAST, GONE, write_run
from standin.schemas import SHIPPED, errors

from bench.core.codec import Damaged, decode, encode
from bench.core.errors import RequestError
from bench.core.records import SCHEMA_VERSION
from bench.runs import names, schema
from bench.runs.document import RunDocument, State
from bench.runs.experiments import BatchSearch, Bisected, Diagnosis, DiagnosticRecord, Numerics, Scaling
from bench.runs.files import append, check_file, check_writable, write_atomically
from bench.runs.journal import checked_line, journal_path
from bench.runs.launches import LaunchRecord
from bench.runs.names import find, run_ids
from bench.runs.reader import read, verified
from bench.runs.spool import Spool, read_spool, spool_path
from bench.runs.tables import COLUMNS
from bench.runs.writer import RunWriter
from bench.verbs.options import latest_or

ZERO: dict[str, Any] = {"int32": 0, "int64": 0, "float64": 0.0, "bool": False, "string": ""}


def row(table: str, **values: Any) -> dict[str, Any]:
    assert set(values) <= set(COLUMNS[table])
    return {name: ZERO[kind] for name, kind in COLUMNS[table].items()} | values


STEPS = [
    row("steps", scenario="ddp", rank=0, step=0, warmup=True, start_ns=2**62, step_ms=1.5, loss=6.9),
    row("steps", scenario="ddp", rank=0, step=1, step_ms=1.25, loss=math.nan),
    row("steps", scenario="ddp", rank=1, step=0, step_ms=1.75, loss=None),
]
MEMORY = [
    row("memory", scenario="ddp", t_ns=2**62, pid=2**40, device="cpu", used_mib=512.25, source="rss", reason=None),
    row("memory", scenario="ddp", device="cpu", used_mib=None, source="unavailable", reason="it was gone"),
]
DEVICE = [row("device", scenario="ddp", device="GPU-a", power_w=None, throttle_reasons=None, reason="not told")]


def record(number: int = 0) -> LaunchRecord:
    return launch(launch=number, repeat=number)


def finished(out: Path, *, complete: bool = True) -> Path:
    writer = RunWriter(str(out), document(bench="mine"))
    (Path(writer.logs) / "rank0.log").write_text("one\ntwo\n")
    writer.add(record(), steps=STEPS, memory=MEMORY, device=DEVICE)
    writer.finish(complete=complete, end=State(utc="2026-01-02T03:05:15Z", load_1min=0.5))
    return Path(writer.path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return finished(tmp_path / "results")


def written(path: Path) -> Any:
    return json.loads((path / "run.json").read_text())


def test_what_is_written_comes_back_and_is_sealed(run: Path) -> None:
    for table, rows in (("steps", STEPS), ("memory", MEMORY), ("device", DEVICE)):
        stored = pq.read_table(run / f"{table}.parquet")
        types = [(name, pa.type_for_alias(kind)) for name, kind in COLUMNS[table].items()]
        assert [(field.name, field.type) for field in stored.schema] == types
        assert repr(stored.to_pylist()) == repr(rows), "NaN stays NaN, and null stays null"
    document = written(run)
    assert (document["complete"], document["bench"], document["end"]["load_1min"]) == (True, "mine", 0.5)
    assert (document["schema_version"], document["run"]) == (SCHEMA_VERSION, run.name)
    assert document["launches"] == [encode(record())]
    files = document["files"]
    there = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    rows = {"steps.parquet": 3, "memory.parquet": 2, "device.parquet": 1, "logs/rank0.log": 2}
    assert {name: seal["rows"] for name, seal in files.items()} == rows and set(files) == there - {"run.json"}
    for name, seal in files.items():
        assert seal["sha256"] == hashlib.sha256((run / name).read_bytes()).hexdigest()


def added(out: Path, launches: int) -> RunWriter:
    """A run that is being written, as a SIGKILL leaves it."""
    writer = RunWriter(str(out), document())
    for number in range(1, launches + 1):
        steps = [row("steps", launch=number, scenario="ddp", step_ms=float(number))]
        writer.add(record(number), steps=steps, memory=[one | {"launch": number} for one in MEMORY])
    return writer


def test_what_double_precision_alone_holds_is_infinite(tmp_path: Path) -> None:
    """A deep network without normalisation: its gradients are infinite in fp32, and its run can be read."""
    writer = RunWriter(str(tmp_path), document())
    values = (1e99, -1e304, 2.0, -1e39, math.nan)
    about = {"launch": 0, "scenario": "ddp", "rank": 0, "quantity": "own", "step": 0, "tensor": 0, "twin": False}
    rows = [row("numerics", **about, position=at, value=value) for at, value in enumerate(values)]
    steps = [row("steps", scenario="ddp", step=at, loss=loss) for at, loss in enumerate((1e300, None))]
    writer.add(record(), steps=steps, numerics=rows)
    run = read(writer.path, allow_incomplete=True)
    assert repr(run.numerics["value"].to_list()) == "[inf, -inf, 2.0, -1e+39, nan]"
    assert run.steps["loss"][0] == math.inf and math.isnan(run.steps["loss"][1])


def test_a_launch_of_an_experiment_is_appended(tmp_path: Path) -> None:
    writer = RunWriter(str(tmp_path), document())
    sizes = []
    for number in range(1, 51):
        writer.add_to(Diagnosis, DiagnosticRecord.of(record(number)))
        sizes.append(sum(journal.stat().st_size for journal in Path(writer.path).glob(".parts/journal-*")))
        launches = verified(writer.path, allow_incomplete=True).begun(Diagnosis).launches
        assert [one.launch for one in launches] == list(range(1, number + 1))
    grown = [after - before for before, after in pairwise(sizes) if after > before > 0]
    assert max(grown) < 1.1 * min(grown), "what a launch takes does not grow with the run"
    writer.supersede(writer.document.begun(Diagnosis).launches[6])
    assert len(writer.document.begun(Diagnosis).launches) == 49
    writer.note(Scaling(counts=(1, 2), modes=("weak",), batch_per_rank=8))
    assert verified(writer.path, allow_incomplete=True) == writer.document


def test_a_torn_journal_is_read_up_to_there(tmp_path: Path) -> None:
    path = Path(added(tmp_path, 29).path)
    (journal,) = path.glob(".parts/journal-*")
    content = journal.read_bytes()
    in_run_json = len(written(path)["launches"])
    seen = set()
    for length in range(0, len(content), len(content) // 9):
        journal.write_bytes(content[:length] + b"\0" * 10)
        part = read(str(path), allow_incomplete=True)
        launches = [one.launch for one in part.document.launches]
        assert launches == list(part.steps["launch"]) == list(range(1, len(launches) + 1))
        seen.add(len(launches))
    assert seen == set(range(in_run_json, 29)), "one launch a line, and the last line is torn"
    assert not (path / "steps.parquet").exists(), "a launch rewrites no table"


@pytest.mark.parametrize("line", [5, ["+", [1]], [".", {"launches": ["-", []]}], [".", {"nothing": ["+", [1]]}]])
def test_a_journal_that_does_not_fit_is_refused(tmp_path: Path, line: Any) -> None:
    path = Path(added(tmp_path, 1).path)
    append(journal_path(str(path), written(path)["seal"]), checked_line(line))
    assert str(path / "run.json") in refusal(lambda: read(str(path), allow_incomplete=True)).problem


def test_a_killed_run_goes_on_and_ends_like_another(tmp_path: Path) -> None:
    """Its parts go, and so does what a SIGKILL left of a file."""
    path = added(tmp_path, 20).path
    for name in (".0123456789abcdef.part", ".mine.part", "logs/launch-021-ddp-rank0.log"):
        (Path(path) / name).touch()
    writer = RunWriter.reopen(path)
    assert os.listdir(writer.logs) == ["interrupted-launch-021-ddp-rank0.log"]
    assert [one.name for one in Path(path).glob(".*part*")] == [".mine.part"]
    assert read(path, allow_incomplete=True).steps.shape[0] == 20
    writer.add(record(21), steps=[row("steps", launch=21, scenario="ddp")], memory=[MEMORY[0] | {"launch": 21}])
    assert list(read(path, allow_incomplete=True).steps["launch"]) == list(range(1, 22))
    writer.finish(complete=True)
    again = read(path)
    assert list(again.steps["launch"]) == [one.launch for one in again.document.launches] == list(range(1, 22))
    assert len(again.memory) == 2 * 20 + 1


def test_a_kill_while_joining_tables_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = added(tmp_path, 3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(writer, "seal", lambda **how: (_ for _ in ()).throw(KeyboardInterrupt))
        writer.finish(complete=True)
    assert {"steps.parquet", "memory.parquet", ".parts"} < set(os.listdir(writer.path))
    again = read(writer.path, allow_incomplete=True)
    assert list(again.steps["launch"]) == [1, 2, 3] and len(again.memory) == 6


def test_an_incomplete_run_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = finished(tmp_path, complete=False)
    error = refusal(lambda: read(str(path)))
    assert "incomplete" in error.problem and "--allow-incomplete" in error.remedy
    assert len(read(str(path), allow_incomplete=True).steps) == len(STEPS)
    (path / "steps.parquet").unlink()
    assert f"{path}/steps.parquet is missing" in refusal(lambda: read(str(path), allow_incomplete=True)).problem
    empty = RunWriter(str(tmp_path), document())
    assert "no steps" in refusal(lambda: read(empty.path, allow_incomplete=True)).problem


def test_a_damaged_or_foreign_run_json_is_named(run: Path) -> None:
    whole = written(run)
    for version in (0, SCHEMA_VERSION + 1):
        (run / "run.json").write_text(json.dumps(whole | {"schema_version": version}))
        said = f"run.json has schema version {version} and this bench reads {SCHEMA_VERSION}"
        assert refusal(lambda: read(str(run))).problem.endswith(said)
    for content in (b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b"7", b"{}", b'{"complete": true}'):
        (run / "run.json").write_bytes(content)
        assert str(run / "run.json") in refusal(lambda: read(str(run))).problem, content
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("run.json")  # which nobody may look at, also not root
    assert "run.json cannot be read: Too many levels of symbolic links" in refusal(lambda: read(str(run))).problem


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(str(path), b"old")
    assert path.stat().st_mode & 0o777 == 0o644, "what the umask leaves"
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write_atomically(str(path), b"new")
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)
    (tmp_path / "link").symlink_to(path)
    write_atomically(str(tmp_path / "link"), b"not followed")
    assert (path.read_bytes(), (tmp_path / "link").lstat().st_mode & 0o777) == (b"new", 0o644)
    assert sorted(os.listdir(tmp_path)) == ["link", "run.json"]


@pytest.mark.parametrize("write", [write_atomically, append])
def test_a_full_disk_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], None]
) -> None:
    path = tmp_path / "run.json"
    write_atomically(str(path), b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with full_after(4096), pytest.raises(OSError) as at_write:
        write(str(path), b"x" * 100_000)
    with monkeypatch.context() as patched, pytest.raises(OSError) as at_flush:
        patched.setattr(os, "fsync", full)
        write(str(path), b"new")
    assert (at_write.value.errno, at_flush.value.errno) == (errno.EFBIG, errno.ENOSPC)
    assert at_write.value.filename == at_flush.value.filename == str(path)
    assert path.read_bytes() == b"old"
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write(str(tmp_path / "taken"), b"new")
    assert sorted(os.listdir(tmp_path)) == ["run.json", "taken"]


def test_latest_reads_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one second it is the one that was written last."""
    for at, name in enumerate(("20200101T000000Z-00000001", "20200102T000000Z-ffffffff", "20200102T000000Z-00000002")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (at, at))
    (tmp_path / "20990101T000000Z-no-run").mkdir()
    opened: list[str] = []
    monkeypatch.setattr(names, "stored", lambda path: opened.append(path) or {})
    assert find("latest", str(tmp_path)) == str(folder) and opened == [str(folder)]


@pytest.mark.parametrize(
    ("experiment", "hint"),
    [
        (Numerics(), "; finish the newer one: python -m bench run --resume "),
        (Scaling(counts=(2,), modes=("weak",), batch_per_rank=1), "; finish the newer one: python -m bench scale --re"),
        (Bisected(of="a", candidates={}, metric="step_time", error=0.05, low="a", high="b"), "-00000001\n"),
        (BatchSearch(), "-00000001\n"),
    ],
    ids=["run", "scale", "bisect", "killed"],
)
def test_what_is_looked_at_is_the_last_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, experiment: object, hint: str
) -> None:
    def note(writer: RunWriter) -> None:
        writer.note(experiment)
        if isinstance(experiment, BatchSearch):  # which is in the journal alone then
            monkeypatch.setattr(writer, "finish", lambda **rest: None)

    finished = write_run(tmp_path, [DDP])
    newer = write_run(tmp_path, [DDP], complete=False, also=note)
    for folder, name in ((finished, "20300101T000000Z-00000001"), (newer, "20300102T000000Z-00000002")):
        folder.rename(tmp_path / name)
    assert latest_or("latest", str(tmp_path), finished=True).endswith("-00000001")
    said = capsys.readouterr().err
    assert hint in said and ("--resume" in said) == ("--re" in hint)
    assert said.count("\n") == 1 and "-00000002 is not finished" in said
    assert latest_or("latest", str(tmp_path), finished=False).endswith("-00000002")
    assert latest_or("20300102", str(tmp_path), finished=True).endswith("-00000002")
    assert capsys.readouterr().err == ""


def test_checking_a_folder_leaves_it_as_it_was(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "a" / "b"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "link").symlink_to("mine")
    assert "link is a link, and would be replaced" in refusal(lambda: check_file("--csv", f"{tmp_path}/link")).problem


@pytest.mark.parametrize("place", ["{run}", "{run}/logs", "{run}/new/deep", "{link}", "{link}/new"])
def test_nothing_is_written_into_a_run(run: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(run)
    inside = place.format(run=run, link=tmp_path / "link")
    error = refusal(lambda: check_writable(inside))
    assert error.option == "--out" and f"lies in the run {run}" in error.problem
    if Path(inside).is_dir():
        assert "lies in the run" in refusal(lambda: check_file("--markdown", f"{inside}/summary.md")).problem
    (run / "run.json").write_text('{"of": "another program"}')
    check_writable(inside)


def test_printed_json_makes_no_run(run: Path) -> None:
    """``bench run --json > run.json`` writes what bench's own run.json has, and the path of the run."""
    own = json.loads((run / "run.json").read_text())
    folder = run.parent / "z"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"path": str(run), **own, "summary": []}))
    check_writable(str(folder / "reports"))
    check_file("--markdown", str(folder / "summary.md"))
    assert run_ids(str(run.parent), "RUN") == [run.name]
    assert "is what --json printed, not a run" in refusal(lambda: read(str(folder))).problem
    own["complete"] = False
    (folder / "run.json").write_text(json.dumps(own))
    assert run_ids(str(run.parent), "RUN") == [run.name, "z"], "a run may have another name"
    (run / "run.json").write_text("{")
    assert run_ids(str(run.parent), "RUN") == [run.name, "z"], "and a damaged one is still one"


def test_a_full_disk_is_no_place_for_a_run(tmp_path: Path) -> None:
    """Without the limit a run would import torch first, for ten seconds."""
    with full_after(1000):
        error = refusal(lambda: check_writable(str(tmp_path / "a")))
        with pytest.raises(RequestError, match="cannot be written: File too large; raise the limit on the size"):
            RunWriter(str(tmp_path), document())
    assert (error.option, error.remedy) == ("--out", "raise the limit on the size of a file ('ulimit -f')")
    assert os.listdir(tmp_path) == []


NAMES = ("20260101T000000Z-0ee71bdf", "20260102T000000Z-b8a7af4f", "20260102T010000Z-00000a0a")


def test_letters_that_only_one_run_has_are_enough(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    for called, place in (
        *(("0ee71bdf", 0), ("20260101", 0), ("20260102T000000Z-b8a7af4f", 1), ("latest", 2), ("0a0a", 2)),
        *((f"{tmp_path}/20260102T000000Z-b8a7af4f", 1), (f"{tmp_path}/20260102T000000Z-b8a7af4f/", 1)),
    ):
        assert find(called, str(tmp_path)) == str(tmp_path / NAMES[place])
    several = f"2 runs in {tmp_path} are called '20260102'"
    for called, problem in (("20260102", several), ("2026", "3 runs in"), ("bdf", "no run")):
        assert problem in refusal(partial(find, called, str(tmp_path))).problem


def test_all_of_a_spool_is_read_but_a_last_line_cut_off(tmp_path: Path) -> None:
    path = Path(spool_path(str(tmp_path), 1))
    rows = [sample(launch=1), sample(launch=1, t_ns=6)]
    spool = Spool(str(path))
    spool.append("memory", rows)
    spool.append("device", [sample("device", launch=1)])
    spool.close()
    with path.open("ab") as file:
        file.write(b'["memory", {"la')
    assert read_spool(str(path)) == {"memory": rows, "device": [sample("device", launch=1)]}
    with path.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ValueError, match="line 1 column 16"):
        read_spool(str(path))


@pytest.mark.timeout(20)
def test_a_spool_that_is_no_file_of_the_run_is_refused(tmp_path: Path) -> None:
    run = RunWriter(str(tmp_path), document())
    path = Path(spool_path(run.scratch, 1))
    for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
        make(path)
        with pytest.raises(OSError, match=str(path)):
            read_spool(str(path))
        path.unlink()
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")  # samples and logs would be written there
    with pytest.raises(RequestError, match=r"--resume: .*/\.scratch is a link"):
        RunWriter.reopen(run.path)


def test_shipped_schema_is_up_to_date() -> None:
    assert schema.text() == SHIPPED, "run: python -m bench.runs.schema > bench/runs/run.schema.json"
    Draft202012Validator.check_schema(json.loads(SHIPPED))


def test_docs_show_the_schema_and_how_to_use_it(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "runs.md").read_text()
    (excerpt,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert excerpt in SHIPPED
    (command,) = re.findall(r"`(check-jsonschema [^`]+) results/\*/run.json`", page)
    run = write_run(tmp_path, [DDP]) / "run.json"
    assert complaints(*command.split(), run, cwd=ROOT) == ""
    run.write_text(run.read_text().replace('"status": "ok"', '"status": "fine"'))
    assert "fine" in complaints(*command.split(), run, cwd=ROOT)


def test_what_the_reader_refuses_is_not_valid(tmp_path: Path) -> None:
    sound = written(write_run(tmp_path, [DDP, FAST, APEX, GONE, BROKEN]))
    assert errors(sound) == [] and decode(RunDocument, sound)
    for path, value in (
        *(("schema_version", 2), ("extra", 1), ("launches.0.extra", 1), ("launches.0.status", "fine")),
        *(("launches.0.launch", value) for value in ("0", True, -1)),
        *(("launches.0.wall_s", -1.0), ("launches.0.scenario", "x" * 256), ("launches.0.ranks", {})),
        *(("launches.0.ranks.0.pid", 0.5), ("launches.0.effective.tf32", {"cudnn": True})),
        *(("start.utc", "today"), ("workload", None), ("strategies.ddp.hue", "puce")),
        ("sources", {"ddp": {"file": "." * 4097, "sha256": ""}}),
        *(("experiments", {name: {}}) for name in ("frobnicate", "checkpoint")),
    ):
        document: Any = deepcopy(sound)
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        reduce(getitem, parents, document)[last] = value
        assert errors(document), path
        with pytest.raises(Damaged):
            decode(RunDocument, document)
