"""Files of a run: replaced whole or not at all, described by their checksums, refused by name where they cannot be."""

import hashlib
import os
import stat
import tempfile
from typing import Any

from bench.core.errors import RequestError
from bench.core.files import open_regular
from bench.core.records import canonical_json
from bench.runs.document import Sealed

DIGEST = "digest.json"
RESTORE = "restore it, or measure again"

DIGEST_BYTES, TABLE_BYTES, FILE_BYTES = 8 << 20, 2 << 30, 16 << 30
"""The most that is read of a digest, a table, and anything else, such as a log or a trace, which nobody holds."""
PIECE_BYTES = 1 << 20


def utf8(text: str) -> bytes:
    """Text in UTF-8; bytes that are not, as in a label or a host's name, are escaped."""
    return text.encode("utf-8", "backslashreplace")


def write_atomically(path: str, content: bytes) -> None:
    """Replace ``path`` by ``content``: a reader, or a crash, sees the old file or the new one."""
    folder = os.path.dirname(path)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def describe_files(path: str) -> dict[str, Sealed]:
    """SHA-256 and row count (logs: lines) of every file of a run folder but ``run.json``; a pipe is no file."""
    return {
        name: Sealed(sha256=checksum(path, name), rows=_count_rows(path, name))
        for name in entries(path)
        if is_file(os.path.join(path, name))
    }


def entries(path: str) -> list[str]:
    """What lies in a run folder besides ``run.json`` and is not hidden; of folders those that are links."""
    found = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [os.path.relpath(os.path.join(folder, name), path) for name in sorted([*files, *links])]
    return [name for name in found if name != "run.json" and not os.path.basename(name).startswith(".")]


def checksum(path: str, name: str) -> str:
    """SHA-256 of a file of the run at ``path``. Raises ``OSError`` for what is no file in there, or is too large."""
    with open_regular(os.path.join(path, name), limit=limit_of(name), within=path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def limit_of(name: str) -> int:
    """How many bytes of a file of a run are read at most."""
    return DIGEST_BYTES if name == DIGEST else TABLE_BYTES if name.endswith(".parquet") else FILE_BYTES


def seal_of(document: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of run.json without ``seal``."""
    rest = {key: value for key, value in document.items() if key != "seal"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()


def sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count_rows(path: str, name: str) -> int:
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
    """Refuse an output folder that cannot be made or written, before anything runs."""
    if not out:
        raise RequestError("--out", "it is empty", "give a folder")
    folder = os.path.abspath(out)
    try:
        existing = _deepest_existing(folder)
        if not os.path.isdir(existing):
            raise RequestError("--out", f"{existing} is not a folder", "give a folder")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise RequestError("--out", f"{folder} cannot be written: {error.strerror}", "give another folder") from error


def check_file(option: str, file: str) -> None:
    """Refuse a file that :func:`write_atomically` could not replace, or a device or pipe that would be gone then."""
    remedy = "give a file in a folder that exists and can be written"
    path = os.path.abspath(file)
    folder = os.path.dirname(path)
    if not file or os.path.isdir(path) or not os.path.isdir(folder):
        raise RequestError(option, f"{file or repr(file)} cannot be a file", remedy)
    if os.path.exists(path) and not os.path.isfile(path):
        raise RequestError(option, f"{file} is a device or a pipe, and would be replaced by a file", remedy)
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass  # which is as it should be
    except OSError as error:
        raise RequestError(option, f"{file} cannot be a file: {error.strerror}", remedy) from error
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(option, f"{file} cannot be written: {error.strerror}", remedy) from error


def _deepest_existing(path: str) -> str:
    """``path`` or the nearest folder above it that exists; a broken link does."""
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
