"""How sure is a figure? Intervals for shares, percentiles, sums over events and differences of pairs, or why there is none.

Rule 1: a figure that its sample cannot carry is refused with a reason and with how many events it would take, never guessed.
Rule 2: what is counted and resampled are whole events (a fault and all it did), never packets or flows: those of one event fail together.
Rule 3: chance is an argument, and drawn from a generator whose stream never changes, so a report is the same on every rerun.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import special

LEVEL: Final = 0.95
"""Confidence of every interval that a report shows."""

# At 150, 95 % intervals for the mean of a lognormal population (sigma 1) hold it in 91.9 % of 4,000 samples, at 200 in 92.7 %;
# of exponential ones, one long in ten and six in ten nothing, in 94 to 96 %. tests/scenario/test_statistics.py counts.
BOOTSTRAP_EVENTS_MIN: Final = 200
# With fewer unlike the rest, whether a resample has any of them is all that the spread tells of.
BOOTSTRAP_UNLIKE_MIN: Final = 10
RESAMPLES: Final = 1_000
# Resamples are made in pieces of about this many draws: 8 MB each.
_DRAWS_AT_ONCE: Final = 1_000_000

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Any]
"""From events along the last axis to one figure for each of the other axes' entries; `mean` is one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true figure lies with confidence *level*, both ends included, and by which method that is known."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no figure or no interval."""

    reason: str
    events_needed: int | None
    """How many events it would take; None where more of the same would not help."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Second minus first, over pairs of the same event under two treatments."""

    pairs: int
    smaller: int
    """Pairs in which the second is smaller."""
    equal: int
    larger: int
    median: Estimate | Refusal
    mean: Estimate | Refusal


def mean(events: Array) -> Any:
    """Return the mean over the last axis."""
    return events.mean(axis=-1)


def proportion_interval(successes: int, trials: int, level: float = LEVEL) -> Interval | Refusal:
    """
    Return the exact two-sided interval of the share that *successes* of *trials* independent trials are a sample of.

    Where none or all succeed, the method also names the one-sided bound that the rule of three gives (3 / trials at 95 %). The
    interval stays two-sided, as taking whichever bound suits the outcome would cover less than it says.

    Args:
        successes: From 0 to *trials*.
        trials: Independent events; with 0 there is nothing to say.
        level: Confidence, between 0 and 1.

    Returns:
        An interval within 0 and 1.

    Cost: O(1). Source: Clopper & Pearson 1934; Hanley & Lippman-Hand 1983, "If nothing goes wrong, is everything all right?".
    """
    assert 0 <= successes <= trials
    if not trials:
        return Refusal("no event to take a share of", 1)
    tail = (1 - level) / 2
    low = float(special.betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(special.betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    method = "Clopper-Pearson"
    if successes in (0, trials):
        bound = rule_of_three(trials, level)
        method += (
            f"; rule of three: one-sided, {f'at most {bound:.4g}' if not successes else f'at least {1 - bound:.4g}'}"
        )
    return Interval(low, high, level, method)


def rule_of_three(trials: int, level: float = LEVEL) -> float:
    """
    Return the one-sided upper bound of a failure share after *trials* events without any: 3 / trials at 95 %.

    Source: Hanley & Lippman-Hand 1983. It is -ln(1 - level) / trials, a little above the exact 1 - (1 - level)**(1 / trials).
    """
    assert trials > 0
    return min(1.0, -math.log(1 - level) / trials)


def events_to_tell(successes: int, trials: int, share: float, level: float = LEVEL) -> int | None:
    """
    Return about how many events it takes to tell the share seen from *share*, should it stay as it is; None if they are equal.

    By the normal approximation: a hint for planning, not a promise.
    """
    assert trials > 0
    seen = successes / trials
    if seen == share:
        return None
    quantile = float(special.ndtri((1 + level) / 2))
    return max(trials + 1, math.ceil(quantile**2 * share * (1 - share) / (seen - share) ** 2))


def percentile_events_min(share: float, level: float = LEVEL) -> int:
    """
    Return how many events the percentile *share* takes: with fewer, not even smallest and largest enclose it with confidence *level*.

    At 95 %: 6 for the median, 59 for p95, 299 for p99.
    """
    assert 0 < share < 1
    events = max(1, math.floor(math.log(1 - level) / math.log(max(share, 1 - share))))
    while 1 - share**events - (1 - share) ** events < level:
        events += 1
    return events


def percentile_interval(values: Sequence[float], share: float, level: float = LEVEL) -> Estimate | Refusal:
    """
    Return the percentile *share* of *values* with the interval between two of them that needs no assumption on how they spread.

    Args:
        values: One for each event; infinity for one that never came to an end within the run.
        share: 0.95 for p95; nearest rank: the smallest value with at least that share at or below it.
        level: Confidence.

    Returns:
        The fewest neighbouring values that enclose the percentile with at least *level*, or a refusal.

    Cost: O(n log n). Source: David & Nagaraja, Order Statistics, section 7.1 (binomial ranks).
    """
    needed = percentile_events_min(share, level)
    count = len(values)
    if count < needed:
        return Refusal(f"{_events(count)}, fewer than the {needed} that p{share * 100:g} takes", needed)
    ordered = sorted(values)
    # How many values lie below the percentile is binomial: it is between the values of ranks low and high (from 1) if that
    # many are at least low and at most high - 1.
    up_to = special.bdtr(np.arange(count + 1), count, share)
    lows = np.arange(1, count + 1)
    before = up_to[lows - 1]
    highs = np.searchsorted(up_to, before + level) + 1
    fits = highs <= count
    lows, highs, before = lows[fits], highs[fits], before[fits]
    # Of the shortest, the one whose two errors are most alike.
    unlike = np.abs(before - (1 - up_to[highs - 1]))
    best = np.lexsort((unlike, highs - lows))[0]
    low, high = int(lows[best]), int(highs[best])
    # A rounded product keeps 0.95 * 60 from becoming 58.
    rank = max(1, math.ceil(round(share * count, 9)))
    method = f"order statistics, ranks {low} and {high} of {count}"
    return Estimate(ordered[rank - 1], Interval(ordered[low - 1], ordered[high - 1], level, method))


def bootstrap_interval(
    events: Sequence[float], statistic: Statistic, rng: random.Random, level: float = LEVEL
) -> Estimate | Refusal:
    """
    Return *statistic* of *events* with the interval that resampling whole events gives.

    Args:
        events: One number for each event, such as the demand-time it cost.
        statistic: See `Statistic`; must not depend on how many events there are (a mean, not a sum).
        rng: Source of the resamples.
        level: Confidence.

    Returns:
        The estimate, or a refusal below the sizes where coverage is known to be between 92 and 97 % at 95 %. Populations with
        heavier tails than those tested, such as one event in a hundred that costs most, are covered less.

    Raises:
        ValueError: an event is not finite; what never ended has no mean.

    Cost: O(RESAMPLES * n). Source: Efron 1987, bias-corrected and accelerated (BCa).
    """
    values = np.asarray(events, dtype=np.float64)
    count = len(values)
    if not np.isfinite(values).all():
        raise ValueError("an event that never ended has no place in a mean: judge a percentile instead")
    if count < BOOTSTRAP_EVENTS_MIN:
        return Refusal(
            f"{_events(count)}, fewer than the {BOOTSTRAP_EVENTS_MIN} that resampling takes", BOOTSTRAP_EVENTS_MIN
        )
    unlike = count - int(np.unique(values, return_counts=True)[1].max())
    if unlike < BOOTSTRAP_UNLIKE_MIN:
        # As many more of the same kind as bring enough that differ.
        needed = -(-count * BOOTSTRAP_UNLIKE_MIN // unlike) if unlike else None
        return Refusal(
            f"{unlike} of {count} events differ from the rest, fewer than the {BOOTSTRAP_UNLIKE_MIN} that resampling takes",
            needed,
        )
    value = float(statistic(values))
    # The legacy generator on purpose: numpy promises that its stream never changes (NEP 19).
    draw = np.random.RandomState(rng.getrandbits(32))
    pieces = [
        statistic(values[draw.randint(0, count, (rows, count))])
        for rows in _pieces(RESAMPLES, max(1, _DRAWS_AT_ONCE // count))
    ]
    resampled = np.sort(np.concatenate(pieces))
    # Rounding must not tell equal figures apart: of resamples like the sample, half count as below.
    near = 1e-9 * max(abs(value), float(resampled[-1] - resampled[0]))
    share_below = (np.count_nonzero(resampled < value - near) + np.count_nonzero(resampled <= value + near)) / (
        2 * RESAMPLES
    )
    bias = float(special.ndtri(min(max(share_below, 0.5 / RESAMPLES), 1 - 0.5 / RESAMPLES)))
    left_out = _without_each(values, statistic)
    pulls = left_out.mean() - left_out
    spread = float((pulls**2).sum())
    acceleration = float((pulls**3).sum()) / (6 * spread**1.5) if spread else 0.0
    tail = (1 - level) / 2

    def end(share: float, to_rank: Callable[[float], int]) -> float:
        shifted = bias + float(special.ndtri(share))
        corrected = float(special.ndtr(bias + shifted / (1 - acceleration * shifted)))
        return float(resampled[min(max(to_rank(corrected * (RESAMPLES + 1)), 1), RESAMPLES) - 1])

    method = f"bootstrap over {count} events (BCa, {RESAMPLES} resamples)"
    return Estimate(value, Interval(end(tail, math.floor), end(1 - tail, math.ceil), level, method))


def paired_difference(
    first: Sequence[float], second: Sequence[float], rng: random.Random, level: float = LEVEL
) -> PairedDifference:
    """
    Return how the same events differ between two treatments: second minus first, pair by pair.

    Args:
        first: One value for each event; infinity where it never ended.
        second: The same events in the same order.
        rng: Source of the resamples for the mean.
        level: Confidence of each interval.

    Returns:
        Median and mean difference, each with an interval or a refusal, and how many pairs went which way.

    Raises:
        ValueError: a pair is infinite on both sides: it has no difference, leave it out and say so.

    Cost: O(RESAMPLES * n).
    """
    assert len(first) == len(second)
    differences = [after - before for before, after in zip(first, second, strict=True)]
    if any(math.isnan(one) for one in differences):
        raise ValueError("a pair that never ended on either side has no difference")
    endless = sum(math.isinf(one) for one in differences)
    return PairedDifference(
        pairs=len(differences),
        smaller=sum(one < 0 for one in differences),
        equal=sum(one == 0 for one in differences),
        larger=sum(one > 0 for one in differences),
        median=percentile_interval(differences, 0.5, level),
        mean=Refusal(f"{endless} of {len(differences)} pairs never ended on one side: they have no mean", None)
        if endless
        else bootstrap_interval(differences, mean, rng, level),
    )


def _without_each(values: Array, statistic: Statistic) -> Array:
    """Return the statistic with each event left out in turn."""
    count = len(values)
    found = []
    begin = 0
    for rows in _pieces(count, max(1, _DRAWS_AT_ONCE // count)):
        kept = np.arange(count - 1)
        # Row i skips event i: places from i on move up by one.
        places = kept + (kept >= np.arange(begin, begin + rows)[:, None])
        found.append(statistic(values[places]))
        begin += rows
    return np.concatenate(found)


def _pieces(total: int, size: int) -> list[int]:
    return [min(size, total - begin) for begin in range(0, total, size)]


def _events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"
