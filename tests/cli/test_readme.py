"""Every command that the README and the pages of docs show is run: as shown, but on a workload of a size for a test."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Bench, in_this_process
from PIL import Image
from standin import ROOT, documented
from standin.workloads import tiny
from test_next import VERBS
from test_workload import MLP

from bench import cli
from bench.sites.local import WorkerHost

FEW = "--warmup 1 --iters 2 --launches 1 --batch-per-rank 2"
ELSEWHERE = ("tune --budget 20m", "doctor", "limits --workload fashion_mlp --scenario single", "scale --each")
ELSEWHERE = {f"python -m bench {shown}" for shown in ELSEWHERE}
"""In test_next.py, which runs the command that each of them prints as well."""
MEASURED = "python -m bench doctor --bandwidth"
"""In test_all_reduce.py, which looks at what it measured."""
README, PAGES = ROOT / "README.md", sorted((ROOT / "docs").glob("*.md"))
FIRST_LOOK = ["run", "--model", "resnet18", "--image-size", "32"]


def commands(*documents: Path) -> list[str]:
    texts = [document.read_text() for document in documents]
    blocks = [block for text in texts for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    return list(dict.fromkeys(line for block in blocks for line in block.splitlines() if line.strip()))


def test_every_option_that_is_named_is_there(bench: Bench) -> None:
    """In running text; the blocks of commands are run."""
    shown = "".join(bench(verb, "--help").out for verb in cli.VERBS)
    shown += (ROOT / "nightly" / "nightly.sh").read_text()
    of_others = {"--max-restarts", "--rdzv-id", "--schemafile", "--dictionary"}  # torchrun's, and of other programs
    named: set[str] = set()
    for page in (README, *PAGES):
        if page.name != "evidence.md":  # which has those of the benchmarks
            text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
            named.update(option for code in re.findall(r"`([^`]+)`", text) for option in re.findall(r"--[a-z-]+", code))
    assert {one for one in named - of_others if not re.search(rf"{one}\b(?!-)", shown)} == set()


def shrink(arguments: list[str]) -> list[str]:
    """The same command with a small workload, since options given last win, and one scenario where it is all ten: an
    MLP where the model is not the point, which takes a third of the time."""
    if arguments[0] == "scale" and "--resume" not in arguments:
        return [*arguments, "--workload", "./mlp.py", "--warmup", "1", "--iters", "6", "--launches", "1"]
    if arguments[0] != "run" or "--resume" in arguments:
        return arguments
    if "--global-batch" in arguments:
        at = arguments.index("--global-batch")
        arguments = arguments[:at] + arguments[at + 2 :]
    sooner = ["--budget", "1s", "--launches", "5"] if "--until-precision" in arguments else []
    fewer = [] if "--scenario" in arguments else ["--scenario", "single"]
    lighter = [] if arguments == FIRST_LOOK else ["--no-parity"]  # the reference is as long as the rest
    if "imagefolder" in arguments:
        small = "--model squeezenet1_1 --image-size 32"
    else:
        images = "--model" in arguments or "channels_last" in " ".join(arguments)
        small = f"--workload ./{'images' if images else 'mlp'}.py"
    return [*arguments, *fewer, *lighter, *small.split(), *FEW.split(), *sooner]


@pytest.fixture(scope="module")
def folder(host: WorkerHost, tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("readme")
    (here / "mine.py").write_text(documented("STRATEGY ="))
    (here / "mlp.py").write_text(MLP)
    (here / "images.py").write_text(Path(tiny().file).read_text())
    (here / "times.csv").write_text("step_ms\n" + "\n".join(map(str, range(100, 120))))
    (here / "train.py").write_text((ROOT / "tests" / "standin" / "training.py").read_text())
    for name in ("old.py", "new.py"):
        (here / name).write_text((ROOT / "tests" / "standin" / "noting.py").read_text())
    for number, step_ms in enumerate((100, 100, 130)):
        (here / "settings.json").write_text(f'{{"step_ms": {step_ms}}}')
        who = "git -c user.name=a -c user.email=a@localhost"
        made = f"git init -q && git add new.py settings.json && {who} commit --allow-empty -qm {number}"
        subprocess.run(["sh", "-c", made], cwd=here, check=True, capture_output=True)
    for name in ("cat", "dog"):
        (here / "JPEGS" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 50), (90 * number, 90, 0)).save(here / "JPEGS" / name / f"{number}.jpg")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for _ in range(2):
            arguments = ["run", "--device", "cpu", "--scenario", "single,ddp", "--workload", "./mlp.py", *FEW.split()]
            assert in_this_process(host, patch, arguments) == 0
    return here


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, str]:
    first, second = sorted(path.name for path in (folder / "results").iterdir())
    return {"BASE": first, "NEW": second, "RUN": second}


HERE = [one for one in commands(README, *PAGES) if "-m venv" not in one and one not in (*ELSEWHERE, MEASURED)]


@pytest.mark.parametrize("command", HERE)
def test_a_command_does_what_it_says(
    folder: Path, names: dict[str, str], run_here: Bench, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    words = [names.get(word, word) for word in shlex.split(command)]
    assert words[:3] == ["python", "-m", "bench"], "a command that this test does not know how to run"
    arguments = shrink(words[3:])
    if {"attach", "bisect"} & {*words}:
        arguments[1:1] = ["--out", "own"]
        arguments = [re.sub("^python(?= |$)", sys.executable, word) for word in arguments]
    monkeypatch.chdir(folder)
    done = run_here(*arguments)
    if "--gpus" in words and not Path("/dev/nvidiactl").exists():
        assert (done.code, done.err) == (2, "bench: error: --gpus: there is no GPU here; leave it out\n")
        return
    assert done.code == (11 if "gate" in words else 0), done.err  # one launch of each is inconclusive
    if "--json" in words:
        assert [launch["status"] for launch in done.document["launches"]] == ["ok"]


def test_what_other_tests_run_is_shown_and_run() -> None:
    assert {*ELSEWHERE, MEASURED} <= {*commands(README, *PAGES)}
    run = [" ".join(("python", "-m", "bench", *words)) for words in VERBS.values()]
    assert all(any(one.startswith(shown) for one in run) for shown in ELSEWHERE)


def test_the_readme_fits_a_screen_or_two() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_links_of_the_readme_and_the_pages(tmp_path: Path) -> None:
    """Those between pages are checked by MkDocs, which is strict about them."""
    links = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == [] and len(links) > 8
    pytest.importorskip("mkdocs")
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(built, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert (tmp_path / "site" / "method" / "index.html").is_file()
