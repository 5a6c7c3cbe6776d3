"""Everything that only a GPU can show, in the order of what it teaches: bench accepted on this machine, or not.

    python3 benchmarks/gpu_acceptance.py --out acceptance
    python3 benchmarks/gpu_acceptance.py --out acceptance                   (again: goes on where it stopped)
    python3 benchmarks/gpu_acceptance.py --out acceptance --apex ~/apex-25.05
    python3 benchmarks/gpu_acceptance.py --out acceptance --items tune      (this, even if it was done)

From a plain checkout, with this machine's own Python and torch. Three calls of ten minutes are the half hour that shows
the most; a call goes down the list of :attr:`Acceptance.items` as far as ``--budget`` lasts. ``--out`` remembers what
is done, so the same command goes on, on another machine with the same GPU, too.

``--out`` holds ``acceptance.md`` (every check with its value, bound and verdict; written again after every item),
``acceptance.json``, sealed run folders under ``runs/``, and what each item printed under ``items/``. What is to be kept
as evidence goes to ``results/reference/<gpu>-<date>/``. ``--rehearse`` runs the machinery on the CPU with tiny sizes.

Exit codes: 0 all passed; 1 a check failed; 2 the request is wrong; 11 noise hid what was looked for; 12 something
is left for another call or cannot be done (no GPU, too little memory); 130 interrupted.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import acceptance
import paired  # also puts bench on the path
from acceptance import FAILED, NOT_DONE, NOT_HERE, PASSED, VALUE, Check, Evidence

from bench import machine
from bench.analyse.account import ADDS_UP
from bench.core.channel import die_with_parent
from bench.core.errors import INTERRUPTED, BenchError, RequestError
from bench.core.records import Gpu
from bench.machine import foreign, redact
from bench.machine.lock import acquire
from bench.runs.files import check_writable
from bench.seams.discover import DEFAULT, names
from bench.verbs.options import WrongOption, check_apex, span, whole_number
from bench.verbs.sets import switched

RESERVE_S = 12.0
"""Of each call, to end what runs and to write the page."""

ENDING_S = 8.0
"""For an item that is over its time to end by itself, which seals what it has."""

LAST_TEST_S = 15.0
"""For the test that is running when the time of its item is nearly over, and for pytest to end."""

TRIES = 3
"""What ran out of time is begun again by the next call, or resumed if it is a run; not after so many calls in a row in
which no more scenarios were begun."""

WHOLE = 0.8
"""The share of a call that must be left for something that may take all of one."""

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = {"device": "cpu", "model": "resnet18", "image_size": 32, "global_batch": 32}
"""Of a rehearsal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that is over. ``said``, ``told``: its standard output and error. ``ended``: it had to be ended."""

    code: int
    said: str
    told: str
    ended: bool

    @property
    def last_line(self) -> str:
        """Why it failed, as far as it says so."""
        lines = [line.strip() for line in self.told.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document that it printed. Raises :class:`RuntimeError` with its last line where it failed."""
        text = self.said.strip()
        try:
            found: dict[str, Any] = json.loads(text if text.startswith("{") else text.splitlines()[-1])
        except (ValueError, IndexError):
            raise RuntimeError(self.last_line) from None
        if self.code not in (0, 1) or "error" in found:
            raise RuntimeError(self.last_line)
        return found


class NotDone(Exception):
    """An item could not be done: in one line why, with the remedy."""


Judged = tuple[list[Check], dict[str, Any]]
"""What came of an item: its checks, and what the page or a later item needs of it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A piece of work. ``why``: its title on the page. ``needs_s``: what must be left of a call for it to be begun.
    ``first``: a command that comes before. ``missing``: in one line why it cannot be done here.
    """

    name: str
    why: str
    needs_s: float
    command: Sequence[str]
    judge: "Callable[[Item, Command], Judged]"
    first: Sequence[str] = ()
    missing: str | None = None

    @property
    def locks(self) -> bool:
        """It locks the GPUs itself."""
        return self.command[:2] == ["-m", "bench"]

    @property
    def is_run(self) -> bool:
        """It leaves a run folder that can be resumed."""
        return self.command[:3] == ["-m", "bench", "run"]


@dataclass(slots=True)
class Acceptance:
    """One call: its request, its time, and what it and earlier calls found (``done``, by item)."""

    options: argparse.Namespace
    out: str
    gpus: tuple[Gpu, ...] = ()
    obstacle: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    began_s: float = 0.0

    # What is to be done

    @property
    def items(self) -> list[Item]:
        """All of it, in order: what is broken shows before what is noisy."""
        several, asked = len(self.gpus) > 1, self.options
        others = [*(name for name in names() if name not in DEFAULT), *switched(every_word=self.on_gpu)]
        real = [name for name in DEFAULT if name.startswith("apex_")]
        apex = ["--apex", asked.apex] if asked.apex else []
        no_apex = None if asked.apex else "--apex names no checkout of NVIDIA/apex 25.05"
        script, more = self.path("recipe.py"), self.done.get("more", {}).get("found", {})
        ranks = ["--standalone", "--nproc-per-node", str(len(self.gpus) or 2)]
        train = ["-m", "torch.distributed.run", *ranks, script, "--steps", "20"]
        write = ["-m", "bench", "recipe", more.get("path", ""), "--scenario", "fsdp2", "--out", script]
        unmade = None if more.get("complete") else "the run of the other strategies is not complete"
        doctor = ["-m", "bench", "doctor", "--json", *apex, *(["--bandwidth"] if several else [])]
        pytest = ["-m", "pytest", "-m", "gpu", "tests/gpu", "-o", "addopts=", "--strict-markers"]
        pytest += ["-q", "-p", "no:cacheprovider", f"--junitxml={self.path('tests.xml')}"]
        where, image = ("--device", asked.device), ("--model", asked.model, "--image-size", str(asked.image_size))
        sizes, impl, ten_steps = (*image, "--global-batch", str(asked.global_batch)), "--impl", ("--iters", "10")
        native, several_launches = (*sizes, impl, "native"), () if self.on_gpu else ("--launches", "2")
        standard = (*native, "--profile", "standard", "--no-diagnose", "--no-parity", *several_launches)
        search = (*sizes, "--find-batch", "--no-parity", "--budget", "3m" if self.on_gpu else "20s")
        each = (*image, impl, "native", "--batch-per-rank", "64")
        counts = ",".join(str(number) for number in (1, 2, 4, 8, 16) if number <= len(self.gpus))
        of_several = [
            self.run("per_rank", "64 images on each GPU", "ddp,ddp_o1,ddp_o2", *each),
            self.verb("scale", "how ddp scales", *where, *sizes, "--scenario", "ddp", "--counts", counts),
        ]
        return [
            Item("doctor", "bench doctor", 12.0, doctor, self.doctor),
            self.compare("handwritten_single", "a hand-written script", "against_handwritten.py", "single", *sizes),
            self.run("scenarios", "the ten scenarios", ",".join(DEFAULT) + ",ddp_untuned" * several, *native),
            Item("tests", "pytest -m gpu", 60.0, pytest, self.judged_tests),
            self.run("more", "every other strategy and switch", ",".join(others), *native, *ten_steps),
            Item("recipe", "20 steps of the recipe of fsdp2", 60.0, train, self.passes, write, unmade),
            self.verb("attach", "attach on that recipe", "--", sys.executable, *train, missing=unmade),
            self.run(
                "checkpoint", "what checkpoints cost", "ddp,fsdp2", *sizes, "--checkpoint", "every=4", "--iters", "8"
            ),
            self.run("gpt", "gpt with AdamW", "single,ddp,fsdp2", "--workload", "gpt", *ten_steps),
            replace(
                self.verb("limits", "the account of a step", *where, *sizes, "--scenario", "ddp_o1"), judge=self.adds_up
            ),
            self.verb("tune", "bench tune for two minutes", *where, *sizes, "--budget", "2m"),
            *(of_several if several else ()),
            self.run("standard_ddp_ddp_o2", "ddp and ddp_o2 with --profile standard", "ddp,ddp_o2", *standard),
            self.run("standard_single_ddp_o1", "single and ddp_o1 with --profile standard", "single,ddp_o1", *standard),
            self.compare(
                "instruments", "one without instruments and sampler", "instruments.py", "ddp", *sizes, "--peace", "6"
            ),
            self.compare("handwritten_ddp_o1", "a hand-written script", "against_handwritten.py", "ddp_o1", *sizes),
            self.run("apex", "real apex", ",".join(real), *sizes, impl, "apex", *apex, missing=no_apex),
            Item("batch", "the largest batch", 200.0, self.bench_run("ddp,ddp_o2", *search), self.passes),
        ]

    def bench_run(self, scenarios: str, *words: str) -> list[str]:
        how = ["--device", self.options.device, "--wait", "--json"]
        return ["-m", "bench", "run", *how, "--scenario", scenarios, *words]

    def run(self, name: str, why: str, scenarios: str, *words: str, missing: str | None = None) -> Item:
        """One launch of each. A run that is ended is resumed, so it may begin in any time that is left."""
        few = () if self.on_gpu else ("--warmup", "1", *(() if "--iters" in words else ("--iters", "4")))
        return Item(name, why, 60.0, self.bench_run(scenarios, *words, *few), self.judged_run, missing=missing)

    def verb(self, name: str, why: str, *words: str, missing: str | None = None) -> Item:
        command = ["-m", "bench", name, "--wait", "--json", "--out", os.path.join(self.out, "runs", name), *words]
        return Item(name, why, 150.0, command, self.passes, missing=missing)

    def compare(self, name: str, why: str, file: str, scenario: str, *words: str) -> Item:
        """A hand-written script runs beside one rank, on the first GPU."""
        size = "--seconds 60 --pairs 10" if self.on_gpu else "--seconds 4 --pairs 2 --steps 2"
        command = [os.path.join(HERE, file), "--json", "--device", self.options.device, "--scenario", scenario, *words]
        command += [*size.split(), *(["--gpus", self.uuids[0]] if self.gpus and name.startswith("handwritten") else [])]
        return Item(name, f"a step of {scenario} against {why}", 120.0, command, self.judged_comparison)

    @property
    def on_gpu(self) -> bool:
        return bool(self.options.device == "cuda")

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    # What is done

    @property
    def left_s(self) -> float:
        """Of this call, for items."""
        return max(0.0, self.began_s + float(self.options.budget) - RESERVE_S - time.monotonic())

    def path(self, name: str) -> str:
        return os.path.join(self.out, "items", name)

    def work(self) -> None:
        """Down the list: each item that is not done, and fits."""
        wanted = self.options.items or [item.name for item in self.items]
        for name in self.options.items or ():
            self.done.pop(name, None)
        for name in wanted:
            item = next(item for item in self.items if item.name == name)  # as what was done leaves it
            fits = self.left_s >= min(item.needs_s, WHOLE * float(self.options.budget))
            if fits and not self.done.get(name, {}).get("over") and self.why_not(item) is None:
                self.do(item)
                self.write()

    def why_not(self, item: Item) -> str | None:
        return (self.obstacle if item.name != "doctor" else None) or item.missing

    def do(self, item: Item) -> None:
        """One item; whatever becomes of it is on disk."""
        limit_s, before = self.left_s, self.done.get(item.name, {"tries": 0, "took_s": 0.0, "found": {}})
        tries = before["tries"]
        self.say(item.why)
        checks, found, over = [self.undone(item, "interrupted; call again")], dict[str, Any](), False
        began_s = time.monotonic()

        def keep() -> None:
            took = {"tries": tries, "took_s": before["took_s"] + time.monotonic() - began_s}
            shown = [asdict(one) for one in checks]
            self.done[item.name] = {"why": item.why, "over": over, **took, "checks": shown, "found": found}
            part = Path(self.path(f"{item.name}.json.part"))
            part.write_text(json.dumps(self.done[item.name]))
            part.replace(self.path(f"{item.name}.json"))

        keep()
        try:
            done = self.execute(item, limit_s)
            if done.code == 2:
                raise NotDone(done.last_line)
            judged: list[Check] = []
            with suppress(RuntimeError) if done.ended else nullcontext():
                judged, found = item.judge(item, done)
            late = done.ended or any(one.part == acceptance.TESTS and one.verdict == NOT_DONE for one in judged)
            further = len(found.get("summary", ())) > len(before["found"].get("summary", ()))
            tries = 0 if further or not late else tries + 1
            over = not late or tries >= TRIES
            why = f"ended after {limit_s:.0f} s{'; call again' * (not over)}"
            checks = [*judged, *([self.undone(item, why)] if late else [])]
        except KeyboardInterrupt:
            with suppress(RuntimeError, NotDone):
                judged, found = item.judge(item, Command(code=INTERRUPTED, said="", told="", ended=True))
                checks = [*judged, *checks]
            raise
        except (NotDone, RequestError) as reason:
            checks = [self.undone(item, str(reason))]
        # the others' values are still worth having
        except (RuntimeError, KeyError, TypeError, ValueError, OSError, ImportError, BenchError) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            checks, over = [Check(part=item.name, what=item.why, verdict=FAILED, why=why)], True
        finally:
            keep()
        for one in checks:
            about = "; ".join(text for text in (one.value, one.why) if text)
            self.say(f"  {one.verdict}: {one.what}{f' ({about})' if about else ''}")

    def undone(self, item: Item, why: str) -> Check:
        return Check(part=item.name, what=item.why, verdict=NOT_DONE, why=why)

    def execute(self, item: Item, limit_s: float) -> Command:
        """Run its command, or resume the run that an earlier call began, if that is possible here."""
        until_s = time.monotonic() + limit_s
        commands = [item.command]
        if item.is_run:
            into = os.path.join(self.out, "runs", item.name)
            begun = salvaged(into)
            commands = [[*item.command, "--out", into]]
            if begun is not None and not begun["complete"]:
                commands.insert(0, ["-m", "bench", "run", "--resume", begun["path"], "--wait", "--json"])
        environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(self.uuids)} if self.uuids else {}
        if item.name == acceptance.TESTS:
            with suppress(FileNotFoundError):  # of an earlier try
                os.remove(self.path("tests.xml"))
            environment["BENCH_GPU_TESTS_S"] = f"{limit_s - LAST_TEST_S:.0f}"
            environment |= {"BENCH_APEX": self.options.apex} if self.options.apex else {}
        if item.first:
            made = self.started(item.name, item.first, limit_s, environment)
            if made.code:
                raise RuntimeError(made.last_line)
        for command in commands:
            with nullcontext() if item.locks or not self.on_gpu else acquire(self.uuids, wait=False, say=self.say):
                done = self.started(item.name, command, max(1.0, until_s - time.monotonic()), environment)
            if done.code != 2:
                break
        return done

    def started(self, name: str, command: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> Command:
        """A command of this pack, once it is over or was ended; what it prints is kept under ``items/``."""
        parent = os.getpid()

        def prepare() -> None:
            die_with_parent(parent)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which is to end it, and which a job of a script ignores

        paths = [self.path(f"{name}.{kind}") for kind in ("out", "err")]
        with open(paths[0], "wb") as output, open(paths[1], "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=paired.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=prepare,
            )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
            ended = process.poll() is None
        finally:  # and all that it started: first as Ctrl-C does, so that it can seal what it has
            for number, patience_s in ((signal.SIGINT, ENDING_S), (signal.SIGKILL, None)):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(patience_s)
        said, told = (Path(path).read_text(encoding="utf-8", errors="replace") for path in paths)
        return Command(code=process.returncode, said=said, told=told, ended=ended)

    def say(self, text: str) -> None:
        print(f"[{self.left_s:3.0f} s left] {text}", file=sys.stderr, flush=True)

    # From a command that is over to its checks

    def doctor(self, item: Item, done: Command) -> Judged:
        found = done.document["findings"]
        problems = [one["finding"] for one in found if one["level"] == "problem"]
        verdict = VALUE if problems else PASSED  # what a machine lacks is no fault of bench
        count = f"{len(found)} findings, {len(problems)} of them problems"
        check = Check(part=item.name, what=item.why, verdict=verdict, value=count, why="; ".join(problems))
        return [check], {}

    def passes(self, item: Item, done: Command) -> Judged:
        """Of a command that is right if it ends well; one that was ended says nothing."""
        why, verdict = (done.last_line, FAILED) if done.code else ("", PASSED)
        return [Check(part=item.name, what=item.why, verdict=verdict, why=why)] * (not done.ended), {}

    def adds_up(self, item: Item, done: Command) -> Judged:
        """Of `bench limits`: whether the parts of the step are all of it."""
        if done.code or done.ended:
            return self.passes(item, done)
        shares = [row["share"] for row in done.document["limits"] if row["part"] == "unexplained"]
        if not shares:
            return [self.undone(item, "the profiler saw no kernel")], {}
        verdict = PASSED if abs(shares[0]) <= ADDS_UP else FAILED if self.on_gpu else VALUE
        about = {"value": f"{100 * shares[0]:.1f} % left over", "bound": f"at most {100 * ADDS_UP:.0f} %"}
        return [Check(part=item.name, what=item.why, verdict=verdict, **about)], {}

    def judged_run(self, item: Item, done: Command) -> Judged:
        """The checks of a run; one that was ended is judged by what it left."""
        from bench.runs.check import findings

        run = salvaged(os.path.join(self.out, "runs", item.name)) if done.ended else done.document
        if run is None:
            return [], {}
        checks = acceptance.of_run(item.name, run, findings(run["path"]), on_gpu=self.on_gpu)
        found = {name: run[name] for name in ("path", "complete", "summary")}
        return [replace(one, what=f"{item.name}: {one.what}") for one in checks], found

    def judged_tests(self, item: Item, done: Command) -> Judged:
        last = (done.said.strip().splitlines() or [done.last_line])[-1]
        try:
            checks = acceptance.of_tests(item.name, Path(self.path("tests.xml")).read_text(encoding="utf-8"))
        except (FileNotFoundError, ElementTree.ParseError):
            raise NotDone(f"pytest left no results: {last}") from None
        if not done.ended and (not checks or done.code not in (0, 1)):
            why = f"pytest ended with {done.code}: {last}"
            checks.append(Check(part=item.name, what=item.why, verdict=FAILED, why=why))
        return checks, {}

    def judged_comparison(self, item: Item, done: Command) -> Judged:
        """Of a benchmark that compares one thing, or several by name; in a rehearsal ratios are of no meaning."""
        found = done.document
        each = {"": found} if "comparisons" in found else {f": {name}": one for name, one in found.items()}
        checks = [one for more, of in each.items() for one in acceptance.of_comparison(item.name, item.why + more, of)]
        return (checks if self.on_gpu else [replace(one, verdict=VALUE, why="") for one in checks]), {}

    # The page

    def evidence(self) -> Evidence:
        """What all calls found, and what is left."""
        checks, runs = list[Check](), {}
        for item in self.items:
            before = self.done.get(item.name)
            if before is not None:
                checks += [Check(**one) for one in before["checks"]]
                if "summary" in before["found"]:
                    runs[item.why] = before["found"]["summary"]
            else:
                why = self.why_not(item) or "left for the next call of the same command"
                absent = item.name == "apex" and why == item.missing
                checks.append(replace(self.undone(item, why), verdict=NOT_HERE if absent else NOT_DONE))
        if self.on_gpu and len(self.gpus) == 1 and self.obstacle is None:
            why = "one GPU was chosen: DDP, apex DDP and DataParallel have nobody to talk to"
            checks.append(Check(part="machine", what="communication between GPUs", verdict=NOT_HERE, why=why))
        took_s = {name: one["took_s"] for name, one in self.done.items()}
        made = Evidence(about=self.about, checks=checks, took_s=took_s, runs=runs, obstacle=self.obstacle)
        return replace(made, rehearsal=self.options.rehearse)

    def write(self) -> Evidence:
        """The page and the document."""
        evidence = self.evidence()
        document = {"exit_code": evidence.exit_code} | asdict(evidence)
        Path(self.out, "acceptance.md").write_text(acceptance.page(evidence), encoding="utf-8")
        Path(self.out, "acceptance.json").write_text(json.dumps(document, indent=1, allow_nan=False))
        return evidence


def salvaged(folder: str) -> dict[str, Any] | None:
    """The newest run in ``folder``, as ``bench run --json`` would say it; None where nothing ran."""
    from bench.analyse.analysed import Analysed
    from bench.analyse.verdicts import records
    from bench.core.codec import encode
    from bench.runs.reader import read

    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else (), reverse=True):
        run = Analysed.of(read(os.path.join(folder, name), allow_incomplete=True))
        if run.document.launches:
            summary, parity = (records(table) for table in (run.overview, run.parity))
            begun = [row for row in summary if row["launches"]]
            return {"path": os.path.join(folder, name), **encode(run.document), "parity": parity, "summary": begun}
    return None


def circumstances(options: argparse.Namespace, gpus: Sequence[Gpu]) -> dict[str, str]:
    """What a reader must know of how it was made, in the order of the page."""
    from importlib.metadata import version

    host, about = machine.describe(list(gpus)), {}
    git = host.git
    if gpus:
        first = gpus[0]
        about["GPU"] = ", ".join(gpu.name for gpu in gpus)
        about["GPU, more"] = (
            f"{first.memory_total_mib or 0:,.0f} MiB, compute capability {first.compute_capability}, "
            f"power limit {first.power_limit_w} W, driver {first.driver}"
        )
    return about | {
        "command": f"python3 benchmarks/gpu_acceptance.py {shlex.join(redact.command_line(sys.argv[1:]))}",
        "commit": "unknown: not a git checkout" if git is None else git.commit + " with changes" * git.dirty,
        "torch": version("torch"),
        "Python": host.python or "unknown",
        "CPU": f"{host.cpu}, {host.cores_usable} cores usable{', in a container' if host.container else ''}",
        "workload": "{model}, {image_size} px, global batch {global_batch}, on {device}".format_map(vars(options)),
        "UTC": machine.utc_now(),
    }


SAME = ("GPU", "torch", "workload")
"""Of the circumstances, what must be the same in every call."""


def gone_on(out: str, asked: str, now: dict[str, str]) -> dict[str, str]:
    """The circumstances of all calls: those of the first, and whatever else a later one had. Raises
    :class:`RequestError` where the folder holds something else, or was begun on another GPU.
    """
    file = os.path.join(out, "begun.json")
    if not os.path.exists(file):
        if os.path.isdir(out) and os.listdir(out):
            raise RequestError("--out", f"{asked} is not empty", "name a new folder, or that of an acceptance")
        return now
    before: dict[str, str] = json.loads(Path(file).read_text())
    for name in SAME:
        if before.get(name) != now.get(name):
            problem = f"{asked} was begun with {name} {before.get(name)}, and now it is {now.get(name)}"
            raise RequestError("--out", problem, "go on where it was begun, or name a new folder")
    for name in ("commit", "GPU, more", "UTC"):
        if name in now and now[name] not in before.get(name, ""):
            before[name] = f"{before[name]}; later {now[name]}"
    return before


def choose(options: argparse.Namespace) -> tuple[tuple[Gpu, ...], str | None]:
    """The chosen GPUs, and in one line why none can be used. Raises :class:`RequestError` for one that is not there."""
    try:
        here = machine.choose_device("cuda")[1]
    except RequestError as error:
        return (), str(error)
    uuids = machine.choose_gpus(options.gpus or str(here[0].index), here)
    chosen = tuple(next(gpu for gpu in here if gpu.uuid == uuid) for uuid in uuids)
    try:
        machine.refuse_debugging("cuda")
        foreign.refuse(here, uuids, force=False)
        with acquire(uuids, wait=False, say=lambda text: None):
            return chosen, None
    except RequestError as error:
        return chosen, str(error).replace(", or measure beside them with --force", "")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The request. Raises :class:`WrongOption` in one line."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise WrongOption(f"{message.removeprefix('argument ')}; see --help")

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    where = "where everything goes: a new folder, or that of earlier calls"
    parser.add_argument("--out", metavar="DIR", required=True, help=where)
    parser.add_argument("--gpus", metavar="0,2", help="by index in PCI order or UUID (default: the first)")
    parser.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05: it is measured, too")
    parser.add_argument("--global-batch", type=whole_number, metavar="N", default=128, help="default: 128")
    parser.add_argument("--image-size", type=whole_number, metavar="PX", default=224, help="default: 224")
    parser.add_argument("--budget", type=span, metavar="10m", default=600.0, help="for this call (default: 10m)")
    parser.add_argument("--items", metavar="NAME,NAME", help="only these, and again if they were done")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU with tiny sizes: no evidence of any GPU")
    parser.set_defaults(device="cuda", model="resnet101")
    options = parser.parse_args(arguments)
    vars(options).update(TINY if options.rehearse else {})
    return options


def accept(options: argparse.Namespace) -> int:
    """One call; returns the exit code."""
    out = os.path.abspath(options.out)
    check_writable(out)
    check_apex(options.apex)
    options.apex = options.apex and os.path.abspath(options.apex)  # commands run in the checkout
    began_s = time.monotonic()
    gpus, obstacle = ((), None) if options.rehearse else choose(options)
    if gpus and options.global_batch % len(gpus):
        what = f"{options.global_batch} images cannot be shared by {len(gpus)} GPUs"
        raise RequestError("--global-batch", what, f"use a multiple of {len(gpus)}")
    about = gone_on(out, options.out, circumstances(options, gpus))
    pack = Acceptance(options=options, out=out, gpus=gpus, obstacle=obstacle, about=about, began_s=began_s)
    known = [item.name for item in pack.items]
    options.items = options.items and [name.strip() for name in options.items.split(",")]
    for name in options.items or ():
        if name not in known:
            raise RequestError("--items", f"there is no item {name!r}", f"choose from {', '.join(known)}")
    os.makedirs(os.path.join(out, "items"), exist_ok=True)
    Path(out, "begun.json").write_text(json.dumps(about))
    for name in known:
        with suppress(FileNotFoundError):
            pack.done[name] = json.loads(Path(pack.path(f"{name}.json")).read_text())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what ends it leaves the page, too
    code = None
    try:
        pack.work()
    except KeyboardInterrupt:
        code = INTERRUPTED
    evidence = pack.write()
    page = os.path.relpath(os.path.join(out, "acceptance.md"))
    print(f"{page}: {acceptance.verdict_line(evidence)}", file=sys.stderr)
    if pack.obstacle:
        print(f"gpu_acceptance: {pack.obstacle}", file=sys.stderr)
    return evidence.exit_code if code is None else code


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return accept(parse(sys.argv[1:] if arguments is None else arguments))
    except BenchError as error:
        print(f"gpu_acceptance: error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
