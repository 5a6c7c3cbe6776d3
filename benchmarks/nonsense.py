"""Damaged run folders and random command lines: does bench ever answer with a traceback, hang, or take all memory?

    python benchmarks/nonsense.py folders [--count 2000] [--seed 0] [--minutes 60] [--json]
    python benchmarks/nonsense.py lines [--count 1000]

``folders`` makes a run of each kind, then copies and damages them: odd values anywhere in run.json and digest.json,
tables with other columns, rows and values, files that are cut off, overwritten, pipes, links or missing. Three in four
are sealed anew, so that the damage is found by what it is and not by its checksum. Each is read by show, check,
compare, gate and recipe, one in eight by report too. ``lines`` gives each verb its options in random order, with odd
values; what is accepted and begins to measure is ended.

Each case is a fork of this process, which has imported what bench needs. A traceback, exit code 1 of a verb that only
reads (but check, whose answer that is), more than 60 s, and more than 2 GiB of one process are counted: all must be 0.
"""

import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import kills
import paired
import pyarrow as pa
import pyarrow.parquet as pq

from bench import cli
from bench.core.channel import adopt_orphans
from bench.core.children import end_children
from bench.core.codec import encode
from bench.core.files import read_json, text_from
from bench.runs.files import describe_files, seal_of

COUNTS = {"folders": 2000, "lines": 1000}
LIMIT_S, LIMIT_MIB = 60.0, 2048
REPORTED = 0.125
TOLD = ".told"
MEASURES = re.compile(r'"verb": "(run|tune|scale|limits|bisect)"')
SEALED = 0.75
READING = ("show", "report", "compare", "check", "gate", "recipe", "history", "runs", "list", "import")
CODES = {"check": (0, 1, 2), "gate": (0, 2, 10, 11, 12)}
ODD: list[Any] = [
    None, True, [], {}, "", "x", "\ud800", "\x00", "\x1b[31m", "../..", "/dev/zero", "." * 100_000, "-" * 200_000,
    "١٢", "<script>", "%s{}", "ddp", "O9", "nan", -1, 0, 1, 2**31, 2**63, 2**64, 1e308, -1e-308, 0.5,
    [[]], [None], {"a": {}}, [1] * 1000, "2024-13-45T99:00:00Z", {"launch": 0}, float("nan"), float("inf"),
]  # fmt: skip
WORDS = [
    "", "-", "--", "0", "-1", "1", "2,1", "1,1", "1e309", "nan", "inf", "0.5", "99999999999999999999", "٣", "٢%", "5%",
    "\udcff", "\x1b[31m", "😀", "%s", "{}", "*", "a" * 5000, "latest", "none", "null", "cpu", "cuda", "ddp", "single",
    "ddp+", "+ddp", "ddp+compile+compile", "ddp,ddp", "no_such", "./no_such.py", "/dev/null", "/dev/zero",
    "/proc/self/mem", "run", "bad.json", "bad.py", "loop", "pipe", "GPU-0", "quick", "20m", "-5m", "1GiB", "slurm",
    "trainjob", "name=1", "name", "=", "http://localhost:1/x", "true", "python", "--json", "--help",
]  # fmt: skip


def main() -> int:
    parser = paired.parser(__doc__)
    parser.add_argument("what", choices=COUNTS)
    parser.add_argument("--count", type=int, help="cases (default: 2000 folders, 1000 lines)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no case after this time (default: 60)")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="runs to damage (default: one of each kind is made)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for one case (default: 60)")
    options = parser.parse_args()
    os.environ |= {"PYTHONPATH": str(kills.ROOT), "COLUMNS": "100"}
    adopt_orphans()
    wrong: Counter[str] = Counter({"traceback": 0, "failed": 0, "hung": 0, "too large": 0})
    answers: Counter[str] = Counter()
    until_s = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["BENCH_LOCK_DIR"] = f"{folder}/locks"
        made = runs(options.runs or make(Path(folder))) if options.what == "folders" else []
        verbs = {name: options_of(name) for name in cli.VERBS}
        import_what_reads(made, Path(folder))
        for number in range(COUNTS[options.what] if options.count is None else options.count):
            if time.monotonic() < until_s:
                chance = random.Random(f"{options.seed}-{number}")
                home = Path(folder, str(number))
                home.mkdir()
                case = partial(damaged, chance, home, made) if made else partial(line, chance, home, verbs)
                answers["cases"] += 1
                watch(case, home, options.limit_s, f"{options.seed}-{number}", wrong, answers)
                shutil.rmtree(home, ignore_errors=True)
    passed = not any(wrong.values()) and answers["cases"] > 0
    found = {"what": options.what, "seed": options.seed, "answers": answers, "wrong": wrong, "passed": passed}
    print(json.dumps(found) if options.json else f"{answers}: {wrong}")
    return 0 if passed else 1


def make(folder: Path) -> Path:
    """A run of each kind, in a folder."""
    for verb, arguments in kills.VERBS.items():
        home = folder / f"of-{verb}"
        home.mkdir()
        kills.bench([verb, *arguments], kills.about_a_run(str(home), "made")).check_returncode()
        print(f"made a run of {verb}", file=sys.stderr, flush=True)
    return folder


def runs(folder: Path) -> list[Path]:
    made = sorted(path.parent.absolute() for path in folder.rglob("run.json"))
    if not made:
        raise SystemExit(f"there is no run in {folder}")
    return made


def options_of(verb: str) -> list[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        cli.main([verb, "--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown.getvalue())))


def import_what_reads(made: list[Path], folder: Path) -> None:
    """Import what reading runs needs, for all forks to come; a fork finds it out, because it starts threads."""
    names = folder / "modules"
    if (child := os.fork()) == 0:
        os.chdir(folder)
        for run in made:
            read_by_all(run, run, reported=True)
        names.write_text("\n".join(sys.modules))
        os._exit(0)
    os.waitpid(child, 0)
    for name in names.read_text().split():
        if name != "__main__":
            with contextlib.suppress(ImportError):  # a module that makes itself known by another name
                import_module(name)
    (folder / TOLD).unlink(missing_ok=True)


def watch(
    case: Callable[[], None], home: Path, limit_s: float, name: str, wrong: Counter[str], answers: Counter[str]
) -> None:
    """A case in a fork, which writes its answers to a file. What began to measure is ended."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.chdir(home)
            os.environ["KILLS"] = str(home)  # of what it starts, by which that is found
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            case()
        except BaseException:  # noqa: BLE001  # the case itself is broken, and that must show
            note(verb="the case", code=-1, error=traceback.format_exc())
        finally:
            os._exit(0)
    deadline_s = time.monotonic() + limit_s
    measures = False
    while (ended := os.wait4(child, os.WNOHANG))[0] == 0:
        measures = measures or measuring(home)
        if measures or time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
            ended = os.wait4(child, 0)
            break
        time.sleep(0.05)
    end_children()
    told = home / TOLD
    said = [json.loads(text) for text in told.read_text().splitlines()] if told.exists() else []
    answers["measured" if measures else "answered"] += 1
    held_mib = ended[2].ru_maxrss / 1024
    kills.note(wrong, "hung", not measures and time.monotonic() > deadline_s, name, said[-1:])
    kills.note(wrong, "too large", held_mib > LIMIT_MIB, name, f"{held_mib:.0f} MiB", said[-1:])
    for one in said:
        if "code" in one:
            answers[f"{one['verb']}: {one['code']}"] += 1
        if one.get("error"):
            kills.note(wrong, "traceback", True, name, one)
        elif "code" in one and one["verb"] in READING:
            kills.note(wrong, "failed", one["code"] not in CODES.get(one["verb"], (0, 2, 12)), name, one)


def measuring(home: Path) -> bool:
    """Whether a request to measure was accepted: its worker host is there."""
    return MEASURES.search(text_from(str(home / TOLD), 0)) is not None and any(
        "bench.worker" in text_from(f"/proc/{pid}/cmdline", 0) for pid in kills.marked(str(home))
    )


def note(**about: object) -> None:
    with open(TOLD, "a") as file:
        file.write(json.dumps(about) + "\n")


def call(*arguments: str) -> int | None:
    """Call bench in this process; None where it raised."""
    note(verb=arguments[0], arguments=[text[:80] for text in arguments])
    out, errors = io.StringIO(), io.StringIO()
    code, error = None, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = cli.main(list(arguments))
        except BaseException:  # noqa: BLE001  # a traceback is what is looked for
            error = traceback.format_exc()
    if "Traceback (most" in errors.getvalue():
        error = errors.getvalue()
    note(verb=arguments[0], code=code, error=error[-3000:], said=errors.getvalue()[-300:])
    return code


def damaged(chance: random.Random, home: Path, made: list[Path]) -> None:
    base = chance.choice(made)
    run = home / "results" / base.name
    shutil.copytree(base, run)
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice((damage_json, damage_json, damage_json, damage_table, damage_file))(chance, run)
    if chance.random() < SEALED:
        seal(run)
    read_by_all(base, run, reported=chance.random() < REPORTED)


def read_by_all(base: Path, run: Path, *, reported: bool) -> None:
    readable = call("show", str(run)) == 0
    call("check", str(run))
    call("compare", str(base), str(run))
    call("gate", str(run), "--baseline", str(base))
    call("recipe", str(run), "--out", "train.py")
    if readable and reported:
        call("report", str(run), "--out", "pages")


def damage_json(chance: random.Random, run: Path) -> None:
    file = run / chance.choice(("run.json", "run.json", "run.json", "digest.json"))
    try:
        document = read_json(str(file))
    except (OSError, ValueError):
        return
    place: Any = document
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.2:
            break
        place = place[key]
    match chance.randrange(6):
        case 0:
            del place[key]
        case 1 if isinstance(place, list):
            place.append(place[key])
        case 1:
            place[str(chance.choice(ODD))[:300]] = place[key]
        case 2 if isinstance(place[key], int | float):
            place[key] = place[key] * chance.choice((-1, 0, 2, 1e9, 1e-9))
        case _:
            place[key] = chance.choice(ODD)
    file.write_text(json.dumps(document))


def damage_table(chance: random.Random, run: Path) -> None:
    files = sorted(run.glob("*.parquet"))
    if not files:
        return
    file = chance.choice(files)
    if not file.is_file():
        return
    try:
        table = pq.read_table(file, use_threads=False)
    except (OSError, pa.ArrowException):
        return
    place, count = chance.randrange(table.num_columns), table.num_rows
    name, column = table.column_names[place], table.column(place)
    match chance.randrange(6):
        case 0:
            table = table.remove_column(place)
        case 1:
            table = table.slice(chance.randrange(count + 1), chance.randrange(count + 1))
        case 2:
            table = pa.concat_tables([table, table.slice(0, chance.randrange(count + 1))])
        case 3:
            table = table.append_column(chance.choice((name, "more", "")), column)
        case 4:
            table = table.set_column(place, name, pa.array([str(value) for value in column.to_pylist()]))
        case _:
            numbers: list[Any] = [None, 0, -1, 1, 2**31 - 1, float("nan"), float("inf"), 1e300, "\x1b", "x" * 5000]
            values = [chance.choice(numbers) if chance.random() < 0.3 else value for value in column.to_pylist()]
            with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
                table = table.set_column(place, name, pa.array(values, column.type))
    pq.write_table(table, file)


def damage_file(chance: random.Random, run: Path) -> None:
    file = chance.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    content = file.read_bytes() if file.stat().st_size < 1 << 26 else b""
    match chance.randrange(7):
        case 0:
            file.write_bytes(content[: chance.randrange(len(content) + 1)])
        case 1:
            some = bytearray(content)
            for _ in range(min(len(some), 20)):
                some[chance.randrange(len(some))] = chance.randrange(256)
            file.write_bytes(some)
        case 2:
            file.unlink()
        case 3:
            file.unlink()
            os.mkfifo(file)
        case 4:
            file.unlink()
            file.symlink_to(chance.choice(("/dev/zero", "/etc/passwd", str(file), "..")))
        case 5:
            os.truncate(file, 40 << 30)
        case _:
            file.unlink()
            file.mkdir()


def seal(run: Path) -> None:
    """Seals that fit, where there is still something that can be sealed."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        document = read_json(str(run / "run.json"))
        document["files"] = encode(describe_files(str(run)))
        document["seal"] = seal_of(document)
        (run / "run.json").write_text(json.dumps(document))


def line(chance: random.Random, home: Path, verbs: dict[str, list[str]]) -> None:
    (home / "run").mkdir()
    (home / "bad.json").write_text(chance.choice(("", "{}", "[" * 10_000, '{"schema_version": 1}', "\x00")))
    (home / "bad.py").write_text(chance.choice(("", "1/0", "import nothing", "SCENARIO = 1", "raise SystemExit", "(")))
    (home / "loop").symlink_to("loop")
    os.mkfifo(home / "pipe")
    verb = chance.choice(list(verbs)) if chance.random() < 0.97 else chance.choice(WORDS)
    words = []
    for _ in range(chance.randrange(7)):
        if chance.random() < 0.7 and verbs.get(verb):
            option = chance.choice(verbs[verb])
            words += [f"{option}={chance.choice(WORDS)}"] if chance.random() < 0.3 else [option]
        if chance.random() < 0.8:
            words.append(chance.choice(WORDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    call(verb, *words)


if __name__ == "__main__":
    sys.exit(main())
