"""Who measures where: a lock for each GPU and one for the CPU, so that two runs never disturb each other.

A lock is an ``flock`` on a file whose descriptor the worker host and the ranks inherit: the kernel holds it until the
last of them is gone. The files lie in one folder for all users (``BENCH_LOCK_DIR`` names another), are never deleted,
and say who took the lock last. Anybody may have put anything there: only a folder of root's or of this user's is used,
links are not followed, what bench did not make is passed over, and only what belongs to this user is removed.
"""

import errno
import fcntl
import json
import os
import pwd
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import glob

from bench.core.children import born
from bench.core.errors import RequestError
from bench.core.files import Json, parse_json
from bench.machine import redact

FOLDER_VARIABLE = "BENCH_LOCK_DIR"
SHARED_FOLDER = "/tmp/bench-locks"
POLL_S = 0.2
ENDING_S = 5.0  # after this time the remains of a run whose command line is gone count as a holder
SLEEPING_S = 10.0  # who has a place in the queue and leaves free for this time what it waits for is passed
MOST_BYTES = 1 << 16  # of what a lock or a ticket says; more is not from bench
MOST_LETTERS = 200  # of each thing that a lock says of its holder
TICKET = re.compile(r"\.?line-(\d{20})-\d+")


class _Replaced(Exception):
    """The file that was opened is no longer the one of that name."""


@contextmanager
def acquire(devices: Iterable[str], *, wait: bool, say: Callable[[str], None]) -> Iterator[tuple[int, ...]]:
    """Lock the GPUs with these UUIDs, or the CPU where there are none, within this context. Yields the descriptors,
    which other processes of the run inherit.

    ``wait``: queue until they are free, telling ``say`` for whom. Raises :class:`RequestError` that names the holder of
    a taken lock (without ``wait``), or the folder that cannot be used.
    """
    descriptors = _acquired(devices, wait, say)
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # not unlocked: a rank that is still ending holds it on


def _acquired(devices: Iterable[str], wait: bool, say: Callable[[str], None]) -> tuple[int, ...]:
    path = os.path.abspath(os.environ.get(FOLDER_VARIABLE) or SHARED_FOLDER)  # a link before a slash is followed
    wanted = [f"gpu-{uuid}" for uuid in sorted(devices)] or ["cpu"]
    try:
        while True:
            with _Folder(path) as folder, suppress(_Replaced):
                return _stand_in_line(folder, wanted, say) if wait else _take_now(folder, wanted)
            time.sleep(POLL_S)
    except OSError as error:
        what = error.strerror
        remedy = "name a folder that root has made for all users, as by 'install -d -m 1777 FOLDER'"
        if error.filename not in (None, path):
            what, remedy = f"{error.filename}: {what}", f"have {error.filename} removed, or name another folder"
        raise RequestError(FOLDER_VARIABLE, f"locks cannot be kept in {path}: {what}", remedy) from error


class _Folder:
    """The folder of the locks. It is held open, so that what is done in it is not done in another one of its name."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> "_Folder":
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        mask = os.umask(0)
        try:
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o1777)
        finally:
            os.umask(mask)
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(self.descriptor)
        problem = ""
        if status.st_uid not in (0, os.geteuid()):
            problem = f"it belongs to the user {_name_of(status.st_uid)}"
        elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            problem = "all users can write it, and it is not sticky"
        if problem:
            os.close(self.descriptor)
            raise OSError(errno.EPERM, problem)
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.descriptor)

    def open(self, name: str, flags: int, mode: int = 0) -> int:
        """Open a file of this folder. Raises ``OSError`` for what is not one file, or has another name elsewhere."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # nobody may ever write into a pipe
        descriptor = os.open(name, flags, mode, dir_fd=self.descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "this is not a file of bench's", name)
        return descriptor

    def holds(self, name: str, descriptor: int) -> bool:
        """Whether an open file still has this name in the folder, and the folder its own."""
        try:
            return os.path.samestat(os.lstat(os.path.join(self.path, name)), os.fstat(descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False


def _take_now(folder: _Folder, wanted: list[str]) -> tuple[int, ...]:
    deadline_s = time.monotonic() + ENDING_S
    while True:
        descriptors, taken = _try(folder, wanted)
        if taken is None:
            return descriptors
        holder = _read(folder, taken)
        if _runs(holder) or time.monotonic() > deadline_s:
            raise RequestError(
                "--gpus" if taken != "cpu" else "--device",
                f"{_called(taken)} is in use by {_describe(holder)}{_left(folder, taken, holder)}",
                "queue with --wait, or stop that run",
            )
        time.sleep(POLL_S)  # what is left of a run is on its way out, or one that came first has not signed yet


def _stand_in_line(folder: _Folder, wanted: list[str], say: Callable[[str], None]) -> tuple[int, ...]:
    with _Ticket(folder, wanted) as ticket:
        last = ""
        while True:
            ahead = ticket.ahead()
            descriptors, taken = ((), None) if ahead else _try(folder, wanted)
            if descriptors:
                return descriptors
            name = taken or wanted[0]
            text = f"waiting until {_called(name)} is free of {_describe(_read(folder, name))}"
            text += f"; {ahead} before this run" if ahead else ""
            if text != last:
                say(text)
                last = text
            time.sleep(POLL_S)


class _Ticket:
    """A place in the queue: a file that its owner locks, so that a dead one's place is known to be empty."""

    def __init__(self, folder: _Folder, wanted: list[str]) -> None:
        self.folder = folder
        self.wanted = wanted
        self.free_since_s: dict[str, float] = {}
        self.name = f"line-{time.time_ns():020d}-{os.getpid()}"

    def __enter__(self) -> "_Ticket":
        first = f".{self.name}"  # until it is locked, and nobody else can lock it
        self.descriptor = self.folder.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        os.write(self.descriptor, json.dumps(self.wanted).encode())
        os.fchmod(self.descriptor, 0o644)
        place = self.folder.descriptor
        os.rename(first, self.name, src_dir_fd=place, dst_dir_fd=place)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.folder.holds(self.name, self.descriptor):
            os.unlink(self.name, dir_fd=self.folder.descriptor)
        os.close(self.descriptor)

    def ahead(self) -> int:
        """How many came before and want one of the same locks. Raises :class:`_Replaced` if this one is gone."""
        if not self.folder.holds(self.name, self.descriptor):
            raise _Replaced
        names = (name for name in os.listdir(self.folder.descriptor) if TICKET.fullmatch(name))
        return sum(self._counts(name) for name in names if name.lstrip(".") < self.name)

    def _counts(self, name: str) -> bool:
        """Whether a ticket's owner lives and wants what this one does. A dead one of this user's is removed."""
        try:
            descriptor = self.folder.open(name, os.O_RDONLY)
        except OSError:
            return False
        try:
            wanted = _content(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            made = TICKET.fullmatch(name)
            age_s = time.time() - int(made[1]) / 1e9 if made else 0.0
            own = os.fstat(descriptor).st_uid == os.geteuid() and isinstance(wanted, list)
            if own and age_s > ENDING_S:  # a younger one may not be locked yet
                with suppress(FileNotFoundError):  # another run of this user's was quicker
                    os.unlink(name, dir_fd=self.folder.descriptor)
        except BlockingIOError:
            rival = isinstance(wanted, list) and any(one in self.wanted for one in wanted)
            return rival and not self._sleeps(name, wanted)
        finally:
            os.close(descriptor)
        return False

    def _sleeps(self, name: str, wanted: list[object]) -> bool:
        """Whether a ticket's owner has long left free what it wants: it is stopped, or not from bench."""
        if any(_is_taken(self.folder, one) for one in wanted if isinstance(one, str) and os.sep not in one):
            self.free_since_s.pop(name, None)
        return time.monotonic() - self.free_since_s.setdefault(name, time.monotonic()) > SLEEPING_S


def _is_taken(folder: _Folder, name: str) -> bool:
    try:
        descriptor = folder.open(f"{name}.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _try(folder: _Folder, wanted: list[str]) -> tuple[tuple[int, ...], str | None]:
    """The descriptors of all locks, or none of them and the name of one that is taken."""
    held: list[int] = []
    name = ""
    try:
        for name in wanted:
            held.append(_open(folder, f"{name}.lock"))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not folder.holds(f"{name}.lock", held[-1]):
                raise _Replaced
        for descriptor in held:
            text = json.dumps(_myself()).encode()
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
    except BaseException as error:
        for descriptor in held:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return (), name
        raise
    return tuple(held), None


def _open(folder: _Folder, name: str) -> int:
    """Open a file that users share, or make it."""
    while True:
        with suppress(FileNotFoundError):
            return folder.open(name, os.O_RDWR)
        try:  # not O_CREAT on what is there: the kernel refuses that for another user's file in a sticky folder
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        os.fchmod(descriptor, 0o666)
        return descriptor


def _content(descriptor: int) -> Json:
    """The content of a lock or a ticket; an empty list if there is none, None if it is not from bench."""
    try:
        return parse_json(os.pread(descriptor, MOST_BYTES, 0) or b"[]")
    except ValueError:
        return None


def _myself() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "born": born(os.getpid()),
        "user": _name_of(os.getuid()),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["bench", *redact.command_line(sys.argv[1:])]),
    }


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _read(folder: _Folder, name: str) -> dict[str, object]:
    """Who signed a lock last; empty if nobody has, or is just doing so."""
    try:
        descriptor = folder.open(f"{name}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return {}
    signature = _content(descriptor)
    os.close(descriptor)
    return signature if isinstance(signature, dict) else {}


def _runs(holder: dict[str, object]) -> bool:
    pid = holder.get("pid")
    return isinstance(pid, int) and born(pid) is not None and born(pid) == holder.get("born")


def _describe(holder: dict[str, object]) -> str:
    if not holder:
        return "another run"
    what = "" if _runs(holder) else "what is left of "
    parts = [holder.get(name) for name in ("pid", "user", "since", "command")]
    pid, user, since, command = (str(one)[:MOST_LETTERS] if isinstance(one, str | int) else "?" for one in parts)
    return f"{what}PID {pid} ({user}, since {since}: {command})"


def _left(folder: _Folder, name: str, holder: dict[str, object]) -> str:
    """Which processes of this user still hold the lock of a run whose bench is gone, such as an attached script."""
    if _runs(holder):
        return ""
    pids = []
    for path in glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.stat(f"{name}.lock", dir_fd=folder.descriptor)):
                pids.append(path.split("/")[2])
    return f": PID {', '.join(sorted(set(pids), key=int))}" if pids else ""


def _called(name: str) -> str:
    return "the CPU" if name == "cpu" else f"GPU {name.removeprefix('gpu-')}"
