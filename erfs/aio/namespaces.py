"""How does a process make network namespaces, and open sockets in one without moving there?

Rule 1: the thread is back home when the call or the block ends, however it ends.
Rule 2: nothing is named: a namespace lives as long as a descriptor, a process or a socket of it does.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_HERE: Final = "/proc/thread-self/ns/net"


@contextmanager
def inside(namespace: Path | None) -> Iterator[None]:
    """
    Be in a network namespace meanwhile; None: stay. What is opened inside keeps to it afterwards.

    Only this thread moves; threads and processes started inside begin there.

    Raises:
        OSError: there is none at that path, or it may not be entered (CAP_SYS_ADMIN).
    """
    if namespace is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(_HERE).open("rb") as home, namespace.open("rb") as target:
        _checked(libc.setns(target.fileno(), _CLONE_NEWNET))
        try:
            yield
        finally:
            _checked(libc.setns(home.fileno(), _CLONE_NEWNET))


def new_namespace() -> int:
    """
    Make a network namespace; return a descriptor that keeps it alive, and that no program started later inherits.

    Raises:
        OSError: not permitted (CAP_SYS_ADMIN), or no room for another.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(_HERE).open("rb") as home:
        _checked(libc.unshare(_CLONE_NEWNET))
        try:
            return os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _checked(libc.setns(home.fileno(), _CLONE_NEWNET))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
