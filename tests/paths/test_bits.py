"""Packed sets say what the marks they are made of say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erfs.paths import bits


@given(st.integers(0, 6), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_sets_come_apart_as_they_were_put_together(rows: int, columns: int, seed: int) -> None:
    marks = np.random.default_rng(seed).random((rows, columns)) < 0.3
    words = bits.packed(marks)
    assert words.shape == (rows, bits.word_count(columns))
    assert (bits.unpacked(words, columns) == marks).all()
    assert [part.tolist() for part in bits.positions(words)] == [part.tolist() for part in np.nonzero(marks)]
    assert bits.has_any(words).tolist() == marks.any(axis=1).tolist()


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 130])
def test_column_c_is_bit_c_modulo_64_of_word_c_over_64(columns: int) -> None:
    words = bits.single(np.arange(columns), columns)
    assert [[int(word) for word in row] for row in words] == [
        [1 << column % 64 if column // 64 == word else 0 for word in range(bits.word_count(columns))]
        for column in range(columns)
    ]
    assert bits.columns_of(bits.full(columns)).tolist() == list(range(columns))


def test_no_columns_take_no_words() -> None:
    assert bits.empty(3, 0).shape == (3, 0)
    assert bits.unpacked(bits.empty(3, 0), 0).shape == (3, 0)
