"""A wrong request: exit code 2, one line that names the option and what to do, no traceback, and nothing written."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import Bench, serve_runs
from standin import a_gpu
from standin.documents import document, launch
from standin.hosts import free_port

from bench import machine
from bench.core.errors import RequestError
from bench.experiments.obstacles import refuse_unreachable_loopback
from bench.machine import nvml
from bench.runs.writer import RunWriter
from bench.seams import switching
from bench.sites.hosts.party import Party
from bench.sites.local import WorkerHost

GOOD = 'from bench.seams.scenario import Scenario\n\nSCENARIO = Scenario(summary="mine", strategy="ddp")\n'
HAS_DRIVER = Path("/dev/nvidiactl").exists()

CPU = ("run", "--device", "cpu", "--out", "{here}/out")
"""So that these requests mean the same where there are GPUs. ``{here}`` is the folder of a test."""

COUNTS = ("--image-size", "--global-batch", "--batch-per-rank", "--warmup", "--iters", "--launches", "--nproc")

Case = tuple[tuple[str, ...], tuple[str, ...]]

Refused = Callable[..., None]

CASES: dict[str, Case] = {
    "unknown verb": (("frobnicate",), ("frobnicate", "list, doctor, run, ", " report, ")),
    "no verb": (("",), ("'': unknown command",)),
    "misspelt verb": (("lst",), ("did you mean list?",)),
    "an option first": (("--iters",), ("the verb comes first",)),
    "unknown option of run": ((*CPU, "--frobnicate"), ("--frobnicate; see 'python -m bench run --help'",)),
    "abbreviated option": ((*CPU, "--iter", "3"), ("--iter 3; did you mean --iters?", "run --help")),
    "misspelt option": ((*CPU, "--launch=3"), ("--launch=3; did you mean --launches?", "run --help")),
    "value missing": ((*CPU, "--iters"), ("--iters",)),
    "unknown profile": ((*CPU, "--profile", "slow"), ("--profile", "'slow'", "standard")),
    "unknown device": (("run", "--device", "tpu"), ("--device", "'tpu'", "cuda")),
    "unknown implementation": ((*CPU, "--impl", "amp"), ("--impl", "'amp'", "native")),
    # scenarios
    "unknown scenario": ((*CPU, "--scenario", "ddp_02"), ("--scenario", "'ddp_02'", "did you mean ddp_o2")),
    "no scenario": ((*CPU, "--scenario", ","), ("--scenario", "no scenario is named")),
    "scenario named twice": ((*CPU, "--scenario", "ddp,ddp"), ("--scenario", "ddp", "twice", "--launches")),
    "scenario file missing": ((*CPU, "--scenario", "{here}/absent.py"), ("--scenario", "{here}/absent.py")),
    "name of the reference": ((*CPU, "--scenario", "{here}/reference.py"), ("the name 'reference'", "rename the")),
    "a set beside scenarios": ((*CPU, "--set", "all", "--scenario", "ddp"), ("--set: --scenario names scenarios",)),
    "unknown site": ((*CPU, "--site", "locla"), ("--site: there is no site 'locla'; did you mean local?",)),
    # the batch
    "uneven batch": ((*CPU, "--ranks", "2", "--global-batch", "7"), ("--global-batch", "7", "use 6 or 8")),
    "two batches": ((*CPU, "--global-batch", "8", "--batch-per-rank", "4"), ("--global-batch", "--batch-per-rank")),
    # numbers
    **{name: ((*CPU, name, "0"), (f"{name}: '0'", "at least 1")) for name in COUNTS},
    **{
        f"{value:.9} steps": ((*CPU, "--iters", value), (f"error: --iters: '{value:.3}", "at least 1"))
        for value in ("many", "-3", "1.5", "", "9" * 5000)
    },
    "steps of 17 digits": ((*CPU, "--iters", "1" + "0" * 16), ("error: --iters: 1000", "give at most 1")),
    **{f"seed of {value:.9}": ((*CPU, "--seed", value), ("error: --seed: ",)) for value in ("-1", "9" * 23)},
    **{
        f"patience of {value}": ((*CPU, f"--stall-timeout={value}"), (f"--stall-timeout: '{value}'",))
        for value in ("0", "-1", "nan", "soon", "inf")
    },
    "absurd number of steps": ((*CPU, "--iters", "999999999"), ("error: --iters: ", "GiB", "use at most")),
    "absurd number of launches": ((*CPU, "--launches", "999999999"), ("error: --launches: ", "GiB")),
    "absurd ranks": ((*CPU, "--nproc", "999999999"), ("--nproc",)),
    # until it is precise, and why it takes so long
    **{
        f"budget of {value}": ((*CPU, "--until-precision", "1%", f"--budget={value}"), (f"--budget: '{value}'", "20m"))
        for value in ("5", "0m", "nanm", "", "20 parsecs", "0h0m", "1h30", "30s9m", "9m9m", "1.2.3h", "1h -5m", "-5m")
    },
    "budget for nothing": ((*CPU, "--budget", "20m"), ("error: --budget: ", "--until-precision 1%", "--find-batch")),
    "too few launches": ((*CPU, "--until-precision", "1%", "--launches", "4"), ("error: --launches: ", "at least 5")),
    **{
        f"precision of {value}": ((*CPU, "--until-precision", value), (f"--until-precision: '{value}'", "such as 1%"))
        for value in ("1", "0%", "100%", "nan%", "%", "")
    },
    **{
        f"{mode} with {given[0]}": ((*CPU, mode, *given), (f"error: {given[0]}: {mode} {why}", "leave one out"))
        for mode, why, also in (
            ("--find-batch", "has short launches of its own", (("--launches", "3"), ("--warmup", "1"))),
            ("--input-sweep", "measures the loader", (("--workers", "0"), ("--set", "all"))),
        )
        for given in (*also, ("--until-precision", "1%"), ("--diagnose",), ("--trace",))
    },
    "two experiments": ((*CPU, "--input-sweep", "--find-batch"), ("error: --input-sweep: --find-batch has short",)),
    "a sweep of two": ((*CPU, "--input-sweep", "--scenario", "ddp,dp"), ("error: --scenario: ", "name one")),
    "no data": ((*CPU, "--input-sweep", "--workload", "imagefolder"), ("--input-sweep: ", "give --data DIR")),
    "a sweep of what reads no data": ((*CPU, "--input-sweep"), ("error: --input-sweep: ", "--workload imagefolder")),
    "trace without its launch": ((*CPU, "--trace", "--no-diagnose"), ("--trace", "--no-diagnose", "choose one")),
    # where it goes
    "out is a file": (("run", "--device", "cpu", "--out", "{here}/file"), ("--out", "{here}/file", "not a folder")),
    "out has too long a name": (("run", "--device", "cpu", "--out", "n" * 300), ("--out", "name too long")),
    "out is no text": (("run", "--device", "cpu", "--out", "{here}/b\udce9"), ("--out", "{here}/b", "not valid text")),
    "a scenario file that is no text": ((*CPU, "--scenario", "{here}/b\udce9/a.py"), ("--scenario", "not valid text")),
    "out cannot be written": (("run", "--device", "cpu", "--out", "/proc/x"), ("--out", "/proc", "another folder")),
    # apex and Python
    "apex too new": ((*CPU, "--apex", "{here}/newer"), ("--apex", "{here}/newer", "newer than 25.05", "25.05")),
    "apex of no folder": ((*CPU, "--apex", "{here}/absent"), ("--apex", "{here}/absent", "25.05")),
    "apex on the CPU": ((*CPU, "--impl", "apex", "--scenario", "ddp_o1"), ("--impl", "ddp_o1", "CUDA")),
    "python that is not there": ((*CPU, "--python", "{here}/python"), ("--python", "{here}/python", "interpreter")),
    "python without a name": ((*CPU, "--python", ""), ("--python: it is empty", "interpreter")),
    "python that is no program": ((*CPU, "--python", "{here}/file"), ("--python", "{here}/file", "interpreter")),
    "python twice": ((*CPU, "--python", "/x/python", "--python", "/x/python"), ("--python", "twice", "--launches")),
    # options that do not go together
    "pythons of a search": ((*CPU, "--find-batch", "--python", "a", "--python", "b"), ("--python", "--find-batch")),
    "pythons of scale": (("scale", "--device", "cpu", "--python", "a", "--python", "b"), ("--python", "name one")),
    "a second scenario option": ((*CPU, "--scenario", "frobnicate", "--scenario", "single"), ("--scenario",)),
    "GPUs on the CPU": ((*CPU, "--gpus", "0"), ("--gpus", "--device cpu")),
    "a scenario file that does not end in .py": ((*CPU, "--scenario", "{here}/file"), ("--scenario", "{here}/file")),
    # other verbs
    "apex of no folder for list": (("list", "--apex", "{here}/absent"), ("--apex", "{here}/absent")),
    "python that is not there for doctor": (("doctor", "--python", "{here}/none"), ("--python", "No such file")),
}

TRIED: dict[str, Case] = {
    "unknown model": ((*CPU, "--model", "resnet_101"), ("error: --model: ", "resnet101")),
    "too small for a ResNet": ((*CPU, "--model", "resnet18", "--image-size", "3"), ("3 px: too small", "32 and more")),
    "too small for a kernel": ((*CPU, "--model", "alexnet", "--image-size", "32"), ("alexnet cannot take them",)),
    "absurd batch": ((*CPU, "--global-batch", "1000000000"), ("error: --global-batch: ", "GiB")),
    "absurd images": ((*CPU, "--image-size", "1000000"), ("error: --image-size: ", "GiB")),
}

REPORT = ("report", "--results", "{here}/results", "--out", "{here}/out")
COMPLETE = ("report", "--results", "{here}/complete", "--out")
REPORTS: dict[str, Case] = {
    "no such run": ((*REPORT, "20200101T000000Z-00000000"), ("RUN", "20200101T000000Z-00000000", "latest")),
    "no run at all": ((*REPORT, "--results", "{here}/empty"), ("RUN", "{here}/empty", "bench run")),
    "results not there": (("report", "--results", "{here}/absent", "--out", "{here}/out"), ("RUN", "{here}/absent")),
    "folder that is no run": ((*REPORT, "{here}/empty"), ("RUN", "{here}/empty", "not a run folder")),
    "incomplete run": ((*REPORT, "latest"), ("RUN", "{here}/results", "incomplete", "--allow-incomplete")),
    "run named twice": ((*COMPLETE, "{here}/out", "latest", "latest"), ("RUN", "twice")),
    "report into a file": ((*COMPLETE, "{here}/file"), ("--out", "{here}/file", "not a folder")),
    "report into what cannot be written": ((*COMPLETE, "/proc/x"), ("--out", "/proc", "another folder")),
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for folder in ("empty", "b\udce9", "newer/apex/normalization", "newer/apex/optimizers"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in {
        "file": "",
        "reference.py": GOOD,
        "b\udce9/a.py": GOOD,
        **{f"newer/apex/{folder}__init__.py": "" for folder in ("", "normalization/", "optimizers/")},
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def assert_refused(here: Path, bench: Bench) -> Refused:
    def check(case: Case) -> None:
        arguments, says = case
        said = bench(*(argument.format(here=here) for argument in arguments))
        said.refused("bench: error: ", *(words.format(here=here) for words in says))
        assert not (here / "out").exists() and (here / "file").read_text() == ""

    return check


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_wrong_request_is_refused_in_one_line(assert_refused: Refused, case: Case) -> None:
    assert_refused(case)


@pytest.mark.parametrize("case", TRIED.values(), ids=TRIED)
def test_a_worker_host_refuses_what_it_cannot_train(
    assert_refused: Refused, case: Case, host: WorkerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_runs(host, monkeypatch)
    assert_refused(case)


@pytest.mark.parametrize("case", REPORTS.values(), ids=REPORTS)
def test_a_report_on_nothing_is_refused_in_one_line(here: Path, assert_refused: Refused, case: Case) -> None:
    for folder in ("results", "complete"):
        writer = RunWriter(str(here / folder), document())
        writer.add(launch(status="unsupported"))
        writer.finish(complete=folder == "complete")
    assert_refused(case)


@pytest.mark.parametrize("name", ["unknown verb", "value missing", "unknown scenario", "python that is not there"])
def test_json_is_one_document_beside_the_line(here: Path, bench: Bench, name: str) -> None:
    arguments, _ = CASES[name]
    code, out, shown = bench(*(argument.format(here=here) for argument in arguments), "--json")
    line = shown.removesuffix("\n").removeprefix("bench: error: ")
    assert code == 2 and json.loads(out) == {"error": line, "exit_code": 2}
    assert not (here / "out").exists()


def test_an_interface_that_is_missing(assert_refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth77")
    assert_refused(((*CPU, "--scenario", "ddp"), ("GLOO_SOCKET_IFNAME: ", "'eth77'", "unset GLOO_SOCKET_IFNAME, or")))


@pytest.mark.parametrize("interfaces", ["", "l,eth77", "^eth77", "=lo", "eth77", "=l,eth77"])
def test_interfaces_as_nccl_takes_them(monkeypatch: pytest.MonkeyPatch, interfaces: str) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", interfaces)
    missing = pytest.raises(RequestError, match="NCCL_SOCKET_IFNAME: this host has no network interface 'eth77'; unset")
    with missing if interfaces in ("eth77", "=l,eth77") else nullcontext():
        refuse_unreachable_loopback((switching.scenario("ddp"),), "cuda")


def test_what_an_engine_left_over_is_said_before_other_hosts_are_awaited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    left_over = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in left_over.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BENCH_SECRET", raising=False)
    before: list[str] = []
    monkeypatch.setattr(Party, "fail", lambda *about: before.append(capfd.readouterr().err))
    assert bench("run") == (2, "", "")
    assert len(before) == 1 and "bench: error: BENCH_SECRET: it is not set" in before[0] and "unset RANK" in before[0]


def test_json_of_the_command_is_not_of_bench(bench: Bench) -> None:
    assert bench("attach", "--out", "", "--", "true", "--json")[:2] == (2, "")


# GPUs


@pytest.mark.skipif(HAS_DRIVER, reason="there is an NVIDIA driver here")
@pytest.mark.parametrize("verb", ["run", "list"])
def test_a_gpu_that_is_missing(assert_refused: Refused, verb: str) -> None:
    """What ``--gpus`` says then is in test_readme.py."""
    assert_refused(((verb, "--device", "cuda"), ("--device", "cuda", "--device cpu")))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpus", "7"), ("--gpus", "'7'", "0 (Stand-in B", "1 (Stand-in A")),
        (("--gpus", "GPU-none"), ("--gpus", "'GPU-none'")),
        (("--gpus", ""), ("--gpus", "''")),
        (("--gpus", "0,1,0"), ("--gpus", "0", "twice")),
        (("--gpus", "1,GPU-aaaa"), ("--gpus", "GPU-aaaa", "twice")),
        (("--nproc", "2"), ("--ranks/--nproc", "--gpus")),
        (("--global-batch", "127"), ("--global-batch", "127", "use 126 or 128")),
    ],
    ids=" ".join,
)
def test_absent_and_repeated_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, assert_refused: Refused, arguments: tuple[str, ...], says: tuple[str, ...]
) -> None:
    gpus = [a_gpu(index, f"GPU-{letter.lower() * 4}", f"Stand-in {letter}") for index, letter in enumerate("BA")]
    monkeypatch.setattr(nvml, "list_gpus", lambda: (gpus, None))
    monkeypatch.delenv(machine.VISIBLE, raising=False)
    assert_refused((("run", "--out", "{here}/out", *arguments), says))
