"""From arrays to messages: one program for each switch and each attached endpoint.

Rule 1: equal situations, and weights before, give byte-identical programs; whatever does not concern a node does not change its program.
Rule 2: no path is found or judged here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from erfs.ids import LinkId, NodeId
from erfs.messages import CONTROLLER, Armed, FactRef, Program, Route, canonical_digest
from erfs.paths.backups import has_backups
from erfs.paths.entries import Armourer
from erfs.paths.mint import Mint, Outfit
from erfs.paths.protection import Armory, Unprotected, arm, nothing_armed
from erfs.paths.situation import NO_COSTS, Sharing, Situation
from erfs.paths.topology import Topology
from erfs.paths.ways import Way, delivery_ways, endpoint_ways, transit_ways


@dataclass(frozen=True)
class ProgramSet:
    """All programs of one situation, and what they do not protect."""

    programs: dict[NodeId, Program]
    unprotected: tuple[Unprotected, ...]
    sharing: Sharing
    """How traffic is shared: what the next computation is told, so that weights move only where they have to."""


def compute(
    topology: Topology,
    *,
    unusable: frozenset[LinkId],
    facts: tuple[FactRef, ...] = (),
    costs: Mapping[LinkId, int] = NO_COSTS,
    is_protecting: bool = True,
    shared: Sharing | None = None,
) -> ProgramSet:
    """
    Return the program of every switch and every attached endpoint.

    Sender, epoch 0 and generation 1 are placeholders for the controller to restamp; the digest covers none of them.

    Args:
        topology: The fabric as built.
        unusable: Links that carry nothing now.
        facts: Down facts taken into account. A program lists those that could change what its node does: about its own links, or by
            an end of a link that testifies to an entry it is armed with. So a failure elsewhere leaves a program's digest alone.
        costs: Of trunks that are to be avoided, more than the usual 1.
        is_protecting: Whether to arm the programs for single failures, and to give them backups where policy permits.
        shared: How traffic was shared before, as the last result says. None: equally, as for whoever starts; the weights may then
            differ from those of a predecessor, within the tolerance.

    Cost: O(link-ends x destinations + armed changes); after a computation for the same topology, that of what is different now.
    """
    memory = topology.memory if isinstance(topology.memory, _Memory) else None
    situation = Situation(topology, unusable, costs, None if memory is None else memory.situation, shared)
    armory = arm(situation, None if memory is None else memory.armory) if is_protecting else nothing_armed(situation)
    if memory is not None and (
        situation.touched is None
        or memory.situation.peculiarities != situation.peculiarities
        or memory.is_protecting is not is_protecting
        or (is_protecting and armory.changed is None)
    ):
        memory = None
    known = {} if memory is None else dict(memory.nodes)
    stale = frozenset(topology.bindings) if memory is None else _stale(memory, situation, armory)
    is_backed = is_protecting and has_backups(situation)
    mint = Mint()
    numbers = sorted({number for node in stale for number in situation.mesh_nodes(node)})
    armourer = Armourer(situation, armory, np.array(numbers, dtype=np.int64), mint)
    for node in stale:
        known[node] = _made(situation, node, armourer, known.get(node), is_backed=is_backed)
    programs: dict[NodeId, Program] = {}
    facts_at = _facts_at(topology, facts)
    # A fact about an unusable link testifies to nothing any more: no entry is armed for that link, and no switch's entry counts it.
    loose = [fact for fact in facts if fact.link not in unusable]
    for node in topology.bindings:
        made = known[node]
        computed_from = _concerning(facts_at.get(node, []), loose, topology, made.outfit.value)
        if made.program is None or made.program.computed_from != computed_from:
            is_backed_node = is_backed and node in topology.switch_index
            program = _program(topology, node, made, computed_from, mint, is_backed=is_backed_node)
            made = known[node] = replace(made, program=program)
        assert made.program is not None
        programs[node] = made.program
    topology.memory = _Memory(situation, armory, known, is_protecting)
    return ProgramSet(programs, armory.unprotected, situation.sharing)


# --- what the last computation left ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Known:
    """What a node's program is made of; None: the program has still to be made."""

    outfit: Outfit
    ways: list[Way]
    program: Program | None = None


@dataclass(frozen=True, slots=True)
class _Memory:
    """The last computation: what a change does not touch is the same program, so it is not made again."""

    situation: Situation
    armory: Armory
    nodes: dict[NodeId, _Known]
    is_protecting: bool


def _stale(memory: _Memory, situation: Situation, armory: Armory) -> frozenset[NodeId]:
    """Return the nodes whose program may be made of something else now."""
    topology, touched = situation.topology, situation.touched
    assert touched is not None
    # Whose backups differ is among those whose detours may: at the far end of a changed link-end, or sent to by somebody with another choice now.
    numbers = [touched.nodes, situation.detours_touched, situation.sharing.differing(memory.situation.sharing)]
    if armory.changed is not None:
        numbers.append(armory.changed.nodes)
    found = {node for number in np.unique(np.concatenate(numbers)).tolist() for node in situation.nodes_at(number)}
    links = [
        topology.fabric.links[link]
        for link in situation.unusable ^ memory.situation.unusable
        if link in topology.fabric.links
    ]
    # Whoever is armed for the loss of a switch counts who can testify to it, and of a risk group too.
    ends = {end.node for link in links for end in link.ends}
    risks = {srlg for link in links for srlg in link.srlgs}
    for node, known in memory.nodes.items():
        armed = known.outfit.value
        if not ends.isdisjoint(armed.nodes) or not risks.isdisjoint(armed.srlgs):
            found.add(node)
    for link in links:
        if topology.fabric.is_access(link):
            found.update(end.node for end in link.ends)
    return frozenset(found & topology.bindings.keys())


def _made(situation: Situation, node: NodeId, armourer: Armourer, known: _Known | None, *, is_backed: bool) -> _Known:
    """Return what the program of *node* is made of now: *known*, if that is the same."""
    switch = situation.topology.switch_index.get(node)
    if switch is None:
        ways = sorted(endpoint_ways(situation, node))
        outfit = armourer.of_endpoint(node)
    else:
        ways = sorted([*transit_ways(situation, switch, has_backups=is_backed), *delivery_ways(situation, switch)])
        outfit = armourer.of_switch(switch)
    is_same = known is not None and known.outfit.text == outfit.text and known.ways == ways
    return known if known is not None and is_same else _Known(outfit, ways)


# --- messages ----------------------------------------------------------------------------------------------------------
def _program(
    topology: Topology, node: NodeId, made: _Known, computed_from: tuple[FactRef, ...], mint: Mint, *, is_backed: bool
) -> Program:
    """Return the sealed program: groups numbered in the order of the routes that use them first."""
    bindings = topology.bindings[node]
    numbers: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}
    routes: list[tuple[Route, str]] = []
    for way in made.ways:
        group = numbers.setdefault((way.ports, way.weights), len(numbers))
        routes.append(mint.route(way.destination, group, way.has_detour))
    groups, groups_text = mint.groups(numbers)
    backups, backups_text = mint.backups(made.ways) if is_backed else (None, "")
    content = "".join(
        [
            '{"armed":',
            made.outfit.text,
            backups_text,
            ',"computed_from":',
            mint.facts(computed_from),
            ',"groups":',
            groups_text,
            ',"node":',
            mint.quoted[node],
            ',"ports":',
            mint.bindings(bindings),
            ',"routes":[',
            ",".join([text for _, text in routes]),
            "]}",
        ]
    )
    digest = canonical_digest(content)
    # Made of parts that need no second check.
    program = Program.model_construct(
        sender=CONTROLLER,
        node=node,
        generation=1,
        digest=digest,
        computed_from=computed_from,
        ports=bindings,
        groups=groups,
        routes=tuple([route for route, _ in routes]),
        armed=made.outfit.value,
        backups=backups,
    )
    # What `content_digest` would find by dumping the program; it looks whether the content is still this one.
    program.__dict__["content_and_digest"] = (program.content, digest)
    return program


def _facts_at(topology: Topology, facts: tuple[FactRef, ...]) -> dict[NodeId, list[FactRef]]:
    """Return the facts about each node's own links."""
    found: dict[NodeId, list[FactRef]] = {}
    for fact in facts:
        link = topology.fabric.links.get(fact.link)
        for node in {end.node for end in link.ends} if link is not None else ():
            found.setdefault(node, []).append(fact)
    return found


def _concerning(own: list[FactRef], loose: list[FactRef], topology: Topology, armed: Armed) -> tuple[FactRef, ...]:
    """Return the facts about a node's *own* links, and those that still testify to a failure it is armed for, which are among *loose*."""
    heard = [fact for fact in loose if _testifies(topology, armed, fact.link, fact.reporter)] if armed else []
    return tuple(sorted({*own, *heard}, key=lambda fact: (fact.link, fact.reporter, fact.counter)))


def _testifies(topology: Topology, armed: Armed, name: LinkId, reporter: NodeId) -> bool:
    """Return whether a fact testifies to anything *armed*."""
    link = topology.fabric.links.get(name)
    if link is None or link.is_self_loop or reporter not in (link.a.node, link.b.node):
        return False
    is_of_node = link.far_end(reporter).node in armed.nodes and name not in armed.ignored
    return name in armed.links or is_of_node or any(name in risk.links for risk in armed.srlgs.values())
