"""Which fabric does a networkx graph describe, read from node-link JSON or GraphML?

Rule 1: what `erfs.exporters` writes comes back exactly: kinds, names, labels, ports, capacity, medium, shared-risk groups.
Rule 2: a foreign graph is taken as far as it goes: a node without a kind is a host if it has one neighbour and a switch otherwise,
a link without ports gets numbered ones, one without capacity the assumed one. Tiers are always inferred anew.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import networkx as nx
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from erfs.fabric import Medium, NodeKind
from erfs.importers.building import ASSUMED, ASSUMED_CAPACITY_BPS, Draft, Line
from erfs.importers.documents import checked


def _from_text(value: object) -> object:
    """GraphML has no lists and maps: they are written as JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError:
        raise ValueError("should not be nested so deeply") from None


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("should hold printable characters only")
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


_Text = Annotated[str, AfterValidator(_printable)]
_Labels = Annotated[dict[_Text, _Text], BeforeValidator(_from_text)]


class NodeAttributes(BaseModel):
    """What a node of a graph may say about itself; other attributes are left alone."""

    kind: Annotated[NodeKind, BeforeValidator(_lower)] | None = None
    name: _Text = ""
    labels: _Labels = Field(default_factory=dict)


class LinkAttributes(BaseModel):
    """What a link of a graph may say about itself; other attributes are left alone."""

    a_node: _Text | None = None
    a_port: _Text | None = None
    b_port: _Text | None = None
    capacity_bps: Annotated[int, Field(gt=0, le=10**18)] | None = None
    medium: Annotated[Medium, BeforeValidator(_lower)] = Medium.UNKNOWN
    srlgs: Annotated[tuple[_Text, ...], BeforeValidator(_from_text)] = ()
    labels: _Labels | None = None


def draw(
    draft: Draft,
    graph: "nx.Graph[Any]",
    *,
    line_of_node: Callable[[Any], Line],
    line_of_link: Callable[[Any, Any, Any], Line],
    is_known: Callable[[Any], bool],
) -> None:
    """
    Put the nodes and links of *graph* into *draft*.

    Args:
        line_of_node: The line a node came from.
        line_of_link: The line a link came from, by its nodes and key.
        is_known: Whether a node stands in the file itself; networkx adds the nodes that only links name.

    Cost: O(nodes + links * log links). Links are sorted, so that numbered ports do not depend on the file's order.
    """
    if graph.is_directed():
        draft.problem(0, "the graph is directed, but a cable has no direction", suggestion="write an undirected graph")
    for name in filter(is_known, graph):
        line = line_of_node(name)
        attributes = checked(NodeAttributes, graph.nodes[name], draft, partial(_number, line), what=f'node "{name}"')
        if attributes is not None:
            neighbours = set(nx.all_neighbors(graph, name)) - {name}
            kind = attributes.kind or (NodeKind.HOST if len(neighbours) == 1 else NodeKind.SWITCH)
            draft.add_node(line, str(name), kind, display=attributes.name, labels=attributes.labels)
    edges = sorted(
        ((*sorted((str(one), str(other))), str(key), one, other, key) for one, other, key in graph.edges(keys=True)),
        key=lambda edge: edge[:3],
    )
    for one, other, _, *key in edges:
        line = line_of_link(*key)
        link = checked(
            LinkAttributes,
            graph.edges[tuple(key)],
            draft,
            partial(_number, line),
            what=f'the link "{one}" to "{other}"',
        )
        if link is not None:
            _draw_link(draft, line, one, other, link)


def _number(line: Line, _: object) -> int:
    return line() if callable(line) else line


def _draw_link(draft: Draft, line: Line, one: str, other: str, attributes: LinkAttributes) -> None:
    if attributes.a_node not in (None, one, other):
        draft.problem(line, f'the link "{one}" to "{other}" says that its end a is at "{attributes.a_node}"')
        return
    if attributes.a_node == other:
        one, other = other, one
    capacity_bps, labels = attributes.capacity_bps, attributes.labels
    draft.add_link(
        line,
        (one, attributes.a_port or draft.next_port(one)),
        (other, attributes.b_port or draft.next_port(other)),
        capacity_bps=capacity_bps or ASSUMED_CAPACITY_BPS,
        medium=attributes.medium,
        srlgs=attributes.srlgs,
        labels={} | (labels or {}) | ({} if capacity_bps else ASSUMED),
    )
