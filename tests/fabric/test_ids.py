"""Who may speak for a link: its two ends, whatever their names are, and nobody else."""

from hypothesis import given
from hypothesis import strategies as st

from erfs.ids import LinkId, NodeId, is_own_end, link_id

# Names with everything that identities are put together with, but for the colon, of which the claim below speaks apart.
nodes = st.text(alphabet="ab|/+%1", min_size=1, max_size=4).map(NodeId)
ports = st.text(alphabet="ab|:/1", min_size=1, max_size=4)
ends = st.tuples(nodes, ports)


@given(ends, ends)
def test_both_ends_of_a_link_may_speak_for_it(one: tuple[NodeId, str], other: tuple[NodeId, str]) -> None:
    link = link_id(one, other)

    assert is_own_end(link, one, other[0])
    assert is_own_end(link, other, one[0])


plain_nodes = st.text(alphabet="ab1", min_size=1, max_size=3).map(NodeId)
plain_ports = st.text(alphabet="ab1", min_size=1, max_size=3)
plain_ends = st.tuples(plain_nodes, plain_ports)


@given(plain_ends, plain_ends, plain_ends, plain_nodes)
def test_nobody_else_may_whatever_port_or_far_end_it_claims(
    one: tuple[NodeId, str], other: tuple[NodeId, str], claimed: tuple[NodeId, str], far_end: NodeId
) -> None:
    is_true = (claimed, far_end) in ((one, other[0]), (other, one[0]))

    assert is_own_end(link_id(one, other), claimed, far_end) is is_true


def test_one_name_that_begins_another_is_not_mistaken_for_it() -> None:
    link = LinkId("leaf1:e1|spine1:e11")

    assert is_own_end(link, (NodeId("spine1"), "e11"), NodeId("leaf1"))
    assert not is_own_end(link, (NodeId("spine1"), "e1"), NodeId("leaf1"))
    assert not is_own_end(link, (NodeId("leaf1"), "e1"), NodeId("spine"))
    assert not is_own_end(link, (NodeId("spine1"), "e11"), NodeId("leaf"))
    assert not is_own_end(link, (NodeId("spine1"), "e11"), NodeId("leaf1:e1|spine1"))
