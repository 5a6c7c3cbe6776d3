"""A run that the last bench of schema 3 wrote is read as one of today, and its tables are those of then."""

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest
from standin.runs import analysed
from standin.workloads import workload

from bench.analyse.analysed import Analysed
from bench.core.codec import Damaged, decode, encode
from bench.core.records import SCHEMA_VERSION, canonical_json
from bench.history import nights
from bench.report.tables import summary_of
from bench.report.verdict_tables import for_csv
from bench.runs.check import findings
from bench.runs.document import RunDocument
from bench.runs.migrate import migrate, workload_from_3

DATA = Path(__file__).parents[1] / "data" / "run-schema3"
(STORED,) = DATA.glob("2*")
RENAMED = {
    "precision_percent": "half_width_percent",
    **{f"throughput{end}_img_s": f"throughput{end}_per_s" for end in ("", "_low", "_high")},
    **{f"energy_per_1000_images{end}_j": f"energy_per_1000{end}_j" for end in ("", "_low", "_high")},
}
"""Columns of tables that have another name today."""
REJUDGED = ["relative_low", "relative_high"]
"""Intervals of two launches a side, for which drift is allowed since."""


@pytest.fixture(scope="module")
def run() -> Analysed:
    return analysed(str(STORED))


def test_it_is_sound_and_of_the_schema_of_today(run: Analysed) -> None:
    assert findings(str(STORED)) == []
    assert (run.document.schema_version, run.document.request.label) == (SCHEMA_VERSION, "schema 3")
    assert len(run.document.launches) == 6 and len(run.document.diagnostics) == 3
    assert {one.forecast for one in run.document.diagnostics} == {None}


@pytest.mark.parametrize("name", ["summary", "findings", "parity", "communication", "time-spent"])
def test_its_tables_have_the_values_of_then(run: Analysed, name: str) -> None:
    then = pd.read_csv(DATA / "report" / f"{name}.csv").rename(columns=RENAMED)
    now = summary_of(run) if name == "summary" else for_csv(run)[name]
    assert len(now) == len(then)
    for column in then.columns.difference(["run", "text", "remedy", *REJUDGED]):
        ours = now[column].reset_index(drop=True)
        if pd.api.types.is_float_dtype(then[column]):
            assert ours.astype("float64").to_numpy() == pytest.approx(then[column].to_numpy(), nan_ok=True), column
        else:
            assert [None if pd.isna(one) else one for one in ours] == [
                None if pd.isna(one) else one for one in then[column]
            ], column


def test_its_digest_is_read_without_its_tables(run: Analysed) -> None:
    """Its figures have names without a unit today, and its workload is that of run.json."""
    then, now = json.loads((STORED / "digest.json").read_text()), nights.digest_of(str(STORED))
    assert now["workload"] == encode(run.document.workload)
    for old, new in zip(then.pop("scenarios"), now["scenarios"], strict=True):
        for before, after in zip(old.pop("launches"), new["launches"], strict=True):
            assert after["throughput_per_s"] == before.pop("throughput_img_s")
            assert after["energy_per_1000_j"] == before.pop("energy_per_1000_images_j")
            assert before.items() <= after.items()
        assert old.items() <= new.items()
    assert {name for name in then if now[name] != then[name]} == {"digest_version", "workload"}


def test_its_workload_is_that_of_an_equal_run_of_today(run: Analysed) -> None:
    work = run.document.workload
    now = workload(global_batch=work.global_batch, warmup=work.warmup, code_sha256=None, **work.settings)
    assert (work.hash, work.title, work.unit_short) == (now.hash(), now.title, now.unit_short)


@pytest.mark.parametrize("field", ["model", "seed", "learning_rate", "zero_init_residual"])
def test_other_work_has_another_hash(run: Analysed, field: str) -> None:
    stored = json.loads((STORED / "run.json").read_text())["workload"]
    others = {"model": "vgg11", "seed": 1, "learning_rate": 0.5, "zero_init_residual": False}
    del stored["hash"]
    other = stored | {field: others[field]}
    found = workload_from_3(other | {"hash": hashlib.sha256(canonical_json(other).encode()).hexdigest()})
    assert found["hash"] != run.document.workload.hash and len(found["hash"]) == 64


def test_a_hash_that_was_wrong_stays_wrong() -> None:
    document = json.loads((STORED / "run.json").read_text())
    document["workload"]["seed"] = 7
    assert workload_from_3(document["workload"])["hash"] == document["workload"]["hash"]


def test_its_document_survives_the_way_there_and_back(run: Analysed) -> None:
    assert decode(RunDocument, encode(run.document)) == run.document


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda one: one["launches"][2].pop("status"), "launches[2].status is missing"),
        (lambda one: one["launches"][0]["effective"].update(x=1), "launches[0].effective.x is unknown"),
        (lambda one: one["reference"].update(launch=None), "reference.launch must be int, not NoneType"),
        (lambda one: one.update(files=[]), "files must be an object, not list"),
    ],
)
def test_a_field_that_is_wrong_is_named(spoil: object, says: str) -> None:
    document = json.loads((STORED / "run.json").read_text())
    spoil(document)  # type: ignore[operator]
    with pytest.raises(Damaged) as caught:
        decode(RunDocument, migrate(document))
    assert str(caught.value) == says
