"""Samples of memory and devices while launches run, taken by a separate process (``bench.machine.sample.process``).

    sampler = Sampler(device="cpu", gpus=(), spool="samples", host="localhost")
    sampler.watch(launch=0, scenario="ddp", rank=0, pid=4711)
    memory_rows, device_rows = sampler.finish(0)

A launch never fails for want of samples: if the process dies, rows say what is missing.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from bench.core.bootstrap import program
from bench.core.channel import Channel
from bench.core.channel import Message as Event
from bench.core.files import log_end
from bench.core.job import Job
from bench.machine.sample.attribution import unavailable
from bench.runs.spool import read_spool, spool_path

ANSWER_LIMIT_S = 5.0
START_LIMIT_S = 30.0  # a driver without persistence mode takes seconds to wake each GPU


class Sampler:
    """One sampler process per host. ``cost`` and ``findings``: of the last finished launch, None if the process died.
    ``knows_pids``: the driver's lists have had every rank of a launch under its own PID, so none need show it.

    It is not waited for at the start. The kernel ends the process with the thread that started it, so start it from the
    main thread. ``spool``: an existing folder. ``options``: of ``process.Loop``.
    """

    def __init__(self, *, device: str, gpus: tuple[str, ...], spool: str, host: str, **options: object) -> None:
        self.cost: Event | None = None
        self.findings: Event | None = None
        self.knows_pids = False
        self._config: Event = {"device": device, "gpus": list(gpus), "spool": spool, "host": host, **options}
        self._log = os.path.join(spool, "sampler.log")
        self._begun: int | None = None
        self._done: dict[int, set[int]] = {}
        self._watched: dict[int, list[Event]] = {}
        self._spawn()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, launch: int) -> None:
        """Look at the devices before the ranks of a launch start, and wait for that. Otherwise, what was there before
        the launch is unknown."""
        self._revive()
        with suppress(OSError):
            os.unlink(spool_path(self._config["spool"], launch))  # what a scenario has put there: a pipe would hang
        if self._config["device"] != "cpu" and self._is_ready():
            self._channel.send(event="begin", launch=launch)
            answer = self._channel.first("begun", limit_s=ANSWER_LIMIT_S)
            self._begun = None if answer is None else answer["launch"]

    def watch(self, launch: int, scenario: str, rank: int, pid: int, devices: tuple[str, ...] | None = None) -> None:
        """Sample this rank from now on. ``devices``: its UUIDs; without them no device's level counts as its memory."""
        if launch not in self._watched:
            self._revive()
        message = {"launch": launch, "scenario": scenario, "rank": rank, "pid": pid, "devices": devices}
        self._watched.setdefault(launch, []).append(message)
        self._channel.send(event="watch", begun=launch == self._begun, **message)

    def hear(self, job: Job, event: Event) -> None:
        """Act on an event of a rank. The slow samples are taken when all ranks have done their steps."""
        if event["event"] == "up":
            self.watch(job.launch, job.scenario, event["rank"], event["pid"], job.ranks[event["rank"]].devices)
        elif event["event"] == "phase" and event["phase"] == "measure" and event["rank"] == 0:
            self._channel.send(event="edge", launch=job.launch)
        elif event["event"] == "phase" and event["phase"] == "record":
            if event["rank"] == 0:
                self._channel.send(event="edge", launch=job.launch)
            self._done.setdefault(job.launch, set()).add(event["rank"])
            ranks_here = job.on_host(self._config["host"]) or job.ranks  # a site may have names of its own
            if len(self._done[job.launch]) == len(ranks_here):
                self._channel.send(event="full", launch=job.launch)
        elif event["event"] == "probe":
            self.probe(job.launch, event["pid"], event["stage"])

    def probe(self, launch: int, pid: int, stage: str) -> None:
        """A rank will allocate the probe (``before``), has ``allocated`` or has ``freed`` it (see
        ``bench.machine.sample.attribution``). Meanwhile it is not sampled: the probe is not memory of the training."""
        self._channel.send(event="probe", launch=launch, pid=pid, stage=stage)

    def finish(self, launch: int) -> tuple[list[Event], list[Event]]:
        """Stop watching a launch. Returns its memory rows and its device rows (as in ``bench.core.records``).

        If a rank or GPU was never seen, or the process died (it is restarted), a row has the ``reason``.
        """
        ranks = self._watched.pop(launch, [])
        self._done.pop(launch, None)
        if not ranks:
            return [], []
        answer = None
        if self._is_ready():
            self._channel.send(event="finish", launch=launch)
            answer = self._channel.first("finished", limit_s=ANSWER_LIMIT_S)
        if answer is None:
            death = self._bury()
            missing = [(rank["pid"], None, death) for rank in ranks]
            self.cost = self.findings = None
            self._spawn()
        else:
            missing, self.cost, self.findings = answer["missing"], answer["cost"], answer["findings"]
        try:
            tables = read_spool(spool_path(self._config["spool"], launch))
        except (OSError, ValueError) as error:
            tables = {"memory": [], "device": []}
            reason = f"the samples cannot be read: {getattr(error, 'strerror', error)}"
            missing = [(rank["pid"], None, reason) for rank in ranks]
        pids = {row["pid"] for row in tables["memory"]} | {pid for pid, *_ in missing}
        gone = "its samples were removed while it ran"
        missing += [(rank["pid"], None, gone) for rank in ranks if rank["pid"] not in pids]
        head = {"launch": launch, "scenario": ranks[0]["scenario"], "host": self._config["host"]}
        head["t_ns"] = time.perf_counter_ns()
        by_pid = {rank["pid"]: rank["rank"] for rank in ranks}
        self.knows_pids |= by_pid.keys() <= {row["pid"] for row in tables["memory"] if row["source"] == "nvml_pid"}
        for pid, device, reason in missing:
            device = "cpu" if self._config["device"] == "cpu" else device
            tables["memory"].append(unavailable(pid, device, reason).row(by_pid[pid], **head))
        return tables["memory"], tables["device"]

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._channel.close()
        try:
            self._process.wait(ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _revive(self) -> None:
        """Restart the process if it died while nothing was watched."""
        if self._process.poll() is not None:
            self._bury()
            self._spawn()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        os.makedirs(self._config["spool"], exist_ok=True)  # a scenario may have removed it
        with theirs, open(self._log, "ab") as log:
            arguments = (str(theirs.fileno()), str(os.getpid()), json.dumps(self._config))
            self._process = subprocess.Popen(
                [sys.executable, "-c", program("bench.machine.sample.process"), *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self._start_deadline_s = time.monotonic() + START_LIMIT_S
        self._ready = False
        self._begun = None

    def _is_ready(self) -> bool:
        left_s = self._start_deadline_s - time.monotonic()
        self._ready = self._ready or self._channel.first("ready", limit_s=left_s) is not None
        return self._ready

    def _bury(self) -> str:
        """End the process, and say how it ended."""
        silent = not self._channel.closed
        self._channel.close()
        if silent:
            self._process.kill()
        try:
            code = self._process.wait(1.0)
            *_, last = ["it said nothing", *log_end(self._log)]
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code} ({last})"
            if silent:
                how = f"did not answer within {ANSWER_LIMIT_S:g} s and was killed"
        except subprocess.TimeoutExpired:  # stuck in the driver, where no signal reaches it
            self._process.kill()
            how = "did not answer and could not be ended: it may still hold its GPUs"
        return f"the sampler process (PID {self.pid}) {how}; its later samples are missing"
