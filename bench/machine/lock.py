"""Who measures where: a lock for each GPU and one for the CPU, so that two runs never disturb each other.

A lock is an ``flock`` on a file whose descriptor the worker host and the ranks inherit: the kernel holds it until the
last of them is gone. The files lie in one folder for all users (``BENCH_LOCK_DIR`` names another), are never deleted,
and say who took the lock last.
"""

import fcntl
import json
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from bench.core.errors import RequestError
from bench.machine import redact

FOLDER_VARIABLE = "BENCH_LOCK_DIR"
SHARED_FOLDER = "/tmp/bench-locks"
POLL_S = 0.2
ENDING_S = 5.0
"""What is left of a run without its command line counts as a holder after this time."""


class Locks:
    """Locks that are held. A context manager; ``descriptors`` are what other processes of the run inherit."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.descriptors = descriptors

    def __enter__(self) -> "Locks":
        return self

    def __exit__(self, *exception: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)  # not unlocked: a rank that is still ending holds it on


def acquire(devices: Iterable[str], *, wait: bool, say: Callable[[str], None]) -> Locks:
    """Lock the GPUs with these UUIDs, or the CPU where there are none.

    ``wait``: queue until they are free, telling ``say`` for whom. Raises :class:`RequestError` that names the holder of
    a taken lock (without ``wait``), or the folder that cannot be used.
    """
    folder = os.environ.get(FOLDER_VARIABLE, SHARED_FOLDER)
    wanted = [f"gpu-{uuid}" for uuid in sorted(devices)] or ["cpu"]
    try:
        _make_shared(folder)
        return _stand_in_line(folder, wanted, say) if wait else _take_now(folder, wanted)
    except OSError as error:
        raise RequestError(
            FOLDER_VARIABLE,
            f"locks cannot be kept in {folder}: {error.strerror}",
            "name a folder that all users of this machine can write",
        ) from error


def _take_now(folder: str, wanted: list[str]) -> Locks:
    deadline_s = time.monotonic() + ENDING_S
    while True:
        descriptors, taken = _try(folder, wanted)
        if taken is None:
            return Locks(descriptors)
        holder = _read(folder, taken)
        if _runs(holder) or time.monotonic() > deadline_s:
            raise RequestError(
                "--gpus" if taken != "cpu" else "--device",
                f"{_called(taken)} is in use by {_describe(holder)}",
                "queue with --wait, or stop that run",
            )
        time.sleep(POLL_S)  # what is left of a run is on its way out, or one that came first has not signed yet


def _stand_in_line(folder: str, wanted: list[str], say: Callable[[str], None]) -> Locks:
    with _Ticket(folder, wanted) as ticket:
        said = ""
        while True:
            ahead = ticket.ahead()
            descriptors, taken = ((), None) if ahead else _try(folder, wanted)
            if descriptors:
                return Locks(descriptors)
            name = taken or wanted[0]
            text = f"waiting until {_called(name)} is free of {_describe(_read(folder, name))}"
            text += f"; {ahead} before this run" if ahead else ""
            if text != said:
                say(text)
                said = text
            time.sleep(POLL_S)


class _Ticket:
    """A place in the queue: a file that its owner locks, so that a dead one's place is known to be empty."""

    def __init__(self, folder: str, wanted: list[str]) -> None:
        self.folder = os.path.join(folder, "line")
        self.wanted = wanted
        self.name = f"{time.time_ns():020d}-{os.getpid()}"

    def __enter__(self) -> "_Ticket":
        _make_shared(self.folder)
        self.descriptor = _open(os.path.join(self.folder, self.name))
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        os.write(self.descriptor, json.dumps(self.wanted).encode())
        return self

    def __exit__(self, *exception: object) -> None:
        os.unlink(os.path.join(self.folder, self.name))
        os.close(self.descriptor)

    def ahead(self) -> int:
        """How many came before and want one of the same locks."""
        return sum(self._counts(name) for name in sorted(os.listdir(self.folder)) if name < self.name)

    def _counts(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(descriptor, 1 << 16)
            return not text or bool(set(json.loads(text)) & set(self.wanted))
        finally:
            os.close(descriptor)
        age_s = time.time() - int(name.partition("-")[0]) / 1e9
        if age_s > ENDING_S:  # a younger one may be between its making and its locking
            with suppress(FileNotFoundError, PermissionError):  # somebody else was quicker, or has to do it
                os.unlink(path)
        return abs(age_s) <= ENDING_S and os.path.exists(path)


def _try(folder: str, wanted: list[str]) -> tuple[tuple[int, ...], str | None]:
    """The descriptors of all locks, or none of them and the name of one that is taken."""
    descriptors: list[int] = []
    for name in wanted:
        descriptor = _open(os.path.join(folder, f"{name}.lock"))
        descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for opened in descriptors:
                os.close(opened)
            return (), name
    for descriptor in descriptors:
        text = json.dumps(_myself()).encode()
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    return tuple(descriptors), None


def _open(path: str) -> int:
    """Open a file that users share, or make it. Links are not followed."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        try:  # not O_CREAT on what is there: the kernel refuses that for another user's file in a sticky folder
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        os.fchmod(descriptor, 0o666)
        return descriptor


def _make_shared(folder: str) -> None:
    with suppress(FileExistsError):
        os.makedirs(folder)
        os.chmod(folder, 0o1777)


def _myself() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "user": _user(),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["bench", *redact.command_line(sys.argv[1:])]),
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _born(pid: int) -> int | None:
    """When a process started, in ticks: a later process of the same PID has another."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _read(folder: str, name: str) -> dict[str, Any]:
    """Who signed a lock last; empty if nobody has, or is just doing so."""
    try:
        with open(os.path.join(folder, f"{name}.lock"), encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, FileNotFoundError):
        return {}
    return found if isinstance(found, dict) else {}


def _runs(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    return isinstance(pid, int) and _born(pid) is not None and _born(pid) == holder.get("born")


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "another run"
    what = "" if _runs(holder) else "what is left of "
    return f"{what}PID {holder.get('pid')} ({holder.get('user')}, since {holder.get('since')}: {holder.get('command')})"


def _called(name: str) -> str:
    return "the CPU" if name == "cpu" else f"GPU {name.removeprefix('gpu-')}"
