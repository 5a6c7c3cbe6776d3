"""In the place of Slurm's srun: starts a command once on each host of ``STANDIN_HOSTS``, with Slurm's variables.

``STANDIN_HOSTS``: JSON, of each host its ``address``, the words ``inside`` that start a command there, its ``folder``
and its ``environment``.
"""

import argparse
import json
import os
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int)
parser.add_argument("--ntasks-per-node", type=int, choices=[1])
parser.add_argument("command", nargs=argparse.REMAINDER)
asked = parser.parse_args()
hosts = json.loads(os.environ.pop("STANDIN_HOSTS"))
assert asked.nodes == len(hosts)
job = {
    "SLURM_JOB_ID": str(os.getpid()),
    "SLURM_NNODES": str(asked.nodes),
    "SLURM_STEP_NUM_NODES": str(asked.nodes),
    "SLURM_STEP_NUM_TASKS": str(asked.nodes),
    "SLURM_JOB_NODELIST": ",".join(host["address"] for host in hosts),
}
tasks = [
    subprocess.Popen(
        [*host["inside"], *asked.command],
        cwd=host["folder"],
        env=os.environ | host["environment"] | job | {"SLURM_PROCID": str(index), "SLURM_NODEID": str(index)},
    )
    for index, host in enumerate(hosts)
]
sys.exit(max(task.wait() for task in tasks))
