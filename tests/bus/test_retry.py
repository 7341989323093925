"""Back-off: how long between attempts, how many, and nothing of the real clock."""

import random

import pytest

from erfs.aio.retry import backoff_ns, retrying
from erfs.units import MS, SECOND


def test_the_wait_doubles_up_to_its_maximum_and_lies_in_the_upper_half() -> None:
    rng = random.Random(1)
    for attempt, ceiling_ns in ((1, 50), (2, 100), (3, 200), (7, 3_200), (8, 5_000), (1_000_000, 5_000)):
        waits = [backoff_ns(attempt, initial_ns=50 * MS, max_ns=5 * SECOND, rng=rng) for _ in range(200)]
        assert ceiling_ns * MS // 2 <= min(waits) < max(waits) <= ceiling_ns * MS


class Door:
    """Opens at the *opens_at*th knock."""

    def __init__(self, opens_at: int) -> None:
        self.opens_at = opens_at
        self.knock_count = 0
        self.slept_s: list[float] = []
        self.told: list[tuple[int, int, str]] = []

    async def knock(self) -> str:
        self.knock_count += 1
        if self.knock_count < self.opens_at:
            raise ConnectionError(f"knock {self.knock_count}")
        return "open"

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)

    async def tried(self, attempts: int | None) -> str:
        retrier = retrying(
            ConnectionError,
            attempts=attempts,
            initial_ns=50 * MS,
            max_ns=SECOND,
            rng=random.Random(1),
            sleep=self.sleep,
            on_retry=lambda attempt, wait_ns, error: self.told.append((attempt, wait_ns, str(error))),
        )
        return await retrier(self.knock)


async def test_attempts_go_on_until_one_succeeds_and_each_failure_is_told() -> None:
    door = Door(opens_at=4)
    assert await door.tried(None) == "open"
    assert [(attempt, error) for attempt, _, error in door.told] == [(1, "knock 1"), (2, "knock 2"), (3, "knock 3")]
    assert [round(seconds * SECOND) for seconds in door.slept_s] == [wait_ns for _, wait_ns, _ in door.told]


async def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    door = Door(opens_at=9)
    with pytest.raises(ConnectionError, match="knock 3"):
        await door.tried(3)


async def test_an_error_not_worth_another_attempt_is_raised_at_once() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    door = Door(opens_at=1)
    door.knock = broken
    with pytest.raises(ZeroDivisionError):
        await door.tried(None)
    assert door.slept_s == []


async def test_the_same_seed_waits_the_same() -> None:
    one, other = Door(opens_at=6), Door(opens_at=6)
    await one.tried(None)
    await other.tried(None)
    assert one.slept_s == other.slept_s
