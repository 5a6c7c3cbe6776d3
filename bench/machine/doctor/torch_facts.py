"""Facts about torch from a child interpreter: this one, or the one that ``--python`` names."""

import json
import os
import signal
import subprocess
import sys

from bench.core.bootstrap import program
from bench.core.errors import RequestError

LIMIT_S = 120.0


def ask(*, apex_path: str | None, python: str | None) -> "subprocess.Popen[str]":
    """The child that finds out. Raises :class:`RequestError` where it cannot be started."""
    arguments = [apex_path] if apex_path else []
    try:
        return subprocess.Popen(
            [python or sys.executable, "-c", program("bench.worker.facts"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )
    except OSError as error:
        problem = f"{python or sys.executable} cannot be started: {error.strerror}"
        raise RequestError("--python", problem, "give an interpreter's path") from error


def answer(child: "subprocess.Popen[str]") -> dict[str, object]:
    """The facts of ``bench.worker.facts``, or ``{"problem": one line}`` if the child died before."""
    try:
        output, errors = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"problem": f"it did not import torch within {LIMIT_S:.0f} s"}
    if child.returncode != 0:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        how = signal.Signals(-child.returncode).name if child.returncode < 0 else f"exit code {child.returncode}"
        return {"problem": f"importing torch ended the interpreter with {how}: {last}"}
    try:
        facts = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        facts = None
    if not isinstance(facts, dict) or "torch" not in facts:
        return {"problem": "the interpreter does not answer as a Python would"}
    return {"problem": None, **facts}
