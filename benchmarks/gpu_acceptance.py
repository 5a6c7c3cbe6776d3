"""Everything that only a GPU can show, in parts of at most eight minutes: bench accepted on this machine, or not.

    python3 benchmarks/gpu_acceptance.py --out acceptance
    python3 benchmarks/gpu_acceptance.py --out acceptance                   (again: goes on where it stopped)
    python3 benchmarks/gpu_acceptance.py --out acceptance --apex ~/apex-25.05
    python3 benchmarks/gpu_acceptance.py --out acceptance --items batch     (this, even if it was done)
    python3 benchmarks/gpu_acceptance.py --reference acceptance

From a plain checkout, with this machine's own Python and torch. A call does what fits into ``--budget``, the most
important first, and prints before what it and the calls to come will do. ``--out`` remembers what is done, so the same
command goes on, on another machine with the same GPU, too, if the folder is there. The page is written again after
every item: whenever it ends, it shows what was found, and what is left.

``--out`` holds ``acceptance.md`` (every check with its figure, bound and verdict), ``acceptance.json`` (the same for
programs), sealed run folders under ``runs/``, and what each item printed and found under ``items/``. ``--reference
DIR`` puts page and runs under ``results/reference/<gpu>-<date>/``, to be committed.

``--rehearse`` runs the machinery on the CPU with tiny sizes. It is no evidence of any GPU, and says so.

Exit codes: 0 all passed; 1 a check failed; 2 the request is wrong; 11 noise hid what was looked for; 12 something
is left for another call or cannot be done (no GPU, too little memory); 130 interrupted.
"""

import argparse
import glob
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any
from xml.etree import ElementTree

import acceptance
import paired  # also puts bench on the path
from acceptance import FAILED, FIGURE, NOT_DONE, NOT_HERE, PASSED, Check, Evidence, Pace, most_that_fit

from bench import machine
from bench.core.channel import die_with_parent
from bench.core.errors import INTERRUPTED, OK, BenchError, RequestError
from bench.machine import foreign, nvml, redact
from bench.machine.lock import acquire
from bench.runs.files import check_writable
from bench.runs.names import find
from bench.seams.discover import DEFAULT, names
from bench.verbs.options import WrongOption, check_apex, span, whole_number
from bench.verbs.sets import switched

RESERVE_S = 12.0
"""Of each call, to end what runs and to write the page."""

ENDING_S = 8.0
"""For an item that is over its time to end by itself, which seals what it has."""

SETTLE_S = 10.0
"""For the processes of one item to leave the GPU before the next."""

SAY_EVERY_S = 15.0
PEACE_S = 6.0
"""For the sampler to sample at its own pace."""

LAST_TEST_S = 15.0
"""For the test that is running when the time of its item is nearly over, and for pytest to end."""

TRIES = 3
"""What ran out of time is begun again by the next call, or resumed if it is a run, as often as this in all."""

FILLED = 0.9
"""Of a part, what is planned for: by more steps than the fewest of the ten scenarios, or for a second try."""

IN_A_GROUP = 4
"""Scenarios besides the ten, of one item."""

WARMUP = {"cuda": 10, "cpu": 1}
"""Steps of a launch: torch DDP takes times of its own in its first ten."""

DOCTOR_S, RATES_S = 12.0, 45.0
HALF = 0.8
"""The mean step of a scenario in fp32 and one in half precision, over the former's, at most."""

NATIVE = ("--impl", "native")
TRACED = ("single", "ddp", "ddp_o1", "ddp_o2")
APEX = ("apex_ddp", "apex_ddp_o1", "apex_ddp_o2", "apex_ddp_o3")

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = {"device": "cpu", "model": "resnet18", "image_size": 32, "global_batch": 8}
"""Of a rehearsal."""


def beside_the_ten() -> list[str]:
    """The other scenarios, so that every strategy runs, and every switch with every word that it takes."""
    return [*(name for name in names() if name not in DEFAULT), *switched(every_word=True)]


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
    """A piece of work. ``why``: what it shows, its title on the page. ``seconds``: what it takes, as far as is known.
    ``missing``: in one line why it cannot be done here.
    """

    name: str
    why: str
    seconds: float
    command: Sequence[str]
    judge: Callable[[Command], Judged]
    missing: str | None = None

    @property
    def is_run(self) -> bool:
        """It locks the GPUs itself, and leaves a run folder."""
        return "run" in self.command[:3]


@dataclass(slots=True)
class Acceptance:
    """One call: its request, its time, and what it and earlier calls found (``done``, by item)."""

    options: argparse.Namespace
    out: str
    gpus: tuple[nvml.Gpu, ...] = ()
    obstacle: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    details: Sequence[Mapping[str, Any]] = ()
    clock: Callable[[], float] = time.monotonic
    began_s: float = 0.0

    # What is to be done

    @property
    def items(self) -> list[Item]:
        """All of it, the most important first. Runs have fewer steps or launches where a part would be too short."""
        pace, most = self.pace, 30 if self.on_gpu else 4
        step_s = 1.5 * pace.host_s + pace.launch_s + 8 * pace.step_s
        before_s = DOCTOR_S * (not self.is_over("doctor")) + step_s * (not self.is_over("step"))
        room_s = FILLED * (self.left_s - before_s)
        ten = most_that_fit(8, most, lambda iters: self.run_s(len(DEFAULT), iters, True), room_s)
        others = beside_the_ten()
        groups = [others[at : at + IN_A_GROUP] for at in range(0, len(others), IN_A_GROUP)]
        search_s = 10 * pace.launch_s if self.on_gpu else 20.0
        search = ["--find-batch", "--scenario", "ddp,ddp_o2", "--no-parity", "--budget", f"{search_s:.0f}s"]
        rates_s = pace.host_s + pace.first_s + RATES_S
        made = [
            Item("doctor", "bench doctor", DOCTOR_S, ["-m", "bench", "doctor", "--json", *self.apex], self.doctor),
            Item("step", "what a launch and a step take", step_s, self.probe("step"), self.step),
            self.run("scenarios", "the ten scenarios", DEFAULT, ten, *NATIVE, "--label", "acceptance"),
            self.tests("tests_alone", "what must be alone on the GPU", "nvml_real", "alone"),
            self.tests("tests", "the rest", "what_ran", "gpu_ranks", "gpu_runs"),
            self.standard("ddp", "ddp_o2"),
            self.standard("single", "ddp_o1"),
            *(self.run(f"more_{number}", ", ".join(group), group, most) for number, group in enumerate(groups, 1)),
            self.instruments(),
            self.handwritten("single"),
            self.handwritten("ddp_o1"),
            self.run("apex", "real apex", APEX, most, "--impl", "apex", *self.apex, missing=self.no_apex),
            Item("batch", "the largest batch", pace.host_s + search_s + 15, self.bench_run(*search), self.largest),
            Item("rates", "what the GPU can do, and what a step asks", rates_s, self.probe("rates"), self.rates),
            self.run("trace", "where the time goes, with traces", TRACED, 4, *NATIVE, "--trace", "--no-parity"),
        ]
        return [replace(item, seconds=self.seconds_of(item)) for item in made]

    @property
    def sizes(self) -> list[str]:
        """What is trained, for ``bench run`` and the benchmarks."""
        asked, names = vars(self.options), ("device", "model", "image_size", "global_batch")
        return [word for name in names for word in (f"--{name.replace('_', '-')}", str(asked[name]))]

    def bench_run(self, *words: str) -> list[str]:
        return ["-m", "bench", "run", *self.sizes, *self.where(), "--wait", "--json", *words]

    def probe(self, what: str) -> list[str]:
        return [os.path.join(HERE, "gpu_probe.py"), what, *self.sizes]

    def run(
        self, name: str, why: str, scenarios: Sequence[str], iters: int, *words: str, missing: str | None = None
    ) -> Item:
        """One launch of each."""
        launches = len(scenarios) * (1 + ("--trace" in words))
        steps = ["--warmup", str(WARMUP[self.options.device]), "--iters", str(iters)]
        command = self.bench_run("--scenario", ",".join(scenarios), *steps, *words)
        seconds = self.run_s(launches, iters, reference="--no-parity" not in words)
        return Item(name, why, seconds, command, partial(self.judged_run, name), missing or self.too_large)

    def run_s(self, launches: int, iters: int, reference: bool) -> float:
        return self.pace.run_s(launches, WARMUP[self.options.device] + iters, reference)

    def standard(self, full: str, half: str) -> Item:
        """Two scenarios, since four would be longer than a part, and as many launches as fit."""
        steps = HALF * 150 if self.on_gpu else 35
        most = 5 if self.on_gpu else 2
        launches = most_that_fit(2, most, lambda number: self.pace.run_s(2 * number, steps), self.room_s)
        few = "" if launches == most else f", {launches} launches instead of {most} for want of time"
        words = ["--profile", "standard", "--launches", str(launches), "--no-diagnose", "--no-parity", *NATIVE]
        name, why = f"standard_{full}_{half}", f"{full} and {half} with --profile standard{few}"
        command = self.bench_run("--scenario", f"{full},{half}", *words)
        seconds = self.pace.run_s(2 * launches, steps)
        return Item(name, why, seconds, command, partial(self.judged_run, name), self.too_large)

    def tests(self, name: str, what: str, *files: str) -> Item:
        several = len(files) > 2 and not self.exclusive and find_spec("xdist") is not None
        side_by_side = ["-n", "3", "--dist", "loadfile"] * several
        command = ["-m", "pytest", "-m", "gpu", *(f"tests/gpu/test_{file}.py" for file in files), *side_by_side]
        command += ["-k", "not every_scenario"]  # that is what the scenarios' own run shows
        command += ["-o", "addopts=", "--strict-markers", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={self.path(f'{name}.xml')}"]
        seconds = self.pace.host_s + 30 + 4 * self.pace.launch_s
        return Item(name, f"pytest -m gpu: {what}", seconds, command, partial(self.judged_tests, name))

    def measure_s(self, steps: float) -> float:
        """For so many steps with what lies between blocks of them."""
        return max(2.0, 1.3 * self.pace.step_s * steps) if self.on_gpu else 4.0

    def compare(self, file: str, scenario: str, seconds: float, pairs: int, steps: int, *words: str) -> list[str]:
        pairs = pairs if self.on_gpu else 2
        measured = ["--seconds", f"{seconds:.0f}", "--pairs", str(pairs), "--steps", str(steps)]
        return [os.path.join(HERE, file), "--json", *self.sizes, "--scenario", scenario, *measured, *words]

    def instruments(self) -> Item:
        steps = self.pace.block(4, 0.25)
        seconds = self.measure_s(20 * (6 * steps + 4))  # rounds of six blocks, and of four single steps
        command = self.compare("instruments.py", "ddp", seconds, 10, steps, "--peace", f"{PEACE_S:.0f}", *self.where())
        needs_s = self.pace.warm_s(1) + seconds + PEACE_S + 12
        why = "what instruments and sampler cost a step"
        return Item("instruments", why, needs_s, command, self.judged_instruments, self.too_large)

    def handwritten(self, scenario: str) -> Item:
        name, why = f"handwritten_{scenario}", f"the step of {scenario} against a hand-written script"
        steps = self.pace.block(5, 0.5)
        seconds = self.measure_s(10 * 4 * steps)  # rounds of four blocks
        command = self.compare("against_handwritten.py", scenario, seconds, 5, steps, *self.where(first_only=True))
        judge = partial(self.judged_comparison, name, why)
        return Item(
            name, why, self.pace.warm_s(2) + seconds + 8, command, judge, self.too_large or self.no_room_for_two
        )

    def seconds_of(self, item: Item) -> float:
        """What it takes: at least half as much again as a try that had to be ended, or nearly a whole part."""
        before = self.done.get(item.name)
        again_s = 1.5 * before["took_s"] if before else 0.0
        return max(item.seconds, min(again_s, FILLED * self.room_s))

    @property
    def pace(self) -> Pace:
        """As measured; a launch as the ten scenarios' longest took it, once they ran."""
        step, run = self.found("step"), self.found("scenarios")
        if not step.get("step_s"):
            return Pace()
        launch_s = (acceptance.besides_steps(run) if run else None) or step["launch_s"]
        measured = {name: step[name] for name in ("host_s", "first_s", "step_s")}
        return Pace(**measured, launch_s=launch_s, measured=True)

    @property
    def on_gpu(self) -> bool:
        return bool(self.options.device == "cuda")

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    def where(self, first_only: bool = False) -> list[str]:
        """The option that names the chosen GPUs."""
        uuids = self.uuids[:1] if first_only else self.uuids
        return ["--gpus", ",".join(uuids)] if uuids else []

    @property
    def apex(self) -> list[str]:
        return ["--apex", self.options.apex] if self.options.apex else []

    # Why something cannot be done here

    @property
    def exclusive(self) -> bool:
        """Whether one of the GPUs lets in one process at a time."""
        return any(one["compute_mode"] == nvml.EXCLUSIVE for one in self.details)

    @property
    def too_large(self) -> str | None:
        if not self.found("step").get("oom"):
            return None
        batch, pixels = self.options.global_batch, self.options.image_size
        use = f"use --global-batch {max(1, batch // 2)} and a new --out, or a GPU with more"
        return f"--global-batch: {batch} images of {pixels} px do not fit into the memory of the GPU; {use}"

    @property
    def no_room_for_two(self) -> str | None:
        if self.exclusive:
            several = "allow several processes with 'sudo nvidia-smi -c DEFAULT', or choose another GPU"
            return f"both are on the GPU at once, and its compute mode is exclusive process; {several}"
        free = self.details[0]["free_mib"] if self.details else None
        need = 2 * (self.found("step").get("steady_mib") or 0.0) + 2048
        if free is None or need <= free:
            return None
        return f"both need {need:,.0f} MiB at once and {free:,.0f} are free; use a smaller --global-batch"

    @property
    def no_apex(self) -> str | None:
        if not self.on_gpu:
            return "apex needs CUDA"
        return None if self.options.apex else "--apex names no checkout of NVIDIA/apex 25.05"

    # What is done

    @property
    def room_s(self) -> float:
        """Of a call, for items."""
        return float(self.options.budget) - RESERVE_S

    @property
    def left_s(self) -> float:
        return max(0.0, self.began_s + self.room_s - self.clock())

    def path(self, name: str) -> str:
        return os.path.join(self.out, "items", name)

    def found(self, name: str) -> dict[str, Any]:
        """What an item left for others; nothing where it was not done."""
        found: dict[str, Any] = self.done.get(name, {}).get("found", {})
        return found

    def is_over(self, name: str) -> bool:
        return bool(self.done.get(name, {}).get("over"))

    def work(self) -> None:
        """Down the list: each item that is not done, and fits."""
        wanted = self.options.items or [item.name for item in self.items]
        for name in self.options.items or ():
            self.done.pop(name, None)
        self.show_plan(wanted)
        for at, name in enumerate(wanted):
            item = self.item(name)
            fits = acceptance.fits(item.seconds, self.left_s, self.room_s)
            if fits and not self.is_over(name) and self.why_not(item) is None:
                self.do(item)
                self.write()
                if name == "step" and self.pace.measured:
                    self.show_plan(wanted[at + 1 :])

    def item(self, name: str) -> Item:
        return next(item for item in self.items if item.name == name)

    def why_not(self, item: Item) -> str | None:
        return (self.obstacle if item.name != "doctor" else None) or item.missing

    def show_plan(self, wanted: Sequence[str]) -> None:
        """What this call and those to come will do."""
        ahead = [one for one in map(self.item, wanted) if not self.is_over(one.name) and self.why_not(one) is None]
        seconds = {one.name: one.seconds for one in ahead}
        how = "as measured" if self.pace.measured else "assumed until it is measured"
        self.say(f"the plan, with {self.pace.launch_s:.0f} s a launch and {self.pace.step_s:.2f} s a step, {how}:")
        for number, part in enumerate(acceptance.parts(seconds, self.left_s, self.room_s)):
            what = f"call {number + 1}" if number else "this call"
            self.say(f"  {what}: " + (", ".join(f"{name} {seconds[name]:.0f} s" for name in part) or "nothing fits"))

    def do(self, item: Item) -> None:
        """One item; whatever becomes of it is on disk."""
        limit_s = min(self.left_s, 2 * item.seconds + 30) if self.on_gpu else self.left_s
        tries = self.done.get(item.name, {}).get("tries", 0)
        self.say(f"{item.why} (about {item.seconds:.0f} s)")
        checks, found, over = [self.undone(item, "interrupted; call again")], dict[str, Any](), False
        began_s = self.clock()

        def keep() -> None:
            took = {"tries": tries, "planned_s": item.seconds, "took_s": self.clock() - began_s}
            shown = [asdict(one) for one in checks]
            self.done[item.name] = {"why": item.why, "over": over, **took, "checks": shown, "found": found}
            with open(self.path(f"{item.name}.json.part"), "w", encoding="utf-8") as file:
                json.dump(self.done[item.name], file)
            os.replace(file.name, self.path(f"{item.name}.json"))

        keep()
        try:
            done = self.execute(item, limit_s)
            if done.code == 2:
                raise NotDone(done.last_line)
            if done.ended:
                tries += 1
                checks = [self.undone(item, f"ended after {limit_s:.0f} s{'; call again' * (tries < TRIES)}")]
                with suppress(RuntimeError):
                    left, found = item.judge(done)
                    checks = [*left, *checks]
            else:
                checks, found = item.judge(done)
            over = not done.ended or tries >= TRIES
        except KeyboardInterrupt:
            with suppress(RuntimeError, NotDone):
                left, found = item.judge(Command(code=INTERRUPTED, said="", told="", ended=True))
                checks = [*left, *checks]
            raise
        except (NotDone, RequestError) as reason:
            checks = [self.undone(item, str(reason))]
        # the others' figures are still worth having
        except (RuntimeError, KeyError, TypeError, ValueError, OSError, ImportError, BenchError) as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            checks, over = [Check(part=item.name, what=item.why, verdict=FAILED, why=why)], True
        finally:
            keep()
        for one in checks:
            about = "; ".join(text for text in (one.figure, one.why) if text)
            self.say(f"  {one.verdict}: {one.what}{f' ({about})' if about else ''}")

    def undone(self, item: Item, why: str) -> Check:
        return Check(part=item.name, what=item.why, verdict=NOT_DONE, why=why)

    def execute(self, item: Item, limit_s: float) -> Command:
        """Run its command, or resume the run that an earlier call began, if that is possible here."""
        until_s = self.clock() + limit_s
        commands = [item.command]
        if item.is_run:
            into = os.path.join(self.out, "runs", item.name)
            begun = salvaged(into)
            commands = [[*item.command, "--out", into]]
            if begun is not None and not begun["complete"]:
                commands.insert(0, ["-m", "bench", "run", "--resume", begun["path"], "--wait", "--json"])
        environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if item.name in ("step", "rates"):  # on the first of them
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.uuids[:1])
        if item.name in acceptance.TESTS:
            with suppress(FileNotFoundError):  # of an earlier try
                os.remove(self.path(f"{item.name}.xml"))
            environment["BENCH_GPU_TESTS_S"] = f"{limit_s - LAST_TEST_S:.0f}"
            environment["BENCH_TEST_GPUS"] = ",".join(self.uuids)
            environment |= {"BENCH_APEX": self.options.apex} if self.options.apex else {}
        for command in commands:
            self.settle()
            with nullcontext() if item.is_run or not self.on_gpu else acquire(self.uuids, wait=False, say=self.say):
                done = self.started(item.name, command, max(1.0, until_s - self.clock()), environment)
            if done.code != 2:
                break
        return done

    def settle(self) -> None:
        """Wait until the processes of the last item have left the GPUs. Raises :class:`NotDone` when they do not."""
        deadline_s = self.clock() + SETTLE_S
        while self.on_gpu and self.obstacle is None:
            try:
                foreign.refuse(list(self.gpus), self.uuids, force=False)
                break
            except RequestError as error:
                if self.clock() > deadline_s:
                    raise NotDone(f"{error.problem}; {error.remedy.partition(',')[0]}") from error
                time.sleep(0.5)

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
        began_s = self.clock()
        try:
            while (left_s := began_s + limit_s - self.clock()) > 0 and process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(SAY_EVERY_S, left_s))
                    break
                self.say(f"  {name}: {self.clock() - began_s:.0f} s of at most {limit_s:.0f}")
            ended = process.poll() is None
        finally:
            end(process)
        texts = []
        for path in paths:
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return Command(code=process.returncode, said=texts[0], told=texts[1], ended=ended)

    def say(self, text: str) -> None:
        print(f"[{self.left_s:3.0f} s left] {text}", file=sys.stderr, flush=True)

    # From a command that is over to its checks

    def doctor(self, done: Command) -> Judged:
        found = done.document["findings"]
        problems = [one["finding"] for one in found if one["level"] == "problem"]
        verdict = FIGURE if problems else PASSED  # what a machine lacks is no fault of bench
        count = f"{len(found)} findings, {len(problems)} of them problems"
        check = Check(part="doctor", what="bench doctor", verdict=verdict, figure=count, why="; ".join(problems))
        return [check], {"findings": "; ".join(one["finding"] for one in found) or "nothing found"}

    def step(self, done: Command) -> Judged:
        found, what = done.document, "a launch of ddp in fp32 trains"
        if found["oom"]:
            return [Check(part="step", what=what, verdict=NOT_DONE, why=found["oom"])], found
        if found["problem"]:
            self.obstacle = f"--gpus: {found['problem']}; see 'python -m bench doctor'"
            raise NotDone(self.obstacle)
        figure = f"{1e3 * found['step_s']:.1f} ms a step of {self.options.global_batch} images in fp32, and "
        figure += f"{found['launch_s']:.1f} s a launch besides, {found['first_s']:.1f} s of them the first step"
        if found["peak_mib"] is not None:
            figure += f"; {found['peak_mib']:,.0f} MiB reserved, {found['steady_mib']:,.0f} once warm"
        return [Check(part="step", what=what, verdict=PASSED, figure=figure)], found

    def judged_run(self, name: str, done: Command) -> Judged:
        """The checks of a run; one that was ended is judged by what it left."""
        from bench.runs.check import findings

        run = salvaged(os.path.join(self.out, "runs", name)) if done.ended else done.document
        if run is None:
            return [], {}
        checks = acceptance.of_run(name, run, findings(run["path"]), on_gpu=self.on_gpu)
        return [replace(one, what=f"{name}: {one.what}") for one in checks], run

    def judged_tests(self, name: str, done: Command) -> Judged:
        last = (done.said.strip().splitlines() or [done.last_line])[-1]
        try:
            with open(self.path(f"{name}.xml"), encoding="utf-8") as file:
                checks = acceptance.of_tests(name, file.read())
        except (FileNotFoundError, ElementTree.ParseError):
            raise NotDone(f"pytest left no results: {last}") from None
        if not done.ended and (not checks or done.code not in (0, 1)):
            why = f"pytest ended with {done.code}: {last}"
            checks.append(Check(part=name, what=f"pytest {name}", verdict=FAILED, why=why))
        return checks, {}

    def judged_instruments(self, done: Command) -> Judged:
        found, part = done.document, "instruments"
        marks, samples = (replace(done, said=json.dumps(found[name])) for name in ("overhead", "sampler"))
        checks, _ = self.judged_comparison(part, "the instrumented step against a bare loop", marks)
        more, _ = self.judged_comparison(part, "the step with the sampler at work against asleep", samples)
        return [*checks, *more], {}

    def judged_comparison(self, part: str, what: str, done: Command) -> Judged:
        """Of a benchmark that compares; in a rehearsal its ratio is a figure of no meaning."""
        checks = acceptance.of_comparison(part, what, done.document)
        return (checks if self.on_gpu else [replace(one, verdict=FIGURE, why="") for one in checks]), {}

    def largest(self, done: Command) -> Judged:
        return acceptance.of_search(done.document), {}

    def rates(self, done: Command) -> Judged:
        found = done.document
        rates = ", ".join(f"{name} {value:.1f}" for name, value in found["rates"]["matrix_tflops"].items())
        figure = f"{rates} TFLOP/s; copy {found['rates']['copy_gb_s']:.0f} GB/s"
        return [Check(part="rates", what="rates of the device", verdict=FIGURE, figure=figure)], found

    # The page

    def evidence(self) -> Evidence:
        """What all calls found, and what is left."""
        checks: list[Check] = []
        more_runs = {}
        for item in self.items:
            before = self.done.get(item.name)
            if before is not None:
                checks += [Check(**one) for one in before["checks"]]
                if item.name != "scenarios" and "summary" in before["found"]:
                    more_runs[before["why"]] = before["found"]
            elif why := self.why_not(item):
                verdict = NOT_HERE if why == self.no_apex else NOT_DONE
                checks.append(Check(part=item.name, what=item.why, verdict=verdict, why=why))
            else:
                why = f"left for the next call of the same command: about {item.seconds:.0f} s"
                checks.append(self.undone(item, why))
        if self.on_gpu and len(self.gpus) == 1 and self.obstacle is None:
            why = "one GPU was chosen"
            checks.append(Check(part="machine", what="communication between GPUs", verdict=NOT_HERE, why=why))
        step, doctor = self.found("step"), self.found("doctor")
        about = dict(self.about)
        if step:
            about["torch"] = f"{step['torch']}, CUDA {step['cuda']}, cuDNN {step['cudnn']}"
        if doctor:
            about["doctor"] = doctor["findings"]
        return Evidence(
            about=about,
            checks=checks,
            took={name: (one["planned_s"], one["took_s"]) for name, one in self.done.items()},
            rehearsal=self.options.rehearse,
            obstacle=self.obstacle,
            run=self.found("scenarios") or None,
            more_runs=more_runs,
            probe=self.found("rates") or None,
            replicas=max(1, len(self.gpus)),
        )

    def write(self) -> Evidence:
        """The page and the document."""
        evidence = self.evidence()
        with open(os.path.join(self.out, "acceptance.md"), "w", encoding="utf-8") as file:
            file.write(acceptance.page(evidence))
        with open(os.path.join(self.out, "acceptance.json"), "w", encoding="utf-8") as file:
            json.dump(acceptance.document(evidence), file, indent=1, allow_nan=False)
        return evidence


@contextmanager
def driver(uuids: Sequence[str]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """What the driver says of these GPUs, of which this stays a client: without persistence mode it lets go of a GPU
    that has none, and takes seconds to wake it for the next process.
    """
    try:
        session = nvml.Nvml()
    except nvml.NvmlUnavailable:
        yield ()
        return
    with closing(session):
        yield [session.details(uuid) for uuid in uuids]


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


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a command and all that it started: first as Ctrl-C does, so that it can seal what it has."""
    for number, patience_s in ((signal.SIGINT, ENDING_S), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)


def circumstances(options: argparse.Namespace, gpus: Sequence[nvml.Gpu], host: dict[str, Any]) -> dict[str, str]:
    """What a reader must know of how it was made, in the order of the page. ``host``: as it was at the start."""
    from importlib.metadata import PackageNotFoundError, version

    import bench

    git = host["git"]
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    about = {}
    if gpus:
        first = gpus[0]
        about["GPU"] = ", ".join(gpu.name for gpu in gpus)
        about["GPU, more"] = (
            f"{first.memory_total_mib or 0:,.0f} MiB, compute capability {first.compute_capability}, "
            f"power limit {first.power_limit_w} W, driver {first.driver}"
        )
    commit = "unknown: not a git checkout, and --commit was not given"
    if git is not None:
        commit = git["commit"] + " with changes" * git["dirty"]
    elif options.commit is not None:
        commit = f"{options.commit} (as told: this is no git checkout)"
    arguments = shlex.join(redact.command_line(sys.argv[1:]))
    return about | {
        "command": f"python3 benchmarks/gpu_acceptance.py {arguments}",
        "commit": commit,
        "bench": bench.__version__,
        "Python": host["python"],
        "torch": torch,
        "CPU": f"{host['cpu']}, {host['cores_usable']} cores usable{', in a container' if host['container'] else ''}",
        "workload": "{model}, {image_size} px, global batch {global_batch}, on {device}".format_map(vars(options)),
        "time a call": f"{options.budget:.0f} s",
        "UTC": host["utc"],
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
    with open(file, encoding="utf-8") as begun:
        before: dict[str, str] = json.load(begun)
    for name in SAME:
        if before.get(name) != now.get(name):
            problem = f"{asked} was begun with {name} {before.get(name)}, and now it is {now.get(name)}"
            raise RequestError("--out", problem, "go on where it was begun, or name a new folder")
    for name in ("commit", "GPU, more", "UTC"):
        if name in now and now[name] not in before.get(name, ""):
            before[name] = f"{before[name]}; later {now[name]}"
    return before


def choose(options: argparse.Namespace) -> tuple[tuple[nvml.Gpu, ...], str | None]:
    """The chosen GPUs, and in one line why none can be used. Raises :class:`RequestError` for one that is not there."""
    here, why = machine.visible_gpus()
    if not here:
        why = (why or "the driver lists none").replace(", or use --device cpu", "")
        return (), f"--gpus: no NVIDIA GPU can be used: {why}"
    uuids = machine.choose_gpus(options.gpus or str(here[0].index), here)
    chosen = tuple(next(gpu for gpu in here if gpu.uuid == uuid) for uuid in uuids)
    try:
        machine.refuse_blocking_launches("cuda")
        foreign.refuse(here, uuids, force=False)
        with acquire(uuids, wait=False, say=lambda text: None):
            return chosen, None
    except RequestError as error:
        remedy = error.remedy.replace(", or measure beside them with --force", "")
        return chosen, f"{error.option}: {error.problem}; {remedy}"


def keep(folder: str) -> int:
    """Put the page and the run folders of an acceptance on a GPU under ``results/reference/``."""
    from bench.runs.check import findings

    try:
        with open(os.path.join(folder, "acceptance.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise RequestError("--reference", f"{folder} holds no acceptance", "name the --out of one") from error
    if found["rehearsal"] or found["obstacle"] or not found["run"]:
        raise RequestError("--reference", f"{folder} is no run on a GPU", "make one on a machine that has one")
    main = find(found["run"], os.path.join(folder, "runs", "scenarios"))
    unsound = findings(main)
    if unsound:
        raise RequestError("--reference", unsound[0], "make another acceptance")
    others = (os.path.dirname(file) for file in glob.glob(os.path.join(folder, "runs", "*", "*", "run.json")))
    kept = {os.path.basename(run): run for run in (main, *(run for run in others if not findings(run)))}
    name = acceptance.reference_name(found["about"]["GPU"], found["about"]["UTC"][:10])
    target = os.path.join(paired.ROOT, "results", "reference", name)
    if os.path.exists(target):
        raise RequestError("--reference", f"results/reference/{name} is there already", "move it away first")
    for run_name, run in kept.items():
        shutil.copytree(run, os.path.join(target, run_name))
    for file_name in ("acceptance.md", "acceptance.json"):
        shutil.copy(os.path.join(folder, file_name), target)
    print(f"results/reference/{name}: commit it with 'git add results/reference/{name}'")
    return OK


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The request. Raises :class:`WrongOption` in one line."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise WrongOption(f"{message.removeprefix('argument ')}; see --help")

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", help="where everything goes: a new folder, or that of earlier calls")
    what.add_argument("--reference", metavar="DIR", help="keep the acceptance in DIR under results/reference/")
    parser.add_argument("--gpus", metavar="0,2", help="by index in PCI order or UUID (default: the first)")
    parser.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05: it is measured, too")
    parser.add_argument("--global-batch", type=whole_number, metavar="N", default=128, help="default: 128")
    parser.add_argument("--image-size", type=whole_number, metavar="PX", default=224, help="default: 224")
    parser.add_argument("--budget", type=span, metavar="8m", default=480.0, help="for this call (default: 8m)")
    parser.add_argument("--items", metavar="NAME,NAME", help="only these, and again if they were done")
    parser.add_argument("--commit", metavar="ID", help="what this is a copy of, where it is no git checkout")
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
    host = {**machine.describe(list(gpus)), "utc": machine.utc_now()}
    about = gone_on(out, options.out, circumstances(options, gpus, host))
    pack = Acceptance(options=options, out=out, gpus=gpus, obstacle=obstacle, about=about, began_s=began_s)
    known = [item.name for item in pack.items]
    options.items = options.items and [name.strip() for name in options.items.split(",")]
    for name in options.items or ():
        if name not in known:
            raise RequestError("--items", f"there is no item {name!r}", f"choose from {', '.join(known)}")
    os.makedirs(os.path.join(out, "items"), exist_ok=True)
    with open(os.path.join(out, "begun.json"), "w", encoding="utf-8") as file:
        json.dump(about, file)
    for name in known:
        with suppress(FileNotFoundError), open(pack.path(f"{name}.json"), encoding="utf-8") as file:
            pack.done[name] = json.load(file)
    if obstacle is not None:
        pack.say(f"gpu_acceptance: {obstacle}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what ends it leaves the page, too
    code = None
    try:
        with driver(pack.uuids) as pack.details:
            pack.work()
    except KeyboardInterrupt:
        code = INTERRUPTED
    evidence = pack.write()
    page = os.path.relpath(os.path.join(out, "acceptance.md"))
    print(f"{page}: {acceptance.verdict_line(evidence)}", file=sys.stderr)
    for line in (pack.obstacle, pack.too_large):
        if line:
            print(f"gpu_acceptance: {line}", file=sys.stderr)
    return evidence.exit_code if code is None else code


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        return keep(options.reference) if options.reference else accept(options)
    except BenchError as error:
        print(f"gpu_acceptance: error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
