"""Fabrics small enough to know by heart, and tables for them, for the referee's tests."""

from collections.abc import Callable, Iterable

import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId, class_of
from erfs.messages import Member
from erfs_scenario.dataplane import DataPlane


def install_shortest_paths(plane: DataPlane, *, without: Iterable[LinkId] = ()) -> None:
    """
    Write the tables a fat-tree or leaf-spine has by the book: down where the destination is below, up over every link otherwise.

    Written for the tests from the labels and names of the generators, so that the path engine judges nothing here.
    """
    fabric = plane.fabric
    gone = set(without)

    def distance_down(node: NodeId, target: NodeId) -> int | None:
        """Return the steps from *node* down to the switch *target*, None if there is no such way."""
        if node == target:
            return 0
        tier = fabric.nodes[node].tier or 0
        below = [
            link.far_end(node).node for link in fabric.links_of[node] if fabric.is_trunk(link) and link.id not in gone
        ]
        steps = [distance_down(far, target) for far in below if (fabric.nodes[far].tier or 0) < tier]
        found = [step + 1 for step in steps if step is not None]
        return min(found, default=None)

    for node in fabric.switches:
        routes: dict[DestinationId, tuple[Member, ...]] = {}
        for name, members in fabric.class_members.items():
            (leaf,) = fabric.attachments[members[0]]
            if leaf == node.id:
                for endpoint in members:
                    (access,) = fabric.access_links[endpoint]
                    routes[fabric.destination_of[endpoint]] = (Member(port=access.end_at(node.id).port),)
                continue
            trunks = [link for link in fabric.links_of[node.id] if fabric.is_trunk(link) and link.id not in gone]
            down = distance_down(node.id, leaf)
            if down is not None:
                used = [link for link in trunks if distance_down(link.far_end(node.id).node, leaf) == down - 1]
            else:
                used = [
                    link for link in trunks if (fabric.nodes[link.far_end(node.id).node].tier or 0) > (node.tier or 0)
                ]
            routes[name] = tuple(Member(port=link.end_at(node.id).port) for link in used)
        plane.write_routes(node.id, routes)
    for endpoint, links in fabric.access_links.items():
        plane.write_routes(
            endpoint, {DestinationId("*"): tuple(Member(port=link.end_at(endpoint).port) for link in links)}
        )


def drop(plane: DataPlane, node: NodeId, links: Iterable[LinkId], classes: Iterable[str] | None = None) -> None:
    """Take the members over *links* out of the groups of *node*, as its agent would; only towards *classes* if given."""
    ports = {plane.fabric.links[link].end_at(node).port for link in links}
    routes = {
        destination: tuple(member for member in members if member.port not in ports)
        for destination, members in plane.routes_of(node).items()
        if classes is None or class_of(destination) in set(classes)
    }
    plane.write_routes(node, routes)


@pytest.fixture
def fat_tree() -> Fabric:
    """Four pods of two edge and two aggregation switches, four cores, sixteen hosts."""
    return generate("fat-tree", {"k": 4})


@pytest.fixture
def link_between(fat_tree: Fabric) -> Callable[[str, str], LinkId]:
    """Return the one link between two nodes of the fat-tree."""

    def find(one: str, other: str) -> LinkId:
        (found,) = (
            link.id for link in fat_tree.links.values() if {link.a.node, link.b.node} == {NodeId(one), NodeId(other)}
        )
        return found

    return find
