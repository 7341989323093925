"""Which flows are measured: enough across what breaks, each way, and none by what became of it."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from erfs.fabric import Fabric, LinkEnd
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs_scenario.demands import DemandSet
from erfs_scenario.kernel.flows import BESIDE, EACH_WAY_MIN, FLOWS_MAX, Chosen, choose_flows, sending_ends
from erfs_scenario.kernel.tracing import Flow, Hop, Trace

FABRIC = generate("fat-tree", {"k": 4})
EVERYBODY = DemandSet("all_pairs", endpoints=tuple(node.id for node in FABRIC.endpoints))
UPLINK = next(
    link for link in FABRIC.trunks if {end.node for end in link.ends} == {NodeId("pod0-edge0"), NodeId("pod0-agg0")}
)


class Kernel:
    """Spreads flows over the shortest ways of a fat-tree, by a hash of its own; *weights* make it unfair."""

    def __init__(self, fabric: Fabric, *, is_polarised: bool = False) -> None:
        self._fabric = fabric
        self._is_polarised = is_polarised
        self.asked = 0

    def trace(self, flows: Sequence[Flow]) -> list[Trace]:
        self.asked += len(flows)
        return [self._trace(flow) for flow in flows]

    def _trace(self, flow: Flow) -> Trace:
        hops, node = [], flow.source
        while node != flow.target:
            choice = self._ways(node, flow.target)
            place = 0 if self._is_polarised else random.Random(f"{flow}{node}").randrange(len(choice))
            hops.append(Hop(choice[place], frozenset(choice) - {choice[place]}))
            link = self._fabric.link_at[choice[place]]
            node = link.far_end(node).node
        return Trace(tuple(hops), True)

    def _ways(self, node: NodeId, target: NodeId) -> list[LinkEnd]:
        best: dict[int, list[LinkEnd]] = {}
        for link in self._fabric.links_of[node]:
            far = link.far_end(node).node
            end = next(end for end in link.ends if end.node == node)
            best.setdefault(self._distance(far, target), []).append(end)
        return best[min(best)]

    def _distance(self, node: NodeId, target: NodeId) -> int:
        seen, front, steps = {node}, {node}, 0
        while target not in front:
            front = {link.far_end(one).node for one in front for link in self._fabric.links_of[one]} - seen
            seen |= front
            steps += 1
        return steps


def cut(kind: FaultKind = FaultKind.LINK_DOWN, *ends: LinkEnd) -> Fault:
    return Fault("cut", kind, 0, 1, links=(UPLINK.id,), ends=ends)


def chosen(fault: Fault, *, seed: int = 1, kernel: Kernel | None = None) -> tuple[Chosen, Counter[LinkEnd]]:
    """Return what is chosen for *fault*, and how many of the flows cross each port."""
    kernel = kernel or Kernel(FABRIC)
    links = fault.links or tuple(link.id for node in fault.nodes for link in FABRIC.links_of[node])
    harmed = sending_ends(FABRIC, fault, links)
    found = choose_flows([EVERYBODY], {fault.id: harmed}, kernel.trace, random.Random(seed))
    crossing = Counter(hop.end for trace in kernel.trace(found.flows) for hop in trace.hops)
    return found, crossing


def test_thirty_flows_cross_a_cut_cable_each_way_and_some_do_not_cross_it() -> None:
    found, crossing = chosen(cut())
    assert [crossing[end] for end in UPLINK.ends] == [EACH_WAY_MIN, EACH_WAY_MIN]
    assert len(found.flows) == 2 * EACH_WAY_MIN + BESIDE
    assert set(found.sets) == {"all_pairs"}
    assert len(set(found.flows)) == len(found.flows)


def test_of_a_one_way_drop_only_the_way_that_is_not_heard_counts() -> None:
    deaf, heard = UPLINK.ends
    assert sending_ends(FABRIC, cut(FaultKind.ONE_WAY_DROP, deaf), (UPLINK.id,)) == {heard}
    found, crossing = chosen(cut(FaultKind.ONE_WAY_DROP, deaf))
    assert crossing[heard] == EACH_WAY_MIN
    assert len(found.flows) <= EACH_WAY_MIN + BESIDE + crossing[deaf]


def test_the_links_of_a_node_share_the_flows() -> None:
    node = NodeId("core0-0")
    fault = Fault("power", FaultKind.NODE_DOWN, 0, 1, nodes=(node,))
    found, crossing = chosen(fault)
    ends = sending_ends(FABRIC, fault, [link.id for link in FABRIC.links_of[node]])
    assert min(crossing[end] for end in ends) >= EACH_WAY_MIN // 4
    assert len(found.flows) <= FLOWS_MAX // 2


def test_the_seed_alone_decides() -> None:
    assert chosen(cut(), seed=3)[0] == chosen(cut(), seed=3)[0]
    assert chosen(cut(), seed=3)[0] != chosen(cut(), seed=4)[0]


def test_a_kernel_that_does_not_spread_is_noticed() -> None:
    assert chosen(cut())[0].skewed == ()
    found, _ = chosen(cut(), kernel=Kernel(FABRIC, is_polarised=True))
    assert found.skewed != ()


def test_what_has_no_way_is_not_measured() -> None:
    kernel = Kernel(FABRIC)

    def blind(flows: Sequence[Flow]) -> list[Trace]:
        return [
            Trace(trace.hops, flow.target != "pod0-edge0-host0")
            for flow, trace in zip(flows, kernel.trace(flows), strict=True)
        ]

    found = choose_flows([EVERYBODY], {}, blind, random.Random(1))
    assert found.flows
    assert all(flow.target != "pod0-edge0-host0" for flow in found.flows)


@pytest.mark.parametrize("pairs", [((NodeId("pod0-edge0-host0"), NodeId("pod1-edge0-host0")),)])
def test_listed_pairs_are_the_only_ones(pairs: tuple[tuple[NodeId, NodeId], ...]) -> None:
    found = choose_flows([DemandSet("two", pairs=pairs)], {}, Kernel(FABRIC).trace, random.Random(1))
    assert {(flow.source, flow.target) for flow in found.flows} == set(pairs)
    assert set(found.sets) == {"two"}
