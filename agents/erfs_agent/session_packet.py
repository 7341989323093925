"""What is on the wire between the two ends of a session: the control packet of RFC 5880 section 4.1, byte for byte.

Rule 1: what a receiver must discard by the packet alone (RFC 5880 section 6.8.6) is refused here; what depends on the session is not known here.
Rule 2: authentication, demand mode, echo and multipoint are neither sent nor understood.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from erfs.errors import WireError

LENGTH: Final = 24
VERSION: Final = 1
_LAYOUT: Final = struct.Struct("!BBBBIIIII")
_POLL, _FINAL, _AUTHENTICATED, _DEMAND, _MULTIPOINT = 0x20, 0x10, 0x04, 0x02, 0x01
_U32_MAX: Final = 2**32 - 1


class SessionState(IntEnum):
    """The state of one end, with the number it has on the wire."""

    ADMIN_DOWN = 0
    DOWN = 1
    INIT = 2
    UP = 3


class Diagnostic(IntEnum):
    """Why a session was last not up. Codes that nobody here says (2, 4, 5, 6, 8) and unknown ones stay plain numbers."""

    NONE = 0
    DETECTION_TIME_EXPIRED = 1
    NEIGHBOUR_SIGNALLED_DOWN = 3
    ADMINISTRATIVELY_DOWN = 7


@dataclass(frozen=True, slots=True)
class ControlPacket:
    """One packet. Intervals are microseconds, as on the wire."""

    state: SessionState
    my_discriminator: int
    your_discriminator: int
    """0: the sender has not heard its neighbour."""
    multiplier: int
    desired_tx_us: int
    required_rx_us: int
    diagnostic: int = Diagnostic.NONE
    is_poll: bool = False
    is_final: bool = False


def encode(packet: ControlPacket) -> bytes:
    """Return the 24 bytes of *packet*."""
    flags = packet.state << 6 | (_POLL if packet.is_poll else 0) | (_FINAL if packet.is_final else 0)
    return _LAYOUT.pack(
        VERSION << 5 | packet.diagnostic,
        flags,
        packet.multiplier,
        LENGTH,
        packet.my_discriminator,
        packet.your_discriminator,
        min(packet.desired_tx_us, _U32_MAX),
        min(packet.required_rx_us, _U32_MAX),
        0,
    )


def decode(payload: bytes) -> ControlPacket:
    """
    Return the packet that *payload* begins with; bytes after the length it names are ignored, as the RFC has it.

    Raises:
        WireError: it must be discarded, and why.
    """
    if len(payload) < LENGTH:
        raise WireError(f"{len(payload)} bytes, a control packet has {LENGTH}")
    head, flags, multiplier, length, mine, yours, desired_tx_us, required_rx_us, _ = _LAYOUT.unpack_from(payload)
    if head >> 5 != VERSION:
        raise WireError(f"version {head >> 5}, expected {VERSION}")
    if not LENGTH <= length <= len(payload):
        raise WireError(f"names a length of {length} in {len(payload)} bytes")
    if multiplier == 0:
        raise WireError("multiplier 0")
    if flags & (_AUTHENTICATED | _DEMAND | _MULTIPOINT):
        raise WireError(f"flags 0x{flags & 0x3F:02x} ask for what is not spoken here")
    if flags & _POLL and flags & _FINAL:
        raise WireError("poll and final in one packet")
    if mine == 0:
        raise WireError("the sender's discriminator is 0")
    state = SessionState(flags >> 6)
    if yours == 0 and state not in (SessionState.DOWN, SessionState.ADMIN_DOWN):
        raise WireError(f"state {state.name.lower()} without the receiver's discriminator")
    return ControlPacket(
        state=state,
        my_discriminator=mine,
        your_discriminator=yours,
        multiplier=multiplier,
        desired_tx_us=desired_tx_us,
        required_rx_us=required_rx_us,
        diagnostic=head & 0x1F,
        is_poll=bool(flags & _POLL),
        is_final=bool(flags & _FINAL),
    )
