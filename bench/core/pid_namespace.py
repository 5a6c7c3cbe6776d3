"""Whether PIDs here are those that the driver knows."""

import os

_INITIAL = "pid:[4026531836]"  # the host's own namespace; the kernel gives it this fixed number (PROC_PID_INIT_INO)


def nested() -> bool:
    """Whether this process is in a PID namespace that is not the host's, as in a container without ``--pid=host``."""
    try:
        return os.readlink("/proc/self/ns/pid") != _INITIAL
    except OSError:
        return True
