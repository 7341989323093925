"""Groups that change as one: for every armed failure of whole fabrics, and the flips that each costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId, SrlgId, lookup_order
from erfs.messages import CONTROLLER, Armed, ArmedEntry, Change, Group, Member, PortBinding, Program, Route
from erfs.paths import Topology, compute
from erfs_agent.forwarding import CompiledProgram, FactSet, FailureKey, Forwarding, forwarding
from erfs_agent.groups import flips_of, groups_of
from tests.paths.fabrics import fabrics

SHAPES = {
    "fat tree": generate("fat-tree", {"k": 4}),
    "leaf-spine, hosts on two leaves": generate(
        "leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 1, "attachments": 2}
    ),
    "torus": generate("torus", {"dims": "3x3", "hosts_per_switch": 1}),
}
NO_PORTS: frozenset[str] = frozenset()


def facts_of(fabric: Fabric, program: Program, failure: FailureKey) -> FactSet:
    """What is heard of *failure*: both ends of a link, all neighbours of a node, all links of a risk group."""
    kind, name = failure
    match kind:
        case "link":
            links = [fabric.links[LinkId(name)]]
        case "node":
            links = list(fabric.links_of[NodeId(name)])
        case "srlg":
            links = [fabric.links[link] for link in program.armed.srlgs[SrlgId(name)].links]
    known = FactSet()
    for link in links:
        for end in link.ends:
            is_silent = (kind == "node" and end.node == name) or link.is_self_loop or link.id in program.armed.ignored
            if not is_silent:
                known = known.with_fact(link.id, end.node, 1, True, link.far_end(end.node).node)
    return known


def ports_down(program: Program, known: FactSet) -> frozenset[str]:
    lost = {link for link, _ in known.down}
    return frozenset(port.port for port in program.ports if port.link in lost)


def members_at(found: Forwarding, destination: DestinationId) -> tuple[str, ...]:
    for name in lookup_order(destination):
        if name in found.routes:
            return tuple(member.port for member in found.routes[name])
    return ()


def failures_of(program: Program) -> list[FailureKey]:
    return [(entry.failure_kind, entry.failure) for entry in program.armed.entries()]


def assert_groups_stay_together(fabric: Fabric, unusable: frozenset[LinkId]) -> None:
    for program in compute(Topology(fabric), unusable=unusable).programs.values():
        compiled = CompiledProgram(program)
        groups = groups_of(compiled)
        assert compiled.routes.keys() <= groups.keys()
        for failure in failures_of(program):
            known = facts_of(fabric, program, failure)
            found = forwarding(compiled, known, ports_down(program, known), {})
            assert failure[1] in found.active
            wanted: dict[int, set[tuple[str, ...]]] = {}
            for destination, group in groups.items():
                wanted.setdefault(group, set()).add(members_at(found, destination))
            assert {group: len(members) for group, members in wanted.items()} == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_after_any_armed_failure_all_of_a_group_have_the_same_new_members(shape: str) -> None:
    assert_groups_stay_together(SHAPES[shape], frozenset())


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_groups_stay_together_on_any_fabric_degraded_already(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    assert_groups_stay_together(
        fabric, frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=2)))
    )


@pytest.mark.parametrize("shape", ["fat tree", "leaf-spine, hosts on two leaves"])
def test_the_flips_of_a_failure_are_the_groups_it_changes(shape: str) -> None:
    """Where nothing but an entry's drops can be the cause: the node is at no end of the failing link or switch."""
    fabric = SHAPES[shape]
    count = 0
    for node, program in compute(Topology(fabric), unusable=frozenset()).programs.items():
        compiled = CompiledProgram(program)
        groups = groups_of(compiled)
        flips = flips_of(compiled, groups)
        assert list(flips) == failures_of(program)
        for failure, flipped in flips.items():
            known = facts_of(fabric, program, failure)
            own = ports_down(program, known)
            if (
                own
                or any(failure == ("node", port.far_end) for port in program.ports)
                or not fabric.nodes[node].is_switch
            ):
                continue
            found = forwarding(compiled, known, NO_PORTS, {})
            changed = {
                group
                for destination, group in groups.items()
                if members_at(found, destination) != members_at(compiled.undisturbed, destination)
            }
            others = [entry for entry in found.active if entry != failure[1]]
            # What loses everything keeps its old members as the last resort.
            if not others and not found.last_resort:
                assert len(changed) == flipped
                count += 1
    assert count > 10


A, B, C = DestinationId("@a"), DestinationId("@b"), DestinationId("@c")
HOST, OTHER = DestinationId("@c/host"), DestinationId("@c/other")


def program_with(*armed: ArmedEntry) -> CompiledProgram:
    """Three classes by the same two ports."""
    return CompiledProgram(
        Program(
            sender=CONTROLLER,
            node=NodeId("me"),
            generation=1,
            digest="",
            ports=(PortBinding(port="e1", link=LinkId("me:e1|x:1"), far_end=NodeId("x")),),
            groups=(Group(id=0, members=(Member(port="e1"), Member(port="e2"))),),
            routes=tuple(Route(destination=name, group=0) for name in (A, B, C)),
            armed=Armed().with_entries(armed),
        )
    )


def test_destinations_that_always_change_alike_share_a_group() -> None:
    compiled = program_with(
        ArmedEntry("link", "one", (Change((A, B), drop=("e1",)),)),
        ArmedEntry("link", "two", (Change((C,), drop=("e2",)),)),
    )
    groups = groups_of(compiled)
    assert groups == {A: 0, B: 0, C: 1}
    assert flips_of(compiled, groups) == {("link", "one"): 1, ("link", "two"): 1}


def test_a_failure_that_splits_what_has_the_same_members_makes_two_groups() -> None:
    compiled = program_with(
        ArmedEntry("link", "one", (Change((A, B), drop=("e1",)),)),
        ArmedEntry("node", "two", (Change((B, C), drop=("e2",)),)),
    )
    groups = groups_of(compiled)
    assert groups == {A: 0, B: 1, C: 2}
    assert flips_of(compiled, groups) == {("link", "one"): 2, ("node", "two"): 2}


def test_an_endpoint_without_a_route_has_a_group_only_if_a_failure_concerns_it_alone() -> None:
    """And it changes with its class as well."""
    compiled = program_with(
        ArmedEntry("link", "access", (Change((HOST,), drop=("e1",)),)),
        ArmedEntry("srlg", "tray", (Change((C,), drop=("e2",)),), (LinkId("l1"), LinkId("l2"))),
    )
    groups = groups_of(compiled)
    assert groups == {A: 0, B: 0, C: 1, HOST: 2}
    assert OTHER not in groups
    assert flips_of(compiled, groups) == {("link", "access"): 1, ("srlg", "tray"): 2}


def test_what_nothing_leads_to_is_in_no_group() -> None:
    stranger = DestinationId("@nowhere")
    assert stranger not in groups_of(program_with(ArmedEntry("link", "one", (Change((stranger,), drop=("e1",)),))))
