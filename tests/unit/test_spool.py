"""What the sampler hands over, and what is refused in its place."""

import os
from pathlib import Path

import pytest
from standin.documents import document, sample

from bench.core.errors import RequestError
from bench.runs.spool import Spool, read_spool, spool_path
from bench.runs.writer import RunWriter


def test_all_is_read_but_a_last_line_cut_off(tmp_path: Path) -> None:
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
