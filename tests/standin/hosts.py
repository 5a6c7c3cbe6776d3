"""Two hosts on one machine: two benches on loopback, or in two network namespaces with a link between them, as root."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.runs.check import findings
from standin import Said
from standin.processes import family, piped

TINY = ("--scenario", "ddp", "--workload", "fashion_mlp", "--no-parity", "--device", "cpu", "--warmup", "1")
LIMIT_S = 120.0
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def free_port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environments(folder: Path, repository: Path) -> list[dict[str, str]]:
    port = str(free_port())
    return [
        {
            **{name: value for name, value in os.environ.items() if not name.startswith(("BENCH_SECRET", "SLURM_"))},
            "RANK": str(index),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "BENCH_SECRET": "for the tests",
            "BENCH_LOCK_DIR": str(folder / f"locks{index}"),
            "PYTHONPATH": str(repository),
        }
        for index in range(2)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    names: tuple[str, str]

    def up(self, state: str = "up") -> None:
        """Set the link ``up``, or ``down`` as a cable that is pulled."""
        ip("-n", self.names[0], "link", "set", "veth0", state)
        if state == "up":
            ip("-n", self.names[1], "link", "set", "veth1", state)

    def inside(self, index: int) -> tuple[str, ...]:
        """What starts a command on one of the two, as the same process. They are called node0 and node1."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node{index}")
        return ("ip", "netns", "exec", self.names[index], *named)


def all_run(pids: list[int]) -> list[int] | None:
    """Every process of the benches ``pids``, once each has a rank."""
    families = [family(pid) for pid in pids]
    return [*pids, *families[0], *families[1]] if all("rank" in one.values() for one in families) else None


def whole(path: Path) -> dict[str, Any]:
    """The document of a sealed run, of which each launch that ended well has rows, memory and logs of all its ranks."""
    document: dict[str, Any] = json.loads((path / "run.json").read_text())
    assert document["complete"] and findings(str(path)) == []
    for launch in document["launches"]:
        if launch["status"] == "ok":
            ranks = {(rank["host"], rank["rank"]) for rank in launch["ranks"]}
            for table in ("steps", "memory"):
                rows = pq.read_table(path / f"{table}.parquet").to_pylist()
                assert {(row["host"], row["rank"]) for row in rows if row["launch"] == launch["launch"]} == ranks
            assert all((path / rank["log"]).is_file() for rank in launch["ranks"])
    return document


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def linked() -> Iterator[Link]:
    """Raises ``OSError`` or ``subprocess.CalledProcessError`` without root or ``ip``."""
    link = Link(names=(f"bench{os.getpid()}a", f"bench{os.getpid()}b"))
    with ExitStack() as stack:
        for name in link.names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            own = Path("/etc/netns") / name  # what is there takes the place of files in /etc
            own.mkdir(parents=True)
            stack.callback(shutil.rmtree, own)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESSES[0]} node0\n{ADDRESSES[1]} node1\n")
        peer = ("peer", "name", "veth1", "netns", link.names[1])
        ip("link", "add", "veth0", "netns", link.names[0], "type", "veth", *peer)
        for index, name in enumerate(link.names):
            ip("-n", name, "addr", "add", f"{ADDRESSES[index]}/24", "dev", f"veth{index}")
            ip("-n", name, "link", "set", "lo", "up")
        link.up()
        yield link


def start(
    folder: Path,
    index: int,
    environment: Mapping[str, str],
    *options: str,
    verb: str = "run",
    inside: tuple[str, ...] = (),
) -> "subprocess.Popen[str]":
    """A verb on one host, in its own folder. ``inside``: what starts it there."""
    home = folder / f"host{index}"
    home.mkdir(exist_ok=True)
    command = [*inside, sys.executable, "-m", "bench", verb, *options]
    return piped(command, home, env=dict(environment), stdin=subprocess.DEVNULL)


def run(
    folder: Path, of: list[dict[str, str]], *options: str, others: tuple[str, ...] | None = None, verb: str = "run"
) -> list[Said]:
    """The same command on all hosts, or on all but the first with the options ``others``. How each ended."""
    with ExitStack() as stack:
        started = []
        for index, environment in enumerate(of):
            mine = options if index == 0 or others is None else others
            started.append(stack.enter_context(start(folder, index, environment, *mine, verb=verb)))
            stack.callback(started[-1].kill)
        said = [one.communicate(timeout=LIMIT_S) for one in started]
        return [Said(one.returncode, out, err) for one, (out, err) in zip(started, said, strict=True)]
