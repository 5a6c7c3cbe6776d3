"""What the sampler hands over: read up to what is damaged, and refused where it is no file of the run."""

import json
import os
from pathlib import Path

import pytest
from standin.documents import document, sample

from bench.core.errors import RequestError
from bench.runs.spool import Spool, checked_line, read_spool, spool_path
from bench.runs.writer import RunWriter


def spooled(folder: Path) -> Path:
    path = Path(spool_path(str(folder), 1))
    spool = Spool(str(path))
    spool.append("memory", [sample(launch=1), sample(launch=1, t_ns=6)])
    spool.append("device", [sample("device", launch=1)])
    spool.close()
    return path


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    path = spooled(tmp_path)
    with path.open("ab") as file:
        file.write(b'["memory", {"la')
    assert {name: len(rows) for name, rows in read_spool(str(path)).items()} == {"memory": 2, "device": 1}


@pytest.mark.parametrize(
    "damage",
    [
        *(b"\0" * 4096 + b"\n", b'["memory", {"launch": 1, \xff\n', b"[" * 100_000 + b"\n"),
        json.dumps(["memory", sample(launch=1)]).encode() + b"\n",  # without a checksum
        *map(checked_line, ([], 5, ["memory", 5], ["another", {}], [["memory"], {}], ["memory", sample(launch=0)])),
        checked_line(["memory", sample(launch=1)]).replace(b"100.0", b"900.0"),
        checked_line(["memory", sample(launch=1) | {"mine": 1}]),
        checked_line(["memory", {"launch": 1, "scenario": "ddp"}]),
    ],
)
def test_what_lies_before_a_damaged_line_is_read(tmp_path: Path, damage: bytes) -> None:
    path = spooled(tmp_path)
    path.write_bytes(path.read_bytes() + damage + path.read_bytes())
    tables = read_spool(str(path))
    assert (len(tables["memory"]), len(tables["device"])) == (3, 1)
    end = tables["memory"][-1]
    assert "line 4 of " in end["reason"] and "its later samples are missing" in end["reason"]
    assert (end["source"], end["used_mib"]) == ("unavailable", None)


@pytest.mark.timeout(20)
def test_what_is_no_file_of_the_run_is_refused(tmp_path: Path) -> None:
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
