"""``bench.load`` and ``bench.compare``, the notebook that shows them, and pages of docs that follow the code."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from standin import ROOT
from standin.runs import BROKEN, DDP, FAST, write_run

import bench
from bench.analyse.between_runs import STEP_TIME
from bench.core.errors import RequestError
from bench.core.records import STEP_COLUMNS
from bench.runs import schema


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "results").mkdir()
    write_run(tmp_path / "results", [DDP, FAST, BROKEN])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_as_frames_and_figures(folder: Path) -> None:
    run = bench.load()
    assert list(run.summary["scenario"]) == ["ddp", "ddp_o2", BROKEN.scenario]
    assert {*STEP_COLUMNS} <= {*run.steps.columns} and {"launch", "used_mib"} <= {*run.memory.columns}
    assert list(run.launches["status"]) == ["ok", "ok", BROKEN.status]
    assert run.launches["median_ms"].tolist()[0] == 40.0 and pd.isna(run.launches["median_ms"].iloc[2])
    assert "ddp" in run.answer and run.answer in repr(run)
    assert isinstance(run.plot("speed"), Figure)
    with pytest.raises(RequestError, match="no plot 'sped'; choose from speed, "):
        run.plot("sped")


def test_two_runs_compared(folder: Path) -> None:
    (folder / "other").mkdir()
    new = bench.load(str(write_run(folder / "other", [DDP, FAST])))
    rows = bench.compare("latest", new)
    times = rows[rows["metric"] == STEP_TIME.name].set_index("scenario")
    assert times.loc["ddp", "ratio"] == 1.0 and times.loc["ddp", "verdict"] == "too few launches"


def test_the_notebook_runs(folder: Path) -> None:
    notebook = json.loads((ROOT / "docs" / "run.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # as a notebook does
    assert set(names["measured"]["scenario"]) == {"ddp", "ddp_o2", BROKEN.scenario}  # type: ignore[index]


def test_the_data_dictionary_is_up_to_date() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    assert page == schema.dictionary(), "run: python -m bench.runs.schema --dictionary > docs/data.md"


def test_troubleshooting_quotes_what_bench_says() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "bench").rglob("*.py"))
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    parts = [part.strip() for row in rows for quoted in re.findall(r"`([^`]+)`", row) for part in quoted.split("...")]
    assert len(parts) > 15 and [part for part in parts if part not in source] == []
