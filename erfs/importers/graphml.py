"""Which fabric does a GraphML document describe?

Rule 1: networkx reads the graph; a first pass over the XML refuses document types (entity bombs need one) and finds what networkx
would pass over in silence (nodes and links that repeat, links to nobody).
Rule 2: how attributes become a fabric is said in graphs.py.
"""

import warnings
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

import networkx as nx

from erfs.errors import ConfigError, Problem
from erfs.importers import graphs
from erfs.importers.building import Draft, Imported
from erfs.importers.documents import refuse_damage
from erfs.importers.reading import Source

NAME: Final = "GraphML"
# networkx and ElementTree walk the tree by recursion in places; a fabric needs four levels.
_DEPTH_MAX: Final = 64


@dataclass
class _Outline:
    """What the first pass saw."""

    root: str = ""
    elements: set[str] = field(default_factory=set)
    nodes: dict[str, int] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)  # by id
    link_lines: dict[tuple[str, ...], list[int]] = field(default_factory=dict)  # by nodes
    repeated: list[Problem] = field(default_factory=list)


def outline(source: Source) -> _Outline:
    """
    Return the root element of the XML in *source* and, of GraphML, where its nodes and links stand.

    Raises:
        ConfigError: it is no well-formed XML, or it has a document type.
    """
    refuse_damage(source)
    found = _Outline()
    parser = expat.ParserCreate()
    depth = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        line = parser.CurrentLineNumber
        if depth > _DEPTH_MAX:
            raise ConfigError(source.name, [Problem(line, f"is XML nested more than {_DEPTH_MAX} deep")])
        name = tag.rpartition(":")[2]
        found.root = found.root or name
        found.elements.add(name)
        if found.root != "graphml":
            return
        if name == "node":
            _add(found, found.nodes, attributes.get("id", ""), line, "node")
        elif name == "edge":
            if "id" in attributes:
                _add(found, found.links, attributes["id"], line, "the link")
            ends = tuple(sorted((attributes.get("source", ""), attributes.get("target", ""))))
            found.link_lines.setdefault(ends, []).append(line)

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    def doctype(*_: object) -> None:
        reason = "has a document type (DOCTYPE), which can hide entity bombs: remove it"
        raise ConfigError(source.name, [Problem(parser.CurrentLineNumber, reason)])

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(source.text.encode(), True)
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, "") if isinstance(error.code, int) else ""
        raise ConfigError(
            source.name, [Problem(error.lineno, f"is no well-formed XML: {reason or error}", error.offset + 1)]
        ) from error
    except ValueError as error:  # an encoding declaration that expat cannot follow
        raise ConfigError(source.name, [Problem(1, f"is XML that cannot be read: {error}")]) from error
    return found


def read(source: Source, seen: _Outline) -> Imported:
    """
    Return the fabric in *source*; its problems are all there are.

    Cost: O(nodes + links * log links).
    """
    draft = Draft()
    draft.problems.extend(seen.repeated)
    if seen.elements & {"hyperedge", "port"}:
        draft.problem(0, "the graph has hyperedges or ports, which networkx does not read")
        return draft.finish(NAME, source.title)
    try:
        # networkx warns of attributes without a type; they are taken as text.
        with warnings.catch_warnings(action="ignore"):
            graph = nx.parse_graphml(source.text, node_type=str, force_multigraph=True)
    except (
        nx.NetworkXException,
        ArithmeticError,
        AttributeError,
        LookupError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        # networkx lets whatever goes wrong inside it out; ParseError of ElementTree is a SyntaxError.
        raise ConfigError(source.name, [Problem(0, f"is GraphML that networkx cannot read: {error}")]) from error

    def line_of_link(one: str, other: str, key: object) -> int:
        lines = seen.link_lines.get(tuple(sorted((one, other))), [0])
        return seen.links.get(str(key), lines[0])

    graphs.draw(
        draft, graph, line_of_node=seen.nodes.__getitem__, line_of_link=line_of_link, is_known=seen.nodes.__contains__
    )
    name = graph.graph.get("name")
    return draft.finish(NAME, name if isinstance(name, str) and name else source.title)


def _add(found: _Outline, places: dict[str, int], name: str, line: int, what: str) -> None:
    if name in places:
        found.repeated.append(Problem(line, f'{what} "{name}" is there twice, first in line {places[name]}'))
    else:
        places[name] = line
