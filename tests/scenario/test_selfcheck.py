"""Where two journals first differ, and what of a broken journal a rerun must repeat."""

from pathlib import Path

import pytest

from erfs.journal import line_of
from erfs_scenario.selfcheck import Difference, first_difference, is_whole, repeatable

LINES = [line_of(0, "run_started", {}), line_of(1, "x", {"n": 1}), line_of(2, "run_finished", {})]


def test_the_same_bytes_do_not_differ() -> None:
    assert first_difference(LINES, list(LINES)) is None


def test_the_first_line_that_differs_is_told_with_its_column() -> None:
    changed = [LINES[0], line_of(1, "x", {"n": 2}), line_of(7, "y", {})]
    difference = first_difference(LINES, changed)

    assert difference == Difference(2, '{"at_ns":1,"event":"x","n":1}', '{"at_ns":1,"event":"x","n":2}')
    assert difference.column == 28


def test_a_journal_that_ends_sooner_differs_in_the_line_it_does_not_have() -> None:
    difference = first_difference(LINES, LINES[:2])

    assert difference == Difference(3, '{"at_ns":2,"event":"run_finished"}', None)
    assert difference.excerpts() == ('{"at_ns":2,"event":"run_finished"}', "(there is no such line)")


def test_of_long_lines_the_part_that_differs_is_shown() -> None:
    one, other = Difference(1, "a" * 5000 + "b" + "c" * 5000, "a" * 5000 + "d" + "c" * 5000).excerpts()

    assert (one, other) == (
        "…" + "a" * 200 + "b" + "c" * 199 + "…",
        "…" + "a" * 200 + "d" + "c" * 199 + "…",
    )


def test_what_breaks_off_differs_in_nothing_as_far_as_it_goes() -> None:
    assert first_difference(LINES[:2], LINES, is_one_cut=True) is None
    assert first_difference(LINES[:2], LINES[:1], is_one_cut=True) == Difference(
        2, '{"at_ns":1,"event":"x","n":1}', None
    )


def test_a_difference_is_told_with_both_lines_below_each_other() -> None:
    difference = Difference(1234, '{"n":1}', '{"n":2}')

    assert difference.told(("then", "now")).splitlines() == [
        "line 1,234 is the first that differs, from column 6 on",
        '  then: {"n":1}',
        '  now:  {"n":2}',
    ]
    assert difference.to_json(("then", "now")) == {"line": 1234, "column": 6, "then": '{"n":1}', "now": '{"n":2}'}


INTERRUPTED = line_of(1, "run_aborted", {"reason": "interrupted"})
GUARDED = line_of(1, "run_aborted", {"reason": "availability of all fell below 90 %"})


def test_neither_half_a_line_nor_the_word_of_ctrl_c_is_repeated() -> None:
    assert list(repeatable(LINES)) == LINES
    assert list(repeatable([*LINES[:2], b'{"at_n'])) == LINES[:2]
    assert list(repeatable([*LINES[:2], INTERRUPTED])) == LINES[:2]
    assert list(repeatable([*LINES[:2], GUARDED])) == [*LINES[:2], GUARDED]


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        (LINES, True),
        ([*LINES[:2], GUARDED], True),
        ([*LINES[:2], INTERRUPTED], False),
        ([*LINES[:2], LINES[2].rstrip()], False),
        (LINES[:2], False),
        ([], False),
    ],
)
def test_a_journal_is_whole_if_it_has_the_end_of_its_run(tmp_path: Path, lines: list[bytes], whole: bool) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(lines))
    assert is_whole(journal) is whole
