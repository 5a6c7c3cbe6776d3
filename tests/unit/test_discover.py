"""From a name to a scenario: what is found, in which order, and what is said about files that are wrong."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import standin
from standin import refusal
from standin.processes import nobody_left

from bench.core.control_group import available_memory_bytes
from bench.seams import discover, execute, switching

GOOD = """\
'''Mine.'''
from bench.seams import Scenario

SCENARIO = Scenario(summary="mine", strategy="ddp")
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(entry_points: dict[str, str], files: dict[str, str], package: str = "theirs") -> Path:
        site = tmp_path / f"site-{package}"
        standin.install(site, entry_points, files, package)
        monkeypatch.syspath_prepend(str(site))
        return site

    return put


def scenario_file(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(("name", "packages"), [("ddp", ["theirs"]), ("hierarchical", ["first", "second"])])
def test_two_of_one_name_are_refused(install: Install, name: str, packages: list[str]) -> None:
    files = [Path(discover.SCENARIO.folder) / "ddp.py"] if name == "ddp" else []
    for package in packages:
        site = install({name: f"of_{package}"}, {f"of_{package}.py": GOOD}, package)
        files.append(site / f"of_{package}.py")
    problem = refusal(discover.names).problem
    assert repr(name) in problem and all(str(file) in problem for file in files)


def test_a_package_may_not_be_called_reference(install: Install) -> None:
    site = install({"reference": "theirs"}, {"theirs.py": GOOD})
    error = refusal(discover.names)
    assert f"{site}/theirs.py takes the name 'reference'" in error.problem and "rename it" in error.remedy


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module"])
def test_an_entry_point_to_a_missing_module(install: Install, module: str) -> None:
    install({"ghost": module}, {})
    for call in (lambda: discover.resolve("ghost"), lambda: switching.load("ghost", discover.names()["ghost"])):
        assert f"'ghost' names a missing module {module}" in refusal(call).problem
    assert switching.load(*discover.resolve("ddp")).scenario.strategy == "ddp"


@pytest.mark.parametrize("module", ["their_module", "their_package.deep"])
def test_an_editable_package(install: Install, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    file = source / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    (source / "their_package").mkdir(exist_ok=True)
    (source / "their_package" / "__init__.py").write_text("raise AssertionError('imported')")
    file.write_text(GOOD)
    install({"hierarchical": module}, {})

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            return PathFinder.find_spec(name, [str(source)])

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert discover.resolve("hierarchical") == ("hierarchical", str(file))


def test_a_path_is_a_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = scenario_file(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    for path in (file, "./mine.py", "mine.py"):
        assert discover.resolve(path) == ("mine", file)
    found = switching.load("mine", file)
    assert (found.name, found.file, found.doc, found.scenario.strategy) == ("mine", file, "Mine.", "ddp")


@pytest.mark.parametrize(("name", "named"), [("ddp", "'ddp'"), ("my-scenario", "my-scenario.py")])
def test_a_file_with_a_name_that_is_taken_or_none(tmp_path: Path, name: str, named: str) -> None:
    absent = f"{tmp_path}/absent.py"
    assert f"there is no file {absent}" in refusal(lambda: discover.resolve(absent)).problem
    assert named in refusal(lambda: discover.resolve(scenario_file(tmp_path, GOOD, name))).problem
    built_in = str(Path(discover.SCENARIO.folder) / "ddp.py")
    assert discover.resolve(built_in) == ("ddp", built_in)
    (tmp_path / "link").symlink_to(discover.SCENARIO.folder)
    assert discover.resolve(str(tmp_path / "link" / "ddp.py"))[0] == "ddp"


OWN = """\
from bench.seams import Scenario, Strategy

SCENARIO = Scenario(summary="mine", strategy=Strategy({fields}){more})
"""
BUILD = "def build(parts): ...\n"


def own(fields: str, more: str = "", build: str = BUILD) -> str:
    return OWN.format(fields=f'label="x"{fields}', more=more) + build


def of(fields: str) -> str:
    return f"from bench.seams import Scenario\n\nSCENARIO = Scenario({fields})\n"


ENDS = {
    "SCENARIO = Scenario(": ":3 .*SyntaxError",
    "1 / 0": ":3 .*ZeroDivisionError",
    "import json; json.loads('{')": ":3 .*JSONDecodeError",
    "import no_such_module_anywhere": ":3 .*no_such_module_anywhere",
    "import sys; sys.exit(0)": ":3 .*SystemExit",
    "raise SystemExit('enough')": ":3 .*enough",
    "raise BaseException('mine')": ":3 cannot be executed: BaseException: mine",
    "raise KeyboardInterrupt": "raised KeyboardInterrupt",
    "os._exit(0)": "left with exit status 0",
    "os.closerange(0, 100)": "left with exit status 0",
    "os.kill(os.getpid(), 9)": "was ended by SIGKILL, as where memory runs out",
    "while True: pass": "was not done after 1 s",
    f"os.remove(__file__)\n{GOOD}": "was removed when it was executed",
}
FORGED = """import sys, time
frame = sys._getframe()
while "pipe" not in frame.f_locals:
    frame = frame.f_back
open(frame.f_locals["pipe"].fileno(), "wb", closefd=False).write(SAID)
time.sleep(600)
"""
FORGERIES = {
    b'{"value": {"scenario": 3}}\n': "base is missing",
    b"[" * 100_000 + b"\n": "gave an unreadable answer",
    b"\0" * (1 << 21): "answered with more than 1,048,576 bytes",
    b"no end of a line": "was not done after 1 s",
}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((text, "declares no SCENARIO") for text in ("", "SCENARIO = None", "SCENARIO = {'a': 'ddp'}", "s = 1")),
        (own("", build=""), "has no function build; define build"),
        (own("", build="build = 'not callable'\n"), "has no function build; define build"),
        (own(', probe="mine"'), "has no function probe"),
        (OWN.format(fields='label=""', more="") + BUILD, "label is empty; give a text"),
        (own(", ranks=2"), ":3 .*ranks=2 is not a function"),
        (own(', weights="split"'), 'strategy.weights must be one of replicated, sharded, not "split"'),
        (own(', precisions=("O4",)'), r'strategy.precisions\[0\] must be one of O0, O1, O2, O3, not "O4"'),
        (own(', precisions="O1"'), "strategy.precisions must be a list, not str"),
        (own(', without={"fused": None}'), r"strategy.without\['fused'\] must be str, not NoneType"),
        (own(", group=1"), "strategy.group must be bool, not int"),
        (own(', amp=("fairscale",)'), r"strategy.amp\[0\] must be one of native, apex"),
        (own(', hue="pink"'), "strategy.hue must be one of"),
        (own(', lable="y"'), ":3 .*lable"),
        (own(', precisions=("O0",)', ', precision="O2"'), "precision='O2' does not go with strategy 'mine'"),
        (own(', amp=("native",)', ', precision="O1", needs=("apex.amp",)'), "by apex.amp does not go with strategy"),
        (of('summary="x", strategy="nope"'), "strategy='nope'.*apex_ddp"),
        (of('summary="x", strategy=3'), "strategy must be str or dict, not int"),
        (of('summary="x", strategy="ddp", precision="O4"'), "precision must be one of O0, O1, O2, O3"),
        (of('summary="x", strategy="ddp", needs=("gpu",)'), r"needs\[0\] must be one of cuda, apex.amp, apex.parallel"),
        (of('summary="x", strategy="ddp", half="fp8"'), "half must be one of fp16, bf16"),
        (of('summary=" ", strategy="ddp"'), "summary is empty"),
        (of('summary="x", strategy="ddp", switches=("compile")'), "switches must be a list, not str"),
        (of('summary="x", strategy="ddp", options=["period"]'), "options must be an object, not list"),
        (of('strategy="ddp"'), ":3 .*summary"),
        (of('summary="x", strategy="ddp", colour="red"'), ":3 .*colour"),
        (f"taken = bytearray({available_memory_bytes() * 3 // 4})\n{GOOD}", ":1 cannot .*: MemoryError.*free memory"),
        *((f"import os\n\n{line}\n", ended) for line, ended in ENDS.items()),
        *((FORGED.replace("SAID", repr(said)), refused) for said, refused in FORGERIES.items()),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the field, and the line where it is a line's; also one that ends its process, or forges an answer."""
    if "not done" in named:
        monkeypatch.setattr(execute, "IMPORT_LIMIT_S", 1.0)
    file = scenario_file(tmp_path, text)
    error = refusal(lambda: switching.load("mine", file))
    assert error.option == "--scenario" and re.search(f"{file}.*{named}", f"{error.problem}; {error.remedy}")


MEDDLING = """import atexit, os, resource, signal, subprocess, sys, threading, time
from bench.seams import Scenario

os.chdir("/")
os.umask(0o777)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
time.perf_counter = time.monotonic = lambda: 0.0
os._exit = sys.exit = lambda status: None
os.environ["MEDDLED"] = "1"
threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(time.sleep, 600)
print("printed", flush=True)
pid = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
sys.setrecursionlimit(200)
sys.stdout = sys.stderr = None
SCENARIO = Scenario(summary=f"pid {pid}", strategy="ddp")
"""


def test_what_an_import_does_is_not_done_to_bench(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (os.getcwd(), time.perf_counter, os._exit, sys.stdout, dict(os.environ), threading.active_count())
    found = switching.load("mine", scenario_file(tmp_path, MEDDLING))
    after = (os.getcwd(), time.perf_counter, os._exit, sys.stdout, dict(os.environ), threading.active_count())
    assert after == before and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert capfd.readouterr().out == "", "standard output is bench's own"
    (pid,) = re.findall(r"pid (\d+)", found.scenario.summary)
    assert nobody_left([int(pid)])


def test_what_a_file_declares_executes_nothing_here(tmp_path: Path) -> None:
    crafted = "(type('Crafted', (str,), {'__reduce__': lambda self: (eval, ('1 / 0',))})('mine'))"
    found = switching.load("mine", scenario_file(tmp_path, GOOD.replace('"mine"', crafted)))
    assert found.scenario.summary == "mine" and type(found.scenario.summary) is str


RANKS = OWN.replace("Scenario, Strategy", "Rank, Scenario, Strategy") + BUILD


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ("lambda devices: (Rank(devices=(0,), replicas=devices),)", None),
        ("lambda devices: 1 / 0", "raised ZeroDivisionError"),
        ("lambda devices: 3", "ranks(2) returned 3"),
        ("lambda devices: (Rank(devices=(2,)),)", "ranks(2) returned"),
    ],
)
def test_a_strategys_own_ranks(tmp_path: Path, ranks: str, named: str | None) -> None:
    found = switching.load("mine", scenario_file(tmp_path, RANKS.format(fields=f'label="x", ranks={ranks}', more="")))
    if named is None:
        assert (found.strategy.label, found.strategy_name, found.strategy_file) == ("x", "mine", found.file)
        assert (found.strategy.processes(2), found.strategy.replicas(2)) == (1, 2)
    else:
        assert named in refusal(lambda: found.strategy.processes(2)).problem


KINDS = (discover.SCENARIO, discover.STRATEGY, discover.SWITCH, discover.WORKLOAD, discover.SITE, discover.ENGINE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
def test_built_in_files_pass_the_checks_of_ones_own(kind: execute.Kind, tmp_path: Path) -> None:
    for name, file in discover.names(kind).items():
        own = shutil.copy(file, tmp_path)
        execute.load_file(name, own, kind)
        if kind is discover.STRATEGY:
            discover.load_strategy(name, own)
        elif kind is discover.SCENARIO:
            switching.load(name, own)
        elif kind is discover.WORKLOAD:
            discover.load_workload(name, own)  # whose settings have free names


def test_a_strategys_own_obstacle(tmp_path: Path) -> None:
    text = own(", obstacle=lambda device, devices: 'it needs two' if devices < 2 else None")
    strategy = switching.load("mine", scenario_file(tmp_path, text)).strategy
    assert (strategy.obstacle("cpu", 1), strategy.obstacle("cpu", 2)) == ("it needs two", None)
