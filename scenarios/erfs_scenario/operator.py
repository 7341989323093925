"""The operator of a run: asks the controller to drain and undrain what faults of that kind say, and takes in its answers.

Rule 1: it speaks over the bus as any operator does, and knows of the controller what that answers.
Rule 2: who gets no answer asks again: the controller or the broker may be away.
Rule 3: drains may overlap: what two of them hold is undrained when the last one lets go.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from erfs.aio import edge
from erfs.faults import Fault
from erfs.ids import NodeId
from erfs.messages import DrainAnswer, DrainRequest
from erfs.ports import Bus, Incoming, Publish, Subscribe
from erfs.topics import Address, Channel, Topics
from erfs.units import SECOND

OPERATOR: Final = NodeId("operator")
# A controller answers within some 10 ms; one that starts anew takes seconds.
REPEAT_NS: Final = 1 * SECOND
Tell = Callable[[str, dict[str, object]], None]
After = Callable[[int, Callable[[], None]], object]


@dataclass(slots=True)
class _Errand:
    """One fault's beginning, or its end."""

    fault: Fault
    is_begin: bool
    open_nodes: set[NodeId]
    """Whose answer is missing."""
    moving: set[str] = field(default_factory=set)
    """The requests whose traffic has not moved yet."""
    refusals: list[str] = field(default_factory=list)


class Operator:
    """
    Args:
        say: Publishes.
        tell: Called with (event, fields) when a drain is in effect, refused, done or over.
        after: Calls something after so many nanoseconds.
    """

    def __init__(self, say: Callable[[Publish], None], tell: Tell, after: After) -> None:
        self._say = say
        self._tell = tell
        self._after = after
        self._requests: dict[str, tuple[NodeId, tuple[_Errand, ...]]] = {}
        self._asking: Counter[NodeId] = Counter()
        """Requests about each node that nobody has answered."""
        self._unanswered: dict[str, int] = {}
        """The same by request, with how often it was made."""
        self._holders: defaultdict[NodeId, set[str]] = defaultdict(set)
        """The faults that want each node drained."""
        self._drained: set[NodeId] = set()
        self._ending: defaultdict[NodeId, list[_Errand]] = defaultdict(list)
        self.outcomes: dict[str, str] = {}
        """By fault, whether it is in effect or over: the last event told of either."""

    def begin(self, fault: Fault) -> None:
        """Drain the nodes of *fault*: it is in effect when the controller has accepted all of it."""
        errand = _Errand(fault, is_begin=True, open_nodes=set(fault.nodes))
        for node in fault.nodes:
            self._holders[node].add(fault.id)
            self._ask(node, (errand,), "drain", strength=fault.strength or "hard", force=fault.force)

    def end(self, fault: Fault) -> None:
        """Undrain them, but for those that another fault holds: it is over when the controller has accepted that."""
        errand = _Errand(fault, is_begin=False, open_nodes=set(fault.nodes))
        for node in fault.nodes:
            self._holders[node].discard(fault.id)
            self._ending[node].append(errand)
            self._let_go(node)

    def hear(self, answer: DrainAnswer) -> None:
        """Take in an answer."""
        if answer.request not in self._requests:
            return
        node, errands = self._requests[answer.request]
        if answer.state in ("accepted", "refused"):
            count = self._unanswered.pop(answer.request, 0)
            if not count:
                return  # a second answer to what was asked twice
            self._asking[node] -= 1
            self._note_decision(node, errands, answer, is_repeated=count > 1)
            self._let_go(node)
        elif answer.state == "done":
            for errand in errands:
                errand.moving.discard(answer.request)
                if not errand.moving and not errand.open_nodes:
                    self._tell("drain_done" if errand.is_begin else "undrain_done", {"fault": errand.fault.id})

    def _note_decision(
        self, node: NodeId, errands: tuple[_Errand, ...], answer: DrainAnswer, *, is_repeated: bool
    ) -> None:
        is_drain = any(errand.is_begin for errand in errands)
        # An undrain that is repeated and refused was done the first time, and the answer was lost.
        is_accepted = answer.state == "accepted" or (is_repeated and not is_drain)
        if is_accepted and is_drain:
            self._drained.add(node)
        elif not is_drain:
            # Refused: it is not drained, which is what was wanted, but not by this.
            self._drained.discard(node)
        for errand in errands:
            if not is_accepted:
                errand.moving.discard(answer.request)
                errand.refusals += answer.reasons
                if is_drain:
                    self._holders[node].discard(errand.fault.id)
            self._close(errand, node)

    def _let_go(self, node: NodeId) -> None:
        """Undrain *node* if it is drained and nobody wants that any more; answers that are on their way are waited for."""
        if self._asking[node]:
            return
        ending = tuple(self._ending.pop(node, ()))
        if node in self._drained and not self._holders[node]:
            self._ask(node, ending, "undrain")
            return
        for errand in ending:
            self._close(errand, node)

    def _ask(self, node: NodeId, errands: tuple[_Errand, ...], action: str, **how: str) -> None:
        name = f"{len(self._requests) + 1:08x}"
        said = {"sender": OPERATOR, "request": name, "action": action, "target": f"node:{node}"}
        self._requests[name] = node, errands
        self._asking[node] += 1
        for errand in errands:
            errand.moving.add(name)
        self._unanswered[name] = 0
        self._say_until_answered(DrainRequest.model_validate(said | how))

    def _say_until_answered(self, request: DrainRequest) -> None:
        if request.request in self._unanswered:
            self._unanswered[request.request] += 1
            self._after(REPEAT_NS, partial(self._say_until_answered, request))
            self._say(Publish(Address(Channel.DRAIN), request))

    def _close(self, errand: _Errand, node: NodeId) -> None:
        errand.open_nodes.discard(node)
        if errand.open_nodes:
            return
        is_well = not errand.refusals
        event = {
            (True, True): "fault_effective",
            (True, False): "fault_not_effective",
            (False, True): "fault_ended",
            (False, False): "fault_not_ended",
        }[errand.is_begin, is_well]
        reason: dict[str, object] = {} if is_well else {"reason": "; ".join(errand.refusals)}
        self.outcomes[errand.fault.id] = event
        self._tell(event, {"fault": errand.fault.id} | reason)


def operator_on(bus: Bus, topics: Topics, tell: Tell, after: After) -> Operator:
    """Return an operator at a client of a real bus, a client of its own that somebody else runs."""
    operator = Operator(lambda sent: edge.publish(bus, topics, sent), tell, after)

    def on_message(incoming: Incoming) -> None:
        delivered = edge.receive(topics, incoming)
        if delivered is not None and isinstance(delivered.message, DrainAnswer):
            operator.hear(delivered.message)

    bus.on_message = on_message
    bus.subscribe(edge.filters(topics, Subscribe(channels=(Channel.DRAIN_ANSWER,))))
    return operator
