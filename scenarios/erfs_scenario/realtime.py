"""What every run in real time does alike: where it logs, how it is ended, and how a plan moves behind a start that took its time.

Rule 1: a run is ended by Ctrl-C and SIGTERM alike, in order, and its caller hears of one error: the one that went wrong first.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path

from erfs.aio.logs import set_up_logs
from erfs.aio.loop import loop_factory
from erfs.errors import first_error
from erfs.faults import Fault
from erfs.units import SECOND
from erfs_scenario.plan import Plan


def run_to_the_end(run: Coroutine[None, None, None]) -> None:
    """
    Run *run* in an event loop of its own.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came.
        BaseException: what *run* raised; of a group of errors, the one that went wrong first.
    """
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_until_terminated(run))
    except BaseExceptionGroup as group:
        raise first_error(group) from group


async def _until_terminated(run: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(run)
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        await task
    except asyncio.CancelledError:
        if is_terminated:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


def call_after(delay_ns: int, action: Callable[[], None]) -> None:
    """Call *action* in *delay_ns*, if the event loop still runs then."""
    asyncio.get_running_loop().call_later(delay_ns / SECOND, action)


@contextlib.contextmanager
def logs_in(path: Path) -> Iterator[None]:
    """Let everything in this process log to *path*: the terminal belongs to the user."""
    root = logging.getLogger()
    before = root.handlers, root.level
    with path.open("w", encoding="utf-8") as file:
        set_up_logs("info", file)
        try:
            yield
        finally:
            root.handlers, root.level = before


def delayed(plan: Plan, by_ns: int) -> Plan:
    """Return *plan* with everything from the start of the measurement on happening *by_ns* later."""
    return replace(
        plan,
        measure_from_ns=plan.measure_from_ns + by_ns,
        duration_ns=plan.duration_ns + by_ns,
        faults=tuple(
            replace(fault, at_ns=fault.at_ns + by_ns, end_at_ns=fault.end_at_ns + by_ns) for fault in plan.faults
        ),
    )


def occasions(plan: Plan) -> list[tuple[int, bool, Fault]]:
    """
    Return what happens when: (at_ns, whether the fault begins, the fault), in order of time, up to the end of the run.

    Of one instant what ends comes first, so that what begins then finds it mended.
    """
    found = [(fault.end_at_ns, False, fault) for fault in plan.faults]
    found += [(fault.at_ns, True, fault) for fault in plan.faults]
    found.sort(key=lambda item: (item[0], item[1], item[2].id))
    return [item for item in found if item[0] <= plan.duration_ns]
