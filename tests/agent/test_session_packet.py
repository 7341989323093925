"""The control packet on the wire: golden bytes by hand from RFC 5880 section 4.1, and what must be discarded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erfs.errors import WireError
from erfs_agent.session_packet import ControlPacket, Diagnostic, SessionState, decode, encode

# Version 1 and the diagnostic; state and flags; multiplier; length; discriminators; intervals in microseconds; no echo.
GOLDEN = {
    "20 40 03 18 11223344 00000000 000186a0 00002710 00000000": ControlPacket(
        SessionState.DOWN, 0x11223344, 0, 3, 100_000, 10_000
    ),
    "20 80 03 18 11223344 55667788 000186a0 00002710 00000000": ControlPacket(
        SessionState.INIT, 0x11223344, 0x55667788, 3, 100_000, 10_000
    ),
    "20 e0 03 18 11223344 55667788 00002710 00002710 00000000": ControlPacket(
        SessionState.UP, 0x11223344, 0x55667788, 3, 10_000, 10_000, is_poll=True
    ),
    "20 d0 05 18 11223344 55667788 00000bb8 00002710 00000000": ControlPacket(
        SessionState.UP, 0x11223344, 0x55667788, 5, 3_000, 10_000, is_final=True
    ),
    "21 40 03 18 11223344 00000000 000186a0 00002710 00000000": ControlPacket(
        SessionState.DOWN, 0x11223344, 0, 3, 100_000, 10_000, Diagnostic.DETECTION_TIME_EXPIRED
    ),
    "23 40 ff 18 11223344 55667788 ffffffff 00000000 00000000": ControlPacket(
        SessionState.DOWN, 0x11223344, 0x55667788, 255, 2**32 - 1, 0, Diagnostic.NEIGHBOUR_SIGNALLED_DOWN
    ),
    "27 00 03 18 11223344 55667788 000186a0 00002710 00000000": ControlPacket(
        SessionState.ADMIN_DOWN, 0x11223344, 0x55667788, 3, 100_000, 10_000, Diagnostic.ADMINISTRATIVELY_DOWN
    ),
}
UP = bytes.fromhex("20c0031811223344556677880000271000002710" + "00000000")


@pytest.mark.parametrize(("text", "packet"), GOLDEN.items())
def test_each_packet_has_its_bytes(text: str, packet: ControlPacket) -> None:
    assert encode(packet) == bytes.fromhex(text)
    assert decode(bytes.fromhex(text)) == packet


def changed(at: int, value: int) -> bytes:
    return UP[:at] + bytes([value]) + UP[at + 1 :]


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", "0 bytes, a control packet has 24"),
        (UP[:23], "23 bytes, a control packet has 24"),
        (changed(0, 0x00), "version 0, expected 1"),
        (changed(0, 0x40), "version 2, expected 1"),
        (changed(3, 23), "names a length of 23 in 24 bytes"),
        (changed(3, 25), "names a length of 25 in 24 bytes"),
        (changed(2, 0), "multiplier 0"),
        (changed(1, 0xC4), "flags 0x04 ask for what is not spoken here"),
        (changed(1, 0xC2), "flags 0x02 ask for what is not spoken here"),
        (changed(1, 0xC1), "flags 0x01 ask for what is not spoken here"),
        (changed(1, 0xF0), "poll and final in one packet"),
        (UP[:4] + bytes(4) + UP[8:], "the sender's discriminator is 0"),
        (UP[:8] + bytes(4) + UP[12:], "state up without the receiver's discriminator"),
        (changed(1, 0x80)[:8] + bytes(4) + UP[12:], "state init without the receiver's discriminator"),
    ],
)
def test_what_must_be_discarded_is_refused_with_its_reason(payload: bytes, told: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(payload)
    assert str(caught.value) == told


def test_bytes_after_the_packet_unknown_diagnostics_and_the_independence_flag_are_ignored() -> None:
    assert decode(changed(0, 0x3F)[:1] + bytes([0xC8]) + UP[2:] + b"trailer") == ControlPacket(
        SessionState.UP, 0x11223344, 0x55667788, 3, 10_000, 10_000, diagnostic=31
    )


@given(st.binary(max_size=40))
def test_no_bytes_break_the_decoder(payload: bytes) -> None:
    try:
        packet = decode(payload)
    except WireError:
        return
    assert decode(encode(packet)) == packet
