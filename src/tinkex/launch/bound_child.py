"""`python -m tinkex.launch.bound_child PARENT_PID COMMAND...`: a command that ends with its parent.

The kernel kills it when the process that started it ends, also by kill -9. This is a program of
its own because code between fork and exec is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replaces this process by the command; the death signal survives exec."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the death signal was set
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606  # nosec B606 # the actor's own command


if __name__ == "__main__":
    main()
