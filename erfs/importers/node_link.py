"""Which fabric does a node-link JSON document (networkx's form) describe?

Rule 1: networkx reads the graph; this file checks before it what networkx would pass over in silence (nodes and keys that repeat,
links to nobody).
Rule 2: how attributes become a fabric is said in graphs.py.
"""

from typing import Annotated, Any, Final

import networkx as nx
from pydantic import BaseModel, BeforeValidator, ConfigDict

from erfs.errors import ConfigError, Problem
from erfs.importers import graphs
from erfs.importers.building import Draft, Imported, Line, shown
from erfs.importers.documents import JsonDocument

NAME: Final = "node-link JSON"


def _plain(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("should be text or a whole number")
    return value


_Id = Annotated[str | int, BeforeValidator(_plain)]


class _Named(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: _Id


class _Joining(BaseModel):
    model_config = ConfigDict(extra="allow")

    source: _Id
    target: _Id
    key: _Id | None = None


def is_node_link(data: object) -> bool:
    """Return whether a JSON document has the shape."""
    return isinstance(data, dict) and isinstance(data.get("nodes"), list) and bool(data.keys() & {"links", "edges"})


def read(document: JsonDocument) -> Imported:
    """
    Return the fabric in *document*; its problems are all there are.

    Cost: O(nodes + links * log links).
    """
    draft = Draft()
    data = document.data
    edges = "links" if "links" in data else "edges"
    if not isinstance(data[edges], list):
        problem = Problem(document.line_of(edges), f'"{edges}" should be a list, not {shown(data[edges])}')
        raise ConfigError(document.source.name, [problem])
    nodes: list[Any] = []
    places: dict[str | int, int] = {}
    for index, value in enumerate(data["nodes"]):
        node = document.checked(_Named, value, draft, "nodes", index, what="a node")
        if node is None:
            continue
        if node.id in places:
            first = document.line_of("nodes", places[node.id])
            draft.problem(document.at("nodes", index), f'node "{node.id}" is there twice, first in line {first}')
            continue
        places[node.id] = index
        nodes.append(value)
    links: list[Any] = []
    ends: dict[tuple[Any, Any, Any], int] = {}
    for index, value in enumerate(data[edges]):
        link = document.checked(_Joining, value, draft, edges, index, what="a link")
        if link is None:
            continue
        # Without keys, and with keys that repeat, networkx would make one link of several.
        key = f"#{index}" if link.key is None else link.key
        one, other = sorted((link.source, link.target), key=str)
        if (one, other, key) in ends:
            first = document.line_of(edges, ends[one, other, key])
            draft.problem(document.at(edges, index), f'the link "{key}" is there twice, first in line {first}')
            continue
        ends[one, other, key] = index
        links.append(value | {"key": key})
    graph = nx.node_link_graph(
        {"nodes": nodes, edges: links, "graph": {}},
        directed=False,
        multigraph=True,
        edges=edges,
    )
    if data.get("directed") is True:
        draft.problem(0, "the graph is directed, but a cable has no direction", suggestion="write an undirected graph")

    def line_of_link(one: object, other: object, key: object) -> Line:
        first, second = sorted((one, other), key=str)
        return document.at(edges, ends[first, second, key])

    graphs.draw(
        draft,
        graph,
        line_of_node=lambda name: document.at("nodes", places[name]),
        line_of_link=line_of_link,
        is_known=places.__contains__,
    )
    about = data.get("graph")
    name = about.get("name") if isinstance(about, dict) else None
    return draft.finish(NAME, name if isinstance(name, str) and name else document.source.title)
