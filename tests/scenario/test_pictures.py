"""Where the marks of a report's pictures go."""

import pytest

from erfs.units import HOUR, MINUTE, MS, SECOND
from erfs_scenario.pictures import ROWS_MAX, WIDTH, share_text, ticks_between, timeline_of
from erfs_scenario.report import Report
from tests.scenario.test_judging import A, B, affected, begins, ends, fault, flow, run


@pytest.mark.parametrize(
    ("between", "ticks"),
    [
        ((0, 37 * MS), [0, 10 * MS, 20 * MS, 30 * MS]),
        ((5 * SECOND, 22 * SECOND), [5 * SECOND, 10 * SECOND, 15 * SECOND, 20 * SECOND]),
        ((0, 72 * HOUR), [0, 24 * HOUR, 48 * HOUR, 72 * HOUR]),
        ((0, 3 * MINUTE), [0, MINUTE, 2 * MINUTE, 3 * MINUTE]),
    ],
)
def test_an_axis_has_a_few_round_marks(between: tuple[int, int], ticks: list[int]) -> None:
    assert ticks_between(*between) == ticks


def test_an_axis_says_100_per_cent_only_where_nothing_is_missing() -> None:
    assert [share_text(share) for share in (1_000_000, 999_999, 968_800)] == ["100 %", "99.9999 %", "96.88 %"]


def with_faults(count: int) -> Report:
    """Return a run with *count* faults, one every 100 ns, 20 ns each."""
    plans = tuple(fault(f"f{index}", 2000 + 100 * index, 2020 + 100 * index) for index in range(count))
    records = []
    for index in range(count):
        at_ns = 2000 + 100 * index
        records += [affected((A, B, "near"), name=f"f{index}", at_ns=at_ns), begins(f"f{index}", at_ns)]
        records += [flow(at_ns, A, B, 0, "not_recovered"), flow(at_ns + 10, A, B, 1_000_000, "served")]
        records += [ends(f"f{index}", at_ns + 20)]
    return run(*records, faults=plans)


def test_a_time_line_is_true_and_each_of_a_few_faults_has_a_bar_of_its_own() -> None:
    picture = timeline_of(with_faults(3))
    assert picture is not None
    assert [band["name"] for band in picture["bands"]] == ["f0", "f1", "f2"]
    first, second, third = (band["x"] for band in picture["bands"])
    assert second - first == pytest.approx(third - second, abs=0.2), "as long apart, as far apart"
    left, right = picture["left"], picture["right"]
    assert first == pytest.approx(left + (right - left) * (2000 - 1000) / 10_000, abs=0.1)
    assert all(band["width"] >= 1.5 for band in picture["bands"]), "short, but there"


def test_thousands_of_faults_are_no_more_bars_than_the_picture_is_wide() -> None:
    picture = timeline_of(with_faults(ROWS_MAX + 1))
    assert picture is not None
    assert not picture["has_rows"]
    dense = with_faults(90)
    many = dense.model_copy(update={"faults": dense.faults * 100})
    crowded = timeline_of(many)
    assert crowded is not None
    assert len(crowded["bands"]) <= WIDTH


def test_a_run_that_never_measured_has_no_time_line() -> None:
    assert timeline_of(with_faults(1).model_copy(update={"measured_from_ns": None})) is None
