"""The order of simulated time."""

import random

import pytest

from erfs.errors import Bug
from erfs_scenario.event_queue import EventQueue


def test_events_run_by_instant_and_those_of_one_instant_as_they_were_asked_for() -> None:
    queue = EventQueue()
    seen: list[tuple[int, int]] = []
    rng = random.Random(7)
    asked = [(rng.randrange(5), index) for index in range(200)]
    for at_ns, index in asked:
        queue.at(at_ns, lambda index=index: seen.append((queue.now_ns, index)))  # type: ignore[misc]

    queue.run(10, instant_ended=lambda _: None)

    assert seen == sorted(asked)


def test_an_instant_ends_once_after_everything_that_was_asked_for_in_it() -> None:
    queue = EventQueue()
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        queue.after(0, lambda: seen.append("asked for now"))
        queue.after(3, lambda: seen.append("later"))

    queue.at(5, first)
    queue.run(100, instant_ended=lambda now_ns: seen.append(f"end of {now_ns}"))

    assert seen == ["first", "asked for now", "end of 5", "later", "end of 8"]
    assert queue.now_ns == 100


def test_events_after_the_end_stay_in_the_queue() -> None:
    queue = EventQueue()
    seen: list[int] = []
    queue.at(10, lambda: seen.append(10))
    queue.at(11, lambda: seen.append(11))

    queue.run(10, instant_ended=lambda _: None)

    assert (seen, len(queue), queue.now_ns) == ([10], 1, 10)


def test_nothing_happens_in_the_past() -> None:
    queue = EventQueue()
    queue.run(10, instant_ended=lambda _: None)

    with pytest.raises(Bug, match="1 ns before now"):
        queue.at(9, lambda: None)
