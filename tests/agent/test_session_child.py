"""The process of the sessions: what is said to it and by it, and what it does without."""

import subprocess
import sys
from pathlib import Path

import pytest

from erfs.ids import LinkId, NodeId
from erfs.ports import Mark
from erfs.units import MS
from erfs_agent.aio.session_child import (
    Line,
    Setup,
    Splitter,
    _End,
    decode_line,
    decode_setup,
    decode_timings,
    encode_line,
    encode_setup,
    encode_timings,
)
from erfs_agent.aio.sessions import Wire
from erfs_agent.probing import DownReason, SessionDown, SessionEnd, SessionTiming, SessionUp

LEAF, SPINE = NodeId("leaf1"), NodeId("spine ü\n1")
TIMING = SessionTiming(interval_ns=20 * MS, multiplier=4, slow_start_ns=300 * MS)


def test_a_setup_arrives_as_it_was_sent() -> None:
    setup = Setup(
        LEAF,
        (
            SessionEnd(_End("e1", LinkId("leaf1:e1|spine:1"), SPINE), TIMING),
            SessionEnd(_End("e2", LinkId("leaf1:e2|spine:2"), SPINE), SessionTiming()),
        ),
        {
            "e1": Wire(("::", 49784), ("ff02::1", 49784), "swp1", Path("/run/netns/leaf1")),
            "e2": Wire(("10.0.0.0", 1), ("10.0.0.1", 2)),
        },
        40,
        7,
    )
    line = encode_setup(setup)

    assert b"\n" not in line
    assert decode_setup(line) == setup


def test_new_intervals_arrive_as_they_were_sent() -> None:
    assert decode_timings(encode_timings({"e1": TIMING, "e2": SessionTiming()})) == {
        "e1": TIMING,
        "e2": SessionTiming(),
    }


@pytest.mark.parametrize(
    "said",
    [
        SessionUp("e1"),
        *(SessionDown("e1", reason) for reason in DownReason),
        Mark("session_up", {"port": "e1", "far_end": SPINE, "alarm": True}),
        Mark("realtime_refused"),
    ],
)
def test_what_it_says_arrives_with_its_instant(said: SessionUp | SessionDown | Mark) -> None:
    line = encode_line(Line(said, 1 << 60))

    assert b"\n" not in line
    assert decode_line(line) == Line(said, 1 << 60)


def test_lines_are_cut_wherever_reading_stopped() -> None:
    splitter = Splitter()

    assert [splitter.feed(part) for part in (b"on", b"e\ntwo\nthr", b"ee\n")] == [[], [b"one", b"two"], [b"three"]]


def test_it_loads_neither_pydantic_nor_a_log_nor_a_bus() -> None:
    """One runs on every node, and their start and memory add up on a machine that hosts a lab."""
    program = (
        "import sys, erfs_agent.aio.session_child\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    loaded = set(done.stdout.split())
    assert "erfs_agent" in loaded
    assert loaded & {"pydantic", "pydantic_core", "structlog", "rich", "aiomqtt", "tenacity"} == set()
