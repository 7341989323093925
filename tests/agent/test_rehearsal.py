"""What is rehearsed is ready, and nothing else is different."""

from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.paths import Topology, compute
from erfs_agent.forwarding import CompiledProgram, FactSet, forwarding
from erfs_agent.rehearsal import rehearse

PROGRAMS = compute(Topology(generate("fat-tree", {"k": 4})), unusable=frozenset()).programs
NO_PORTS = frozenset[str]()
# Built on first use.
INDEXES = {"routes", "plain", "below", "destinations_of_port", "ports_to", "port_of_far_end", "listed", "undisturbed"}


def test_after_a_rehearsal_the_indexes_that_a_failure_needs_are_there() -> None:
    compiled = CompiledProgram(PROGRAMS[NodeId("pod0-edge0")])
    assert not compiled.__dict__.keys() & INDEXES

    rehearse(compiled)

    assert compiled.__dict__.keys() >= INDEXES


def test_every_node_can_rehearse_and_forwards_as_if_it_had_not() -> None:
    link, reporter, far_end = LinkId("pod1-agg0:3|pod1-edge0:1"), NodeId("pod1-agg0"), NodeId("pod1-edge0")
    facts = FactSet().with_fact(link, reporter, 1, True, far_end)
    for program in PROGRAMS.values():
        rehearsed = CompiledProgram(program)
        rehearse(rehearsed)

        assert forwarding(rehearsed, facts, NO_PORTS, {}) == forwarding(program, facts, NO_PORTS, {})
        assert forwarding(rehearsed, FactSet(), NO_PORTS, {}) == forwarding(program, FactSet(), NO_PORTS, {})
