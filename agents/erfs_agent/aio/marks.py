"""When did it happen, and when is that written down? Stamped at once; written when the work it tells of is done.

Rule 1: a mark costs the work it belongs to an append, never the rendering and writing of a line.
Rule 2: lines keep the order of the marks, and an end of the process that runs `flush` loses none.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from erfs.ports import Mark

OnMark = Callable[[Mark, int], None]
"""Told of a mark and of the instant it was made at: nanoseconds of the machine's monotonic clock."""

_log = structlog.get_logger("erfs_agent")
_ALARMS: Final = frozenset({"change_failed", "fact_refused"})
# Where many agents share few cores, the lines of one would hold up the repairs of another, some milliseconds later: time for them all.
_WAIT_S: Final = 0.2


def log_mark(mark: Mark, at_ns: int) -> None:
    """Tell the log what happened, now; what an operator should look at is a warning."""
    is_alarm = mark.event in _ALARMS or bool(mark.fields.get("alarm"))
    (_log.warning if is_alarm else _log.info)(mark.event, **mark.fields, at_ns=at_ns)


class MarkLog:
    """
    Collects marks and writes them a little later, in the running loop.

    Args:
        write: Called with each mark and its instant, in order.
    """

    def __init__(self, write: OnMark = log_mark) -> None:
        self._write = write
        self._waiting: list[tuple[Mark, int]] = []

    def __call__(self, mark: Mark, at_ns: int) -> None:
        """Take a mark."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_WAIT_S, self.flush)
        self._waiting.append((mark, at_ns))

    def flush(self) -> None:
        """Write what waits; whoever ends the process calls it last."""
        waiting, self._waiting = self._waiting, []
        for mark, at_ns in waiting:
            self._write(mark, at_ns)
