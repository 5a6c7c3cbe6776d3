"""Who measures where: a lock for each GPU and one for the CPU, so that two runs never disturb each other.

A lock is an ``flock`` on a file whose descriptor the worker host and the ranks inherit: the kernel holds it until the
last of them is gone, and gives it to those that wait in the order in which they came; one that is stopped is passed.
The files lie in one folder for all users (``BENCH_LOCK_DIR`` names another), are never deleted, and say who took the
lock last. Anybody may have put anything there: only a folder of root's or of this user's is used, and links are not
followed.
"""

import errno
import fcntl
import json
import os
import pwd
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import glob

from bench.core.children import born
from bench.core.errors import RequestError
from bench.core.files import parse_json
from bench.machine import redact

FOLDER_VARIABLE = "BENCH_LOCK_DIR"
SHARED_FOLDER = "/tmp/bench-locks"
POLL_S = 0.2
ENDING_S = 5.0  # after this time the remains of a run whose command line is gone count as a holder
MOST_BYTES = 1 << 16  # of what a lock says; more is not from bench
MOST_LETTERS = 200  # of each thing that a lock says of its holder


@contextmanager
def acquire(devices: Iterable[str], *, wait: bool, say: Callable[[str], None]) -> Iterator[tuple[int, ...]]:
    """Lock the GPUs with these UUIDs, or the CPU where there are none, within this context. Yields the descriptors,
    which other processes of the run inherit.

    ``wait``: queue until they are free, telling ``say`` for whom; meanwhile no other one is held. Raises
    :class:`RequestError` that names the holder of a taken lock (without ``wait``), or the folder that cannot be used.
    """
    path = os.path.abspath(os.environ.get(FOLDER_VARIABLE) or SHARED_FOLDER)  # a link before a slash is followed
    names = [f"gpu-{uuid}" for uuid in sorted(devices)] or ["cpu"]
    held: dict[str, int] = {}
    try:
        try:
            while missing := [name for name in names if name not in held]:
                descriptor = _locked(path, missing[0], held, say if wait else None)
                if descriptor is None:
                    time.sleep(POLL_S)
                else:
                    held[missing[0]] = descriptor
        except OSError as error:
            what = error.strerror
            remedy = "name a folder that root has made for all users, as by 'install -d -m 1777 FOLDER'"
            if error.filename not in (None, path):
                what, remedy = f"{error.filename}: {what}", f"have {error.filename} removed, or name another folder"
            raise RequestError(FOLDER_VARIABLE, f"locks cannot be kept in {path}: {what}", remedy) from error
        yield tuple(held[name] for name in names)
    finally:
        _let_go(held)


def _let_go(held: dict[str, int]) -> None:
    while held:
        os.close(held.popitem()[1])  # not unlocked: a rank that is still ending holds it on


def _locked(path: str, name: str, held: dict[str, int], say: Callable[[str], None] | None) -> int | None:
    """The descriptor of a lock in the folder ``path``, now this run's; None if its file was replaced meanwhile.
    ``held``: let go before this run queues. ``say``: None to refuse what another run has, except what is on its way
    out."""
    deadline_s = time.monotonic() + ENDING_S
    called = "the CPU" if name == "cpu" else f"GPU {name.removeprefix('gpu-')}"
    descriptor = _opened(path, f"{name}.lock")
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            holder, waiting = _signature(descriptor), _waiting(descriptor)
            if say is not None:
                before = f"; {len(waiting)} before this run" if waiting else ""
                say(f"waiting until {called} is free of {_describe(holder)}{before}")
                _let_go(held)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                break
            if _runs(holder) or time.monotonic() > deadline_s:
                left = "" if _runs(holder) else _left(descriptor)
                problem = f"{called} is in use by {_describe(holder)}{left}"
                option = "--device" if name == "cpu" else "--gpus"
                raise RequestError(option, problem, "queue with --wait, or stop that run")
            time.sleep(POLL_S)  # what is left of a run is on its way out, or one that came first has not signed yet
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.lstat(os.path.join(path, f"{name}.lock")), os.fstat(descriptor)):
                text = json.dumps(_myself()).encode()
                os.pwrite(descriptor, text, 0)
                os.ftruncate(descriptor, len(text))
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _opened(path: str, name: str) -> int:
    """Open a file that users share, or make it, and its folder with it. Raises ``OSError`` for a folder that another
    user could exchange, and for what is not one file, or has another name elsewhere."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mask = os.umask(0)
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o1777)
    finally:
        os.umask(mask)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(folder)
        if status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.EPERM, f"it belongs to the user {_name_of(status.st_uid)}")
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, "all users can write it, and it is not sticky")
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK  # nobody may ever write into a pipe
        try:  # not O_CREAT on what is there: the kernel refuses that for another user's file in a sticky folder
            descriptor = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            with suppress(FileExistsError):
                made = os.open(name, flags | os.O_CREAT | os.O_EXCL, dir_fd=folder)
                os.fchmod(made, 0o666)
                return made
            descriptor = os.open(name, flags, dir_fd=folder)  # another run was quicker
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "this file does not belong to bench", name)
        return descriptor
    finally:
        os.close(folder)


def _waiting(descriptor: int) -> set[str]:
    """The PIDs of those that queue for a lock, as far as the kernel tells; in gVisor it does not."""
    inode = f":{os.fstat(descriptor).st_ino} "
    with suppress(FileNotFoundError), open("/proc/locks", encoding="ascii") as file:
        return {line.split()[5] for line in file if "->" in line and inode in line}
    return set()


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


def _signature(descriptor: int) -> dict[str, object]:
    """Who signed a lock last; empty if nobody has, or is just doing so."""
    try:
        signature = parse_json(os.pread(descriptor, MOST_BYTES, 0))
    except ValueError:
        return {}
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


def _left(descriptor: int) -> str:
    """Which processes of this user still hold the lock of a run whose bench is gone, such as an attached script: they
    have it open, as those that wait do, and the kernel tells of a lock there."""
    pids = set()
    for path in glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                with open(path.replace("/fd/", "/fdinfo/"), encoding="ascii") as file:
                    if "\nlock:" in file.read():
                        pids.add(path.split("/")[2])
    return f": PID {', '.join(sorted(pids, key=int))}" if pids else ""
