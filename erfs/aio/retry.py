"""How often and how fast to try again. The one place that knows tenacity.

Rule 1: stop by attempts or never: a limit in seconds would read the real clock.
Rule 2: chance and sleep are the caller's, so a test needs neither luck nor time.
"""

from collections.abc import Awaitable, Callable
from random import Random

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, stop_never

from erfs.units import SECOND

Sleep = Callable[[float], Awaitable[None]]


def backoff_ns(attempt: int, *, initial_ns: int, max_ns: int, rng: Random) -> int:
    """
    Return the wait after the failed *attempt* (from 1): doubling up to *max_ns*, drawn from its upper half.

    The lower half is left out so that a broker that comes back is not met by everybody at once, and nobody hammers it.
    """
    # 2 ** 40 times any initial wait is beyond every maximum; the bound keeps the number small after months of trying.
    ceiling_ns = min(max_ns, initial_ns << min(attempt - 1, 40))
    return ceiling_ns // 2 + rng.randrange(ceiling_ns // 2 + 1)


def retrying(
    *errors: type[Exception],
    attempts: int | None,
    initial_ns: int,
    max_ns: int,
    rng: Random,
    sleep: Sleep,
    on_retry: Callable[[int, int, BaseException | None], None],
) -> AsyncRetrying:
    """
    Return a retrier for an async function; ``await retrying(...)(function, *args)``.

    Args:
        errors: The errors worth another attempt; the last one is raised when *attempts* are used up.
        attempts: How often to try at all, or None for ever.
        initial_ns: The ceiling of the first wait.
        max_ns: The ceiling of every wait.
        rng: Where the jitter comes from.
        sleep: Awaited with seconds between attempts.
        on_retry: Called before each wait with the attempt's number, the wait in nanoseconds and the error.
    """

    def wait_s(state: RetryCallState) -> float:
        return backoff_ns(state.attempt_number, initial_ns=initial_ns, max_ns=max_ns, rng=rng) / SECOND

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        on_retry(state.attempt_number, round(state.upcoming_sleep * SECOND), error)

    return AsyncRetrying(
        retry=retry_if_exception_type(errors),
        stop=stop_never if attempts is None else stop_after_attempt(attempts),
        wait=wait_s,
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
