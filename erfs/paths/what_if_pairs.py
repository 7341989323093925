"""Which two failures at once are looked at, and how sure is a share counted among them?

Rule 1: what is drawn depends on the draw and the number of elements alone.
Rule 2: a share counted in a sample never goes without its interval; one counted over all pairs has none.
"""

from collections.abc import Callable
from math import exp, isqrt, lgamma, log, log1p
from typing import Final

# Up to so many pairs all are looked at when no sample is asked for: well under a minute on a fabric of a thousand switches.
PAIRS_ALL_MAX: Final = 100_000
SAMPLE_DEFAULT: Final = 10_000


def pair_count(elements: int) -> int:
    """Return how many pairs of different elements there are."""
    return elements * (elements - 1) // 2


def chosen_pairs(
    elements: int, sample: int | None, draw: Callable[[range, int], list[int]]
) -> tuple[list[tuple[int, int]], bool]:
    """
    Return pairs of different elements, smaller number first, in order, and whether these are all pairs.

    Args:
        elements: Numbered from 0.
        sample: How many to draw without repeating one; None draws only where there are more than `PAIRS_ALL_MAX`.
        draw: Draws so many different numbers from a range, such as `random.Random.sample`; asked at most once.
    """
    total = pair_count(elements)
    wanted = sample if sample is not None else total if total <= PAIRS_ALL_MAX else SAMPLE_DEFAULT
    if wanted >= total:
        return [_pair(number) for number in range(total)], True
    return [_pair(number) for number in sorted(draw(range(total), wanted))], False


def _pair(number: int) -> tuple[int, int]:
    """Return the pair of that *number*: (0, 1), (0, 2), (1, 2), (0, 3), …"""
    other = (1 + isqrt(1 + 8 * number)) // 2
    return number - other * (other - 1) // 2, other


def clopper_pearson(hits: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """
    Return the exact interval of a share of which *hits* of *trials* were seen, to 6 decimals.

    Cost: O(trials) per step of two bisections. Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    assert 0 <= hits <= trials
    assert trials > 0
    tail = (1 - confidence) / 2
    # The lower bound makes "at least hits" as rare as the tail, the upper bound "at most hits".
    low = 0.0 if hits == 0 else _bisected(lambda share: 1 - _at_most(hits - 1, trials, share) < tail)
    high = 1.0 if hits == trials else _bisected(lambda share: _at_most(hits, trials, share) > tail)
    return round(low, 6), round(high, 6)


def _bisected(is_below: Callable[[float], bool]) -> float:
    """Return where *is_below* turns from true to false between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(40):  # to 1e-12
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(hits: int, trials: int, share: float) -> float:
    """Return how likely a binomial count is at most *hits*."""
    if share in (0.0, 1.0):
        return 1.0 if share == 0.0 or hits >= trials else 0.0
    here = lgamma(trials + 1)
    yes, no = log(share), log1p(-share)
    return sum(
        exp(here - lgamma(count + 1) - lgamma(trials - count + 1) + count * yes + (trials - count) * no)
        for count in range(hits + 1)
    )
