"""Draw in a second process, beside this one, what takes seconds where a run has millions of samples.

The process is a fork, so that it has every table without a copy. It hands back bytes and ends. Whatever keeps it from
doing so (it is killed, it hangs, there is no memory for it), the work is done here instead, only later.
"""

import ctypes
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

Drawn = TypeVar("Drawn")

PATIENCE_S = 300.0
"""After which a process that says nothing is taken for one that hangs."""


def give_back() -> None:
    """Return to the system what was freed, since two processes are to share what there is."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl and others give back by themselves
    if trim is not None:
        trim(0)


class Aside(Generic[Drawn]):
    """Work that was begun in a process of its own; ``result`` waits for it. It is called once."""

    def __init__(self, work: Callable[[], Drawn]) -> None:
        self._work = work
        give_back()
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_do, args=(work, sender), daemon=True)
        with suppress(OSError):  # there is no room for a process: ``result`` finds the pipe closed
            self._process.start()
        sender.close()

    def result(self) -> Drawn:
        """What the work came to, or what it comes to here where the process did not tell."""
        try:
            if self._receiver.poll(PATIENCE_S):
                found: Drawn = self._receiver.recv()
                return found
        except (EOFError, OSError):
            pass  # it died, and said nothing
        finally:
            self._receiver.close()
            if self._process.pid is not None:
                self._process.kill()
                self._process.join()
        return self._work()


def _do(work: Callable[[], Drawn], sender: Connection) -> None:
    sender.send(work())
