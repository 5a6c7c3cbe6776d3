"""The JSON Schema of run.json as it is shipped, which every run of the tests can be held against."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from bench.runs.check import findings
from bench.runs.reader import Run, read

SHIPPED = files("bench.runs").joinpath("run.schema.json").read_text()


def errors(document: dict[str, Any]) -> list[str]:
    validator = Draft202012Validator(json.loads(SHIPPED))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def is_valid(run: str | Path) -> bool:
    """Whether run.json is what the schema says; what is not is shown."""
    problems = errors(json.loads(Path(run, "run.json").read_text()))
    assert problems == []
    return not problems


def document_in(folder: Path) -> Any:
    """run.json of the only run in ``folder``, which may be incomplete."""
    (path,) = folder.iterdir()
    assert is_valid(path)
    return json.loads((path / "run.json").read_text())


def only_run() -> Run:
    """The only run in ``results``, which is sound."""
    (path,) = Path("results").iterdir()
    assert findings(str(path)) == [] and is_valid(path)
    return read(str(path))
