"""The order of simulated time."""

import random

import pytest

from erfs.errors import Bug
from erfs_scenario.event_queue import EventQueue


class Silence:
    """A source that never has anything to do."""

    def next_event_ns(self) -> int | None:
        return None

    def advance(self, now_ns: int) -> None:
        pass


def test_events_run_by_instant_and_those_of_one_instant_as_they_were_asked_for() -> None:
    queue = EventQueue(Silence())
    seen: list[tuple[int, int]] = []
    rng = random.Random(7)
    asked = [(rng.randrange(5), index) for index in range(200)]
    for at_ns, index in asked:
        queue.at(at_ns, lambda index=index: seen.append((queue.now_ns, index)))  # type: ignore[misc]

    queue.run(10, instant_ended=lambda _: None)

    assert seen == sorted(asked)


def test_an_instant_ends_once_after_everything_that_was_asked_for_in_it() -> None:
    queue = EventQueue(Silence())
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
    queue = EventQueue(Silence())
    seen: list[int] = []
    queue.at(10, lambda: seen.append(10))
    queue.at(11, lambda: seen.append(11))

    queue.run(10, instant_ended=lambda _: None)

    assert (seen, len(queue), queue.now_ns) == ([10], 1, 10)


def test_nothing_happens_in_the_past() -> None:
    queue = EventQueue(Silence())
    queue.run(10, instant_ended=lambda _: None)

    with pytest.raises(Bug, match="1 ns before now"):
        queue.at(9, lambda: None)


class Bells:
    """A source that rings at given instants."""

    def __init__(self, instants: list[int], seen: list[str]) -> None:
        self.instants = instants
        self.seen = seen

    def next_event_ns(self) -> int | None:
        return self.instants[0] if self.instants else None

    def advance(self, now_ns: int) -> None:
        while self.instants and self.instants[0] <= now_ns:
            self.seen.append(f"bell {self.instants.pop(0)}")


def test_the_source_goes_first_in_an_instant_and_again_if_something_in_it_makes_it_due() -> None:
    seen: list[str] = []
    bells = Bells([5, 9], seen)
    queue = EventQueue(bells)

    def ring_again() -> None:
        seen.append("event")
        bells.instants.insert(0, 5)

    queue.at(5, ring_again)
    queue.run(20, instant_ended=lambda now_ns: seen.append(f"end of {now_ns}"))

    assert seen == ["bell 5", "event", "bell 5", "end of 5", "bell 9", "end of 9"]
