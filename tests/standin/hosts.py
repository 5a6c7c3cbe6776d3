"""Two hosts on one machine: two benches on loopback, each with the environment that an engine gives it."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

TINY = ("--scenario", "ddp", "--workload", "fashion_mlp", "--no-parity", "--device", "cpu", "--warmup", "1")
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    said: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def environments(folder: Path, repository: Path) -> list[dict[str, str]]:
    """Of two hosts under an engine that sets the four plain variables."""
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


def start(
    folder: Path, index: int, environment: Mapping[str, str], *options: str, verb: str = "run"
) -> "subprocess.Popen[str]":
    """A verb on one host, in its own folder."""
    home = folder / f"host{index}"
    home.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "bench", verb, *options],
        cwd=home,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    folder: Path,
    of: list[dict[str, str]],
    *options: str,
    others: tuple[str, ...] | None = None,
    verb: str = "run",
) -> list[Ended]:
    """The same command on all hosts, or on all but the first with the options ``others``. How each ended."""
    with ExitStack() as stack:
        started = []
        for index, environment in enumerate(of):
            mine = options if index == 0 or others is None else others
            started.append(stack.enter_context(start(folder, index, environment, *mine, verb=verb)))
            stack.callback(started[-1].kill)
        said = [one.communicate(timeout=LIMIT_S) for one in started]
        return [Ended(code=one.returncode, out=out, said=err) for one, (out, err) in zip(started, said, strict=True)]
