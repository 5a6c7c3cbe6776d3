"""The lines of docs/hosts.md, each under its engine (Slurm's is a stand-in): both hosts end in one sealed run."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from standin import ROOT, hosts, program
from standin.hosts import ADDRESSES, TINY, Link
from standin.processes import descendants, piped, wait_for

LINES = re.findall(r"^.* -m bench run --scenario ddp$", (ROOT / "docs" / "hosts.md").read_text(), re.MULTILINE)
STATIC, C10D, SRUN, PLAIN = LINES
RESTARTED = C10D.replace("torchrun", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts 2")
NAMES = ("static", "c10d", "srun", "plain")
LIMIT_S = 280.0


class Engine:
    """Starts a line of the page on two hosts, each in its own folder: on loopback, or on both ends of ``link``."""

    def __init__(self, folder: Path, line: str, link: Link | None) -> None:
        self.folder, self.line, self.link = folder, line, link
        self.port = str(hosts.free_port())
        tools = folder / "bin"
        program(tools / "srun", f"#!{sys.executable}\n{(ROOT / 'tests/standin/srun.py').read_text()}")
        self.environments = hosts.environments(folder, ROOT)
        for one in self.environments:
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                del one[name]
            one["PATH"] = os.pathsep.join([str(tools), str(Path(sys.executable).parent), one["PATH"]])
        places = [(ADDRESSES[index], link.inside(index)) if link else ("127.0.0.1", []) for index in range(2)]
        about = [
            {"address": address, "inside": inside, "folder": str(folder / f"host{index}")}
            | {"environment": {"BENCH_LOCK_DIR": self.environments[index]["BENCH_LOCK_DIR"]}}
            for index, (address, inside) in enumerate(places)
        ]
        self.environments[0]["STANDIN_HOSTS"] = json.dumps(about)

    @contextmanager
    def started(self, index: int, options: tuple[str, ...]) -> "Iterator[subprocess.Popen[str]]":
        """The line on one of the hosts, whose processes are one session; Slurm's starts all from the first one."""
        line = self.line.replace("--node-rank 0", f"--node-rank {index}").replace("RANK=0", f"RANK={index}")
        if self.link is None:
            line = line.replace("node0", "127.0.0.1").replace("29500", self.port)
        slurm = "srun" in line
        inside = () if self.link is None or slurm else self.link.inside(index)
        for number in range(2):
            (self.folder / f"host{number}").mkdir(exist_ok=True)
        about: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
        command = [*inside, "bash", "-c", " ".join([line, *options])]
        with piped(command, self.folder / f"host{index}", env=self.environments[index], **about) as running:
            try:
                yield running
            finally:
                end(running)

    def document(self) -> Any:
        (path,) = (path for path in self.folder.glob("host*/results/*") if path.is_dir())
        return hosts.whole(path)


def end(running: "subprocess.Popen[str]") -> None:
    for pid in [running.pid, *descendants(running.pid)] if running.poll() is None else []:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=NAMES)
def test_a_line_of_the_page(line: str, tmp_path: Path) -> None:
    engine = Engine(tmp_path, line, None)
    with ExitStack() as stack:
        starts = range(1 if "srun" in line else 2)
        both = [stack.enter_context(engine.started(index, (*TINY[2:], "--iters", "2"))) for index in starts]
        said = [one.communicate(timeout=LIMIT_S)[0] for one in both]
    assert [one.returncode for one in both] == [0] * len(both), said
    (launch,) = engine.document()["launches"]
    assert len({rank["host"] for rank in launch["ranks"]}) == 2


@pytest.mark.slow
def test_a_search_goes_on_when_a_host_comes_back(link: Link, tmp_path: Path) -> None:
    engine = Engine(tmp_path, RESTARTED.replace("bench run", "bench tune"), link)
    options = ("--workload", "fashion_mlp", "--device", "cpu", "--warmup", "1", "--iters", "100", "--allow", "none")

    def begun() -> bool:
        documents = (json.loads(one.read_text()) for one in tmp_path.glob("host*/results/*/run.json"))
        return any(one["experiments"].get("tuning", {}).get("launches") for one in documents)

    with ExitStack() as stack:
        first, second = (stack.enter_context(engine.started(index, options)) for index in range(2))
        wait_for(begun)
        end(second)
        again = stack.enter_context(engine.started(1, options))
        said = [one.communicate(timeout=LIMIT_S)[0] for one in (first, again)]
    assert [first.returncode, again.returncode] == [0, 0], said
    document = engine.document()
    assert len(document["resumed"]) == 1
    assert document["experiments"]["tuning"]["finalists"] == ["ddp"]
