"""How a command that is asked to end by the system ends.

Rule 1: SIGTERM does what Ctrl-C does, so there is one way to stop, and what it leaves behind is the same.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end what is done inside as Ctrl-C does: with a KeyboardInterrupt, so that it is cleaned up and what is known is kept."""

    def interrupt(_number: int, _frame: "FrameType | None") -> None:
        # Whoever handles Ctrl-C now knows how to stop: an event loop has a handler of its own.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
