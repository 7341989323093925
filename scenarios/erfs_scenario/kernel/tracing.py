"""Which way does each flow take now? Asked of the kernels along it, one route lookup a hop.

Rule 1: the kernel's own word, by its own hash: no table is read here and no choice is imitated.
Rule 2: looking changes nothing and sends nothing.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, Literal

from erfs.errors import FabricError
from erfs.fabric import LinkEnd
from erfs.ids import NodeId
from erfs_scenario.kernel.spaces import Spaces

TARGET_PORT: Final = 50_000
# More hops than any sane path: what goes on for longer goes round in a circle.
HOPS_MAX: Final = 16
_FAILED: Final = re.compile(r"Command failed -:(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """A stream of numbered UDP datagrams."""

    source: NodeId
    target: NodeId
    source_port: int


@dataclass(frozen=True, slots=True)
class Hop:
    """
    One node that a flow passes.

    Args:
        end: The port by which it leaves there.
        others: The other ports which that node could have chosen.
    """

    end: LinkEnd
    others: frozenset[LinkEnd]


@dataclass(frozen=True, slots=True)
class Trace:
    """The way of one flow, and whether it leads to the target."""

    hops: tuple[Hop, ...]
    is_whole: bool

    def side(self, harmed: frozenset[LinkEnd]) -> Literal["near", "far"] | None:
        """
        Return whether the node that first sends over one of the *harmed* ports has another way (near end) or not (far end).

        None: the flow crosses none of them, or did not lead to its target anyway.
        """
        hit = next((hop for hop in self.hops if hop.end in harmed), None)
        if hit is None or not self.is_whole:
            return None
        return "near" if hit.others - harmed else "far"


def address_of(spaces: Spaces, node: NodeId, ip_version: int) -> IPv4Address | IPv6Address:
    """Return the address of a node. Raises FabricError if the addressing gives it none of that version."""
    for network in spaces.addressing.nodes[node].addresses:
        if network.version == ip_version:
            return network.network_address
    raise FabricError(f'node "{node}" has no IPv{ip_version} address in this lab')


def trace(spaces: Spaces, flows: Sequence[Flow], ip_version: int) -> list[Trace]:
    """
    Return the way of each flow.

    Args:
        spaces: The lab.
        flows: Which; their first hop is chosen without ports, as the kernel does it for raw sockets.
        ip_version: 4 or 6.

    Raises:
        FabricError: a node has no address of that version.

    Cost: two runs of `ip` for each node and step, and some microseconds for each flow and hop.
    """
    return _Walk(spaces, flows, ip_version).run()


class _Walk:
    def __init__(self, spaces: Spaces, flows: Sequence[Flow], ip_version: int) -> None:
        self._spaces = spaces
        self._flows = flows
        self._address = {
            node: str(address_of(spaces, node, ip_version))
            for node in sorted({node for flow in flows for node in (flow.source, flow.target)})
        }
        self._members: dict[NodeId, _Members] = {}

    def run(self) -> list[Trace]:
        hops: list[list[Hop]] = [[] for _ in self._flows]
        is_whole = [False] * len(self._flows)
        # Flow by node and the port it came in by.
        here: dict[NodeId, list[tuple[int, LinkEnd | None]]] = {}
        for index, flow in enumerate(self._flows):
            here.setdefault(flow.source, []).append((index, None))
        for _ in range(HOPS_MAX):
            following: dict[NodeId, list[tuple[int, LinkEnd | None]]] = {}
            for node, arrived in here.items():
                for (index, _), hop in zip(arrived, self._step(node, arrived), strict=True):
                    if hop is None:
                        continue
                    hops[index].append(hop)
                    far = self._spaces.far_end(hop.end)
                    if far.node == self._flows[index].target:
                        is_whole[index] = True
                    else:
                        following.setdefault(far.node, []).append((index, far))
            here = following
        return [Trace(tuple(found), whole) for found, whole in zip(hops, is_whole, strict=True)]

    def _step(self, node: NodeId, arrived: Sequence[tuple[int, LinkEnd | None]]) -> list[Hop | None]:
        lines = []
        for index, port in arrived:
            flow = self._flows[index]
            line = f"route get {self._address[flow.target]} from {self._address[flow.source]} ipproto udp"
            if port is not None:
                line += f" iif {self._spaces.device(port)} sport {flow.source_port} dport {TARGET_PORT}"
            lines.append(line)
        members = self._members.setdefault(node, _Members(self._spaces, node))
        new = members.unknown(self._address[self._flows[index].target] for index, _ in arrived)
        answers = _ask(self._spaces, node, [*lines, *(f"route get fibmatch {address}" for address in new)])
        members.learn(dict(zip(new, answers[len(lines) :], strict=True)))
        found: list[Hop | None] = []
        for (index, _), answer in zip(arrived, answers[: len(lines)], strict=True):
            end = None if answer is None else members.end_of(answer.get("dev"))
            if end is None:
                found.append(None)
                continue
            ends = members.towards(self._address[self._flows[index].target])
            found.append(Hop(end, ends - {end}))
        return found


class _Members:
    """What one node's routes may choose among, read once."""

    def __init__(self, spaces: Spaces, node: NodeId) -> None:
        self._spaces = spaces
        self._node = node
        self._ends = {port.device: LinkEnd(node, name) for name, port in spaces.addressing.nodes[node].ports.items()}
        self._objects: dict[int, Mapping[str, Any]] | None = None
        self._known: dict[str, frozenset[LinkEnd]] = {}

    def end_of(self, device: object) -> LinkEnd | None:
        """Return the port of an interface, None if it is none of the fabric's."""
        return self._ends.get(str(device))

    def unknown(self, addresses: Iterable[str]) -> list[str]:
        """Return which of *addresses* nobody has asked for here."""
        return [address for address in dict.fromkeys(addresses) if address not in self._known]

    def learn(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Take over the routes to some addresses."""
        for address, answer in answers.items():
            devices = set() if answer is None else self._devices(answer)
            ends = (self.end_of(device) for device in sorted(devices))
            self._known[address] = frozenset(end for end in ends if end is not None)

    def towards(self, address: str) -> frozenset[LinkEnd]:
        """Return the ports over which the route to *address* may lead."""
        return self._known[address]

    def _devices(self, route: Mapping[str, Any]) -> set[str]:
        if "nhid" not in route:
            return {str(hop["dev"]) for hop in route.get("nexthops", [route]) if "dev" in hop}
        if self._objects is None:
            text = self._spaces.run(self._node, ("ip", "-j", "nexthop", "show"))
            self._objects = {int(entry["id"]): entry for entry in json.loads(text or "[]")}
        found = self._objects.get(int(route["nhid"]), {})
        members = [self._objects.get(int(member["id"]), {}) for member in found.get("group", ())] or [found]
        return {str(member["dev"]) for member in members if "dev" in member}


def _ask(spaces: Spaces, node: NodeId, lines: Iterable[str]) -> list[Mapping[str, Any] | None]:
    """Return the kernel's answer to each `ip` line, None where it knows no way."""
    asked = list(lines)
    family = "-6" if any(":" in line for line in asked) else "-4"
    done = spaces.attempt(node, ("ip", family, "-json", "-force", "-batch", "-"), "\n".join(asked) + "\n")
    failed = {int(number) - 1 for number in _FAILED.findall(done.stderr)}
    answers = iter([json.loads(line) for line in done.stdout.splitlines() if line.strip()])
    found: list[Mapping[str, Any] | None] = []
    for index in range(len(asked)):
        answer = None if index in failed else next(answers)
        found.append(answer[0] if answer else None)
    return found
