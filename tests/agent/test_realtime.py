"""Running before ordinary processes: where it is permitted, and for how long."""

import os
from collections.abc import Iterator

import pytest

from erfs_agent.aio.realtime import be_realtime, ordinary


@pytest.fixture(autouse=True)
def _ordinary_again() -> Iterator[None]:
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def policy() -> int:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


def test_a_refusal_is_said_and_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    said = be_realtime(5)

    assert said is not None
    assert (said.event, said.fields["priority"]) == ("realtime_refused", 5)
    monkeypatch.undo()
    assert policy() == os.SCHED_OTHER


def test_what_takes_long_is_done_as_an_ordinary_process() -> None:
    if be_realtime(5) is not None:
        pytest.skip("the system does not permit it")
    with ordinary():
        assert policy() == os.SCHED_OTHER
    assert (policy(), os.sched_getparam(0).sched_priority) == (os.SCHED_FIFO, 5)


def test_an_ordinary_process_stays_one() -> None:
    with ordinary():
        assert policy() == os.SCHED_OTHER
    assert policy() == os.SCHED_OTHER
