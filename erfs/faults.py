"""The kinds of fault a scenario may inject, as concrete as a backend needs them: all chance is already drawn.

Rule 1: every fault ends: a fault without an end is refused when the plan is made.
Rule 2: a fault plan names real links and nodes; selectors are resolved before.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from erfs.ids import LinkId, NodeId


class FaultKind(StrEnum):
    """What is done to the target."""

    LINK_DOWN = "link_down"
    NODE_DOWN = "node_down"
    AGENT_KILL = "agent_kill"
    CONTROLLER_KILL = "controller_kill"
    BUS_PARTITION = "bus_partition"


@dataclass(frozen=True, slots=True)
class Fault:
    """
    One concrete fault.

    *links* is the target of ``link_down``; *nodes* that of ``node_down``, ``agent_kill`` and ``bus_partition`` (the agents cut
    off); ``controller_kill`` has none. Instants count from the start of the run.
    """

    id: str
    kind: FaultKind
    at_ns: int
    end_at_ns: int
    links: tuple[LinkId, ...] = ()
    nodes: tuple[NodeId, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fault as plain JSON values, for plans and journals."""
        return {
            "id": self.id,
            "kind": self.kind.value,
            "at_ns": self.at_ns,
            "end_at_ns": self.end_at_ns,
            "links": list(self.links),
            "nodes": list(self.nodes),
        }
