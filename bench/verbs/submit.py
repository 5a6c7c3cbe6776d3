"""``python -m bench submit``: the same run on several hosts, by the engine that is there already."""

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from tempfile import NamedTemporaryFile
from types import ModuleType

from bench.console import tell
from bench.core.errors import OK, BenchError, RequestError
from bench.experiments.plan import RANKS
from bench.machine.redact import command_line
from bench.seams import discover, execute
from bench.seams.discover import ENGINE, WORKLOAD
from bench.seams.engine import FILE, Asked, Engine
from bench.verbs.asked import Options
from bench.verbs.options import DEFAULT_OUT, Parser, checked, device_count, print_json, whole_number, write_new
from bench.verbs.run import check_experiment, refuse_one_host, run_parser
from bench.verbs.sets import LADDER, scenarios_of
from bench.verbs.together import refuse_site

CLAIM = "bench-results"
DESCRIPTION = """\
Write what an engine takes to start one bench on each of several hosts, and submit it. The hosts measure one run
together, which lands where the first of them is. What follows '--' are options of 'bench run'.
"""
EPILOG = """\
engines:
{engines}

examples:
  python -m bench submit --engine slurm --nodes 2 --gpus-per-node 8 -- --scenario ddp,fsdp2
  python -m bench submit --engine slurm --nodes 2 --dry-run --out job.sh -- --profile standard
  python -m bench submit --engine trainjob --nodes 4 --gpus-per-node 8 --image registry.example/bench -- --scenario ddp
  python -m bench submit --engine skypilot --nodes 2 --gpus-per-node H100:8 -- --scenario ddp

The secret by which hosts know each other is made for each job, and is in no file. Partition and account (sbatch's
SBATCH_PARTITION and SBATCH_ACCOUNT), namespace and cloud are those that sbatch, kubectl and sky take by themselves.

Exit codes: 0 submitted, or written with --dry-run; 1 the engine's client failed; 2 the request is wrong, and nothing
was written.
"""


def main(arguments: list[str]) -> int:
    how = "write it before them, such as: -- --scenario ddp"
    missing = RequestError("--", "it is missing in front of the options of 'bench run'", how)
    options, run_options = _parser().parse_command(arguments, missing)
    file = discover.resolve(options.engine, ENGINE)
    engine = execute.load_file(*file, ENGINE)
    asked = _asked(options, engine.ENGINE, list(run_options))
    text = engine.specification(asked)
    client = engine.ENGINE.client
    if not options.dry_run and shutil.which(client) is None:
        raise RequestError("--engine", f"{client} is not installed here", "add --dry-run, and submit it where it is")
    if options.out is not None:
        write_new(options.out, text)
    if not options.json and options.out is None:
        print(text, end="", flush=True)
    if not options.dry_run:
        _submit(engine, asked, text)
        tell(*(f"{what}: {command}" for what, command in engine.notes(asked).items()), file=sys.stderr)
    elif options.out is not None:
        tell(f"{options.out}: its first lines say how to submit it", file=sys.stderr)
    if options.json:
        what = {"engine": file[0], "name": asked.name, "nodes": asked.nodes, "submitted": not options.dry_run}
        print_json({**what, "file": options.out, "specification": text})
    return OK


def _submit(engine: ModuleType, asked: Asked, text: str) -> None:
    call = engine.call(asked)
    with NamedTemporaryFile("w", suffix=".yaml", prefix="bench-", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        words = [file.name if word == FILE else word for word in call.command]
        given = None if FILE in call.command else (call.before + text).encode()
        code = subprocess.run(words, input=given, stdout=2, env=os.environ | call.environment).returncode
    if code:
        left = engine.notes(asked).get("Clean up")  # such as the secret, which goes first, or nodes in a cloud
        remedy = f"; what it has made is removed by: {left}" if left else ""
        raise BenchError(f"{words[0]} ended with exit code {code}; its reason is above{remedy}")


def _asked(options: argparse.Namespace, engine: Engine, run: list[str]) -> Asked:
    """Everything that was asked for, checked. ``run``: the options of ``bench run``."""
    gpu_type, gpus = options.gpus_per_node or (None, 0)
    if engine.results is not None and options.image is None:
        raise RequestError("--image", f"{options.engine} needs one with bench", "build one: docker build -t IMAGE .")
    for name in ("image", "claim"):
        if engine.results is None and getattr(options, name) is not None:
            raise RequestError(f"--{name}", f"{options.engine} runs no image", "leave it out")
    if options.rdma is not None and (engine.results is None or not gpus):
        what = f"{options.engine} requests no devices of Kubernetes" if engine.results is None else "it is for GPUs"
        raise RequestError("--rdma", what, "leave it out" if engine.results is None else "add --gpus-per-node")
    if engine.gpu_type == "needed" and gpus and gpu_type is None:
        raise RequestError("--gpus-per-node", f"{options.engine} needs the type of GPU", f"write it like H100:{gpus}")
    if engine.gpu_type == "unused" and gpu_type is not None:
        what = f"{options.engine} counts GPUs and knows no types"
        raise RequestError("--gpus-per-node", what, f"write {gpus}; a node selector chooses nodes")
    run, out = _run_options(run, gpus, engine, options.nodes)
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return Asked(
        name=options.name or f"bench-{secrets.token_hex(3)}",
        nodes=options.nodes,
        run=("run", *run),
        out=out,
        gpus=gpus,
        gpu_type=gpu_type,
        image=options.image,
        claim=(options.claim or CLAIM) if engine.results else None,
        python=sys.executable,
        folder=os.getcwd(),
        rdma=options.rdma,
        source=checkout if os.path.isfile(os.path.join(checkout, "pyproject.toml")) else None,
    )


def _run_options(words: list[str], gpus: int, engine: Engine, nodes: int) -> tuple[list[str], str]:
    """The options of ``bench run``, checked as far as this host can, with what the engine needs; where results go."""
    asked = run_parser().parse_args(words, Options())
    if command_line(words) != words:
        raise RequestError("--", "an option looks like a credential, and anybody may read a job", "leave it out")
    if not all(map(str.isprintable, words)):
        raise RequestError("--", "an option has a character that cannot be printed", "leave it out")
    if asked.resume is None:
        check_experiment(asked)
        if nodes > 1:
            refuse_one_host(asked)
            refuse_site(asked)
        if asked.ranks is not None and asked.ranks < nodes:
            raise RequestError(RANKS, f"{nodes} hosts have a rank each at least", f"use {nodes} or more")
        named = (*(asked.scenario or ()), *(asked.switches or ()), asked.workload)
        in_image = engine.results is not None and any(".py" in one or os.sep in one for one in named)
        if not in_image and asked.set != LADDER:
            scenarios_of(asked.scenario, asked.set, asked.switches, "cpu")
        if not in_image:
            discover.load_workload(*discover.resolve(asked.workload, WORKLOAD))
    more = []
    if gpus:
        if asked.device == "cpu":
            raise RequestError("--gpus-per-node", "--device cpu measures on the CPU", "leave one of them out")
        if asked.ranks is not None:
            raise RequestError(RANKS, "on GPUs the number of processes follows from --gpus", "leave it out")
        more += ["--device", "cuda"] if asked.device == "auto" and asked.resume is None else []
    if engine.results is not None:
        if asked.out == DEFAULT_OUT:
            more += ["--out", engine.results]
        elif os.path.commonpath((engine.results, os.path.abspath(asked.out))) != engine.results:
            what = f"{asked.out} would be lost with the pod"
            raise RequestError("--out", what, f"leave it out, or give a folder in {engine.results}")
    return [*words, *more], asked.out


def gpus_per_node(text: str) -> tuple[str | None, int]:
    """``8`` or ``H100:8``."""
    kind, colon, count = text.rpartition(":")
    if colon and not re.fullmatch(r"[\w.-]+", kind, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs, such as 8 or H100:8")
    return kind or None, device_count(count)


def named(pattern: str, what: str) -> Callable[[str], str]:
    return partial(checked, re.compile(pattern).fullmatch, what)


image_name = named(r"[!-~]+", "the name of an image")
resource = named(r"[a-z0-9.-]+/[A-Za-z0-9._-]+", "a resource, such as rdma/hca_shared_devices_a")
claim_name = named(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "the name of a persistent volume claim")
job_name = named(
    r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?",  # of a service of Kubernetes, with room for what engines add to it
    "a name of up to 40 small letters, digits and hyphens that begins with a letter",
)


def _parser() -> Parser:
    declared = {name: execute.load_file(name, file, ENGINE).ENGINE for name, file in discover.names(ENGINE).items()}
    engines = "\n".join(f"  {name:<11} {engine.summary}" for name, engine in declared.items())
    parser = Parser("submit", DESCRIPTION, EPILOG.format(engines=engines))
    parser.usage = "%(prog)s --engine NAME --nodes N [OPTIONS] -- [RUN OPTIONS]"
    parser.add_argument("--engine", required=True, metavar="NAME|FILE", help="which starts the processes, see below")
    parser.add_argument("--nodes", required=True, type=whole_number, metavar="N", help="hosts, with one bench on each")
    count = "GPUs of each node, for some engines with their type (default: none, which measures on the CPU)"
    parser.add_argument("--gpus-per-node", type=gpus_per_node, metavar="[TYPE:]K", help=count)
    image = "with bench in it, on Kubernetes; 'docker build -t IMAGE .' in a checkout makes one"
    parser.add_argument("--image", type=image_name, metavar="IMAGE", help=image)
    claim = f"the persistent volume claim that results go to, on Kubernetes (default: {CLAIM})"
    parser.add_argument("--claim", type=claim_name, metavar="NAME", help=claim)
    rdma = "the resource that gives a pod its RDMA devices, on Kubernetes; without it NCCL takes TCP between nodes"
    parser.add_argument("--rdma", type=resource, metavar="RESOURCE", help=rdma)
    parser.add_argument("--name", type=job_name, metavar="NAME", help="of the job (default: bench- and six digits)")
    parser.add_argument("--dry-run", action="store_true", help="write the specification and submit nothing")
    parser.add_argument("--out", metavar="FILE", help="where the specification goes (default: standard output)")
    return parser
