"""The kinds of fault a scenario may inject, as concrete as a backend needs them: all chance is already drawn.

Rule 1: every fault ends: a fault without an end is refused when the plan is made.
Rule 2: a fault plan names real links and nodes; selectors are resolved before.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from erfs.fabric import LinkEnd
from erfs.ids import LinkId, NodeId


class FaultKind(StrEnum):
    """What is done to the target."""

    LINK_DOWN = "link_down"
    """Both ends lose carrier: one end is set down, the other end's cable is dead."""
    SILENT_DROP = "silent_drop"
    """Nothing gets through in either direction; both ends keep their carrier."""
    ONE_WAY_DROP = "one_way_drop"
    """One end hears nothing; carrier stays."""
    PACKET_LOSS = "packet_loss"
    """A share of the packets is lost at random, in both directions."""
    LINK_FLAP = "link_flap"
    """The link goes down and comes up again, half of each period down."""
    RATE_LIMIT = "rate_limit"
    """The link carries less, in both directions."""
    NODE_DOWN = "node_down"
    """No power: links, tables, agent."""
    NODE_ISOLATED = "node_isolated"
    """All links of the node drop everything silently; the node itself goes on."""
    AGENT_KILL = "agent_kill"
    AGENT_FREEZE = "agent_freeze"
    CONTROLLER_KILL = "controller_kill"
    CONTROLLER_FREEZE = "controller_freeze"
    BROKER_KILL = "broker_kill"
    BROKER_FREEZE = "broker_freeze"
    BUS_PARTITION = "bus_partition"
    DRAIN = "drain"
    """An operator takes a node out of use, and gives it back at the end. Nothing breaks, and nothing may be lost."""


LINK_KINDS: Final = frozenset(
    {
        FaultKind.LINK_DOWN,
        FaultKind.SILENT_DROP,
        FaultKind.ONE_WAY_DROP,
        FaultKind.PACKET_LOSS,
        FaultKind.LINK_FLAP,
        FaultKind.RATE_LIMIT,
    }
)
"""Their targets are links."""
NODE_KINDS: Final = frozenset(
    {
        FaultKind.NODE_DOWN,
        FaultKind.NODE_ISOLATED,
        FaultKind.AGENT_KILL,
        FaultKind.AGENT_FREEZE,
        FaultKind.BUS_PARTITION,
        FaultKind.DRAIN,
    }
)
"""Their targets are nodes; a partition without any cuts everybody off."""
PHYSICAL: Final = LINK_KINDS | {FaultKind.NODE_DOWN, FaultKind.NODE_ISOLATED}
"""They break the data plane; the others break what controls it."""
WHOLE_NODES: Final = frozenset({FaultKind.NODE_DOWN, FaultKind.NODE_ISOLATED, FaultKind.DRAIN})
"""They concern all links of their nodes."""
TRAFFIC: Final = PHYSICAL | {FaultKind.DRAIN}
"""They change which way packets go; all but drains break something."""
SILENT: Final = frozenset(
    {
        FaultKind.SILENT_DROP,
        FaultKind.ONE_WAY_DROP,
        FaultKind.PACKET_LOSS,
        FaultKind.RATE_LIMIT,
        FaultKind.NODE_ISOLATED,
    }
)
"""No carrier tells of them."""
ONE_ENDED: Final = frozenset({FaultKind.LINK_DOWN, FaultKind.LINK_FLAP, FaultKind.ONE_WAY_DROP})
"""One end of each link is chosen: the one that is set down, or the one that hears nothing."""
NAMELESS_TARGETS: Final = {
    FaultKind.CONTROLLER_KILL: "controller",
    FaultKind.CONTROLLER_FREEZE: "controller",
    FaultKind.BROKER_KILL: "broker",
    FaultKind.BROKER_FREEZE: "broker",
}
"""There is only one of them, so no scenario names it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """
    One concrete fault.

    Args:
        id: Its name.
        kind: What is done.
        at_ns, end_at_ns: From the start of the run.
        links: Target of `LINK_KINDS`.
        nodes: Target of `NODE_KINDS`.
        ends: Of `ONE_ENDED`, the end of each of *links*, in their order.
        loss_ppm: Of ``packet_loss``, in millionths.
        period_ns: Of ``link_flap``: down for its first half, up for its second.
        rate_bps: Of ``rate_limit``: what is left.
        strength: Of ``drain``, "hard" or "soft".
        force: Of ``drain``, why it is to be done though the path floor forbids it; empty: it is not forced.
        natural_ns: Of those drawn at an accelerated rate: how long it would last without the acceleration; 0 where that is not known.
    """

    id: str
    kind: FaultKind
    at_ns: int
    end_at_ns: int
    links: tuple[LinkId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    ends: tuple[LinkEnd, ...] = ()
    loss_ppm: int = 0
    period_ns: int = 0
    rate_bps: int = 0
    strength: str = ""
    force: str = ""
    natural_ns: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the fault as plain JSON values, for plans and journals; what its kind has no use for is left out."""
        found: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind.value,
            "at_ns": self.at_ns,
            "end_at_ns": self.end_at_ns,
            "links": list(self.links),
            "nodes": list(self.nodes),
        }
        if self.ends:
            found["ends"] = [f"{end.node}:{end.port}" for end in self.ends]
        for name in ("loss_ppm", "period_ns", "rate_bps", "strength", "force", "natural_ns"):
            if value := getattr(self, name):
                found[name] = value
        return found
