"""What the controller has told whom, and who confirmed it, as anybody on the bus can see it.

Rule 1: a listener's word only: it publishes nothing, and what the controller believes of itself does not count here.
"""

from collections.abc import Iterable
from typing import Final

from erfs.aio import edge
from erfs.ids import NodeId
from erfs.messages import Ack, Leader, Presence, Program
from erfs.ports import Bus, Delivered, Incoming, Subscribe
from erfs.topics import Channel, Topics

_HEARD: Final = (Channel.PROGRAM, Channel.ACK, Channel.PRESENCE, Channel.LEADER)


class Observer:
    """
    Listens to programs, acknowledgements, presences and the leader.

    Args:
        bus: A client of its own.
        topics: The run's topics.
        nodes: Those with an agent.
    """

    def __init__(self, bus: Bus, topics: Topics, nodes: Iterable[NodeId]) -> None:
        self.program_count = 0
        """Programs seen so far; it stands still while the controller is at rest."""
        self.leader: Leader | None = None
        self._topics = topics
        self._digests: dict[NodeId, str] = {}
        self._confirmed: dict[NodeId, str] = {}
        self._online: dict[NodeId, bool] = dict.fromkeys(nodes, False)
        bus.on_message = self._on_message
        bus.subscribe(edge.filters(topics, Subscribe(channels=_HEARD)))

    def missing(self) -> list[str]:
        """Return what keeps the fabric from being at rest, in words for people; nothing if nothing does."""
        found = []
        if self.leader is None or self.leader.state != "alive":
            found.append("no controller leads")
        absent = sorted(node for node, is_online in self._online.items() if not is_online)
        if absent:
            found.append(f"{len(absent)} of {len(self._online)} agents are not on the bus ({_some(absent)})")
        untold = sorted(self._online.keys() - self._digests.keys())
        if untold:
            found.append(f"{len(untold)} of {len(self._online)} agents have no program ({_some(untold)})")
        waiting = sorted(node for node, digest in self._digests.items() if self._confirmed.get(node) != digest)
        if waiting:
            found.append(f"{len(waiting)} agents did not confirm their program ({_some(waiting)})")
        return found

    def _on_message(self, incoming: Incoming) -> None:
        delivered = edge.receive(self._topics, incoming)
        if delivered is not None:
            self._take(delivered)

    def _take(self, delivered: Delivered) -> None:
        match delivered.message:
            case Program() as program:
                self._digests[program.node] = program.digest
                self.program_count += 1
            case Ack() as ack:
                if ack.outcome == "installed":
                    self._confirmed[ack.sender] = ack.digest
            case Presence() as presence:
                self._online[presence.sender] = presence.state == "online"
                if presence.installed is not None:
                    self._confirmed[presence.sender] = presence.installed.digest
            case Leader() as leader:
                self.leader = leader
            case _:
                pass


def _some(names: list[NodeId]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown}, …"
