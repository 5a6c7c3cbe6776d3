"""``bench bisect`` finds the commit or the version that changed something, and never guesses."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import Bench, Plotting
from standin import program
from standin.schemas import only_run

from bench.experiments import bisecting
from bench.experiments.candidates import commits
from bench.report import plots
from bench.runs.experiments import Bisected
from bench.runs.reader import read
from bench.verbs.bisect import USUAL

STANDIN = Path(__file__).parent.parent / "standin"
NOTING = ("--", sys.executable, str(STANDIN / "noting.py"))


Repository = Callable[[Sequence[dict[str, str]]], list[str]]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Make ``repo`` with a commit of each of these contents of its files; returns their names."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        command = ["git", "-C", str(tmp_path / "repo"), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def make(contents: Sequence[dict[str, str]]) -> list[str]:
        (tmp_path / "repo").mkdir()
        git("init", "-q")
        names = []
        for number, files in enumerate(contents):
            for name, text in files.items():
                (tmp_path / "repo" / name).write_text(text)
            git("add", ".")
            git("commit", "-q", "--allow-empty", "-m", f"change {number}")
            names.append(git("rev-parse", "--short=10", "HEAD"))
        return names

    return make


def noted(*settings: dict[str, float]) -> list[dict[str, str]]:
    return [{"settings.json": json.dumps(one)} for one in settings]


def test_the_commit_that_made_it_slower(bench: Bench, repository: Repository, plotting: Plotting) -> None:
    plotting(plots.bisection_plot)
    fast, slow = {"step_ms": 100.0}, {"step_ms": 115.0}
    names = repository(noted(fast, fast, fast, fast, fast | {"end": 3}, slow, slow, slow))
    said = bench("bisect", "--git", "repo", "--good", "HEAD~7", "--bad", "HEAD", "--json", *NOTING)
    answer, err = said.well(), said.err
    assert answer["answer"].startswith(f"One of {names[4]} and {names[5]} is the first that is slower ({names[4]} can")
    assert (answer["low"], answer["high"], list(answer["candidates"])) == (names[3], names[5], names)
    assert answer["skipped"] == {names[4]: "the command ended with exit code 3"}
    level = answer["levels"][names[-1]]
    assert level["low"] < 1.15 < level["high"]
    assert f"8 candidates, from {names[0]} to {names[7]}" in err and "odds of" in err and "min left" in err
    run = only_run()
    assert set(run.document.request.scenarios) <= set(names) and run.document.of(Bisected).decided
    code, page, _ = bench("report", "latest")
    assert code == 0 and "is the first that is slower" in page
    assert Path("reports/bisection.svg").exists() and "Which one changed it?" in Path("reports/index.html").read_text()
    status = subprocess.run(["git", "-C", "repo", "worktree", "list"], capture_output=True, text=True, check=True)
    assert status.stdout.count("\n") == 1


@pytest.mark.parametrize("option", ["--numerics", None])
def test_what_changes_gradients_and_not_time(bench: Bench, repository: Repository, option: str | None) -> None:
    old, new = ({"noise": 0.05, "norm": norm} for norm in (1.0, 1.02))
    names = repository(noted(old, old, new, new))
    more = (option,) if option else ("--budget", "1s")
    code, out, err = bench("bisect", "--git", "repo", "--good", names[0], "--bad", names[3], *more, *NOTING)
    if option:
        expected = f"{names[2]} (change 2) is the first that is different: gradients, step 1"
        assert code == 0 and out.startswith(expected), err
    else:
        assert code == 11 and "is not told apart from" in out
        assert "bench: with twice the budget: python -m bench bisect --resume " in err and " --budget 2s -- " in err
        assert "--budget 1s" not in err
    only_run()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_goes_on(bench: Bench, repository: Repository, number: signal.Signals) -> None:
    """By a command as a shell takes it: also of a folder with a blank, and of a search that was resumed itself."""
    fast, slow = {"step_ms": 100.0}, {"step_ms": 120.0}
    names = repository(noted(fast, fast, slow, slow))
    ends = ("--git", "repo", "--good", names[0], "--bad", names[3], "--out", "my runs")
    own = (*ends, *NOTING, "--interrupt-at", "5", "--by", str(int(number)))
    resumed: tuple[str, ...] = ()
    for _ in range(2):
        Path(os.environ["NOTED"]).write_text("")  # so that the launch that interrupts comes again
        code, _, err = bench("bisect", *resumed, *own)
        assert code == 130, err
        (line,) = [line for line in err.splitlines() if line.startswith("bench: interrupted; go on with: ")]
        words = shlex.split(line.partition("with: ")[2])
        assert words[:5] == ["python", "-m", "bench", "bisect", "--resume"] and words[6:] == [*own]
        assert Path(words[5]).parent == Path("my runs") and Path(words[5]).is_dir()
        resumed = (f"--resume={words[5]}",)
    code, out, err = bench(*words[3:])
    assert code == 0 and out.startswith(f"{names[2]} (change 2) is the first that is slower"), err
    launches = read(words[5]).document.launches
    assert [one.repeat for one in launches[:7]] == [0, 0, 0, 1, 2, 2, 2]
    code, _, err = bench("bisect", *resumed, *ends[:3], names[1], *ends[4:], *NOTING)
    assert code == 2 and "--resume: that run searched something else: commits of repo" in err


def test_a_search_killed_at_once_goes_on(bench: Bench, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(noted({"step_ms": 100.0}, {"step_ms": 120.0}))
    ends = ("--git", "repo", "--good", "HEAD~1", "--bad", "HEAD")
    with pytest.raises(KeyError), monkeypatch.context() as patch:
        patch.setattr(bisecting._Searching, "_count", lambda *_: {}["as if by SIGKILL"])
        bench("bisect", *ends, *NOTING)
    code, _, err = bench("show", "latest", "--allow-incomplete")
    assert code == 0, err
    code, out, err = bench("bisect", "--resume", "latest", *ends, *NOTING)
    assert code == 0 and "is the first that is slower" in out, err
    only_run()


UV = """#!/bin/sh
echo $@ >> {folder}/asked
[ $1 = run ] && echo "Available versions: 2.1, 2.0, 1.2, 1.1, 1.0, 0.9"
for last; do :; done
[ $1 = venv ] && mkdir -p "$last/bin"
[ $1 = pip ] && cp {folder}/${{6#thing==}}/python $5
exit 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interpreters", "uv"])
def test_versions_of_a_package(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    script = '#!/bin/sh\n[ "$1" = -c ] && { echo %s; exit; }\nexec "%s" "$@" --noise 0.002 --step-ms %s\n'
    speeds = {"1.0": 100, "1.1": 100, "1.2": 130, "2.0": 130}
    for version, ms in speeds.items():
        program(tmp_path / version / "python", script % (version, sys.executable, ms))
    if how == "interpreters":
        options: tuple[str, ...] = ("--pythons", ",".join(str(tmp_path / version / "python") for version in speeds))
    else:
        program(tmp_path / "tools" / "uv", UV.format(folder=tmp_path))
        monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("BENCH_CACHE_DIR", str(tmp_path / "cache"))
        options = ("--good", "1", "--bad", "2.0")
    options = ("--package", "thing", *options, "--out", "runs")
    code, out, err = bench("bisect", *options, "--", "python", NOTING[2])
    assert code == 0 and out.startswith("1.2 (") and "is the first that is slower" in out, err
    if how == "uv":
        environments = tmp_path / "cache/environments"
        assert (tmp_path / "asked").read_text().count("venv --quiet") == len(list(environments.iterdir()))


REFUSED = {
    "nothing": ((), "--git: give either --git or --package"),
    "no end": (("--git", ".", "--good", "HEAD"), "--bad: it is missing"),
    "no repository": (("--git", "/", "--good", "a", "--bad", "b"), "--git: / is no git repository"),
    "no revision": (("--git", "repo", "--good", "a", "--bad", "b"), "--good: there is no revision 'a' in repo"),
    "the same": (("--git", "repo", "--good", "HEAD", "--bad", "HEAD"), "--bad: HEAD is the same commit as HEAD"),
    "swapped": (("--git", "repo", "--good", "HEAD", "--bad", "HEAD~1"), "--good: HEAD is not an ancestor of HEAD~1"),
    "no interpreter": (("--package", "torch", "--pythons", "nowhere"), "--pythons: nowhere has no package 'torch'"),
    "two questions": (("--git", "repo", "--numerics", "--memory"), "--memory: not allowed with argument --numerics"),
    "nothing installs": (("--package", "a", "--pythons", "b", "--also-install", "c"), "--also-install: nothing is ins"),
    "no run": (("--git", "repo", "--good", "HEAD~1", "--bad", "HEAD", "--resume", ""), "--resume: it is empty"),
    "build": (("--package", "torch", "--pythons", "a", "--build", "make"), "--build: it is for commits"),
    "one interpreter": (("--package", "torch", "--pythons", sys.executable), "--bad: there is one candidate only"),
    "an end fails": (("--git", "repo", "--good", "HEAD~1", "--bad", "HEAD"), "--bad: {bad} cannot be measured: the c"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_searches_are_one_line(bench: Bench, repository: Repository, case: str) -> None:
    names = repository(noted({}, {"end": 3}))
    arguments, line = REFUSED[case]
    code, out, err = bench("bisect", *arguments, *NOTING)
    assert (code, out) == (2, "") and line.format(bad=names[-1]) in err and "Traceback" not in err


@pytest.mark.parametrize("subject", ["", "one\u2028two"])
def test_a_commit_may_have_any_subject(tmp_path: Path, repository: Repository, subject: str) -> None:
    first, _ = repository(noted({}, {"end": 3}))
    amend = ("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "--amend", "--allow-empty-message")
    subprocess.run(["git", "-C", str(tmp_path / "repo"), *amend, "-m", subject], check=True)
    good, bad = commits(str(tmp_path / "repo"), "HEAD~1", "HEAD")
    assert (good.name, good.about, bad.about) == (first, "change 0", subject)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("option", ["--budget=20m", "--numerics"])
def test_a_script_of_torch_is_searched(bench: Bench, repository: Repository, option: str) -> None:
    text = (STANDIN / "training.py").read_text().replace("import torch\n", "import torch\ntorch.manual_seed(0)\n", 1)
    late = text.replace("time.sleep(0.01)", "time.sleep(0.2)")
    other = text.replace("loss.backward()", "(1.05 * loss).backward()")
    assert len({text, late, other}) == 3
    changed = other if option == "--numerics" else late
    names = repository([{"train.py": one} for one in (text, text, changed, changed)])
    command = ("--", sys.executable, "train.py", "--steps", "12")
    code, out, err = bench("bisect", "--git", "repo", "--good", names[0], "--bad", names[3], option, *command)
    assert code == 0 and f"\n{names[2]} (change 2) is the first that is" in out, err


@pytest.mark.slow
def test_a_package_needs_no_command(bench: Bench) -> None:
    code, _, err = bench("attach", "--wait", "--", sys.executable, USUAL)
    (launch,) = only_run().document.launches
    assert code == 0 and launch.status == "ok", err
