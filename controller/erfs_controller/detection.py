"""Whom to believe: both ends' evidence -> link state.

Rule 1: a link is usable only if no end says otherwise (`LINK_STATE`, the bidirectional check); never said a word means: as built.
Rule 2: a word counts only from an end of that link; strangers are counted and told, never believed.
Rule 3: a node needs no state of its own: a dead node is one whose links its neighbours call down.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from erfs.fabric import Fabric, Link, LinkEnd, NodeKind
from erfs.ids import LinkId, NodeId
from erfs.messages import DownFact, FactRef, Health
from erfs.ports import Mark
from erfs_controller.adjacency import Adjacency, Signal, Word, next_state, replaces


class LinkState(StrEnum):
    """Whether routes may use a link."""

    USABLE = "usable"
    DOWN = "down"


_UNKNOWN, _UP, _DOWN = Adjacency.UNKNOWN, Adjacency.UP, Adjacency.DOWN
# An end that has said nothing vetoes nothing: at the controller's start silence would otherwise take the whole fabric down.
LINK_STATE: Final[Mapping[tuple[Adjacency, Adjacency], LinkState]] = {
    (_UNKNOWN, _UNKNOWN): LinkState.USABLE,
    (_UNKNOWN, _UP): LinkState.USABLE,
    (_UNKNOWN, _DOWN): LinkState.DOWN,
    (_UP, _UNKNOWN): LinkState.USABLE,
    (_UP, _UP): LinkState.USABLE,
    (_UP, _DOWN): LinkState.DOWN,
    (_DOWN, _UNKNOWN): LinkState.DOWN,
    (_DOWN, _UP): LinkState.DOWN,
    (_DOWN, _DOWN): LinkState.DOWN,
}

# Words about links the fabric file does not have are kept for the guard alone. A fabric has at most some ten thousand links
# that a file could lack; more than that is someone's noise.
_UNLISTED_MAX: Final = 20_000


@dataclass(slots=True)
class _End:
    state: Adjacency = Adjacency.UNKNOWN
    word: Word | None = None


class Detection:
    """
    The evidence of all link ends and the state of every link between two nodes with agents.

    Links to aggregation nodes (no agent there) and cables looped on one node carry no routes: words about them are
    accepted and ignored.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.refused: Counter[str] = Counter()
        """Refused words by reason."""
        self._ends: dict[tuple[LinkId, LinkEnd], _End] = {}
        self._unlisted: dict[tuple[LinkId, LinkEnd], Word] = {}
        self._adopt(fabric)

    def _adopt(self, fabric: Fabric) -> None:
        self._fabric = fabric
        with_agents = {node.id for node in fabric.nodes.values() if node.kind is not NodeKind.AGGREGATION}
        self._watched: dict[LinkId, Link] = {
            link.id: link
            for link in fabric.links.values()
            if not link.is_self_loop and link.a.node in with_agents and link.b.node in with_agents
        }
        self._down: set[LinkId] = set()
        self._usable_count: dict[NodeId, int] = dict.fromkeys(fabric.nodes, 0)
        for link in self._watched.values():
            for end in link.ends:
                self._usable_count[end.node] += 1

    @property
    def unusable(self) -> frozenset[LinkId]:
        """The links no route may use."""
        return frozenset(self._down)

    def is_cut_off(self, node: NodeId) -> bool:
        """Return whether no link of *node* is usable: nobody can reach it, and nothing it does matters to others."""
        return self._usable_count.get(node, 0) == 0

    def facts(self) -> tuple[FactRef, ...]:
        """
        Return the down facts known of watched links, sorted by link and reporter: what a program computed now takes into account.

        Cost: O(down links).
        """
        found = []
        for link in sorted(self._down):
            for end in self._watched[link].ends:
                known = self._ends.get((link, end))
                if known is not None and known.word is not None and known.state is _DOWN:
                    found.append(FactRef(link=link, reporter=end.node, counter=known.word.counter))
        return tuple(sorted(found, key=lambda fact: (fact.link, fact.reporter)))

    def words(self) -> Iterable[tuple[LinkId, NodeId, Word]]:
        """Yield every end's last word, also about links that the fabric file lacks."""
        for (link, end), known in self._ends.items():
            if known.word is not None:
                yield link, end.node, known.word
        for (link, end), word in self._unlisted.items():
            yield link, end.node, word

    # --- evidence -----------------------------------------------------------------------------------------------------
    def hear_fact(self, fact: DownFact) -> list[Mark]:
        """Take in a down fact or its clearing; return what it changed."""
        return self._hear(fact.link, LinkEnd(fact.sender, fact.port), Word.of_fact(fact))

    def hear_health(self, health: Health) -> list[Mark]:
        """Take in a node's whole report; return what it changed."""
        marks: list[Mark] = []
        for port in health.ports:
            marks += self._hear(port.link, LinkEnd(health.sender, port.port), Word.of_health(port))
        return marks

    def hear_presence(self, node: NodeId, *, is_online: bool) -> list[Mark]:
        """Take in an agent's coming or going."""
        marks: list[Mark] = []
        for link in self._fabric.links_of.get(node, ()):
            if link.id not in self._watched:
                continue
            known = self._end(link.id, link.end_at(node))
            known.state = next_state(known.state, Signal.AGENT_BACK if is_online else Signal.AGENT_GONE)
            marks += self._adjudicate(link)
        return marks

    def replace_fabric(self, fabric: Fabric) -> list[Mark]:
        """Take in a new fabric; every word heard so far counts where the new fabric has its link."""
        words = [(link, end, known.word) for (link, end), known in self._ends.items() if known.word is not None]
        words += [(link, end, word) for (link, end), word in self._unlisted.items()]
        self._ends, self._unlisted = {}, {}
        was_down = self._down
        self._adopt(fabric)
        for link, end, word in words:
            # Not news, so nothing is marked here: the difference below is.
            self._hear(link, end, word)
        return _adjudications(was_down, self._down)

    def _hear(self, link_id: LinkId, end: LinkEnd, word: Word) -> list[Mark]:
        link = self._fabric.links.get(link_id)
        if link is None:
            return self._hear_unlisted(link_id, end, word)
        if end not in link.ends:
            return [self._refusal(link_id, end.node, "not an end of this link")]
        known = self._end(link_id, end)
        if not replaces(word, known.word):
            return []
        known.word = word
        known.state = next_state(known.state, word.signal)
        return self._adjudicate(link) if link_id in self._watched else []

    def _hear_unlisted(self, link_id: LinkId, end: LinkEnd, word: Word) -> list[Mark]:
        key = (link_id, end)
        old = self._unlisted.get(key)
        if old is None and len(self._unlisted) >= _UNLISTED_MAX:
            return [self._refusal(link_id, end.node, "too many links that the fabric file does not have")]
        if not replaces(word, old):
            return []
        self._unlisted[key] = word
        return [self._refusal(link_id, end.node, "the fabric file has no such link")]

    def _end(self, link: LinkId, end: LinkEnd) -> _End:
        return self._ends.setdefault((link, end), _End())

    def _refusal(self, link: LinkId, reporter: NodeId, reason: str) -> Mark:
        self.refused[reason] += 1
        return Mark("fact_refused", {"link": link, "reporter": reporter, "reason": reason})

    # --- judgement ----------------------------------------------------------------------------------------------------
    def _adjudicate(self, link: Link) -> list[Mark]:
        a, b = (self._end(link.id, end).state for end in link.ends)
        is_down = LINK_STATE[a, b] is LinkState.DOWN
        if is_down == (link.id in self._down):
            return []
        was_down = frozenset(self._down)
        if is_down:
            self._down.add(link.id)
        else:
            self._down.remove(link.id)
        for end in link.ends:
            self._usable_count[end.node] += -1 if is_down else 1
        return _adjudications(was_down, self._down)


def _adjudications(before: Iterable[LinkId], after: Iterable[LinkId]) -> list[Mark]:
    old, new = set(before), set(after)
    return [Mark("link_down_adjudicated", {"link": link}) for link in sorted(new - old)] + [
        Mark("link_up_adjudicated", {"link": link}) for link in sorted(old - new)
    ]
