"""``bench submit``: what is written, what the engine's client is given, and what is refused before either."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench
from standin import program

RUN = ("--", "--scenario", "ddp,fsdp2", "--iters", "3")
SLURM = ("submit", "--engine", "slurm", "--nodes", "2")
DRY = (*SLURM, "--dry-run")
SKY = ("submit", "--engine", "skypilot", "--nodes", "2")
POD = ("submit", "--engine", "pytorchjob", "--nodes", "2", "--image", "registry.example/bench")
HEARD = """\
#!{python}
import json, os, pathlib, sys
given = [pathlib.Path(word).read_text() for word in sys.argv[1:] if word.endswith(".yaml")]
about = dict(words=sys.argv[1:], text=given[0] if given else sys.stdin.read(), secret=os.environ.get("BENCH_SECRET"))
pathlib.Path("heard.json").write_text(json.dumps(about))
print("Submitted batch job 7")
sys.exit({code})
"""


@pytest.fixture(autouse=True)
def no_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No client is on the path, unless a test puts one there."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("BENCH_SECRET", raising=False)


def client(here: Path, name: str, code: int = 0) -> None:
    program(here / "bin" / name, HEARD.format(python=sys.executable, code=code))


def heard(here: Path) -> Any:
    return json.loads((here / "heard.json").read_text())


def test_a_dry_run_prints_the_specification_alone(bench: Bench) -> None:
    code, out, err = bench(*SLURM, "--gpus-per-node", "H100:4", "--dry-run", *RUN)
    assert (code, err) == (0, "")
    assert out.startswith("#!/bin/bash\n") and "#SBATCH --gpus-per-node=H100:4\n" in out
    assert out.endswith("-m bench run --scenario ddp,fsdp2 --iters 3 --device cuda\n")


def test_a_file_and_a_document(bench: Bench, tmp_path: Path) -> None:
    code, out, err = bench(*POD, "--dry-run", "--name", "mine", "--out", "job.yaml", "--json", *RUN)
    about = json.loads(out)
    text = (tmp_path / "job.yaml").read_text()
    assert (code, err) == (0, "job.yaml: its first lines say how to submit it\n")
    assert about.pop("specification") == text and '"ddp,fsdp2"' in text and "name: mine\n" in text
    assert about == {"engine": "pytorchjob", "name": "mine", "nodes": 2, "submitted": False, "file": "job.yaml"}


def test_sbatch_reads_the_script(bench: Bench, tmp_path: Path) -> None:
    client(tmp_path, "sbatch")
    code, out, err = bench(*SLURM, "--name", "mine", *RUN)
    assert code == 0 and heard(tmp_path) == {"words": [], "text": out, "secret": None}
    assert err == "Submitted batch job 7\nWatch: squeue --name mine\nLogs: tail -f mine-*.log\n"


def test_kubectl_reads_the_secret_and_the_job(bench: Bench, tmp_path: Path) -> None:
    client(tmp_path, "kubectl")
    claim = "2026.results-of-all-teams-on-the-shared-file-system"
    code, out, err = bench(*POD, "--claim", claim, *RUN)
    about = heard(tmp_path)
    secret, _, job = about["text"].partition("\n---\n")
    assert (code, about["words"], job) == (0, ["create", "-f", "-"], out)
    assert len(json.loads(secret)["stringData"]["BENCH_SECRET"]) == 32 and f'claimName: "{claim}"\n' in out
    assert "Logs: kubectl logs -f bench-" in err and "kubectl create secret" not in err


def test_sky_takes_the_secret_from_its_environment(bench: Bench, tmp_path: Path) -> None:
    client(tmp_path, "sky")
    code, out, _ = bench(*SKY, "--name", "mine", *RUN)
    about = heard(tmp_path)
    assert (code, about["text"], len(about["secret"])) == (0, out, 32)
    *words, file = about["words"]
    assert words == ["launch", "--yes", "--detach-run", "--cluster", "mine", "--secret", "BENCH_SECRET"]
    assert not Path(file).exists(), "it is a copy that the client has read"


def test_a_client_that_fails(bench: Bench, tmp_path: Path) -> None:
    client(tmp_path, "sbatch", code=3)
    code, out, err = bench(*SLURM, "--json", *RUN)
    assert code == 1 and err.endswith("bench: error: sbatch ended with exit code 3; its reason is above\n")
    assert json.loads(out)["exit_code"] == 1
    client(tmp_path, "kubectl", code=1)
    _, _, err = bench(*POD, "--name", "mine", *RUN)
    assert err.endswith("; what it has made is removed by: kubectl delete pytorchjob/mine secret/mine\n")


LSF = """from bench.seams.engine import Call, Engine

ENGINE = Engine(summary="LSF", client="bsub")
specification = lambda asked: f"#BSUB -nnodes {asked.nodes}\\n"
call = lambda asked: Call(command=("bsub",))
notes = lambda asked: {"Watch": "bjobs"}
"""


def test_an_engine_of_ones_own(bench: Bench, tmp_path: Path) -> None:
    client(tmp_path, "bsub")
    (tmp_path / "lsf.py").write_text(LSF)
    code, out, err = bench("submit", "--engine", "./lsf.py", "--nodes", "2", *RUN)
    assert (code, out, heard(tmp_path)["text"]) == (0, "#BSUB -nnodes 2\n", out) and err.endswith("Watch: bjobs\n")


WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no hosts": (("submit", "--engine", "slurm", "--nodes", "0", *RUN), ("--nodes: '0'", "at least 1")),
    "unknown engine": (("submit", "--engine", "slrum", "--nodes", "2", *RUN), ("--engine: ", "did you mean slurm?")),
    "no client": ((*SLURM, "--out", "job.sh", *RUN), ("--engine: sbatch is not installed here; add --dry-run",)),
    "no dashes": (DRY, ("--: it is missing", "-- --scenario ddp")),
    "an unknown option of run": ((*DRY, "--", "--frobnicate"), ("--frobnicate", "run --help")),
    "an unknown scenario": ((*DRY, "--", "--scenario", "ddp_02"), ("--scenario", "did you mean ddp_o2")),
    "a file there already": ((*DRY, "--out", "there", *RUN), ("there cannot be written: File exists",)),
    "no folder": ((*DRY, "--out", "no/job.sh", *RUN), ("--out: no/job.sh cannot be written",)),
    "no image": ((*POD[:5], "--dry-run", *RUN), ("--image: pytorchjob needs one", "docker build -t IMAGE .")),
    "an image for nothing": ((*SLURM, "--image", "a", *RUN), ("--image: slurm runs no image; leave it out",)),
    "a claim for nothing": ((*SLURM, "--claim", "a", *RUN), ("--claim: slurm runs no image; leave it out",)),
    "a bad claim": ((*POD, "--claim", "My_Disk", *RUN), ("--claim: 'My_Disk'", "persistent volume claim")),
    "a bad image": ((*POD[:5], "--image", "a b", *RUN), ("--image: 'a b'",)),
    "a bad name": ((*SLURM, "--name", "My_Job", *RUN), ("--name: 'My_Job'", "letters, digits and hyphens")),
    "no GPUs": ((*SLURM, "--gpus-per-node", "0", *RUN), ("--gpus-per-node: '0'", "at least 1")),
    "a bad type": ((*SLURM, "--gpus-per-node", "a b:8", *RUN), ("--gpus-per-node: 'a b:8'", "H100:8")),
    "a GPU type for Kubernetes": ((*POD, "--gpus-per-node", "H100:8", *RUN), ("--gpus-per-node", "write 8;")),
    "no type": ((*SKY, "--gpus-per-node", "8", *RUN), ("--gpus-per-node: skypilot needs the type", "H100:8")),
    "a CPU beside GPUs": ((*SLURM, "--gpus-per-node", "8", "--", "--device", "cpu"), ("--device cpu measures",)),
    "processes on GPUs": ((*SLURM, "--gpus-per-node", "8", "--", "--nproc", "2"), ("--nproc", "follows from --gpus")),
    "results that are lost": ((*POD, "--dry-run", "--", "--out", "mine"), ("--out: mine would be lost", "/results")),
    "a credential": ((*DRY, "--", "--setting", "api_token=abc123"), ("--: ", "looks like a credential")),
    "a line break": ((*DRY, "--", "--label", "a\nb"), ("--: an option has a character", "cannot be printed")),
    "what is for one host": ((*DRY, "--", "--find-batch"), ("--find-batch: it is measured on one host",)),
    "two interpreters": ((*DRY, "--", "--python", "a", "--python", "b"), ("--python: on several hosts",)),
    "a site": ((*DRY, "--", "--site", "./mine.py"), ("--site: on several hosts", "leave it out")),
    "too few ranks": ((*DRY, "--", "--nproc", "1"), ("--nproc: 2 hosts have a rank each", "use 2 or")),
    "a budget for nothing": ((*DRY, "--", "--budget", "20m"), ("--budget: it has no effect",)),
    "what excludes itself": ((*DRY, "--", "--find-batch", "--iters", "3"), ("--iters: --find-batch",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request(bench: Bench, tmp_path: Path, case: str) -> None:
    arguments, parts = WRONG[case]
    (tmp_path / "there").write_text("mine")
    bench(*arguments).refused("bench: error: ", *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["there"] and (tmp_path / "there").read_text() == "mine"
