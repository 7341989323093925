"""How is the kernel asked, and how does it tell?

Rule 1: no decisions: requests in, answers out.
Rule 2: a request is answered before `ask` returns; the kernel does the work while it takes the request.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

from erfs_agent.drivers.netlink import (
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    RTM_DELROUTE,
    RTM_NEWROUTE,
    Answer,
    Raw,
    answer,
    split,
)

_SOL_NETLINK: Final = 270
_NETLINK_ADD_MEMBERSHIP, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK = 1, 10, 11, 12
_SO_ATTACH_FILTER: Final = 26
# In `struct nlmsghdr`, and in the `struct rtmsg` that follows it.
_KIND_OFFSET, _SENDER_OFFSET, _ROUTE_PROTOCOL_OFFSET = 4, 12, 21
# Classic BPF.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _COMPARE, _RETURN = 0x20, 0x28, 0x30, 0x15, 0x06
_BUFFER: Final = 1 << 16
# An acknowledgement takes about 800 bytes of the receive buffer, whose default is 208 KiB.
BATCH_MAX: Final = 64
_DUMP_ATTEMPTS: Final = 5
# A port that flaps while this process is held up must not lose events; what does not fit is read back anyway.
_EVENT_BUFFER: Final = 1 << 20
_ANSWER_WAIT: Final = 5.0


class RequestSocket:
    """For requests; opened in the namespace this thread is in."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
        self._socket.settimeout(_ANSWER_WAIT)
        self._socket.bind((0, 0))
        self.number: int = self._socket.getsockname()[0]
        """What the kernel calls this socket; notifications of changes made here carry it."""
        self._seq = 0

    def next_seq(self) -> int:
        """Return a number for one request."""
        self._seq = (self._seq + 1) & 0xFFFFFFFF
        return self._seq

    def ask(self, requests: Sequence[bytes]) -> list[Answer]:
        """
        Send *requests*, which all want an acknowledgement, and return the answers in their order.

        Raises:
            OSError: the kernel could not take them or did not answer.
        """
        answers: list[Answer] = []
        for start in range(0, len(requests), BATCH_MAX):
            batch = requests[start : start + BATCH_MAX]
            self._socket.send(b"".join(batch))
            expected = len(answers) + len(batch)
            while len(answers) < expected:
                answers += [answer(raw) for raw in split(self._socket.recv(_BUFFER)) if raw.kind == NLMSG_ERROR]
        return answers

    def get(self, request: bytes) -> Raw | None:
        """Return the one message that answers *request*, None if there is no such thing. Raises OSError."""
        self._socket.send(request)
        for raw in split(self._socket.recv(_BUFFER)):
            if raw.kind == NLMSG_ERROR:
                return None
            return raw
        return None

    def dump(self, request: bytes) -> list[Raw]:
        """
        Return all messages that answer *request*, from one state of the tables.

        Raises:
            OSError: refused, or the tables changed during every attempt.
        """
        for _ in range(_DUMP_ATTEMPTS):
            found, is_consistent = self._dump_once(request)
            if is_consistent:
                return found
        raise OSError(errno.EAGAIN, "the kernel's tables change faster than they can be read")

    def _dump_once(self, request: bytes) -> tuple[list[Raw], bool]:
        self._socket.send(request)
        found: list[Raw] = []
        is_consistent = True
        while True:
            for raw in split(self._socket.recv(_BUFFER)):
                is_consistent = is_consistent and not raw.flags & NLM_F_DUMP_INTR
                if raw.kind == NLMSG_DONE:
                    return found, is_consistent
                if raw.kind == NLMSG_ERROR:
                    said = answer(raw)
                    raise OSError(said.error, said.text or os.strerror(said.error))
                found.append(raw)

    def close(self) -> None:
        """Give it back."""
        self._socket.close()


class EventSocket:
    """
    For notifications of *groups*; opened in the namespace this thread is in.

    Not heard of are changes made by the socket *deaf_to*: a switch's hundreds of groups changed at once would fill the
    buffer with what we know. Of routes only removals of *protocol*'s are heard of: others may have a million.
    """

    def __init__(self, groups: Sequence[int], *, deaf_to: int, protocol: int) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _EVENT_BUFFER)
        self._attach(deaf_to, protocol)
        self._socket.bind((0, 0))
        for group in groups:
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)

    def _attach(self, deaf_to: int, protocol: int) -> None:
        """Let the kernel drop what is not to be heard of; a classic BPF program, which reads numbers big-endian."""
        sender = int.from_bytes(struct.pack("=I", deaf_to), "big")
        made, removed = (int.from_bytes(struct.pack("=H", kind), "big") for kind in (RTM_NEWROUTE, RTM_DELROUTE))
        # (operation, steps to skip if equal, if not, number)
        steps = (
            (_LOAD_WORD, 0, 0, _SENDER_OFFSET),
            (_COMPARE, 5, 0, sender),  # equal: drop
            (_LOAD_HALF, 0, 0, _KIND_OFFSET),
            (_COMPARE, 3, 0, made),  # equal: drop
            (_COMPARE, 0, 3, removed),  # no route at all: keep
            (_LOAD_BYTE, 0, 0, _ROUTE_PROTOCOL_OFFSET),
            (_COMPARE, 1, 0, protocol),  # equal: keep
            (_RETURN, 0, 0, 0),  # drop
            (_RETURN, 0, 0, 0xFFFFFFFF),  # keep
        )
        code = b"".join(struct.pack("=HBBI", *step) for step in steps)
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("@HP", len(steps), ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def fileno(self) -> int:
        """Return what an event loop watches."""
        return self._socket.fileno()

    def read(self) -> list[Raw] | None:
        """Return the messages of one datagram, an empty list if there is none now, None if some were lost."""
        try:
            return list(split(self._socket.recv(_BUFFER)))
        except BlockingIOError:
            return []
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return None
            raise

    def close(self) -> None:
        """Give it back."""
        self._socket.close()
