"""Rounds of installation: whatever mixture of two adjacent rounds the nodes hold, nothing loops, and nothing that works is cut."""

import itertools
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, LinkEnd, goes_up, is_valley_free_required
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId, is_endpoint
from erfs.messages import Group, Member, Program, content_digest, sealed
from erfs.paths import PushVerdict, RoundVerdict, Topology, Verifier, compute, plan_rounds
from tests.paths.fabrics import Draft, fabrics, fates, loops_in, tables_of, tangle
from tests.paths.oracle import always, with_route, with_table

ALL_UP: frozenset[LinkId] = frozenset()
# Of a fat-tree with k = 4, where one uplink is half of them: what an aggregation switch loses or gets back, they share anew.
EDGES = [f"pod{pod}-edge{index}" for pod in range(4) for index in range(2)]


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
                for change in (
                    change for entry in state[node].armed.entries() for change in entry.changes if change.add
                ):
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
    """core0-0 loses its only way into pod 0: those who send by it drop it first; only then it drops its own route. Shares change at once."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    link = next(
        link.id for link in fabric.links_of[NodeId("pod0-agg0")] if link.far_end(NodeId("pod0-agg0")).node == "core0-0"
    )
    old = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    new = compute(topology, unusable=frozenset({link}), is_protecting=False).programs
    first, second = plan_rounds(old, new, fabric)
    assert sorted(first) == sorted([*(f"pod{pod}-agg0" for pod in range(4)), *EDGES])
    assert sorted(second) == ["core0-0"]


def test_a_returning_link_is_ready_at_its_far_end_before_anybody_sends_over_it() -> None:
    """core0-0 lost its only way into pod 0: core0-0 and pod0-agg0 get the link back, then those who send by core0-0. Shares change at once."""
    fabric = generate("fat-tree", {"k": 4})
    topology = Topology(fabric)
    link = next(
        link.id for link in fabric.links_of[NodeId("pod0-agg0")] if link.far_end(NodeId("pod0-agg0")).node == "core0-0"
    )
    old = compute(topology, unusable=frozenset({link}), is_protecting=False).programs
    new = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    shares, first, second = plan_rounds(old, new, fabric)
    assert sorted(shares) == EDGES
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


# --- planned changes: any tables before, any after -----------------------------------------------------------------------
def any_next_hops(fabric: Fabric, random: Random, name: DestinationId) -> dict[NodeId, tuple[Member, ...]]:
    """
    Return next hops of all switches and multi-homed endpoints towards a class: what some link costs could ask for, or some of it.

    Every node draws from its neighbours that are nearer under costs drawn for this class alone. Where valleys are forbidden a node
    with a way down uses only such, and any other goes up.
    """
    costs = {(link.id, end.node): random.choice([1, 1, 1, 2, 5]) for link in fabric.trunks for end in link.ends}
    homes = set(fabric.attachments[fabric.class_members[name][0]])
    distance: dict[NodeId, int] = dict.fromkeys(homes, 0)
    chosen: dict[NodeId, tuple[Member, ...]] = {}
    is_policy = is_valley_free_required(fabric)
    for phase in (False, True) if is_policy else (None,):
        usable = [
            (far, end.node, link)
            for link in fabric.trunks
            for end in link.ends
            for far in [link.far_end(end.node).node]
            if phase is None or goes_up(fabric, link, end.node) is phase
        ]
        settled = frozenset(distance)
        for _ in fabric.switches:
            for far, near, link in usable:
                if far in distance and (near not in settled or phase is None):
                    found = distance[far] + costs[link.id, near]
                    distance[near] = min(distance.get(near, found), found)
        for node in sorted(set(distance) - homes - chosen.keys()):
            nearer = sorted(
                {
                    link.end_at(node).port
                    for far, near, link in usable
                    if near == node and distance.get(far, 1 << 30) < distance[node]
                }
            )
            if nearer:
                ports = random.sample(nearer, random.randint(1, len(nearer)))
                chosen[node] = tuple(Member(port=port) for port in sorted(ports))
    for endpoint, switches in fabric.attachments.items():
        if len(switches) > 1:
            ports = sorted(
                link.end_at(endpoint).port
                for link in fabric.access_links[endpoint]
                if link.far_end(endpoint).node in distance
            )
            if ports:
                kept = random.sample(ports, random.randint(1, len(ports)))
                chosen[endpoint] = tuple(Member(port=port) for port in sorted(kept))
    return chosen


def any_programs(fabric: Fabric, random: Random, plain: Mapping[NodeId, Program]) -> dict[NodeId, Program]:
    """Return the *plain* programs with `any_next_hops` in place of their routes to classes."""
    chosen = {name: any_next_hops(fabric, random, name) for name in fabric.class_members}
    found = {}
    for node, program in plain.items():
        if not fabric.nodes[node].is_switch and len(fabric.attachments[node]) == 1:
            found[node] = program
            continue
        table = {name: hops[node] for name, hops in chosen.items() if node in hops}
        own = tables_of({node: program})[node]
        table |= {name: members for name, members in own.items() if is_endpoint(name)}
        found[node] = with_table(program, table)
    return found


def assert_nothing_loops_or_is_lost(
    fabric: Fabric, old: Mapping[NodeId, Program], new: Mapping[NodeId, Program], random: Random
) -> None:
    """Walk through the rounds; at each step some of the round's nodes have their new programs, and the verifier looks."""
    verifier = Verifier(fabric)
    rounds = plan_rounds(old, new, fabric)
    before, after = (verifier.verify(programs, working=always) for programs in (old, new))
    assert before.is_clean
    assert after.is_clean
    state = dict(old)
    for programs in rounds:
        for _ in range(4):
            some = {node: program for node, program in programs.items() if random.random() < 0.5}
            found = verifier.verify({**state, **some}, working=always)
            assert found.is_clean
            assert found.unreached == ()
        state.update(programs)
    assert state == new
    assert verifier.verify_rounds(old, rounds, working=always) == PushVerdict(
        (RoundVerdict(),) * len(rounds), is_repair=False
    )


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_other_link_costs_loop_nothing_lose_nothing_and_cross_no_valley(data: st.DataObject) -> None:
    """Any acyclic next hops before and after, for each destination others; any subset of each round."""
    fabric = data.draw(fabrics())
    random = Random(data.draw(st.integers(0, 2**32)))
    plain = compute(Topology(fabric), unusable=ALL_UP, is_protecting=False).programs
    old, new = (any_programs(fabric, random, plain) for _ in range(2))
    # A destination out of policy's reach is lost before and after alike; then there is nothing to see here.
    assume(not Verifier(fabric).verify(old, working=always).unreached)
    assume(not Verifier(fabric).verify(new, working=always).unreached)
    assert_nothing_loops_or_is_lost(fabric, old, new, random)


@pytest.mark.parametrize("seed", range(30))
def test_other_link_costs_on_a_tangle_loop_nothing_and_lose_nothing(seed: int) -> None:
    random = Random(seed)
    fabric = tangle(random)
    plain = compute(Topology(fabric), unusable=ALL_UP, is_protecting=False).programs
    assert_nothing_loops_or_is_lost(fabric, *(any_programs(fabric, random, plain) for _ in range(2)), random)


@pytest.mark.parametrize("kind", ["fat-tree", "leaf-spine"])
@pytest.mark.parametrize("seed", range(8))
def test_a_drain_and_its_end_lose_nothing_and_cross_no_valley(kind: str, seed: int) -> None:
    """Links and a switch are taken out of use that still work, and come back."""
    random = Random(seed)
    fabric = generate(kind, {})
    topology = Topology(fabric)
    spare = [node for node in fabric.switches if (node.tier or 0) > 1]
    drained = frozenset(link.id for link in fabric.links_of[random.choice(spare).id])
    full = compute(topology, unusable=ALL_UP).programs
    empty = compute(topology, unusable=drained).programs
    assert_nothing_loops_or_is_lost(fabric, full, empty, random)
    assert_nothing_loops_or_is_lost(fabric, empty, full, random)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_only_takes_next_hops_away_is_one_round(data: st.DataObject) -> None:
    """No node waits for another while each keeps one of the next hops it had: the fastest there is."""
    fabric = data.draw(fabrics())
    random = Random(data.draw(st.integers(0, 2**32)))
    plain = compute(Topology(fabric), unusable=ALL_UP, is_protecting=False).programs
    old = any_programs(fabric, random, plain)
    new = {}
    for node, program in old.items():
        groups = tuple(
            Group(
                id=group.id,
                members=tuple(
                    sorted(
                        random.sample(group.members, random.randint(1, len(group.members))),
                        key=lambda member: member.port,
                    )
                ),
            )
            if group.members and fabric.nodes[node].is_switch
            else group
            for group in program.groups
        )
        new[node] = sealed(program.model_copy(update={"groups": groups}))
    changed = {node: program for node, program in new.items() if program.digest != old[node].digest}
    assert plan_rounds(old, new, fabric) == ([changed] if changed else [])


def test_nobody_turns_up_before_those_above_have_left_it() -> None:
    """
    s0 and s1 send down to agg what goes to home; agg loses its way down and goes up from now on, by the two that have another one.

    Whoever has not left agg yet would get a valley. So agg waits, with its old route, though it could be ready at once.
    """
    draft = Draft()
    home, agg, other = draft.switch("home", 1), draft.switch("agg", 2), draft.switch("other", 2)
    s0, s1 = draft.switch("s0", 3), draft.switch("s1", 3)
    lost = draft.cable(agg, home)
    draft.cable(other, home)
    for spine in (s0, s1):
        draft.cable(spine, agg)
        draft.cable(spine, other)
    draft.host("h", home)
    draft.host("m", agg)
    fabric = draft.fabric()
    assert is_valley_free_required(fabric)
    topology = Topology(fabric)
    old = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    new = compute(topology, unusable=frozenset({lost}), is_protecting=False).programs
    rounds = plan_rounds(old, new, fabric)
    assert [sorted(programs) for programs in rounds] == [["agg", "s0", "s1"], ["agg", "home"]]
    to_home = DestinationId("@home")
    assert tables_of(rounds[0])[agg][to_home] == tables_of(old)[agg][to_home]
    assert Verifier(fabric).verify_rounds(old, rounds, working=always).unsafe_round() is None
    assert Verifier(fabric).verify_rounds(old, [new], working=always).rounds[0].valleys


def test_a_node_that_turns_up_waits_for_one_above_that_has_to_wait_itself() -> None:
    """
    agg is ready to go up at once, but upper leaves it only when top is ready, which is one round later.

    Found by taking the rule away: where all leave at once, no random fabric ever needed it.
    """
    draft = Draft()
    home, agg, other = draft.switch("home", 1), draft.switch("agg", 2), draft.switch("other", 2)
    upper, way, top = draft.switch("upper", 3), draft.switch("way", 3), draft.switch("top", 4)
    for one, below in ((agg, home), (other, home), (upper, agg), (way, agg), (way, other), (top, upper), (top, way)):
        draft.cable(one, below)
    for node in (home, upper, top):
        draft.host(f"h-{node}", node)
    fabric = draft.fabric()
    assert is_valley_free_required(fabric)
    plain = compute(Topology(fabric), unusable=ALL_UP, is_protecting=False).programs

    def programs(**far_ends: str) -> dict[NodeId, Program]:
        """Return the programs with other next hops towards home."""
        changed = {
            NodeId(node): with_route(fabric, plain[NodeId(node)], "@home", far) for node, far in far_ends.items()
        }
        return {**plain, **changed}

    old = programs(agg="home", upper="agg", way="other", top="upper")
    new = programs(agg="way", upper="top", way="other", top="way")
    rounds = plan_rounds(old, new, fabric)
    assert [sorted(turn) for turn in rounds] == [["top"], ["upper"], ["agg"]]
    assert_nothing_loops_or_is_lost(fabric, old, new, Random(1))
    too_soon = [rounds[0], rounds[1] | rounds[2]]
    assert Verifier(fabric).verify_rounds(old, too_soon, working=always).unsafe_round() == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_chain_of_a_thousand_switches_is_ordered(is_closed: bool) -> None:
    """The ranks of a chain depend on each other from end to end: nothing recurses."""
    draft = Draft()
    switches = [draft.switch(f"s{index:03}") for index in range(1000)]
    ring = [draft.cable(one, other) for one, other in itertools.pairwise([*switches, switches[0]])]
    draft.host("h", switches[0])
    fabric = draft.fabric()
    topology = Topology(fabric)
    whole = compute(topology, unusable=ALL_UP, is_protecting=False).programs
    cut = compute(topology, unusable=frozenset({ring[-1 if is_closed else 0]}), is_protecting=False).programs
    rounds = plan_rounds(whole, cut, fabric)
    # Those that turned round wait one for the other, from the cut's far side on.
    assert len(rounds) > 400
    assert Verifier(fabric).verify_rounds(whole, rounds[:3], working=always).unsafe_round() is None
