"""The paths between two places, counted and listed, held against networkx and against trying all sets."""

from dataclasses import replace
from itertools import islice, pairwise
from random import Random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, goes_up, is_valley_free_required
from erfs.generators import generate
from erfs.ids import LinkId, NodeId, SrlgId
from erfs.paths.between import BY_GROUP, BY_LINK, BY_NODE, Between, Disjoint, Path
from tests.paths.fabrics import Draft, fabrics, plain_fabrics, tiered_fabrics
from tests.paths.test_what_if import with_risks


def endpoints(fabric: Fabric) -> tuple[NodeId, NodeId]:
    ids = [node.id for node in fabric.endpoints]
    return ids[-1], ids[0]  # where there is one with several attachments, it comes last in canonical order


def graph_between(fabric: Fabric, one: NodeId, other: NodeId) -> "nx.MultiGraph[str]":
    """Return the switches and the two ends; each link a node of its own, so that parallel ones count apart."""
    graph = nx.Graph()
    inside = {node.id for node in fabric.switches} | {one, other}
    for link in fabric.links.values():
        if not link.is_self_loop and {end.node for end in link.ends} <= inside:
            graph.add_edge(link.a.node, f"link {link.id}")
            graph.add_edge(f"link {link.id}", link.b.node)
    return graph


def all_permitted(between: Between) -> list[Path]:
    """Return every path without a node twice that policy permits."""
    found: list[Path] = []

    def walk(nodes: tuple[NodeId, ...], links: tuple[LinkId, ...], went_down: bool) -> None:
        if nodes[-1] == between.other:
            found.append(Path(nodes, links))
            return
        if nodes[-1] != between.one and not between.fabric.nodes[nodes[-1]].is_switch:
            return
        for link in between.fabric.links_of[nodes[-1]]:
            far = link.far_end(nodes[-1]).node
            is_up = goes_up(between.fabric, link, nodes[-1])
            if far not in nodes and not (between.is_valley_free and went_down and is_up):
                walk((*nodes, far), (*links, link.id), went_down or not is_up)

    walk((between.one,), (), False)
    return found


def largest(paths: list[set[str]]) -> int:
    """Return how many of *paths* share nothing, at most."""
    best = 0

    def grow(count: int, rest: list[set[str]]) -> None:
        nonlocal best
        best = max(best, count)
        for index, path in enumerate(rest):
            if count + len(rest) - index <= best:
                return
            grow(count + 1, [other for other in rest[index + 1 :] if not other & path])

    grow(0, paths)
    return best


def things(between: Between, found: Disjoint, path: Path) -> set[str]:
    """Return what *path* may not share: its links, and its inner switches or its risk groups; but for what no path can avoid."""
    more: set[str] = set()
    if found.by == BY_NODE:
        more = {*path.nodes[1:-1]}
    if found.by == BY_GROUP:
        more = {srlg for link in path.links for srlg in between.fabric.links[link].srlgs}
    alone = {
        link.id
        for place in (between.one, between.other)
        for links in [between.fabric.access_links[place]]
        if len(links) == 1
        for link in links
    }
    return ({*path.links} | more) - set(found.exempt) - alone


def assert_sound(between: Between, found: Disjoint) -> None:
    for path in found.paths:
        assert (path.nodes[0], path.nodes[-1]) == (between.one, between.other)
        assert len(set(path.nodes)) == len(path.nodes)
        assert between.is_permitted(path)
        for link, ends in zip(path.links, pairwise(path.nodes), strict=True):
            assert {end.node for end in between.fabric.links[link].ends} == set(ends)
    for index, path in enumerate(found.paths):
        for other in found.paths[:index]:
            assert not things(between, found, path) & things(between, found, other)


@given(fabric=plain_fabrics())
@settings(max_examples=60, deadline=None)
def test_equal_cost_paths_are_the_shortest_ones_of_networkx(fabric: Fabric) -> None:
    one, other = endpoints(fabric)
    between = Between(fabric, one, other, is_valley_free=False)
    graph = graph_between(fabric, one, other)
    expected = sorted(tuple(path) for path in nx.all_shortest_paths(graph, one, other))

    found = list(between.equal_cost())
    woven = [
        tuple(x for node, link in zip(path.nodes, (*path.links, ""), strict=True) for x in (node, f"link {link}"))[:-1]
        for path in found
    ]
    assert between.count == len(found)
    assert sorted(woven) == expected
    # By neighbour, then its link, and so on.
    steps = [[*zip(path.nodes[1:], path.links, strict=True)] for path in found]
    assert steps == sorted(steps)


@given(fabric=tiered_fabrics())
@settings(max_examples=60, deadline=None)
def test_equal_cost_paths_have_no_valley(fabric: Fabric) -> None:
    one, other = endpoints(fabric)
    between = Between(fabric, one, other, is_valley_free=True)
    found = list(between.equal_cost())

    assert between.count == len(found) == len(set(found))
    assert bool(found) == bool(all_permitted(between))
    assert set(found) <= set(all_permitted(between))


@given(fabric=plain_fabrics(), by=st.sampled_from([BY_LINK, BY_NODE]))
@settings(max_examples=60, deadline=None)
def test_where_valleys_are_allowed_the_set_is_the_largest(fabric: Fabric, by: str) -> None:
    one, other = endpoints(fabric)
    between = Between(fabric, one, other, is_valley_free=False)
    found = between.disjoint(by)
    assert_sound(between, found)

    graph = graph_between(fabric, one, other).to_directed()
    most = len(fabric.links)
    network = nx.DiGraph()
    for node in graph:
        is_link = node.startswith("link ")
        is_shared = node.removeprefix("link ") in found.exempt if is_link or by == BY_NODE else True
        alone = {
            LinkId(link.id)
            for links in (fabric.access_links[one], fabric.access_links[other])
            if len(links) == 1
            for link in links
        }
        is_shared = is_shared or node.removeprefix("link ") in alone
        network.add_edge((node, "in"), (node, "out"), capacity=most if is_shared else 1)
    network.add_edges_from((((near, "out"), (far, "in"), {"capacity": most})) for near, far in graph.edges)
    value = nx.maximum_flow_value(network, (one, "out"), (other, "in"))
    assert (len(found.paths), found.is_largest) == (1 if value >= most else value, True)


@given(fabric=fabrics(), by=st.sampled_from([BY_LINK, BY_NODE, BY_GROUP]), seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_a_set_said_to_be_the_largest_is(fabric: Fabric, by: str, seed: int) -> None:
    fabric = with_risks(fabric, Random(seed))
    one, other = endpoints(fabric)
    between = Between(fabric, one, other, is_valley_free=is_valley_free_required(fabric))
    found = between.disjoint(by)
    assert_sound(between, found)
    paths = all_permitted(between)
    assert bool(found.paths) == bool(paths)
    if len(paths) <= 40:
        sets = [things(between, found, path) for path in paths]
        best = largest([one for one in sets if one]) if all(sets) else 1
        assert len(found.paths) == best if found.is_largest else len(found.paths) <= best


def test_a_million_paths_are_counted_at_once() -> None:
    draft = Draft()
    switches = [draft.switch(f"s{index:02}") for index in range(31)]
    for one, other in pairwise(switches):
        for _ in range(4):
            draft.cable(one, other)
    between = Between(draft.fabric(), switches[0], switches[-1], is_valley_free=False)

    assert between.count == 4**30
    first = [path.links[-2:] for path in islice(between.equal_cost(), 5)]
    assert len(set(first)) == 5


def test_torus_corners_are_joined_by_a_path_for_each_direction() -> None:
    fabric = generate("torus", {"dims": (4, 4, 4)})
    between = Between(fabric, NodeId("t0-0-0-host0"), NodeId("t2-2-2-host0"), is_valley_free=False)

    assert [len(between.disjoint(by).paths) for by in (BY_LINK, BY_NODE)] == [6, 6]
    assert between.disjoint(BY_NODE).exempt == ("t0-0-0", "t2-2-2")


def test_two_endpoints_of_one_switch_share_all_there_is() -> None:
    draft = Draft()
    switch = draft.switch("s0")
    between = Between(_two(draft, switch), NodeId("h0"), NodeId("h1"), is_valley_free=False)
    assert between.count == 1
    assert [len(between.disjoint(by).paths) for by in (BY_LINK, BY_NODE, BY_GROUP)] == [1, 1, 1]


def _two(draft: Draft, switch: NodeId) -> Fabric:
    draft.host("h0", switch)
    draft.host("h1", switch)
    return draft.fabric()


@pytest.mark.parametrize("by", [BY_LINK, BY_NODE, BY_GROUP])
def test_where_nothing_leads_there_is_nothing(by: str) -> None:
    draft = Draft()
    for index in range(2):
        draft.host(f"h{index}", draft.switch(f"s{index}"))
    between = Between(draft.fabric(), NodeId("h0"), NodeId("h1"), is_valley_free=False)
    assert (between.count, list(between.equal_cost()), between.disjoint(by).paths) == (0, [], ())


def test_one_path_that_takes_every_risk_group_is_not_called_the_largest_set() -> None:
    """The shortest path meets the groups of both longer ones, which share none with each other."""
    draft = Draft()
    one, other, left, right = (draft.switch(name) for name in ("one", "other", "left", "right"))
    draft.host("h0", one)
    draft.host("h1", other)
    groups = {
        draft.cable(one, other): ("power", "tray"),
        draft.cable(one, left): ("power",),
        draft.cable(left, other): ("power",),
        draft.cable(one, right): ("tray",),
        draft.cable(right, other): ("tray",),
    }
    plain = draft.fabric()
    links = [
        replace(link, srlgs=tuple(SrlgId(group) for group in groups.get(link.id, ()))) for link in plain.links.values()
    ]
    between = Between(Fabric(plain.nodes.values(), links), NodeId("h0"), NodeId("h1"), is_valley_free=False)
    found = between.disjoint(BY_GROUP)
    assert (len(found.paths), found.is_largest) == (1, False)
