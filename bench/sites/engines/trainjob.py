"""Kubeflow TrainJob: pods of the runtime ``torch-distributed``, the first of which leads.

Fields are those of trainer.kubeflow.org/v1alpha1, Kubeflow Trainer 2.3. The trainer sets ``PET_*``; without
``numProcPerNode`` it would start a process per CPU. Volumes are patched into the runtime's container ``node`` of all
pods, so several nodes must be able to mount the claim (ReadWriteMany). The runtime restarts pods that fail, up to six
times, which no patch can change: they know their job by its UID, and go on with what is missing.
"""

from bench.seams.engine import JOB, Asked, Engine
from bench.sites.engines import as_yaml, header
from bench.sites.engines._kubernetes import RESULTS, by_hand, call, container, gpus, mounted, pod
from bench.sites.engines._kubernetes import notes as common

__all__ = ["ENGINE", "call", "notes", "specification"]

ENGINE = Engine(summary="a Kubeflow TrainJob (Trainer 2.3)", client="kubectl", gpu_type="unused", results=RESULTS)


def specification(asked: Asked) -> str:
    resources = {"resourcesPerNode": gpus(asked)} if asked.gpus else {}
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    uid = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    only = container(asked, {"name": JOB, "valueFrom": uid})
    node = {"name": "node", **mounted(asked, results=True)}
    template = pod(asked, "jobset.sigs.k8s.io/jobset-name", results=True, containers=[node])
    patch = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": template}}}]}}}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": asked.name},
        "spec": {
            "runtimeRef": runtime,
            "trainer": {"numNodes": asked.nodes, "numProcPerNode": 1, **only, **resources},
            "runtimePatches": [{"manager": "bench.submit", "trainingRuntimeSpec": patch}],
        },
    }
    return header(asked, **by_hand(asked), **notes(asked)) + as_yaml(job)


def notes(asked: Asked) -> dict[str, str]:
    first = f"jobset.sigs.k8s.io/jobset-name={asked.name},batch.kubernetes.io/job-completion-index=0"
    return common(asked, "trainjob", f"--tail=-1 -l {first}")  # of pods by label it shows ten lines
