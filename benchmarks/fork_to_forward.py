"""From the start of a launch to its first forward pass: the worker host against torchrun, on the very same job file.

    python benchmarks/fork_to_forward.py

The worker host has torch imported and forks; torchrun starts an interpreter, which starts one for each rank, and all of
them import torch. Counted is the time until the slowest rank has finished its first forward pass: from the fork of the
first rank, or from the start of the torchrun process. BENCH_BORN_NS hands that moment to the ranks of both (the
monotonic clock is one for all processes of a machine), so that the same lines of ``bench.worker.rank`` take the time.
The host starts once for a whole run; its own start is printed, and no part of the comparison.

The host's launch may take a tenth of torchrun's.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import launching
import paired

from bench.core.records import Job, job_to_json

ALLOWED = 0.1


def main() -> int:
    options = paired.parser(__doc__, pairs=6).parse_args()
    job = launching.plan("ddp", model="resnet18", image_size=32, global_batch=8, warmup=1, iters=1)
    with launching.folder() as where, launching.host(where) as host:
        launching.launch(host, job, where)  # the first one finds files uncached; torchrun's is done below
        torchrun(job, where)

        def measure(kind: str) -> float:
            if kind == "A":
                return torchrun(job, where)
            return first_forward_s(launching.read(launching.launch(host, job, where), job.processes))

        measured = paired.rounds(
            options.pairs, measure, paired.SHORT, lambda done: paired.progress(f"{done}/{options.pairs} pairs")
        )
        version, ready_s = launching.torch_version(host), host.description["ready_s"]
    comparison = paired.Comparison.of_rounds(
        measured,
        options.pairs,
        name="start of a launch to its first forward pass (ddp, 2 ranks, gloo, resnet18)",
        a="torchrun --standalone --nproc-per-node 2 -m bench.worker",
        b="worker host",
        allowed=ALLOWED,
    )
    note = f"the worker host itself was ready after {ready_s:.1f} s, once for all launches"
    return paired.finish("fork_to_forward", [comparison], notes=[note], as_json=options.json, torch=version)


def torchrun(job: Job, where: str) -> float:
    """Seconds from the start of torchrun to the first forward pass. Raises ``RuntimeError`` when it fails."""
    scratch = tempfile.mkdtemp(dir=where)
    file = os.path.join(scratch, "job.json")
    with open(file, "w", encoding="utf-8") as text:
        json.dump(job_to_json(replace(job, scratch=scratch, logs=scratch)), text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.processes)]
    environment = os.environ | {
        "PYTHONPATH": paired.ROOT,
        "OMP_NUM_THREADS": str(job.threads),
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",  # as the host has it: no time is spent on names of the network
    }
    born = time.perf_counter_ns()
    done = subprocess.run(
        [*command, "-m", "bench.worker", file],
        env=environment | {"BENCH_BORN_NS": str(born)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"torchrun failed:\n{done.stdout[-2000:]}")
    return first_forward_s(launching.read(scratch, job.processes))


def first_forward_s(results: list[dict[str, float]]) -> float:
    """Of the slowest rank."""
    return max(result["first_forward_s"] for result in results)


if __name__ == "__main__":
    raise SystemExit(main())
