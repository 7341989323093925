"""How does a process open sockets in another network namespace without moving there?

Rule 1: the thread is back home when the block ends, however it ends; nothing is awaited inside.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000


@contextmanager
def inside(namespace: Path | None) -> Iterator[None]:
    """
    Be in a network namespace meanwhile; None: stay. What is opened inside keeps to it afterwards.

    Raises:
        OSError: there is none at that path, or it may not be entered (CAP_SYS_ADMIN).
    """
    if namespace is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as home, namespace.open("rb") as target:
        _enter(libc, target.fileno())
        try:
            yield
        finally:
            _enter(libc, home.fileno())


def _enter(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
