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

Schema = dict[str, Any]


def fields(optional: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with these fields, all needed but the optional ones, and no others."""
    needed = [name for name in properties if name not in optional]
    return {"type": "object", "additionalProperties": False, "required": needed, "properties": properties}


def inside(*names: str, schema: Schema) -> Schema:
    for name in reversed(names):
        schema = fields(**{name: schema})
    return schema


def some(item: Schema, most: int = 16) -> Schema:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": item}


def text(pattern: str = ".") -> Schema:
    return {"type": "string", "pattern": pattern}


def only(value: object) -> Schema:
    return {"const": value}


COUNT: Schema = {"type": "integer", "minimum": 1}
NAME = text("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")

SLURM = fields(
    ("gpus-per-node",),
    **{
        "job-name": NAME,
        "nodes": text("^[1-9][0-9]*$"),
        "ntasks-per-node": only("1"),
        "gpus-per-node": text("^([A-Za-z0-9_.-]+:)?[1-9][0-9]*$"),
        "exclusive": only(""),
        "mem": only("0"),
        "output": text("^[^/]*%j[^/]*$"),
    },
)

SKYPILOT = fields(
    ("resources",),
    name=NAME,
    num_nodes=COUNT,
    resources=fields(accelerators=text("^[A-Za-z0-9_.-]+:[1-9][0-9]*$")),
    workdir=text("^/"),
    file_mounts=fields(**{"~/bench-source": text("^/")}),
    envs=fields(MASTER_PORT=text("^[0-9]+$")),
    secrets=fields(BENCH_SECRET={"type": "null"}),
    setup=text(),
    run=text(),
)

ENVIRONMENT = fields(
    name=only("BENCH_SECRET"), valueFrom=fields(secretKeyRef=fields(name=NAME, key=only("BENCH_SECRET")))
)
CONTAINER = {"image": text(), "command": some(text()), "args": some(text(), most=100), "env": some(ENVIRONMENT)}
GPUS = fields(
    limits=fields(("rdma/hca_shared_devices_a",), **{"nvidia.com/gpu": COUNT, "rdma/hca_shared_devices_a": only(1)})
)
MOUNTS = some(fields(name={"enum": ["shared-memory", "results"]}, mountPath={"enum": ["/dev/shm", "/results"]}))
VOLUMES = some(
    {
        "oneOf": [
            fields(name=only("shared-memory"), emptyDir=fields(medium=only("Memory"))),
            fields(name=only("results"), persistentVolumeClaim=fields(claimName=NAME)),
        ]
    }
)


def pod(label: str) -> dict[str, Schema]:
    apart = fields(
        topologyKey=only("kubernetes.io/hostname"), labelSelector=fields(matchLabels=fields(**{label: NAME}))
    )
    return {
        "affinity": inside("podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution", schema=some(apart)),
        "securityContext": fields(fsGroup=COUNT),
        "volumes": VOLUMES,
    }


def replicas(count: Schema) -> Schema:
    may_lock = fields(capabilities=fields(add=some(only("IPC_LOCK"), most=1)))
    container = fields(
        ("resources", "securityContext"),
        name=only("pytorch"),
        **CONTAINER,
        resources=GPUS,
        securityContext=may_lock,
        volumeMounts=MOUNTS,
    )
    spec = fields(**pod("training.kubeflow.org/job-name"), containers=some(container, most=1))
    return fields(replicas=count, restartPolicy=only("Never"), template=fields(spec=spec))


PYTORCHJOB = fields(
    apiVersion=only("kubeflow.org/v1"),
    kind=only("PyTorchJob"),
    metadata=fields(name=NAME),
    spec=fields(
        nprocPerNode=only("1"),
        runPolicy=fields(cleanPodPolicy={"enum": ["All", "Running", "None"]}, backoffLimit=only(0)),
        pytorchReplicaSpecs=fields(("Worker",), Master=replicas(only(1)), Worker=replicas(COUNT)),
    ),
)

RUNTIME = fields(
    apiGroup=only("trainer.kubeflow.org"), kind=only("ClusterTrainingRuntime"), name=only("torch-distributed")
)
PATCHED = fields(
    **pod("jobset.sigs.k8s.io/jobset-name"), containers=some(fields(name=only("node"), volumeMounts=MOUNTS), most=1)
)
PATCH = inside(
    "template",
    "spec",
    "replicatedJobs",
    schema=some(fields(name=only("node"), template=inside("spec", "template", "spec", schema=PATCHED))),
)
TRAINJOB = fields(
    apiVersion=only("trainer.kubeflow.org/v1alpha1"),
    kind=only("TrainJob"),
    metadata=fields(name=NAME),
    spec=fields(
        runtimeRef=RUNTIME,
        trainer=fields(
            ("resourcesPerNode",), numNodes=COUNT, numProcPerNode=only(1), **CONTAINER, resourcesPerNode=GPUS
        ),
        runtimePatches=some(fields(manager=text(), trainingRuntimeSpec=PATCH), most=1),
    ),
)

SCHEMAS = {"slurm": SLURM, "skypilot": SKYPILOT, "pytorchjob": PYTORCHJOB, "trainjob": TRAINJOB}
