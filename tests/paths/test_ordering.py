"""Rounds of installation: whatever mixture of two adjacent rounds the nodes hold, nothing loops, and nothing that works is cut."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, LinkEnd
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Group, Member, Program, content_digest, sealed
from erfs.paths import Topology, compute, plan_rounds
from tests.paths.fabrics import Draft, fabrics, fates, loops_in, tables_of, tangle

ALL_UP: frozenset[LinkId] = frozenset()


@st.composite
def link_sets(draw: st.DrawFn, fabric: Fabric, *, least: int = 0, most: int = 3) -> frozenset[LinkId]:
    return frozenset(draw(st.lists(st.sampled_from(sorted(fabric.links)), min_size=least, max_size=most)))


def mixtures(
    data: st.DataObject, old: Mapping[NodeId, Program], rounds: list[dict[NodeId, Program]], *, tries: int = 3
) -> list[dict[NodeId, Program]]:
    """Return states in which some nodes of a round have their new program and some don't, for each round."""
    found = [dict(old)]
    state = dict(old)
    for programs in rounds:
        for _ in range(tries):
            some = data.draw(st.sets(st.sampled_from(sorted(programs))))
            found.append({**state, **{node: programs[node] for node in some}})
        found.extend({**state, node: programs[node]} for node in sorted(programs))
        state.update(programs)
        found.append(dict(state))
    return found


@given(st.data())
@settings(max_examples=70, deadline=None)
def test_no_mixture_of_adjacent_rounds_loops(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    old = compute(topology, unusable=data.draw(link_sets(fabric)), is_protecting=False).programs
    new = compute(topology, unusable=data.draw(link_sets(fabric)), is_protecting=False).programs
    for state in mixtures(data, old, plan_rounds(old, new, fabric)):
        assert loops_in(fabric, tables_of(state)) == []


@pytest.mark.parametrize("seed", range(40))
def test_additions_armed_in_any_mixture_are_acyclic_with_all_next_hops(seed: int) -> None:
    """Every switch adds all it is armed to add at once: more than any facts can make the agents do."""
    random = Random(seed)
    fabric = tangle(random)
    topology = Topology(fabric)
    trunks = [link.id for link in fabric.trunks]
    old = compute(topology, unusable=frozenset(random.sample(trunks, random.randint(0, 3)))).programs
    new = compute(topology, unusable=frozenset(random.sample(trunks, random.randint(0, 3)))).programs
    installed = dict(old)
    for programs in plan_rounds(old, new, fabric):
        for _ in range(3):
            state = {**installed, **{node: program for node, program in programs.items() if random.random() < 0.5}}
            tables = {node: dict(table) for node, table in tables_of(state).items() if fabric.nodes[node].is_switch}
            for node, table in tables.items():
                for change in (change for entry in state[node].armed for change in entry.changes if change.add):
                    for destination in change.destinations:
                        table[destination] = (*table.get(destination, ()), *change.add)
            assert loops_in(fabric, tables) == []
        installed.update(programs)


@given(st.data())
@settings(max_examples=70, deadline=None)
def test_a_change_between_working_states_loses_nothing(data: st.DataObject) -> None:
    """A returning link, or a link taken out of use that still works: what both states serve is served whole at every mixture."""
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    few = data.draw(link_sets(fabric))
    more = few | data.draw(link_sets(fabric, least=1))
    before, after = data.draw(st.permutations([few, more]))
    old = compute(topology, unusable=before, is_protecting=False).programs
    new = compute(topology, unusable=after, is_protecting=False).programs
    pairs = [(one, other) for one in fabric.destination_of for other in fabric.destination_of if one != other]

    def fate(state: Mapping[NodeId, Program], pair: tuple[NodeId, NodeId]) -> set[str]:
        return fates(fabric, tables_of(state), *pair, lambda link: link not in few)

    served = [pair for pair in pairs if fate(old, pair) == fate(new, pair) == {"delivered"}]
    for state in mixtures(data, old, plan_rounds(old, new, fabric), tries=2):
        tables = tables_of(state)
        for pair in served:
            assert fates(fabric, tables, *pair, lambda link: link not in few) == {"delivered"}, pair


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_rounds_end_at_the_new_programs_and_contain_only_changes(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    old = compute(topology, unusable=data.draw(link_sets(fabric))).programs
    new = compute(topology, unusable=data.draw(link_sets(fabric))).programs
    state = dict(old)
    for programs in plan_rounds(old, new, fabric):
        assert programs
        for node, program in programs.items():
            assert program.digest != state[node].digest
            assert program.digest == content_digest(program)
            assert [group.id for group in program.groups] == list(range(len(program.groups)))
        state.update(programs)
    assert state == new


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_node_that_starts_with_nothing_is_filled_before_it_is_used(data: st.DataObject) -> None:
    """A switch came back empty: the others gain it as a next hop only when it is ready, and nothing loops meanwhile."""
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    lost = data.draw(st.sampled_from(fabric.switches)).id
    around = frozenset(link.id for link in fabric.links_of[lost])
    old = dict(compute(topology, unusable=around, is_protecting=False).programs)
    del old[lost]
    new = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    pairs = [(one, other) for one in fabric.destination_of for other in fabric.destination_of if one != other]
    served = [pair for pair in pairs if fates(fabric, tables_of(old), *pair, lambda link: True) == {"delivered"}]
    for state in mixtures(data, old, plan_rounds(old, new, fabric), tries=2):
        tables = tables_of(state)
        assert loops_in(fabric, tables) == []
        for pair in served:
            assert fates(fabric, tables, *pair, lambda link: True) == {"delivered"}, pair


def test_the_first_installation_is_one_round() -> None:
    fabric = generate("fat-tree", {"k": 4})
    new = compute(Topology(fabric), unusable=ALL_UP).programs
    assert plan_rounds({}, new, fabric) == [new]


def test_equal_programs_need_no_round() -> None:
    fabric = generate("fat-tree", {"k": 4})
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    restamped = {node: program.model_copy(update={"epoch": 7, "generation": 3}) for node, program in programs.items()}
    assert plan_rounds(restamped, programs, fabric) == []


def test_whoever_sends_to_a_node_leaves_it_before_it_forgets_the_way() -> None:
    """core0-0 loses its only way into pod 0: those who send by it drop it first; only then it drops its own route."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    link = next(
        link.id for link in fabric.links_of[NodeId("pod0-agg0")] if link.far_end(NodeId("pod0-agg0")).node == "core0-0"
    )
    old = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    new = compute(topology, unusable=frozenset({link}), is_protecting=False).programs
    first, second = plan_rounds(old, new, fabric)
    assert sorted(first) == ["pod0-agg0", "pod1-agg0", "pod2-agg0", "pod3-agg0"]
    assert sorted(second) == ["core0-0"]


def test_a_returning_link_is_ready_at_its_far_end_before_anybody_sends_over_it() -> None:
    """core0-0 lost its only way into pod 0: first core0-0 and pod0-agg0 get the link back, then those who send by core0-0."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    link = next(
        link.id for link in fabric.links_of[NodeId("pod0-agg0")] if link.far_end(NodeId("pod0-agg0")).node == "core0-0"
    )
    old = compute(topology, unusable=frozenset({link}), is_protecting=False).programs
    new = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    first, second = plan_rounds(old, new, fabric)
    assert sorted(first) == ["core0-0", "pod0-agg0"]
    assert sorted(second) == ["pod1-agg0", "pod2-agg0", "pod3-agg0"]


def test_a_node_that_waits_leaves_what_it_will_not_use_any_more_at_once() -> None:
    """leaf0 exchanges one of its two spines for a third: one round with the spine that stays, then with the new one as well."""
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 3, "hosts_per_leaf": 1})
    topology = Topology(fabric)
    leaf = NodeId("leaf0")
    to = {link.far_end(leaf).node: link for link in fabric.links_of[leaf]}
    old = compute(topology, unusable=frozenset({to[NodeId("spine2")].id}), is_protecting=False).programs
    new = compute(topology, unusable=frozenset({to[NodeId("spine0")].id}), is_protecting=False).programs

    def spines(program: Program) -> list[NodeId]:
        members = tables_of({leaf: program})[leaf][DestinationId("@leaf1")]
        return [fabric.link_at[LinkEnd(leaf, member.port)].far_end(leaf).node for member in members]

    rounds = plan_rounds(old, new, fabric)
    given = [spines(program) for program in (old[leaf], *(turn[leaf] for turn in rounds if leaf in turn))]
    assert given == [["spine0", "spine1"], ["spine1"], ["spine1", "spine2"]]


def test_an_endpoint_apart_from_its_class_keeps_its_own_way_while_the_class_waits() -> None:
    """
    m1 lost s1, so s0 sends to it by s2, apart from its class; then s0-s1 goes and the class takes that way too.

    Found by a search: until the class got there, m1 fell back on the class's old way, and s0 and s1 sent to each other.
    """
    draft = Draft()
    s0, s1, s2, s3 = (draft.switch(f"s{index}") for index in range(4))
    direct = draft.cable(s0, s1)
    draft.cable(s0, s2)
    draft.cable(s2, s3)
    draft.host("h0", s0)
    draft.host("m0", s1, s3)
    astray = draft.host("m1", s1, s3)
    fabric = draft.fabric()
    lost = next(link.id for link in fabric.links_of[astray] if link.far_end(astray).node == s1)
    topology = Topology(fabric)
    old = compute(topology, unusable=frozenset({lost}), is_protecting=False).programs
    new = compute(topology, unusable=frozenset({lost, direct}), is_protecting=False).programs
    state = dict(old)
    for programs in plan_rounds(old, new, fabric):
        for node in programs:
            tables = tables_of({**state, node: programs[node]})
            assert fates(fabric, tables, NodeId("h0"), astray, lambda link: link != lost) == {"delivered"}
        state.update(programs)


def test_an_endpoint_that_loses_its_last_usable_links_is_never_without_a_route() -> None:
    """They may work all the same, and then nothing is lost: it changes from a route per class to one for everything at once."""
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1, "attachments": 2})
    topology = Topology(fabric)
    host = fabric.endpoints[0].id
    old = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    new = compute(topology, unusable=frozenset(link.id for link in fabric.links_of[host]), is_protecting=False).programs
    given = [turn[host] for turn in plan_rounds(old, new, fabric) if host in turn]
    assert given == [new[host]]


@pytest.mark.parametrize("seed", range(60))
def test_a_change_between_working_states_of_a_tangle_loses_nothing(seed: int) -> None:
    random = Random(seed)
    fabric = tangle(random)
    links = sorted(fabric.links)
    few = frozenset(random.sample(links, random.randint(0, 3)))
    states = [few, few | frozenset(random.sample(links, random.randint(1, 3)))]
    random.shuffle(states)
    topology = Topology(fabric)
    old, new = (compute(topology, unusable=state, is_protecting=False).programs for state in states)
    pairs = [(one, other) for one in fabric.destination_of for other in fabric.destination_of if one != other]

    def served(programs: Mapping[NodeId, Program]) -> set[tuple[NodeId, NodeId]]:
        tables = tables_of(programs)
        return {pair for pair in pairs if fates(fabric, tables, *pair, lambda link: link not in few) == {"delivered"}}

    both = served(old) & served(new)
    installed = dict(old)
    for programs in plan_rounds(old, new, fabric):
        for node in programs:
            state = {**installed, node: programs[node]}
            assert loops_in(fabric, tables_of(state)) == []
            assert served(state) >= both
        installed.update(programs)


def test_a_node_without_a_new_program_keeps_its_old_one() -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2})
    topology = Topology(fabric)
    old = compute(topology, unusable=frozenset({fabric.trunks[0].id})).programs
    new = dict(compute(topology, unusable=ALL_UP).programs)
    absent = fabric.trunks[0].a.node
    del new[absent]
    assert all(absent not in programs for programs in plan_rounds(old, new, fabric))


@pytest.mark.parametrize("weight", [2, 5])
def test_another_share_for_the_same_next_hops_needs_no_waiting(weight: int) -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2})
    old = compute(Topology(fabric), unusable=ALL_UP, is_protecting=False).programs

    def weighted(group: Group) -> Group:
        return Group(id=group.id, members=tuple(Member(port=member.port, weight=weight) for member in group.members))

    new = {
        node: sealed(program.model_copy(update={"groups": tuple(weighted(group) for group in program.groups)}))
        for node, program in old.items()
    }
    assert plan_rounds(old, new, fabric) == [new]
