"""Kubeflow PyTorchJob: a master pod that leads, and workers.

Fields are those of kubeflow.org/v1, training operator 1.9. The container must be called ``pytorch``. Only the master
writes, so a volume that one node can mount is enough. The operator sets ``RANK``, ``WORLD_SIZE`` and ``MASTER_*``.
"""

from bench.seams.engine import Asked, Engine
from bench.sites.engines import Yaml, as_yaml, header
from bench.sites.engines._kubernetes import RESULTS, by_hand, call, container, gpus, mounted, pod
from bench.sites.engines._kubernetes import notes as common

__all__ = ["ENGINE", "call", "notes", "specification"]

ENGINE = Engine(
    summary="a Kubeflow PyTorchJob (training operator 1.9)", client="kubectl", gpu_type="unused", results=RESULTS
)


def specification(asked: Asked) -> str:
    workers = {"Worker": _replicas(asked, asked.nodes - 1)} if asked.nodes > 1 else {}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": asked.name},
        "spec": {
            "nprocPerNode": "1",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "pytorchReplicaSpecs": {"Master": _replicas(asked, 1, leads=True), **workers},
        },
    }
    return header(asked, **by_hand(asked), **notes(asked)) + as_yaml(job)


def _replicas(asked: Asked, count: int, *, leads: bool = False) -> Yaml:
    only = {
        "name": "pytorch",
        **container(asked),
        **({"resources": gpus(asked)} if asked.gpus else {}),
        **mounted(asked, results=leads),
    }
    template = pod(asked, "training.kubeflow.org/job-name", results=leads, containers=[only])
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def notes(asked: Asked) -> dict[str, str]:
    return common(asked, "pytorchjob", f"{asked.name}-master-0")
