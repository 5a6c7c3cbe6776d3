"""``bench check`` and the reader against folders that are damaged, edited, foreign, old or new."""

import contextlib
import io
import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from standin.documents import document, reference
from standin.documents import launch as launched
from standin.frames import step_rows
from standin.workloads import workload

from bench import cli
from bench.analyse.analysed import Analysed
from bench.core.codec import encode
from bench.core.errors import BenchError, RequestError
from bench.core.records import PHASES
from bench.runs import check, tables
from bench.runs.document import Finding, Recommendation
from bench.runs.experiments import Numerics
from bench.runs.files import checksum, describe_files, seal_of
from bench.runs.launches import RankRecord
from bench.runs.reader import read
from bench.runs.tables import COLUMNS, to_table
from bench.runs.writer import RunWriter

pytestmark = pytest.mark.fault

WORKLOAD = workload()
ITERS = 3


RANK = encode(RankRecord(rank=0, pid=1))
ADVICE = encode(Recommendation())
FINDING = encode(Finding(launch=7, code="slow", severity="warning", text="slow", remedy="wait"))


def steps_of(launch: int, scenario: str, ranks: int = 2, count: int = 1 + ITERS) -> list[dict[str, Any]]:
    phases = {f"{phase}_ms": 2.5 for phase in PHASES}
    rows = step_rows(launch, scenario, *[[10.0] * count] * ranks, warmup=1, loss=6.9, **phases)
    return [row | {"start_ns": 1_000_000_000 * (launch + 1) + 10_000_000 * row["step"]} for row in rows]


def memory_of(launch: int, scenario: str) -> list[dict[str, Any]]:
    head = {"launch": launch, "scenario": scenario, "host": "here", "t_ns": 1, "device": "cpu"}
    known = {"used_mib": 300.0, "source": "rss", "reason": None}
    return [{**head, "pid": 100 * launch + rank, "rank": rank, **known} for rank in range(2)]


def record_of(launch: int, scenario: str, status: str = "ok", **more: Any) -> dict[str, Any]:
    ranks = [{"rank": rank, "pid": 100 * launch + rank, "host": "here"} for rank in range(2)]
    head = {"launch": launch, "scenario": scenario, "status": status, "ranks": ranks}
    checks = {"conservation_ok": True, "finite_loss": True}
    found: dict[str, Any] = encode(launched(**head, checks=checks, **more))
    return found


def sound(out: Path, *, complete: bool = True) -> Path:
    writer = RunWriter(
        str(out),
        document(
            request={"scenarios": ["ddp", "single", "dp"], "iters": ITERS},
            workload={**asdict(WORKLOAD), "hash": WORKLOAD.hash()},
        ),
    )
    (Path(writer.logs) / "launch-000-ddp-rank0.log").write_text("hello\n")
    writer.add(launched(**record_of(0, "ddp")), steps=steps_of(0, "ddp"), memory=memory_of(0, "ddp"))
    failure = {"steps_kept": {"0": 2}}
    writer.add(launched(**record_of(1, "single", "killed", failure=failure)), steps=steps_of(1, "single", 1, 2))
    writer.add(launched(**record_of(2, "dp")), steps=steps_of(2, "dp"), memory=memory_of(2, "dp"))
    writer.finish(complete=complete)
    return Path(writer.path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return sound(tmp_path)


def document_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


def sealed_as_is(run: Path, **changes: Any) -> None:
    """The run with another document and a seal that fits it; the checksums of its files are not looked at."""
    document = document_of(run) | changes
    with contextlib.suppress(ValueError):
        document["seal"] = seal_of(document)
    (run / "run.json").write_text(json.dumps(document))


def resealed(run: Path, **changes: Any) -> None:
    """The same with seals of its files, as somebody who means it could make one."""
    sealed_as_is(run, files=encode(describe_files(str(run))), **changes)


def rewritten(run: Path, name: str, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    rows = pq.read_table(run / f"{name}.parquet").to_pylist()
    change(rows)
    pq.write_table(to_table(rows, COLUMNS[name]), run / f"{name}.parquet")
    resealed(run)


def test_a_sound_run_has_no_findings(run: Path) -> None:
    assert check.findings(str(run)) == []


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("missing", ["scenario", "t_ns"])
def test_a_table_without_a_column(run: Path, missing: str, rows: bool) -> None:
    table = pq.read_table(run / "memory.parquet").drop_columns([missing])
    with pq.ParquetWriter(run / "memory.parquet", table.schema) as writer:
        if rows:
            writer.write_table(table)
    resealed(run)
    with pytest.raises(RequestError, match=r"memory\.parquet: its columns are not those of memory\.parquet"):
        read(str(run))


def test_a_sampler_that_was_stopped_is_a_finding(run: Path) -> None:
    rewritten(run, "memory", lambda rows: [row.update(t_ns=row["t_ns"] + 10**12) for row in rows])
    found = Analysed.of(read(str(run))).findings
    late = found[found["code"] == check.LATE].drop(columns="size")
    assert list(late["launch"]) == [0, 2] and set(late["severity"]) == {"warning"}
    resealed(run, validity=[{**one, "size": None} for one in late.to_dict("records")])
    assert check.findings(str(run)) == []


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("steps", lambda rows: rows.pop(), "launch 2, rank 1: 4 steps were recorded and 0, 1, 2 are there"),
        ("steps", lambda rows: rows.append(rows[-1]), "launch 2, rank 1: 4 steps were recorded and 0, 1, 2, 3, 3 are"),
        ("steps", lambda rows: rows[1].update(data_ms=3.0), "launch 0, rank 0, step 1: its phases do not add up"),
        ("steps", lambda rows: rows[1].update(data_ms=None), "launch 0, rank 0, step 1: its phases do not add up"),
        ("steps", lambda rows: rows[1].update(step_ms=None), "steps.parquet: step_ms is unknown in 1 of 18 rows"),
        (
            "steps",
            lambda rows: rows[1].update(data_ms=-1.0),
            "data_ms must be from 0 to 1,000,000,000,000, and is from",
        ),
        ("steps", lambda rows: rows[1].update(step_ms=math.nan), "steps.parquet: step_ms is not a number in some rows"),
        ("steps", lambda rows: rows[1].update(step_ms=math.inf), "step_ms must be from 0 to 1,000,000,000,000, and is"),
        ("steps", lambda rows: rows[1].update(loss=-1e41), "loss must be from -10,000,000,000,000,000,000,000,"),
        ("steps", lambda rows: rows[2].update(start_ns=1_021_000_000), "step 1 does not end where the next one starts"),
        (
            "steps",
            lambda rows: rows[1].update(warmup=True),
            "launch 0, rank 0: other steps than the first 1 are warm-up",
        ),
        ("steps", lambda rows: rows[0].update(rank=7), "rows of launch 0, rank 7, and there is no such rank"),
        ("steps", lambda rows: rows[0].update(scenario="dp"), "rows of launch 0 under another scenario"),
        ("steps", lambda rows: rows[0].update(repeat=1), "launch 0: its steps are of another scenario or repeat"),
        ("steps", lambda rows: [row.update(launch=9) for row in rows[10:]], "rows of launch 9, which has no record"),
        ("steps", lambda rows: rows.clear(), "steps.parquet: it has no measured step of launch 0"),
        ("steps", lambda rows: [row.update(warmup=True) for row in rows[9:]], "it has no measured step of launch 2"),
        ("steps", lambda rows: rows.pop(9), "launch 1, rank 0: 2 steps were recorded and 0 are there"),
        ("memory", lambda rows: rows[0].update(source="rss "), "memory.parquet: source is none of nvml_pid, "),
        ("memory", lambda rows: rows[0].update(used_mib=0.0), "1 figures are 0, where they should be unknown"),
        ("memory", lambda rows: [row.update(rank=None) for row in rows], "memory.parquet: rank is unknown in 4 of 4"),
        ("memory", lambda rows: [row.update(scenario=None) for row in rows], "scenario is unknown in 4 of 4 rows"),
        (
            "memory",
            lambda rows: [row.update(t_ns=row["t_ns"] + 10**12) for row in rows],
            "launch 0, rank 0: its memory was sampled at another time than its steps were",
        ),
    ],
)
def test_unlawful_rows(run: Path, name: str, change: Callable[[list[dict[str, Any]]], Any], says: str) -> None:
    rewritten(run, name, change)
    assert any(says in line for line in check.findings(str(run))), check.findings(str(run))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"launches": [record_of(0, "ddp"), record_of(2, "dp")]}, "it has rows of launch 1, which has no record"),
        ({"launches": [record_of(0, "ddp"), record_of(0, "dp")]}, "run.json: the document has launch 0 twice"),
        (
            {"launches": [record_of(0, "ddp") | {"launch": -1}]},
            "launches[0].launch must be from 0 to 1,000,000,000, not -1",
        ),
        ({"launches": [record_of(0, "ddp") | {"wall_s": 1e308}]}, "launches[0].wall_s is too large a number"),
        ({"start": {"utc": "today", "load_1min": 0.1, "memory_available_gib": 1}}, "start.utc must be a time in UTC"),
        ({"versions": {"torch": {}}}, "run.json: versions['torch'] must be str, not dict"),
        ({"command": ["\x1b[31m", ["deep"]]}, "run.json: command[1] must be str, not list"),
        ({"\x1b[31m": 1}, 'run.json: "\\u001b[31m" is unknown'),
        ({"complete": False}, "is incomplete"),
        ({"launches": [record_of(0, "ddp") | {"status": "fine"}]}, "launches[0].status must be one of ok, oom"),
        ({"launches": [{"launch": 0}]}, "run.json: launches[0].status is missing"),
        ({"launches": [{}]}, "run.json: launches[0].launch is missing"),
        ({"launches": [record_of(0, "ddp") | {"mine": 1}]}, "run.json: launches[0].mine is unknown"),
        ({"launches": [record_of(0, "ddp") | {"ranks": [RANK, RANK]}]}, "launches[0] has ranks 0, 0 and 2 processes"),
        ({"launches": [record_of(0, "ddp") | {"scenario": "-" * 256}]}, "scenario must be at most 255 characters long"),
        ({"sources": {"ddp": {"file": "." * 4097, "sha256": ""}}}, "file must be at most 4,096 characters long"),
        ({"command": ["x" * 65537]}, "command[0] must be at most 65,536 characters long"),
        ({"command": ["\ud800"]}, "command[0] is no text: it has half a character"),
        ({"versions": {"\udcff": "1"}}, "versions['\\udcff'] is no text: it has half a character"),
        ({"strategies": {"ddp": {"hue": "puce", "dash": "solid", "differs": None}}}, "hue must be one of grey"),
        ({"launches": [record_of(0, "ddp") | {"precision": "O9"}]}, "precision must be one of O0, O1, O2, O3, not"),
        ({"recommendation": ADVICE | {"fastest": "gone"}}, "recommends 'gone', which has no launch"),
        ({"recommendation": ADVICE | {"parallel": ADVICE | {"leanest": "gone"}}}, "recommends 'gone', which has"),
        ({"validity": [FINDING]}, "has a verdict on launch 7, which has no record"),
        ({"workload": 3}, "run.json: workload must be an object, not int"),
        ({"launches": [record_of(0, "ddp") | {"repeat": "0"}]}, "run.json: launches[0].repeat must be int, not str"),
    ],
)
def test_a_document_that_does_not_hold_together_is_found(run: Path, changes: dict[str, Any], says: str) -> None:
    resealed(run, **changes)
    found = check.findings(str(run))
    assert any(says in line for line in found), found


def test_another_workload_than_its_hash_says_is_found(run: Path) -> None:
    workload = document_of(run)["workload"]
    resealed(run, workload={**workload, "global_batch": 16})
    assert any("the hash of the workload" in line for line in check.findings(str(run)))


def test_a_file_that_is_not_of_the_run_is_found(run: Path) -> None:
    (run / "logs" / "notes.txt").write_text("mine")
    assert check.findings(str(run)) == [f"{run}/logs/notes.txt does not belong to this run"]


def test_an_edit_of_run_json_is_refused_by_name(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"killed"', '"ok"'))
    with pytest.raises(RequestError, match=r"run\.json was changed after it was sealed"):
        read(str(run))


def many(run: Path, rows: int) -> pa.Table:
    """A table of steps that says one thing so many times: a few bytes on disk."""
    zeros = pa.array(np.zeros(rows, dtype="int32"))
    words = pa.DictionaryArray.from_arrays(zeros, pa.array(["ddp"]))
    schema = pq.read_schema(run / "steps.parquet")
    return pa.table({one.name: words if one.type == pa.string() else zeros.cast(one.type) for one in schema})


@pytest.mark.parametrize(
    ("bomb", "says"),
    [
        (lambda run: pq.write_table(many(run, 3_000_000), run / "steps.parquet"), "it says that it has 3,000,000 rows"),
        (lambda run: os.truncate(run / "steps.parquet", 3 << 30), "it has 3,221,225,472 bytes, and at most"),
    ],
)
def test_a_table_that_unpacks_to_too_much_is_refused(run: Path, bomb: Callable[[Path], Any], says: str) -> None:
    bomb(run)
    files = document_of(run)["files"]
    if (run / "steps.parquet").stat().st_size < 1 << 30:
        files["steps.parquet"]["sha256"] = checksum(str(run), "steps.parquet")
    sealed_as_is(run, files=files)
    (found,) = check.findings(str(run))
    assert f"{run}/steps.parquet" in found and says in found


def test_a_finished_run_has_no_parts(run: Path) -> None:
    """They are in no seal."""
    (run / ".parts").mkdir()
    rows = [row | {"launch": 1, "rank": 1} for row in steps_of(1, "single", 1)]
    pq.write_table(to_table(rows, COLUMNS["steps"]), run / ".parts" / "steps-000001.parquet")
    assert check.findings(str(run)) == [] and len(read(str(run)).steps) == 18


def test_a_digest_of_118_mb_is_refused_by_name(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open(run / "digest.json", "wb") as file:
        file.truncate(118 << 20)
    files = document_of(run)["files"]
    sealed_as_is(run, files=files | {"digest.json": {"sha256": "0" * 64, "rows": 0}})
    says = f"{run}/digest.json cannot be read: it has 123,731,968 bytes, and at most 8,388,608 are read"
    assert check.findings(str(run)) == [says]
    for verb in ("report", "gate"):
        assert cli.main([verb, str(run), *(("--baseline", str(run)) if verb == "gate" else ())]) == 2
        assert capsys.readouterr().err.startswith(f"bench: error: RUN: {says}; ")
    assert cli.main(["history", str(run.parent), "--out", str(tmp_path / "reports")]) in (0, 2)
    assert says in "".join(capsys.readouterr())


@pytest.mark.parametrize("place", ["steps.parquet", "run.json", "logs/launch-000-ddp-rank0.log"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda file: os.symlink("/dev/zero", file)])
@pytest.mark.timeout(20)
def test_what_is_no_file_of_the_run_is_refused_by_name(run: Path, place: str, make: Callable[[Path], Any]) -> None:
    (run / place).unlink()
    make(run / place)
    (found,) = check.findings(str(run))
    assert f"{run}" in found and ("cannot be read: it " in found or "no run.json" in found)


def test_a_seal_names_no_file_elsewhere(run: Path) -> None:
    files = document_of(run)["files"]
    sealed_as_is(run, files=files | {"../../x": {"sha256": "", "rows": 0}})
    assert "cannot be read: it lies outside" in check.findings(str(run))[0]


def test_without_a_seal_nothing_is_taken(run: Path) -> None:
    """With NaN in it the seal cannot be made: it was None, and so was one that was missing."""
    document = document_of(run)
    del document["seal"]
    for nan in ({}, {"load_1min": math.nan}):
        (run / "run.json").write_text(json.dumps(document | {"start": document["start"] | nan}))
        (found,) = check.findings(str(run))
        assert "was changed after it was sealed" in found or "NaN is not a number in JSON" in found


def test_the_verb_says_what_it_found_and_ends_with_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(run)]) == 0
    assert capsys.readouterr().out == f"{run.name}: as it was sealed\n"
    assert cli.main(["check", "--rows", str(run)]) == 0
    assert capsys.readouterr().out == f"{run.name}: sound\n"
    rewritten(run, "steps", lambda rows: rows[0].update(forward_ms=7.5))
    assert [cli.main(["check", str(run), *rows]) for rows in ([], ["--rows"])] == [0, 1]
    assert "launch 0, rank 0, step 0: its phases do not add up to it" in capsys.readouterr().out
    (run / "steps.parquet").unlink()
    assert cli.main(["check", str(run), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["sound"], found["findings"]) == (False, [f"{run}/steps.parquet is missing"])
    assert cli.main(["check", "20200101T000000Z-00000000", "--results", str(run.parent)]) == 2


def test_an_unfinished_run_without_a_launch_and_a_log(tmp_path: Path) -> None:
    path = sound(tmp_path, complete=False)
    sealed_as_is(path, launches=document_of(path)["launches"][:-1])
    again = read(str(path), allow_incomplete=True)
    assert set(again.steps["launch"]) == {0, 1} and set(again.memory["launch"]) == {0, 2}
    (path / "logs" / "launch-000-ddp-rank0.log").write_text("")
    assert f"{path}/logs/launch-000-ddp-rank0.log was changed after it was sealed" in check.findings(str(path))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound(tmp_path_factory.mktemp("pristine"))


FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(data=st.data(), name=st.sampled_from(["run.json", "steps.parquet", "memory.parquet"]))
def test_a_flipped_bit_or_a_cut_is_never_accepted(pristine: Path, data: st.DataObject, name: str) -> None:
    with damaged(pristine, data, name) as copy:
        assert check.findings(str(copy)) != []
        with pytest.raises(RequestError) as caught:
            read(str(copy))
        assert "\n" not in str(caught.value)


as_it_was = cache(read)


@FUZZ
@given(data=st.data(), name=st.sampled_from(["steps.parquet", "memory.parquet"]))
def test_a_damaged_table_of_an_incomplete_run(pristine: Path, data: st.DataObject, name: str) -> None:
    """Its tables may be younger than its run.json, so that their seals say nothing; their pages have checksums."""
    whole = as_it_was(str(pristine))
    with damaged(pristine, data, name) as copy:
        sealed_as_is(copy, complete=False)
        try:
            again = read(str(copy), allow_incomplete=True)
        except RequestError:
            return
        assert again.steps.equals(whole.steps) and again.memory.equals(whole.memory)


@pytest.mark.parametrize(
    ("look", "well"),
    [(os.abort, False), (signal.pause, False), (lambda: None, True), (lambda: 1 / 0, True)],
    ids=["ends", "waits", "well", "raises"],
)
def test_what_would_end_the_process_is_tried_in_a_child(
    look: Callable[[], object], well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow aborts over about one in a hundred bits of a footer, where it should raise."""
    monkeypatch.setattr(tables, "CHILD_S", 20 if well else 0.5)
    assert tables._in_a_child(look) is well


def copied(pristine: Path) -> Path:
    copy = pristine.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(pristine, copy))


@contextlib.contextmanager
def damaged(pristine: Path, data: st.DataObject, name: str) -> Iterator[Path]:
    copy = copied(pristine)
    content = bytearray((copy / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 2))  # the last of run.json is a line's end, which says nothing
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    (copy / name).write_bytes(content)
    yield copy


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
KEYS = ["launches", "experiments", "superseded", "files", "workload", "request", "complete", "schema_version"]


@FUZZ
@given(key=st.sampled_from(KEYS), value=JSON)
def test_any_value_in_any_place_of_run_json_is_refused_or_found(pristine: Path, key: str, value: Any) -> None:
    copy = copied(pristine)
    assume(json.dumps(document_of(copy)[key]) != json.dumps(value))
    sealed_as_is(copy, **{key: value})
    assert check.findings(str(copy))


OPTIONS = (
    "run check report list compare gate history accept import --json --out --scenario single --iters --wait --resume "
    "--results latest --device cpu --gpus --baseline --history --reason --config --against --profile "
    "--until-precision --find-batch --seed --launches --help --allow-incomplete -- - ../.. 0 -1 99999999999"
)
WORDS = st.one_of(st.sampled_from(["", *OPTIONS.split()]), st.text(max_size=8))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, max_size=6))
def test_any_command_line_gives_no_traceback(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    """In a folder without runs; one that would really measure is refused by an output folder that cannot be."""
    if words[:1] == ["run"]:
        words = [*words, "--out", "/proc/x"]
    here = Path.cwd()
    os.chdir(tmp_path_factory.getbasetemp())
    said, shown = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(shown):
            code = cli.main(words)
    except SystemExit as leaving:
        code = leaving.code  # type: ignore[assignment]
        assert "--help" in words or "-h" in words
    except BenchError as error:
        raise AssertionError(f"not translated: {error}") from error
    finally:
        os.chdir(here)
    helped = {"--help", "-h", "help", "--version", "list"} & set(words)
    assert code == 2 or (code == 0 and helped), (words, code, shown.getvalue())
    assert "Traceback" not in shown.getvalue()


def test_what_was_superseded_is_not_in_the_next_run_and_the_numbers_go_on(tmp_path: Path) -> None:
    writer = RunWriter(str(tmp_path), document())
    writer.add(launched(**record_of(0, "ddp", "killed")))
    failed = reference(launch=1, status="error")
    writer.note(Numerics(references=(failed,)))
    for record in (writer.document.launches[0], failed):
        writer.supersede(record)
    assert (writer.document.launches, writer.document.begun(Numerics).references) == ((), ())
    assert (len(writer.document.superseded), writer.document.next_launch) == (2, 2)
    assert RunWriter(str(tmp_path), document()).document.superseded == ()
