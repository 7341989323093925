"""The verifier finds what is planted in tables, and nothing in sound ones; against a walker that shares no code with it."""

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, is_valley_free_required
from erfs.generators import generate
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, is_endpoint
from erfs.messages import Member, Program
from erfs.paths import (
    Blackhole,
    Loop,
    PushVerdict,
    RoundVerdict,
    Topology,
    Unreached,
    Valley,
    Verdict,
    Verifier,
    compute,
    verify,
)
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.walker import Walk
from tests.paths.fabrics import Draft, fabrics, fates, loops_in, tables_of, tangle
from tests.paths.oracle import Judgement, always, is_apart, judge, port_to, scramble, with_route

Table = dict[DestinationId, tuple[Member, ...]]


def sound_tables(fabric: Fabric, unusable: frozenset[LinkId] = frozenset()) -> dict[NodeId, Table]:
    return tables_of(compute(Topology(fabric), unusable=unusable, is_protecting=False).programs)


@pytest.mark.parametrize("kind", ["fat-tree", "leaf-spine", "rail", "torus", "dragonfly"])
def test_computed_tables_are_clean_and_reach_everything(kind: str) -> None:
    fabric = generate(kind, {"hosts": 8} if kind == "rail" else {})
    verdict = verify(fabric, sound_tables(fabric), working=lambda link: True)
    assert verdict.is_clean
    assert verdict.unreached == ()


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_computed_tables_are_clean_after_any_failures(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=4)))
    assert verify(fabric, sound_tables(fabric, unusable), working=lambda link: link not in unusable).is_clean


def fat_tree() -> tuple[Fabric, dict[NodeId, Table]]:
    fabric = generate("fat-tree", {"k": 4})
    return fabric, sound_tables(fabric)


FAR = DestinationId("@pod1-edge0")


def test_a_planted_loop_is_found() -> None:
    fabric, tables = fat_tree()
    tables[NodeId("core0-0")][FAR] = (port_to(fabric, "core0-0", "pod0-agg0"),)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert verdict.loops == (Loop(FAR, (NodeId("core0-0"), NodeId("pod0-agg0"))),)
    assert not verdict.is_clean


def test_two_loops_towards_one_destination_are_told_apart() -> None:
    fabric, tables = fat_tree()
    for core, aggregation in (("core0-0", "pod0-agg0"), ("core1-0", "pod2-agg1")):
        tables[NodeId(core)][FAR] = (port_to(fabric, core, aggregation),)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert [loop.nodes for loop in verdict.loops] == [("core0-0", "pod0-agg0"), ("core1-0", "pod2-agg1")]


def test_a_next_hop_over_a_broken_link_is_a_black_hole_where_packets_come_by() -> None:
    fabric, tables = fat_tree()
    member = port_to(fabric, "core0-0", "pod1-agg0")
    broken = next(
        port for port in fabric.links_of[NodeId("core0-0")] if port.far_end(NodeId("core0-0")).node == "pod1-agg0"
    ).id
    verdict = verify(fabric, tables, working=lambda link: link != broken)
    assert Blackhole(FAR, NodeId("core0-0"), member.port) in verdict.blackholes
    assert {hole.node for hole in verdict.blackholes} == {"core0-0", "pod1-agg0"}
    assert verdict.unreached == ()  # other branches arrive


def test_a_node_that_is_sent_packets_and_has_no_route_is_a_black_hole() -> None:
    fabric, tables = fat_tree()
    del tables[NodeId("core0-0")][FAR]
    assert verify(fabric, tables, working=lambda link: True).blackholes == (Blackhole(FAR, NodeId("core0-0")),)


def test_a_dead_node_that_is_still_sent_packets_is_a_black_hole_for_all_of_them() -> None:
    fabric, tables = fat_tree()
    del tables[NodeId("core0-0")]
    holes = verify(fabric, tables, working=lambda link: True).blackholes
    assert {hole.node for hole in holes} == {"core0-0"}
    assert len(holes) == 8


def test_a_leaf_that_does_not_deliver_is_found() -> None:
    fabric, tables = fat_tree()
    endpoint = DestinationId("@pod1-edge0/pod1-edge0-host0")
    tables[NodeId("pod1-edge0")][endpoint] = (port_to(fabric, "pod1-edge0", "pod1-edge0-host1"),)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert verdict.blackholes == (Blackhole(endpoint, NodeId("pod1-edge0-host1")),)
    assert [item.destination for item in verdict.unreached] == [endpoint]


def test_an_endpoint_that_sends_nowhere_is_unreached_once() -> None:
    fabric, tables = fat_tree()
    host = NodeId("pod0-edge0-host0")
    tables[host] = {}
    assert verify(fabric, tables, working=lambda link: True).unreached == (Unreached(EVERYTHING, (host,)),)


def test_an_endpoint_without_a_working_link_is_nobodys_black_hole() -> None:
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1, "attachments": 2})
    host = fabric.endpoints[0].id
    lost = frozenset(link.id for link in fabric.links_of[host])
    verdict = verify(fabric, sound_tables(fabric, lost), working=lambda link: link not in lost)
    assert verdict.is_clean
    assert host in {node for item in verdict.unreached for node in item.sources}
    assert fabric.destination_of[host] in {item.destination for item in verdict.unreached}
    assert verdict.missed == ()


def test_what_policy_cuts_is_unreached_and_no_black_hole() -> None:
    draft = Draft()
    leaf0, leaf1 = draft.switch("leaf0", 1), draft.switch("leaf1", 1)
    spine0, spine1 = draft.switch("spine0", 2), draft.switch("spine1", 2)
    for leaf, spine in ((leaf0, spine0), (leaf0, spine1), (leaf1, spine1)):
        draft.cable(leaf, spine)
    draft.host("h1", leaf1)
    draft.host("m", spine0)
    fabric = draft.fabric()
    verdict = verify(fabric, sound_tables(fabric), working=lambda link: True)
    assert verdict.is_clean
    assert verdict.unreached == (
        Unreached(DestinationId("@leaf1"), (NodeId("spine0"),)),
        Unreached(DestinationId("@spine0"), (NodeId("leaf1"),)),
    )


def test_a_path_that_the_tables_do_not_use_is_told_from_one_that_does_not_exist() -> None:
    """leaf0 has forgotten leaf1, though its spine would lead there; to leaf2 nothing works any more."""
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 1, "hosts_per_leaf": 1})
    tables = sound_tables(fabric)
    del tables[NodeId("leaf0")][DestinationId("@leaf1")]
    cut = {link.id for link in fabric.trunks if NodeId("leaf2") in (link.a.node, link.b.node)}
    verdict = verify(fabric, tables, working=lambda link: link not in cut)
    forgotten = Unreached(DestinationId("@leaf1"), (NodeId("leaf0"), NodeId("leaf2")))
    assert forgotten in verdict.unreached
    assert verdict.missed == (Unreached(DestinationId("@leaf1"), (NodeId("leaf0"),)),)
    assert {item.destination for item in verdict.unreached} == {"@leaf0", "@leaf1", "@leaf2"}


def valley_fabric() -> tuple[Fabric, dict[NodeId, Table]]:
    """Return two leaves that each hang on both of two spines, the tables sound."""
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1})
    assert is_valley_free_required(fabric)
    return fabric, sound_tables(fabric)


def test_a_planted_valley_is_found() -> None:
    """spine0 sends what goes to leaf1 down to leaf2, which sends it up to spine1: it arrives, and policy forbids it."""
    fabric, tables = valley_fabric()
    destination = DestinationId("@leaf1")
    tables[NodeId("spine0")][destination] = (port_to(fabric, "spine0", "leaf2"),)
    up = port_to(fabric, "leaf2", "spine1")
    tables[NodeId("leaf2")][destination] = (up,)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert verdict == Verdict((), (), (), (Valley(destination, NodeId("leaf2"), up.port),))
    assert not verdict.is_clean


def test_a_valley_that_no_packet_comes_by_is_none() -> None:
    fabric, tables = valley_fabric()
    destination = DestinationId("@leaf1")
    tables[NodeId("spine0")][destination] = (port_to(fabric, "spine0", "leaf2"),)
    for leaf in ("leaf0", "leaf2"):
        tables[NodeId(leaf)][destination] = (port_to(fabric, leaf, "spine1"),)
    assert verify(fabric, tables, working=lambda link: True) == Verdict((), (), ())


def test_where_policy_allows_valleys_none_is_told() -> None:
    fabric = generate("torus", {"dims": "3x3", "hosts_per_switch": 1})
    assert not is_valley_free_required(fabric)
    assert verify(fabric, sound_tables(fabric), working=lambda link: True).valleys == ()


def test_a_cable_looped_on_one_switch_is_a_loop_of_one_node() -> None:
    draft = Draft()
    one, other = draft.switch("s0"), draft.switch("s1")
    draft.cable(one, other)
    draft.cable(one, one)
    draft.host("h0", one)
    draft.host("h1", other)
    fabric = draft.fabric()
    tables = sound_tables(fabric)
    looped = next(link for link in fabric.links.values() if link.is_self_loop)
    tables[one][DestinationId("@s1")] = (Member(port=looped.a.port),)
    assert verify(fabric, tables, working=lambda link: True).loops == (Loop(DestinationId("@s1"), (one,)),)


def test_a_ring_of_a_thousand_switches_is_judged() -> None:
    """The longest way is 500 links: nothing recurses."""
    draft = Draft()
    switches = [draft.switch(f"s{index:03}") for index in range(1000)]
    for index, switch in enumerate(switches):
        draft.cable(switch, switches[(index + 1) % 1000])
    draft.host("h", switches[0])
    fabric = draft.fabric()
    tables = sound_tables(fabric)
    assert verify(fabric, tables, working=lambda link: True) == Verdict((), (), ())
    round_about = (port_to(fabric, "s500", "s501"), port_to(fabric, "s500", "s499"))
    tables[NodeId("s501")][DestinationId("@s000")] = (port_to(fabric, "s501", "s500"),)
    tables[NodeId("s500")][DestinationId("@s000")] = round_about
    assert [loop.nodes for loop in verify(fabric, tables, working=lambda link: True).loops] == [("s500", "s501")]


def scrambled(data: st.DataObject) -> tuple[Fabric, dict[NodeId, Table], frozenset[LinkId]]:
    """Draw a fabric, tables that are more or less rubbish, and links that do not work."""
    fabric = data.draw(fabrics())
    random = Random(data.draw(st.integers(0, 2**32)))
    links = sorted(fabric.links)
    tables = sound_tables(fabric, frozenset(random.sample(links, min(len(links), random.randint(0, 3)))))
    scramble(fabric, tables, random, count=random.choice([0, 1, 3, 10, 40]))
    for node in random.sample(sorted(tables), random.choice([0, 0, 1])):
        del tables[node]
    return fabric, tables, frozenset(random.sample(links, min(len(links), random.choice([0, 0, 1, 2, 4]))))


def judged(fabric: Fabric, verdict: Verdict, destination: DestinationId) -> Judgement:
    """Return what *verdict* says of *destination*, as the oracle would say it."""
    return Judgement(
        loops={frozenset(loop.nodes) for loop in verdict.loops if loop.destination == destination},
        blackholes={(hole.node, hole.port) for hole in verdict.blackholes if hole.destination == destination},
        valleys={(valley.node, valley.port) for valley in verdict.valleys if valley.destination == destination},
        unreached={node for lost in verdict.unreached if lost.destination == destination for node in lost.sources},
        missed={node for lost in verdict.missed if lost.destination == destination for node in lost.sources},
    )


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_tables_are_judged_as_a_plain_search_judges_them(data: st.DataObject) -> None:
    """Every finding of every destination, whatever the tables say; endpoints that no node routes apart are told with their class."""
    fabric, tables, broken = scrambled(data)

    def works(link: LinkId) -> bool:
        return link not in broken

    verdict = verify(fabric, tables, working=works)
    for destination in (*fabric.class_members, *fabric.destination_of.values()):
        found = judged(fabric, verdict, destination)
        if is_endpoint(destination) and not is_apart(fabric, tables, destination, works):
            assert found == Judgement()
        else:
            assert found == judge(fabric, tables, destination, works), destination


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_what_is_found_is_told_in_canonical_order_and_for_some_destinations_just_that(data: st.DataObject) -> None:
    fabric, tables, broken = scrambled(data)
    whole = verify(fabric, tables, working=lambda link: link not in broken)
    names = [*fabric.class_members, *fabric.destination_of.values(), EVERYTHING]
    some = data.draw(st.sets(st.sampled_from(names), max_size=3))
    part = verify(fabric, tables, working=lambda link: link not in broken, destinations=some)
    classes = {name.partition("/")[0] for name in some}
    for kind in ("loops", "blackholes", "unreached", "valleys", "missed"):
        items = getattr(whole, kind)
        assert getattr(part, kind) == tuple(item for item in items if item.destination.partition("/")[0] in classes)
        order = [
            EVERYTHING,
            *(n for c, ms in fabric.class_members.items() for n in (c, *(fabric.destination_of[m] for m in ms))),
        ]
        assert [item.destination for item in items] == sorted((i.destination for i in items), key=order.index)
        assert len(set(items)) == len(items)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_a_verifier_remembers_changes_no_verdict(data: st.DataObject) -> None:
    """Programs and tables mixed, one state after the other, links that come and go: as if it were the first question."""
    fabric = data.draw(fabrics())
    random = Random(data.draw(st.integers(0, 2**32)))
    verifier, topology, links = Verifier(fabric), Topology(fabric), sorted(fabric.links)
    for _ in range(4):
        unusable = frozenset(random.sample(links, min(len(links), random.randint(0, 3))))
        state: dict[NodeId, Program] = dict(compute(topology, unusable=unusable, is_protecting=False).programs)
        for node in random.sample(sorted(state), random.choice([0, 1])):
            del state[node]
        broken = frozenset(random.sample(links, min(len(links), random.randint(0, 2))))
        found = verifier.verify(state, working=lambda link, broken=broken: link not in broken)  # type: ignore[misc]
        assert found == verify(fabric, tables_of(state), working=lambda link, broken=broken: link not in broken)  # type: ignore[misc]
        mess = {node: dict(table) for node, table in tables_of(state).items()}
        scramble(fabric, mess, random, count=5)
        found = verifier.verify(mess, working=lambda link: True)
        assert found == verify(fabric, mess, working=lambda link: True)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_verifier_and_referee_agree(data: st.DataObject) -> None:
    """The same loops; where there is none: unreached is a share of nothing, and a share of all means that nothing is lost on any way."""
    fabric, tables, broken = scrambled(data)
    plane = DataPlane(fabric)
    for node, table in tables.items():
        known = {link.end_at(node).port for link in fabric.links_of[node]}
        for name, members in table.items():
            table[name] = tuple(member for member in members if member.port in known)
        plane.write_routes(node, table)
    for link in sorted(broken):
        plane.set_link(link, is_up=False)
    verdict = verify(fabric, tables, working=lambda link: link not in broken)
    switches = [plane.node_index[node.id] for node in fabric.switches]
    for endpoint, destination in fabric.destination_of.items():
        if not is_apart(fabric, tables, destination, lambda link: link not in broken):
            continue
        name = DestinationId(destination.partition("/")[0])
        homes = [plane.node_index[switch] for switch in fabric.attachments[endpoint]]
        walk = Walk(plane, name, [(plane.node_index[endpoint], destination)], homes, switches)
        walk.walk()
        found = judged(fabric, verdict, destination)
        assert {frozenset(loop) for loop in walk.loops} == found.loops
        if walk.loops:
            continue
        for source in {switch for homes in fabric.attachments.values() for switch in homes}:
            share = walk.value[plane.node_index[source]]
            assert (share == 0) is (source in found.unreached)
        if any(link.id not in broken for link in fabric.access_links[endpoint]) and not found.unreached:
            several = {node for node in tables if len(fabric.attachments.get(node, ())) > 1}
            if not several:
                shares = [
                    walk.value[plane.node_index[switch]] for homes in fabric.attachments.values() for switch in homes
                ]
                assert all(share == 1 for share in shares) is (not found.blackholes)


# --- the rounds of a push ------------------------------------------------------------------------------------------------
def triangle() -> tuple[Fabric, dict[NodeId, Program]]:
    """Return three switches in a triangle, a host on s2, and s0 and s1 sending there directly."""
    draft = Draft()
    switches = [draft.switch(f"s{index}") for index in range(3)]
    for one, other in itertools.combinations(switches, 2):
        draft.cable(one, other)
    for index, switch in enumerate(switches):
        draft.host(f"h{index}", switch)
    fabric = draft.fabric()
    return fabric, compute(Topology(fabric), unusable=frozenset(), is_protecting=False).programs


def clean(rounds: int) -> PushVerdict:
    return PushVerdict((RoundVerdict(),) * rounds, is_repair=False)


def test_a_push_that_repairs_something_may_interrupt_something_else_but_never_loop() -> None:
    lost = RoundVerdict(interrupted=(Unreached(DestinationId("@s2"), (NodeId("s0"),)),))
    loops = RoundVerdict(loops=(Loop(DestinationId("@s2"), (NodeId("s0"), NodeId("s1"))),))
    assert PushVerdict((RoundVerdict(), lost), is_repair=True).unsafe_round() is None
    assert PushVerdict((RoundVerdict(), lost), is_repair=False).unsafe_round() == 1
    assert PushVerdict((lost, loops), is_repair=True).unsafe_round() == 1


def test_a_loop_of_one_mixture_of_a_round_is_found() -> None:
    """s0 sends by s1, and s1 no longer by s0: before and after all is well; with s0 first they send to each other."""
    fabric, programs = triangle()
    s0, s1 = NodeId("s0"), NodeId("s1")
    before = programs | {s1: with_route(fabric, programs[s1], "@s2", "s0")}
    after = {s0: with_route(fabric, programs[s0], "@s2", "s1"), s1: programs[s1]}
    verifier = Verifier(fabric)
    loop = Loop(DestinationId("@s2"), (s0, s1))
    (found,) = verifier.verify_rounds(before, [after], working=always).rounds
    assert found.loops == (loop,)
    assert not found.is_clean
    in_order = [{s1: after[s1]}, {s0: after[s0]}]
    assert verifier.verify_rounds(before, in_order, working=always) == clean(2)
    first, second = verifier.verify_rounds(before, in_order[::-1], working=always).rounds
    assert (first.loops, second.loops) == ((loop,), (loop,))
    # s1's agent is gone: it may run what it ran, whatever it was given.
    pinned = {s1: (before[s1],)}
    found_with_pinned = verifier.verify_rounds(before, in_order, working=always, pinned=pinned)
    assert [verdict.loops for verdict in found_with_pinned.rounds] == [(), (loop,)]
    assert found_with_pinned.unsafe_round() == 1


def test_a_loop_that_was_there_before_is_not_held_against_the_round_that_ends_it() -> None:
    fabric, programs = triangle()
    s0, s1 = NodeId("s0"), NodeId("s1")
    before = programs | {
        s0: with_route(fabric, programs[s0], "@s2", "s1"),
        s1: with_route(fabric, programs[s1], "@s2", "s0"),
    }
    found = Verifier(fabric).verify_rounds(before, [{s0: programs[s0]}], working=always)
    assert found == PushVerdict((RoundVerdict(),), is_repair=True)


def test_what_is_lost_in_one_mixture_of_a_round_is_found() -> None:
    """s1 forgets the way while s0 may still send by s1."""
    fabric, programs = triangle()
    s0, s1 = NodeId("s0"), NodeId("s1")
    before = programs | {s0: with_route(fabric, programs[s0], "@s2", "s1")}
    after = {s0: programs[s0], s1: with_route(fabric, programs[s1], "@s2")}
    verifier = Verifier(fabric)
    lost = RoundVerdict(interrupted=(Unreached(DestinationId("@s2"), (s0,)),))
    found = verifier.verify_rounds(before, [after], working=always)
    assert found == PushVerdict((lost,), is_repair=False)
    assert found.unsafe_round() == 0
    in_order = [{s0: after[s0]}, {s1: after[s1]}]
    assert verifier.verify_rounds(before, in_order, working=always) == clean(2)


def test_a_valley_of_one_mixture_of_a_round_is_found() -> None:
    fabric, _ = valley_fabric()
    programs = compute(Topology(fabric), unusable=frozenset(), is_protecting=False).programs
    spine, leaf = NodeId("spine0"), NodeId("leaf2")
    turn = {spine: with_route(fabric, programs[spine], "@leaf1", "leaf2")}
    (found,) = Verifier(fabric).verify_rounds(programs, [turn], working=always).rounds
    ups = [port_to(fabric, leaf, far).port for far in ("spine0", "spine1")]
    assert found.valleys == tuple(Valley(DestinationId("@leaf1"), leaf, port) for port in sorted(ups))


@pytest.mark.parametrize("seed", range(60))
def test_a_round_is_clean_just_if_every_mixture_of_it_is(seed: int) -> None:
    """Rubbish in a few nodes' new programs, and every subset of them installed: what the round's verdict says, some mixture shows."""
    random = Random(seed)
    fabric = tangle(random) if seed % 2 else generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1})
    programs = compute(Topology(fabric), unusable=frozenset(), is_protecting=False).programs
    switches = [node.id for node in fabric.switches]
    after: dict[NodeId, Program] = {}
    for node in random.sample(switches, 3):
        program = programs[node]
        for _ in range(random.randint(1, 2)):
            far_ends = sorted({link.far_end(node).node for link in fabric.links_of[node] if fabric.is_trunk(link)})
            chosen = random.sample(far_ends, min(len(far_ends), random.choice([0, 1, 1, 2])))
            program = with_route(fabric, program, random.choice(sorted(fabric.class_members)), *chosen)
        after[node] = program
    (found,) = Verifier(fabric).verify_rounds(programs, [after], working=always).rounds
    loops, valleys, lost = set(), set(), set()
    whole = wholly_served(fabric, programs) & wholly_served(fabric, {**programs, **after})
    for count in range(len(after) + 1):
        for some in itertools.combinations(sorted(after), count):
            state = {**programs, **{node: after[node] for node in some}}
            for name in fabric.class_members:
                judgement = judge(fabric, tables_of(state), name, always)
                loops |= {name for _ in judgement.loops}
                valleys |= {(name, *valley) for valley in judgement.valleys}
            lost |= whole - wholly_served(fabric, state)
    assert {loop.destination for loop in found.loops if not is_endpoint(loop.destination)} == loops
    told = {(valley.destination, valley.node, valley.port) for valley in found.valleys}
    assert {valley for valley in told if not is_endpoint(valley[0])} == valleys
    assert {(item.destination, node) for item in found.interrupted for node in item.sources} == lost


def wholly_served(fabric: Fabric, programs: Mapping[NodeId, Program]) -> set[tuple[DestinationId, NodeId]]:
    """Return the classes and sources between which every branch arrives, by a walk for each of the class's endpoints."""
    tables = tables_of(programs)
    sources = {switch for homes in fabric.attachments.values() for switch in homes}
    sources |= {node for node, homes in fabric.attachments.items() if len(homes) > 1}
    found = set()
    for name, members in fabric.class_members.items():
        for source in sources:
            if source not in members and all(
                fates(fabric, tables, source, endpoint, always) == {"delivered"} for endpoint in members
            ):
                found.add((name, source))
    return found


def test_a_first_push_is_safe_whoever_installs_first() -> None:
    fabric = generate("fat-tree", {"k": 4})
    programs = compute(Topology(fabric), unusable=frozenset()).programs
    found = Verifier(fabric).verify_rounds({}, [programs], working=always)
    assert found == PushVerdict((RoundVerdict(),), is_repair=True)


_OUT_OF_ORDER = """
from random import Random
from erfs.paths import Topology, compute, verify
from tests.paths.fabrics import tables_of, tangle
from tests.paths.oracle import scramble
random = Random(5)
fabric = tangle(random)
tables = tables_of(compute(Topology(fabric), unusable=frozenset(), is_protecting=False).programs)
scramble(fabric, tables, random, count=30)
print(verify(fabric, tables, working=lambda link: len(link) % 5 > 0))
"""


def test_findings_do_not_depend_on_the_hash_seed() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", _OUT_OF_ORDER],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert b"Blackhole" in said.pop()


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_scrambled_tables_are_judged_as_a_walker_sees_them(data: st.DataObject) -> None:
    """Routes replaced at random, links broken at random: the same loops, and a switch is unreached iff no branch arrives."""
    fabric = data.draw(fabrics())
    tables = sound_tables(fabric)
    names = [*fabric.class_members, *fabric.destination_of.values()]
    for _ in range(data.draw(st.integers(0, 4))):
        node = data.draw(st.sampled_from([switch.id for switch in fabric.switches]))
        ports = sorted(link.end_at(node).port for link in fabric.links_of[node] if not link.is_self_loop)
        members = data.draw(st.lists(st.sampled_from(ports), max_size=2, unique=True)) if ports else []
        tables[node][data.draw(st.sampled_from(names))] = tuple(Member(port=port) for port in sorted(members))
    broken = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=2)))
    verdict = verify(fabric, tables, working=lambda link: link not in broken)
    working_tables = {
        node: {
            name: tuple(member for member in members if fabric.link_at[node, member.port].id not in broken)  # type: ignore[index]
            for name, members in table.items()
        }
        for node, table in tables.items()
    }
    looping = {name for name, _ in loops_in(fabric, working_tables)}
    found = {loop.destination for loop in verdict.loops}
    assert found <= looping
    assert {name for name in looping if name in fabric.class_members} <= found
    unreached = {(item.destination, node) for item in verdict.unreached for node in item.sources}
    for target, destination in fabric.destination_of.items():
        if any(link.id in broken for link in fabric.access_links[target]):
            continue
        judged = {destination, destination.partition("/")[0]}
        for source in fabric.destination_of:
            if source == target or len(fabric.attachments[source]) < 2:
                continue
            arrives = "delivered" in fates(fabric, tables, source, target, lambda link: link not in broken)
            if not arrives:
                assert any((name, source) in unreached for name in judged), (source, target)
