"""From gaps to lines of the journal: when, whose, and why."""

import numpy as np

from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs_scenario.kernel.losses import Line, Occurrence, effective_at, flow_lines
from erfs_scenario.kernel.outages import FlowRecord, Gap
from erfs_scenario.kernel.tracing import Flow

FABRIC = generate("fat-tree", {"k": 4})
A, B = NodeId("pod0-edge0-host0"), NodeId("pod1-edge0-host0")
FLOW = Flow(A, B, 20_001)
ACCESS = FABRIC.access_links[B][0].id
TRUNK = FABRIC.trunks[0].id


def record(*gaps: tuple[int, int], is_open: bool = False) -> FlowRecord:
    """Return a flow that lost what was sent from the first instant of each pair on, until the second."""
    return FlowRecord(
        100,
        tuple(Gap(start, stop - start, start, stop, stop - start + 1, is_open) for start, stop in gaps),
        0,
        0,
        1,
        1,
        1,
    )


def broken(at_ns: int, link: LinkId, kind: FaultKind = FaultKind.LINK_DOWN, *, is_begin: bool = True) -> Occurrence:
    return Occurrence(at_ns, Fault("f", kind, 0, 100, links=(link,)), is_begin, (link,))


def said(lines: list[Line]) -> list[tuple[int, object, object]]:
    return [(at_ns, fields["cause"], fields["served_ppm"]) for at_ns, _, fields in lines]


def lines(found: FlowRecord, *occurrences: Occurrence) -> list[Line]:
    return flow_lines(FABRIC, [FLOW], ["all_pairs"], [found], occurrences, 1)


def test_a_gap_of_a_flow_that_has_a_way_is_a_recovery() -> None:
    assert lines(record((10, 15)), broken(9, TRUNK)) == [
        (
            at_ns,
            "flow_changed",
            {
                "source": A,
                "destination": f"{B} udp 20001",
                "served_ppm": share,
                "cause": cause,
                "weights": {"all_pairs": 1},
            },
        )
        for at_ns, share, cause in ((10, 0, "not_recovered"), (15, 1_000_000, "served"))
    ]


def test_without_any_way_left_it_is_cut_and_says_when_a_way_is_back() -> None:
    found = lines(record((10, 30)), broken(9, ACCESS), broken(25, ACCESS, is_begin=False))
    assert said(found) == [(10, "cut", 0), (25, "not_recovered", 0), (30, "served", 1_000_000)]


def test_what_was_sent_in_the_tick_before_a_fault_and_lost_was_lost_by_it() -> None:
    assert said(lines(record((10, 15)), broken(11, TRUNK)))[0] == (11, "not_recovered", 0)
    assert said(lines(record((10, 15)), broken(12, TRUNK)))[0] == (10, "not_recovered", 0)


def test_a_lossy_link_is_a_way() -> None:
    found = lines(record((10, 11), (12, 13)), broken(9, ACCESS, FaultKind.PACKET_LOSS))
    assert [cause for _, cause, _ in said(found)] == ["not_recovered", "served"] * 2


def test_a_gap_that_never_ends_is_left_open() -> None:
    assert said(lines(record((10, 99), is_open=True))) == [(10, "not_recovered", 0)]


def test_two_faults_on_one_link_let_go_one_by_one() -> None:
    found = lines(
        record((10, 50)),
        broken(5, ACCESS),
        broken(6, ACCESS),
        broken(20, ACCESS, is_begin=False),
        broken(40, ACCESS, is_begin=False),
    )
    assert said(found) == [(10, "cut", 0), (40, "not_recovered", 0), (50, "served", 1_000_000)]


def test_a_silent_fault_took_effect_after_the_last_tick_that_got_through() -> None:
    sent = np.arange(0, 100, dtype=np.int64)
    assert effective_at(5, 12, [record((20, 30)), record((11, 40))], sent, 20) == 10
    assert effective_at(11, 12, [record((11, 40))], sent, 20) == 11
    assert effective_at(5, 12, [record((2, 4))], sent, 20) is None
    assert effective_at(5, 12, [record((90, 95))], sent, 20) is None
