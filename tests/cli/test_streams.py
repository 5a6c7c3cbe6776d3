"""Standard streams as they come: no ±, closed, full, or a reader that leaves. One line at most, no traceback."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench, Plotting
from standin import ROOT, gated
from standin.runs import DDP, write_run

from bench import cli
from bench.core.codec import encode


def shell(command: str, here: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    set_up = f'bench() {{ {sys.executable} -m bench "$@"; }}; set -o pipefail; '
    kept = {name: value for name, value in os.environ.items() if name.startswith("PYTHONPYCACHE")}
    everything = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **kept, **environment}
    return subprocess.run(["bash", "-c", set_up + command], cwd=here, env=everything, capture_output=True, text=True)


def history_of(folder: Path, *names: str) -> Path:
    """With a history and a night of it, ``new``, that is slower: the gate's table has dashes and ±."""
    gated.nights(folder / "history", 3, names)
    night = gated.write(folder / "history", gated.digest(3, [gated.usual(name, 3, 0, 1.2) for name in names]))
    (folder / "new").symlink_to(night)
    return folder


@pytest.fixture
def regressed(tmp_path: Path) -> Path:
    return history_of(tmp_path, "ddp")


def test_an_encoding_without_dashes_shows_an_escape(regressed: Path) -> None:
    done = shell("bench gate new --history history", regressed, PYTHONIOENCODING="ascii")
    assert done.returncode == 10 and done.stderr == ""
    assert done.stdout.isascii() and "\\u2013" in done.stdout and done.stdout.startswith("Regressed: ddp")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_closed_or_full_stream_changes_nothing(regressed: Path, closed: str) -> None:
    done = shell(f"bench gate new --history history --json {closed}", regressed)
    assert done.returncode == 10 and "Traceback" not in done.stderr
    if closed.startswith("2>"):
        assert json.loads(done.stdout)["exit_code"] == 10  # and nothing for people in it
    else:
        assert done.stdout == ""


@pytest.mark.parametrize(("count", "json"), [(1, ""), (200, ""), (200, "--json")])
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, count: int, json: str) -> None:
    """Also of more than a buffer holds, so that a part of it is refused before its end."""
    here = history_of(tmp_path, *(f"ddp_{number}" for number in range(count)))
    done = shell(f"(sleep 0.2; bench gate new --history history {json}; echo $? >code) | true", here)
    assert "Broken pipe" not in done.stderr and (json or done.stderr == "")
    assert (here / "code").read_text() == "10\n"


@pytest.mark.parametrize("command", ["list --json", "--help", "gate new --history history"])
def test_a_full_disk_behind_stdout_is_one_line(regressed: Path, command: str) -> None:
    done = shell(f"bench {command} >/dev/full", regressed)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


def test_unforeseen_errors(regressed: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*about: Any) -> None:
        raise OSError(28, "No space left on device", "file")

    monkeypatch.setattr("bench.analyse.history.nights.accept", full)
    code, out, err = bench("accept", (regressed / "new").resolve(), "--reason", "x", "--json")
    assert code == json.loads(out)["exit_code"] == 1
    assert err.count("\n") == 1 and err.startswith("bench: error: ") and "No space left on device" in err


NEEDING = {"matplotlib": "history", "scipy": "run --device cpu --scenario single", "pyarrow": "attach -- true"}
"""Commands that say so before they measure anything."""


@pytest.mark.parametrize("library", NEEDING)
def test_a_missing_library(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    write_run(tmp_path / "results", [DDP])
    monkeypatch.setitem(sys.modules, library, None)
    done = bench(*NEEDING[library].split())
    line = f"bench: error: {library} is not installed for {sys.executable}; pip install {library}\n"
    assert (done.code, done.err) == (1, line)
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_an_import_that_an_interruption_breaks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled modules and Python's own classes make another error of it."""

    def half_imported(arguments: list[str]) -> int:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        raise AttributeError("partially initialized module")

    monkeypatch.setattr(cli, "_verb", lambda name: half_imported)
    done = bench("runs")
    assert (done.code, done.err) == (130, "bench: interrupted\n")


def test_a_label_of_bytes(tmp_path: Path, bench: Bench, plotting: Plotting) -> None:
    """As ``--label $'\\xff'`` comes from a shell; the run that has it is sealed, and must not be lost for its label."""
    about: dict[str, Any] = {"label": encode("night \udcff"), "host": encode("h\udcff")}
    first, second = (str(write_run(tmp_path / "results", [DDP], **about)) for _ in range(2))
    asked = [
        ["report", first],
        ["history"],
        ["compare", first, second, "--plot"],
        ["gate", second, "--baseline", first, "--markdown", "reports/gate.md", "--junit", "reports/gate.xml"],
    ]
    for arguments in asked:
        code, _, err = bench(*arguments)
        assert code in (0, 11), err
    assert "night \\udcff" in (tmp_path / "reports" / "index.html").read_text("utf-8")
    assert (tmp_path / "reports" / "history.html").read_text("utf-8")
    assert r"(night \\udcff)" in (tmp_path / "reports" / "comparison.md").read_text("utf-8")


@pytest.mark.slow  # matplotlib looks for all fonts of this machine
def test_a_read_only_home_is_no_matter(tmp_path: Path) -> None:
    """matplotlib keeps a cache of fonts in it, and says so in two long lines where it cannot. It also waits for what
    lies in the working directory under the name of its settings."""
    os.mkfifo(tmp_path / "matplotlibrc")
    run = write_run(tmp_path / "results", [DDP])
    done = shell(f"bench report {run}", tmp_path, HOME="/proc")
    assert (done.returncode, done.stderr) == (0, "")
