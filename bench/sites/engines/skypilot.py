"""SkyPilot: a cluster of nodes in a cloud or on Kubernetes, with one bench on each.

Fields are those of SkyPilot 0.14's task schema. The nodes install the checkout that bench runs from, with a recent
enough Python. The current folder is uploaded too, for files that options name. Cloud and region come from the
configuration of ``sky``.
"""

import os
import shlex
from secrets import token_hex

from bench.core.errors import RequestError
from bench.seams.engine import FILE, SECRET, Asked, Call, Engine
from bench.sites.engines import as_yaml, header

ENGINE = Engine(summary="a task for sky launch (SkyPilot 0.14)", client="sky", gpu_type="needed")

INSTALLED, SOURCE = "~/bench-environment", "~/bench-source"
SETUP = f"""\
python3 -m pip install --quiet uv
python3 -m uv venv --quiet --allow-existing --python 3.12 {INSTALLED}
python3 -m uv pip install --quiet --python {INSTALLED} {SOURCE}
"""


def specification(asked: Asked) -> str:
    """Raises :class:`RequestError` if the nodes have nowhere to install bench from."""
    if asked.source is None:
        raise RequestError("--engine", "nodes install bench from a checkout, and this is none", "run it in a checkout")
    resources = {"resources": {"accelerators": f"{asked.gpu_type}:{asked.gpus}"}} if asked.gpus else {}
    task = {
        "name": asked.name,
        "num_nodes": asked.nodes,
        **resources,
        "workdir": asked.folder,
        "file_mounts": {SOURCE: asked.source},
        "envs": {"MASTER_PORT": "29500"},
        "secrets": {SECRET: None},
        "setup": SETUP,
        "run": f"exec {INSTALLED}/bin/python -m bench {shlex.join(asked.run)}\n",
    }
    submit = f"{SECRET}=$(openssl rand -hex 16) sky launch --cluster {asked.name} --secret {SECRET} THIS-FILE"
    return header(asked, Submit=submit, **notes(asked)) + as_yaml(task)


def call(asked: Asked) -> Call:
    launch = ("sky", "launch", "--yes", "--detach-run", "--cluster", asked.name, "--secret", SECRET, FILE)
    return Call(command=launch, environment={SECRET: token_hex(16)})


def notes(asked: Asked) -> dict[str, str]:
    results = shlex.quote(os.path.join("sky_workdir", asked.out))
    return {
        "Logs": f"sky logs {asked.name}",
        "Results": f"rsync -a {asked.name}:{results}/ results/",
        "Clean up": f"sky down {asked.name}",
    }
