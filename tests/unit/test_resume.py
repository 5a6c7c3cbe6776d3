"""What is left of a run, and where it may be gone on with."""

import argparse
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import Bench, request_for, serve_runs
from pyarrow import parquet
from standin import documents, program, refusal
from standin.documents import with_records
from standin.gated import sealed_again
from standin.runs import DDP, write_run

from bench import machine
from bench.cli import main
from bench.core.codec import encode
from bench.core.errors import RequestError
from bench.core.job import Computation, Job
from bench.experiments import lab, numerics, record, resume
from bench.experiments.launch import Performed
from bench.runs.document import EngineRecord, RunDocument
from bench.runs.experiments import CeilingsLaunch, Numerics, Scaling, Tuning
from bench.runs.files import describe_files
from bench.runs.launches import DoubleRecord
from bench.runs.reader import verified
from bench.seams import switching
from bench.sites.hosts.engine import engine_of
from bench.sites.local import WorkerHost
from bench.verbs import run, scale, together, tune

REQUEST = request_for(tuple(map(switching.scenario, ("single", "ddp"))), launches=2, diagnose=True)


def launch(number: int, scenario: str, repeat: int, status: str = "ok") -> dict[str, Any]:
    effective = {"replicas": 2 if scenario == "ddp" else 1} if status == "ok" else None
    return {"launch": number, "scenario": scenario, "repeat": repeat, "status": status, "effective": effective}


def document(*launches: dict[str, Any], **more: Any) -> RunDocument:
    return documents.document(**(parts(*launches) | more))


def parts(*launches: dict[str, Any]) -> dict[str, Any]:
    here = {"host": "here", "os": "Linux-5.15", "cpu": "some", "cores_usable": 2, "governor": "performance"}
    here |= {"gpus": [], "environment": {"OMP_NUM_THREADS": "1"}, "git": {"commit": "aaaa", "dirty": False}}
    return {
        "launches": list(launches),
        "request": asdict(REQUEST),
        "workload": {"hash": REQUEST.workload.hash()},
        "machine": here,
        "versions": {"python": "3.11.7", "torch": "2.15.0", "torchvision": "0.29.2"},
        "apex": {"version": "0.1", "problems": {"apex.amp": None, "apex.parallel": None}},
    }


def test_what_is_missing_of_a_run() -> None:
    run = document(launch(0, "single", 0), launch(1, "ddp", 0, "timeout"), launch(2, "ddp", 1, "unsupported"))
    assert resume.left(REQUEST, ["single", "ddp"], run.launches) == [("ddp", 0), ("single", 1)]
    assert not numerics.has_reference(run, None, ())
    assert resume.ended([CeilingsLaunch.of(run.launches[0])]) == set()  # no step was taken apart in it


def test_what_is_missing_of_the_numerics() -> None:
    both = (launch(0, "single", 0), launch(1, "ddp", 0))
    one, two = (encode(Computation(replicas=count, threads=1, examples=3 * count)) for count in (1, 2))
    reference = {"launch": 2, "status": "ok", "reason": None, "wall_s": 1.0, "computations": [one]}
    wanted = tuple(Computation(replicas=count, threads=1, examples=3 * count) for count in (1, 2))
    for changed, has in (({}, False), ({"computations": [one, two]}, True), ({"status": "killed"}, False)):
        assert numerics.has_reference(document(*both, reference=reference | changed), None, wanted) is has
    for status, done in (("ok", {"single"}), ("error", {"single"}), ("killed", set())):
        double = encode(DoubleRecord(launch=3, scenarios=("single",), status=status, reason=None, wall_s=1.0))
        assert numerics.in_double_already(document(*both, doubles=[double])) == done


SEARCH = Tuning(asked=("ddp",), budget_s=60.0, memory_limit_mib=None, floor="half", allow=(), baseline=None)
SCALING = Scaling(counts=(1, 2), modes=("weak",), batch_per_rank=8)


def test_what_is_missing_of_a_search_and_of_a_scaling() -> None:
    """Of a search that has no finalist, or none that ended, what was killed is."""
    good, bad = document(launch(0, "ddp", 0), complete=True), document(launch(0, "ddp", 0, "timeout"), complete=True)
    empty, killed = document(complete=True), document(launch(0, "ddp", 0, "killed"), complete=True)
    raced, ended = {}, {}
    for status in ("killed", "error"):
        raced[status] = replace(SEARCH, launches=document(launch(0, "ddp", 0, status)).launches)
        double = DoubleRecord(launch=1, scenarios=("ddp",), status=status, reason=None, wall_s=1.0)
        ended[status] = Numerics(doubles=(double,))
    chosen = replace(raced["killed"], finalists=("ddp",))
    for found, missing in (
        (with_records(empty, raced["killed"]), True),
        (with_records(empty, raced["error"]), False),
        (with_records(empty, SEARCH, ended["killed"]), True),
        (with_records(empty, SEARCH, ended["error"]), False),
        (with_records(good, chosen), False),
        (with_records(killed, chosen), True),
        (with_records(replace(good, complete=False), SEARCH), True),
        (with_records(good, SEARCH), False),
        (with_records(replace(good, complete=False), SCALING), True),
        (with_records(good, SCALING), False),
        (with_records(bad, SCALING), True),
    ):
        assert resume.anything_missing(found, REQUEST) is missing


def test_a_reference_whose_first_rank_was_ended_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank was done, and has counted nothing: that is the first rank's business."""
    kept: list[Any] = []
    writer = SimpleNamespace(document=document(), add_to=lambda *what, **tables: kept.append(what[1]))
    others = SimpleNamespace(
        next_launch=lambda: 3, site=SimpleNamespace(hosts=machine.here(())), request=REQUEST, writer=writer
    )

    def ended(job: Job, lab: Any, doing: str, keep: Callable[[Performed], str], rows_of: Any) -> None:
        about = replace(record.blank(job), status="killed", reason="interrupted")
        keep(Performed(job=job, record=about, results=[{"rank": 1, "passes": [], "work": {}}], tables={}))

    monkeypatch.setattr(numerics, "perform", ended)
    numerics._reference(others, None, (Computation(replicas=2, examples=8, threads=1),))
    assert [(one.launch, one.status) for one in kept] == [(3, "killed")]


def test_the_request_comes_back_as_it_was() -> None:
    assert resume.request_of(document()) == REQUEST
    with pytest.raises(RequestError, match="another version of bench"):
        resume.request_of(document(request={**asdict(REQUEST), "frobnicate": 1}))


def test_what_varies_freely_is_no_obstacle() -> None:
    free = {"governor": "powersave", "git": None}
    free |= {"environment": {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1"}}
    now = document(machine=parts()["machine"] | free, apex=parts()["apex"] | {"version": "0.2"})
    resume.check_same(document(), now)
    resume.check_same(now, document())


def on_a_gpu(problems: dict[str, str | None] | None = None, **changes: Any) -> RunDocument:
    made = parts()
    made["request"] |= {"device": "cuda", "devices": ["GPU-a"]}
    made["workload"]["device"] = "cuda"
    made["machine"]["gpus"] = [
        {"uuid": "GPU-a", "name": "H100", "driver": "550.1", "power_limit_w": 700.0} | changes,
        {"uuid": "GPU-b", "name": "not used", "driver": None, "power_limit_w": None},
    ]
    made["apex"]["problems"] |= problems or {}
    return documents.document(**made)


def other(part: str, name: str, value: Any) -> RunDocument:
    return document(**{part: parts()[part] | {name: value}})


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (other("machine", "cpu", "another"), "cpu was some and is another"),
        (other("machine", "cores_usable", 4), "cores_usable was 2 and is 4"),
        (other("versions", "torch", "2.16.0"), "torch was 2.15.0 and is 2.16.0"),
        (other("machine", "os", "Linux-6.8"), "os was Linux-5.15 and is Linux-6.8"),
        (other("machine", "environment", {"NCCL_P2P_DISABLE": "1"}), "THREADS was 1 and is absent; NCCL_P2P_DISABLE "),
        (other("machine", "git", {"commit": "bbbb", "dirty": False}), "bench was at commit aaaa and is at bbbb"),
        (other("machine", "git", {"commit": "aaaa", "dirty": True}), "commit aaaa and is at aaaa with changes"),
        (other("workload", "hash", "0"), "the workload of this request is another one"),
        (on_a_gpu(uuid="GPU-c"), "name of GPU-a was H100 and is absent"),
        (on_a_gpu(driver="580.2"), "driver of GPU-a was 550.1 and is 580.2"),
        (on_a_gpu(power_limit_w=350.0), "power_limit_w of GPU-a was 700.0 and is 350.0"),
        (on_a_gpu({"apex.amp": "it is gone"}), "apex was apex.amp 0.1, apex.parallel 0.1 and is no apex.amp, apex."),
    ],
)
def test_what_differs_is_named(now: RunDocument, says: str) -> None:
    before = on_a_gpu() if now.workload.device == "cuda" else document()
    resume.check_same(before, before)
    error = refusal(lambda: resume.check_same(before, now))
    assert error.option == "--resume" and says in error.problem


@pytest.mark.parametrize("option", ["--no-parity", "--no-diagnose", "--diagnose", "--fresh"])
def test_a_refused_option_is_named_as_given(bench: Bench, option: str) -> None:
    said = f"bench: error: {option}: a run is resumed with the options that it was started with"
    bench("run", "--resume", "latest", option).refused(said)


def resumed(bench: Bench, path: Path) -> str:
    said = bench("run", "--resume", path)
    said.refused()
    return said.err


@pytest.mark.parametrize(("name", "content"), [("run.json", "{"), ("run.json", "{}"), ("steps.parquet", "{")])
def test_a_changed_run_is_refused(bench: Bench, tmp_path: Path, name: str, content: str) -> None:
    for complete in (True, False):
        path = write_run(tmp_path / "results", [DDP], complete=complete)
        (path / name).write_text(content)
        assert resumed(bench, path).startswith(f"bench: error: --resume: {path if complete else ''}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scenarios", ["{theirs}/mine.py"]),
        *(("task", {**asdict(REQUEST.task), "file": file}) for file in ("{theirs}/mine.py", "mine.py")),
        ("task", {**asdict(REQUEST.task), "name": "mine", "file": "{theirs}/mine.py"}),
        ("site", "{theirs}/mine.py"),
        ("python", "{theirs}/python"),
        ("apex_path", "{theirs}"),
    ],
)
def test_code_in_a_run_folder_is_not_executed(bench: Bench, tmp_path: Path, name: str, value: Any) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "run.json").write_text("{}")
    for folder in (theirs, tmp_path):
        (folder / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    program(theirs / "python", f"#!/bin/sh\ntouch {tmp_path / 'executed'}\n")
    placed = json.loads(json.dumps(value).replace("{theirs}", str(theirs)))
    path = write_run(tmp_path / "results", [], complete=False, about={"request": asdict(REQUEST) | {name: placed}})
    said = resumed(bench, path)
    assert re.match(rf"bench: error: --resume: it would execute ({theirs}|mine\.py)", said), said
    assert "start a new run" in said and not (tmp_path / "executed").exists()


@pytest.mark.parametrize("part", ["site", "workload"])
def test_changed_code_is_refused(bench: Bench, tmp_path: Path, part: str) -> None:
    file = tmp_path / "resnet101.py"
    file.write_text("1 / 0\n")
    about = {"request": asdict(REQUEST), "sources": {}, "workload": {}}
    if part == "site":
        about["request"]["site"] = str(file)
        about["sources"] = {str(file): {"file": str(file), "sha256": "0" * 64}}
    else:
        about["workload"] = encode(REQUEST.workload) | {"file": str(file), "code_sha256": "0" * 64, "hash": None}
    path = write_run(tmp_path / "results", [], complete=False, about=about)
    assert f"{file} is not what it was when the run was started; start a new run" in resumed(bench, path)


def test_a_run_of_others_or_elsewhere_is_refused(bench: Bench, tmp_path: Path) -> None:
    path = write_run(tmp_path / "results", [], complete=False, about={"request": asdict(REQUEST) | {"python": "/no"}})
    (path / "logs" / "out").symlink_to(tmp_path)
    assert "logs/out is neither a file nor a folder" in resumed(bench, path)
    (path / "logs" / "out").unlink()
    assert "--python" in resumed(bench, path)  # the next obstacle
    if os.geteuid() == 0:
        os.chown(path / "logs", 65534, 65534)
        said = resumed(bench, path)
        assert "logs belongs to another user (UID 65534)" in said and f"cp -r {path} ." in said
        assert "--python" in resumed(bench, Path(shutil.copytree(path, tmp_path / "copy" / path.name)))


def test_of_a_finished_run_nothing_is_executed(bench: Bench, tmp_path: Path) -> None:
    gone = asdict(REQUEST.task) | {"file": str(tmp_path / "gone.py")}
    request = asdict(REQUEST) | {"scenarios": ["ddp"], "launches": 1, "diagnose": False, "parity": False, "task": gone}
    path = write_run(tmp_path / "results", [DDP], about={"request": request})
    code, out, err = bench("run", "--resume", path)
    assert code == 0 and "\nddp " in out, err
    assert "there is nothing to resume" in err
    table = parquet.read_table(path / "steps.parquet")
    parquet.write_table(table.append_column("launch", table["launch"]), path / "steps.parquet")
    sealed_again(path, files=encode(describe_files(str(path))))
    assert "steps.parquet" in resumed(bench, path)


def test_the_verb_that_goes_on_is_named(bench: Bench, tmp_path: Path) -> None:
    about = {"request": asdict(REQUEST)}
    scaled = write_run(tmp_path / "one", [DDP], about=about | {"experiments": {"scaling": encode(SCALING)}})
    plain = write_run(tmp_path / "two", [DDP], about=about)
    for path, verb in ((scaled, "scale"), (plain, "run")):
        bench("tune", "--resume", path).refused(f"that run is not of bench tune; go on with bench {verb} --resume")


def test_what_counts_as_a_change_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def dirty() -> bool:
        return bool(machine.describe([]).git.dirty)

    for name in ("bench/machine.py", "scenarios/ddp.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "all there is")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "bench" / "machine" / "__init__.py"))
    for name in ("notes.txt", "mine.py", "scenarios/notes.txt"):
        (tmp_path / name).write_text("")
    index = (tmp_path / ".git" / "index").read_bytes()
    os.utime(tmp_path / "scenarios" / "ddp.py", (1, 1))
    assert not dirty(), "a run that was begun before goes on"
    assert (tmp_path / ".git" / "index").read_bytes() == index, "git would lock it to write what it found"
    for name in ("scenarios/mine.py", "bench/worker/more.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
        assert dirty(), "it is found by its place, and runs"
        (tmp_path / name).unlink()
    git("mv", "scenarios/ddp.py", "scenarios/d\udce9.py")
    git("config", "core.quotePath", "false")  # where names are not in UTF-8, git says them as they are
    assert dirty()


@pytest.mark.parametrize("verb", [run, tune, scale], ids=lambda one: one.__name__)
def test_a_restarted_job_goes_on_with_its_run(verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was asked for is in the run, so that it is no reason to refuse."""
    seen: list[argparse.Namespace] = []
    monkeypatch.setattr(resume, "unfinished", lambda out, job: f"that of {job}" if out == "mine" else None)
    resumes = "resumed" if verb is run else "_resume"
    monkeypatch.setattr(verb, resumes, lambda options, *rest: seen.append(options) or 0)
    monkeypatch.setattr(together, "leading", lambda *about: nullcontext(party))
    monkeypatch.setattr(together, "_hello", lambda *about: None)
    party = SimpleNamespace(gather=lambda *about: None, job=lambda: "job 7", end=lambda code: code)
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    monkeypatch.setattr(together, "engine_of", lambda environment: engine_of(job))
    assert verb.main(["--scenario", "ddp", "--batch-per-rank", "4", "--out", "mine", "--json"]) == 0
    (options,) = seen
    assert (options.resume, options.out, options.json) == ("that of job 7", "mine", True)
    assert options.scenario is None and options.batch_per_rank is None


def test_a_restarted_job_knows_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, job_id, attempt, is_its_own in (
        ("torchrun", "job7", 0, True),
        ("TrainJob", "job7", 0, True),
        ("TrainJob", "job8", 0, False),
        ("Slurm", "job7", 0, False),
        ("Slurm", "job7", 1, True),
    ):
        begun = document(engine={"name": name, "run": "job7", "parent": "1-1", "attempt": 0})
        monkeypatch.setattr("sys.argv", ["bench", *begun.command])
        job = EngineRecord(name=name, run=job_id, parent="2-2", attempt=attempt)
        assert resume._is_of(begun, job) is is_its_own


@pytest.mark.parametrize(("verb", "kind"), [("scale", Scaling), ("tune", Tuning)])
def test_killed_before_its_first_launch(
    verb: str, kind: type[Any], host: WorkerHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_runs(host, monkeypatch)
    killed = Mock(side_effect=KeyError("as if by SIGKILL"))
    monkeypatch.setattr(lab, "_sealed", killed)
    monkeypatch.setattr(lab.RunWriter, "note", killed)
    work = ("--workload", "fashion_mlp", "--device", "cpu", "--scenario", "ddp", "--out", str(tmp_path))
    with pytest.raises(KeyError):
        main([verb, *work, *(("--counts", "2") if verb == "scale" else ())])
    (path,) = tmp_path.iterdir()
    found = verified(str(path), allow_incomplete=True)
    assert found.of(kind) is not None and resume.anything_missing(found, resume.request_of(found))
