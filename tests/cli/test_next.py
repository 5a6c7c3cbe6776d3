"""The command that a verb prints as the next one: it is run here, for every verb, and ends well."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Bench, Plotting
from test_limits_verb import known
from test_workload import MLP

from bench.experiments import limits

NEXT = re.compile(r"(?:Next, [^:\n]+|[Nn]ext): (.*)|As a script: (.*)")
NOTING = str(Path(__file__).parent.parent / "standin" / "noting.py")
REPOSITORY = """git init -q && git config user.name a && git config user.email a@localhost && git add mlp.py &&
git commit -qm 1 && echo '{"step_ms": 150}' > settings.json && git add settings.json && git commit -qm 2"""
SMALL = ("--workload", "mlp.py", "--setting", "width=16", "--device", "cpu", "--warmup", "1", "--iters", "3")
ATTACH = ("attach", "--scenario", "mine", "--", sys.executable, NOTING)
VERBS = {
    "run": ("run", "--scenario", "ddp", "--no-parity", *SMALL),
    "attach": ATTACH,
    "bisect": ("bisect", "--git", ".", "--good", "HEAD~1", "--bad", "HEAD", "--", sys.executable, NOTING),
    "doctor": ("doctor",),
    "import": ("import", "mine.csv", "--scenario", "ddp", "--device", "cpu"),
    "limits": ("limits", "--workload", "fashion_mlp", "--scenario", "single", *SMALL),
    "scale": ("scale", "--each", "--launches", "2", *SMALL),
    "tune": ("tune", "--budget", "20m", "--scenario", "ddp", "--allow", "none", *SMALL),
}
"""As the README and the pages show them, and more behind it that makes them small."""


def test_every_verb_that_has_a_next_command_is_here(repository: Path) -> None:
    sources = [*repository.glob("bench/verbs/*.py"), *repository.glob("bench/machine/doctor/*.py")]
    words = r"[Nn]ext(?:, [^:]+)?: (python -m bench|\{COMMAND\})|next_steps\(|return finished\("
    printing = {source for source in sources if re.search(words, source.read_text())}
    names = {"doctor" if source.stem == "page" else source.stem.rstrip("_") for source in printing}
    assert names == {*VERBS, "options", "show"}, "and the helpers that print it for several"


@pytest.mark.parametrize("verb", VERBS)
def test_next_commands_work(run_here: Bench, verb: str, monkeypatch: pytest.MonkeyPatch, plotting: Plotting) -> None:
    monkeypatch.setattr(limits, "from_cache", known)  # test_limits_verb.py measures ceilings
    Path("mlp.py").write_text(MLP)
    Path("mine.csv").write_text("step_ms\n" + "\n".join(["10.0", "10.1", "10.3"] * 4))
    if verb == "bisect":
        subprocess.run(["sh", "-c", REPOSITORY], check=True)
    if verb in ("attach", "import"):  # the next one is a comparison with another run
        assert run_here(*ATTACH if verb == "attach" else VERBS["run"]).code == 0
    other = "latest" if verb == "import" else next((path.name for path in Path("results").glob("*")), "")
    done = run_here(*VERBS[verb])
    printed = done.out + done.err
    assert done.code == 0, printed
    commands = [
        command.replace("OTHER-RUN", other)
        for line in NEXT.finditer(printed)
        for command in re.split(", (?:or|then) ", line[1] or line[2])
    ]
    assert commands, printed
    for command in commands:
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "bench"]
        if words[3:] != ["run"]:  # doctor's, which trains ResNet-101: test_readme runs it
            after = run_here(*words[3:])
            assert after.code == 0, (command, after.err)
