"""What is armed: which node changes what for which failure, who testifies to it, and what is listed as unprotected."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, is_valley_free_required
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.messages import ArmedEntry, Program
from erfs.paths import Topology, compute
from erfs.paths.bits import unpacked
from erfs.paths.protection import Armory, Failure, Kind, arm, nothing_armed
from erfs.paths.situation import Situation
from tests.paths.deaths import restless
from tests.paths.fabrics import FAMILIES, Draft, fabrics, family, family_name, tangle

ALL_UP: frozenset[LinkId] = frozenset()


def entries_of(program: Program) -> dict[str, ArmedEntry]:
    return {entry.failure: entry for entry in program.armed.entries()}


def steps_of(entry: ArmedEntry) -> list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    return [(change.destinations, change.drop, tuple(member.port for member in change.add)) for change in entry.changes]


def leaf_spine_by_hand() -> tuple[Draft, dict[str, LinkId]]:
    """Three leaves (ports p1, p2 up to spine0, spine1; p3 host) and two spines (p1, p2, p3 down to leaf0, leaf1, leaf2)."""
    draft = Draft()
    leaves = [draft.switch(f"leaf{index}", 1) for index in range(3)]
    spines = [draft.switch(f"spine{index}", 2) for index in range(2)]
    links = {f"{leaf}-{spine}": draft.cable(leaf, spine) for leaf in leaves for spine in spines}
    for index, leaf in enumerate(leaves):
        draft.host(f"h{index}", leaf)
    return draft, links


def test_a_leafs_uplink_arms_the_other_leaves_alone() -> None:
    """Its ends know by their own port; the spine has no other way to that leaf, so all other leaves leave that spine for it."""
    draft, links = leaf_spine_by_hand()
    programs = compute(Topology(draft.fabric()), unusable=ALL_UP).programs
    link = links["leaf0-spine0"]
    armed = {node for node, program in programs.items() if link in entries_of(program)}
    assert armed == {"leaf1", "leaf2"}
    entry = entries_of(programs[NodeId("leaf1")])[link]
    assert steps_of(entry) == [(("@leaf0",), ("p1",), ())]
    assert entry.failure_kind == "link"


def test_a_program_names_all_whose_word_it_waits_for_and_what_they_cannot_testify_to() -> None:
    """Of a link both ends, of a switch whoever is at its far ends; a link that is unusable has nothing to tell any more."""
    draft, links = leaf_spine_by_hand()
    topology = Topology(draft.fabric())
    spine = NodeId("spine0")
    whole = compute(topology, unusable=ALL_UP).programs[NodeId("leaf1")]
    assert whole.armed.reporters == ("h0", "h2", "leaf0", "leaf2", "spine0", "spine1")
    assert whole.armed.ignored == ()
    assert steps_of(entries_of(whole)[spine]) == [(("@leaf0", "@leaf2"), ("p1",), ())]
    lost = links["leaf0-spine0"]
    less = compute(topology, unusable=frozenset({lost})).programs[NodeId("leaf1")]
    assert less.armed.ignored == (lost,)
    assert spine in less.armed.nodes


def test_two_leaves_left_on_a_switch_are_enough_to_testify_and_one_is_not() -> None:
    draft, links = leaf_spine_by_hand()
    topology = Topology(draft.fabric())
    one_left = frozenset({links["leaf0-spine0"], links["leaf2-spine0"]})
    programs = compute(topology, unusable=one_left).programs
    assert not any("spine0" in program.armed.nodes for program in programs.values())


def test_the_second_of_two_parallel_cables_needs_nobodys_help() -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "cables": 2, "hosts_per_leaf": 1})
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    trunks = {link.id for link in fabric.trunks}
    assert not any(trunks & entries_of(program).keys() for program in programs.values())


def test_a_dead_aggregation_switch_is_left_by_all_pods() -> None:
    fabric = generate("fat-tree", {"k": 4})
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    armed = {node for node, program in programs.items() if "pod0-agg0" in entries_of(program)}
    assert armed >= {f"pod{pod}-edge{rack}" for pod in (1, 2, 3) for rack in (0, 1)}
    destinations = [steps[0] for steps in steps_of(entries_of(programs[NodeId("pod1-edge0")])[NodeId("pod0-agg0")])]
    assert destinations == [("@pod0-edge0", "@pod0-edge1")]


def test_the_access_link_of_an_endpoint_on_two_leaves_moves_that_endpoint_only() -> None:
    """Whoever sends by the leaf drops it for this one endpoint; the endpoint itself turns to its other leaf where it must."""
    draft, _ = leaf_spine_by_hand()
    both = draft.host("both", NodeId("leaf0"), NodeId("leaf1"))
    fabric = draft.fabric()
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    link = next(link.id for link in fabric.links_of[both] if link.far_end(both).node == "leaf0")
    steps = {
        node: steps_of(entries_of(program)[link]) for node, program in programs.items() if link in entries_of(program)
    }
    itself = "@leaf0+leaf1/both"
    assert steps == {
        "spine0": [((itself,), ("p1",), ())],
        "spine1": [((itself,), ("p1",), ())],
        "both": [(("@leaf0",), (), ("p2",))],
    }


def test_an_endpoint_that_goes_another_way_than_its_class_is_protected_on_its_own() -> None:
    """It lost leaf0, so a spine that loses leaf1 is dead for it, and not for its class: leaf0 drops that spine for it alone."""
    draft, links = leaf_spine_by_hand()
    both = draft.host("both", NodeId("leaf0"), NodeId("leaf1"))
    fabric = draft.fabric()
    lost = next(link.id for link in fabric.links_of[both] if link.far_end(both).node == "leaf0")
    programs = compute(Topology(fabric), unusable=frozenset({lost})).programs
    link = links["leaf1-spine0"]
    assert steps_of(entries_of(programs[NodeId("leaf0")])[link]) == [(("@leaf0+leaf1/both", "@leaf1"), ("p1",), ())]
    assert steps_of(entries_of(programs[NodeId("leaf2")])[link]) == [(("@leaf0+leaf1/both", "@leaf1"), ("p1",), ())]


def test_a_single_homed_access_link_arms_nothing_and_is_counted() -> None:
    draft, _ = leaf_spine_by_hand()
    fabric = draft.fabric()
    found = compute(Topology(fabric), unusable=ALL_UP)
    access = {link.id for link in fabric.links.values() if fabric.is_access(link)}
    assert not any(access & entries_of(program).keys() for program in found.programs.values())
    summary = [item for item in found.unprotected if item.failure == "3 access links"]
    assert [item.reason for item in summary] == ["an endpoint's only link: nothing can repair it"]


def test_reasons_tell_no_path_from_a_valley_from_no_safe_change() -> None:
    """A leaf with one uplink; a leaf behind a valley; a torus whose longer way round might loop."""
    draft = Draft()
    leaf0, leaf1 = draft.switch("leaf0", 1), draft.switch("leaf1", 1)
    spine0, spine1 = draft.switch("spine0", 2), draft.switch("spine1", 2)
    only = draft.cable(leaf0, spine0)
    valley = draft.cable(leaf1, spine0)
    draft.cable(leaf1, spine1)
    draft.host("h0", leaf0)
    draft.host("h1", leaf1)
    draft.host("m", spine0)
    reasons = {
        (item.failure, item.destinations): item.reason
        for item in compute(Topology(draft.fabric()), unusable=ALL_UP).unprotected
    }
    assert reasons[only, ("@leaf0",)] == "no path remains"
    assert reasons[valley, ("@leaf1",)] == "no path remains"

    draft.cable(leaf0, spine1)
    found = compute(Topology(draft.fabric()), unusable=ALL_UP).unprotected
    cut = [item for item in found if item.failure == valley and "spine0" in item.nodes]
    assert [(item.destinations, item.reason) for item in cut] == [
        (("@leaf1",), "only a valley would remain, which policy forbids")
    ]

    ring = Draft()
    switches = [ring.switch(f"s{index}") for index in range(4)]
    links = [ring.cable(switches[index], switches[(index + 1) % 4]) for index in range(4)]
    for index, switch in enumerate(switches):
        ring.host(f"h{index}", switch)
    found = compute(Topology(ring.fabric()), unusable=ALL_UP).unprotected
    cut = [item for item in found if item.failure == links[0] and "@s0" in item.destinations]
    assert [(item.nodes, item.reason) for item in cut] == [
        (("s1",), "a path remains, but no change made before restoration is sure not to loop")
    ]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_entries_are_in_order_name_usable_failures_and_change_something(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=3)))
    for node, program in compute(Topology(fabric), unusable=unusable).programs.items():
        own = {port.port: port.link for port in program.ports}
        keys = [(entry.failure_kind, entry.failure) for entry in program.armed.entries()]
        assert keys == sorted(set(keys))
        for entry in program.armed.entries():
            assert entry.changes
            assert entry.failure not in unusable
            for change in entry.changes:
                ports = {*change.drop, *(member.port for member in change.add)}
                assert ports
                assert not {own[port] for port in ports} & (unusable | {entry.failure})
                assert change.destinations == tuple(sorted(set(change.destinations)))
            if entry.failure_kind == "node":
                assert entry.failure != node
                links = [link for link in fabric.links_of[NodeId(entry.failure)] if not link.is_self_loop]
                witnesses = {link.far_end(NodeId(entry.failure)).node for link in links if link.id not in unusable}
                assert len(witnesses) > 1
                assert witnesses - {node} <= set(program.armed.reporters)
                assert unusable & {link.id for link in links} <= set(program.armed.ignored)
            else:
                assert {end.node for end in fabric.links[LinkId(entry.failure)].ends} - {node} <= set(
                    program.armed.reporters
                )
        assert set(program.armed.ignored) <= unusable
        assert node not in program.armed.reporters


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_sets_and_steps_are_there_once_and_numbered_as_they_are_used(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=3)))
    for program in compute(Topology(fabric), unusable=unusable).programs.values():
        armed = program.armed
        assert armed.with_entries(armed.entries()) == armed
        assert list(armed.links) == sorted(armed.links)
        assert list(armed.nodes) == sorted(armed.nodes)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_where_valleys_are_forbidden_switches_only_remove(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    adding = {
        node
        for node, program in programs.items()
        if any(change.add for entry in program.armed.entries() for change in entry.changes)
    }
    if is_valley_free_required(fabric):
        assert not any(fabric.nodes[node].is_switch for node in adding)


def rows_by_pair(armory: Armory, situation: Situation) -> dict[tuple[int, int], set[tuple[int, int, bool]]]:
    """Return, for each node and destination, (failure, link-end, whether it is added)."""
    rows = armory.rows(np.arange(situation.mesh.node_count))
    found: dict[tuple[int, int], set[tuple[int, int, bool]]] = {}
    for row in range(len(rows)):
        what = int(rows.failure[row]), int(rows.end[row]), bool(rows.is_add[row])
        for column in rows.columns[rows.starts[row] : rows.starts[row + 1]].tolist():
            found.setdefault((int(rows.node[row]), column), set()).add(what)
    return found


def assert_keeps_up(fabric: Fabric, random: Random) -> None:
    armory: Armory | None = None
    before: dict[tuple[int, int], set[tuple[int, int, bool]]] = {}
    for situation, anew in restless(fabric, random, 6):
        armory = arm(situation, armory)
        expected = arm(anew)
        after = rows_by_pair(armory, situation)
        assert after == rows_by_pair(expected, anew)
        assert armory.unprotected == expected.unprotected
        if armory.changed is not None:
            said = unpacked(armory.changed.columns, len(situation.targets))
            changed = {
                (int(node), int(column))
                for place, node in enumerate(armory.changed.nodes)
                for column in np.flatnonzero(said[place])
            }
            assert {pair for pair in before.keys() | after.keys() if before.get(pair) != after.get(pair)} <= changed
        before = after


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_an_armory_brought_up_to_date_is_one_made_from_nothing(number: int) -> None:
    """And says of whom it changed its mind."""
    assert_keeps_up(family(number), Random(number))


@pytest.mark.parametrize("seed", range(15))
def test_an_armory_of_a_tangle_brought_up_to_date_is_one_made_from_nothing(seed: int) -> None:
    random = Random(seed)
    assert_keeps_up(tangle(random), random)


def test_an_armory_is_made_anew_when_endpoints_have_lost_attachments() -> None:
    """Then there are other targets, and nothing of the old one fits."""
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 1, "attachments": 2})
    topology = Topology(fabric)
    access = next(link for link in sorted(fabric.links) if fabric.is_access(fabric.links[link]))
    first = Situation(topology, ALL_UP)
    armory = arm(first)
    after = arm(Situation(topology, frozenset({access}), previous=first), armory)
    assert after is not armory
    assert after.changed is None


def test_nothing_armed_changes_nothing() -> None:
    situation = Situation(Topology(generate("fat-tree", {"k": 4})), ALL_UP)
    armory = nothing_armed(situation)
    assert armory.failures == ()
    assert armory.unprotected == ()
    assert len(armory.rows_of(0)) == len(armory.drops.failure) == len(armory.adds.failure) == 0


def test_what_a_group_of_links_changes_includes_what_each_of_them_does() -> None:
    situation = Situation(Topology(generate("fat-tree", {"k": 4})), ALL_UP)
    armory = arm(situation)
    trunks = situation.topology.trunks
    groups = sorted(
        {srlg for trunk in trunks for srlg in trunk.srlgs}
        | {srlg for link in situation.topology.fabric.links.values() for srlg in link.srlgs}
    )
    found = rows_by_pair(armory, situation)
    checked = 0
    for changes in found.values():
        drops: dict[Failure, set[int]] = {}
        for number, end, _ in changes:
            drops.setdefault(armory.failures[number], set()).add(end)
        for failure, ends in drops.items():
            if failure.kind is Kind.TRUNK:
                for srlg in trunks[failure.subject].srlgs:
                    checked += 1
                    assert ends <= drops[Failure(Kind.SRLG, groups.index(srlg))]
    assert checked


def test_who_is_dead_itself_is_not_armed() -> None:
    """A link to an edge switch takes the cores of its plane with it: those who send to them leave them, the cores themselves do nothing."""
    fabric = generate("fat-tree", {"k": 4})
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    link = next(link.id for link in fabric.trunks if {end.node for end in link.ends} == {"pod0-agg0", "pod0-edge0"})
    armed = {node for node, program in programs.items() if link in entries_of(program)}
    assert armed == {NodeId(f"pod{pod}-edge{rack}") for pod in range(4) for rack in range(2)} - {"pod0-edge0"}
