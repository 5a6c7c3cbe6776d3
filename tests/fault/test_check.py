"""``bench check`` and the reader against folders that are damaged, edited, foreign, old or new."""

import contextlib
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Bench
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from standin import refusal
from standin.documents import launch as launched
from standin.runs import Launch, write_run
from standin.workloads import workload

from bench.analyse.analysed import Analysed
from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.runs import check, tables
from bench.runs.document import Finding, Recommendation
from bench.runs.files import describe_files, seal_of
from bench.runs.launches import RankRecord
from bench.runs.reader import read
from bench.runs.tables import COLUMNS, to_table
from bench.runs.writer import RunWriter

pytestmark = pytest.mark.fault

WORKLOAD = workload()
ITERS = 3
ABOUT = {"request": {"iters": ITERS}, "workload": {**asdict(WORKLOAD), "hash": WORKLOAD.hash()}}
WELL = Launch("ddp", [[10.0] * (1 + ITERS)] * 2, [[100.0]] * 2)
KILLED = Launch("single", [[10.0] * 2], status="killed", more={"failure": {"steps_kept": {"0": 2}}})
RANK = encode(RankRecord(rank=0, pid=1))
ADVICE = encode(Recommendation())
FINDING = encode(Finding(launch=7, code="slow", severity="warning", text="slow", remedy="wait"))


def record_of(launch: int, scenario: str) -> Any:
    return encode(launched(**replace(WELL, scenario=scenario).record(launch, 0)))


def sound(out: Path, *, complete: bool = True) -> Path:
    def log(writer: RunWriter) -> None:
        (Path(writer.logs) / "launch-000-ddp-rank0.log").write_text("hello\n")

    return write_run(out, [WELL, KILLED, replace(WELL, scenario="dp")], complete=complete, about=ABOUT, also=log)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return sound(tmp_path)


def document_of(run: Path) -> Any:
    return json.loads((run / "run.json").read_text())


def stored(run: Path, **changes: Any) -> None:
    (run / "run.json").write_text(json.dumps(document_of(run) | changes))


def sealed_as_is(run: Path, **changes: Any) -> None:
    """The run with another document and a seal that fits it; the checksums of its files are not looked at."""
    with contextlib.suppress(ValueError):
        changes["seal"] = seal_of(document_of(run) | changes)
    stored(run, **changes)


def resealed(run: Path, **changes: Any) -> None:
    """The same with seals of its files, as somebody who means it could make one."""
    sealed_as_is(run, files=encode(describe_files(str(run))), **changes)


def rewritten(run: Path, name: str, at: int | slice, values: dict[str, Any] | None) -> None:
    """With ``values`` in the rows of a table ``at`` this place; None: without those rows."""
    rows = pq.read_table(run / f"{name}.parquet").to_pylist()
    for row in rows[at] if isinstance(at, slice) else [rows[at]]:
        row.update(values or {})
    if values is None:
        del rows[at]
    pq.write_table(to_table(rows, COLUMNS[name]), run / f"{name}.parquet")
    resealed(run)


ALL = slice(None)
LIMIT = "1,000,000,000,000"


def test_a_sampler_that_was_stopped_is_a_finding(run: Path) -> None:
    rewritten(run, "memory", ALL, {"t_ns": 10**12})
    found = Analysed.of(read(str(run))).findings
    late = found[found["code"] == "sampled late"]
    assert list(late["launch"]) == [0, 2] and set(late["severity"]) == {"warning"}


@pytest.mark.parametrize(
    ("name", "at", "values", "says"),
    [
        ("steps", -1, None, "launch 2, rank 1: 4 steps were recorded and 0, 1, 2 are there"),
        ("steps", -1, {"step": 2}, "launch 2, rank 1: 4 steps were recorded and 0, 1, 2, 2 are there"),
        ("steps", 9, None, "launch 1, rank 0: 2 steps were recorded and 0 are there"),
        ("steps", ALL, None, "steps.parquet: it has no measured step of launch 0"),
        ("steps", 1, {"data_ms": 3.0}, "launch 0, rank 0, step 1: its phases do not add up"),
        ("steps", 1, {"forward_ms": None}, "launch 0, rank 0, step 1: its phases do not add up"),
        ("steps", 1, {"data_ms": -1.0}, f"data_ms must be from 0 to {LIMIT}, and is from"),
        ("steps", 1, {"step_ms": None}, "steps.parquet: step_ms is unknown in 1 of 18 rows"),
        ("steps", 1, {"step_ms": math.nan}, "steps.parquet: step_ms is not a number in some rows"),
        ("steps", 1, {"step_ms": math.inf}, f"step_ms must be from 0 to {LIMIT}, and is"),
        ("steps", 1, {"loss": -1e41}, "loss must be from -10,000,000,000,000,000,000,000,"),
        ("steps", 1, {"start_ns": 1_005_000_000}, "step 0 does not end where the next one starts"),
        ("steps", 2, {"start_ns": 1_021_000_000}, "step 1 does not end where the next one starts"),
        ("steps", 1, {"warmup": True}, "launch 0, rank 0: other steps than the first 1 are warm-up"),
        ("steps", slice(9, None), {"warmup": True}, "it has no measured step of launch 2"),
        ("steps", 0, {"rank": 7}, "rows of launch 0, rank 7, and there is no such rank"),
        ("steps", 0, {"scenario": "dp"}, "rows of launch 0 under another scenario"),
        ("steps", 0, {"repeat": 1}, "launch 0: its steps are of another scenario or repeat"),
        ("steps", slice(10, None), {"launch": 9}, "rows of launch 9, which has no record"),
        ("memory", 0, {"source": "rss "}, "memory.parquet: source is none of nvml_pid, "),
        ("memory", 0, {"used_mib": 0.0}, "1 values are 0, where they should be unknown"),
        ("memory", ALL, {"rank": None}, "memory.parquet: rank is unknown in 4 of 4"),
        ("memory", ALL, {"scenario": None}, "scenario is unknown in 4 of 4 rows"),
    ],
)
def test_unlawful_rows(run: Path, name: str, at: int | slice, values: dict[str, Any] | None, says: str) -> None:
    rewritten(run, name, at, values)
    assert any(says in line for line in check.findings(str(run))), check.findings(str(run))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"launches": [record_of(0, "ddp"), record_of(2, "dp")]}, "it has rows of launch 1, which has no record"),
        ({"launches": [record_of(0, "ddp"), record_of(0, "dp")]}, "run.json: the document has launch 0 twice"),
        ({"launches": [record_of(0, "ddp") | {"wall_s": 1e308}]}, "launches[0].wall_s is too large a number"),
        (
            {"launches": [record_of(0, "ddp"), record_of(1, "dp+tf32")]},
            "of 'dp+tf32', which was not asked for",
        ),
        ({"command": ["\x1b[31m", ["deep"]]}, "run.json: command[1] must be str, not list"),
        ({"\x1b[31m": 1}, 'run.json: "\\u001b[31m" is unknown'),
        ({"launches": [{"launch": 0}]}, "run.json: launches[0].status is missing"),
        ({"launches": [record_of(0, "ddp") | {"ranks": [RANK, RANK]}]}, "launches[0] has ranks 0, 0 and 2 processes"),
        ({"command": ["x" * 65537]}, "command[0] must be at most 65,536 characters long"),
        ({"command": ["\ud800"]}, "command[0] is not valid text: it has half a character"),
        ({"versions": {"\udcff": "1"}}, "versions['\\udcff'] is not valid text: it has half a character"),
        ({"launches": [record_of(0, "ddp") | {"precision": "O9"}]}, "precision must be one of O0, O1, O2, O3, not"),
        ({"recommendation": ADVICE | {"fastest": "gone"}}, "recommends 'gone', which has no launch"),
        ({"recommendation": ADVICE | {"parallel": ADVICE | {"leanest": "gone"}}}, "recommends 'gone', which has"),
        ({"validity": [FINDING]}, "has a verdict on launch 7, which has no record"),
        ({"workload": ABOUT["workload"] | {"global_batch": 16}}, "hash of the workload is not that of its fields"),
    ],
)
def test_a_contradictory_document_is_found(run: Path, changes: dict[str, Any], says: str) -> None:
    resealed(run, **changes)
    found = check.findings(str(run))
    assert any(says in line for line in found), found


def many(run: Path, rows: int) -> pa.Table:
    """A table of steps that says one thing so many times: a few bytes on disk."""
    zeros = pa.array(np.zeros(rows, dtype="int32"))
    words = pa.DictionaryArray.from_arrays(zeros, pa.array(["ddp"]))
    schema = pq.read_schema(run / "steps.parquet")
    return pa.table({one.name: words if one.type == pa.string() else zeros.cast(one.type) for one in schema})


def without(run: Path, column: str, *, rows: bool) -> None:
    table = pq.read_table(run / "memory.parquet").drop_columns([column])
    with pq.ParquetWriter(run / "memory.parquet", table.schema) as writer:
        if rows:
            writer.write_table(table)
    resealed(run)


def replaced(run: Path, name: str, make: Callable[[Path], Any] = os.mkfifo) -> None:
    (run / name).unlink()
    make(run / name)


LOG = "logs/launch-000-ddp-rank0.log"
OTHER = "memory.parquet: its columns are not those of memory.parquet"
ELSEWHERE = {"../../x": {"sha256": "", "rows": 0}}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda run: (run / "logs" / "notes.txt").write_text("mine"), "/logs/notes.txt does not belong to this run"),
        (lambda run: stored(run, bench="another"), "/run.json was changed after it was sealed"),
        (lambda run: stored(run, seal=None), "/run.json was changed after it was sealed"),
        (lambda run: stored(run, seal=None, bench=math.nan), "NaN is not a number in JSON"),
        (lambda run: sealed_as_is(run, files=document_of(run)["files"] | ELSEWHERE), "cannot be read: it lies outside"),
        (lambda run: without(run, "scenario", rows=True), OTHER),
        (lambda run: without(run, "t_ns", rows=False), OTHER),
        (lambda run: (pq.write_table(many(run, 3_000_000), run / "steps.parquet"), resealed(run)), "3,000,000 rows"),
        (lambda run: os.truncate(run / "steps.parquet", 3 << 30), "it has 3,221,225,472 bytes, and at most"),
        (lambda run: replaced(run, "run.json"), "/run.json cannot be read: it is not a regular file"),
        (lambda run: replaced(run, "steps.parquet"), "/steps.parquet cannot be read: it is not a regular file"),
        (lambda run: replaced(run, LOG), f"/{LOG} cannot be read: it is not a regular file"),
        (lambda run: replaced(run, LOG, lambda log: log.symlink_to("/dev/zero")), f"{LOG} cannot be read: it lies out"),
    ],
)
@pytest.mark.timeout(20)
def test_what_is_not_as_it_was_written_is_named(run: Path, damage: Callable[[Path], Any], says: str) -> None:
    damage(run)
    (found,) = check.findings(str(run))
    assert str(run) in found and says in found


def test_a_finished_run_has_no_parts(run: Path) -> None:
    """They are in no seal."""
    (run / ".parts").mkdir()
    rows = [row | {"rank": 1} for row in KILLED.step_rows(1, 0)]
    pq.write_table(to_table(rows, COLUMNS["steps"]), run / ".parts" / "steps-000001.parquet")
    assert check.findings(str(run)) == [] and len(read(str(run)).steps) == 18


def test_a_digest_of_118_mb_is_refused_by_name(run: Path) -> None:
    (run / "digest.json").touch()
    os.truncate(run / "digest.json", 118 << 20)
    sealed_as_is(run, files=document_of(run)["files"] | {"digest.json": {"sha256": "0" * 64, "rows": 0}})
    says = f"{run}/digest.json cannot be read: it has 123,731,968 bytes, and at most 8,388,608 are read"
    assert check.findings(str(run)) == [says]


def test_the_verb_says_what_it_found_and_ends_with_1(run: Path, bench: Bench) -> None:
    assert bench("check", run)[:2] == (0, f"{run.name}: as it was sealed\n")
    assert bench("check", "--rows", run)[:2] == (0, f"{run.name}: sound\n")
    rewritten(run, "steps", 0, {"forward_ms": 7.5})
    assert bench("check", run)[0] == 0
    code, said, _ = bench("check", run, "--rows")
    assert code == 1 and "launch 0, rank 0, step 0: its phases do not add up to it" in said
    (run / "steps.parquet").unlink()
    code, said, _ = bench("check", run, "--json")
    (found,) = json.loads(said)["runs"]
    assert (code, found["sound"], found["findings"]) == (1, False, [f"{run}/steps.parquet is missing"])
    assert bench("check", "20200101T000000Z-00000000", "--results", run.parent)[0] == 2


def test_an_unfinished_run_without_a_launch_and_a_log(tmp_path: Path) -> None:
    path = sound(tmp_path, complete=False)
    sealed_as_is(path, launches=document_of(path)["launches"][:-1])
    again = read(str(path), allow_incomplete=True)
    assert set(again.steps["launch"]) == {0, 1} and set(again.memory["launch"]) == {0}
    (path / "logs" / "launch-000-ddp-rank0.log").write_text("")
    assert f"{path}/logs/launch-000-ddp-rank0.log was changed after it was sealed" in check.findings(str(path))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound(tmp_path_factory.mktemp("pristine"))


FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(data=st.data(), name=st.sampled_from(["run.json", "steps.parquet", "memory.parquet", LOG]))
def test_a_flipped_bit_or_a_cut_is_never_accepted(pristine: Path, data: st.DataObject, name: str) -> None:
    copy = damaged(pristine, data, name)
    assert check.findings(str(copy)) != []
    refusal(lambda: read(str(copy)))


as_it_was = cache(read)


@FUZZ
@given(data=st.data(), name=st.sampled_from(["steps.parquet", "memory.parquet"]))
def test_a_damaged_table_of_an_incomplete_run(pristine: Path, data: st.DataObject, name: str) -> None:
    """Its tables may be younger than its run.json, so that their seals say nothing; their pages have checksums."""
    whole = as_it_was(str(pristine))
    copy = damaged(pristine, data, name)
    sealed_as_is(copy, complete=False)
    with contextlib.suppress(RequestError):
        again = read(str(copy), allow_incomplete=True)
        assert again.steps.equals(whole.steps) and again.memory.equals(whole.memory)


@pytest.mark.parametrize(
    ("look", "well"),
    [(os.abort, False), (signal.pause, False), (lambda: None, True), (lambda: 1 / 0, True)],
    ids=["ends", "waits", "well", "raises"],
)
def test_a_child_tries_what_may_end_it(look: Callable[[], object], well: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow aborts over about one in a hundred bits of a footer, where it should raise."""
    monkeypatch.setattr(tables, "CHILD_S", 20 if well else 0.5)
    assert tables._in_a_child(look) is well


def copied(pristine: Path) -> Path:
    copy = pristine.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(pristine, copy))


def damaged(pristine: Path, data: st.DataObject, name: str) -> Path:
    copy = copied(pristine)
    content = bytearray((copy / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 2))  # the last of run.json is a line's end, which says nothing
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    (copy / name).write_bytes(content)
    return copy


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
KEYS = ["launches", "experiments", "superseded", "files", "workload", "request", "complete", "schema_version"]


@FUZZ
@given(key=st.sampled_from(KEYS), value=JSON)
def test_any_value_anywhere_in_run_json_is_caught(pristine: Path, key: str, value: Any) -> None:
    copy = copied(pristine)
    assume(json.dumps(document_of(copy)[key]) != json.dumps(value))
    sealed_as_is(copy, **{key: value})
    assert check.findings(str(copy))


OPTIONS = (
    "run check report list compare gate history accept import --json --out --scenario single --iters --wait --resume "
    "--results latest --device cpu --gpus --baseline --history --reason --against --profile "
    "--until-precision --find-batch --seed --launches --help --allow-incomplete -- - ../.. 0 -1 99999999999"
)
WORDS = st.one_of(st.sampled_from(["", *OPTIONS.split()]), st.text(max_size=8))


@settings(FUZZ, max_examples=150)
@given(words=st.lists(WORDS, max_size=6))
def test_any_command_line_gives_no_traceback(bench: Bench, words: list[str]) -> None:
    """In a folder without runs; one that would really measure is refused by an output folder that cannot be."""
    nowhere = ["--out", "/proc/x"] if words[:1] == ["run"] else []
    try:
        code, _, shown = bench(*words, *nowhere)
    except SystemExit as leaving:
        assert leaving.code == 0 and {"--help", "-h"} & set(words)
        return
    helped = {"--help", "-h", "help", "--version", "list"} & set(words)
    assert code == 2 or (code == 0 and helped), (words, code, shown)
    assert "Traceback" not in shown
