"""Which pairs are drawn, and how wide an interval is."""

from itertools import combinations
from math import comb
from random import Random

import pytest

from erfs.paths.what_if_pairs import PAIRS_ALL_MAX, SAMPLE_DEFAULT, chosen_pairs, clopper_pearson, pair_count


def test_few_pairs_are_all_looked_at() -> None:
    pairs, is_all = chosen_pairs(7, None, Random(1).sample)
    assert is_all
    assert sorted(pairs) == list(combinations(range(7), 2))


def test_many_pairs_are_drawn_without_repeating_one_and_as_the_seed_says() -> None:
    elements = 600
    assert pair_count(elements) > PAIRS_ALL_MAX
    pairs, is_all = chosen_pairs(elements, None, Random(1).sample)
    assert not is_all
    assert len(set(pairs)) == SAMPLE_DEFAULT
    assert all(0 <= one < other < elements for one, other in pairs)
    assert chosen_pairs(elements, None, Random(1).sample) == (pairs, False)
    assert chosen_pairs(elements, None, Random(2).sample)[0] != pairs


def test_a_sample_larger_than_all_is_all() -> None:
    assert chosen_pairs(4, 100, Random(1).sample) == ([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)], True)
    assert chosen_pairs(1, 100, Random(1).sample) == ([], True)


# Printed by scipy.stats.binomtest(hits, trials).proportion_ci(method="exact").
@pytest.mark.parametrize(
    ("hits", "trials", "expected"),
    [
        (0, 10, (0.0, 0.308497)),
        (10, 10, (0.691503, 1.0)),
        (3, 20, (0.032071, 0.378927)),
        (50, 1000, (0.037335, 0.06539)),
        (9000, 10000, (0.893953, 0.905813)),
    ],
)
def test_intervals_are_those_of_the_tables(hits: int, trials: int, expected: tuple[float, float]) -> None:
    assert clopper_pearson(hits, trials) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("trials", [1, 2, 9, 40])
def test_the_interval_covers_the_share_at_least_as_often_as_it_says(trials: int) -> None:
    intervals = [clopper_pearson(hits, trials) for hits in range(trials + 1)]
    for share in (0.0, 0.01, 0.05, 0.2, 0.5, 0.77, 0.99, 1.0):
        covered = sum(
            comb(trials, hits) * share**hits * (1 - share) ** (trials - hits)
            for hits, (low, high) in enumerate(intervals)
            if low <= share <= high
        )
        assert covered >= 0.95
