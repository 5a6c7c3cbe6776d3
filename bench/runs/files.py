"""Files of a run: replaced whole or not at all, described by their checksums, refused by name where they cannot be."""

import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.core.errors import RequestError
from bench.core.files import open_regular, read_json
from bench.core.records import canonical_json
from bench.runs.document import Sealed

DIGEST = "digest.json"
RESTORE = "restore it, or measure again"

DIGEST_BYTES, TABLE_BYTES, FILE_BYTES = 8 << 20, 2 << 30, 16 << 30
"""The most that is read of a digest, a table, and anything else, such as a log or a trace, which nobody holds."""
PIECE_BYTES = 1 << 20

TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.part")  # the name of a file until it is in its place
PARTS = ".parts"  # the folder of an unfinished run with what was added to it (bench.runs.journal)
TRIED_BYTES = 1 << 14  # a disk must have room for as much before anything is measured: about one run.json

LOG_LIMIT_BYTES = 16 << 20  # of what one rank prints


def utf8(text: str) -> bytes:
    """Text in UTF-8; bytes that are not, as in a label or a host's name, are escaped."""
    return text.encode("utf-8", "backslashreplace")


def write_atomically(path: str, content: bytes) -> None:
    """Replace ``path`` by ``content``: a reader, or a crash, sees the old file or the new one."""
    replace_all({path: content})


def append(path: str, content: bytes) -> None:
    """Put ``content`` at the end of a file, on disk. An ``OSError`` names the file, and leaves what was there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    begins = not os.path.lexists(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "ab", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        try:
            while content:
                content = content[file.write(content) :]
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, size)
            error.filename = path
            raise
    if begins:
        _sync(os.path.dirname(path))


def shorten(log: str) -> None:
    """Keep the two ends of a log longer than :data:`LOG_LIMIT_BYTES`, with a line between that says what is missing.

    Only afterwards: while a rank writes, nothing may stand between it and its log.
    """
    size = os.path.getsize(log) if os.path.isfile(log) else 0
    if size <= LOG_LIMIT_BYTES:
        return
    half = LOG_LIMIT_BYTES // 2
    with open(log, "rb") as file:
        head = file.read(half)
        file.seek(size - half)
        tail = file.read()
    note = f"\n[bench: {size - 2 * half} bytes were left out here]\n".encode()
    write_atomically(log, head + note + tail)


def replace_all(files: Mapping[str, bytes]) -> None:
    """Replace files, all of them written beside their places first: a full disk leaves what was there.

    A file that is replaced keeps its permissions and owner; a link is replaced, not followed. An ``OSError`` names the
    file.
    """
    written: dict[str, str] = {}
    path = ""
    try:
        for path, content in files.items():
            written[path] = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.part")
            _write(written[path], content, like=path)
        for path in files:
            os.replace(written[path], path)
            del written[path]
        for folder in {os.path.dirname(path) for path in files}:
            _sync(folder)
    except OSError as error:
        error.filename, error.filename2 = path, None
        raise
    finally:
        for temporary in written.values():
            with suppress(OSError):
                os.unlink(temporary)


def _write(path: str, content: bytes, like: str) -> None:
    """Write a new file that has the permissions of ``like``, or what the umask leaves where there is no such file."""
    try:
        before = os.lstat(like)
    except FileNotFoundError:
        before = None
    kept = before if before is not None and stat.S_ISREG(before.st_mode) else None
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if kept else 0o666)
    with os.fdopen(descriptor, "wb") as file:
        if kept:
            with suppress(PermissionError):  # it was another user's
                os.fchown(descriptor, kept.st_uid, kept.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(kept.st_mode))
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync(folder: str) -> None:
    directory = os.open(folder or os.curdir, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a shared folder may know this of files alone
            raise
    finally:
        os.close(directory)


def describe_files(path: str) -> dict[str, Sealed]:
    """SHA-256 and row count (logs: lines) of every file of a run folder but ``run.json``; pipes and links are none."""
    return {
        name: Sealed(sha256=checksum(path, name), rows=count_rows(path, name))
        for name in entries(path)
        if stat.S_ISREG(os.lstat(os.path.join(path, name)).st_mode)
    }


def entries(path: str) -> list[str]:
    """The files in a run folder besides ``run.json`` that are not hidden; of folders those that are links."""
    names = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        names += [os.path.relpath(os.path.join(folder, name), path) for name in sorted([*files, *links])]
    return [name for name in names if name != "run.json" and not os.path.basename(name).startswith(".")]


def checksum(path: str, name: str) -> str:
    """SHA-256 of a file of the run at ``path``. Raises ``OSError`` for what is no file in there, or is too large."""
    with open_regular(os.path.join(path, name), limit=limit_of(name), within=path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def limit_of(name: str) -> int:
    """How many bytes of a file of a run are read at most."""
    return DIGEST_BYTES if name == DIGEST else TABLE_BYTES if name.endswith(".parquet") else FILE_BYTES


def seal_of(document: Mapping[str, object]) -> str:
    """SHA-256 of the canonical JSON of run.json without ``seal``."""
    rest = {key: value for key, value in document.items() if key != "seal"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()


def count_rows(path: str, name: str) -> int:
    """Rows of a table, lines of anything else."""
    with open_regular(os.path.join(path, name), limit=limit_of(name), within=path) as file:
        if name.endswith(".parquet"):
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                return int(pq.ParquetFile(file).metadata.num_rows)
            except pa.ArrowException:
                file.seek(0)  # it is no table
        lines, last = 0, b"\n"
        while piece := file.read(PIECE_BYTES):
            lines, last = lines + piece.count(b"\n"), piece[-1:]
        return lines + (last != b"\n")


def check_writable(out: str) -> None:
    """Refuse an output folder that cannot be made or written, is full or lies in a run, before anything runs."""
    if not out:
        raise RequestError("--out", "it is empty", "give a folder")
    folder = os.path.abspath(out)
    try:
        existing = _deepest_existing(folder)
        if not os.path.isdir(existing):
            raise RequestError("--out", f"{existing} is not a folder", "give a folder")
        _try(existing)
    except OSError as error:
        raise unwritable("--out", folder, error, "give another folder") from error
    _refuse_in_run("--out", folder)


def check_file(option: str, file: str) -> None:
    """Refuse a file that :func:`write_atomically` could not replace, or what would be gone then: a link, a device."""
    otherwise = "give a file in a folder that exists and can be written"
    path = os.path.abspath(file)
    folder = os.path.dirname(path)
    if not file or os.path.isdir(path) or not os.path.isdir(folder):
        raise RequestError(option, f"{file or repr(file)} cannot be a file", otherwise)
    if os.path.exists(path) and not os.path.isfile(path):
        raise RequestError(option, f"{file} is a device or a pipe, and would be replaced by a file", otherwise)
    if os.path.islink(path):
        raise RequestError(option, f"{file} is a link, and would be replaced by a file", "give the file itself")
    try:
        with suppress(FileNotFoundError):  # which is as it should be
            os.lstat(path)
    except OSError as error:
        raise RequestError(option, f"{file} cannot be a file: {error.strerror}", otherwise) from error
    try:
        _try(folder)
    except OSError as error:
        raise unwritable(option, file, error, otherwise) from error
    _refuse_in_run(option, path)


def _try(folder: str) -> None:
    """Write so much into a folder that it shows whether its disk is full."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(TRIED_BYTES))


def _refuse_in_run(option: str, path: str) -> None:
    """Refuse a place in a run folder: a sealed run with another file in it is no longer what was sealed."""
    real = Path(path).resolve()
    for folder in (real, *real.parents):
        if is_of_bench(stored(str(folder))):
            raise RequestError(option, f"{path} lies in the run {folder}", "give a place outside of it")


def stored(folder: str) -> dict[str, Any]:
    """run.json as it is; nothing of one that is damaged, which is refused when it is read, or missing."""
    try:
        document = read_json(os.path.join(folder, "run.json"), within=folder)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def is_of_bench(document: Mapping[str, object]) -> bool:
    """Whether this is a run.json of bench. What ``--json`` prints is none: it has the path of the run besides."""
    return "schema_version" in document and "path" not in document


def unwritable(option: str, path: str, error: OSError, otherwise: str) -> RequestError:
    return RequestError(option, f"{path} cannot be written: {error.strerror}", otherwise)


def _deepest_existing(path: str) -> str:
    """``path`` or the nearest folder above it that exists; a broken link does. Raises ``OSError``."""
    while True:
        try:
            os.lstat(path)
            return path
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


def is_file(path: str) -> bool:
    """Whether a file exists; raises ``OSError`` if that cannot be known."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def unreadable(option: str, path: str, error: OSError) -> RequestError:
    problem = f"{error.filename or path} cannot be read: {error.strerror}"
    remedy = "fix its permissions" if isinstance(error, PermissionError) else "restore it"
    return RequestError(option, problem, f"{remedy}, or give another one")
