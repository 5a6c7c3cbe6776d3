"""The command line's end of the worker host: start it, hand it launches, hear what happens."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.bootstrap import program
from bench.channel import Channel
from bench.errors import HostError, RequestError
from bench.records import Job, job_to_json

START_TIMEOUT_S = 300.0
ABORT_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended. ``ranks``: rank, pid, last phase and step of each. ``cpu_s``: of all of them and the host."""

    status: str
    reason: str | None
    first_failed_rank: int | None
    ranks: list[dict[str, Any]]
    cpu_s: float = 0.0


class WorkerHost:
    """A running worker host. Use as a context manager: leaving it ends the host and every rank that it has.

    ``locks``: descriptors that it and its ranks hold for as long as they live (see ``bench.lock``). ``description``:
    what the host said of its interpreter (versions, models, which apex; see ``bench.worker.host``).
    """

    def __init__(
        self,
        *,
        python: str | None,
        fresh: bool,
        apex_path: str | None,
        log: str,
        device: str,
        locks: tuple[int, ...] = (),
    ) -> None:
        ours, theirs = socket.socketpair()
        kept = ",".join(map(str, locks))
        arguments = ["host", str(theirs.fileno()), str(os.getpid()), "fresh" if fresh else "fork", kept]
        environment = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
        self.python = python or sys.executable
        self.log = log
        with open(log, "ab") as output:
            try:
                self.process = subprocess.Popen(
                    [self.python, "-c", program("bench.worker.start"), *arguments, *([apex_path] if apex_path else [])],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(), *locks),
                    start_new_session=True,
                )
            except OSError as error:
                raise RequestError(
                    "--python", f"{self.python} cannot be started: {error.strerror}", "give an interpreter's path"
                ) from error
        theirs.close()
        self.channel = Channel(ours)
        self.description: dict[str, Any] = {}

    def __enter__(self) -> "WorkerHost":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_until_ready(self, on_wait: Callable[[float], None] = lambda seconds: None) -> dict[str, Any]:
        """The host's description once torch is imported.

        Raises :class:`RequestError` when this interpreter has no usable torch, :class:`HostError` when the host dies.
        """
        started = time.monotonic()
        while time.monotonic() - started < START_TIMEOUT_S:
            on_wait(time.monotonic() - started)
            for message in self._messages(1.0):
                if message["event"] == "ready":
                    self.description = message
                    return message
                if message["event"] == "failed":
                    raise RequestError(
                        "--python",
                        f"{self.python} cannot host the workers: {message['reason']}",
                        "install torch>=2.6 and torchvision there, or name another interpreter",
                    )
            if self.channel.closed:
                raise RequestError(
                    "--python", f"{self.python} cannot host the workers: {self._last_words()}", "name another one"
                )
        raise HostError(f"the worker host did not import torch within {START_TIMEOUT_S:.0f} s; its log is {self.log}")

    def run(self, job: Job, on_event: Callable[[dict[str, Any]], None]) -> Outcome:
        """Execute ``job`` and return when all of its ranks are gone. ``on_event`` hears every message of every rank.

        On ``KeyboardInterrupt`` the launch is ended before the exception goes on. Raises :class:`HostError` when the
        host itself dies.
        """
        self.channel.send(event="launch", job=job_to_json(job))
        try:
            return self._wait_for_end(on_event)
        except KeyboardInterrupt:
            self.channel.send(event="abort", reason="interrupted")
            deadline = time.monotonic() + ABORT_PATIENCE_S
            while time.monotonic() < deadline and not self.channel.closed:
                if any(message["event"] == "over" for message in self._messages(0.2)):
                    break
            raise

    def _wait_for_end(self, on_event: Callable[[dict[str, Any]], None]) -> Outcome:
        while not self.channel.closed:
            for message in self._messages(1.0):
                if message["event"] == "over":
                    return Outcome(
                        status=message["status"],
                        reason=message["reason"],
                        first_failed_rank=message["first_failed_rank"],
                        ranks=message["ranks"],
                        cpu_s=message["cpu_s"],
                    )
                on_event(message)
        raise HostError(f"the worker host went away: {self._last_words()}; its log is {self.log}")

    def _messages(self, patience_s: float) -> list[dict[str, Any]]:
        readable, _, _ = select.select([self.channel], [], [], patience_s)
        return self.channel.receive() if readable else []

    def _last_words(self) -> str:
        status = self.process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        with open(self.log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else how

    def close(self) -> None:
        """End the host; the kernel ends its ranks with it."""
        self.channel.close()
        try:
            self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
