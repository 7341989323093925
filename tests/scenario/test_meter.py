"""What the meter writes down, on fabrics where the right answer can be worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from erfs.fabric import Fabric, Link, LinkEnd, Medium, Node, NodeKind
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Member
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.demands import DemandSet
from erfs_scenario.judging import judge_records
from erfs_scenario.measurement import Meter
from erfs_scenario.plan import Plan

from .conftest import drop, install_shortest_paths

Find = Callable[[str, str], LinkId]


class Bench:
    """A meter on a data plane whose changes the test makes by hand."""

    def __init__(self, fabric: Fabric, faults: tuple[Fault, ...], demands: tuple[DemandSet, ...] | None = None) -> None:
        everybody = tuple(node.id for node in fabric.endpoints)
        self.plan = Plan(
            name="bench",
            fabric=fabric,
            demands=demands or (DemandSet("all_pairs", endpoints=everybody),),
            faults=faults,
            seed=1,
            measure_from_ns=1000,
            duration_ns=100_000,
        )
        self.plane = DataPlane(fabric)
        self.records: list[dict[str, Any]] = []
        self.meter = Meter(self.plan, self.plane, self.record)
        self.record(0, "run_started", self.plan.header("sim"))

    def record(self, at_ns: int, event: str, fields: dict[str, object]) -> None:
        self.records.append({"at_ns": at_ns, "event": event} | fields)

    def cut(self, fault: Fault) -> None:
        """Let *fault* happen at its time."""
        self.meter.before_fault(fault, fault.at_ns)
        for link in fault.links:
            self.plane.set_link(link, False)
        for node in fault.nodes:
            self.plane.set_node(node, False)
        self.meter.settle(fault.at_ns)
        self.record(fault.at_ns, "fault_effective", {"fault": fault.id})

    def mend(self, fault: Fault) -> None:
        """Let *fault* end at its time."""
        self.meter.before_return(fault, fault.end_at_ns)
        for link in fault.links:
            self.plane.set_link(link, True)
        for node in fault.nodes:
            self.plane.set_node(node, True)
        self.meter.settle(fault.end_at_ns)
        self.record(fault.end_at_ns, "fault_ended", {"fault": fault.id})

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == event]

    def affected(self) -> dict[tuple[str, str], tuple[int, str]]:
        """Return share in millionths and side of each affected flow of the only fault."""
        (record,) = self.of("flows_affected")
        return {(source, target): (share, side) for source, target, _, share, side in record["flows"]}


def down(*links: LinkId, nodes: tuple[str, ...] = ()) -> Fault:
    kind = FaultKind.NODE_DOWN if nodes else FaultKind.LINK_DOWN
    return Fault("f", kind, 10_000, 50_000, tuple(links), tuple(NodeId(node) for node in nodes))


def edge(pod: int, rack: int) -> str:
    return f"@pod{pod}-edge{rack}"


EDGES = [edge(pod, rack) for pod in range(4) for rack in range(2)]


def test_flows_across_an_uplink_of_an_edge_switch_near_and_far(fat_tree: Fabric, link_between: Find) -> None:
    """
    Cable pod0-edge0 to pod0-agg0. Outbound the edge has its other uplink: near end, half its traffic. Inbound the aggregation
    switch has no other way down to that edge: all who send through it must learn: far end; a half from each other edge.
    """
    fault = down(link_between("pod0-edge0", "pod0-agg0"))
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    here = edge(0, 0)
    others = [name for name in EDGES if name != here]
    assert bench.affected() == {(here, other): (500_000, "near") for other in others} | {
        (other, here): (500_000, "far") for other in others
    }
    changed = {(record["source"], record["destination"]): record for record in bench.of("flow_changed")}
    assert changed.keys() == bench.affected().keys()
    assert {(record["served_ppm"], record["cause"]) for record in changed.values()} == {(500_000, "not_recovered")}


def test_flows_across_a_core_cable_of_an_aggregation_switch(fat_tree: Fabric, link_between: Find) -> None:
    """
    Cable pod0-agg0 to core0-0. Outbound, from the edges of pod 0 to other pods, a quarter crosses, and agg0 has its other core:
    near. Inbound the core has no other way into pod 0: far, a quarter.
    """
    fault = down(link_between("pod0-agg0", "core0-0"))
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    inside, outside = EDGES[:2], EDGES[2:]
    assert bench.affected() == {(one, two): (250_000, "near") for one in inside for two in outside} | {
        (two, one): (250_000, "far") for one in inside for two in outside
    }


def test_each_flow_comes_back_when_the_last_switch_on_its_way_has_changed(fat_tree: Fabric, link_between: Find) -> None:
    cable = link_between("pod0-edge0", "pod0-agg0")
    fault = down(cable)
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    drop(bench.plane, NodeId("pod0-edge0"), [cable])
    bench.meter.settle(10_300)
    # The far ends: pod0-edge1 sends by its other aggregation switch, the cores of plane 0 have none: the pods' edges must act.
    drop(bench.plane, NodeId("pod0-edge1"), [link_between("pod0-edge1", "pod0-agg0")], [edge(0, 0)])
    bench.meter.settle(10_700)
    for pod in (1, 2, 3):
        for rack in (0, 1):
            name = f"pod{pod}-edge{rack}"
            drop(bench.plane, NodeId(name), [link_between(name, f"pod{pod}-agg0")], [edge(0, 0)])
    bench.meter.settle(12_000)
    bench.mend(fault)
    bench.meter.finish(100_000)
    (report,) = judge_records(bench.records).faults
    assert report.near.model_dump() == {"flows": 7, "first_ns": 300, "median_ns": 300, "last_ns": 300}
    assert report.far.model_dump() == {"flows": 7, "first_ns": 700, "median_ns": 2000, "last_ns": 2000}
    # Every edge has lost one of two uplinks towards the other, so half its capacity.
    assert report.capacity_retained_min_ppm == 500_000
    assert report.return_.flows_lost == 0
    # 2 hosts an edge: 4 demands a flow, half of each lost: 7 x 300 + 700 + 6 x 2000 ns.
    assert report.lost_demand_ns == 4 * (7 * 300 + 700 + 6 * 2000) // 2


def test_a_dead_edge_switch_cuts_its_own_hosts_and_nobody_else(fat_tree: Fabric) -> None:
    fault = down(nodes=("pod0-edge0",))
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    here = edge(0, 0)
    changed = {(record["source"], record["destination"]): record for record in bench.of("flow_changed")}
    assert changed.keys() == {pair for other in EDGES for pair in ((here, other), (other, here))}
    assert {(record["served_ppm"], record["cause"]) for record in changed.values()} == {(0, "cut")}
    assert changed[here, here]["weights"] == {"all_pairs": 2}
    # With its power back but its table lost, the same flows have a path again and still no service.
    bench.records.clear()
    bench.mend(fault)
    again = {(record["source"], record["destination"]): record["cause"] for record in bench.of("flow_changed")}
    assert again == dict.fromkeys(changed, "not_recovered")


def test_a_cut_access_cable_takes_down_all_demands_of_its_endpoint_and_no_other(fat_tree: Fabric) -> None:
    host = NodeId("pod0-edge0-host0")
    (access,) = fat_tree.access_links[host]
    fault = down(access.id)
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    own = fat_tree.destination_of[host]
    changed = bench.of("flow_changed")
    assert {record["cause"] for record in changed} == {"cut"}
    assert {own in (record["source"], record["destination"]) for record in changed} == {True}
    assert sum(record["weights"]["all_pairs"] for record in changed) == 2 * 15


def test_what_only_a_valley_could_serve_is_cut_by_policy(fat_tree: Fabric, link_between: Find) -> None:
    """Both core cables of pod0-agg0 and the cable pod0-edge0 to pod0-agg1 are gone: only edge0-agg0-edge1-agg1-core is left."""
    fault = down(
        link_between("pod0-agg0", "core0-0"),
        link_between("pod0-agg0", "core0-1"),
        link_between("pod0-edge0", "pod0-agg1"),
    )
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    causes = {(record["source"], record["destination"]): record["cause"] for record in bench.of("flow_changed")}
    assert causes[edge(0, 0), edge(2, 0)] == "cut_by_policy"
    assert causes[edge(0, 0), edge(0, 1)] == "not_recovered"
    assert causes[edge(0, 1), edge(2, 0)] == "not_recovered"


def test_on_lossy_links_a_valley_is_a_path() -> None:
    fabric = generate("fat-tree", {"k": 4, "medium": Medium.LOSSY})
    ends = [("pod0-agg0", "core0-0"), ("pod0-agg0", "core0-1"), ("pod0-edge0", "pod0-agg1")]
    cables = [
        link.id
        for link in fabric.links.values()
        if (link.a.node, link.b.node) in ends or (link.b.node, link.a.node) in ends
    ]
    fault = down(*cables)
    bench = Bench(fabric, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.cut(fault)
    causes = {(record["source"], record["destination"]): record["cause"] for record in bench.of("flow_changed")}
    assert causes[edge(0, 0), edge(2, 0)] == "not_recovered"


def test_a_planted_loop_is_named_and_what_enters_it_is_lost(fat_tree: Fabric, link_between: Find) -> None:
    bench = Bench(fat_tree, (down(link_between("pod0-agg0", "core0-0")),))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    port = fat_tree.links[link_between("pod1-agg0", "core0-0")].end_at(NodeId("core0-0")).port
    bench.plane.write_routes(NodeId("core0-0"), {DestinationId(edge(0, 0)): (Member(port=port),)})
    bench.meter.settle(2000)
    (record,) = bench.of("loops_changed")
    assert record["destination"] == edge(0, 0)
    assert record["loops"] == [["core0-0", "pod1-agg0"]]
    bench.meter.finish(100_000)
    report = judge_records(bench.records)
    assert report.loops == (("core0-0", "pod1-agg0"),)
    assert [check.outcome for check in report.verdict.checks if check.name == "no loop"] == ["missed"]


def twin_homed() -> Fabric:
    return generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "attachments": 2})


def install_twin_homed(plane: DataPlane) -> None:
    """Write tables for leaf pairs: leaves send up to both spines, spines down to both leaves of the pair, hosts to both of theirs."""
    fabric = plane.fabric

    def ports(node: NodeId, far_nodes: tuple[NodeId, ...]) -> tuple[Member, ...]:
        return tuple(
            Member(port=link.end_at(node).port)
            for link in fabric.links_of[node]
            if link.far_end(node).node in far_nodes
        )

    spines = tuple(node.id for node in fabric.switches if node.tier == 2)
    for name, members in fabric.class_members.items():
        pair = fabric.attachments[members[0]]
        for node in fabric.switches:
            if node.id in pair:
                own = {fabric.destination_of[host]: ports(node.id, (host,)) for host in members}
                plane.write_routes(node.id, own)
            else:
                plane.write_routes(node.id, {name: ports(node.id, pair if node.id in spines else spines)})
        for host in fabric.access_links:
            plane.write_routes(host, {name: ports(host, fabric.attachments[host])})


def test_a_twin_homed_host_that_loses_one_cable_has_a_path_and_its_own_exception_serves_it() -> None:
    """Inbound half is lost until an exception sends it to the other leaf; outbound until the host's own agent acts; nobody else's."""
    fabric = twin_homed()
    host = next(node.id for node in fabric.endpoints)
    lost, kept = fabric.access_links[host]
    fault = down(lost.id)
    bench = Bench(fabric, (fault,))
    install_twin_homed(bench.plane)
    bench.meter.settle(1000)
    assert not bench.of("flow_changed")
    bench.cut(fault)
    own = fabric.destination_of[host]
    changed = {(record["source"], record["destination"]): record for record in bench.of("flow_changed")}
    assert {own in pair for pair in changed} == {True}
    assert {(record["served_ppm"], record["cause"]) for record in changed.values()} == {(500_000, "not_recovered")}
    bench.records.clear()
    drop(bench.plane, host, [lost.id])
    bench.meter.settle(10_100)
    assert {record["source"] for record in bench.of("flow_changed")} == {own}
    kept_leaf = kept.far_end(host).node
    for node in fabric.switches:
        members = tuple(
            Member(port=link.end_at(node.id).port)
            for link in fabric.links_of[node.id]
            if link.far_end(node.id).node
            in ((kept_leaf,) if node.tier == 2 else [n.id for n in fabric.switches if n.tier == 2])
        )
        if node.id != kept_leaf:
            bench.plane.write_routes(node.id, {own: members})
    bench.records.clear()
    # The host's twin sends to both leaves of the pair; the one that lost the cable sends up again, which is a valley but works.
    bench.meter.settle(10_200)
    assert {record["destination"] for record in bench.of("flow_changed")} == {own}
    assert {record["served_ppm"] for record in bench.of("flow_changed")} == {1_000_000}


def test_an_exception_for_a_member_nobody_touched_gets_a_walk_of_its_own() -> None:
    """A route that blackholes one host of a class costs just that host's share of the class."""
    fabric = twin_homed()
    (first, *_), *_ = fabric.class_members.values()
    cable = fabric.trunks[0].id
    bench = Bench(fabric, (down(cable),))
    install_twin_homed(bench.plane)
    bench.meter.settle(1000)
    for node in fabric.switches:
        if node.tier == 2:
            bench.plane.write_routes(node.id, {fabric.destination_of[first]: ()})
    bench.meter.settle(2000)
    members = fabric.class_members[DestinationId(fabric.destination_of[first].split("/")[0])]
    remote = [record for record in bench.of("flow_changed") if record["served_ppm"] != 1_000_000]
    assert {record["served_ppm"] for record in remote} == {1_000_000 * (len(members) - 1) // len(members)}


def test_nothing_is_recorded_of_the_time_before_the_measurement(fat_tree: Fabric, link_between: Find) -> None:
    bench = Bench(fat_tree, (down(link_between("pod0-agg0", "core0-0")),))
    bench.meter.settle(500)
    install_shortest_paths(bench.plane)
    bench.meter.settle(900)
    assert [record["event"] for record in bench.records] == ["run_started"]
    bench.meter.settle(1000)
    assert bench.records[-1]["event"] == "measurement_started"
    assert bench.records[-1]["weights"] == {"all_pairs": 16 * 15}


@pytest.mark.parametrize("kind", [FaultKind.AGENT_KILL, FaultKind.BUS_PARTITION, FaultKind.CONTROLLER_KILL])
def test_a_fault_of_the_control_plane_affects_no_flow(fat_tree: Fabric, kind: FaultKind) -> None:
    nodes = () if kind is FaultKind.CONTROLLER_KILL else (NodeId("core0-0"),)
    fault = Fault("f", kind, 10_000, 50_000, (), nodes)
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.meter.before_fault(fault, 10_000)
    assert bench.affected() == {}


def test_parallel_access_cables_share_an_endpoints_traffic() -> None:
    """A host with two cables to one leaf sends half its traffic over each, and loses half until its agent acts."""
    leaf, host, other = NodeId("leaf"), NodeId("a"), NodeId("b")
    fabric = Fabric(
        [Node(leaf, NodeKind.SWITCH, tier=1), Node(host, NodeKind.HOST, tier=0), Node(other, NodeKind.HOST, tier=0)],
        [
            Link.between(LinkEnd(leaf, "1"), LinkEnd(host, "1"), capacity_bps=1),
            Link.between(LinkEnd(leaf, "2"), LinkEnd(host, "2"), capacity_bps=1),
            Link.between(LinkEnd(leaf, "3"), LinkEnd(other, "1"), capacity_bps=1),
        ],
    )
    fault = down(fabric.access_links[host][0].id)
    bench = Bench(fabric, (fault,))
    everything = DestinationId("*")
    bench.plane.write_routes(host, {everything: (Member(port="1"), Member(port="2"))})
    bench.plane.write_routes(other, {everything: (Member(port="1"),)})
    bench.plane.write_routes(
        leaf,
        {
            fabric.destination_of[host]: (Member(port="1"), Member(port="2")),
            fabric.destination_of[other]: (Member(port="3"),),
        },
    )
    bench.meter.settle(1000)
    bench.cut(fault)
    assert [record["served_ppm"] for record in bench.of("flow_changed")] == [500_000, 500_000]
    assert {side for _, side in bench.affected().values()} == {"near"}


def test_only_what_is_sent_towards_the_deaf_end_is_lost_and_both_directions_are_affected(
    fat_tree: Fabric, link_between: Find
) -> None:
    """Who is deaf stops sending, too: what it sends may be harmed by that."""
    name = link_between("pod0-edge0", "pod0-agg0")
    deaf = fat_tree.links[name].end_at(NodeId("pod0-agg0"))
    fault = Fault("f", FaultKind.ONE_WAY_DROP, 10_000, 50_000, (name,), ends=(deaf,))
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    bench.meter.before_fault(fault, 10_000)
    bench.plane.set_deaf(deaf, True)
    bench.meter.settle(10_000)
    here = edge(0, 0)
    others = [name for name in EDGES if name != here]
    changed = {(record["source"], record["destination"]): record["served_ppm"] for record in bench.of("flow_changed")}
    assert changed == {(here, other): 500_000 for other in others}
    assert bench.affected().keys() == changed.keys() | {(other, here) for other in others}


def test_an_endpoint_behind_a_silent_link_is_cut_though_its_switch_has_power(fat_tree: Fabric) -> None:
    leaf = NodeId("pod0-edge0")
    fault = Fault("f", FaultKind.NODE_ISOLATED, 10_000, 50_000, nodes=(leaf,))
    bench = Bench(fat_tree, (fault,))
    install_shortest_paths(bench.plane)
    bench.meter.settle(1000)
    for link in fat_tree.links_of[leaf]:
        for end in link.ends:
            bench.plane.set_deaf(end, True)
    bench.meter.settle(10_000)
    changed = {(record["source"], record["destination"]): record["cause"] for record in bench.of("flow_changed")}
    assert set(changed.values()) == {"cut"}
    assert (edge(0, 0), edge(0, 0)) in changed
