"""Names of things: nodes, ports, links, destinations.

Rule 1: an identity never depends on state or on a display name.
Rule 2: nobody outside this file takes an identity apart.
"""

from collections.abc import Iterable
from typing import Final, NewType

NodeId = NewType("NodeId", str)
LinkId = NewType("LinkId", str)
SrlgId = NewType("SrlgId", str)
# What a route leads to: a destination class ("@leaf1", "@leaf1+leaf2"), one endpoint of it ("@leaf1+leaf2/host7"), or everything ("*").
DestinationId = NewType("DestinationId", str)

EVERYTHING: Final = DestinationId("*")


def port_id(node: NodeId, port: str) -> str:
    """Return the fabric-wide name of *port* of *node*."""
    return f"{node}:{port}"


def link_id(one: tuple[NodeId, str], other: tuple[NodeId, str]) -> LinkId:
    """Return the identity of the link between two (node, port) ends, whichever order they come in."""
    first, second = sorted((port_id(*one), port_id(*other)))
    return LinkId(f"{first}|{second}")


def is_own_end(link: LinkId, end: tuple[NodeId, str], far_end: NodeId) -> bool:
    """
    Return whether *link* joins the (node, port) *end* with some port of *far_end*.

    A node cannot pass this for a link it has no end of, unless its name and a colon begin another node's name.
    """
    own, far = port_id(*end), port_id(far_end, "")
    if len(link) < len(own) + 1 + len(far):
        return False
    return link.startswith(f"{own}|{far}") or (link.startswith(far) and link.endswith(f"|{own}"))


def class_id(attachments: Iterable[NodeId]) -> DestinationId:
    """Return the destination class of the endpoints attached to exactly the switches *attachments*."""
    return DestinationId("@" + "+".join(sorted(_escape(node) for node in attachments)))


def endpoint_destination(of_class: DestinationId, endpoint: NodeId) -> DestinationId:
    """Return the destination that means one *endpoint* of *of_class*; it is more specific than its class."""
    return DestinationId(f"{of_class}/{_escape(endpoint)}")


def class_of(destination: DestinationId) -> DestinationId:
    """Return the class that *destination* belongs to; a class belongs to itself."""
    return DestinationId(destination.partition("/")[0])


def is_endpoint(destination: DestinationId) -> bool:
    """Return whether *destination* names one endpoint instead of a whole class."""
    return "/" in destination


def lookup_order(destination: DestinationId) -> tuple[DestinationId, ...]:
    """Return the routes that may serve *destination*, the most specific first."""
    if is_endpoint(destination):
        return destination, class_of(destination), EVERYTHING
    return destination, EVERYTHING


def attachments_of(destination: DestinationId) -> tuple[NodeId, ...]:
    """Return the switches in the name of *destination*'s class, sorted; none for ``*``."""
    if destination == EVERYTHING:
        return ()
    return tuple(NodeId(_unescape(name)) for name in class_of(destination).removeprefix("@").split("+"))


def endpoint_of(destination: DestinationId) -> NodeId | None:
    """Return the endpoint that *destination* names, None where it means a class or everything."""
    _, _, endpoint = destination.partition("/")
    return NodeId(_unescape(endpoint)) if endpoint else None


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")


def _unescape(name: str) -> str:
    return name.replace("%2B", "+").replace("%2F", "/").replace("%25", "%")
