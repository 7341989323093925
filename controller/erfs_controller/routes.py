"""When to compute, and with what. How to compute is `erfs.paths`' business.

Rule 1: a computation is wanted when what routes may use is no longer what was computed for, or when its rounds no longer fit
the agents that are there, and for nothing else.
Rule 2: bad news and good news are joined for a while, never longer than the debounce maximum.

Why a changed *fact* alone starts nothing. A fact testifies to a link that both ends' evidence has already made unusable; a program
computed with that link unusable has no entry that the fact could witness (entries are made of usable links only), so an agent that
finds the fact missing from ``computed_from`` re-applies it without any effect. A fact that changes a link's state changes the
unusable set, and that is what starts a computation. So the second end's fact, a repeated fact after a restart, or a higher counter
on a link that is down anyway cost nothing.
"""

from collections.abc import Mapping

from erfs.fabric import Fabric
from erfs.ids import NodeId
from erfs.messages import FactRef, Program
from erfs.paths import ProgramSet, Sharing, Topology, compute
from erfs_controller.drain import Use
from erfs_controller.timers import ControllerTimers


class Routes:
    """The programs that the present state of the links asks for."""

    def __init__(self, fabric: Fabric, timers: ControllerTimers) -> None:
        self._timers = timers
        self._topology = Topology(fabric)
        # Kept here alone, so a controller that has just been started shares equally at first; by no more than the tolerance it may move
        # weights that its predecessor would have left.
        self._shared: Sharing | None = None
        self._computed_for: Use | None = None
        self._is_stale = False
        self._wanted_since_ns: int | None = None
        self._due_at_ns: int | None = None

    @property
    def topology(self) -> Topology:
        """The fabric that is computed on."""
        return self._topology

    def replace_fabric(self, fabric: Fabric) -> None:
        """Take in a new fabric; what was computed for the old one counts no more."""
        self._topology = Topology(fabric)
        self._shared = None
        self.forget()

    def forget(self) -> None:
        """Compute at the next occasion, whatever was computed before."""
        self._computed_for = None

    def plan_anew(self, now_ns: int) -> None:
        """What was computed stands, but its rounds don't: compute soon, with the debounce of bad news, for agents come and go in crowds."""
        self._is_stale = True
        self.news(now_ns)

    def news(self, now_ns: int) -> None:
        """A link's state changed: compute soon. The first news waits the minimum, each further one starts it anew, up to the maximum."""
        if self._wanted_since_ns is None:
            self._wanted_since_ns = now_ns
        latest_ns = self._wanted_since_ns + self._timers.debounce_max_ns
        self._due_at_ns = min(now_ns + self._timers.debounce_min_ns, latest_ns)

    def next_wakeup_ns(self) -> int | None:
        """Return when the debounce ends."""
        return self._due_at_ns

    def may_be_due(self, now_ns: int) -> bool:
        """Return whether now is the time to look: what `is_due` asks for may be dear to find out."""
        return self._computed_for is None or self._is_quiet(now_ns)

    def is_due(self, now_ns: int, use: Use) -> bool:
        """Return whether to compute now; a debounce that ends where it began asks for nothing."""
        if self._computed_for is None:
            return True
        return self._is_quiet(now_ns) and (self._is_stale or use != self._computed_for)

    def settle(self, now_ns: int) -> None:
        """End a debounce that is over: what it asked for has been computed, or it asked for nothing."""
        if self._is_quiet(now_ns):
            self._due_at_ns = self._wanted_since_ns = None

    def _is_quiet(self, now_ns: int) -> bool:
        return self._due_at_ns is not None and now_ns >= self._due_at_ns

    def compute(self, use: Use, facts: tuple[FactRef, ...]) -> ProgramSet:
        """Return the programs for what of the fabric may be used. Cost: that of `erfs.paths.compute`."""
        self._computed_for = use
        self._is_stale = False
        computed = compute(
            self._topology,
            unusable=use.unusable,
            facts=facts,
            # Dearer than any path that does without: none visits more switches than there are.
            costs=dict.fromkeys(use.shunned, 1 + len(self._topology.switches)),
            is_protecting=self._timers.is_protecting,
            shared=self._shared,
        )
        self._shared = computed.sharing
        return computed


def is_same_work(one: Program, other: Program) -> bool:
    """
    Return whether two programs of a node differ at most in the facts they were computed from.

    Such a difference is not worth a push (see the module's docstring). Cost: a look at the digests, and at the whole programs only
    if their facts differ: a digest covers the facts too, so under equal facts it tells the rest apart.
    """
    if one.digest == other.digest:
        return True
    return one.computed_from != other.computed_from and all(
        getattr(one, name) == getattr(other, name) for name in ("node", "routes", "groups", "ports", "armed", "backups")
    )


def keeping(running: Mapping[NodeId, Program], computed: Mapping[NodeId, Program]) -> dict[NodeId, Program]:
    """Return *computed*, but with the program a node runs already wherever the computed one would do the same work."""
    kept = {}
    for node, program in computed.items():
        current = running.get(node)
        kept[node] = current if current is not None and is_same_work(current, program) else program
    return kept
