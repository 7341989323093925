"""Intervals keep their word: how often they hold the truth is counted over many samples of which the truth is known."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from erfs.paths.what_if_pairs import clopper_pearson
from erfs_scenario.statistics import (
    BOOTSTRAP_EVENTS_MIN,
    BOOTSTRAP_UNLIKE_MIN,
    Array,
    Estimate,
    Interval,
    PairedDifference,
    Refusal,
    _without_each,
    bootstrap_interval,
    events_to_tell,
    mean,
    paired_difference,
    percentile_events_min,
    percentile_interval,
    proportion_interval,
    rule_of_three,
)

SAMPLES = 2_000
Draw = Callable[[np.random.RandomState, int], Array]


def exponential(draw: np.random.RandomState, count: int) -> Array:
    return draw.exponential(1.0, count)


def lognormal(draw: np.random.RandomState, count: int) -> Array:
    return draw.lognormal(0.0, 1.0, count)


def heavy(draw: np.random.RandomState, count: int) -> Array:
    return draw.lognormal(0.0, 2.0, count)


def one_long_in_ten(draw: np.random.RandomState, count: int) -> Array:
    """Recoveries of some milliseconds, and some that wait for a session's hold time."""
    return np.where(draw.random_sample(count) < 0.1, draw.uniform(20, 40, count), draw.uniform(0.5, 3, count))


def six_in_ten_cost_nothing(draw: np.random.RandomState, count: int) -> Array:
    return np.where(draw.random_sample(count) < 0.6, 0.0, draw.exponential(1.0, count))


def coverage(draw_sample: Draw, truth: float, count: int, interval_of: Callable[[Array], Interval]) -> float:
    draw = np.random.RandomState(20)
    held = 0
    for _ in range(SAMPLES):
        interval = interval_of(draw_sample(draw, count))
        held += interval.low <= truth <= interval.high
    return held / SAMPLES


def interval(found: Estimate | Refusal) -> Interval:
    assert isinstance(found, Estimate)
    return found.interval


@pytest.mark.parametrize("trials", [1, 10, 59, 300])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.5, 0.95, 0.999, 1.0])
def test_nominal_95_percent_intervals_of_a_share_hold_it_in_at_least_94(share: float, trials: int) -> None:
    successes = np.random.RandomState(10).binomial(trials, share, SAMPLES)
    of = [proportion_interval(count, trials) for count in range(trials + 1)]
    held = sum(
        one.low <= share <= one.high for one in (of[int(count)] for count in successes) if isinstance(one, Interval)
    )

    assert held / SAMPLES >= 0.94


@pytest.mark.parametrize(
    ("share", "count"), [(0.5, 6), (0.5, 40), (0.95, 59), (0.95, 60), (0.95, 200), (0.99, 299), (0.99, 1_000)]
)
def test_nominal_95_percent_intervals_of_a_percentile_hold_it_in_at_least_94(share: float, count: int) -> None:
    truth = -math.log(1 - share)

    held = coverage(exponential, truth, count, lambda values: interval(percentile_interval(values.tolist(), share)))

    assert held >= 0.94


@pytest.mark.parametrize(
    ("population", "truth"),
    [
        (exponential, 1.0),
        (lognormal, math.exp(0.5)),
        (one_long_in_ten, 0.1 * 30 + 0.9 * 1.75),
        (six_in_ten_cost_nothing, 0.4),
    ],
)
def test_bootstrap_intervals_hold_the_mean_in_92_to_97_percent_at_the_smallest_size_allowed(
    population: Draw, truth: float
) -> None:
    rng = random.Random(5)

    held = coverage(
        population,
        truth,
        BOOTSTRAP_EVENTS_MIN,
        lambda values: interval(bootstrap_interval(values.tolist(), mean, rng)),
    )

    assert 0.92 <= held <= 0.97


def test_with_a_tenth_of_that_size_bootstrap_intervals_would_not_keep_their_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the refusal is for."""
    monkeypatch.setattr("erfs_scenario.statistics.BOOTSTRAP_EVENTS_MIN", 20)
    rng = random.Random(5)

    held = coverage(
        lognormal, math.exp(0.5), 20, lambda values: interval(bootstrap_interval(values.tolist(), mean, rng))
    )

    assert held < 0.92


def test_percentiles_are_refused_below_the_sample_they_take() -> None:
    takes = {share: percentile_events_min(share) for share in (0.5, 0.95, 0.99, 0.999)}
    assert takes == {0.5: 6, 0.95: 59, 0.99: 299, 0.999: 2_995}
    for share, needed in takes.items():
        assert percentile_interval(range(needed - 1), share) == Refusal(
            f"{needed - 1} events, fewer than the {needed} that p{share * 100:g} takes", needed
        )
        assert isinstance(percentile_interval(range(needed), share), Estimate)


def test_more_confidence_takes_more_events() -> None:
    assert percentile_events_min(0.95, 0.99) == 90
    assert percentile_events_min(0.05) == 59, "low percentiles as many as high ones"


def test_a_percentile_is_a_value_of_the_sample_between_two_others() -> None:
    found = percentile_interval([float(value) for value in range(1, 61)], 0.95)

    assert found == Estimate(57.0, Interval(52.0, 60.0, 0.95, "order statistics, ranks 52 and 60 of 60"))


def test_events_that_never_ended_are_slower_than_all_that_did() -> None:
    found = percentile_interval([1.0] * 95 + [math.inf] * 5, 0.95)

    assert found == Estimate(1.0, Interval(1.0, math.inf, 0.95, "order statistics, ranks 91 and 100 of 100"))


def test_no_failure_is_told_by_the_rule_of_three() -> None:
    found = proportion_interval(0, 300)

    assert isinstance(found, Interval)
    assert (found.low, round(found.high, 6)) == (0.0, 0.012221)
    assert found.method == "Clopper-Pearson; rule of three: one-sided, at most 0.009986"
    assert rule_of_three(1) == 1.0
    every = proportion_interval(300, 300)
    assert isinstance(every, Interval)
    assert every.method == "Clopper-Pearson; rule of three: one-sided, at least 0.99"


def test_a_share_is_the_one_that_textbooks_have() -> None:
    """R's binom.test(8, 10): 0.4439045, 0.9747893."""
    found = proportion_interval(8, 10)

    assert isinstance(found, Interval)
    assert (round(found.low, 7), round(found.high, 7), found.method) == (0.4439045, 0.9747893, "Clopper-Pearson")


@pytest.mark.parametrize(("successes", "trials"), [(0, 12), (1, 12), (30, 59), (299, 300), (5_000, 10_000)])
def test_the_sweep_s_own_intervals_are_these(successes: int, trials: int) -> None:
    """Operators' commands do without scipy: they bisect, to six decimals."""
    found = proportion_interval(successes, trials)

    assert isinstance(found, Interval)
    assert clopper_pearson(successes, trials) == pytest.approx((found.low, found.high), abs=1e-6)


def test_how_many_events_could_tell_a_share_from_a_bound_grows_as_they_come_close() -> None:
    assert [events_to_tell(successes, 100, 0.95) for successes in (99, 97, 96, 95, 94, 90)] == [
        115,
        457,
        1_825,
        None,
        1_825,
        101,
    ]


def test_of_no_event_there_is_no_share() -> None:
    assert proportion_interval(0, 0) == Refusal("no event to take a share of", 1)


def test_resampling_is_refused_below_its_sample() -> None:
    few = [float(value) for value in range(BOOTSTRAP_EVENTS_MIN - 1)]

    assert bootstrap_interval(few, mean, random.Random(1)) == Refusal(
        "199 events, fewer than the 200 that resampling takes", BOOTSTRAP_EVENTS_MIN
    )
    assert bootstrap_interval([1.0], mean, random.Random(1)) == Refusal(
        "1 event, fewer than the 200 that resampling takes", BOOTSTRAP_EVENTS_MIN
    )


def test_resampling_is_refused_where_nearly_all_events_are_alike() -> None:
    assert bootstrap_interval([0.0] * 195 + [1.0] * 5, mean, random.Random(1)) == Refusal(
        f"5 of 200 events differ from the rest, fewer than the {BOOTSTRAP_UNLIKE_MIN} that resampling takes", 400
    )
    assert bootstrap_interval([0.0] * 200, mean, random.Random(1)) == Refusal(
        f"0 of 200 events differ from the rest, fewer than the {BOOTSTRAP_UNLIKE_MIN} that resampling takes", None
    )


def test_what_never_ended_has_no_mean() -> None:
    with pytest.raises(ValueError, match="judge a percentile"):
        bootstrap_interval([math.inf] * 200, mean, random.Random(1))


def test_the_same_generator_gives_the_same_interval() -> None:
    values = exponential(np.random.RandomState(1), 3_000).tolist()

    first, again, other = (bootstrap_interval(values, mean, random.Random(seed)) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_statistic_of_ones_own_is_resampled_like_the_mean() -> None:
    values = exponential(np.random.RandomState(1), 200).tolist()

    plain = interval(bootstrap_interval(values, mean, random.Random(1)))
    turned = interval(bootstrap_interval(values, lambda events: 1 - mean(events) / 8, random.Random(1)))

    # Turned round, the two ends' ranks are rounded the other way: outwards both times.
    assert (turned.low, turned.high) == pytest.approx((1 - plain.high / 8, 1 - plain.low / 8))


def test_resampling_agrees_with_scipy_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer's BCa, on a sample skewed enough that the ends differ by 0.1 and 0.2 without its corrections."""
    monkeypatch.setattr("erfs_scenario.statistics.RESAMPLES", 40_000)
    values = np.random.RandomState(6).lognormal(0.0, 1.5, 200)

    ours = interval(bootstrap_interval(values.tolist(), mean, random.Random(1)))

    peer = stats.bootstrap((values,), np.mean, n_resamples=40_000, batch=2_000, rng=np.random.default_rng(1))
    low, high = peer.confidence_interval
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.03)


def test_each_event_is_left_out_once() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0])

    assert _without_each(values, lambda events: events.sum(axis=-1)).tolist() == [14.0, 13.0, 11.0, 7.0]


def test_pairs_differ_by_more_than_chance_where_six_of_six_do() -> None:
    found = paired_difference([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], [1.0, 2.0, 3.0, 4.0, 5.0, 60.0], random.Random(1))

    assert found == PairedDifference(
        pairs=6,
        smaller=5,
        equal=1,
        larger=0,
        median=Estimate(-27.0, Interval(-45.0, 0.0, 0.95, "order statistics, ranks 1 and 6 of 6")),
        mean=Refusal("6 events, fewer than the 200 that resampling takes", 200),
    )


def test_pairs_are_compared_where_the_runs_alone_could_not_be() -> None:
    """What each event costs varies by far more than what the treatment saves of it."""
    draw = np.random.RandomState(3)
    first = draw.uniform(0, 1_000, 200)
    second = first - draw.uniform(1, 3, 200)

    found = paired_difference(first.tolist(), second.tolist(), random.Random(1))

    between = interval(found.mean)
    assert -2.2 < between.low < between.high < -1.8
    assert (found.pairs, found.smaller) == (200, 200)


def test_pairs_that_never_ended_on_one_side_count_for_the_median_only() -> None:
    found = paired_difference([math.inf] * 3 + [5.0] * 4, [1.0] * 7, random.Random(1))

    assert found.median == Estimate(-4.0, Interval(-math.inf, -4.0, 0.95, "order statistics, ranks 1 and 7 of 7"))
    assert found.mean == Refusal("3 of 7 pairs never ended on one side: they have no mean", None)
    with pytest.raises(ValueError, match="on either side"):
        paired_difference([math.inf], [math.inf], random.Random(1))


def test_a_tail_heavier_than_those_tested_is_covered_less() -> None:
    """The limit that the docstring states: of a lognormal with sigma 2, far fewer than 92 % of intervals hold the mean."""
    draw = np.random.RandomState(4)
    rng = random.Random(5)

    held = sum(
        found.low <= math.exp(2) <= found.high
        for found in (
            interval(bootstrap_interval(heavy(draw, BOOTSTRAP_EVENTS_MIN).tolist(), mean, rng)) for _ in range(300)
        )
    )

    assert held / 300 < 0.9
