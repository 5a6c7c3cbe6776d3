"""The parts that both kinds of Kubernetes job share: the secret of a job, and the contents of its pods."""

import json
from secrets import token_hex

from bench.seams.engine import SECRET, Asked, Call
from bench.sites.engines import Yaml

RESULTS = "/results"
"""Where the claim is mounted. The Dockerfile's user may write there, by this group:"""

GROUP = 1000


def call(asked: Asked) -> Call:
    """The job's Secret goes first to kubectl's standard input: it is never in a file or a command line."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": asked.name},
        "stringData": {SECRET: token_hex(16)},
    }
    return Call(command=("kubectl", "create", "-f", "-"), before=f"{json.dumps(secret)}\n---\n")


def by_hand(asked: Asked) -> dict[str, str]:
    """:func:`call` as commands."""
    secret = f'kubectl create secret generic {asked.name} --from-literal={SECRET}="$(openssl rand -hex 16)"'
    return {"First": secret, "Submit": "kubectl create -f THIS-FILE"}


def notes(asked: Asked, kind: str, leader: str) -> dict[str, str]:
    """``leader``: selects the pod of the first host."""
    return {
        "Results": f"in the volume of the claim {asked.claim}",
        "Watch": f"kubectl get {kind} {asked.name}",
        "Logs": f"kubectl logs -f {leader}",
        "Clean up": f"kubectl delete {kind}/{asked.name} secret/{asked.name}",
    }


def container(asked: Asked, *variables: Yaml) -> Yaml:
    """Image, command, and the secret beside other ``variables``. Kubernetes expands ``$(NAME)`` in arguments, and takes
    two dollars for one."""
    return {
        "image": asked.image,
        "command": ["python", "-m", "bench"],
        "args": [word.replace("$", "$$") for word in asked.run],
        "env": [{"name": SECRET, "valueFrom": {"secretKeyRef": {"name": asked.name, "key": SECRET}}}, *variables],
    }


def gpus(asked: Asked) -> Yaml:
    """And the RDMA devices, without which NCCL takes TCP between nodes and says so nowhere but in its own log."""
    return {"limits": {"nvidia.com/gpu": asked.gpus, **({asked.rdma: 1} if asked.rdma else {})}}


def mounted(asked: Asked, *, results: bool) -> Yaml:
    """The volumes of a container, and for RDMA the right to lock memory: as root, no other user gets capabilities."""
    shared = {"name": "shared-memory", "mountPath": "/dev/shm"}
    locks = {"securityContext": {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}} if asked.rdma else {}
    return {**locks, "volumeMounts": [shared, *([{"name": "results", "mountPath": RESULTS}] if results else [])]}


def pod(asked: Asked, label: str, *, results: bool, **more: object) -> Yaml:
    """The template of a pod. One per node, since two on one node would disturb each other. ``label``: the engine's
    label of a job's pods; ``more``: of the pod. A rank's DataLoader and NCCL use shared memory, and a container has
    only 64 MiB of it by default. Istio's proxy, which Kubeflow puts into the pods of its users, would carry what ranks
    send, and outlive them. Its label keeps it out."""
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {label: asked.name}}}
    claim = {"name": "results", "persistentVolumeClaim": {"claimName": asked.claim}}
    spec = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "securityContext": {"fsGroup": GROUP},
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}, *([claim] if results else [])],
        **more,
    }
    return {"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}, "spec": spec}
