"""``bench import``: others' measurements as runs, what stays unknown, and files that cannot be understood."""

import hashlib
from pathlib import Path

import pytest
from conftest import Bench
from standin.runs import DDP, Launch, write_run
from standin.schemas import is_valid

from bench.analyse.digest import of_run
from bench.runs.document import Imported, WorkloadRecord
from bench.runs.names import find
from bench.runs.reader import Run
from bench.runs.reader import read as read_run
from bench.runs.writer import RunWriter

HEADING = "launch,rank,step,step_ms,warmup,gpu"
ROWS = [
    f"{launch},{rank},{step},{100 if step == 0 else 40 + 10 * rank + step + launch / 10},{int(step == 0)},A100"
    for launch in range(3)
    for step in (2, 0, 1, 3)
    for rank in (1, 0)
]
FULL = "\n".join([HEADING, *ROWS])
"""Three launches of two ranks, their rows in disorder: of launch 0 the slower rank's measured steps take 51, 52, 53."""


def imported(bench: Bench, name: str, content: str, *options: str) -> Run:
    Path(name).write_text(content)
    run = read_run(bench("import", name, *options, "--json").well()["path"])
    assert is_valid(run.path)
    return run


def test_a_csv_becomes_a_sealed_run(bench: Bench) -> None:
    about = ("--scenario", "ddp", "--model", "resnet18", "--global-batch", "8", "--world-size", "2", "--label", "old")
    run = imported(bench, "times.csv", FULL, *about)
    said = run.document.of(Imported)
    assert said is not None and (said.file, said.left_out) == ("times.csv", ("gpu",))
    assert said.sha256 == hashlib.sha256(FULL.encode()).hexdigest()
    assert bench("check", "--rows", run.path) == (0, f"{run.id}: sound\n", "")
    first = run.steps[(run.steps["launch"] == 0) & (run.steps["rank"] == 1)]
    assert list(first["step_ms"]) == [100.0, 51.0, 52.0, 53.0], "in the order of the column step"
    assert list(first["warmup"]) == [True, False, False, False]
    (scenario,) = of_run(run)["scenarios"]
    assert scenario["launches"]["step_ms"] == pytest.approx([52.0, 52.1, 52.2])
    assert scenario["launches"]["throughput_per_s"][0] == pytest.approx(8000 / 52)
    assert (scenario["world_size"], scenario["parity"], scenario["what_ran"]) == (2, None, "")


def test_a_scenario_on_fewer_devices(bench: Bench, tmp_path: Path) -> None:
    single = write_run(tmp_path / "ours", [Launch("single", [[50, 10, 10, 20, 20]], strategy="single")] * 3)
    run = imported(bench, "t.csv", "launch,step_ms\n0,40\n1,41\n2,42\n", "--scenario", "single", "--world-size", "2")
    code, out, _ = bench("compare", run.path, single)
    assert code == 0 and "single: faster: step time" in out


def test_what_nobody_says_is_null(bench: Bench) -> None:
    """It is valid without a batch, and its steps cannot be more."""
    run = imported(bench, "times.csv", "step_ms\n40.5\n41.5\n90\n", "--scenario", "mine")
    assert run.document.workload == WorkloadRecord() and run.document.machine.host is None
    assert run.document.of(Imported).measured_utc is None
    assert run.steps[["start_ns", "data_ms", "backward_ms", "loss"]].isna().all(axis=None)
    made = of_run(run)
    columns = made["scenarios"][0]["launches"]
    assert [columns.pop(name) for name in ("launch", "repeat", "step_ms")] == [[0], [0], [41.5]]
    assert all(column == [None] for column in columns.values())
    assert (made["hardware"], made["replicas"], made["conditions"]["bench"]) == ([], None, None)
    assert bench("check", "--rows", run.path)[0] == 0
    assert bench("runs")[1].rstrip().endswith("  no speed is known")
    shown = bench("show", run.path).out
    assert shown.startswith("No speed is known: nothing says how many examples a step has.\n")
    assert "stop other jobs and let the script train longer" in shown


def test_its_next_command_is_as_a_shell_takes_it(bench: Bench) -> None:
    Path("t.csv").write_text("step_ms\n40\n41\n42\n")
    given = ("--model", "resnet18", "--image-size", 32, "--global-batch", 8, "--world-size", 1, "--warmup", 1)
    where = ("--device", "cpu", "--hardware", "a CPU", "--out", "my runs")
    code, out, _ = bench("import", "t.csv", "--scenario", "ddp", *given, *where)
    assert code == 0 and "Not known: memory, energy, numerics, what ran\n" in out
    (run,) = Path("my runs").iterdir()
    assert out.endswith(f"Next, against the latest run: python -m bench compare '{run}' latest\n")


def test_it_is_compared_and_named_as_imported(bench: Bench, tmp_path: Path) -> None:
    run = imported(bench, "times.csv", FULL, "--scenario", "ddp", "--global-batch", "8")
    ours = write_run(tmp_path / "results", [DDP] * 3)
    assert find("latest", "results").endswith(ours.name), "which is one that was measured"
    code, out, _ = bench("compare", run.path, "latest")
    assert code == 0 and f"base: {run.id}, imported from times.csv\n" in out
    assert "ddp: faster: step time -23" in out
    assert "warning: not known to be the same work: workload, " in out and "image size" in out
    assert "since a run does not say what ran: ddp" in out
    one = imported(bench, "one.csv", "step_ms\n40\n41\n60\n", "--scenario", "ddp", "--global-batch", "8")
    _, told, _ = bench("compare", ours, one.path)
    assert "warning: the new run has warnings: ddp (spread, few launches)\n" in told, told
    assert "where a step begins and ends is not known" in out
    document = bench("compare", run.path, ours, "--json").well()
    assert document["base"]["imported"]["file"] == "times.csv" and document["new"]["imported"] is None
    memory = next(row for row in document["comparisons"] if row["metric"] == "peak_memory")
    assert (memory["verdict"], memory["reason"]) == ("not comparable", "unknown in the base run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "resnet101"), "model: resnet101 against resnet18"),
        (("--device", "cuda"), "device: cuda against cpu"),
        (("--device", "cpu", "--hardware", "Another CPU"), "Another CPU"),
        (("--device", "cpu", "--hardware", "A CPU of host $x_1$"), None),
    ],
)
def test_what_differs_is_refused(bench: Bench, tmp_path: Path, options: tuple[str, ...], said: str | None) -> None:
    run = imported(bench, "times.csv", FULL, "--scenario", "ddp", *options)
    code, _, err = bench("compare", run.path, write_run(tmp_path / "ours", [DDP] * 3))
    assert (code, (said or "") in err) == (12 if said else 0, True), err


def test_several_scenarios_and_launches_of_a_csv(bench: Bench) -> None:
    rows = [f"{name},{launch},{ms}" for name, ms in (("dp", 50), ("ddp", 40)) for launch in "abc" for _ in range(3)]
    run = imported(bench, "times.csv", "\n".join(["scenario,launch,step_ms", *rows]), "--warmup", "1")
    launches = [(one.scenario, one.repeat, one.warmup, one.iters) for one in run.document.launches]
    assert launches == [(name, repeat, 1, 2) for name in ("dp", "ddp") for repeat in range(3)], "in the file's order"
    assert run.document.workload.warmup == 1
    assert bench("check", "--rows", run.path)[0] == 0
    code, out, _ = bench("compare", run.path, "--scenario", "dp")
    assert code == 0 and "dp against ddp: slower: step time +25.0 %" in out


def test_an_imported_run_has_no_page_and_no_resume(bench: Bench) -> None:
    run = imported(bench, "times.csv", FULL, "--scenario", "ddp")
    for arguments, said in (
        (("report", run.path), f"compare it: python -m bench compare {run.path} RUN"),
        (("report", run.id), f"compare it: python -m bench compare results/{run.id} RUN"),
        (("run", "--resume", run.path), "was imported"),
    ):
        bench(*arguments).refused(said)


SOUND, DDP_ALONE = "step_ms\n40\n", ("t.csv", "--scenario", "ddp")
CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "empty": ("", DDP_ALONE, "t.csv is empty"),
    "no column": ("time,rank\n1,0\n", DDP_ALONE, "has no column step_ms, only 'time', 'rank'"),
    "column twice": ("step_ms,step_ms\n1,1\n", DDP_ALONE, "has the column step_ms twice"),
    "word": ("step_ms\n40\nfast\n", DDP_ALONE, "line 3: step_ms is 'fast'"),
    "zero": ("step_ms\n0\n", DDP_ALONE, "line 2: step_ms is '0'"),
    "NaN": ("step_ms\nnan\n", DDP_ALONE, "line 2: step_ms is 'nan'"),
    "too long": ("step_ms\n1\n1e308\n", DDP_ALONE, "line 3: step_ms is '1e308' and no number of milliseconds from"),
    "missing cell": ("step_ms,rank\n40,0\n41\n", DDP_ALONE, "line 3: rank is '' and no whole number"),
    "more cells": ("step_ms\n40\n41,0\n", DDP_ALONE, "t.csv is no CSV: Expected 1 fields in line 3, saw 2"),
    "quote": ('step_ms\n"40\n', DDP_ALONE, "t.csv is no CSV: EOF inside string"),
    "rank": ("step_ms,rank\n40,one\n", DDP_ALONE, "line 2: rank is 'one' and no whole number"),
    "rank missing": ("step_ms,rank\n40,0\n40,2\n", DDP_ALONE, "ranks count from 0 without gaps"),
    "uneven ranks": ("step_ms,rank\n40,0\n41,0\n40,1\n", DDP_ALONE, "rank 1 has 1 steps and rank 0 has 2"),
    "other steps": ("step_ms,rank,step\n40,0,0\n40,1,1\n", DDP_ALONE, "rank 1 has other steps than rank 0"),
    "step twice": ("step_ms,step\n40,7\n40,7\n", DDP_ALONE, "line 3: the launch of ddp has step 7 of rank 0 twice"),
    "ESC": ("step_ms,scenario\n4,\x1b[31mred\n", ("t.csv",), r"line 2: scenario is '\x1b[31mred' and no name of one"),
    "right to left": ("step_ms,scenario\n4,a\n4,a\u202eb\n", ("t.csv",), r"line 3: scenario is 'a\u202eb'"),
    "no scenario": ("step_ms,scenario\n4,\n", ("t.csv",), "line 2: scenario is ''"),
    "flag": ("step_ms,warmup\n40,perhaps\n", DDP_ALONE, "line 2: warmup is 'perhaps'"),
    "late warm-up": ("step_ms,warmup\n40,0\n40,1\n", DDP_ALONE, "warm-up steps must be its first"),
    "all warm-up": ("step_ms\n40\n40\n", (*DDP_ALONE, "--warmup", "2"), "has 2 steps, all of them warm-up"),
    "more ranks": ("step_ms,rank\n4,0\n4,1\n", (*DDP_ALONE, "--world-size", "1"), "--world-size: 1 was given and"),
    "bytes": ("\udcff\udcfe", DDP_ALONE, "is not text in UTF-8"),
    "a long name": (f"step_ms,scenario\n1,{'a' * 256}\n", ("t.csv",), "at most 255 characters"),
    "no file": (SOUND, (), "FILE"),
    "not there": (SOUND, ("nowhere.csv", "--scenario", "ddp"), "nowhere.csv cannot be read: No such file"),
    "a folder": (SOUND, (".", "--scenario", "ddp"), "cannot be read: it is not a regular file"),
    "what was run": (SOUND, ("t.csv",), "--scenario: t.csv does not say what was run"),
    "a blank": (SOUND, ("t.csv", "--scenario", " "), "--scenario: ' ' is not the name of one scenario"),
    "a batch": (SOUND, (*DDP_ALONE, "--global-batch", "many"), "--global-batch"),
    "too many devices": (SOUND, (*DDP_ALONE, "--world-size", "1000000000"), "1000000000 devices are too many"),
    "hardware": (SOUND, (*DDP_ALONE, "--hardware", "A100"), "--hardware: it is unknown whether"),
    "a time": (SOUND, (*DDP_ALONE, "--measured", "yesterday"), "--measured"),
    "no folder": (SOUND, (*DDP_ALONE, "--out", "t.csv/out"), "--out"),
}


@pytest.mark.parametrize(("content", "arguments", "said"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_one_line(
    bench: Bench, tmp_path: Path, content: str, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "t.csv").write_bytes(content.encode(errors="surrogateescape"))
    bench("import", *arguments).refused(said)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_disk_that_is_full_leaves_nothing(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text(FULL)

    def full(*about: object, **tables: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunWriter, "put", full)
    bench("import", "t.csv", "--scenario", "ddp").refused("No space left on device")
    assert list((tmp_path / "results").iterdir()) == []
