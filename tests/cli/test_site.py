"""A site of one's own: one file, and every verb works on its runs."""

import os
import select
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import Bench, planned
from standin import documented
from standin.processes import nobody_left

from bench import machine
from bench.core.channel import Channel
from bench.experiments import launch
from bench.seams import discover, execute
from bench.seams.site import Connected, Options
from bench.sites.local import WorkerHost
from bench.worker.door import Door


@pytest.fixture
def torchrun(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(repository))  # where its ranks find bench
    file = tmp_path / "torchrun_site.py"
    file.write_text(documented("SITE ="))
    return str(file)


@pytest.fixture
def mlp(tmp_path: Path) -> str:
    """A workload whose ranks, which are new interpreters, have nothing but torch to import."""
    file = tmp_path / "mlp.py"
    file.write_text(documented("WORKLOAD ="))
    return str(file)


@pytest.mark.slow
def test_a_site_of_torchrun_is_one_file(torchrun: str, mlp: str, bench: Bench) -> None:
    options = ("--device", "cpu", "--scenario", "ddp", "--workload", mlp, "--warmup", "1", "--iters", "3", "--json")
    Path("secrets.py").write_text("open('executed', 'w')\n")
    foreign = bench("run", *options, "--site", "./torchrun_site.py").well()
    assert not Path("executed").exists(), "nothing is imported from the working directory"
    (launch,) = foreign["launches"]
    assert foreign["request"]["site"] == torchrun == foreign["sources"][torchrun]["file"]
    assert (launch["status"], launch["effective"]["world_size"], launch["effective"]["backend"]) == ("ok", 2, "gloo")
    each = (foreign["machine"]["host"], max(1, foreign["machine"]["cores_usable"] // 2))
    assert [(rank["host"], rank["threads"]) for rank in launch["ranks"]] == [each] * 2
    (reference,) = foreign["experiments"]["numerics"]["references"]
    assert reference["status"] == "ok" and foreign["parity"], "the reference came by torchrun, too"
    local = bench("run", *options).document
    weights = [{rank["final_sha256"] for rank in run["launches"][0]["ranks"]} for run in (foreign, local)]
    assert weights[0] == weights[1], "both sites train the same"
    assert bench("report", foreign["path"])[0] == 0
    compared = bench("compare", local["path"], foreign["path"], "--json").well()
    assert {row["scenario"] for row in compared["comparisons"]} == {"ddp"}


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "status", "first"), [("SIGKILL", "killed", 1), ("SIGSTOP", "timeout", 1), ("host", "killed", None)]
)
def test_a_broken_torchrun_leaves_nobody(
    torchrun: str, mlp: str, tmp_path: Path, fault: str, status: str, first: int | None
) -> None:
    """Its host, or rank 1, after its first step."""
    command = execute.load_file("torchrun_site", torchrun, discover.SITE).command
    task = discover.load_workload("mlp", mlp).task("cpu", {"width": 32})
    stall_s = 10.0 if fault == "SIGSTOP" else 60.0
    job = replace(planned(iters=100000, stall_timeout_s=stall_s, task=task).job, logs=str(tmp_path))
    pids: dict[int, int] = {}

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "up":
            pids[event["rank"]] = event["pid"]
        if event["event"] == "step" and event["rank"] == 1:
            if fault == "host":
                host.process.kill()
            else:
                os.kill(pids[1], signal.Signals[fault])

    with WorkerHost(Options(device="cpu", hosts=machine.here(()), log=str(tmp_path / "log")), command) as host:
        host.wait_until_ready()
        outcome = host.perform(job, hear)
    assert (outcome.status, outcome.first_failed_rank) == (status, first), outcome.reason
    assert len(pids) == 2 and nobody_left([*pids.values()])


def test_nobody_comes_in_without_the_token() -> None:
    door = Door(2)
    host, _, port = door.environment["BENCH_SUPERVISOR"].rpartition(":")
    assert host == "127.0.0.1"

    def knock(**said: Any) -> list[Any]:
        caller = Channel(socket.create_connection((host, int(port))))
        caller.socket.sendall(said["raw"]) if "raw" in said else caller.send(**said)
        admitted: list[Any] = []
        while not admitted and (door.callers or select.select([door.listener], [], [], 0)[0]):
            admitted += door.admit(select.select([door.listener, *door.callers], [], [])[0])
        return [(rank, pid) for rank, pid, _ in admitted]

    hello = {"event": "hello", "rank": 1, "pid": 7, "token": door.token}
    assert knock(**hello) == [(1, 7)]
    assert knock(**{**hello, "token": "guess"}) == []
    assert knock(**{**hello, "rank": 2}) == []
    assert knock(raw=b"GET / HTTP/1.1\r\n\r\n") == []
    door.close()


BEGIN = "from bench.seams.site import Site\nSITE = Site(summary='x')\n"
ONCE = "import os\nif os.path.exists('executed'):\n    os._exit(0)\nopen('executed', 'w')\n"
MUTE = "class Mute(BaseException):\n    __str__ = None\n"
NO_SITE = {
    "no function": (BEGIN, "has no function connect; define connect(options)"),
    "nothing": (f"{BEGIN}def connect(options): ...", "returned NoneType; return what performs launches, such as Work"),
    "an error": (f"{BEGIN}def connect(options): 1 / 0", "site.py:3 fails to connect: ZeroDivisionError"),
    "an end": (f"import os\n{BEGIN}def connect(options): os._exit(0)", "site.py:4 fails to connect: SystemExit: 0"),
    "no end": (f"import time\n{BEGIN}def connect(options): time.sleep(600)", "py:4 fails to connect: TimeoutError"),
    "no word": (f"{BEGIN}{MUTE}def connect(options): raise Mute", "site.py:5 fails to connect: Mute; fix the file"),
    "a second import": (f"{ONCE}{BEGIN}def connect(options): ...", "py:3 cannot be executed: SystemExit: 0"),
}


@pytest.mark.parametrize(("source", "problem"), NO_SITE.values(), ids=NO_SITE)
def test_a_file_that_is_no_site_is_refused_in_one_line(
    bench: Bench, tmp_path: Path, source: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "IMPORT_LIMIT_S", 2.0 if "600" in source else 20.0)
    (tmp_path / "my_site.py").write_text(source)
    bench("run", "--device", "cpu", "--scenario", "single", "--site", "./my_site.py").refused("--site", problem)
    assert not (tmp_path / "results").exists()


def test_what_a_site_started_is_ended(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "my_site.py").write_text(
        f"import subprocess\n{BEGIN}"
        "pid = subprocess.Popen(['sleep', '600'], start_new_session=True).pid\n"
        "open('pids', 'a').write(f'{pid} ')\n"
        "def connect(options): ..."
    )
    code, _, said = bench("run", "--device", "cpu", "--scenario", "single", "--site", "./my_site.py")
    assert code == 2, said
    first, second = map(int, Path("pids").read_text().split())
    assert nobody_left([first, second])


@pytest.mark.parametrize("error", [ValueError("lost"), GeneratorExit("lost")])
def test_a_site_that_fails_costs_its_launch(tmp_path: Path, error: BaseException) -> None:
    class Lost:
        description = {"apex": {"problems": {}}}  # noqa: RUF012

        def perform(self, *about: Any) -> Any:
            raise error

    outcome = launch.execute(planned().job, cast(Connected, Lost()), str(tmp_path), print).outcome
    assert (outcome.status, outcome.reason) == ("error", f"the site failed: {type(error).__name__}: lost")
