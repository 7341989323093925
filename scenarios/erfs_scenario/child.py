"""Start a program that cannot outlive the process which asked for it: ``python -m erfs_scenario.child PARENT PROGRAM …``.

Rule 1: the kernel ends the program when the asking process ends, however it ends (prctl(2), PR_SET_PDEATHSIG); the
setting survives the exec, so nothing of ours has to be alive for it.
Rule 2: imports nothing of ERFS, so that starting a child costs one exec more and no second start-up.

Where the kernel has no such signal (not Linux) the program is started all the same and ended by its parent's cleanup.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Bind this process to its parent, then become the program. Exits 127 if the parent is gone already."""
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    # The parent may have died before the line above; then no signal will come.
    if os.getppid() != parent:
        sys.exit(127)
    os.execvp(program[0], program)  # noqa: S606 -- no shell is meant


if __name__ == "__main__":
    main(sys.argv[1:])
