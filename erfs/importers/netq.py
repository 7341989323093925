"""Which fabric does a NetQ topology graph (JSON) describe?

Rule 1: a node is its "id"; NetQ's "name" is for display.
Rule 2: NetQ says nothing about speed and loss: the capacity is assumed (and labelled so), the medium unknown.
"""

from typing import Any, Final

from pydantic import BaseModel, Field

from erfs.fabric import NodeKind
from erfs.importers.building import Draft, Imported
from erfs.importers.documents import JsonDocument

NAME: Final = "NetQ topology"
# NetQ knows its own agents' devices by type; everything it sees only over LLDP is "discovered_via_lldp": servers and NICs.
_SWITCH_TYPES: Final = frozenset({"switch", "chassis", "router", "leaf", "spine", "superspine", "core"})


class _Interface(BaseModel):
    node: str
    interface: str


class _Cable(BaseModel):
    interfaces: tuple[_Interface, _Interface]


class _Device(BaseModel):
    id: str
    name: str = ""
    device_type: str = ""
    tier: int | None = None


class _Bundle(BaseModel):
    compounded_links: list[Any] = Field(default_factory=list)


class _Tier(BaseModel):
    compounded_nodes: list[Any] = Field(default_factory=list)


def is_netq(data: object) -> bool:
    """Return whether a JSON document has NetQ's shape."""
    graphs = data if isinstance(data, list) else [data]
    return any(
        isinstance(graph, dict)
        and any(
            isinstance(part, dict) and key in part
            for group, key in (("nodes", "compounded_nodes"), ("links", "compounded_links"))
            for part in _listed(graph.get(group))
        )
        for graph in graphs
    )


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def read(document: JsonDocument) -> Imported:
    """
    Return the fabric in *document*; its problems are all there are.

    Cost: O(nodes + links).
    """
    draft = Draft()
    graphs = document.data if isinstance(document.data, list) else [document.data]
    prefix: tuple[int, ...]
    for group in ("nodes", "links"):  # a link may stand before its nodes
        for number, graph in enumerate(graphs):
            prefix = (number,) if isinstance(document.data, list) else ()
            parts = graph.get(group, []) if isinstance(graph, dict) else []
            if not isinstance(parts, list):
                draft.problem(document.at(*prefix, group), f'"{group}" should be a list')
                continue
            for index, part in enumerate(parts):
                (_read_tier if group == "nodes" else _read_bundle)(document, draft, part, (*prefix, group, index))
    return draft.finish(NAME, document.source.title)


def _read_tier(document: JsonDocument, draft: Draft, part: object, path: tuple[str | int, ...]) -> None:
    tier = document.checked(_Tier, part, draft, *path, what="a tier")
    for index, value in enumerate(tier.compounded_nodes if tier else []):
        at = (*path, "compounded_nodes", index)
        device = document.checked(_Device, value, draft, *at, what="a node")
        if device is not None:
            kind = NodeKind.SWITCH if device.device_type.lower() in _SWITCH_TYPES else NodeKind.HOST
            draft.add_node(document.at(*at), device.id, kind, display=device.name)


def _read_bundle(document: JsonDocument, draft: Draft, part: object, path: tuple[str | int, ...]) -> None:
    bundle = document.checked(_Bundle, part, draft, *path, what="a bundle of links")
    for index, value in enumerate(bundle.compounded_links if bundle else []):
        at = (*path, "compounded_links", index)
        cable = document.checked(_Cable, value, draft, *at, what="a link")
        if cable is not None:
            one, other = ((end.node, end.interface) for end in cable.interfaces)
            draft.add_link(document.at(*at), one, other)
