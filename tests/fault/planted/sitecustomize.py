"""Breaks a process on purpose. Every interpreter of a run imports this at its start (it lies on ``PYTHONPATH``).

What to break stands in the file that ``BENCH_TEST_FAULT`` names, as JSON: ``phase``, ``fault``, ``rank``; nothing is
broken while there is none. With ``victim`` (``host``, ``sampler`` or ``supervisor``) it is that process that breaks,
when the rank comes to the phase, and once. The code of bench is left as it is until a rank is forked.
"""

import json
import os
import signal
import sys
import time

IMPATIENCE_S = 4.0
IN_THE_PHASE_S = 0.5
"""How long the rank stays in its phase when it has had another process broken."""


def _wanted(phase):
    try:
        with open(os.environ["BENCH_TEST_FAULT"], encoding="utf-8") as file:
            wanted = json.load(file)
    except FileNotFoundError:
        return None
    here = wanted["phase"] == phase and os.environ.get("RANK") == str(wanted["rank"])
    if here and "victim" in wanted:
        _break_other(wanted["victim"], wanted["fault"])
        return None
    return wanted["fault"] if here else None


def _break_other(victim, fault):
    """In a rank: hit the host, which is its parent, the supervisor, which is the host's, or that one's sampler."""
    import psutil

    host = psutil.Process().parent()
    supervisor = host.parent()
    others = {"host": [host], "supervisor": [supervisor]}.get(victim) or supervisor.children()
    (pid,) = [one.pid for one in others if victim != "sampler" or "sample.process" in " ".join(one.cmdline())]
    time.sleep(IN_THE_PHASE_S)  # the host has forked everybody: an exception in a hook of fork is lost in Python
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(fault, signal.SIGUSR2)
    os.rename(os.environ["BENCH_TEST_FAULT"], os.environ["BENCH_TEST_FAULT"] + ".done")
    os.kill(pid, number)
    time.sleep(IN_THE_PHASE_S)


class Planted(Exception):
    """Of a kind that no code expects, since it may come anywhere."""


def _hit(number, frame):
    with open(os.environ["BENCH_TEST_FAULT"] + ".done", encoding="utf-8") as file:
        _break(json.load(file)["fault"], Planted("planted"), MemoryError("planted"))


def _break_here(phase):
    import torch

    oom = torch.OutOfMemoryError("planted: tried to allocate more than there is")
    _break(_wanted(phase), ValueError(f"planted in {phase}"), oom)


def _break(fault, exception, oom):
    if fault == "exit":
        os._exit(0)
    if fault in ("kill", "stop"):
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])
    if fault == "sleep":
        time.sleep(600)
    if fault in ("exception", "oom"):
        raise exception if fault == "exception" else oom


def _before(module, name, phase):
    original = getattr(module, name)

    def broken(*arguments, **options):
        _break_here(phase)
        return original(*arguments, **options)

    setattr(module, name, broken)


def _in_rank():
    rank = sys.modules.get("bench.worker.rank")
    if rank is None:
        return
    before = []
    for phase, name in {"import": "_train", "rendezvous": "join", "sealing": "_sealed"}.items():
        _before(rank, name, phase)
    original = rank.loop.run_window

    def run_window(session, load, steps, **options):
        phase = "warmup" if sum(before) < session.parts.workload.warmup else "measured"
        before.append(steps)
        optimize, done = session.optimize, []

        def broken():
            done.append(1)
            if len(done) == steps:
                _break_here(phase)
            optimize()

        session.optimize = broken
        try:
            return original(session, load, steps, **options)
        finally:
            session.optimize = optimize

    rank.loop.run_window = run_window


def _in_host():
    supervisor = sys.modules.get("bench.worker.supervisor")
    if supervisor is not None:
        supervisor.FEWEST_STARTUP_S = IMPATIENCE_S


if "BENCH_TEST_FAULT" in os.environ:
    signal.signal(signal.SIGUSR2, _hit)
    os.register_at_fork(before=_in_host, after_in_child=_in_rank)
