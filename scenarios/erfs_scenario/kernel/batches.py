"""Many datagrams by one system call: sendmmsg(2) and recvmmsg(2), which Python has not.

Rule 1: no decisions: bytes out, bytes and the kernel's own instants of arrival in.
Rule 2: all memory is laid out once; a call costs the call and the packets, nothing per packet in Python.
"""

import ctypes
import errno
import os
import socket
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Instants = NDArray[np.int64]

_SO_TIMESTAMPNS: Final = 35
_MSG_DONTWAIT: Final = 0x40
# A control message of one struct timespec: header of 16 bytes, then seconds and nanoseconds of 8 bytes each.
_CONTROL_SIZE: Final = 32
_SECOND: Final = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Header(ctypes.Structure):
    """struct msghdr; its padding at the end is part of it."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("iov", ctypes.POINTER(_Iovec)),
        ("iov_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = [("header", _Header), ("length", ctypes.c_uint)]


class Sender:
    """
    Sends one datagram to each of some addresses by one call.

    Args:
        sock: A datagram or raw socket.
        addresses: For each datagram where to, as raw ``sockaddr`` bytes (`raw_address`).
        size: Bytes of each datagram.
    """

    def __init__(self, sock: socket.socket, addresses: list[bytes], size: int) -> None:
        count = len(addresses)
        self._fd = sock.fileno()
        self._count = count
        self.payload: Bytes = np.zeros((count, size), dtype=np.uint8)
        """What is sent next, a row for each datagram; written to by the caller."""
        length = max(map(len, addresses))
        self._names = ctypes.create_string_buffer(
            b"".join(name.ljust(length, b"\0") for name in addresses), count * length
        )
        self._vectors = (_Iovec * count)()
        self._messages = (_Message * count)()
        for index, address in enumerate(addresses):
            self._vectors[index] = _Iovec(self.payload.ctypes.data + index * size, size)
            header = self._messages[index].header
            header.name = ctypes.addressof(self._names) + index * length
            header.name_length = len(address)
            header.iov = ctypes.pointer(self._vectors[index])
            header.iov_count = 1

    def send(self) -> int:
        """Send all. Return how many the kernel did not take: no buffer, no route, device down."""
        sent = refused = 0
        while sent + refused < self._count:
            start = sent + refused
            done = _libc.sendmmsg(
                self._fd,
                ctypes.byref(self._messages, start * ctypes.sizeof(_Message)),
                self._count - start,
                _MSG_DONTWAIT,
            )
            if done > 0:
                sent += done
            else:
                refused += 1
        return refused


class Arrivals(NamedTuple):
    """Datagrams: the first bytes of each, and when the kernel took it in (CLOCK_REALTIME, nanoseconds)."""

    payload: Bytes
    at_ns: Instants


class Receiver:
    """
    Takes in what has arrived at a datagram socket.

    Args:
        sock: Bound.
        size: Bytes to keep of each datagram.
        count_max: Datagrams a call.
    """

    def __init__(self, sock: socket.socket, size: int, count_max: int = 256) -> None:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._fd = sock.fileno()
        self._count = count_max
        self._payload = np.zeros((count_max, size), dtype=np.uint8)
        self._control = np.zeros((count_max, _CONTROL_SIZE), dtype=np.uint8)
        self._vectors = (_Iovec * count_max)()
        self._messages = (_Message * count_max)()
        for index in range(count_max):
            self._vectors[index] = _Iovec(self._payload.ctypes.data + index * size, size)
            header = self._messages[index].header
            header.iov = ctypes.pointer(self._vectors[index])
            header.iov_count = 1
            header.control = self._control.ctypes.data + index * _CONTROL_SIZE
        raw = np.frombuffer(memoryview(self._messages).cast("B"), dtype=np.uint8).reshape(
            count_max, ctypes.sizeof(_Message)
        )
        place = _Header.control_length.offset
        self._control_lengths = raw[:, place : place + 8].view(np.uint64)
        self._control_lengths[:] = _CONTROL_SIZE

    def receive(self) -> Arrivals:
        """
        Return what has arrived, without waiting.

        Raises:
            OSError: the socket is broken.
        """
        found: list[Arrivals] = []
        while True:
            done = _libc.recvmmsg(self._fd, self._messages, self._count, _MSG_DONTWAIT, None)
            if done < 0:
                number = ctypes.get_errno()
                if number not in (errno.EAGAIN, errno.EINTR):
                    raise OSError(number, os.strerror(number))
                break
            stamps = self._control[:done, 16:].copy().view(np.int64)
            found.append(Arrivals(self._payload[:done].copy(), stamps[:, 0] * _SECOND + stamps[:, 1]))
            # The kernel has written how much of it it used.
            self._control_lengths[:done] = _CONTROL_SIZE
            if done < self._count:
                break
        if not found:
            return Arrivals(self._payload[:0].copy(), np.zeros(0, dtype=np.int64))
        return Arrivals(
            np.concatenate([part.payload for part in found]), np.concatenate([part.at_ns for part in found])
        )


def raw_address(address: str, port: int) -> bytes:
    """Return the ``sockaddr`` of an IPv4 or IPv6 address."""
    if ":" in address:
        family = int(socket.AF_INET6).to_bytes(2, "little")
        return family + port.to_bytes(2, "big") + bytes(4) + socket.inet_pton(socket.AF_INET6, address) + bytes(4)
    family = int(socket.AF_INET).to_bytes(2, "little")
    return family + port.to_bytes(2, "big") + socket.inet_aton(address) + bytes(8)
