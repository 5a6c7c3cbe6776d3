"""What several tests need: one worker host for all of them, and a way to execute a scenario on it."""

import gc
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin import ROOT, Driver, Said, compile_driver
from standin.hosts import Link, linked
from standin.workloads import BUILT_IN, task, tiny, workload

from bench import machine
from bench.cli import main
from bench.core.job import Job
from bench.core.records import Host
from bench.experiments import lab, pipeline
from bench.experiments.plan import Request, in_turns, job_of
from bench.report import plots
from bench.runs.reader import Run
from bench.runs.reader import read as read_run
from bench.seams import discover, switching
from bench.seams.site import Options
from bench.sites.local import Outcome, WorkerHost

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Before torch is imported, here and in whatever the tests start: threads that spin while they wait for each other make
a step ten times slower where other work shares the cores, and tests have all kinds of neighbours."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a script started by '&', and so of its children
    signal.signal(signal.SIGINT, signal.default_int_handler)

CACHE = tempfile.TemporaryDirectory(prefix="bench-tests-")
os.environ["BENCH_CACHE_DIR"] = CACHE.name
if "ATEN_CPU_CAPABILITY" in os.environ:  # torch's cache would give code that was compiled for another
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(CACHE.name, "inductor")

if sys.dont_write_bytecode:
    # Every process that a test starts would compile bench again, and torch too, which takes longer than to import it.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not Path(str(importlib.util.find_spec("torch").cached)).exists():  # type: ignore[union-attr]
        BYTECODE = tempfile.TemporaryDirectory(prefix="bench-tests-")
        os.environ["PYTHONPYCACHEPREFIX"] = BYTECODE.name

BEGAN_S = time.monotonic()
GPU_TESTS_LIMIT = "BENCH_GPU_TESTS_S"
"""The variable that says how many seconds there are for the tests of a GPU: those that are not reached say so."""

PRETENDED = "STANDIN_CUDA" in os.environ
OLD_TORCH = tuple(map(int, version("torch").split(".")[:2])) < (2, 8)
needs_fsdp2 = pytest.mark.skipif(OLD_TORCH, reason="FSDP2 on the CPU needs torch 2.8")
measures_a_gpu = pytest.mark.skipif(PRETENDED, reason="measures a GPU, and this one is pretended")

ON_GPU = {"model": "resnet18", "image_size": 64, "global_batch": 24, "device": "cuda", "warmup": 3, "iters": 10}
"""Of a launch in the tests of GPUs, whose changes to :func:`request_for` these are."""
if PRETENDED:
    ON_GPU |= {"image_size": 32, "global_batch": 6}


Bench = Callable[..., Said]


def separately(*words: object, here: Path = ROOT, **environment: str) -> Said:
    command, about = [sys.executable, "-m", "bench", *map(str, words)], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=here, env=about | environment, capture_output=True, text=True, timeout=120)
    return Said(done.returncode, done.stdout, done.stderr)


Plotting = Callable[..., None]


LONGEST_FIRST = """
readme interpreters attach bisect tune report report_verdicts report_devices architecture doctor ladder next scale
limits_verb parity_run engine_lines strategies gpu_sampler switches streams real_data hosts run recipe sampler
cuda_pretended workload plan foreign checkpoint import whole_run ranks lost_hosts nightly history compare own_steps
worker_host planted diagnose session
"""
"""The files that take longest. They come first, so that the last ones, which one worker does alone while the others
have nothing left, are short."""


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist hand out files in the order in which they are collected; by itself it begins with those that have
    the most tests, which are the quick ones."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": at for at, name in enumerate(LONGEST_FIRST.split())}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what is imported: to go through all of torch takes it a third of a second."""
    gc.disable()
    collected = yield
    gc.enable()
    gc.freeze()
    return collected


def pytest_unconfigure() -> None:
    """Let the end of Python find what is left, or a library reports that it leaked."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test of a GPU out when the time that they may take is over (see benchmarks/gpu_acceptance.py)."""
    limit = os.environ.get(GPU_TESTS_LIMIT)
    if limit and item.get_closest_marker("gpu") and time.monotonic() - BEGAN_S > float(limit):
        pytest.skip(f"not reached within {limit} s")


def one_host(cores: int, *devices: str) -> tuple[Host, ...]:
    return (Host(name="node1", cores=cores, devices=devices),)


class Planned(NamedTuple):
    launch: int
    repeat: int
    found: discover.Found
    job: Job


def launches(request: Request, scenarios: Sequence[discover.Found], hosts: Sequence[Host]) -> list[Planned]:
    turns = enumerate(in_turns(scenarios, request.launches))
    return [Planned(at, repeat, one, job_of(request, one, at, repeat, hosts)) for at, (one, repeat) in turns]


def planned(scenario: str = "ddp", *hosts: Host, **changes: Any) -> Planned:
    """The launch of a scenario, a name or a file, that :func:`request_for` asks for; on one host with two cores."""
    found = switching.scenario(scenario)
    return launches(request_for((found,), **changes), (found,), hosts or one_host(2, *changes.get("devices", ())))[0]


def request_for(scenarios: tuple[discover.Found, ...], **changes: Any) -> Request:
    """A small request on the CPU: resnet18, 32 px, two ranks."""
    settings = {"model": "resnet18", "image_size": 32}
    settings |= {name: changes.pop(name) for name in tuple(changes) if name in BUILT_IN.workload.settings}
    small = Request(
        scenarios=tuple(found.name for found in scenarios),
        device="cpu",
        devices=(),
        replicas=2,
        task=task(changes.get("device", "cpu"), **settings),
        global_batch=8,
        warmup=1,
        iters=2,
        stall_timeout_s=30.0,
    )
    return replace(small, **changes)


@dataclass
class Executed:
    """A launch that is over: its outcome, what each rank sent, its folder, and every message that was heard."""

    outcome: Outcome
    results: list[dict[str, Any]]
    folder: Path
    events: list[dict[str, Any]]

    def log(self, rank: int = 0) -> str:
        return next(self.folder.glob(f"*rank{rank}.log")).read_text()


@pytest.fixture(scope="session", autouse=True)
def locks_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks in a folder of these tests, so that those of another checkout on this machine do not disturb them; and no
    wait for the disk, which would be most of the time that it takes to write a run by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerHost]:
    yield from a_host("cpu", tmp_path_factory)


def a_host(device: str, tmp_path_factory: pytest.TempPathFactory, *gpus: str) -> Iterator[WorkerHost]:
    log = tmp_path_factory.mktemp("host") / "host.log"
    with WorkerHost(Options(device=device, hosts=machine.here(gpus), log=str(log))) as running:
        running.wait_until_ready()
        running.prepare(workload(device=device))
        yield running


@pytest.fixture
def execute(host: WorkerHost, tmp_path: Path) -> Callable[..., Executed]:
    """``execute(name_or_source, **changes)``: one launch of a named scenario, or of one given as source text."""
    run = executor(host, tmp_path)
    return lambda scenario, **changes: run(scenario, **({"task": tiny()} | changes))


def executor(host: WorkerHost, where: Path) -> Callable[..., Executed]:
    number = iter(range(100))

    def run(scenario: str, on: WorkerHost = host, **changes: Any) -> Executed:
        folder = where / f"launch{next(number)}"
        folder.mkdir()
        if "\n" in scenario:
            file = folder / "planted.py"
            file.write_text(textwrap.dedent(scenario))
            scenario = str(file)
        job = replace(planned(scenario, **changes).job, logs=str(folder), rendezvous_timeout_s=60.0)
        events: list[dict[str, Any]] = []
        outcome = on.perform(job, events.append)
        return Executed(outcome, outcome.results, folder, events)

    return run


@pytest.fixture(scope="session")
def gpus() -> tuple[str, ...]:
    """The UUIDs that ``BENCH_TEST_GPUS`` chooses, as ``bench run --gpus`` does; all without it."""
    return machine.choose_gpus(os.environ.get("BENCH_TEST_GPUS"), machine.choose_device("cuda")[1])


@pytest.fixture(scope="session")
def cuda_host(tmp_path_factory: pytest.TempPathFactory, gpus: tuple[str, ...]) -> Iterator[WorkerHost]:
    yield from a_host("cuda", tmp_path_factory, *gpus)


@pytest.fixture
def launch(cuda_host: WorkerHost, gpus: tuple[str, ...], tmp_path: Path) -> Callable[..., Executed]:
    run = executor(cuda_host, tmp_path)

    def on(scenario: str, **changes: Any) -> Executed:
        devices = changes.get("devices", gpus)
        return run(scenario, **(ON_GPU | {"devices": devices, "replicas": len(devices)} | changes))

    return on


@pytest.fixture
def on_gpu(launch: Callable[..., Executed]) -> Callable[..., Executed]:
    def run(scenario: str, **changes: Any) -> Executed:
        done = launch(scenario, **changes)
        assert done.outcome.status == "ok", f"{done.outcome.reason}\n{done.log()[-3000:]}"
        return done

    return run


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """The kernel refuses to let a file of this process grow beyond ``size`` bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def serve_runs(host: WorkerHost, patch: pytest.MonkeyPatch) -> None:
    """From now on runs in this process take ``host``, which is up: importing torch takes longer than a launch."""
    patch.setattr(lab, "_site", lambda *about: nullcontext(host))
    patch.setattr(host, "wait_until_ready", lambda: host.description)  # it says so once


def in_this_process(host: WorkerHost, patch: pytest.MonkeyPatch, arguments: Sequence[str]) -> int:
    serve_runs(host, patch)
    return main(list(arguments))


def done_here(host: WorkerHost, out: Path, *arguments: str) -> Path:
    """The folder of a run that the command line made in this process, and that ended well: the only one in ``out``."""
    with pytest.MonkeyPatch.context() as patch:
        assert in_this_process(host, patch, (*arguments, "--out", str(out))) == 0
    (path,) = out.iterdir()
    return path


def measured(host: WorkerHost, folder: Path, names: Sequence[str], **changes: Any) -> Run:
    """The run of these scenarios, names or files, under ``folder``, each launch of which has ended well; see
    :func:`request_for`."""
    found = tuple(switching.scenario(name) for name in names)
    with pytest.MonkeyPatch.context() as patch:
        serve_runs(host, patch)
        finished = pipeline.run(request_for(found, **changes), found, lab.Start(out=str(folder / "out")))
    assert finished.failed == 0, finished.run.document.launches
    return read_run(finished.run.path)


@pytest.fixture
def run_here(host: WorkerHost, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """As ``bench``, on the worker host of all tests."""
    serve_runs(host, monkeypatch)
    return bench


@pytest.fixture
def plotting(monkeypatch: pytest.MonkeyPatch) -> Plotting:
    """A page has no plots, and after ``plotting(*drawings)`` these alone. All of them take most of its time."""
    monkeypatch.setattr(plots, "DRAWINGS", ())

    def few(*drawings: Callable[..., object]) -> None:
        monkeypatch.setattr(plots, "DRAWINGS", drawings)

    return few


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """The command line in this process and in a folder of its own, which the noting stand-in notes in, too: exit code,
    standard output, standard error, with what commands that it starts print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))

    def run(*arguments: object) -> Said:
        return Said(main([str(argument) for argument in arguments]), *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(linked())
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces need root and iproute2: {error}")
        yield found


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Driver:
    return Driver(library, tmp_path / "driver.txt")
