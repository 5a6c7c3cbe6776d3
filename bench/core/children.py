"""Children of this process: those that are left are ended, a question is answered in one that may come to harm, and
work is done in one beside what is done here."""

import json
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from os import _exit  # as it is before a file of somebody's replaces it
from types import ModuleType
from typing import IO, TypeVar, cast

from bench.core.channel import adopt_orphans, die_with_parent
from bench.core.control_group import available_memory_bytes
from bench.core.errors import RequestError
from bench.core.files import Json, parse_json

T = TypeVar("T")

KILL_PATIENCE_S = 30.0
END_PATIENCE_S = 1.0
LAUNCHER = "BENCH_LAUNCHER"  # in the environment of ranks that a launcher starts: its PID
MOST_BYTES = 1 << 20  # of an answer
UNREADABLE = "gave an unreadable answer"
INITIAL_NAMESPACE = "pid:[4026531836]"  # the host's own; the kernel gives it this number (PROC_PID_INIT_INO)


class Unanswered(Exception):
    """A question that a child process was asked has no answer. Says what that process did: ``was ended by SIGSEGV``."""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def state_and_parent(pid: int) -> tuple[str | None, int | None]:
    """The state as the kernel names it, and the parent's PID; None where there is no such process."""
    fields = _stat(pid)
    return (fields[0], int(fields[1])) if fields else (None, None)


def born(pid: int) -> int | None:
    """When a process started, in ticks: a later process of the same PID has another."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def nested() -> bool:
    """Whether this process is in a PID namespace that is not the host's, as in a container without ``--pid=host``: PIDs
    here are then not those that the driver knows."""
    try:
        return os.readlink("/proc/self/ns/pid") != INITIAL_NAMESPACE
    except OSError:
        return True


def become_launcher(parent: int, environment: Mapping[str, str]) -> None:
    """Prepare a fork to execute a launcher: it dies with its parent, and its ranks know it by its PID."""
    die_with_parent(parent)
    os.environ.clear()
    os.environ.update({**environment, LAUNCHER: str(os.getpid())})


def die_with_launcher() -> None:
    """Have the kernel kill this rank when its parent ends. Where its launcher has ended already, the parent is whoever
    adopted the rank: it ends at once."""
    die_with_parent(os.getppid())
    if LAUNCHER in os.environ and state_and_parent(int(os.environ[LAUNCHER]))[0] in (None, "Z"):
        _exit(1)


def children() -> list[int]:
    """The children of this process, those that have ended and were not waited for among them."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if state_and_parent(pid)[1] == os.getpid()]


def end_children(but: Collection[int] = ()) -> list[int]:
    """End the children of this process ``but`` some, and what becomes its child when they end, if it adopts orphans.

    Returns those that no signal ended within :data:`KILL_PATIENCE_S`.
    """
    deadline_s = time.monotonic() + KILL_PATIENCE_S
    while strays := [pid for pid in children() if pid not in but]:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.01)
    return strays


def fork(work: Callable[[IO[bytes]], object]) -> tuple[int, IO[bytes]]:
    """Begin ``work`` in a fork of this process: its PID, and the other end of the pipe that it is given. Of what it
    raises nothing is shown. Raises ``OSError`` where no process can be made."""
    parent = os.getpid()
    ours, theirs = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                with os.fdopen(theirs, "wb") as pipe:
                    work(pipe)
            finally:
                _exit(0)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return pid, os.fdopen(ours, "rb", 0)


def beside(work: Callable[[], T], form: ModuleType = pickle) -> Callable[[], T]:
    """Begin ``work`` in a fork; returns what waits for its result, once here and once in each later fork. ``form``:
    what takes the result, pickle, or marshal for many JSON values. It is done where it is waited for on a single core,
    and where no process can be made or the fork fails."""
    if len(os.sched_getaffinity(0)) == 1:
        return work
    try:
        memory = os.memfd_create("result")
        pid, pipe = fork(lambda _: os.fdopen(memory, "wb", 0).write(form.dumps(work())))
    except OSError:
        return work

    def result() -> T:
        with pipe:
            pipe.read()  # to its end, which is that of the fork
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        sent = os.pread(memory, os.fstat(memory).st_size, 0)
        os.close(memory)
        try:
            return cast(T, form.loads(sent))
        except (EOFError, ValueError, pickle.UnpicklingError):
            return work()

    return result


def ask(question: Callable[[], T], limit_s: float) -> T:
    """``question()``, a JSON value, answered in a fork of this process, so that nothing that it does is done here. The
    fork is ended with everything that it started, and may take half of the memory that is free.

    Raises :class:`Unanswered`, and :class:`RequestError` if ``question`` does.
    """
    adopt_orphans()
    others = children()
    pid, pipe = fork(partial(_answer, question))
    try:
        with pipe:
            answer = _heard(pipe, pid, limit_s)
    finally:
        end_children(others)
    match answer:
        case {"value": value}:
            return cast(T, value)
        case {"refused": [str(option), str(problem), str(remedy)]}:
            raise RequestError(option, problem, remedy)
        case {"raised": str(what)}:
            raise Unanswered(f"raised {what}")
        case _:
            raise Unanswered(UNREADABLE)


def _heard(pipe: IO[bytes], pid: int, limit_s: float) -> Json:
    """The line of JSON that a child sends, which may send anything else as well. Raises :class:`Unanswered`."""
    deadline_s = time.monotonic() + limit_s
    poll = select.poll()
    poll.register(pipe)
    heard = b""
    while b"\n" not in heard:
        if not poll.poll(1000 * max(0.0, deadline_s - time.monotonic())):
            raise Unanswered(f"was not done after {limit_s:g} s")
        piece = os.read(pipe.fileno(), MOST_BYTES)
        heard += piece
        if not piece:
            raise Unanswered(_end_of(pid))
        if len(heard) > MOST_BYTES:
            raise Unanswered(f"answered with more than {MOST_BYTES:,} bytes")
    try:
        return parse_json(heard.partition(b"\n")[0])
    except ValueError as error:
        raise Unanswered(UNREADABLE) from error


def _end_of(pid: int) -> str:
    """How a child ended that will not answer any more, unless it has only closed the pipe for its answer."""
    deadline_s = time.monotonic() + END_PATIENCE_S
    while (end := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() > deadline_s:
            return "closed the pipe for its answer"
        time.sleep(0.01)
    if end.si_code == os.CLD_EXITED:
        return f"left with exit status {end.si_status}"
    memory = ", as where memory runs out" if end.si_status == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(end.si_status).name}{memory}"


def _answer(question: Callable[[], object], pipe: IO[bytes]) -> None:
    """The child's part."""
    os.setsid()  # Ctrl-C is for the parent, which then ends it
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open("/proc/self/statm", encoding="ascii") as file:  # what it only reads, as libraries, does not count
        taken = int(file.read().split()[5]) * resource.getpagesize()
    most, (_, hard) = taken + available_memory_bytes() // 2, resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        answer = {"value": question()}
    except RequestError as error:
        answer = {"refused": [error.option, error.problem, error.remedy]}
    except BaseException as error:  # noqa: BLE001  # the parent hears of it
        answer = {"raised": type(error).__name__}
    try:
        line = json.dumps(answer)
    except (TypeError, ValueError, RecursionError) as error:
        line = json.dumps({"raised": f"{type(error).__name__}: {error}"})
    pipe.write(line.encode() + b"\n")
