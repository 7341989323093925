"""Facts that no entry of the program names: kept in case a program on its way does, counted in case someone lies.

Rule 1: nothing here is ever used for forwarding.
Rule 2: whatever a stranger sends, memory stays bounded and the log readable.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from erfs.ids import NodeId
from erfs_agent.forwarding import FactKey, KnownFact

# A node has some dozens of neighbours; the bound only matters when someone floods us.
FACTS_MAX: Final = 1024


class UnarmedFacts:
    """The newest of them, the oldest dropped first."""

    def __init__(self) -> None:
        self.refused_count = 0
        self._facts: OrderedDict[FactKey, KnownFact] = OrderedDict()
        self._refused_reporters: set[NodeId] = set()

    def keep(self, key: FactKey, fact: KnownFact) -> None:
        """Keep *fact*, unless a newer one of *key* is there."""
        known = self._facts.pop(key, fact)
        self._facts[key] = max(known, fact)
        if len(self._facts) > FACTS_MAX:
            self._facts.popitem(last=False)

    def take(self, is_wanted: Callable[[FactKey, NodeId], bool]) -> list[tuple[FactKey, KnownFact]]:
        """Return and forget the facts that are wanted now, by key and far end."""
        taken = [(key, fact) for key, fact in self._facts.items() if is_wanted(key, fact.far_end)]
        for key, _ in taken:
            del self._facts[key]
        return taken

    def count_refusal(self, reporter: NodeId) -> bool:
        """Count one; return whether it is worth a line: a new reporter, or ten times as many as at the last line."""
        self.refused_count += 1
        is_new = reporter not in self._refused_reporters and len(self._refused_reporters) < FACTS_MAX
        if is_new:
            self._refused_reporters.add(reporter)
        return is_new or str(self.refused_count).strip("0") == "1"
