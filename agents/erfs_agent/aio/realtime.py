"""When does a process of ours run before all ordinary ones?

Rule 1: only for what is short: repairing, and watching neighbours. What takes long is done as an ordinary process.
Rule 2: where the system does not permit it, it is told once and nothing else changes.

Under load an ordinary process waits milliseconds for a core; a repair that does not wait for one takes two thirds of the time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from erfs.ports import Mark


def be_realtime(priority: int) -> Mark | None:
    """
    Run this thread before all ordinary processes (SCHED_FIFO); return what to say if the system does not permit it.

    Threads and processes started from here are ordinary again.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        return Mark("realtime_refused", {"priority": priority, "reason": str(error)})
    return None


@contextmanager
def ordinary() -> Iterator[None]:
    """Be an ordinary process meanwhile; nothing happens to one that is."""
    policy = os.sched_getscheduler(0)
    if policy & ~os.SCHED_RESET_ON_FORK != os.SCHED_FIFO:
        yield
        return
    param = os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, param)
