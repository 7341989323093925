"""How a flow came back, link by link: what agents said is held against what its datagrams tell."""

from erfs.fabric import LinkEnd
from erfs.ids import NodeId
from erfs_scenario.kernel.chains import Chain, Said, chains, said
from erfs_scenario.kernel.outages import FlowRecord, Gap
from erfs_scenario.kernel.tracing import Hop, Trace

LEAF, SPINE, FAR = NodeId("leaf0"), NodeId("spine0"), NodeId("leaf1")
LINK = "leaf1:e1|spine0:e2"
UP, OTHER_UP = LinkEnd(LEAF, "e1"), LinkEnd(LEAF, "e2")
BROKEN = LinkEnd(SPINE, "e2")
WAY = Trace((Hop(UP, frozenset({OTHER_UP})), Hop(BROKEN, frozenset())), True)
LOST = FlowRecord(100, (Gap(11, 9, 11, 20, 10, is_open=False),), 0, 0, 1, 1, 1)


def note(at_ns: int, event: str, node: NodeId) -> Said:
    return Said(at_ns, event, node, frozenset({LINK}))


def found(*notes: Said, record: FlowRecord = LOST) -> list[Chain]:
    return chains(
        {0: WAY},
        frozenset({BROKEN}),
        [record],
        notes,
        failed=frozenset({LINK}),
        effective_ns=10,
        until_ns=90,
        interval_ns=1,
    )


SEEN = note(12, "port_down_detected", SPINE)
READ = note(15, "fact_received", LEAF)
DONE = note(19, "change_acknowledged", LEAF)


def test_a_far_end_flow_comes_back_by_the_node_before_the_break_that_has_a_choice() -> None:
    useless = note(14, "change_acknowledged", SPINE)
    assert found(SEEN, useless, READ, DONE) == [Chain(0, LEAF, 10, 12, 15, 19, 20)]
    assert found(SEEN, useless, READ, DONE)[0].rest_ns == 1


def test_of_several_changes_the_last_before_the_flow_got_through_is_the_one_that_repaired_it() -> None:
    early = (note(12, "fact_received", LEAF), note(13, "change_acknowledged", LEAF))
    later = (note(25, "fact_received", LEAF), note(26, "change_acknowledged", LEAF))

    assert found(SEEN, *early, READ, DONE, *later) == [Chain(0, LEAF, 10, 12, 15, 19, 20)]


def test_a_node_that_sees_the_failure_itself_reads_no_fact() -> None:
    way = Trace((Hop(UP, frozenset({OTHER_UP})),), True)
    seen, done = note(12, "port_down_detected", LEAF), note(13, "change_acknowledged", LEAF)
    [chain] = chains(
        {0: way},
        frozenset({UP}),
        [LOST],
        [seen, done],
        failed=frozenset({LINK}),
        effective_ns=10,
        until_ns=90,
        interval_ns=1,
    )
    assert (chain.node, chain.fact_ns, chain.acknowledged_ns) == (LEAF, None, 13)


def test_what_came_back_before_anybody_acknowledged_was_not_repaired_by_an_agent() -> None:
    assert found(SEEN, READ, note(40, "change_acknowledged", LEAF)) == []


def test_a_flow_that_lost_nothing_or_never_came_back_has_no_chain() -> None:
    assert found(SEEN, READ, DONE, record=FlowRecord(100, (), 0, 0, 1, 1, 1)) == []
    lost = FlowRecord(100, (Gap(11, 89, 11, 99, -1, is_open=True),), 0, 0, 1, 1, 1)
    assert found(SEEN, READ, DONE, record=lost) == []


def test_without_a_detection_there_is_no_chain() -> None:
    assert found(READ, DONE) == []


def test_of_the_marks_only_those_of_failures_count() -> None:
    marks: list[tuple[int, str, dict[str, object]]] = [
        (5, "change_acknowledged", {"node": "leaf0", "failures": [LINK, "spine9"]}),
        (3, "fact_received", {"node": "leaf0", "link": LINK, "down": True}),
        (4, "fact_received", {"node": "leaf0", "link": LINK, "down": False}),
        (1, "port_down_detected", {"node": "spine0", "link": LINK}),
        (2, "bus_connected", {"node": "spine0"}),
    ]
    assert said(marks) == [
        Said(1, "port_down_detected", SPINE, frozenset({LINK})),
        Said(3, "fact_received", LEAF, frozenset({LINK})),
        Said(5, "change_acknowledged", LEAF, frozenset({LINK, "spine9"})),
    ]
