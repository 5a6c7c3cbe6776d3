"""Specifications for engines: valid by the engine's own schema, strictly, and what the hosts get out of them."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as some
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from standin import ROOT, complaints, program, refusal
from standin.engine_schemas import SCHEMAS

from bench.seams import discover, execute
from bench.seams.engine import Asked
from bench.sites.engines import as_yaml
from bench.sites.hosts.engine import engine_of, secret_of

NODES, NAME = 37, "bench-1a2b3c"
FILES = discover.names(discover.ENGINE)


def load(name: str) -> ModuleType:
    return execute.load_file(name, FILES[name], discover.ENGINE)


def asked(engine: str, *run: str, nodes: int = NODES, gpus: int = 0) -> Asked:
    in_image = load(engine).ENGINE.results is not None
    return Asked(
        name=NAME,
        nodes=nodes,
        run=("run", *(run or ("--scenario", "ddp"))),
        out="results",
        gpus=gpus,
        gpu_type="H100" if gpus and load(engine).ENGINE.gpu_type == "needed" else None,
        image="registry.example/bench:1" if in_image else None,
        claim="bench-results" if in_image else None,
        python=sys.executable,
        folder="/home/me/my work",
        source="/opt/bench",
    )


def document(engine: str, text: str) -> Any:
    if engine == "slurm":
        options = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE)
        assert len(dict(options)) == len(options)
        return dict(options)
    return YAML(typ="safe", pure=True).load(text)


def specified(engine: str, *run: str, **about: int) -> Any:
    return document(engine, load(engine).specification(asked(engine, *run, **about)))


def valid(engine: str, found: Any) -> bool:
    return bool(Draft202012Validator(SCHEMAS[engine]).is_valid(found))


def objects(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from objects(each)


@pytest.mark.parametrize("gpus", [0, 16])
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("engine", SCHEMAS)
def test_it_is_what_the_engine_takes(engine: str, nodes: int, gpus: int) -> None:
    assert sorted(FILES) == sorted(SCHEMAS)
    found = specified(engine, nodes=nodes, gpus=gpus)
    assert valid(engine, found), found
    assert ("16" in json.dumps(found)) is bool(gpus)


@pytest.mark.parametrize("engine", SCHEMAS)
def test_the_number_of_hosts_stands_in_one_place(engine: str) -> None:
    found = specified(engine)
    numbers = re.findall(r"(?<![\w.])(?:36|37)(?![\w.])", json.dumps(found))
    assert numbers == (["36"] if engine == "pytorchjob" else ["37"])  # the master is one more


@pytest.mark.parametrize("engine", SCHEMAS)
def test_the_secret_stands_in_no_specification(engine: str) -> None:
    module, about = load(engine), asked(engine)
    call = module.call(about)
    secret = re.search(r"[0-9a-f]{32}", call.before + "".join(call.environment.values()))
    assert (secret is None) is (engine == "slurm")  # where the job makes it
    text = module.specification(about)
    assert not re.search(r"[0-9a-f]{32}", text) and "BENCH_SECRET" in text
    assert not re.search(r"[0-9a-f]{32}", " ".join(call.command))


@pytest.mark.parametrize("engine", ["pytorchjob", "trainjob"])
def test_the_secret_has_the_name_that_pods_look_for(engine: str) -> None:
    module = load(engine)
    secret, end, rest = module.call(asked(engine)).before.partition("\n---\n")
    about = json.loads(secret)
    assert (about["kind"], about["metadata"], [*about["stringData"]]) == ("Secret", {"name": NAME}, ["BENCH_SECRET"])
    assert end and not rest
    wanted = [each["secretKeyRef"] for each in objects(specified(engine)) if "secretKeyRef" in each]
    assert wanted and all(each == {"name": NAME, "key": "BENCH_SECRET"} for each in wanted)


def test_the_master_alone_mounts_the_claim() -> None:
    roles = specified("pytorchjob")["spec"]["pytorchReplicaSpecs"]
    mounts = {role: json.dumps(about).count("results") for role, about in roles.items()}
    assert mounts["Master"] >= 3 and mounts["Worker"] == 0


WORDS = some.lists(
    some.text(some.characters(codec="utf-8", categories=("L", "M", "N", "P", "S", "Zs"))).filter(str.isprintable),
    min_size=1,
    max_size=4,
)


OTHERWISE = ["yes", "No", "null", "~", "1", "1e3", "a: b", "a #b", "- a", "0x1f", "", " ", "'", "a\\b"]
"""What is no text, or another one, for a parser of YAML 1.1."""


@settings(max_examples=25, deadline=None)
@given(WORDS)
@example(OTHERWISE)
def test_yaml_keeps_what_was_typed(words: list[str]) -> None:
    about = {"one": words[0], "many": words, "each": [{"word": word, "number": 1} for word in words], "none": None}
    assert document("any", as_yaml(about)) == yaml.safe_load(as_yaml(about)) == about


def test_kubernetes_does_not_expand_what_was_typed() -> None:
    trainer = specified("trainjob", "--label", "$(HOME) $$HOME")["spec"]["trainer"]
    assert trainer["args"] == ["run", "--label", "$$(HOME) $$$$HOME"]


def test_shellcheck_and_hadolint_are_content(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(load("slurm").specification(asked("slurm", "--label", "it's", gpus=8)))
    sky = specified("skypilot", "--label", "it's")
    (tmp_path / "task.sh").write_text(f"#!/bin/bash\n{sky['setup']}{sky['run']}")
    assert complaints("shellcheck", tmp_path / "job.sh", tmp_path / "task.sh") == ""
    assert complaints("hadolint", ROOT / "Dockerfile") == ""


def test_the_hosts_of_a_batch_script_meet_at_the_first(tmp_path: Path) -> None:
    label = 'it\'s "mine": $(touch here) `touch here` \\'
    (tmp_path / "job.sh").write_text(load("slurm").specification(asked("slurm", "--label", label)))
    program(tmp_path / "scontrol", '#!/bin/bash\n[[ $* == "show hostnames gpu[1-5000]" ]] && seq -f gpu%g 1 5000')
    heard = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    program(tmp_path / "srun", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(heard)} "$@"')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "gpu[1-5000]", "SLURM_JOB_ID": "1234567"}
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    words, variables = json.loads(done.stdout)
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("gpu1", "24567")
    assert re.fullmatch("[0-9a-f]{32}", variables["BENCH_SECRET"])
    options = [word for word in words if word.startswith("--") and words.index(word) < words.index(sys.executable)]
    assert {"--ntasks-per-node=1", "--kill-on-bad-exit=1", "--output=bench-1a2b3c-%j-%N.log"} <= set(options)
    assert words[len(options) :] == [sys.executable, "-m", "bench", "run", "--label", label]
    assert not (tmp_path / "here").exists()
    of_srun = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_NODES": str(NODES), "SLURM_STEP_NODELIST": "gpu[1-5000]"}
    started = engine_of(variables | of_srun)
    assert started is not None and isinstance(secret_of(variables), bytes)
    assert (started.index, started.count, started.address, started.port) == (3, NODES, "gpu1", 24567)


def test_a_declaration_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for field, wrong in {"summary": " ", "client": "", "gpu_type": "sometimes"}.items():
        declared = {"summary": "mine", "client": "mine", field: wrong}
        file.write_text(f"from bench.seams.engine import Engine\n\nENGINE = Engine(**{declared})\n")
        assert field in refusal(lambda: execute.load_file("mine", str(file), discover.ENGINE)).problem


def test_the_image_is_what_the_pods_expect() -> None:
    """The user may write where the claim is mounted, and what is built is what pip needs of the checkout."""
    image = (ROOT / "Dockerfile").read_text()
    (group,) = {each["fsGroup"] for each in objects(specified("trainjob")) if "fsGroup" in each}
    results = load("trainjob").ENGINE.results
    assert f"--uid {group} " in image and f"USER {group}\n" in image and f"VOLUME {results}\n" in image
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = (ROOT / "pyproject.toml").read_text()
    included = re.findall(r'^(\w+) = "bench/\w+"$', project, re.MULTILINE)
    assert kept == {"pyproject.toml", "README.md", "LICENSE", "bench", *included}


@pytest.mark.parametrize("engine", ["trainjob", "pytorchjob"])
def test_pods_get_their_rdma_devices(engine: str) -> None:
    """Without them, the library that opens them and the right to lock memory NCCL takes TCP between nodes, silently."""
    with_rdma = replace(asked(engine, gpus=8), rdma="rdma/hca_shared_devices_a")
    text = load(engine).specification(with_rdma)
    assert valid(engine, document(engine, text))
    assert text.count("rdma/hca_shared_devices_a") == (1 if engine == "trainjob" else 2)
    assert text.count("runAsUser: 0\n") == text.count('add: ["IPC_LOCK"]') == text.count("name: shared-memory\n") / 2
    assert " ibverbs-providers " in (ROOT / "Dockerfile").read_text()
    assert not re.search("rdma|IPC_LOCK|runAsUser", load(engine).specification(asked(engine, gpus=8)))
