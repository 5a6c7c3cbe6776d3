"""The JSON Schema of run.json is that of the types, and takes what the reader takes."""

import json
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from standin import ROOT, complaints
from standin.runs import APEX, BROKEN, DDP, FAST, GONE, write_run
from standin.schemas import SHIPPED, errors

from bench.core.codec import Damaged, decode
from bench.runs import schema
from bench.runs.document import RunDocument


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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("schema_version", 2), ("extra", 1), ("launches.0.extra", 1), ("launches.0.status", "fine")),
        *(("launches.0.launch", value) for value in ("0", True, -1)),
        *(("launches.0.wall_s", -1.0), ("launches.0.scenario", "x" * 256), ("launches.0.ranks", {})),
        *(("launches.0.ranks.0.pid", 0.5), ("launches.0.effective.tf32", {"cudnn": True})),
        *(("start.utc", "today"), ("workload", None), ("strategies.ddp.hue", "puce")),
        ("sources", {"ddp": {"file": "." * 4097, "sha256": ""}}),
        *(("experiments", {name: {}}) for name in ("frobnicate", "checkpoint")),
    ],
)
def test_what_the_reader_refuses_is_not_valid(tmp_path: Path, path: str, value: Any) -> None:
    document = json.loads((write_run(tmp_path, [DDP, FAST, APEX, GONE, BROKEN]) / "run.json").read_text())
    assert errors(document) == [] and decode(RunDocument, document)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    reduce(getitem, parents, document)[last] = value
    assert errors(document)
    with pytest.raises(Damaged):
        decode(RunDocument, document)
