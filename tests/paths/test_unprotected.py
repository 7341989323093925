"""What is listed as cut off, from where and why: each failure tried out."""

from random import Random

import networkx as nx
import pytest

from erfs.ids import DestinationId, NodeId
from erfs.paths.protection import Failure, Kind, arm
from erfs.paths.situation import Situation
from erfs.paths.unprotected import NO_PATH, NO_SAFE_CHANGE, ONLY_LINK, ONLY_VALLEY
from tests.paths.deaths import Oracle, degraded
from tests.paths.fabrics import FAMILIES, family, family_name, tangle

Told = tuple[str, str, DestinationId, NodeId]
"""(failure, reason, destination, from where)"""


def name_of(situation: Situation, failure: Failure) -> str:
    topology = situation.topology
    match failure.kind:
        case Kind.TRUNK:
            return topology.trunks[failure.subject].id
        case Kind.NODE:
            return topology.switches[failure.subject]
        case Kind.SOURCE:
            return f"access links at {topology.switches[situation.mesh.target[failure.subject]]}"
        case Kind.DELIVERY:
            return f"access links at {topology.switches[failure.switch]}"
        case Kind.SRLG:
            return sorted({srlg for link in topology.fabric.links.values() for srlg in link.srlgs})[failure.subject]


def reason_of(situation: Situation, oracle: Oracle, failure: Failure, column: int, node: int) -> str:
    """Return why *node* is cut off: walk the usable links, up and then down where that is policy, and then anyhow."""
    mesh = situation.mesh
    broken = oracle.failing_ends(failure)
    gone = failure.subject if failure.kind is Kind.NODE else None
    homes = {switch for switch in situation.targets[column].attachments if switch not in (gone, failure.switch)}
    anyhow: nx.DiGraph[int] = nx.DiGraph()
    permitted: nx.DiGraph[tuple[int, bool]] = nx.DiGraph()
    anyhow.add_node(node)
    permitted.add_node((node, False))
    for end in range(len(mesh)):
        one, other = int(mesh.source[end]), int(mesh.target[end])
        if end in broken or gone in (one, other) or not situation.hops.usable[end]:
            continue
        anyhow.add_edge(one, other)
        if mesh.is_up[end]:
            permitted.add_edge((one, False), (other, False))
        else:
            permitted.add_edge((one, False), (other, True))
            permitted.add_edge((one, True), (other, True))
    reached = nx.descendants(anyhow, node) | {node}
    if not reached & homes:
        return NO_PATH
    allowed = {at for at, _ in nx.descendants(permitted, (node, False)) | {(node, False)}}
    if situation.topology.is_valley_free and not allowed & homes:
        return ONLY_VALLEY
    return NO_SAFE_CHANGE


def expected(situation: Situation) -> set[Told]:
    oracle, switches = Oracle(situation), situation.topology.switches
    sources = {access.switch for links in situation.access.values() for access in links}
    sources |= set(range(len(switches), situation.mesh.node_count))
    found: set[Told] = set()
    for failure in oracle.failures:
        for column, target in enumerate(situation.targets):
            for node in oracle.verdict(failure, column).dead & sources:
                reason = reason_of(situation, oracle, failure, column, node)
                at = (switches[node],) if node < len(switches) else situation.sources[node - len(switches)].endpoints
                found.update(
                    (name_of(situation, failure), reason, destination, where)
                    for destination in target.destinations
                    for where in at
                )
    return found


def assert_right(situation: Situation) -> None:
    listed = arm(situation).unprotected
    told = {
        (item.failure, item.reason, destination, node)
        for item in listed
        for destination in item.destinations
        for node in item.nodes
    }
    assert told == expected(situation)
    from_everywhere = {
        (item.failure, destination) for item in listed if not item.nodes for destination in item.destinations
    }
    assert from_everywhere == {
        (situation.topology.switches[target.attachments[0]], destination)
        for target in situation.targets
        if len(target.attachments) == 1
        for destination in target.destinations
    }
    single = sum(len(links) == 1 for links in situation.access.values())
    assert [item.failure for item in listed if item.reason == ONLY_LINK] == (
        [f"{single} access links"] if single else []
    )


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_what_is_cut_off_is_listed_with_its_reason(number: int) -> None:
    assert_right(degraded(family(number), Random(number), most=6))


@pytest.mark.parametrize("seed", range(30))
def test_what_is_cut_off_in_a_tangle_is_listed_with_its_reason(seed: int) -> None:
    """An endpoint with several attachments that all failures but one leave alone, islands, endpoints on two islands."""
    random = Random(seed)
    assert_right(degraded(tangle(random), random, most=6))


def test_the_list_is_sorted_and_says_each_thing_once() -> None:
    listed = arm(degraded(family(0), Random(2))).unprotected
    keys = [(item.failure, item.reason, item.nodes) for item in listed if item.reason != ONLY_LINK]
    assert keys == sorted(set(keys))
    assert all(item.destinations == tuple(sorted(set(item.destinations))) for item in listed)
