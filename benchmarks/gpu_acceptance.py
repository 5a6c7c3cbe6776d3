"""Everything that only a GPU can show, in one run of at most eight minutes: bench accepted on this machine, or not.

    python3 benchmarks/gpu_acceptance.py --out acceptance
    python3 benchmarks/gpu_acceptance.py --out acceptance --gpus 0,2 --apex ~/apex-25.05
    python3 benchmarks/gpu_acceptance.py --out acceptance-2 --parts tests,batch
    python3 benchmarks/gpu_acceptance.py --reference acceptance

From a plain checkout, with this machine's own Python and torch. In the order of importance, each within its share of
the time: doctor, what the GPU can do, the ten scenarios at global batch 128 and 224 px, their step against a
hand-written script, ``pytest -m gpu``, what instruments and sampler cost, and the largest batch of ``ddp`` and
``ddp_o2``. What did not fit is reported as not done; ``--parts`` does that in another run of as many minutes. Where no
GPU can be used, doctor and the scenarios on the CPU still run.

``--out`` then holds ``acceptance.md`` (every check with its figure, bound and verdict), ``acceptance.json`` (the same
for programs), the sealed run folder under ``run/``, and what each part printed under ``parts/``. ``--reference DIR``
puts page and run folder of an earlier acceptance under ``results/reference/<gpu>-<date>/``, to be committed.

``--rehearse`` runs the machinery on the CPU with tiny sizes. It is no evidence of any GPU, and says so.

Exit codes: 0 all passed; 1 a check failed; 2 the request is wrong; 11 noise hid what was looked for; 12 something
could not be done (no GPU, too little memory or time); 130 interrupted.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree

import acceptance
import launching
import paired  # also puts bench on the path
from acceptance import FAILED, FIGURE, NOT_DONE, NOT_HERE, PASSED, Budget, Check, Evidence, Part

from bench import machine
from bench.core.channel import die_with_parent
from bench.core.errors import INTERRUPTED, OK, BenchError, RequestError
from bench.machine import foreign, nvml, redact
from bench.machine.lock import acquire
from bench.runs.files import check_writable
from bench.runs.names import find
from bench.seams.discover import DEFAULT
from bench.verbs.options import WrongOption, check_apex, span, whole_number

RESERVE_S = 10.0
"""For the page at the end."""

ENDING_S = 8.0
"""For a part that is over its time to end by itself, which seals what it has."""

SETTLE_S = 10.0
"""For the processes of one part to leave the GPU before the next."""

SAY_EVERY_S = 15.0
START_S = 6.0
"""Of a launch on a GPU before its second step, for planning, and the least of it once the probe has measured one."""

AROUND_S = 4.0
"""What a launch has besides the building and the first step that the probe measured: fork, context, communicator, the
probe for memory (in a container), checksums, its end."""

HOST_S = 6.0
"""Of a worker host until torch is imported, for planning; at least as long as the part that looks at the GPU took."""

HOST_MOST_S = 20.0
"""But no more than this: what came from a cold disk, or from a cold driver, is there the second time."""

PEACE_S = 6.0
"""For the sampler to sample at its own pace."""

ROUNDS = 10
"""Of blocks, at the least, for what instruments and sampler cost; three times as many where there is time."""

AFTER_S = 6.0
"""Of a benchmark that compares, after it measured: the end of its launch, its bounds; and to find the GPU free."""

ALONE_S = 5.0
"""For the overhead around steps that do nothing."""

HERE = os.path.dirname(os.path.abspath(__file__))
ALWAYS = ("doctor", "look", "probe")
"""The parts that the others rest on."""

NEEDS_BATCH = ("scenarios", "single", "ddp_o1", "instruments")
"""The parts that train at the full batch."""

PARTS = (
    Part(name="doctor", title="bench doctor", least_s=5, most_s=90),
    Part(name="look", title="torch computes on the GPU", least_s=10, most_s=90),
    Part(name="probe", title="what the GPU can do, and what a step asks of it", least_s=20, most_s=80),
    Part(name="scenarios", title="the ten scenarios", least_s=60, most_s=170),
    Part(name="single", title="the step of single against a hand-written script", least_s=40, most_s=60),
    Part(name="ddp_o1", title="the step of ddp_o1 against a hand-written script", least_s=40, most_s=60),
    Part(name="alone", title="pytest -m gpu: what must be alone on the GPU", least_s=75, most_s=160),
    Part(name="tests", title="pytest -m gpu: the rest, side by side", least_s=60, most_s=160),
    Part(name="instruments", title="what instruments and sampler cost a step", least_s=50, most_s=100),
    Part(name="batch", title="the largest batch of ddp and ddp_o2", least_s=70, most_s=150),
)

TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "alone": {"alone": ("test_nvml_real.py", "test_alone.py")},
    "tests": {name: (f"test_{name}.py",) for name in ("what_ran", "gpu_ranks", "gpu_runs")},
}
"""The files of ``tests/gpu`` that one pytest does, by its name; those of a part run side by side."""

LAST_TEST_S = 15.0
"""For the test that is running when the time of its part is nearly over, and for pytest to end."""

ONE_AT_A_TIME = (
    "its compute mode is exclusive process; allow several with 'sudo nvidia-smi -c DEFAULT', or choose another GPU"
)

CHOSEN_FROM = tuple(part.name for part in PARTS if part.name not in ALWAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is trained, and where."""

    device: str
    model: str
    image_size: int
    global_batch: int

    @property
    def options(self) -> list[str]:
        """For ``bench run`` and the benchmarks."""
        batch = str(self.global_batch)
        return [
            "--device",
            self.device,
            "--model",
            self.model,
            "--image-size",
            str(self.image_size),
            "--global-batch",
            batch,
        ]


TINY = Sizes(device="cpu", model="resnet18", image_size=32, global_batch=8)


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

    def document(self) -> dict[str, Any] | None:
        """The JSON document that it printed, or None where it printed none."""
        text = self.said.strip()
        try:
            return json.loads(text if text.startswith("{") else text.splitlines()[-1])
        except (ValueError, IndexError):
            return None


class NotDone(Exception):
    """A part could not be done: in one line why, with the remedy."""


@dataclass(slots=True)
class Acceptance:
    """One acceptance: its request, its time, and what came of it so far."""

    options: argparse.Namespace
    out: str
    budget: Budget
    sizes: Sizes
    gpus: tuple[nvml.Gpu, ...] = ()
    exclusive: bool = False
    checks: list[Check] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    obstacle: str | None = None
    too_large: str | None = None
    probe: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
    look: dict[str, Any] = field(default_factory=dict)

    # What is common to all parts

    @property
    def on_gpu(self) -> bool:
        return self.sizes.device == "cuda"

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    @property
    def step_s(self) -> float:
        """Of fp32 at the batch, as the probe measured it."""
        return float(self.probe["step"]["step_s"]) if self.probe and self.probe["step"]["step_s"] else 0.5

    @property
    def host_s(self) -> float:
        """Until a worker host is ready."""
        return min(max(HOST_S, self.took.get("look", 0.0)), HOST_MOST_S)

    @property
    def launch_s(self) -> float:
        """Of a launch besides its steps: as the scenarios' longest took, and before they ran by what the probe saw."""
        if self.run is not None and (took_s := acceptance.besides_steps(self.run)) is not None:
            return took_s
        first_s = self.probe["step"].get("first_s") if self.probe else None
        return max(START_S, (first_s or 0.0) + AROUND_S)

    def before_s(self, together: int) -> float:
        """Until a benchmark's launch is warm, and as many others as get so beside it."""
        return self.host_s + self.launch_s + together * launching.WARMUP * self.step_s

    def block(self, most: int, seconds: float) -> int:
        """The steps of a block of at most so many seconds."""
        return max(1, min(most, int(seconds / self.step_s)))

    @property
    def round(self) -> int:
        """The steps of a round of the overhead, six blocks, and of one of the sampler, four steps."""
        return 6 * self.block(4, 0.25) + 4

    def sized(self, part: Part) -> Part:
        """The part with the time that it needs at the speed that the probe found: for what its answer rests on."""
        if not self.on_gpu or self.probe is None:
            return part
        rounds_s = 1.3 * self.step_s
        needs = {
            "scenarios": self.host_s
            + acceptance.seconds_for_fewest(self.step_s, launches=len(DEFAULT), start_s=self.launch_s),
            "single": self.before_s(2) + rounds_s * 5 * 4 * self.block(5, 0.5),
            "ddp_o1": self.before_s(2) + rounds_s * 5 * 4 * self.block(5, 0.5),
            "instruments": self.before_s(1) + ALONE_S + PEACE_S + rounds_s * ROUNDS * self.round,
            "batch": self.host_s + 4 * self.launch_s,
        }
        if part.name not in needs:
            return part
        need_s = needs[part.name] + AFTER_S
        return replace(part, least_s=need_s, most_s=max(part.most_s, 1.2 * need_s))

    def where(self, first_only: bool = False) -> list[str]:
        """The option that names the chosen GPUs."""
        uuids = self.uuids[:1] if first_only else self.uuids
        return ["--gpus", ",".join(uuids)] if uuids else []

    def execute(self, commands: Mapping[str, Sequence[str]], limit_s: float, **environment: str) -> dict[str, Command]:
        """Run commands of this pack, by their names, side by side and for ``limit_s`` at most; what they print is kept
        under ``parts/``.
        """
        until_s = time.monotonic() + limit_s
        processes: dict[str, subprocess.Popen[bytes]] = {}
        ended = set()
        try:
            for name, command in commands.items():
                processes[name] = self._start(name, command, environment)
            for name, process in processes.items():
                if not self._wait(process, name, until_s, limit_s):
                    ended.add(name)
        finally:
            end(processes.values())
        return {name: self._done(name, process.returncode, name in ended) for name, process in processes.items()}

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        parent = os.getpid()

        def prepare() -> None:
            die_with_parent(parent)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which is to end it, and which a job of a script ignores

        said, told = self._printed(name)
        with open(said, "wb") as output, open(told, "wb") as errors:
            return subprocess.Popen(
                [sys.executable, *command],
                cwd=paired.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=prepare,
            )

    def _wait(self, process: "subprocess.Popen[bytes]", name: str, until_s: float, limit_s: float) -> bool:
        """Whether it ended until then; says now and then that it goes on."""
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                process.wait(min(SAY_EVERY_S, left_s))
                return True
            except subprocess.TimeoutExpired:
                self.say(f"{name}: {limit_s - until_s + time.monotonic():.0f} s of at most {limit_s:.0f}")
        return process.poll() is not None

    def _done(self, name: str, code: int, ended: bool) -> Command:
        texts = []
        for path in self._printed(name):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return Command(code=code, said=texts[0], told=texts[1], ended=ended)

    def _printed(self, name: str) -> tuple[str, str]:
        """The files with a command's standard output and error."""
        folder = os.path.join(self.out, "parts")
        return os.path.join(folder, f"{name}.out"), os.path.join(folder, f"{name}.err")

    def say(self, text: str) -> None:
        print(f"[{self.budget.left_s:3.0f} s left] {text}", file=sys.stderr, flush=True)

    def add(self, *checks: Check) -> None:
        self.checks += checks
        for one in checks:
            about = "; ".join(text for text in (one.figure, one.why) if text)
            self.say(f"  {one.verdict}: {one.what}{f' ({about})' if about else ''}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The GPUs of this acceptance, for the parts that do not lock them themselves."""
        with acquire(self.uuids, wait=False, say=self.say) if self.on_gpu else nullcontext():
            yield

    def settle(self) -> None:
        """Wait until the processes of the last part have left the GPUs. Raises :class:`NotDone` when they do not."""
        deadline_s = time.monotonic() + SETTLE_S
        while self.on_gpu:
            try:
                foreign.refuse(list(self.gpus), self.uuids, force=False)
                break
            except RequestError as error:
                if time.monotonic() > deadline_s:
                    raise NotDone(f"{error.problem}; {error.remedy.partition(',')[0]}") from error
                time.sleep(0.5)

    # The parts

    def doctor(self, limit_s: float) -> None:
        apex = ["--apex", self.options.apex] if self.options.apex else []
        found = self.document("doctor", ["-m", "bench", "doctor", "--json", *apex], limit_s)
        problems = [one["finding"] for one in found["findings"] if one["level"] == "problem"]
        verdict = FIGURE if problems else PASSED  # what a machine lacks is no fault of bench
        count = f"{len(found['findings'])} findings, {len(problems)} of them problems"
        self.add(Check(part="doctor", what="bench doctor", verdict=verdict, figure=count, why="; ".join(problems)))
        self.about["doctor"] = "; ".join(one["finding"] for one in found["findings"]) or "nothing found"

    def examine(self, limit_s: float) -> None:
        """Can torch compute on the first GPU? Sets ``obstacle`` where it cannot."""
        with self.locked():
            found = self.document("look", [script("gpu_probe.py"), "look"], limit_s, **visible(self.uuids))
        self.look = found
        if found["problem"] is not None:
            self.obstacle = f"--gpus: {found['problem']}; {remedy(found)}"
            self.add(Check(part="look", what=title("look"), verdict=NOT_DONE, why=self.obstacle))
            return
        figure = f"{found['name']}, {found['free_mib']:,.0f} of {found['total_mib']:,.0f} MiB free"
        self.add(Check(part="look", what=title("look"), verdict=PASSED, figure=figure))

    def examine_speed(self, limit_s: float) -> None:
        sizes = ["--device", self.sizes.device, "--model", self.sizes.model, "--image-size", str(self.sizes.image_size)]
        batch = self.sizes.global_batch  # on one device, as `single` has it
        command = [script("gpu_probe.py"), "measure", *sizes, "--batch", str(batch)]
        with self.locked():
            self.probe = self.document("probe", command, limit_s, **visible(self.uuids))
        rates = ", ".join(f"{name} {value:.1f}" for name, value in self.probe["rates"]["matrix_tflops"].items())
        figure = f"{rates} TFLOP/s; copy {self.probe['rates']['copy_gb_s']:.0f} GB/s"
        self.add(Check(part="probe", what="rates of the device", verdict=FIGURE, figure=figure))
        step = self.probe["step"]
        if step["oom"] is None:
            peak = "" if step["peak_mib"] is None else f", {step['peak_mib']:,.0f} MiB reserved"
            figure = f"{1e3 * step['step_s']:.1f} ms a step of {batch} images in fp32{peak}"
            self.add(Check(part="probe", what="the batch fits into the memory", verdict=PASSED, figure=figure))
            return
        half = max(1, self.sizes.global_batch // 2)
        self.too_large = (
            f"--global-batch: {batch} images of {self.sizes.image_size} px do not fit into the memory of the GPU "
            f"({self.look.get('free_mib', 0):,.0f} MiB free); use --global-batch {half} or a GPU with more"
        )
        self.add(Check(part="probe", what="the batch fits into the memory", verdict=NOT_DONE, why=self.too_large))

    def scenarios(self, limit_s: float) -> None:
        fits: tuple[int, int] | None = (1, 8)
        if self.on_gpu:
            seconds = limit_s - self.host_s
            fits = acceptance.steps_that_fit(seconds, self.step_s, launches=len(DEFAULT), start_s=self.launch_s)
        if fits is None:
            raise NotDone(
                f"a launch takes {self.launch_s:.0f} s and a step {self.step_s:.2f} s, too long for {len(DEFAULT)} "
                f"scenarios in {limit_s:.0f} s; "
                "give more with --budget"
            )
        apex = ["--apex", self.options.apex] if self.options.apex else []
        command = ["-m", "bench", "run", *self.sizes.options, *self.where(), *apex]
        command += ["--warmup", str(fits[0]), "--iters", str(fits[1]), "--label", "acceptance", "--json"]
        self.say(f"  {len(DEFAULT)} launches of {fits[0]} warm-up and {fits[1]} measured steps, and the reference")
        into = os.path.join(self.out, "run")
        try:
            self.run = self.document("scenarios", [*command, "--out", into], limit_s, codes=(0, 1))
        except NotDone:
            self.run = salvaged(into)
            raise
        finally:
            if self.run is not None:
                self.judge(self.run)

    def judge(self, run: dict[str, Any]) -> None:
        """The checks of the scenarios' run."""
        from bench.runs.check import findings

        checks = acceptance.of_run(run, findings(run["path"]), on_gpu=self.on_gpu)
        self.add(*(checks if self.on_gpu else [replace(one, what=f"on the CPU: {one.what}") for one in checks]))

    def against_handwritten(self, scenario: str, limit_s: float) -> None:
        peak, free = (self.probe or {"step": {}})["step"].get("peak_mib"), self.look.get("free_mib")
        if peak and free and 2 * peak + 2048 > free:
            raise NotDone(
                f"both need {2 * peak + 2048:,.0f} MiB at once and {free:,.0f} are free; use a smaller --global-batch"
            )
        if self.exclusive:
            raise NotDone(f"both are on the GPU at once, and {ONE_AT_A_TIME}")
        steps = self.block(5, 0.5)
        command = ["--scenario", scenario, "--pairs", "5", "--steps", str(steps)]
        command += ["--seconds", self.seconds(limit_s - self.before_s(2) - AFTER_S, 15 * 4 * steps)]
        found = self.compared("against_handwritten", scenario, [*command, *self.where(first_only=True)], limit_s)
        self.judge_comparison(scenario, title(scenario), found)

    def tests(self, part: str, limit_s: float) -> None:
        """The tests of a GPU, each file by a pytest of its own, side by side unless they must be alone."""
        environment = {"BENCH_GPU_TESTS_S": f"{limit_s - LAST_TEST_S:.0f}", "BENCH_TEST_GPUS": ",".join(self.uuids)}
        environment |= {"BENCH_APEX": self.options.apex} if self.options.apex else {}
        sessions = TESTS[part]
        commands = {name: self._pytest(name, files) for name, files in sessions.items()}
        until_s = time.monotonic() + limit_s
        done: dict[str, Command] = {}
        with self.locked():
            for together in [{name: commands[name]} for name in commands] if self.exclusive else [commands]:
                done |= self.execute(together, max(0.0, until_s - time.monotonic()), **environment)
        for name, files in sessions.items():
            self.add(*self._tested(part, name, done[name]))
            if done[name].ended:
                what = f"all tests of {', '.join(files)}"
                self.add(Check(part=part, what=what, verdict=NOT_DONE, why=f"ended after {limit_s:.0f} s"))

    def _pytest(self, name: str, files: Sequence[str]) -> list[str]:
        command = ["-m", "pytest", "-m", "gpu", *(f"tests/gpu/{file}" for file in files)]
        command += ["-k", "not every_scenario"]  # that is what the scenarios' own run shows
        command += ["-o", "addopts=", "--strict-markers", "-q", "-p", "no:cacheprovider"]
        return [*command, f"--junitxml={self._junit(name)}"]

    def _junit(self, name: str) -> str:
        return os.path.join(self.out, "parts", f"{name}.xml")

    def _tested(self, part: str, name: str, done: Command) -> list[Check]:
        """The checks of one pytest."""
        last = (done.said.strip().splitlines() or [done.last_line])[-1]
        try:
            with open(self._junit(name), encoding="utf-8") as file:
                checks = acceptance.of_tests(part, file.read())
        except (FileNotFoundError, ElementTree.ParseError):
            return [Check(part=part, what=f"pytest {name}", verdict=NOT_DONE, why=f"pytest left no results: {last}")]
        if not done.ended and (not checks or done.code not in (0, 1)):
            why = f"pytest ended with {done.code}: {last}"
            checks.append(Check(part=part, what=f"pytest {name}", verdict=FAILED, why=why))
        return checks

    def instruments(self, limit_s: float) -> None:
        most_s = limit_s - self.before_s(1) - ALONE_S - PEACE_S - AFTER_S
        command = ["--scenario", "ddp", "--pairs", "10", "--steps", str(self.block(4, 0.25))]
        command += ["--seconds", self.seconds(most_s, 3 * ROUNDS * self.round), "--peace", f"{PEACE_S:.0f}"]
        found = self.compared("instruments", "instruments", [*command, *self.where()], limit_s)
        self.judge_comparison("instruments", "the instrumented step against a bare loop", found["overhead"])
        self.judge_comparison("instruments", "the step with the sampler at work against asleep", found["sampler"])

    def batch(self, limit_s: float) -> None:
        command = ["-m", "bench", "run", "--find-batch", "--scenario", "ddp,ddp_o2", *self.sizes.options, *self.where()]
        command += [
            "--budget",
            f"{max(1.0, limit_s - self.host_s - 15) if self.on_gpu else 20:.0f}s",
            "--no-parity",
            "--json",
            "--out",
            os.path.join(self.out, "find-batch"),
        ]
        self.add(*acceptance.of_search(self.document("batch", command, limit_s, codes=(0, 1))))

    def seconds(self, most_s: float, steps: int) -> str:
        """For so many steps with what lies between blocks of them, or what there is."""
        return f"{max(1.0, min(most_s, 1.2 * steps * self.step_s)):.0f}"

    def compared(self, benchmark: str, part: str, command: list[str], limit_s: float) -> dict[str, Any]:
        """What a benchmark that compares says."""
        if not self.on_gpu:
            pairs, seconds = command.index("--pairs"), command.index("--seconds")
            command[pairs + 1], command[seconds + 1] = "2", "4"
        where = [script(f"{benchmark}.py"), "--json", *self.sizes.options, *command]
        with self.locked():
            return self.document(part, where, limit_s, codes=(0, 1))

    def judge_comparison(self, part: str, what: str, found: dict[str, Any]) -> None:
        """Its checks; in a rehearsal its ratio is a figure of no meaning."""
        checks = acceptance.of_comparison(part, what, found)
        self.add(*(checks if self.on_gpu else [replace(one, verdict=FIGURE, why="") for one in checks]))

    def document(
        self, name: str, command: Sequence[str], limit_s: float, codes: tuple[int, ...] = (0,), **environment: str
    ) -> dict[str, Any]:
        """What a command says in JSON, kept under ``parts/``. Raises :class:`NotDone` where it had to be ended, and
        :class:`RuntimeError` where it failed.
        """
        done = self.execute({name: command}, limit_s, **environment)[name]
        if done.ended:
            raise NotDone(f"it was ended after {limit_s:.0f} s; give more with --budget")
        found = done.document()
        if done.code == 2:
            raise NotDone(done.last_line)
        if done.code not in codes or found is None or "error" in found:
            raise RuntimeError(done.last_line)
        with open(os.path.join(self.out, "parts", f"{name}.json"), "w", encoding="utf-8") as file:
            json.dump(found, file)
        return found

    # The order of things

    def work(self) -> None:
        """All parts, each within its share of the time."""
        wanted = (*ALWAYS, *(self.options.parts or CHOSEN_FROM))
        parts = {part.name: part for part in PARTS if part.name in wanted and (self.on_gpu or part.name != "look")}
        doing = {
            "doctor": self.doctor,
            "look": self.examine,
            "probe": self.examine_speed,
            "scenarios": self.scenarios,
            "single": lambda limit_s: self.against_handwritten("single", limit_s),
            "ddp_o1": lambda limit_s: self.against_handwritten("ddp_o1", limit_s),
            "alone": lambda limit_s: self.tests("alone", limit_s),
            "tests": lambda limit_s: self.tests("tests", limit_s),
            "instruments": self.instruments,
            "batch": self.batch,
        }
        order = list(parts.values())
        for number, part in enumerate(order):
            self.do(part, doing[part.name], order[number + 1 :])

    def do(self, part: Part, work: Any, later: Sequence[Part]) -> None:
        """One part; whatever becomes of it stands in the checks."""
        if self.obstacle is not None and part.name not in ("doctor", "scenarios"):
            if part.name != "look":
                self.checks.append(Check(part=part.name, what=part.title, verdict=NOT_DONE, why="no GPU could be used"))
            return
        if self.too_large is not None and part.name in NEEDS_BATCH:
            self.add(Check(part=part.name, what=part.title, verdict=NOT_DONE, why=self.too_large))
            return
        if not self.on_gpu:
            part = replace(part, most_s=4 * part.most_s)  # a CPU may be slow, and a rehearsal take its time
        part, later = self.sized(part), [self.sized(one) for one in later]
        limit_s = self.budget.grant(part, later)
        if limit_s is None:
            self.add(acceptance.too_late(part, self.budget.left_s))
            return
        if self.obstacle is not None:
            self.sizes, self.gpus = TINY, ()
        self.say(f"{part.title} (at most {limit_s:.0f} s)")
        started_s = time.monotonic()
        try:
            if part.name != "doctor":
                self.settle()
            work(limit_s - (time.monotonic() - started_s))
        except (NotDone, RequestError) as reason:
            self.add(Check(part=part.name, what=part.title, verdict=NOT_DONE, why=str(reason)))
        except (
            RuntimeError,
            KeyError,
            TypeError,
            OSError,
            BenchError,
        ) as error:  # the others' figures are still worth having
            why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            self.add(Check(part=part.name, what=part.title, verdict=FAILED, why=why))
        self.took[part.name] = time.monotonic() - started_s

    def evidence(self) -> Evidence:
        replicas = max(1, len(self.gpus))
        speeds = (
            acceptance.speeds(self.run, self.probe, replicas=replicas)
            if self.run and self.probe and self.on_gpu
            else []
        )
        if not self.options.rehearse and len(self.gpus) < 2 and self.on_gpu:
            self.checks.append(
                Check(part="machine", what="communication between GPUs", verdict=NOT_HERE, why="one GPU was chosen")
            )
        return Evidence(
            about=self.about,
            checks=self.checks,
            took=self.took,
            rehearsal=self.options.rehearse,
            obstacle=self.obstacle,
            run=self.run,
            probe=self.probe,
            speeds=speeds,
            replicas=replicas,
        )

    def write(self, evidence: Evidence) -> None:
        """The page and the document."""
        with open(os.path.join(self.out, "acceptance.md"), "w", encoding="utf-8") as file:
            file.write(acceptance.page(evidence))
        with open(os.path.join(self.out, "acceptance.json"), "w", encoding="utf-8") as file:
            json.dump(acceptance.document(evidence), file, indent=1, allow_nan=False)


def exclusive(uuids: Sequence[str]) -> bool:
    """Whether one of these GPUs lets in one process at a time."""
    try:
        session = nvml.Nvml()
    except nvml.NvmlUnavailable:
        return False
    try:
        return any(session.details(uuid)["compute_mode"] == nvml.EXCLUSIVE for uuid in uuids)
    finally:
        session.close()


@contextmanager
def kept_awake() -> Iterator[None]:
    """A client of the driver for as long as this lasts: without persistence mode it lets go of a GPU that has none, and
    takes seconds to wake it for the next process.
    """
    try:
        session = nvml.Nvml()
    except nvml.NvmlUnavailable:
        yield
        return
    try:
        yield
    finally:
        session.close()


def salvaged(folder: str) -> dict[str, Any] | None:
    """What the run that was ended left in ``folder``, as ``bench run --json`` would say it; None where nothing ran."""
    from bench.analyse.analysed import Analysed
    from bench.analyse.overview import overview
    from bench.analyse.verdicts import records
    from bench.core.codec import encode
    from bench.runs.reader import read

    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
        run = Analysed.of(read(os.path.join(folder, name), allow_incomplete=True))
        if run.document.launches:
            summary, parity = (records(table) for table in (overview(run), run.parity))
            begun = [row for row in summary if row["launches"]]
            return {"path": os.path.join(folder, name), **encode(run.document), "parity": parity, "summary": begun}
    return None


def script(name: str) -> str:
    """A file beside this one."""
    return os.path.join(HERE, name)


def title(name: str) -> str:
    """Of a part."""
    return next(part.title for part in PARTS if part.name == name)


def visible(uuids: Sequence[str]) -> dict[str, str]:
    """The variables with which a process sees these GPUs alone; without any, no GPU at all."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def remedy(found: dict[str, Any]) -> str:
    """What to do about what ``gpu_probe.py look`` came upon."""
    problem = found["problem"].lower()
    if "without cuda" in problem:
        return "install a build of torch with CUDA"
    if "too old" in problem or "insufficient" in problem:
        return f"update the driver, or install a torch that was built for an older CUDA than {found['cuda']}"
    if "no kernel image" in problem or "not compatible" in problem:
        return f"install a torch that was built for compute capability {found.get('capability', 'of this GPU')}"
    if "out of memory" in problem:
        return "wait until the GPU is free, or choose another"
    return "see 'python -m bench doctor'"


def end(processes: "Iterable[subprocess.Popen[bytes]]") -> None:
    """End commands and all that they started: first as Ctrl-C does, so that they can seal what they have."""
    for number, patience_s in ((signal.SIGINT, ENDING_S), (signal.SIGKILL, None)):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, number)
        until_s = time.monotonic() + (patience_s or 0.0)
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s and max(0.0, until_s - time.monotonic()))


def circumstances(
    options: argparse.Namespace, gpus: Sequence[nvml.Gpu], look: dict[str, Any], sizes: Sizes, host: dict[str, Any]
) -> dict[str, str]:
    """What a reader must know of how it was made, in the order of the page. ``host``: as it was at the start."""
    from importlib.metadata import PackageNotFoundError, version

    import bench

    git = host["git"]
    try:
        torch = look.get("torch") or version("torch")
    except PackageNotFoundError:
        torch = "not installed"
    about = {}
    if gpus:
        first = gpus[0]
        names = ", ".join(gpu.name for gpu in gpus)
        about["GPU"] = names
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
        "torch": f"{torch}, CUDA {look.get('cuda')}, cuDNN {look.get('cudnn')}",
        "CPU": f"{host['cpu']}, {host['cores_usable']} cores usable{', in a container' if host['container'] else ''}",
        "workload": f"{sizes.model}, {sizes.image_size} px, global batch {sizes.global_batch}, on {sizes.device}",
        "time allowed": f"{options.budget:.0f} s",
        "UTC": host["utc"],
    }


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
        return (
            chosen,
            f"{error.option}: {error.problem}; {error.remedy.replace(', or measure beside them with --force', '')}",
        )


def keep(folder: str) -> int:
    """Put the page and the run folder of an acceptance on a GPU under ``results/reference/``."""
    from bench.runs.check import findings

    try:
        with open(os.path.join(folder, "acceptance.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise RequestError("--reference", f"{folder} holds no acceptance", "name the --out of one") from error
    if found["rehearsal"] or found["obstacle"] or not found["run"]:
        raise RequestError("--reference", f"{folder} is no run on a GPU", "make one on a machine that has one")
    run = find(found["run"], os.path.join(folder, "run"))
    unsound = findings(run)
    if unsound:
        raise RequestError("--reference", unsound[0], "make another acceptance")
    name = acceptance.reference_name(found["about"]["GPU"], found["about"]["UTC"][:10])
    target = os.path.join(paired.ROOT, "results", "reference", name)
    if os.path.exists(target):
        raise RequestError("--reference", f"results/reference/{name} is there already", "move it away first")
    shutil.copytree(run, os.path.join(target, found["run"]))
    for file_name in ("acceptance.md", "acceptance.json"):
        shutil.copy(os.path.join(folder, file_name), target)
    print(f"results/reference/{name}: commit it with 'git add results/reference/{name}'")
    return OK


def parts_named(text: str) -> tuple[str, ...]:
    """The parts of ``--parts``."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in CHOSEN_FROM]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}; choose from {', '.join(CHOSEN_FROM)}")
    return names


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The request. Raises :class:`WrongOption` in one line."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise WrongOption(f"{message.removeprefix('argument ')}; see --help")

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="DIR", help="where everything goes: a folder that is new or empty")
    what.add_argument("--reference", metavar="DIR", help="keep the acceptance in DIR under results/reference/")
    parser.add_argument("--gpus", metavar="0,2", help="by index in PCI order or UUID (default: the first)")
    parser.add_argument("--apex", metavar="PATH", help="a checkout of NVIDIA/apex, tag 25.05: its tests run too")
    parser.add_argument(
        "--global-batch", type=whole_number, metavar="N", default=128, help="images a step (default: 128)"
    )
    parser.add_argument("--image-size", type=whole_number, metavar="PX", default=224, help="default: 224")
    parser.add_argument("--budget", type=span, metavar="8m", default=480.0, help="for everything (default: 8m)")
    parser.add_argument(
        "--parts",
        type=parts_named,
        metavar="NAME,NAME",
        help=f"only these, after doctor and a look at the GPU: {', '.join(CHOSEN_FROM)} (default: all)",
    )
    parser.add_argument("--commit", metavar="ID", help="what this is a copy of, where it is no git checkout")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU with tiny sizes: no evidence of any GPU")
    return parser.parse_args(arguments)


def accept(options: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    out = os.path.abspath(options.out)
    if os.path.isdir(out) and os.listdir(out):
        raise RequestError("--out", f"{options.out} is not empty", "name a new folder")
    check_writable(out)
    check_apex(options.apex)
    options.apex = options.apex and os.path.abspath(options.apex)  # commands run in the checkout
    sizes = Sizes(device="cuda", model="resnet101", image_size=options.image_size, global_batch=options.global_batch)
    gpus: tuple[nvml.Gpu, ...] = ()
    obstacle = None
    budget = Budget(total_s=options.budget, reserve_s=RESERVE_S, clock=time.monotonic)
    if options.rehearse:
        sizes = TINY
    else:
        gpus, obstacle = choose(options)
        if gpus and options.global_batch % len(gpus):
            raise RequestError(
                "--global-batch",
                f"{options.global_batch} images cannot be shared by {len(gpus)} GPUs",
                f"use a multiple of {len(gpus)}",
            )
    os.makedirs(os.path.join(out, "parts"), exist_ok=True)
    pack = Acceptance(options=options, out=out, budget=budget, sizes=sizes, gpus=gpus, obstacle=obstacle)
    pack.exclusive = exclusive(pack.uuids)
    if obstacle is not None:
        pack.say(f"gpu_acceptance: {obstacle}")
        pack.say("doctor and the scenarios on the CPU are still done")
    host = {**machine.describe(list(gpus)), "utc": machine.utc_now()}
    code = None
    try:
        with kept_awake():
            pack.work()
    except KeyboardInterrupt:
        pack.checks.append(Check(part="all", what="everything after this", verdict=NOT_DONE, why="interrupted"))
        code = INTERRUPTED
    pack.about = circumstances(options, gpus, pack.look, pack.sizes, host) | pack.about
    evidence = pack.evidence()
    pack.write(evidence)
    page = os.path.relpath(os.path.join(out, "acceptance.md"))
    print(f"{page}: {acceptance.verdict_line(evidence)}", file=sys.stderr)
    for line in (evidence.obstacle, pack.too_large):
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
