"""Which event loop a process of ours runs on.

Rule 1: uvloop where it is installed (the `fast` extra), asyncio's own elsewhere; nobody else chooses.
"""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what `asyncio.Runner` makes its loop with; None means its default."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
