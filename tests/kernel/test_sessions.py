"""Sessions over real interfaces without addresses: what no carrier tells, wrong cables, interfaces that come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from random import Random

import pytest

from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.ports import Mark
from erfs.units import MS
from erfs_agent.aio.sessions import UdpSessions, Wire
from erfs_agent.probing import DownReason, SessionDown, SessionEnd, Sessions, SessionTiming, SessionUp
from erfs_agent.session_packet import SessionState

from .namespaces import Namespace, wire

LEAF, SPINE1, SPINE2 = NodeId("leaf1"), NodeId("spine1"), NodeId("spine2")
TIMING = SessionTiming(interval_ns=20 * MS, multiplier=10, slow_start_ns=50 * MS)
TO_SPINE1, TO_SPINE2 = LinkId("leaf1:e1|spine1:e1"), LinkId("leaf1:e2|spine2:e1")


class Node:
    """One node in a namespace of its own; port e1 and so on are interfaces of that name."""

    def __init__(self, node: NodeId, namespace: Namespace, *bindings: PortBinding) -> None:
        self.core = Sessions(node, [SessionEnd(binding, TIMING) for binding in bindings], Random(1))
        self.marks: list[Mark] = []
        self.said: list[SessionUp | SessionDown] = []
        wires = {
            binding.port: Wire(("::", 49784), ("ff02::1", 49784), binding.port, namespace.path) for binding in bindings
        }
        self.udp = UdpSessions(self.core, wires, on_mark=lambda mark, _: self.marks.append(mark))
        self.udp.on_change = self.said.append

    def is_up(self, port: str = "e1") -> bool:
        return self.core.state_of(port) is SessionState.UP


class Fabric:
    """Leaf 1's ports e1 and e2, spine 1's and spine 2's port e1, and a patch panel between them: a cable has three pieces."""

    def __init__(self, stack: ExitStack) -> None:
        self.leaf, self.spine1, self.spine2, self.panel = (stack.enter_context(Namespace()) for _ in range(4))
        ends = ((self.leaf, "e1"), (self.leaf, "e2"), (self.spine1, "e1"), (self.spine2, "e1"))
        for index, (namespace, device) in enumerate(ends):
            macs = f"02:00:00:00:00:0{index}", f"02:00:00:00:01:0{index}"
            wire(namespace, device, macs[0], self.panel, f"p{index}", macs[1])
        for bridge in ("cable1", "cable2"):
            self.panel(f"ip link add {bridge} type bridge mcast_snooping 0")
            self.panel(f"ip link set {bridge} up")

    def plug(self, leaf_port: int, spine: int) -> None:
        """Lead leaf 1's port e1 or e2 (1, 2) to spine 1 or 2. No end loses its carrier."""
        self.panel(f"ip link set p{leaf_port - 1} master cable{leaf_port}")
        self.panel(f"ip link set p{spine + 1} master cable{leaf_port}")

    def unplug(self, leaf_port: int) -> None:
        """Cut inside the panel: both ends keep their carrier."""
        self.panel(f"ip link set p{leaf_port - 1} nomaster")

    def nodes(self) -> tuple[Node, Node, Node]:
        leaf = Node(
            LEAF,
            self.leaf,
            PortBinding(port="e1", link=TO_SPINE1, far_end=SPINE1),
            PortBinding(port="e2", link=TO_SPINE2, far_end=SPINE2),
        )
        spine1 = Node(SPINE1, self.spine1, PortBinding(port="e1", link=TO_SPINE1, far_end=LEAF))
        spine2 = Node(SPINE2, self.spine2, PortBinding(port="e1", link=TO_SPINE2, far_end=LEAF))
        return leaf, spine1, spine2


async def until(condition: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        while not condition():
            turn = asyncio.Event()
            loop.call_later(0.002, turn.set)
            await turn.wait()


@pytest.fixture
async def stack() -> AsyncIterator[ExitStack]:
    """Ends what the test began while its loop still runs."""
    with ExitStack() as found:
        yield found


def start(stack: ExitStack, *nodes: Node) -> None:
    for node in nodes:
        node.udp.start()
        stack.callback(node.udp.abandon)


async def test_a_cut_that_no_carrier_tells_is_seen_at_both_ends(stack: ExitStack) -> None:
    fabric = Fabric(stack)
    leaf, spine1, spine2 = fabric.nodes()
    fabric.plug(1, 1)
    fabric.plug(2, 2)
    start(stack, leaf, spine1, spine2)
    await until(lambda: leaf.is_up("e1") and leaf.is_up("e2") and spine1.is_up() and spine2.is_up())

    fabric.unplug(1)
    await until(lambda: len(spine1.said) == 2 and len(leaf.said) == 3)
    assert spine1.said == [SessionUp("e1"), SessionDown("e1", DownReason.SILENT)]
    assert leaf.said[2] == SessionDown("e1", DownReason.SILENT)
    assert "LOWER_UP" in fabric.leaf("ip link show e1")
    assert spine2.said == [SessionUp("e1")]

    fabric.plug(1, 1)
    await until(lambda: leaf.is_up("e1") and spine1.is_up())


async def test_swapped_cables_come_up_nowhere_and_each_end_says_whom_it_hears(stack: ExitStack) -> None:
    fabric = Fabric(stack)
    leaf, spine1, spine2 = fabric.nodes()
    fabric.plug(1, 2)
    fabric.plug(2, 1)
    start(stack, leaf, spine1, spine2)
    await until(lambda: len(leaf.said) == 2 and spine1.said and spine2.said)

    assert sorted(leaf.said, key=lambda one: one.port) == [
        SessionDown("e1", DownReason.MISCABLED),
        SessionDown("e2", DownReason.MISCABLED),
    ]
    told = {
        mark.fields["port"]: (mark.fields["far_end"], mark.fields["heard_node"], mark.fields["heard_link"])
        for mark in leaf.marks
        if mark.event == "link_miscabled"
    }
    assert told == {"e1": ("spine1", "spine2", TO_SPINE2), "e2": ("spine2", "spine1", TO_SPINE1)}
    assert not any(node.is_up() for node in (leaf, spine1, spine2))

    for leaf_port in (1, 2):
        fabric.unplug(leaf_port)
        fabric.plug(leaf_port, leaf_port)
    await until(lambda: leaf.is_up("e1") and leaf.is_up("e2"))


async def test_an_interface_that_is_made_anew_gets_its_session_back(stack: ExitStack) -> None:
    fabric = Fabric(stack)
    leaf, spine1, _ = fabric.nodes()
    fabric.plug(1, 1)
    start(stack, leaf, spine1)
    await until(lambda: leaf.is_up("e1") and spine1.is_up())

    fabric.leaf("ip link del e1")
    await until(lambda: not leaf.is_up("e1") and not spine1.is_up())
    wire(fabric.leaf, "e1", "02:00:00:00:00:08", fabric.panel, "p0", "02:00:00:00:01:08")
    fabric.plug(1, 1)
    await until(lambda: leaf.is_up("e1") and spine1.is_up())
