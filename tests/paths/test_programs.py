"""What a program says, and that it says the same on every machine."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import EVERYTHING, LinkId, NodeId, SrlgId
from erfs.messages import FactRef, Program, content_digest, decode, encode, program_digest
from erfs.paths import Topology, compute
from tests.paths.fabrics import Draft, fabrics, shuffled

ALL_UP: frozenset[LinkId] = frozenset()


def digest_by_dumping(program: Program) -> str:
    fields = {"node", "computed_from", "ports", "groups", "routes", "armed", "backups"}
    return program_digest(program.model_dump(mode="json", include=fields))


def members_of(program: Program, destination: str) -> tuple[str, ...] | None:
    for route in program.routes:
        if route.destination == destination:
            return tuple(member.port for member in program.groups[route.group].members)
    return None


@st.composite
def link_sets(draw: st.DrawFn, fabric: Fabric) -> frozenset[LinkId]:
    return frozenset(draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=3)))


@st.composite
def risky_fabrics(draw: st.DrawFn) -> Fabric:
    """Draw any small fabric, some of its links in risk groups."""
    fabric = draw(fabrics())
    groups = st.sets(st.sampled_from(["tray", "power"]), max_size=2).map(
        lambda names: tuple(SrlgId(name) for name in sorted(names))
    )
    return Fabric(fabric.nodes.values(), [replace(link, srlgs=draw(groups)) for link in fabric.links.values()])


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_digest_is_that_of_the_content(data: st.DataObject) -> None:
    """The engine puts the canonical JSON together itself; dumping the message must give the same."""
    fabric = data.draw(risky_fabrics())
    facts = tuple(
        FactRef(link=link, reporter=end.node, counter=3)
        for link in sorted(data.draw(link_sets(fabric)))
        for end in fabric.links[link].ends
    )
    for program in compute(Topology(fabric), unusable=data.draw(link_sets(fabric)), facts=facts).programs.values():
        assert program.digest == content_digest(program) == digest_by_dumping(program)


def test_odd_names_are_quoted_as_json_does() -> None:
    draft = Draft()
    switch, other = draft.switch('quo"te\\\n'), draft.switch("ümlaut/+%\u2028")
    draft.cable(switch, other)
    draft.cable(switch, draft.host("h/1", other))
    for program in compute(Topology(draft.fabric()), unusable=ALL_UP).programs.values():
        assert program.digest == digest_by_dumping(program)
        assert decode(encode(program)) == program


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_programs_do_not_depend_on_the_order_in_which_a_fabric_was_built(data: st.DataObject) -> None:
    fabric = data.draw(risky_fabrics())
    other = shuffled(fabric, data.draw(st.permutations(list(range(7)))))
    unusable = data.draw(link_sets(fabric))
    one = compute(Topology(fabric), unusable=unusable)
    assert compute(Topology(other), unusable=unusable) == one


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_what_was_computed_before_changes_no_result(data: st.DataObject) -> None:
    """A topology remembers its last computation to spare work: the same as a fresh one, after any history."""
    fabric = data.draw(risky_fabrics())
    used = Topology(fabric)
    for _ in range(3):
        unusable, is_protecting = data.draw(link_sets(fabric)), data.draw(st.booleans())
        facts = tuple(
            FactRef(link=link, reporter=end.node, counter=1)
            for link in sorted(unusable)
            for end in fabric.links[link].ends
        )
        found = compute(used, unusable=unusable, facts=facts, is_protecting=is_protecting)
        fresh = compute(Topology(fabric), unusable=unusable, facts=facts, is_protecting=is_protecting)
        assert found == fresh


PRINT_DIGESTS = """
from erfs.generators import generate
from erfs.paths import Topology, compute, plan_rounds
for kind, params in (("fat-tree", {"k": 4}), ("torus", {"dims": "3x3"}),
                     ("leaf-spine", {"leaves": 4, "spines": 2, "attachments": 2, "hosts_per_leaf": 2})):
    fabric = generate(kind, params)
    topology = Topology(fabric)
    first = compute(topology, unusable=frozenset())
    second = compute(topology, unusable=frozenset([fabric.trunks[0].id, fabric.links_of[fabric.endpoints[0].id][0].id]))
    for found in (first, second):
        print(found.unprotected)
        print([(node, program.model_dump_json()) for node, program in found.programs.items()])
    print([[(node, program.digest) for node, program in turn.items()]
           for turn in plan_rounds(first.programs, second.programs, fabric)])
"""


def test_programs_are_the_same_bytes_under_every_hash_seed() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGESTS],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(printed) == 1
    assert len(printed.pop()) > 10_000


def test_nodes_with_a_program_are_switches_and_attached_endpoints() -> None:
    """Aggregation nodes, endpoints without a switch, and cables looped on a switch have no part in it."""
    draft = Draft()
    switch = draft.switch("s")
    draft.cable(switch, switch)
    draft.host("h", switch)
    draft.host("lonely")
    programs = compute(Topology(draft.fabric()), unusable=ALL_UP).programs
    assert list(programs) == ["h", "s"]
    assert [port.far_end for port in programs[switch].ports] == ["h"]


def test_an_endpoint_with_one_attachment_sends_everything_by_all_its_usable_links() -> None:
    draft = Draft()
    switch = draft.switch("s")
    host = draft.host("h", switch, switch)
    topology = Topology(draft.fabric())
    first, second = sorted(link.id for link in topology.fabric.links_of[host])
    for unusable, ports in (
        ((), ("p1", "p2")),
        ((first,), ("p2",)),
        ((first, second), ("p1", "p2")),  # as built: nothing is lost by trying
    ):
        program = compute(topology, unusable=frozenset(unusable)).programs[host]
        assert members_of(program, EVERYTHING) == ports
        assert [route.has_detour for route in program.routes] == [False]


def two_leaves() -> tuple[Fabric, LinkId]:
    """A host on two leaves below two spines, another host on each leaf; returns its link to leaf0 too."""
    draft = Draft()
    leaf0, leaf1 = draft.switch("leaf0", 1), draft.switch("leaf1", 1)
    for name in ("spine0", "spine1"):
        spine = draft.switch(name, 2)
        draft.cable(leaf0, spine)
        draft.cable(leaf1, spine)
    draft.host("h0", leaf0)
    draft.host("h1", leaf1)
    both = draft.host("both", leaf0, leaf1)
    fabric = draft.fabric()
    return fabric, next(link.id for link in fabric.links_of[both] if link.far_end(both).node == "leaf0")


def test_an_endpoint_that_lost_an_attachment_moves_alone() -> None:
    """Its class keeps its route; it gets one of its own where that differs, and the leaf that lost it sends to the other one."""
    fabric, lost = two_leaves()
    topology = Topology(fabric)
    before = compute(topology, unusable=ALL_UP).programs
    after = compute(topology, unusable=frozenset({lost})).programs
    itself, of_class = "@leaf0+leaf1/both", "@leaf0+leaf1"
    spine = NodeId("spine0")
    assert members_of(before[spine], of_class) == members_of(after[spine], of_class) == ("p1", "p2")
    assert members_of(before[spine], itself) is None
    assert members_of(after[spine], itself) == ("p2",)
    assert members_of(before[NodeId("leaf0")], itself) == ("p4",)
    assert members_of(after[NodeId("leaf0")], itself) == ("p1", "p2")
    assert members_of(after[NodeId("leaf1")], itself) == ("p4",)
    assert members_of(after[NodeId("both")], "@leaf0") == ("p2",)


def test_an_endpoint_without_any_link_has_no_route_at_its_switches() -> None:
    fabric, lost = two_leaves()
    links = frozenset(link.id for link in fabric.links_of[NodeId("both")])
    assert lost in links
    programs = compute(Topology(fabric), unusable=links).programs
    assert {node: members_of(program, "@leaf0+leaf1/both") for node, program in programs.items()} == dict.fromkeys(
        programs
    )


def test_a_stray_endpoint_out_of_reach_is_not_carried_into_a_valley() -> None:
    """spine0 reaches only leaf0; the host below lost its link to leaf0: an empty group says so instead of the class's route."""
    draft = Draft()
    leaf0, leaf1, leaf2 = (draft.switch(f"leaf{index}", 1) for index in range(3))
    spine0, spine1 = draft.switch("spine0", 2), draft.switch("spine1", 2)
    for leaf, spine in ((leaf0, spine0), (leaf0, spine1), (leaf1, spine1), (leaf2, spine0), (leaf2, spine1)):
        draft.cable(leaf, spine)
    draft.host("h2", leaf2)
    both = draft.host("both", leaf0, leaf1)
    fabric = draft.fabric()
    lost = next(link.id for link in fabric.links_of[both] if link.far_end(both).node == leaf0)
    programs = compute(Topology(fabric), unusable=frozenset({lost})).programs
    assert members_of(programs[spine0], "@leaf0+leaf1") == ("p1",)
    assert members_of(programs[spine0], "@leaf0+leaf1/both") == ()
    assert members_of(programs[leaf2], "@leaf0+leaf1/both") == ("p2",)


def test_a_failure_far_away_leaves_a_program_alone() -> None:
    """Facts that cannot change what a node does are not among those its program lists."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    link = next(link for link in fabric.links_of[NodeId("pod0-agg0")] if "edge0" in link.id)
    facts = tuple(FactRef(link=link.id, reporter=end.node, counter=1) for end in link.ends)
    before = compute(topology, unusable=ALL_UP).programs
    after = compute(topology, unusable=frozenset({link.id}), facts=facts).programs
    changed = {node for node in before if before[node].digest != after[node].digest}
    assert changed >= {"pod0-agg0", "pod0-edge0", "pod0-edge1"}
    assert not {node for node in changed if fabric.nodes[node].is_endpoint}
    assert after[NodeId("pod0-agg0")].computed_from == tuple(sorted(facts, key=lambda fact: fact.reporter))
    assert after[NodeId("pod0-edge1")].computed_from == ()


def test_a_fact_about_a_link_still_in_use_is_listed_by_whoever_is_armed_for_it() -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1})
    link = fabric.trunks[0]
    fact = FactRef(link=link.id, reporter=link.a.node, counter=4)
    programs = compute(Topology(fabric), unusable=ALL_UP, facts=(fact,)).programs
    listing = {node for node, program in programs.items() if program.computed_from}
    armed = {
        node
        for node, program in programs.items()
        if link.id in program.armed.links or link.b.node in program.armed.nodes
    }
    assert listing == armed | {link.a.node, link.b.node}
    assert armed


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_risk_groups_entry_lists_its_usable_trunks_and_waits_for_all_their_ends(data: st.DataObject) -> None:
    fabric = data.draw(risky_fabrics())
    unusable = data.draw(link_sets(fabric))
    for node, program in compute(Topology(fabric), unusable=unusable).programs.items():
        for srlg, risk in program.armed.srlgs.items():
            trunks = [link for link in fabric.trunks if srlg in link.srlgs and link.id not in unusable]
            assert risk.links == tuple(sorted(link.id for link in trunks))
            assert len(trunks) > 1
            assert {end.node for link in trunks for end in link.ends} - {node} <= set(program.armed.reporters)


def test_a_lost_trunk_of_a_risk_group_changes_who_is_armed_for_the_group_and_is_waited_for_no_more() -> None:
    """A topology that remembers must not take the group for what it was, even where nothing else differs."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    tray = SrlgId("tray:pod0-plane0")
    lost, left = (link.id for link in fabric.trunks if tray in link.srlgs)
    far = NodeId("pod1-edge0")
    assert compute(topology, unusable=ALL_UP).programs[far].armed.srlgs[tray].links == (lost, left)
    assert tray not in compute(topology, unusable=frozenset({lost})).programs[far].armed.srlgs
    assert compute(topology, unusable=ALL_UP).programs[far].armed.srlgs[tray].links == (lost, left)


def test_a_fact_about_a_trunk_in_use_is_listed_by_whoever_is_armed_for_its_group() -> None:
    fabric = generate("fat-tree", {"k": 4})
    tray = SrlgId("tray:pod0-plane0")
    link = next(link for link in fabric.trunks if tray in link.srlgs)
    fact = FactRef(link=link.id, reporter=link.a.node, counter=4)
    stranger = FactRef(link=link.id, reporter=NodeId("pod2-edge0"), counter=4)
    programs = compute(Topology(fabric), unusable=ALL_UP, facts=(fact, stranger)).programs
    armed = {node for node, program in programs.items() if tray in program.armed.srlgs}
    assert armed - {link.a.node, link.b.node}
    for node in armed - {link.a.node, link.b.node}:
        assert programs[node].computed_from == (fact,)


def test_only_what_somebody_upstream_can_avoid_has_a_detour() -> None:
    fabric, _ = two_leaves()
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    detours = {
        (node, route.destination): route.has_detour
        for node in ("leaf0", "spine0")
        for route in programs[NodeId(node)].routes
    }
    assert detours == {
        ("leaf0", "@leaf0/h0"): False,
        ("leaf0", "@leaf1"): False,  # nobody but its own single-homed host sends this way
        ("leaf0", "@leaf0+leaf1/both"): True,  # the spines may take leaf1
        ("spine0", "@leaf0"): True,  # leaf1 may take spine1
        ("spine0", "@leaf1"): True,
        ("spine0", "@leaf0+leaf1"): False,  # both leaves are there already
    }


@pytest.mark.parametrize("kind", ["fat-tree", "torus"])
def test_without_protection_nothing_is_armed(kind: str) -> None:
    found = compute(Topology(generate(kind, {})), unusable=ALL_UP, is_protecting=False)
    assert not any(program.armed for program in found.programs.values())
    assert found.unprotected == ()
