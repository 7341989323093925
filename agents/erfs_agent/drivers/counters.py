"""What does an adapter itself count as wrong?

Rule 1: read only; what a counter's rise means is not decided here.
Rule 2: an adapter that has no such counters, or none of our names, has none.

Drivers name their own counters (`ethtool -S`); there is no standard. Those whose names say error, discard, symbol,
FEC, CRC, link down or out of buffer are read, for they tell of a bad cable before the carrier goes.
"""

import array
import fcntl
import re
import socket
import struct
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GSSET_INFO, _ETHTOOL_GSTRINGS, _ETHTOOL_GSTATS = 0x37, 0x1B, 0x1D
_ETH_SS_STATS: Final = 1
_NAME_LENGTH: Final = 32
WANTED: Final = re.compile(r"err|discard|symbol|fec|crc|link_down|out_of_buf|no_buf|drop", re.IGNORECASE)


class NicCounters:
    """The adapters of the namespace this thread is in when it is made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def read(self, device: str) -> dict[str, int]:
        """Return the adapter's own counters of errors and losses as ``nic.NAME``; empty where there are none."""
        try:
            names = self._names(device)
            values = self._values(device, len(names)) if names else []
        except OSError:
            # No such adapter any more, or its driver has no counters of its own.
            return {}
        return {f"nic.{name}": value for name, value in zip(names, values, strict=False) if WANTED.search(name)}

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _names(self, device: str) -> list[str]:
        info = self._call(device, struct.pack("=IIQI", _ETHTOOL_GSSET_INFO, 0, 1 << _ETH_SS_STATS, 0))
        _, _, mask, count = struct.unpack_from("=IIQI", info)
        if not mask or not count:
            return []
        head = struct.pack("=III", _ETHTOOL_GSTRINGS, _ETH_SS_STATS, count)
        found = self._call(device, head + bytes(count * _NAME_LENGTH))
        names = (found[12 + index * _NAME_LENGTH :][:_NAME_LENGTH].partition(b"\0")[0] for index in range(count))
        return [name.decode(errors="replace") for name in names]

    def _values(self, device: str, count: int) -> list[int]:
        found = self._call(device, struct.pack("=II", _ETHTOOL_GSTATS, count) + bytes(8 * count))
        return list(struct.unpack_from(f"={count}Q", found, 8))

    def _call(self, device: str, request: bytes) -> bytes:
        buffer = array.array("B", request)
        address, _ = buffer.buffer_info()
        fcntl.ioctl(self._socket, _SIOCETHTOOL, struct.pack("16sP16x", device.encode(), address))
        return buffer.tobytes()
