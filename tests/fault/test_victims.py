"""Whoever breaks, in whichever phase of a launch, the rest of the run is in order: host, sampler and supervisor.

What becomes of a launch whose rank breaks is in test_ranks.py.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from standin.processes import FASHION, document_of, family, nobody_left, not_locked, start, wait_for

from bench.runs.check import findings

pytestmark = pytest.mark.fault

PHASES = ("import", "rendezvous", "warmup", "measured", "sealing")
FAULTS = ("exception", "exit", "kill", "stop", "sleep", "oom")
STALL_S = 4.0
STALLED_GONE_S = 35.0
"""Beyond the time a launch may stall: how long a host may say nothing before it is taken for dead, and some more."""


def matrix() -> list[Any]:
    """Each takes half a minute; without ``slow`` is the one whose like no other test does to a real run."""
    short = ("measured", "kill", "host")
    return [
        pytest.param(*case, marks=[] if case == short else pytest.mark.slow, id="-".join(case))
        for phase in PHASES
        for fault in FAULTS
        for victim in ("host", "sampler", "supervisor")
        for case in [(phase, fault, victim)]
    ]


@pytest.mark.parametrize(("phase", "fault", "victim"), matrix())
def test_the_rest_is_in_order(repository: Path, tmp_path: Path, phase: str, fault: str, victim: str) -> None:
    file = tmp_path / "fault.json"
    file.write_text(json.dumps({"phase": phase, "fault": fault, "rank": 0, "victim": victim}))
    here = str(Path(__file__).with_name("planted"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
        "BENCH_TEST_FAULT": str(file),
    }
    out = tmp_path / "out"
    more = ["--scenario", "ddp,single", "--iters", "3", "--no-parity", "--stall-timeout", str(STALL_S)]
    with start(repository, out, *more, small=FASHION, env=environment) as running:
        wait_for(lambda: not file.exists())
        hit_s = time.monotonic()
        members = [*family(running.pid), running.pid]
        if victim == "supervisor" and fault in ("stop", "sleep"):
            time.sleep(2.0)
            assert running.poll() is None, "a run that somebody stops waits until it is continued, or ended"
            os.kill(running.pid, signal.SIGCONT if fault == "stop" else signal.SIGINT)
        _, shown = running.communicate(timeout=100)
        took_s = time.monotonic() - hit_s
    assert nobody_left(members)
    assert not_locked()
    states = [(launch["scenario"], launch["status"]) for launch in document_of(out)["launches"]]
    (path,) = out.iterdir()
    if victim == "host":
        expected = "timeout" if fault in ("stop", "sleep") else "killed"
        assert (states, running.returncode) == ([("ddp", expected), ("single", "ok")], 1), shown
    elif victim == "sampler" or fault == "stop":
        assert (states, running.returncode) == ([("ddp", "ok"), ("single", "ok")], 0), shown
    else:
        assert not document_of(out)["complete"]
        assert running.returncode == {"kill": -signal.SIGKILL, "exit": 0, "sleep": 130}.get(fault, 1), shown
        assert took_s < STALLED_GONE_S
    unsound = findings(str(path))
    assert unsound == [] or (
        victim == "supervisor" and all("incomplete" in line or "no steps" in line for line in unsound)
    )
    assert ("Traceback" in shown) == (victim == "supervisor" and fault in ("exception", "oom")), shown
