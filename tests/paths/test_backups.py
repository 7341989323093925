"""Before anybody has heard of a lost link: one bounce, no loop, and everybody arrives. The walker shares no code with the engine."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, LinkEnd, is_valley_free_required
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId, class_id, is_endpoint
from erfs.messages import Program
from erfs.paths import Topology, compute
from erfs.paths.backups import backup_ports, has_backups
from erfs.paths.situation import Situation
from tests.paths.fabrics import Draft, fabrics, plain_fabrics
from tests.paths.test_programs import link_sets

ALL_UP: frozenset[LinkId] = frozenset()


class Kernels:
    """What the kernels of all switches do of themselves, given their programs and a link that is lost."""

    def __init__(self, fabric: Fabric, programs: Mapping[NodeId, Program], lost: frozenset[LinkId]) -> None:
        self.fabric, self.lost = fabric, lost
        self.groups: dict[tuple[NodeId, DestinationId], tuple[str, ...]] = {}
        self.backups: dict[tuple[NodeId, DestinationId], tuple[str, ...]] = {}
        self.refusing = {node for node, program in programs.items() if program.backups is not None}
        for node, program in programs.items():
            for route in program.routes:
                members = program.groups[route.group].members
                self.groups[node, route.destination] = tuple(member.port for member in members)
            for backup in program.backups or ():
                for destination in backup.destinations:
                    self.backups[node, destination] = backup.ports

    def far(self, node: NodeId, port: str) -> NodeId:
        return self.fabric.link_at[LinkEnd(node, port)].far_end(node).node

    def live(self, node: NodeId, ports: tuple[str, ...]) -> list[str]:
        return [port for port in ports if self.fabric.link_at[LinkEnd(node, port)].id not in self.lost]

    def next_hops(self, node: NodeId, came_from: NodeId | None, destination: DestinationId) -> set[NodeId]:
        """Return to whom *node* may send: by its table of what came by the port, by its group, by its backup."""
        group = self.live(node, self.groups.get((node, destination), ()))
        found = {self.far(node, port) for port in group or self.live(node, self.backups.get((node, destination), ()))}
        others = {self.far(node, port) for port in group} - {came_from}
        return others if node in self.refusing and others else found

    def fates(self, source: NodeId, destination: DestinationId, attachments: tuple[NodeId, ...]) -> set[str]:
        """Return what can become of a packet: "delivered", "lost", "looped"; a node it passes twice is fine, a link passed twice is a loop."""
        found: set[str] = set()
        done: set[tuple[NodeId | None, NodeId]] = set()

        def visit(came_from: NodeId | None, node: NodeId, path: tuple[tuple[NodeId | None, NodeId], ...]) -> None:
            step = (came_from, node)
            if step in path:
                found.add("looped")
            elif node in attachments:
                found.add("delivered")
            elif step not in done:
                hops = self.next_hops(node, came_from, destination)
                for far in hops:
                    visit(node, far, (*path, step))
                if not hops:
                    found.add("lost")
                done.add(step)

        visit(None, source, ())
        return found


def judged(
    fabric: Fabric, programs: Mapping[NodeId, Program], lost: LinkId
) -> dict[tuple[NodeId, DestinationId], set[str]]:
    """Return the fates from every switch to every class it had a route to."""
    kernels = Kernels(fabric, programs, frozenset({lost}))
    return {
        (node, destination): kernels.fates(node, destination, tuple(fabric.attachments[members[0]]))
        for destination, members in fabric.class_members.items()
        for node in (switch.id for switch in fabric.switches)
        if (node, destination) in kernels.groups
    }


BOUNCING = [
    ("fat-tree", {"k": 4, "medium": "lossy"}),
    ("fat-tree", {"k": 6, "medium": "lossy"}),
    ("leaf-spine", {"leaves": 4, "spines": 3, "medium": "lossy"}),
    ("rail", {"hosts": 8, "nics_per_host": 4, "hosts_per_group": 4, "spines": 3, "cables": 1, "medium": "lossy"}),
]


@pytest.mark.parametrize(("kind", "params"), BOUNCING)
def test_with_one_link_lost_everybody_arrives_before_any_fact_has(kind: str, params: dict[str, object]) -> None:
    fabric = generate(kind, params)
    programs = compute(Topology(fabric), unusable=ALL_UP).programs
    # Links of the first pod, plane and so on stand for the others.
    for link in fabric.trunks[:24]:
        fates = judged(fabric, programs, link.id)
        assert {key: fate for key, fate in fates.items() if fate != {"delivered"}} == {}


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_on_any_fabric_in_any_state_one_more_link_lost_loops_nothing_and_a_backup_delivers(data: st.DataObject) -> None:
    fabric = data.draw(plain_fabrics())
    unusable = data.draw(link_sets(fabric))
    costs = {link: data.draw(st.integers(1, 3)) for link in sorted(data.draw(link_sets(fabric)))}
    programs = compute(Topology(fabric), unusable=unusable, costs=costs).programs
    for link in fabric.trunks:
        if link.id in unusable or link.is_self_loop:
            continue
        kernels = Kernels(fabric, programs, frozenset({link.id}))
        for destination, members in fabric.class_members.items():
            attachments = tuple(fabric.attachments[members[0]])
            for node in (switch.id for switch in fabric.switches):
                if (node, destination) not in kernels.groups:
                    continue
                fates = kernels.fates(node, destination, attachments)
                assert "looped" not in fates, (link.id, node, destination)
                if not kernels.live(node, kernels.groups[node, destination]) and (node, destination) in kernels.backups:
                    assert fates == {"delivered"}, (link.id, node, destination)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_where_policy_forbids_valleys_no_program_has_backups_and_elsewhere_every_switch_has_a_list(
    data: st.DataObject,
) -> None:
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    programs = compute(topology, unusable=data.draw(link_sets(fabric))).programs
    is_permitted = not is_valley_free_required(fabric)
    switches = {switch.id for switch in fabric.switches}

    assert has_backups(Situation(topology, ALL_UP)) is is_permitted
    assert {node for node, program in programs.items() if program.backups is not None} == (
        switches if is_permitted else set()
    )
    for program in programs.values():
        named = [name for backup in program.backups or () for name in backup.destinations]
        single = {route.destination for route in program.routes if len(program.groups[route.group].members) == 1}
        assert len(named) == len(set(named))
        assert set(named) <= single


def test_whoever_is_not_protected_has_none() -> None:
    fabric = generate("fat-tree", {"k": 4, "medium": "lossy"})
    programs = compute(Topology(fabric), unusable=ALL_UP, is_protecting=False).programs

    assert {program.backups for program in programs.values()} == {None}


def test_a_switch_sends_back_to_those_below_it_and_a_core_to_the_other_pods() -> None:
    fabric = generate("fat-tree", {"k": 4, "medium": "lossy"})
    situation = Situation(Topology(fabric), ALL_UP)
    columns = list(situation.topology.class_attachments)
    far_of = {
        (node.id, end.port): link.far_end(node.id).node
        for node in fabric.switches
        for link in fabric.links_of[node.id]
        for end in link.ends
        if end.node == node.id
    }

    def backups(node: str) -> dict[DestinationId, set[NodeId]]:
        ports = backup_ports(situation, situation.topology.switch_index[NodeId(node)])
        return {
            column: {far_of[NodeId(node), port] for port in found}
            for column, found in zip(columns, ports, strict=True)
            if found
        }

    assert backups("pod0-edge0") == {}
    assert backups("pod0-agg0") == {
        class_id(["pod0-edge0"]): {NodeId("pod0-edge1")},
        class_id(["pod0-edge1"]): {NodeId("pod0-edge0")},
    }
    assert backups("core0-0")[class_id(["pod2-edge1"])] == {NodeId(f"pod{pod}-agg0") for pod in (0, 1, 3)}


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_what_was_computed_before_changes_no_backup(data: st.DataObject) -> None:
    fabric = data.draw(plain_fabrics())
    topology = Topology(fabric)
    for _ in range(3):
        unusable = data.draw(link_sets(fabric))
        again = compute(topology, unusable=unusable).programs
        anew = compute(Topology(fabric), unusable=unusable).programs
        assert {node: (program.backups, program.routes) for node, program in again.items()} == {
            node: (program.backups, program.routes) for node, program in anew.items()
        }


def test_a_link_that_costs_more_may_lead_to_somebody_nearer_than_those_beside_it_and_is_no_backup() -> None:
    """From y it is as far by x as by z, but z itself goes by x: what x sent to y would come back."""
    draft = Draft()
    w, x, y, z = (draft.switch(name) for name in "wxyz")
    draft.host("h", w)
    draft.cable(x, w)
    dear = draft.cable(y, x)
    draft.cable(y, z)
    draft.cable(z, x)
    draft.host("g", y)
    programs = compute(Topology(draft.fabric()), unusable=ALL_UP, costs={dear: 2}).programs

    assert (
        len(programs[y].groups[next(r.group for r in programs[y].routes if r.destination == class_id([w]))].members)
        == 2
    )
    assert class_id([w]) not in [name for backup in programs[x].backups or () for name in backup.destinations]


def test_links_that_all_cost_more_now_take_the_backup_away_from_the_far_end_of_one() -> None:
    """No next hop differs, so nothing else would have the far end's program made anew."""
    draft = Draft()
    w, x, y, z = (draft.switch(name) for name in "wxyz")
    draft.host("h", w)
    draft.cable(x, w)
    draft.cable(z, w)
    dear = [draft.cable(y, x), draft.cable(y, z)]
    topology = Topology(draft.fabric())
    before = compute(topology, unusable=ALL_UP).programs[x].backups
    after = compute(topology, unusable=ALL_UP, costs=dict.fromkeys(dear, 2)).programs[x].backups

    assert [backup.destinations for backup in before or ()] == [(class_id([w]),)]
    assert after == ()


def test_only_a_class_needs_a_backup() -> None:
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 2, "attachments": 2, "medium": "lossy"})
    programs = compute(Topology(fabric), unusable=ALL_UP).programs

    assert not any(
        is_endpoint(name) for program in programs.values() for b in program.backups or () for name in b.destinations
    )
