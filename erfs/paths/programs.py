"""From arrays to messages: one program for each switch and each attached endpoint.

Rule 1: equal situations, and weights before, give byte-identical programs; whatever does not concern a node does not change its program.
Rule 2: no path is found or judged here.
"""

from dataclasses import dataclass, field

from erfs.ids import LinkId, NodeId
from erfs.messages import CONTROLLER, Armed, FactRef, Program, Route, canonical_digest
from erfs.paths.entries import Armourer
from erfs.paths.mint import Mint, Outfit
from erfs.paths.protection import Unprotected, arm, nothing_armed
from erfs.paths.situation import Sharing, Situation
from erfs.paths.topology import Topology
from erfs.paths.ways import Way, delivery_ways, endpoint_ways, transit_fingerprint, transit_ways


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
        is_protecting: Whether to arm the programs for single failures.
        shared: How traffic was shared before, as the last result says. None: equally, as for whoever starts; the weights may then
            differ from those of a predecessor, within the tolerance.

    Cost: O(link-ends x destinations + armed changes).
    """
    situation = Situation(topology, unusable, shared=shared)
    mint = Mint()
    armory = arm(situation) if is_protecting else nothing_armed(situation)
    armourer = Armourer(situation, armory, mint)
    memory = _memory_of(topology, situation)
    # A fact about an unusable link testifies to nothing any more: no entry is armed for that link, and no switch's entry counts it.
    loose = {(fact.link, fact.reporter) for fact in facts if fact.link not in unusable}
    deliveries = _deliveries(situation)
    programs: dict[NodeId, Program] = {}
    for node in topology.bindings:
        known = memory.nodes.get(node)
        switch = topology.switch_index.get(node)
        if switch is None:
            fingerprint: tuple[object, ...] = ()
            ways = sorted(endpoint_ways(situation, node))
            outfit = armourer.of_endpoint(node)
        else:
            fingerprint = (
                transit_fingerprint(situation, switch),
                deliveries.get(switch, ()),
                armourer.fingerprint(switch),
            )
            if known is not None and known.fingerprint == fingerprint:
                ways, outfit = known.ways, known.outfit
            else:
                ways = sorted([*transit_ways(situation, switch), *deliveries.get(switch, ())])
                outfit = armourer.of_switch(switch)
        computed_from = _concerning(facts, topology, node, outfit.value, loose)
        if known is not None and known.is_of(ways, outfit, computed_from):
            program = known.program
        else:
            program = _program(topology, node, ways, outfit, computed_from, mint)
        memory.nodes[node] = _Known(fingerprint, outfit, ways, program)
        programs[node] = program
    return ProgramSet(programs, armory.unprotected, situation.sharing)


def _deliveries(situation: Situation) -> dict[int, list[Way]]:
    """Return each switch's ways to its own endpoints."""
    found: dict[int, list[Way]] = {}
    for endpoint, links in situation.topology.access.items():
        for access, way in delivery_ways(situation, endpoint, links):
            found.setdefault(access.switch, []).append(way)
    return found


# --- what the last computation left ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Known:
    """A node's program and what it was made of."""

    fingerprint: tuple[object, ...]
    outfit: Outfit
    ways: list[Way]
    program: Program

    def is_of(self, ways: list[Way], outfit: Outfit, computed_from: tuple[FactRef, ...]) -> bool:
        """Return whether the program says just this."""
        is_same_outfit = self.outfit is outfit or self.outfit.text == outfit.text
        is_same_ways = self.ways is ways or self.ways == ways
        return is_same_outfit and is_same_ways and self.program.computed_from == computed_from


@dataclass(slots=True)
class _Memory:
    """The programs of the last computation: what is made of the same is the same program, so it is not made again."""

    peculiarities: tuple[object, ...]
    nodes: dict[NodeId, _Known] = field(default_factory=dict)


def _memory_of(topology: Topology, situation: Situation) -> _Memory:
    memory = topology.memory
    if not isinstance(memory, _Memory) or memory.peculiarities != situation.peculiarities:
        memory = topology.memory = _Memory(situation.peculiarities)
    return memory


# --- messages ----------------------------------------------------------------------------------------------------------
def _program(
    topology: Topology, node: NodeId, ways: list[Way], outfit: Outfit, computed_from: tuple[FactRef, ...], mint: Mint
) -> Program:
    """Return the sealed program: groups numbered in the order of the routes that use them first."""
    bindings = topology.bindings[node]
    numbers: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}
    routes: list[tuple[Route, str]] = []
    for way in ways:
        group = numbers.setdefault((way.ports, way.weights), len(numbers))
        routes.append(mint.route(way.destination, group, way.has_detour))
    groups, groups_text = mint.groups(numbers)
    content = "".join(
        [
            '{"armed":',
            outfit.text,
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
        armed=outfit.value,
    )
    # What `content_digest` would find by dumping the program; it looks whether the content is still this one.
    program.__dict__["content_and_digest"] = (program.content, digest)
    return program


def _concerning(
    facts: tuple[FactRef, ...],
    topology: Topology,
    node: NodeId,
    armed: Armed,
    loose: set[tuple[LinkId, NodeId]],
) -> tuple[FactRef, ...]:
    """Return the facts about a node's own links, and those that still testify to a failure it is armed for, which are among *loose*."""
    if not facts:
        return ()
    links = {port.link for port in topology.bindings[node]}
    heard = {key for key in loose if _testifies(topology, armed, *key)} if armed else set()
    return tuple(
        sorted(
            (fact for fact in facts if fact.link in links or (fact.link, fact.reporter) in heard),
            key=lambda fact: (fact.link, fact.reporter, fact.counter),
        )
    )


def _testifies(topology: Topology, armed: Armed, name: LinkId, reporter: NodeId) -> bool:
    """Return whether a fact testifies to anything *armed*."""
    link = topology.fabric.links.get(name)
    if link is None or link.is_self_loop or reporter not in (link.a.node, link.b.node):
        return False
    is_of_node = link.far_end(reporter).node in armed.nodes and name not in armed.ignored
    return name in armed.links or is_of_node or any(name in risk.links for risk in armed.srlgs.values())
