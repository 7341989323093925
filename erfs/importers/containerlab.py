"""Which fabric does a containerlab topology (YAML) describe?

Rule 1: a node is a host or a switch by its kind, taken from the node, else its group, else the defaults, and by the graph where
the kind leaves it open: a "linux" container that joins two or more neighbours of which one is a container too is a software switch
(FRR and the like); any other is a host.
Rule 2: what leads out of the lab (host, mgmt-net, macvlan, vxlan) is no part of the fabric and is left out.
"""

from typing import Any, Final

from pydantic import BaseModel

from erfs.fabric import NodeKind
from erfs.importers.building import Draft, Imported, shown
from erfs.importers.documents import Document, member

NAME: Final = "containerlab topology"
# Kinds that run whatever image they are given. Source: containerlab.dev/manual/kinds.
_OPEN_KINDS: Final = frozenset({"linux", "ext-container", "k8s-kind", "host"})
# Names containerlab reserves for what is outside the lab. Source: containerlab.dev/manual/network, "special node names".
_OUTSIDE: Final = frozenset({"host", "mgmt-net", "macvlan"})
_OUTSIDE_TYPES: Final = frozenset({"host", "mgmt-net", "macvlan", "dummy", "vxlan", "vxlan-stitch"})

_End = tuple[str, str]


class _ExtendedEnd(BaseModel):
    node: str
    interface: str


def read(document: Document) -> Imported:
    """
    Return the fabric in *document*; its problems are all there are.

    Cost: O(nodes + links).
    """
    draft = Draft()
    topology = document.data["topology"]
    nodes = member(topology, "nodes")
    links = member(topology, "links") or []
    if not isinstance(nodes, dict) or not nodes:
        draft.problem(document.at("topology"), 'the topology has no "nodes"')
        nodes = {}
    if not isinstance(links, list):
        draft.problem(document.at("topology", "links"), f'"links" should be a list, not {shown(links)}')
        links = []
    cables = [
        (document.at("topology", "links", index), *ends)
        for index, link in enumerate(links)
        if (ends := _ends(document, draft, link, index)) is not None
    ]
    kinds = {name: _kind(topology, body) for name, body in nodes.items()}
    neighbours: dict[str, set[str]] = {name: set() for name in nodes}
    for _, one, other in cables:
        neighbours.setdefault(one[0], set()).add(other[0])
        neighbours.setdefault(other[0], set()).add(one[0])
    for name, body in nodes.items():
        is_open = kinds[name] in _OPEN_KINDS
        joins = len(neighbours[name]) > 1 and any(kinds.get(far, "") in _OPEN_KINDS for far in neighbours[name])
        labels = {"kind": kinds[name]} if kinds[name] else {}
        group = member(body, "group")
        if isinstance(group, str) and group:
            labels["group"] = group
        kind = NodeKind.HOST if is_open and not joins else NodeKind.SWITCH
        draft.add_node(document.at("topology", "nodes", name), name, kind, labels=labels)
    for line, one, other in cables:
        draft.add_link(line, one, other)
    name = member(document.data, "name")
    return draft.finish(NAME, name if isinstance(name, str) and name else document.source.title)


def _kind(topology: object, body: object) -> str:
    group = member(body, "group")
    of_group = member(member(topology, "groups"), group) if isinstance(group, str) else None
    for found in (body, of_group, member(topology, "defaults")):
        kind = member(found, "kind")
        if isinstance(kind, str) and kind:
            return kind
    return ""


def _ends(document: Document, draft: Draft, link: object, index: int) -> tuple[_End, _End] | None:
    path = ("topology", "links", index)
    line = document.at(*path)
    type_ = member(link, "type")
    if isinstance(type_, str) and type_ in _OUTSIDE_TYPES:
        draft.leave_out(line, f'a link of type "{type_}" leads out of the lab')
        return None
    endpoints = member(link, "endpoints")
    if not isinstance(endpoints, list) or len(endpoints) != 2:
        draft.problem(line, f'a link needs "endpoints" with two entries, not {shown(endpoints)}')
        return None
    ends = [
        end for item, value in enumerate(endpoints) if (end := _end(document, draft, value, (*path, "endpoints", item)))
    ]
    if len(ends) < 2:
        return None
    if outside := [node for node, _ in ends if node in _OUTSIDE]:
        draft.leave_out(line, f'a link to "{outside[0]}" leads out of the lab')
        return None
    return ends[0], ends[1]


def _end(document: Document, draft: Draft, value: Any, path: tuple[str | int, ...]) -> _End | None:
    if not isinstance(value, str):
        end = document.checked(_ExtendedEnd, value, draft, *path, what="a link's end")
        return (end.node, end.interface) if end is not None else None
    node, _, port = value.partition(":")
    if node and port:
        return node, port
    draft.problem(document.at(*path), f'a link\'s end should be "node:interface", not {shown(value)}')
    return None
