"""Forwarding as the pure function it is: the rules of the design one by one, then what must hold for every input."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import (
    CONTROLLER,
    Armed,
    ArmedEntry,
    Change,
    FactRef,
    FailureKind,
    Group,
    Member,
    PortBinding,
    Program,
    Route,
)
from erfs_agent.forwarding import CompiledProgram, FactSet, Forwarder, Forwarding, forwarding, is_one_failure

NO_FACTS = FactSet()
NO_PORTS: frozenset[str] = frozenset()
NOBODY: Mapping[NodeId, frozenset[DestinationId]] = {}

LEAF_B = DestinationId("@leafB")
LEAF_C = DestinationId("@leafC")
HOST = DestinationId("@leafB/host1")


def members(*ports: str) -> tuple[Member, ...]:
    return tuple(Member(port=port) for port in ports)


def ports(found: Forwarding, destination: str) -> tuple[str, ...]:
    return tuple(member.port for member in found.routes[DestinationId(destination)])


def entry(failure: str, *changes: Change, kind: FailureKind = "link", links: tuple[LinkId, ...] = ()) -> ArmedEntry:
    return ArmedEntry(kind, failure, changes, links)


def drop(destination: str, *dropped: str) -> Change:
    return Change((DestinationId(destination),), drop=dropped)


def add(destination: str, *added: str) -> Change:
    return Change((DestinationId(destination),), add=members(*added))


def program(
    *armed: ArmedEntry,
    computed_from: tuple[FactRef, ...] = (),
    routes: tuple[Route, ...] | None = None,
    ignored: tuple[LinkId, ...] = (),
) -> Program:
    """Leaf A with three spines: group 0 is all of them, group 1 spine1 alone."""
    return Program(
        sender=CONTROLLER,
        node=NodeId("leafA"),
        generation=1,
        digest="unchecked here",
        computed_from=computed_from,
        ports=tuple(
            PortBinding(port=f"e{n}", link=LinkId(f"leafA:e{n}|spine{n}:1"), far_end=NodeId(f"spine{n}"))
            for n in (1, 2, 3)
        ),
        groups=(Group(id=0, members=members("e1", "e2", "e3")), Group(id=1, members=members("e1"))),
        routes=routes or (Route(destination=LEAF_B, group=0), Route(destination=LEAF_C, group=0)),
        armed=Armed(ignored=ignored).with_entries(armed),
    )


def facts(*said: tuple[str, str, int, bool]) -> FactSet:
    known = FactSet()
    for link, reporter, counter, down in said:
        known = known.with_fact(LinkId(link), NodeId(reporter), counter, down, other_end(link, reporter))
    return known


def other_end(link: str, reporter: str) -> NodeId:
    """The far end of *reporter* in links named as all are here."""
    return next(NodeId(node) for node in (end.partition(":")[0] for end in link.split("|")) if node != reporter)


B1 = "leafB:e1|spine1:2"
B2 = "leafB:e2|spine2:2"
B_BY_SPINE1 = entry(B1, drop("@leafB", "e1"))
B_BY_SPINE2 = entry(B2, drop("@leafB", "e2"))
SPINE1 = entry(
    "spine1",
    Change(destinations=(LEAF_B, LEAF_C), drop=("e1",)),
    kind="node",
)


# --- rule 1: a pure function of program and facts --------------------------------------------------------------------------
def test_without_failures_the_groups_are_the_programs() -> None:
    found = forwarding(program(B_BY_SPINE1, SPINE1), NO_FACTS, NO_PORTS, NOBODY)

    assert found == Forwarding(routes={LEAF_B: members("e1", "e2", "e3"), LEAF_C: members("e1", "e2", "e3")})


def test_a_down_fact_of_a_witness_changes_the_destinations_of_its_entry_alone() -> None:
    found = forwarding(program(B_BY_SPINE1), facts((B1, "leafB", 1, True)), NO_PORTS, NOBODY)

    assert found == Forwarding(routes={LEAF_B: members("e2", "e3"), LEAF_C: members("e1", "e2", "e3")}, active=(B1,))


def test_a_later_up_fact_clears_the_change() -> None:
    cleared = facts((B1, "leafB", 1, True), (B1, "leafB", 2, False))

    assert forwarding(program(B_BY_SPINE1), cleared, NO_PORTS, NOBODY).active == ()


def test_a_link_stays_failed_while_one_of_its_ends_says_so() -> None:
    half = facts((B1, "leafB", 1, True), (B1, "spine1", 1, True), (B1, "leafB", 2, False))

    assert forwarding(program(B_BY_SPINE1), half, NO_PORTS, NOBODY).active == (B1,)


def test_a_fact_about_a_link_that_nothing_is_armed_for_changes_nothing() -> None:
    strange = facts(("leafX:e1|spine1:9", "spine1", 1, True))

    assert forwarding(program(B_BY_SPINE1), strange, NO_PORTS, NOBODY) == forwarding(
        program(B_BY_SPINE1), NO_FACTS, NO_PORTS, NOBODY
    )


def test_the_higher_counter_wins_and_a_tie_means_down() -> None:
    up_and_down = facts((B1, "leafB", 3, False), (B1, "leafB", 3, True))

    assert up_and_down == facts((B1, "leafB", 3, True), (B1, "leafB", 3, False))
    assert dict(up_and_down.down) == {(B1, "leafB"): 3}


# --- rule 2: facts that a program lists are in it already; all others are applied on installing it -------------------------
def test_listed_facts_are_not_applied_again() -> None:
    listing = program(B_BY_SPINE1, computed_from=(FactRef(link=LinkId(B1), reporter=NodeId("leafB"), counter=4),))

    assert forwarding(listing, facts((B1, "leafB", 4, True)), NO_PORTS, NOBODY).active == ()
    assert forwarding(listing, facts((B1, "leafB", 3, True)), NO_PORTS, NOBODY).active == ()


def test_a_newer_fact_than_the_listed_one_is_applied() -> None:
    listing = program(B_BY_SPINE1, computed_from=(FactRef(link=LinkId(B1), reporter=NodeId("leafB"), counter=4),))

    assert forwarding(listing, facts((B1, "leafB", 6, True)), NO_PORTS, NOBODY).active == (B1,)


def test_a_member_over_a_port_that_is_down_is_never_installed() -> None:
    found = forwarding(program(), NO_FACTS, frozenset({"e2"}), NOBODY)

    assert found.routes == {LEAF_B: members("e1", "e3"), LEAF_C: members("e1", "e3")}


# --- rule 3: removals combine freely, adds are exclusive -------------------------------------------------------------------
def test_removals_of_several_failures_and_own_ports_combine() -> None:
    both = facts((B1, "leafB", 1, True), (B2, "spine2", 1, True))

    found = forwarding(program(B_BY_SPINE1, B_BY_SPINE2), both, NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e3",)
    assert ports(found, "@leafC") == ("e1", "e2", "e3")


F1, F2 = "a:1|c:1", "b:1|c:2"
ADDS_1 = entry(F1, drop("@leafB", "e1"), add("@leafB", "e2"))
ADDS_2 = entry(F2, add("@leafB", "e3"))
NARROW = (Route(destination=LEAF_B, group=1), Route(destination=LEAF_C, group=1))


def test_one_entry_may_add() -> None:
    found = forwarding(program(ADDS_1, ADDS_2, routes=NARROW), facts((F1, "a", 1, True)), NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e2",)
    assert found.last_resort == frozenset()


def test_two_entries_that_add_for_one_destination_add_nothing() -> None:
    both = facts((F1, "a", 1, True), (F2, "b", 1, True))

    found = forwarding(program(ADDS_1, ADDS_2, routes=NARROW), both, NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e1",)
    assert found.last_resort == frozenset({LEAF_B})


def test_adds_for_different_destinations_do_not_exclude_each_other() -> None:
    other = entry(F2, add("@leafC", "e3"))
    both = facts((F1, "a", 1, True), (F2, "b", 1, True))

    found = forwarding(program(ADDS_1, other, routes=NARROW), both, NO_PORTS, NOBODY)

    assert (ports(found, "@leafB"), ports(found, "@leafC")) == (("e2",), ("e1", "e3"))


def test_a_member_that_is_refused_or_over_a_dead_port_is_not_added() -> None:
    known = facts((F1, "a", 1, True))

    over_dead = forwarding(program(ADDS_1, routes=NARROW), known, frozenset({"e2"}), NOBODY)
    refused = forwarding(program(ADDS_1, routes=NARROW), known, NO_PORTS, {NodeId("spine2"): frozenset({LEAF_B})})

    assert over_dead.last_resort == refused.last_resort == frozenset({LEAF_B})


def test_the_adds_of_a_nodes_links_are_the_nodes_own() -> None:
    """A dying switch is seen as link failures first; its links' entries must not shut out the node's."""
    x, y = "N:1|spine1:4", "N:2|leafC:4"
    links = [entry(link, drop("@leafB", "e1"), add("@leafB", "e2")) for link in (x, y)]
    node = entry("N", drop("@leafB", "e1"), add("@leafB", "e2"), kind="node")
    known = facts((x, "spine1", 1, True), (y, "leafC", 1, True))

    found = forwarding(program(*links, node, routes=NARROW), known, NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e2",)


def test_a_dying_nodes_own_last_word_is_no_second_opinion_either() -> None:
    """N said itself that it lost x before it died; x's entry is covered by the node's all the same."""
    x, y, z = "N:1|spine1:4", "N:2|leafC:4", "N:3|leafD:4"
    link = entry(x, drop("@leafB", "e1"), add("@leafB", "e2"))
    node = entry("N", drop("@leafB", "e1"), add("@leafB", "e2"), kind="node")
    known = facts((x, "N", 1, True), (y, "leafC", 1, True), (z, "leafD", 1, True))

    found = forwarding(program(link, node, routes=NARROW), known, NO_PORTS, NOBODY)

    assert found.active == (x, "N")[::-1]
    assert ports(found, "@leafB") == ("e2",)


# --- rule 4: a node's entry ------------------------------------------------------------------------------------------------
def test_one_reporter_does_not_make_a_node_failure() -> None:
    one = facts((B1, "leafB", 1, True))

    assert forwarding(program(SPINE1), one, NO_PORTS, NOBODY).active == ()


def test_one_reporter_about_two_parallel_links_does_not_make_a_node_failure() -> None:
    """Both cables of one trunk were cut; the spine is fine for everybody else."""
    other = "leafB:e5|spine1:8"
    node = entry("spine1", drop("@leafC", "e1"), kind="node")

    both = facts((B1, "leafB", 1, True), (other, "leafB", 1, True))

    assert forwarding(program(node), both, NO_PORTS, NOBODY).active == ()


def test_two_ends_of_one_link_do_not_make_a_node_failure() -> None:
    node = entry("spine1", drop("@leafB", "e1"), kind="node")

    assert (
        forwarding(program(node), facts((B1, "leafB", 1, True), (B1, "spine1", 1, True)), NO_PORTS, NOBODY).active == ()
    )


def test_two_reporters_about_two_links_make_a_node_failure() -> None:
    two = facts((B1, "leafB", 1, True), ("leafC:e1|spine1:3", "leafC", 1, True))

    found = forwarding(program(SPINE1), two, NO_PORTS, NOBODY)

    assert found.active == ("spine1",)
    assert (ports(found, "@leafB"), ports(found, "@leafC")) == (("e2", "e3"), ("e2", "e3"))


def test_the_nodes_own_fact_counts_as_one_of_the_two() -> None:
    own_and_other = facts(("leafA:e1|spine1:1", "leafA", 1, True), (B1, "leafB", 1, True))

    assert forwarding(program(SPINE1), own_and_other, frozenset({"e1"}), NOBODY).active == ("spine1",)


def test_a_link_that_was_unusable_already_testifies_to_no_node_failure() -> None:
    """The program was computed without leaf B's link: a late fact about it and one more cut cable are not a dead spine."""
    two = facts((B1, "leafB", 1, True), ("leafC:e1|spine1:3", "leafC", 1, True))

    assert forwarding(program(SPINE1, ignored=(LinkId(B1),)), two, NO_PORTS, NOBODY).active == ()


def test_a_node_does_not_testify_to_its_own_failure() -> None:
    said = facts(
        (B1, "spine1", 1, True), ("leafC:e1|spine1:3", "spine1", 1, True), ("leafD:e1|spine1:4", "spine1", 1, True)
    )

    assert forwarding(program(SPINE1), said, NO_PORTS, NOBODY).active == ()


# --- shared-risk groups ----------------------------------------------------------------------------------------------------
C1 = "leafC:e1|spine1:3"
TRAY = entry("tray", Change((LEAF_B, LEAF_C), drop=("e1",)), kind="srlg", links=(LinkId(B1), LinkId(C1)))


def test_one_link_of_a_risk_group_is_one_link() -> None:
    both_ends = facts((B1, "leafB", 1, True), (B1, "spine1", 1, True))

    assert forwarding(program(B_BY_SPINE1, TRAY), both_ends, NO_PORTS, NOBODY).active == (B1,)


def test_two_links_of_a_risk_group_are_the_group_even_by_one_reporters_word() -> None:
    by_two = forwarding(program(TRAY), facts((B1, "leafB", 1, True), (C1, "leafC", 1, True)), NO_PORTS, NOBODY)
    by_one = forwarding(program(TRAY), facts((B1, "spine1", 1, True), (C1, "spine1", 1, True)), NO_PORTS, NOBODY)

    assert by_one == by_two
    assert by_one.active == ("tray",)
    assert (ports(by_one, "@leafB"), ports(by_one, "@leafC")) == (("e2", "e3"), ("e2", "e3"))


def test_two_failed_links_of_two_risk_groups_are_neither() -> None:
    groups = [
        entry("one", drop("@leafB", "e1"), kind="srlg", links=(LinkId(B1), LinkId(B2))),
        entry("two", drop("@leafB", "e2"), kind="srlg", links=(LinkId(C1), LinkId("leafC:e2|spine2:3"))),
    ]
    known = facts((B1, "leafB", 1, True), (C1, "leafC", 1, True))

    assert forwarding(program(*groups), known, NO_PORTS, NOBODY).active == ()


def test_the_adds_of_a_risk_groups_links_are_the_groups_own() -> None:
    links = [entry(link, drop("@leafB", "e1"), add("@leafB", "e2")) for link in (B1, C1)]
    group = entry("tray", drop("@leafB", "e1"), add("@leafB", "e2"), kind="srlg", links=(LinkId(B1), LinkId(C1)))
    known = facts((B1, "leafB", 1, True), (C1, "leafC", 1, True))

    found = forwarding(program(*links, group, routes=NARROW), known, NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e2",)
    assert ports(forwarding(program(*links, routes=NARROW), known, NO_PORTS, NOBODY), "@leafB") == ("e1",)


def test_the_adds_of_a_node_and_of_a_risk_group_exclude_each_other() -> None:
    node = entry("spine1", add("@leafB", "e2"), kind="node")
    group = entry("tray", add("@leafB", "e3"), kind="srlg", links=(LinkId(B1), LinkId(C1)))
    known = facts((B1, "leafB", 1, True), (C1, "leafC", 1, True))

    found = forwarding(program(node, group, routes=NARROW), known, NO_PORTS, NOBODY)

    assert (found.active, ports(found, "@leafB")) == (("spine1", "tray"), ("e1",))


# --- what one failure explains ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("down", "ports_down", "is_one"),
    [
        ((), (), True),
        (((B1, "leafB"),), (), True),
        (((B1, "leafB"), (B1, "spine1")), (), True),
        (((B1, "leafB"), (B2, "leafB")), (), False),
        (((B1, "leafB"),), ("e2",), False),
        (((B1, "leafB"), ("leafC:e1|spine1:3", "leafC")), (), True),
        (((B1, "leafB"), ("leafC:e1|spine1:3", "leafC")), ("e1",), True),
        (((B1, "leafB"), ("leafC:e1|spine1:3", "leafC")), ("e2",), False),
        ((), ("e1",), True),
        ((), ("e1", "e2"), False),
        ((), ("e1", "e2", "e3"), True),
    ],
    ids=str,
)
def test_one_failure_is_a_link_or_a_node_or_the_loss_of_all_ports(
    down: tuple[tuple[str, str], ...], ports_down: tuple[str, ...], is_one: bool
) -> None:
    compiled = CompiledProgram(program(B_BY_SPINE1, B_BY_SPINE2, SPINE1))
    known = facts(*((link, reporter, 1, True) for link, reporter in down))

    assert is_one_failure(compiled, known, frozenset(ports_down), NOBODY) is is_one


def test_one_failure_is_a_risk_group_too() -> None:
    both = facts((B1, "leafB", 1, True), (C1, "leafC", 1, True))

    assert is_one_failure(CompiledProgram(program(B_BY_SPINE1, TRAY)), both, NO_PORTS, NOBODY)
    assert not is_one_failure(CompiledProgram(program(B_BY_SPINE1)), both, frozenset({"e3"}), NOBODY)


def test_what_a_neighbour_cannot_reach_is_more_than_one_failure() -> None:
    said = {NodeId("spine1"): frozenset({LEAF_B})}

    assert not is_one_failure(CompiledProgram(program(B_BY_SPINE1)), NO_FACTS, NO_PORTS, said)


# --- rule 5: last resort, and what it says upstream -------------------------------------------------------------------------
def test_an_emptied_group_uses_its_live_members_and_says_that_it_cannot_reach() -> None:
    one_spine = (Route(destination=LEAF_B, group=1), Route(destination=LEAF_C, group=0))

    found = forwarding(program(B_BY_SPINE1, routes=one_spine), facts((B1, "leafB", 1, True)), NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e1",)
    assert found.last_resort == found.cannot_reach == frozenset({LEAF_B})


def test_a_group_whose_ports_are_all_down_is_a_blackhole_and_not_a_missing_route() -> None:
    found = forwarding(program(), NO_FACTS, frozenset({"e1", "e2", "e3"}), NOBODY)

    assert found.routes == {LEAF_B: (), LEAF_C: ()}
    assert found.cannot_reach == frozenset({LEAF_B, LEAF_C})


def test_nothing_is_said_where_no_upstream_node_could_do_better() -> None:
    alone = (Route(destination=LEAF_B, group=1, has_detour=False),)

    found = forwarding(program(routes=alone), NO_FACTS, frozenset({"e1"}), NOBODY)

    assert (found.last_resort, found.cannot_reach) == (frozenset({LEAF_B}), frozenset())


def test_a_far_end_that_cannot_reach_a_destination_is_left_out_for_it_alone() -> None:
    found = forwarding(program(), NO_FACTS, NO_PORTS, {NodeId("spine2"): frozenset({LEAF_B})})

    assert (ports(found, "@leafB"), ports(found, "@leafC")) == (("e1", "e3"), ("e1", "e2", "e3"))


def test_the_word_of_a_node_that_is_no_far_end_counts_for_nothing() -> None:
    found = forwarding(program(), NO_FACTS, NO_PORTS, {NodeId("spine9"): frozenset({LEAF_B})})

    assert ports(found, "@leafB") == ("e1", "e2", "e3")


def test_when_all_far_ends_cannot_reach_it_neither_can_this_node() -> None:
    nobody = {NodeId(f"spine{n}"): frozenset({LEAF_B}) for n in (1, 2, 3)}

    found = forwarding(program(), NO_FACTS, NO_PORTS, nobody)

    assert found.cannot_reach == frozenset({LEAF_B})
    assert ports(found, "@leafB") == ("e1", "e2", "e3")


def test_the_far_ends_word_stops_the_use_of_a_cable_broken_in_one_direction() -> None:
    """This end still has carrier; the other end hears nothing."""
    found = forwarding(program(), facts(("leafA:e2|spine2:1", "spine2", 1, True)), NO_PORTS, NOBODY)

    assert ports(found, "@leafB") == ("e1", "e3")


ACCESS = "host1:1|leafB:7"


# --- endpoints of a class --------------------------------------------------------------------------------------------------
def test_an_endpoint_without_a_route_gets_one_only_while_it_differs_from_its_class() -> None:
    host = entry(ACCESS, drop("@leafB/host1", "e1"))

    differs = forwarding(program(host), facts((ACCESS, "leafB", 1, True)), NO_PORTS, NOBODY)
    same = forwarding(program(host), facts((ACCESS, "leafB", 1, True)), frozenset({"e1"}), NOBODY)

    assert ports(differs, "@leafB/host1") == ("e2", "e3")
    assert ports(differs, "@leafB") == ("e1", "e2", "e3")
    assert HOST not in same.routes


def test_what_a_class_loses_its_endpoints_lose_too() -> None:
    host = entry(ACCESS, drop("@leafB/host1", "e2"))
    both = facts((ACCESS, "leafB", 1, True), (B1, "leafB", 1, True))

    found = forwarding(program(host, B_BY_SPINE1), both, NO_PORTS, NOBODY)

    assert ports(found, "@leafB/host1") == ("e3",)


def test_an_endpoint_that_cannot_be_reached_is_not_told_beside_its_class() -> None:
    nobody = {NodeId(f"spine{n}"): frozenset({LEAF_B, HOST}) for n in (1, 2, 3)}

    assert forwarding(program(), NO_FACTS, NO_PORTS, nobody).cannot_reach == frozenset({LEAF_B})


def test_an_unreachable_endpoint_of_a_reachable_class_is_told_alone() -> None:
    nobody = {NodeId(f"spine{n}"): frozenset({HOST}) for n in (1, 2, 3)}

    found = forwarding(program(), NO_FACTS, NO_PORTS, nobody)

    assert found.cannot_reach == frozenset({HOST})
    assert HOST not in found.routes


# --- without protection ----------------------------------------------------------------------------------------------------
def test_without_protection_the_program_stands_whatever_happens() -> None:
    found = forwarding(
        program(B_BY_SPINE1),
        facts((B1, "leafB", 1, True)),
        frozenset({"e1", "e2", "e3"}),
        {NodeId("spine2"): frozenset({LEAF_B})},
        is_protecting=False,
    )

    assert found == forwarding(program(), NO_FACTS, NO_PORTS, NOBODY)


# --- what must hold for every input ----------------------------------------------------------------------------------------
NODES = [NodeId(name) for name in ("n1", "n2", "n3", "n4")]
LINKS = [LinkId(f"l{n}") for n in range(5)]
DESTINATIONS = [DestinationId(name) for name in ("*", "@a", "@a+b", "@a/x", "@a+b/y", "@a+b/z", "@c")]
PORTS = ["e1", "e2", "e3", "e4"]

port_lists = st.lists(st.sampled_from(PORTS), unique=True, max_size=3)
changes = st.builds(
    lambda destinations, dropped, added: Change(tuple(sorted(destinations)), tuple(dropped), members(*added)),
    st.lists(st.sampled_from(DESTINATIONS), unique=True, min_size=1, max_size=3),
    port_lists,
    port_lists,
)
some_changes = st.lists(changes, max_size=3).map(tuple)
entries = st.one_of(
    st.builds(ArmedEntry, st.just("link"), st.sampled_from(LINKS), some_changes),
    st.builds(ArmedEntry, st.just("node"), st.sampled_from(NODES), some_changes),
    st.builds(
        ArmedEntry,
        st.just("srlg"),
        st.sampled_from(["tray", "power"]),
        some_changes,
        st.lists(st.sampled_from(LINKS), unique=True, min_size=2, max_size=4).map(lambda links: tuple(sorted(links))),
    ),
)
words = st.tuples(
    st.sampled_from(LINKS), st.sampled_from(NODES), st.integers(1, 4), st.booleans(), st.sampled_from(NODES)
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    groups = draw(st.lists(port_lists, min_size=1, max_size=4))
    routes = draw(st.dictionaries(st.sampled_from(DESTINATIONS), st.integers(0, len(groups) - 1)))
    detours = draw(st.sets(st.sampled_from(DESTINATIONS)))
    listed = draw(st.lists(words, max_size=3))
    return Program(
        sender=CONTROLLER,
        node=NodeId("me"),
        generation=1,
        digest="",
        computed_from=tuple(FactRef(link=link, reporter=node, counter=counter) for link, node, counter, _, _ in listed),
        ports=tuple(
            PortBinding(port=port, link=LINKS[index], far_end=NODES[index % 3]) for index, port in enumerate(PORTS)
        ),
        groups=tuple(Group(id=index, members=members(*found)) for index, found in enumerate(groups)),
        routes=tuple(
            Route(destination=destination, group=group, has_detour=destination in detours)
            for destination, group in routes.items()
        ),
        armed=Armed(ignored=tuple(draw(st.sets(st.sampled_from(LINKS), max_size=2)))).with_entries(
            draw(st.lists(entries, max_size=6))
        ),
    )


situations = st.tuples(
    st.lists(words, max_size=8),
    st.frozensets(st.sampled_from(PORTS)),
    st.dictionaries(st.sampled_from(NODES), st.frozensets(st.sampled_from(DESTINATIONS)), max_size=3),
)


def known_after(said: list[tuple[LinkId, NodeId, int, bool, NodeId]]) -> FactSet:
    known = FactSet()
    for word in said:
        known = known.with_fact(*word)
    return known


@given(programs(), situations, st.randoms(use_true_random=False))
def test_order_repetition_and_lateness_of_facts_make_no_difference(
    some: Program,
    situation: tuple[
        list[tuple[LinkId, NodeId, int, bool, NodeId]], frozenset[str], dict[NodeId, frozenset[DestinationId]]
    ],
    rng: Random,
) -> None:
    said, ports_down, unreachable = situation
    again = [*said, *rng.choices(said, k=len(said))] if said else []
    rng.shuffle(again)

    assert known_after(again) == known_after(said)
    assert forwarding(some, known_after(again), ports_down, unreachable) == forwarding(
        some, known_after(said), ports_down, unreachable
    )


@given(programs(), st.lists(situations, min_size=1, max_size=5))
def test_forwarding_kept_up_to_date_is_forwarding_worked_out_anew(
    some: Program,
    course: list[
        tuple[list[tuple[LinkId, NodeId, int, bool, NodeId]], frozenset[str], dict[NodeId, frozenset[DestinationId]]]
    ],
) -> None:
    kept = Forwarder(CompiledProgram(some))

    for said, ports_down, unreachable in course:
        found = kept.update(known_after(said), ports_down, unreachable)
        anew = forwarding(some, known_after(said), ports_down, unreachable)

        assert found == anew
        assert list(found.routes) == list(anew.routes) == sorted(anew.routes)


def test_what_is_added_by_a_port_comes_back_with_the_port() -> None:
    """Found by the property above: no member of the program uses that port, only what an entry adds."""
    some = program(ADDS_1, routes=NARROW)
    kept = Forwarder(CompiledProgram(some))
    known = facts((F1, "a", 1, True))

    for ports_down in (frozenset({"e2"}), NO_PORTS):
        assert kept.update(known, ports_down, NOBODY) == forwarding(some, known, ports_down, NOBODY)


@given(programs(), situations)
def test_no_group_ever_uses_a_port_that_is_down_or_holds_a_port_twice(
    some: Program,
    situation: tuple[
        list[tuple[LinkId, NodeId, int, bool, NodeId]], frozenset[str], dict[NodeId, frozenset[DestinationId]]
    ],
) -> None:
    said, ports_down, unreachable = situation

    for group in forwarding(some, known_after(said), ports_down, unreachable).routes.values():
        used = [member.port for member in group]
        assert not ports_down & set(used)
        assert len(used) == len(set(used))


@given(programs(), situations)
def test_a_destination_with_a_better_member_is_never_served_by_last_resort(
    some: Program,
    situation: tuple[
        list[tuple[LinkId, NodeId, int, bool, NodeId]], frozenset[str], dict[NodeId, frozenset[DestinationId]]
    ],
) -> None:
    """Only what is served by last resort may be said to be unreachable, and only where a detour may exist."""
    said, ports_down, unreachable = situation

    found = forwarding(some, known_after(said), ports_down, unreachable)

    assert found.cannot_reach <= found.last_resort
    if not known_after(said).down and not ports_down and not unreachable:
        assert all(not found.routes[destination] for destination in found.last_resort)
