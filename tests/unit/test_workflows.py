"""The workflows and the shell scripts are what their linters want, and their steps do what they should."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standin import ROOT, complaints, program

from bench.core.errors import RequestError
from bench.verbs import accept

WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"


def loaded(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("ruamel.yaml", reason="it comes with check-jsonschema")
    document: dict[str, Any] = yaml.YAML(typ="safe", pure=True).load(path)  # YAML 1.2: 'on' is a word and no truth
    return document


def steps(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    for job in loaded(path)["jobs"].values():
        for step in job["steps"]:
            if "run" in step:
                yield step, {**job.get("env", {}), **step.get("env", {})}


def step_called(name: str) -> str:
    (command,) = [step["run"] for step, _ in steps(NIGHTLY) if step.get("name") == name]
    return str(command)


def schema() -> str:
    kinds = ("vendor.github-workflows", "custom.github-workflows-require-timeout")
    return "".join(complaints("check-jsonschema", "--builtin-schema", kind, *WORKFLOWS) for kind in kinds)


def security() -> str:
    return complaints("zizmor", "--offline", "--no-progress", "--config", ROOT / ".github/zizmor.yml", *WORKFLOWS)


def rights() -> str:
    wrong = []
    for path in WORKFLOWS:
        document = loaded(path)
        jobs = [job["permissions"] for job in document["jobs"].values() if "permissions" in job]
        given = [document.get("permissions"), *jobs]
        wrong += [f"{path.name}: {permissions}" for permissions in given if permissions != {"contents": "read"}]
    return "\n".join(wrong)


def inputs() -> str:
    """Inputs that are used and not declared, or the other way round: on GitHub an unknown one is empty and no error."""
    wrong = []
    for path in WORKFLOWS:
        declared = set((loaded(path)["on"].get("workflow_dispatch") or {}).get("inputs") or {})
        used = set(re.findall(r"\binputs\.(\w+)", path.read_text()))
        wrong += [f"{path.name}: {name}" for name in sorted(declared ^ used)]
    return "\n".join(wrong)


def shell() -> str:
    return complaints("shellcheck", *(ROOT / name for name in ("nightly/nightly.sh", ".ci/run")))


def commands() -> str:
    """shellcheck of what the steps run; a variable of a step's environment may hold anything."""
    found = ""
    for path in WORKFLOWS:
        for step, environment in steps(path):
            known = "".join(f'export {name}; {name}="$(cat)"\n' for name in environment)
            found += complaints("shellcheck", "--shell", "bash", "-", text=known + step["run"])
    return found


@pytest.mark.parametrize("linter", [schema, security, rights, inputs, shell, commands])
def test_a_linter_is_content(linter: Callable[[], str]) -> None:
    assert linter() == ""


def bash(command: str, here: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    assert loaded(NIGHTLY)["defaults"]["run"]["shell"] == "bash"
    known = {"NIGHTLY_OUT": str(here / "o ut"), "GITHUB_STEP_SUMMARY": str(here / "shown.md")}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(words, cwd=here, env={**os.environ, **known, **environment}, capture_output=True, text=True)


def noting(file: Path, code: int = 0) -> Path:
    return program(file, f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\nsys.exit({code})\n")


@pytest.mark.parametrize(
    ("scenarios", "profile", "script", "run"),
    [
        ("", "nightly", [], []),
        ("ddp,ddp_o2", "nightly", ["--no-keep"], ["--scenario", "ddp,ddp_o2"]),
        ("", "quick", ["--no-keep"], []),
        ("./my scenario.py; touch here", "nightly", ["--no-keep"], ["--scenario", "./my scenario.py; touch here"]),
    ],
)
def test_a_night_by_hand(tmp_path: Path, scenarios: str, profile: str, script: list[str], run: list[str]) -> None:
    noting(tmp_path / "nightly" / "nightly.sh", code=10)
    done = bash(step_called("Doctor, run, gate, report, history"), tmp_path, SCENARIOS=scenarios, PROFILE=profile)
    assert done.returncode == 10, "the code of the script is that of the step"
    asked = ["--device", "cuda", "--profile", profile, *run]
    assert json.loads(done.stdout) == ["--allow-inconclusive", *script, "--", *asked]
    assert not (tmp_path / "here").exists()


def test_a_night_is_accepted_with_the_reason_as_typed(tmp_path: Path) -> None:
    reason = "slower on purpose: $(touch here) `touch here` 'checks' \"NaN\""
    heard = noting(tmp_path / "python")
    typed = {"RUN": "latest", "REASON": reason, "BY": "someone", "NIGHTLY_HISTORY": "/srv/of nights"}
    done = bash(step_called("Accept a night"), tmp_path, NIGHTLY_INTERPRETER=str(heard), **typed)
    assert done.returncode == 0, done.stderr
    asked = ["latest", "--history", "/srv/of nights", "--reason", f"{reason} (someone)"]
    assert json.loads(done.stdout) == ["-m", "bench", "accept", *asked]
    assert reason in (tmp_path / "shown.md").read_text() and not (tmp_path / "here").exists()
    with pytest.raises(RequestError, match="there is no run in /srv/of nights"):
        accept.main(asked)  # which knows these options, and gets as far as looking for the run


def test_the_summary_marks_an_inconclusive_night(tmp_path: Path) -> None:
    done = bash(step_called("Summary"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "before it began" in (tmp_path / "shown.md").read_text(), "there is none yet"
    (tmp_path / "o ut").mkdir()
    for verdict, warned in (("inconclusive, allowed", True), ("no regression found", False)):
        (tmp_path / "o ut" / "summary.md").write_text(f"# Nightly benchmark: {verdict}\n\nwords\n")
        done = bash(step_called("Summary"), tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "shown.md").read_text().endswith("words\n")
        assert ("::warning" in done.stdout) is warned
