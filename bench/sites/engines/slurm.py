"""Slurm: a batch script that starts one bench on each of the nodes, which it has to itself.

Partition, account and time limit come from sbatch's own variables (``SBATCH_PARTITION``, ``SBATCH_ACCOUNT``,
``SBATCH_TIMELIMIT``). Options and variables are those of the manual pages of sbatch and srun of Slurm 22.05.
"""

import shlex

from bench.seams.engine import SECRET, Asked, Call, Engine
from bench.sites.engines import header

ENGINE = Engine(summary="a batch script for sbatch", client="sbatch")


def specification(asked: Asked) -> str:
    """Memory must be requested even on an exclusive node. The job ID makes it unlikely that two jobs share a port."""
    log = f"{asked.name}-%j"
    gpus = ":".join(filter(None, (asked.gpu_type, str(asked.gpus))))
    options = [
        f"--job-name={asked.name}",
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={gpus}"] if asked.gpus else []),
        "--exclusive",
        "--mem=0",
        f"--output={log}.log",
    ]
    asks = "".join(f"#SBATCH {option}\n" for option in options)
    return f"""\
#!/bin/bash
{header(asked, Submit="sbatch THIS-FILE", **notes(asked))}{asks}set -euo pipefail

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${{hosts%%$'\\n'*}}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
{SECRET}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export MASTER_ADDR MASTER_PORT {SECRET}

# One task per node, with all cores and a separate log; if one fails, the others end.
exec srun --ntasks-per-node=1 --cpu-bind=none --export=ALL --kill-on-bad-exit=1 --output={log}-%N.log \\
  {shlex.join((asked.python, "-m", "bench", *asked.run))}
"""


def call(asked: Asked) -> Call:
    return Call(command=("sbatch",))


def notes(asked: Asked) -> dict[str, str]:
    return {"Watch": f"squeue --name {asked.name}", "Logs": f"tail -f {asked.name}-*.log"}
