"""What each engine puts into the environment of the one bench that it starts on a host."""

from pathlib import Path

import pytest
from standin import refusal

from bench.sites.hosts.engine import Started, engine_of, first_of, secret_of

MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
TORCHRUN = {
    **MASTER,
    "RANK": "1",
    "WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BATCH = {"SLURM_PROCID": "0", "SLURM_NNODES": "2", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
STEP = {**BATCH, "SLURM_PROCID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
SLURM = {**STEP, "MASTER_PORT": "29500"}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node0", "PET_MASTER_PORT": "29400"}


def test_each_engine_is_read_by_its_own_variables() -> None:
    both = {"index": 1, "count": 2, "address": "node0", "port": 29500}
    assert engine_of({}) is None and engine_of(MASTER) is None
    assert engine_of(TORCHRUN) == Started(name="torchrun", agent_store=True, attempt=1, **both)
    assert engine_of(TORCHRUN | {"TORCHELASTIC_RUN_ID": "job7", "SLURM_PROCID": "9"}) == Started(
        name="torchrun", agent_store=True, attempt=1, run="job7", **both
    )
    assert engine_of({**MASTER, "RANK": "1", "WORLD_SIZE": "2"}) == Started(name="env://", **both)
    trainjob = PET | {"PET_NPROC_PER_NODE": "auto", "BENCH_JOB": "8d1c"}
    assert engine_of(trainjob) == Started(name="TrainJob", run="8d1c", **both | {"port": 29400})
    slurm = SLURM | {"SLURM_JOB_NODELIST": "node[0-1]"}
    assert engine_of(slurm) == Started(name="Slurm", run="7", **both)
    assert engine_of(slurm | {"MASTER_ADDR": "ib0"}) == Started(name="Slurm", run="7", **both | {"address": "ib0"})
    sky = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "node0\nnode1"}
    assert engine_of(sky | {"MASTER_PORT": "29500"}) == Started(name="SkyPilot", **both)
    dstack = {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "node0"}
    assert engine_of(dstack | {"MASTER_PORT": "29500"}) == Started(name="dstack", **both)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (PET | MASTER | {"RANK": "1", "WORLD_SIZE": "8", "PET_NPROC_PER_NODE": "4"}, ("PyTorchJob", 1, 2, "node0")),
        (SLURM | {"SLURM_NNODES": "4", "SLURM_STEP_NODELIST": "node0,node3"}, ("Slurm", 1, 2, "node0")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("env://", 0, 1, "")),
        ({"SLURM_PROCID": "0", "SLURM_NNODES": "1", "SLURM_NTASKS": "4"}, ("Slurm", 0, 1, "")),
    ],
)
def test_hosts_are_counted_and_one_alone_needs_no_address(environment: dict[str, str], found: object) -> None:
    started = engine_of(environment)
    assert started is not None and (started.name, started.index, started.count, started.address) == found


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({**MASTER, "WORLD_SIZE": "2"}, "RANK: it is not set"),
        ({**MASTER, "RANK": "1"}, "WORLD_SIZE: it is not set"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "or unset RANK and WORLD_SIZE to measure this host"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT: it is not set"),
        ({**MASTER, "RANK": "one", "WORLD_SIZE": "2"}, "RANK: 'one' is not a whole number"),
        ({**MASTER, "RANK": "2", "WORLD_SIZE": "2"}, "number hosts from 0"),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, "70000 is not a port"),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "use one process per host"),
        (TORCHRUN | {"WORLD_SIZE": "8"}, "--nproc-per-node: torchrun started 8 processes on 2 hosts"),
        (TORCHRUN | {"WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}, "use --nproc-per-node 1"),
        (BATCH, "SLURM_NNODES: the job has 2 nodes, and srun did not start this bench: the others have none; use srun"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "8"}, "use --ntasks-per-node 1"),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"}, "srun started 4 processes on 1 host,"),
        (STEP, "MASTER_ADDR: it is not set"),
        (STEP | {"SLURM_NODELIST": "n[1-2]"}, "export MASTER_PORT="),
        (PET | {"PET_NNODES": "1:4"}, "PET_NNODES: '1:4' is a range"),
        ({"PET_NNODES": "2", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "1"}, "PET_NODE_RANK: it is not set"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environment: dict[str, str], line: str) -> None:
    assert line in str(refusal(lambda: engine_of(environment)))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node0", "node0"),
        ("gpu[03-05,9],head", "gpu03"),
        ("r1-n[7,9]-ib,x", "r1-n7-ib"),
        ("a,b[1-2]", "a"),
        ("", ""),
        ("rack[0-3]_n[08,9],x", "rack0_n08"),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_of(nodes) == first


def test_the_secret_is_in_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert str(secret_of({"SLURM_PROCID": "0"})).endswith(", or unset SLURM_PROCID to measure this host alone")
    assert secret_of({"BENCH_SECRET": "s3\n"}) == b"s3"
    assert "cannot be read" in str(secret_of({"BENCH_SECRET_FILE": str(file)}))
    file.write_text("\n")
    assert "is empty" in str(secret_of({"BENCH_SECRET_FILE": str(file)}))
    file.write_text("abc\n")
    assert secret_of({"BENCH_SECRET_FILE": str(file)}) == b"abc"
