"""Opening a file that somebody else may have put there: a pipe, a device, a link elsewhere, or something huge.

    with open_regular("results/RUN/run.json", limit=JSON_BYTES, within="results/RUN") as file: ...

What is refused is an ``OSError`` with the file's name and the reason, as of a file that may not be read.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from io import BufferedReader
from typing import Any, NoReturn

from bench.core.errors import RequestError

Json = Any  # a JSON value
JSON_BYTES = 64 << 20  # of one JSON document: a hundred times what a large run needs, and little enough to hold
UNLOCKED_S = 10.0  # how long a new scratch folder may be without its owner's lock

LOG_END_BYTES, LOG_END_LINES = 4096, 20


def open_regular(path: str, *, limit: int, within: str | None = None) -> BufferedReader:
    """Open a regular file of at most ``limit`` bytes for reading, without waiting for anybody.

    ``within``: the folder that links may not lead out of; None where the user named this very file. Raises ``OSError``.
    """
    try:
        inside = within == os.path.dirname(path) and not stat.S_ISLNK(os.lstat(path).st_mode)  # as mostly
        real = path if inside else os.path.realpath(path)
    except ValueError as error:  # such as a byte 0 in it
        raise OSError(errno.EINVAL, "it is not a valid file name", path) from error
    if not (within is None or inside) and os.path.commonpath((real, home := os.path.realpath(within))) != home:
        raise OSError(errno.ELOOP, f"it lies outside {within}", path)
    if not stat.S_ISREG(os.lstat(real).st_mode):  # before it is opened: opening some devices does something
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_size > limit:
        os.close(descriptor)
        raise OSError(errno.EFBIG, f"it has {state.st_size:,} bytes, and at most {limit:,} are read", path)
    return os.fdopen(descriptor, "rb")


def read_json(path: str, *, limit: int = JSON_BYTES, within: str | None = None) -> Json:
    """The JSON document in such a file. Raises ``OSError``, or ``ValueError`` for what is no JSON, or NaN in it."""
    with open_regular(path, limit=limit, within=within) as file:
        return parse_json(file.read(limit))


def parse_json(text: bytes | str) -> Json:
    """A JSON document. Raises ``ValueError``: also for NaN and infinity, and for one that is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def refuse_bytes(option: str, path: str) -> None:
    """Raises :class:`RequestError` for a path that is no text, which no message to a rank can name."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        remedy = "rename it, or set a locale with UTF-8 ('export LC_ALL=C.UTF-8')"
        raise RequestError(option, f"{path} is not valid text in this locale", remedy) from error


def log_end(path: str) -> list[str]:
    """The last lines of a log, however long it is."""
    text = text_from(path, max(0, size_of(path) - LOG_END_BYTES))
    return [line.rstrip() for line in text.splitlines() if line.strip()][-LOG_END_LINES:]


def sha256(path: str) -> str:
    """SHA-256 (hex) of a file."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_names(folder: str) -> str:
    """SHA-256 (hex) of the names and sizes of all files below a folder, in order. Links are followed, each folder once.

    Raises ``OSError`` with the name of what cannot be read, or is a pipe or a device.
    """
    import hashlib

    checksum, seen = hashlib.sha256(), set()
    for place, folders, names in os.walk(folder, onerror=_raised, followlinks=True):
        folders.sort()
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in sorted(names):
            file = os.path.join(place, name)
            if not os.access(file, os.R_OK):
                raise OSError(errno.EACCES if os.path.exists(file) else errno.ENOENT, "it cannot be read", file)
            state = os.stat(file)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", file)
            checksum.update(f"{os.path.relpath(file, folder)}\0{state.st_size}\n".encode(errors="surrogateescape"))
    return checksum.hexdigest()


@contextmanager
def scratch_folder(prefix: str) -> Iterator[str]:
    """A folder among temporary files, ``PREFIX`` and some letters, gone at the end of this context.

    Its owner holds a lock on it. What an owner that was killed has left is removed by the next one.
    """
    import fcntl
    import shutil
    import tempfile

    for left in glob(os.path.join(tempfile.gettempdir(), f"{prefix}????????")):
        with suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                state = os.fstat(descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if state.st_uid == os.geteuid() and time.time() - state.st_ctime > UNLOCKED_S:
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # NFS and Lustre may have none, and then nobody can take it to sweep this
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(descriptor)


def cache_folder() -> str:
    """What is in it may be removed at any time, and is made again."""
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "bench")
    return os.environ.get("BENCH_CACHE_DIR") or usual


def _raised(error: OSError) -> NoReturn:
    raise error


def size_of(path: str) -> int:
    """In bytes; 0 of a file that cannot be looked at."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def text_from(path: str, start: int) -> str:
    """A megabyte of a file from ``start`` on; nothing where there is no regular file that can be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            file.seek(start)
            return file.read(1 << 20).decode("utf-8", errors="replace")
    except OSError:
        return ""
