"""Marks on their way to the log: stamped by whoever makes them, written later, in order, all of them."""

import asyncio

import structlog

from erfs.ports import Mark
from erfs_agent.aio.marks import MarkLog, log_mark


async def test_nothing_is_written_while_the_work_goes_on_and_everything_soon_after_it() -> None:
    written: list[tuple[str, int]] = []
    done = asyncio.Event()

    def write(mark: Mark, at_ns: int) -> None:
        written.append((mark.event, at_ns))
        if mark.event == "change_acknowledged":
            done.set()

    marks = MarkLog(write)
    marks(Mark("fact_received"), 10)
    marks(Mark("change_acknowledged"), 20)
    assert written == []

    await asyncio.wait_for(done.wait(), 20)
    assert written == [("fact_received", 10), ("change_acknowledged", 20)]

    done.clear()
    marks(Mark("change_acknowledged"), 30)
    await asyncio.wait_for(done.wait(), 20)
    assert written[2:] == [("change_acknowledged", 30)]


async def test_whoever_ends_writes_what_waits_once() -> None:
    written: list[int] = []
    marks = MarkLog(lambda mark, at_ns: written.append(at_ns))
    for at_ns in (1, 2, 3):
        marks(Mark("port_down_detected"), at_ns)

    marks.flush()
    marks.flush()

    assert written == [1, 2, 3]


def test_a_line_holds_the_mark_and_its_instant_and_what_must_be_looked_at_is_a_warning() -> None:
    with structlog.testing.capture_logs() as lines:
        log_mark(Mark("change_acknowledged", {"change": 4}), 123)
        log_mark(Mark("change_failed", {"change": 5}), 124)
        log_mark(Mark("program_refused", {"alarm": True}), 125)

    assert lines == [
        {"event": "change_acknowledged", "change": 4, "at_ns": 123, "log_level": "info"},
        {"event": "change_failed", "change": 5, "at_ns": 124, "log_level": "warning"},
        {"event": "program_refused", "alarm": True, "at_ns": 125, "log_level": "warning"},
    ]
