"""The way of a flow before and after a break, on a fat-tree with tables by the book."""

from collections.abc import Callable

import pytest

from erfs.fabric import Fabric
from erfs.ids import LinkId, NodeId
from erfs.messages import Member
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.pathways import HOPS_MAX, path_beside, path_over
from erfs_scenario.walker import Walk

from .conftest import drop, install_shortest_paths

Find = Callable[[str, str], LinkId]


@pytest.fixture
def plane(fat_tree: Fabric) -> DataPlane:
    """The fat-tree with all its routes."""
    made = DataPlane(fat_tree)
    install_shortest_paths(made)
    return made


def walk_to(plane: DataPlane, switch: str) -> Walk:
    """Return the walk to the hosts of *switch*."""
    fabric = plane.fabric
    name = next(name for name, members in fabric.class_members.items() if fabric.attachments[members[0]] == (switch,))
    members = [(plane.node_index[host], fabric.destination_of[host]) for host in fabric.class_members[name]]
    leaves = [index for index, is_switch in enumerate(plane.is_switch) if is_switch]
    found = Walk(plane, name, members, [plane.node_index[NodeId(switch)]], leaves)
    found.walk()
    return found


def names(plane: DataPlane, path: tuple[int, ...]) -> list[str]:
    return [plane.nodes[node] for node in path]


def test_the_way_before_crosses_the_link_and_the_way_after_leaves_it_where_it_must(
    plane: DataPlane, link_between: Find
) -> None:
    """A core's link breaks: the second aggregation switch of the source's pod is not needed, another core will do."""
    walk = walk_to(plane, "pod1-edge0")
    source = plane.node_index[NodeId("pod0-edge0-host0")]
    link = link_between("pod0-agg1", "core1-1")
    crossing = {plane.node_index[NodeId(name)] for name in ("pod0-edge0", "pod0-agg1")}
    before = path_over(plane, walk, source, frozenset({plane.link_index[link]}), lambda node: int(node in crossing))
    expected = ["pod0-edge0-host0", "pod0-edge0", "pod0-agg1", "core1-1", "pod1-agg1", "pod1-edge0", "pod1-edge0-host0"]
    assert names(plane, before) == expected
    assert path_beside(plane, walk, before) == before, "nothing broke"
    plane.set_link(link, is_up=False)
    drop(plane, NodeId("pod0-agg1"), [link])
    after = names(plane, path_beside(plane, walk, before))
    assert after == [*expected[:3], "core1-0", *expected[4:]]


def test_a_way_that_leads_nowhere_ends_there(plane: DataPlane, link_between: Find) -> None:
    walk = walk_to(plane, "pod1-edge0")
    source = plane.node_index[NodeId("pod0-edge0-host0")]
    plane.set_link(link_between("pod0-edge0-host0", "pod0-edge0"), is_up=False)
    assert path_beside(plane, walk, (source,)) == (source,)


def test_a_circle_does_not_keep_anybody_for_ever(plane: DataPlane, link_between: Find) -> None:
    """Two switches that send to each other."""
    walk = walk_to(plane, "pod1-edge0")
    (first, second) = (NodeId("pod0-edge0"), NodeId("pod0-agg0"))
    link = plane.fabric.links[link_between(first, second)]
    (name,) = {destination for destination in plane.routes_of(second) if destination == walk._order[0]}
    for node in (first, second):
        others = [one.id for one in plane.fabric.links_of[node] if one.id != link.id]
        drop(plane, node, others, [name])
    routes = dict(plane.routes_of(second))
    plane.write_routes(second, routes | {name: (Member(port=link.end_at(second).port),)})
    path = path_beside(plane, walk, (plane.node_index[first],))
    assert len(path) == HOPS_MAX
