"""Sets of columns, packed 64 to a word: what a matrix of marks is kept as when nothing in it has to be counted.

Rule 1: column c is bit (c % 64) of word c // 64; bits beyond the last column are zero.
Rule 2: nothing here knows what a row or a column stands for.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.bool_]
Indices = NDArray[np.int64]
Words = NDArray[np.uint64]

WORD_BITS: Final = 64


def word_count(columns: int) -> int:
    """Return how many words a row of *columns* columns takes."""
    return -(-columns // WORD_BITS)


def empty(rows: int, columns: int) -> Words:
    """Return *rows* empty sets."""
    return np.zeros((rows, word_count(columns)), dtype=np.uint64)


def full(columns: int) -> Words:
    """Return the one-dimensional set of all *columns*."""
    words: Words = packed(np.ones((1, columns), dtype=np.bool_))[0]
    return words


def packed(marks: Bits) -> Words:
    """Return *marks* (rows x columns) as sets. Cost: O(marks / 8) bytes."""
    rows, columns = marks.shape
    as_bytes = np.zeros((rows, word_count(columns) * 8), dtype=np.uint8)
    if marks.size:
        as_bytes[:, : -(-columns // 8)] = np.packbits(marks, axis=1, bitorder="little")
    words: Words = as_bytes.view("<u8").astype(np.uint64, copy=False)
    return words


def unpacked(words: Words, columns: int) -> Bits:
    """Return the marks (rows x *columns*) that `packed` made *words* of. Cost: O(marks) bytes."""
    if not words.size:
        return np.zeros((len(words), columns), dtype=np.bool_)
    as_bytes = np.ascontiguousarray(words.astype("<u8", copy=False)).view(np.uint8)
    marks: Bits = np.unpackbits(as_bytes, axis=1, count=columns, bitorder="little").view(np.bool_)
    return marks


def columns_of(words: Words) -> Indices:
    """Return the columns in a one-dimensional set, rising. Cost: O(words), and O(64) for each word that is not empty."""
    _, columns = positions(words[None, :])
    return columns


def positions(words: Words) -> tuple[Indices, Indices]:
    """Return the (row, column) of each mark, by row, then column. Cost: O(words), and O(64) for each word that is not empty."""
    rows, places = np.nonzero(words)
    which, bit = np.nonzero(unpacked(words[rows, places][:, None], WORD_BITS))
    return rows[which], places[which] * WORD_BITS + bit


def single(columns: Indices, count: int) -> Words:
    """Return one set for each of *columns*, of that column alone, out of *count* columns."""
    words = empty(len(columns), count)
    words[np.arange(len(columns)), columns // WORD_BITS] = np.left_shift(
        np.uint64(1), (columns % WORD_BITS).astype(np.uint64)
    )
    return words


def has_any(words: Words) -> Bits:
    """Return which rows are not empty."""
    marks: Bits = np.logical_or.reduce(words != 0, axis=1)
    return marks


def rows_of(words: Words, rows: Indices) -> Words:
    """Return some rows. `take` copies them in half the time that indexing does, but of a part of wider rows it first copies everything."""
    return words.take(rows, axis=0) if words.flags.c_contiguous else words[rows]
