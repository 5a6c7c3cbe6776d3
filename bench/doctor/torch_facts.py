"""What torch says of itself, asked of a child interpreter: this one, or the one that ``--python`` names."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from bench.bootstrap import program

LIMIT_S = 120.0


def ask(*, apex_path: str | None, python: str | None) -> "subprocess.Popen[str] | str":
    """The child that finds out, or in one line why it cannot be started."""
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
        return f"{python} cannot be started: {error.strerror}"


def answer(child: "subprocess.Popen[str] | str") -> dict[str, Any]:
    """The facts of ``bench.worker.facts``, or ``{"problem": one line}`` where the child did not live to tell them."""
    if isinstance(child, str):
        return {"problem": child}
    try:
        told, errors = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"problem": f"it did not import torch within {LIMIT_S:.0f} s"}
    if child.returncode != 0:
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        how = signal.Signals(-child.returncode).name if child.returncode < 0 else f"exit code {child.returncode}"
        return {"problem": f"importing torch ended the interpreter with {how}: {last}"}
    facts: dict[str, Any] = json.loads(told.splitlines()[-1])
    return {"problem": None, **facts}
