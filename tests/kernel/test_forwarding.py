"""Real packets over a small fabric of namespaces: agents, facts and kernels together, without any controller.

Two leaves, two spines, a host on each leaf; six agents with the programs that the path engine makes; a bus in memory.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from erfs.addressing import plan_addresses
from erfs.aio.memory import MemoryBroker, MemoryBus
from erfs.aio.namespaces import inside
from erfs.fabric import Fabric, LinkEnd
from erfs.generators import generate
from erfs.ids import DestinationId, NodeId
from erfs.messages import CONTROLLER, encode
from erfs.paths import Topology, compute
from erfs.ports import Priority
from erfs.topics import Address, Channel, Topics
from erfs.units import MS
from erfs_agent.aio.runtime import AgentRuntime
from erfs_agent.core import AgentCore, AgentTimers
from erfs_agent.drivers.linux import LinuxDriver
from erfs_scenario.nodes import agent_nodes, port_bindings

from .namespaces import Namespace, wire

FABRIC = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1})
LEAF0, LEAF1, SPINE0 = NodeId("leaf0"), NodeId("leaf1"), NodeId("spine0")
HOST0, HOST1 = (FABRIC.class_members[DestinationId(f"@{leaf}")][0] for leaf in (LEAF0, LEAF1))
FLOWS = 16
UDP_PORT = 4000


class Lab:
    """Namespaces wired as the fabric says, with the plan's addresses."""

    def __init__(self, fabric: Fabric, stack: contextlib.ExitStack) -> None:
        self.fabric = fabric
        self.plan = plan_addresses(fabric)
        self.spaces = {node: stack.enter_context(Namespace()) for node in agent_nodes(fabric)}
        for link in fabric.links.values():
            sides = [(self.spaces[end.node], self.plan.nodes[end.node].ports[end.port]) for end in link.ends]
            (one, near), (other, far) = sides
            wire(one, near.device, str(near.mac), other, far.device, str(far.mac))
        for node, space in self.spaces.items():
            space.sysctl("net/ipv4/fib_multipath_hash_policy", "1")
            space.sysctl("net/ipv6/fib_multipath_hash_policy", "1")
            if self.plan.nodes[node].is_forwarding:
                space.sysctl("net/ipv4/ip_forward", "1")
                space.sysctl("net/ipv6/conf/all/forwarding", "1")
            for address in self.plan.nodes[node].addresses:
                space(f"ip addr add {address} dev lo")

    def driver(self, node: NodeId) -> LinuxDriver:
        return LinuxDriver(self.plan, self.plan.nodes[node], protocol=229, metric=10, namespace=self.spaces[node].path)

    def set_end(self, end: LinkEnd, is_up: bool) -> None:
        self.spaces[end.node].set_up(self.plan.nodes[end.node].ports[end.port].device, is_up)

    def address(self, host: NodeId, version: int) -> str:
        return next(str(net.network_address) for net in self.plan.nodes[host].addresses if net.version == version)


class Flows:
    """Numbered flows from one host to another; which of them arrive."""

    def __init__(self, lab: Lab, source: NodeId, target: NodeId, version: int) -> None:
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self._to = (lab.address(target, version), UDP_PORT)
        with inside(lab.spaces[target].path):
            self._inlet = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._inlet.bind(self._to)
        self._outlets = []
        with inside(lab.spaces[source].path):
            for _ in range(FLOWS):
                outlet = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                outlet.bind((lab.address(source, version), 0))
                self._outlets.append(outlet)
        self._round = 0

    def all_arrive(self) -> bool:
        """Send one packet on each flow; return whether all of an earlier, equal round have arrived by now."""
        arrived = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                arrived.add(self._inlet.recv(64))
        expected = {f"{self._round} {flow}".encode() for flow in range(FLOWS)}
        self._round += 1
        for flow, outlet in enumerate(self._outlets):
            with contextlib.suppress(OSError):
                outlet.sendto(f"{self._round} {flow}".encode(), self._to)
        return arrived >= expected

    def close(self) -> None:
        for found in (self._inlet, *self._outlets):
            found.close()


async def until(condition: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        while not condition():
            turn = asyncio.Event()
            loop.call_later(0.005, turn.set)
            await turn.wait()


@asynccontextmanager
async def running(lab: Lab) -> AsyncIterator[dict[NodeId, AgentRuntime]]:
    """Run all agents; they have installed their programs when this begins."""
    loop, topics = asyncio.get_running_loop(), Topics()
    broker: MemoryBroker[bytes] = MemoryBroker(Random(1))
    announcer = MemoryBus(broker.connect("controller"))
    for node, program in compute(Topology(lab.fabric), unusable=frozenset()).programs.items():
        stamped = program.model_copy(update={"sender": CONTROLLER, "epoch": 1})
        topic = topics.topic(Address(Channel.PROGRAM, node))
        announcer.publish(topic, encode(stamped), retain=True, priority=Priority.ROUTINE)
    runtimes, drivers = {}, []
    for node in lab.spaces:
        driver = lab.driver(node)
        core = AgentCore(
            node, port_bindings(lab.fabric, node), AgentTimers(wait_to_restore_ns=20 * MS), ports_up=driver.ports()
        )
        runtimes[node] = AgentRuntime(core, driver, MemoryBus(broker.connect(node)), on_mark=lambda _mark, _at_ns: None)
        driver.watch(loop)
        drivers.append(driver)
    began_ns = time.monotonic_ns()

    def pass_time() -> None:
        broker.advance(time.monotonic_ns() - began_ns)
        ticks.append(loop.call_later(0.001, pass_time))
        del ticks[:-1]

    ticks: list[asyncio.TimerHandle] = []
    pass_time()
    async with asyncio.TaskGroup() as tasks:
        for runtime in runtimes.values():
            tasks.create_task(runtime.run())
        try:
            await until(lambda: all(runtime.core.installed is not None for runtime in runtimes.values()))
            yield runtimes
        finally:
            for runtime in runtimes.values():
                runtime.abandon()
            ticks[-1].cancel()
            for driver in drivers:
                driver.close()


def ports_towards(lab: Lab, runtimes: dict[NodeId, AgentRuntime], node: NodeId, leaf: NodeId) -> set[str]:
    """Return the nodes that *node*'s kernel sends to for *leaf*, as a driver that starts now reads it."""
    driver = lab.driver(node)
    members = driver.routes()[DestinationId(f"@{leaf}")]
    driver.close()
    return {lab.fabric.link_at[LinkEnd(node, member.port)].far_end(node).node for member in members}


async def test_packets_find_their_way_around_a_cut_cable_at_both_of_its_ends_and_back() -> None:
    with contextlib.ExitStack() as stack:
        lab = Lab(FABRIC, stack)
        cable = next(link for link in FABRIC.trunks if {link.a.node, link.b.node} == {LEAF0, SPINE0})
        async with running(lab) as runtimes:
            flows = [Flows(lab, *ends, version) for ends in ((HOST0, HOST1), (HOST1, HOST0)) for version in (4, 6)]
            for flow in flows:
                stack.callback(flow.close)
                await until(flow.all_arrive)
            assert ports_towards(lab, runtimes, LEAF1, LEAF0) == {"spine0", "spine1"}

            lab.set_end(cable.end_at(SPINE0), False)

            for flow in flows:
                await until(flow.all_arrive)
            await until(lambda: ports_towards(lab, runtimes, LEAF1, LEAF0) == {"spine1"})
            assert ports_towards(lab, runtimes, LEAF0, LEAF1) == {"spine1"}
            for flow in flows:
                await until(flow.all_arrive)

            lab.set_end(cable.end_at(SPINE0), True)

            await until(lambda: ports_towards(lab, runtimes, LEAF1, LEAF0) == {"spine0", "spine1"})
            await until(lambda: ports_towards(lab, runtimes, LEAF0, LEAF1) == {"spine0", "spine1"})
            for flow in flows:
                await until(flow.all_arrive)
