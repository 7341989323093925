"""Tables as sets: what a node's routes say, what a program remembered costs, and what two tables at once mean."""

import itertools

import numpy as np
import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import EVERYTHING, DestinationId, NodeId
from erfs.messages import Member, Program
from erfs.paths import Topology, compute
from erfs.paths.bits import columns_of
from erfs.paths.tables import ALL, NO_TABLE, Compiler, Mixture, Plane, Rows, Wiring
from tests.paths.fabrics import Draft, tables_of
from tests.paths.oracle import port_to, with_route


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 2})


@pytest.fixture(scope="module")
def programs(fabric: Fabric) -> dict[NodeId, Program]:
    return compute(Topology(fabric), unusable=frozenset(), is_protecting=False).programs


def next_hops(wiring: Wiring, node: str, rows: Rows) -> dict[str, list[str]]:
    """Return the classes by port, as *rows* have them."""
    first = int(wiring.start[wiring.index[NodeId(node)]])
    return {
        wiring.port[first + end]: [wiring.classes[column] for column in columns_of(row)]
        for end, row in enumerate(rows.rows)
        if row.any()
    }


def test_link_ends_are_numbered_by_sender_neighbour_and_port(fabric: Fabric) -> None:
    wiring = Wiring(fabric)
    ends = list(zip(wiring.source.tolist(), wiring.target.tolist(), wiring.port, strict=True))
    assert ends == sorted(ends)
    assert {wiring.nodes[source] for source, _, _ in ends} == {switch.id for switch in fabric.switches}
    trunks = 2 * len(fabric.trunks)
    assert int((wiring.goes_up != 0).sum()) == int((wiring.goes_down != 0).sum()) == trunks // 2


def test_an_endpoint_with_several_attachments_sends_and_one_with_one_does_not() -> None:
    draft = Draft()
    one, other = draft.switch("s0"), draft.switch("s1")
    draft.host("single", one)
    both = draft.host("both", one, other)
    wiring = Wiring(draft.fabric())
    assert {wiring.nodes[source] for source in wiring.source.tolist()} == {one, other, both}


def test_a_program_and_its_table_compile_to_the_same(fabric: Fabric, programs: dict[NodeId, Program]) -> None:
    wiring = Wiring(fabric)
    compiler = Compiler(wiring)
    for node, table in tables_of(programs).items():
        if not fabric.nodes[node].is_switch:
            continue
        index = wiring.index[node]
        one, other = compiler.program(index, programs[node]), compiler.table(index, table)
        assert np.array_equal(one.rows, other.rows)
        assert (one.routed, one.filled, one.own, one.delivered) == (
            other.routed,
            other.filled,
            other.own,
            other.delivered,
        )
        by_port: dict[str, list[str]] = {}
        for name, members in sorted(table.items()):
            for member in members if name in wiring.column else ():
                by_port.setdefault(member.port, []).append(name)
        assert next_hops(wiring, node, one) == by_port


def test_a_program_that_is_only_stamped_anew_is_not_compiled_again(
    fabric: Fabric, programs: dict[NodeId, Program]
) -> None:
    wiring = Wiring(fabric)
    compiler = Compiler(wiring)
    leaf = NodeId("leaf0")
    rows = compiler.program(wiring.index[leaf], programs[leaf])
    stamped = programs[leaf].model_copy(update={"epoch": 3, "generation": 9, "armed": ()})
    assert compiler.program(wiring.index[leaf], stamped) is rows
    for number in range(3):
        others = with_route(fabric, programs[leaf], "@leaf1", *["spine0", "spine1"][: number % 2 + 1])
        assert compiler.program(wiring.index[leaf], others) is not rows
    assert compiler.program(wiring.index[leaf], stamped) is not rows, "the oldest is forgotten"


def test_what_has_no_route_of_its_own_takes_the_one_for_everything(fabric: Fabric) -> None:
    wiring = Wiring(fabric)
    to_spine0, to_spine1 = (port_to(fabric, "leaf0", spine) for spine in ("spine0", "spine1"))
    table = {EVERYTHING: (to_spine0,), DestinationId("@leaf1"): (to_spine1,), DestinationId("@leaf2"): ()}
    rows = Compiler(wiring).table(wiring.index[NodeId("leaf0")], table)
    assert next_hops(wiring, "leaf0", rows) == {to_spine0.port: ["@leaf0"], to_spine1.port: ["@leaf1"]}
    assert (rows.routed, rows.filled) == (0b111, 0b011)
    assert (rows.unrouted.tolist(), rows.unfilled.tolist()) == ([0], [0b100])


def test_rubbish_in_a_table_is_kept_apart(fabric: Fabric) -> None:
    """Ports without a cable, strangers' destinations, an endpoint's route that leads to another one."""
    wiring = Wiring(fabric)
    host0, host1 = (port_to(fabric, "leaf0", f"leaf0-host{number}") for number in (0, 1))
    own = [fabric.destination_of[NodeId(f"leaf0-host{number}")] for number in (0, 1)]
    table = {
        DestinationId("@leaf1"): (Member(port="no such port"),),
        DestinationId("@nowhere"): (host0,),
        DestinationId("@nowhere/nobody"): (host0,),
        own[0]: (host0,),
        own[1]: (host0, host1),
    }
    rows = Compiler(wiring).table(wiring.index[NodeId("leaf0")], table)
    assert not rows.rows.any()
    assert rows.unknown == {"no such port": 0b010}
    assert (rows.routed, rows.filled) == (0b010, 0b010)
    assert rows.delivered == {wiring.endpoint[own[0]]}
    assert rows.own.keys() == {wiring.endpoint[name] for name in own}


def plane_of(mixture: Mixture, name: str) -> Plane:
    """Return the plane of one class."""
    wiring = mixture.wiring
    works = np.full(len(wiring.source), ALL)
    chosen = np.array([1 << wiring.column[DestinationId(name)]], dtype=np.uint64)
    return mixture.planes(works, chosen)[0]


def told(mixture: Mixture, name: str) -> tuple[set[str], set[str], set[tuple[str, str]]]:
    """Return where a class has arrived, where it may find no way on, and who may send it to whom."""
    wiring, plane = mixture.wiring, plane_of(mixture, name)
    ends = np.flatnonzero(plane.members)
    return (
        {wiring.nodes[node] for node in np.flatnonzero(plane.arrived)},
        {wiring.nodes[node] for node in np.flatnonzero(plane.dead)},
        {(wiring.nodes[wiring.source[end]], wiring.nodes[wiring.target[end]]) for end in ends},
    )


def test_two_tables_at_once_may_do_what_either_does(fabric: Fabric, programs: dict[NodeId, Program]) -> None:
    wiring = Wiring(fabric)
    compiler, mixture = Compiler(wiring), Mixture(wiring)
    for switch in fabric.switches:
        index = wiring.index[switch.id]
        mixture.put(index, (compiler.program(index, programs[switch.id]),))
    sends = {("leaf0", "spine0"), ("leaf0", "spine1"), ("leaf2", "spine0"), ("leaf2", "spine1")}
    sound = {"leaf1"}, set[str](), sends | {("spine0", "leaf1"), ("spine1", "leaf1")}
    assert told(mixture, "@leaf1") == sound

    spine = wiring.index[NodeId("spine0")]
    usual = mixture.tables[spine][0]
    astray = compiler.program(spine, with_route(fabric, programs[NodeId("spine0")], "@leaf1", "leaf2"))
    empty = compiler.program(spine, with_route(fabric, programs[NodeId("spine0")], "@leaf1"))
    mixture.put(spine, (usual, astray))
    assert told(mixture, "@leaf1") == ({"leaf1"}, set(), sound[2] | {("spine0", "leaf2")})
    mixture.put(spine, (usual, empty))
    assert told(mixture, "@leaf1") == ({"leaf1"}, {"spine0"}, sound[2])
    mixture.put(spine, (empty, usual))
    assert told(mixture, "@leaf1") == ({"leaf1"}, {"spine0"}, sound[2])
    mixture.put(spine, (NO_TABLE, usual))
    assert told(mixture, "@leaf1") == ({"leaf1"}, {"spine0"}, sound[2])
    mixture.put(spine, (NO_TABLE,))
    assert told(mixture, "@leaf1") == ({"leaf1"}, {"spine0"}, sound[2] - {("spine0", "leaf1")})
    mixture.put(spine, (usual,))
    assert told(mixture, "@leaf1") == sound

    leaf = wiring.index[NodeId("leaf1")]
    onward = compiler.program(leaf, with_route(fabric, programs[NodeId("leaf1")], "@leaf1", "spine0"))
    for both in itertools.permutations((mixture.tables[leaf][0], onward)):
        mixture.put(leaf, both)
        assert told(mixture, "@leaf1") == ({"leaf1"}, set(), sound[2] | {("leaf1", "spine0")})


def test_a_switch_without_tables_delivers_nothing(fabric: Fabric, programs: dict[NodeId, Program]) -> None:
    wiring = Wiring(fabric)
    compiler, mixture = Compiler(wiring), Mixture(wiring)
    works = np.full(len(wiring.source), ALL)
    everybody = list(range(len(wiring.endpoints)))
    assert mixture.straying(works) == everybody
    for switch in fabric.switches:
        index = wiring.index[switch.id]
        mixture.put(index, (compiler.program(index, programs[switch.id]),))
    assert mixture.straying(works) == []
    leaf = wiring.index[NodeId("leaf1")]
    mixture.put(leaf, (NO_TABLE, mixture.tables[leaf][0]))
    assert [wiring.endpoints[endpoint] for endpoint in mixture.straying(works)] == ["leaf1-host0", "leaf1-host1"]
    assert told(mixture, "@leaf1")[1] == {"leaf1"}


def test_an_endpoint_behind_a_broken_cable_goes_apart(fabric: Fabric, programs: dict[NodeId, Program]) -> None:
    wiring = Wiring(fabric)
    compiler, mixture = Compiler(wiring), Mixture(wiring)
    for switch in fabric.switches:
        index = wiring.index[switch.id]
        mixture.put(index, (compiler.program(index, programs[switch.id]),))
    cable = fabric.links_of[NodeId("leaf2-host1")][0].id
    works = wiring.works(link != cable for link in wiring.links)
    (endpoint,) = mixture.straying(works)
    assert wiring.endpoints[endpoint] == "leaf2-host1"
    (plane,) = mixture.planes(works, np.zeros(1, dtype=np.uint64), [endpoint])
    assert plane.names == ("@leaf2/leaf2-host1",)
    assert plane.cut_off == plane.columns
    assert {wiring.nodes[node] for node in np.flatnonzero(plane.arrived)} == {"leaf2-host1"}
    assert plane.accepts[wiring.index[NodeId("leaf2-host1")]]
    assert not plane.accepts[wiring.index[NodeId("leaf2-host0")]]
