"""What an engine takes of what bench writes, as JSON schemas in which every field is named: another one is an error.

Facts, and where they are from. Slurm has no schema.

- Slurm: the manual page of sbatch, 22.05
- TrainJob: manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml of Kubeflow Trainer 2.3.0. Not in there: the names
  PET_* are reserved in trainer.env, and a patch may not set the environment of the container 'node'.
- PyTorchJob: manifests/base/crds/kubeflow.org_pytorchjobs.yaml of the Kubeflow training operator 1.9.4. Not in there:
  one master, no key 'Worker' without a worker, and a container called 'pytorch'.
- SkyPilot: sky/utils/schemas.py of SkyPilot 0.14.1. A null secret comes from 'sky launch --secret'.
"""

from typing import Any


class Schema(dict[str, Any]):
    """One that is written out."""


def schema_of(like: Any) -> dict[str, Any]:
    """``like``: an object with these fields, all needed but those with a question mark, and no others; a list of at
    most 16 such items, or as a tuple of how many and the item; or the only value."""
    if isinstance(like, Schema):
        return like
    if isinstance(like, dict):
        needed = [name for name in like if not name.endswith("?")]
        properties = {name.removesuffix("?"): schema_of(one) for name, one in like.items()}
        return {"type": "object", "additionalProperties": False, "required": needed, "properties": properties}
    if isinstance(like, list | tuple):
        most, item = like if isinstance(like, tuple) else (16, *like)
        return {"type": "array", "minItems": 1, "maxItems": most, "items": schema_of(item)}
    return {"const": like}


def text(pattern: str = ".") -> Schema:
    return Schema(type="string", pattern=pattern)


def one_of(*values: str) -> Schema:
    return Schema(enum=list(values))


COUNT = Schema(type="integer", minimum=1)
NAME = text("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")

SLURM = {
    "job-name": NAME,
    "nodes": text("^[1-9][0-9]*$"),
    "ntasks-per-node": "1",
    "gpus-per-node?": text("^([A-Za-z0-9_.-]+:)?[1-9][0-9]*$"),
    "exclusive": "",
    "mem": "0",
    "output": text("^[^/]*%j[^/]*$"),
}

SKYPILOT = {
    "name": NAME,
    "num_nodes": COUNT,
    "resources?": {"accelerators": text("^[A-Za-z0-9_.-]+:[1-9][0-9]*$")},
    "workdir": text("^/"),
    "file_mounts": {"~/bench-source": text("^/")},
    "envs": {"MASTER_PORT": text("^[0-9]+$")},
    "secrets": {"BENCH_SECRET": Schema(type="null")},
    "setup": text(),
    "run": text(),
}

SECRET = {"secretKeyRef": {"name": NAME, "key": "BENCH_SECRET"}}
UID = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
OF_JOB = [{"name": "BENCH_SECRET", "valueFrom": SECRET}, {"name": "BENCH_JOB", "valueFrom": UID}]
ENVIRONMENT = [Schema(oneOf=[schema_of(each) for each in OF_JOB])]
CONTAINER = {"image": text(), "command": [text()], "args": (100, text()), "env": ENVIRONMENT}
GPUS = {"limits": {"nvidia.com/gpu": COUNT, "rdma/hca_shared_devices_a?": 1}}
MOUNTS = [{"name": one_of("shared-memory", "results"), "mountPath": one_of("/dev/shm", "/results")}]
MAY_LOCK = {"runAsUser": 0, "capabilities": {"add": (1, "IPC_LOCK")}}
SHARED = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
RESULTS = {"name": "results", "persistentVolumeClaim": {"claimName": NAME}}
VOLUMES = [Schema(oneOf=[schema_of(SHARED), schema_of(RESULTS)])]


def pod(label: str, container: dict[str, Any]) -> dict[str, Any]:
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {label: NAME}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    container = {**container, "securityContext?": MAY_LOCK, "volumeMounts": MOUNTS}
    spec = {"affinity": affinity, "securityContext": {"fsGroup": COUNT}, "volumes": VOLUMES}
    spec |= {"containers": (1, container)}
    return {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}, "spec": spec}


def replicas(count: object) -> dict[str, Any]:
    template = pod("training.kubeflow.org/job-name", {"name": "pytorch", **CONTAINER, "resources?": GPUS})
    return {"replicas": count, "restartPolicy": "Never", "template": template}


PYTORCHJOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": NAME},
    "spec": {
        "nprocPerNode": "1",
        "runPolicy": {"cleanPodPolicy": one_of("All", "Running", "None"), "backoffLimit": 0},
        "pytorchReplicaSpecs": {"Master": replicas(1), "Worker?": replicas(COUNT)},
    },
}

NODE = pod("jobset.sigs.k8s.io/jobset-name", {"name": "node"})
JOBS = [{"name": "node", "template": {"spec": {"template": NODE}}}]
PATCH = {"manager": text(), "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": JOBS}}}}
RUNTIME = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
TRAINJOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": NAME},
    "spec": {
        "runtimeRef": RUNTIME,
        "trainer": {"numNodes": COUNT, "numProcPerNode": 1, **CONTAINER, "resourcesPerNode?": GPUS},
        "runtimePatches": (1, PATCH),
    },
}

ALL = {"slurm": SLURM, "skypilot": SKYPILOT, "pytorchjob": PYTORCHJOB, "trainjob": TRAINJOB}
SCHEMAS = {name: schema_of(like) for name, like in ALL.items()}
