"""Scripts as torchrun starts them, without its seconds: ranks are forked from a process that has torch already."""

import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

LIMIT_S = 200
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch", "torch.distributed", "torchvision.models"])


def run(file: Path, processes: int, *arguments: str) -> str:
    """What rank 0 prints. Raises ``AssertionError`` with the end of its output where a rank fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meet = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(processes):
        own = meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        ranks.append(SERVER.Process(target=_rank, args=(str(file), rank, own, arguments)))
    try:
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(LIMIT_S)
    finally:
        for one in ranks:
            if one.pid is not None:
                one.kill()
                one.join()
    output = file.with_suffix(".0.log").read_text()
    exits = [one.exitcode for one in ranks]
    assert exits == [0] * processes, (exits, output[-3000:])
    return output


def _rank(file: str, rank: int, environment: dict[str, str], arguments: Sequence[str]) -> None:
    """A script leaves half to torch. Here it computes half as bench does on this CPU, so that losses can agree."""
    from bench.worker.by_fp32 import ByFp32
    from bench.worker.live import bf16_instructions

    os.environ.update(environment)
    os.chdir(os.path.dirname(file))
    sys.argv = [file, *arguments]
    half = ByFp32() if bf16_instructions() is False else nullcontext()
    with open(Path(file).with_suffix(f".{rank}.log"), "w") as log, redirect_stdout(log), redirect_stderr(log), half:
        runpy.run_path(file, run_name="__main__")
