"""The number on everything the controller says.

Rule 1: one counter for all topics: a hole seen by a receiver of all is a loss.
Rule 2: it starts at 1; last wills carry 0.
"""


class Sequence:
    """Counts messages."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """Return the next number."""
        self._last += 1
        return self._last
