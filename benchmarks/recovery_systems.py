"""Which systems repair the fabric, and how is each put on the same namespaces and taken off again without a trace?

Rule 1: what was in the kernel before a system came is in it after the system went, route by route; otherwise the benchmark ends.
Rule 2: "at rest" is read from the kernel: the routes of every node are again those of the beginning, and nothing moves any more.
Rule 3: processes are counted and ended by their ids, descendants included.
"""

import asyncio
import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final, NamedTuple

from erfs.addressing import PREFIXES_LABEL, Addressing, plan_addresses
from erfs.aio.loop import loop_factory
from erfs.aio.namespaces import inside
from erfs.fabric import Fabric, Link, Medium
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.messages import Program
from erfs.paths import Topology, compute
from erfs.units import MS
from erfs_scenario.kernel.lab import marked
from erfs_scenario.kernel.members import Members
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.nodes import agent_nodes
from erfs_scenario.plan import Timers

POLL_S: Final = 0.2
REST_S: Final = 120.0
_HOSTS: Final = IPv4Address("10.64.0.0")
_PROTOCOL: Final = 241
_ANSWERS: Final = 3
_MULTIPLIER: Final = 3
_WAIT_TO_RESTORE_NS: Final = 500 * MS

Tell = Callable[[str], None]


# --- the fabric ------------------------------------------------------------------------------------------------------------
def fabric_of(k: int, medium: Medium) -> Fabric:
    """Return a fat-tree whose hosts have every second address, so that each has a subnet of two for whoever wants one."""
    plain = generate("fat-tree", {"k": k, "medium": medium})
    labelled = [
        replace(host, labels={**host.labels, PREFIXES_LABEL: f"{_HOSTS + 2 * place}/32"})
        for place, host in enumerate(plain.endpoints)
    ]
    return plain.with_nodes(labelled)


@contextmanager
def bench_of(fabric: Fabric, prefix: str) -> Iterator[tuple[Spaces, Path, asyncio.Runner]]:
    """Yield namespaces for *fabric*, a folder of that *prefix*, and an event loop in the namespace of the bus; all of it ends here."""
    with (
        marked(),
        tempfile.TemporaryDirectory(prefix=prefix) as folder,
        closing(Spaces(fabric, plan_addresses(fabric))) as spaces,
        inside(spaces.path(None)),
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        yield spaces, Path(folder), runner


def watched_links(fabric: Fabric, pods: int) -> tuple[Link, ...]:
    """
    Return the links between switches of the first *pods* pods, and from there to the cores: those that break and are watched.

    FRR's bfdd takes some 2.8 % of a core for each end of a 10 ms session: 64 of them, which are all, leave nothing of two cores.
    """
    inside = {str(pod) for pod in range(pods)}
    return tuple(
        link for link in fabric.trunks if any(fabric.nodes[end.node].labels.get("pod") in inside for end in link.ends)
    )


def access_subnet(addressing: Addressing, host: NodeId) -> IPv4Network:
    """Return the subnet of a host's link: the host's own address, and one for its switch."""
    (own,) = addressing.nodes[host].addresses
    return IPv4Network((int(own.network_address), 31))


# --- what a kernel holds ---------------------------------------------------------------------------------------------------
class Entry(NamedTuple):
    """A route, rule, address or next-hop object, as far as it says where packets go."""

    kind: str
    family: int
    key: str
    members: tuple[str, ...]


Table = frozenset[Entry]


def read_table(spaces: Spaces, node: NodeId) -> Table:
    """Return all routes, rules and addresses of a node; routes by next-hop objects are written with what the objects say."""
    objects = {int(entry["id"]): entry for entry in _answers(spaces, node, "", "nexthop show")[0]}
    found = {Entry("nexthop", 4, str(id_), (_hop(entry),)) for id_, entry in objects.items()}
    for family in (4, 6):
        routes, rules, links = _answers(spaces, node, f"-{family}", "route show table all\nrule show\naddr show")
        for route in routes:
            key = " ".join(
                str(route.get(name, "-")) for name in ("type", "dst", "table", "metric", "protocol", "scope")
            )
            found.add(Entry("route", family, key, tuple(sorted(_hops(route, objects)))))
        found |= {Entry("rule", family, json.dumps(rule, sort_keys=True), ()) for rule in rules}
        for link in links:
            for address in link["addr_info"]:
                found.add(Entry("address", family, f"{link['ifname']} {address['local']}/{address['prefixlen']}", ()))
    return frozenset(found)


def _answers(spaces: Spaces, node: NodeId, family: str, lines: str) -> list[list[dict[str, Any]]]:
    text = spaces.run(node, ("ip", *filter(None, [family]), "-json", "-details", "-batch", "-"), lines + "\n")
    decoder, found, place = json.JSONDecoder(), [], 0
    text = text.strip()
    while place < len(text):
        value, place = decoder.raw_decode(text, place)
        found.append([entry for entry in value if entry])
        while place < len(text) and text[place].isspace():
            place += 1
    # Nothing to show is shown as nothing at all.
    return found + [[]] * (lines.count("\n") + 1 - len(found))


def _hops(route: Mapping[str, Any], objects: Mapping[int, Mapping[str, Any]]) -> Iterable[str]:
    if "nhid" not in route:
        return [_hop(hop) for hop in route.get("nexthops", [route])]
    found = objects.get(int(route["nhid"]), {})
    members = [(int(member["id"]), member.get("weight", 1)) for member in found.get("group", ())]
    if not members:
        return [_hop(found)]
    return [f"{_hop(objects.get(id_, {}))} x{weight}" for id_, weight in members]


def _hop(hop: Mapping[str, Any]) -> str:
    via = hop.get("via", {}).get("host") or hop.get("gateway", "")
    states = [flag for flag in hop.get("flags", ()) if flag in ("dead", "linkdown")]
    group = ",".join(str(member["id"]) for member in hop.get("group", ()))
    return " ".join(filter(None, (str(hop.get("dev", "")), via, group, *states)))


def routes_of(table: Table) -> Table:
    """Return what decides about packets: not the objects behind it, whose numbers may differ."""
    return frozenset(entry for entry in table if entry.kind in ("route", "rule"))


def wipe(spaces: Spaces, node: NodeId, before: Table) -> None:
    """
    Remove all routes, next-hop objects and rules of a node that were not there *before*.

    Raises:
        LabError: something else is there, or something is missing.
    """
    extra = read_table(spaces, node) - before
    if any(entry.kind == "nexthop" for entry in extra):
        spaces.run(node, ("ip", "nexthop", "flush"))
    for family in (4, 6):
        mine = [entry for entry in extra if entry.family == family]
        protocols = {entry.key.split()[4] for entry in mine if entry.kind == "route"} - {"kernel"}
        for protocol in sorted(protocols):
            spaces.attempt(node, ("ip", f"-{family}", "route", "flush", "table", "all", "proto", protocol))
        for entry in mine:
            if entry.kind == "rule":
                spaces.run(node, ("ip", f"-{family}", "rule", "del", "pref", str(json.loads(entry.key)["priority"])))
        spaces.run(node, ("ip", f"-{family}", "neigh", "flush", "all"))
    after = read_table(spaces, node)
    if after != before:
        differing = sorted((after ^ before), key=str)[:_ANSWERS]
        raise LabError(f'"{node}" is not as it was before the system came: {differing}')


# --- systems ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Cost:
    """What a system takes while nothing happens."""

    process_count: int
    cpu_percent: float
    """Of one core."""
    memory_mib: float
    """Proportional set size, all processes together."""


class System(ABC):
    """
    Something that repairs, or does not.

    Args:
        spaces: Where.
        folder: For its files.
    """

    name: str = ""
    liveness: str = ""
    """Its sessions, for people; known once it has started."""
    quiet_s: float = 0.3
    """How long nothing may have moved before a fault."""
    hears_silence: bool = True
    """Whether it has any means to notice a link that is silent and keeps its carrier."""

    repairs: bool = True
    """Whether flows that need more than their next node can be helped at all."""

    def __init__(self, spaces: Spaces, folder: Path) -> None:
        self.spaces = spaces
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._before: dict[NodeId, Table] = {}
        self._at_rest: dict[NodeId, Table] = {}

    async def enter(self, tell: Tell) -> None:
        """Start on empty tables and come to rest. Raises LabError."""
        nodes = self.spaces.fabric.nodes
        self._before = {node: read_table(self.spaces, node) for node in nodes}
        await self.start(tell)
        self._at_rest = {node: routes_of(read_table(self.spaces, node)) for node in nodes}

    async def leave(self) -> None:
        """Stop, and take everything away. Raises LabError if something stays."""
        await self.stop()
        for node, before in self._before.items():
            # Addresses that IPv6 makes by itself may take a moment.
            for attempt in range(_ANSWERS):
                try:
                    wipe(self.spaces, node, before)
                    break
                except LabError:
                    if attempt == _ANSWERS - 1:
                        raise
                    await asyncio.sleep(1)
        self._at_rest = {}

    async def settle(self) -> float:
        """
        Wait until everything is as it was at first.

        Returns:
            Since when, time.monotonic(); how long it is to be quiet before a fault is the caller's business.

        Raises:
            LabError: it does not come to that.
        """
        deadline_s = time.monotonic() + REST_S
        await self.restore()
        rest_from_s = None
        while True:
            now_s = time.monotonic()
            waiting = [
                node for node, table in self._at_rest.items() if routes_of(read_table(self.spaces, node)) != table
            ]
            unready = "" if waiting else self.unready()
            if waiting or unready:
                rest_from_s = None
            elif rest_from_s is None:
                rest_from_s = now_s
            else:
                return rest_from_s
            if now_s > deadline_s:
                if waiting:
                    now = routes_of(read_table(self.spaces, waiting[0]))
                    unready = f"{waiting[0]}: {sorted(now ^ self._at_rest[waiting[0]], key=str)[:_ANSWERS]}"
                raise LabError(f"{self.name} did not come back to rest within {REST_S:.0f} s: {unready}")
            await asyncio.sleep(POLL_S)

    @abstractmethod
    async def start(self, tell: Tell) -> None:
        """Start and converge."""

    @abstractmethod
    async def stop(self) -> None:
        """End all processes, and undo what `wipe` would not."""

    async def restore(self) -> None:
        """Do what the system itself would not do after a fault."""
        return

    def unready(self) -> str:
        """Return why the system is not ready for a fault, "" if it is; routes are looked at elsewhere."""
        return ""

    def processes(self) -> list[int]:
        """Return its processes, descendants included."""
        return []

    async def cost(self, over_s: float) -> Cost:
        """Return what it costs, measured now over so long."""
        pids = self.processes()
        began_s, began = time.monotonic(), {pid: cpu_s(pid) for pid in pids}
        await asyncio.sleep(over_s if pids else 0)
        used = sum(cpu_s(pid) - before for pid, before in began.items())
        lasted_s = time.monotonic() - began_s
        return Cost(len(pids), 100 * used / lasted_s if pids else 0.0, sum(pss_kib(pid) for pid in pids) / 1024)


class KernelOnly(System):
    """Static equal-cost groups: no process, no repair but what the kernel does to a group whose member lost its carrier."""

    name = "kernel only"
    liveness = "none"
    hears_silence = False
    repairs = False

    def __init__(self, spaces: Spaces, folder: Path) -> None:
        super().__init__(spaces, folder)
        self._lines = {
            node: self._batch(program)
            for node, program in compute(Topology(spaces.fabric), unusable=frozenset()).programs.items()
        }

    async def start(self, tell: Tell) -> None:
        """Write the routes."""
        for node, lines in self._lines.items():
            self.spaces.batch(node, lines)

    async def stop(self) -> None:
        """Nothing runs."""

    async def restore(self) -> None:
        """Write the routes anew: the kernel brings back nothing that it has removed."""
        for node, lines in self._lines.items():
            if routes_of(read_table(self.spaces, node)) != self._at_rest[node]:
                wipe(self.spaces, node, self._before[node])
                self.spaces.batch(node, lines)

    def _batch(self, program: Program) -> tuple[str, ...]:
        """Return `ip` lines: an object for each port, a group for each set of ports, a route for each prefix."""
        addressing = self.spaces.addressing
        ports = addressing.nodes[program.node].ports
        ids = {name: place + 1 for place, name in enumerate(sorted(ports))}
        lines = [
            f"nexthop add id {ids[name]} via {port.next_hops[0]} dev {port.device} proto {_PROTOCOL}"
            for name, port in sorted(ports.items())
        ]
        group_ids = {}
        for group in program.groups:
            members = "/".join(f"{ids[member.port]},{member.weight}" for member in group.members)
            group_ids[group.id] = 1000 + group.id
            if members:
                lines.append(f"nexthop add id {1000 + group.id} group {members} proto {_PROTOCOL}")
        for route in program.routes:
            lines += [
                f"route add {prefix} nhid {group_ids[route.group]} proto {_PROTOCOL}"
                for prefix in addressing.destinations[route.destination]
            ]
        return tuple(lines)


class _Members(Members):
    """
    Agents of which only some have liveness sessions, so that no link but the watched ones has one.

    An end whose neighbour was never heard counts by its carrier alone.
    """

    def __init__(self, spaces: Spaces, folder: Path, watching: frozenset[NodeId], *, timers: Timers) -> None:
        super().__init__(spaces, folder, timers=timers)
        self._watching = watching

    def write_files(self) -> None:
        """Write what the programs are told."""
        super().write_files()
        for node in agent_nodes(self.spaces.fabric):
            if node not in self._watching:
                path = self._agent_config(node)
                path.write_text(path.read_text().replace("[sessions]\nenabled = true", "[sessions]\nenabled = false"))


class Erfs(System):
    """Broker, controller, and an agent process for each node."""

    quiet_s = 1.0

    def __init__(self, spaces: Spaces, folder: Path, watched: Sequence[Link], *, name: str, interval_ns: int) -> None:
        super().__init__(spaces, folder)
        self.name = name
        self._watched = tuple(watched)
        self._interval_ns = interval_ns
        self._members: Members | None = None
        # A link that comes back is trusted soon, however often it failed: the benchmark breaks links again and again.
        self._timers = replace(
            Timers(), wait_to_restore_ns=_WAIT_TO_RESTORE_NS, wait_to_restore_max_ns=_WAIT_TO_RESTORE_NS
        )

    async def start(self, tell: Tell) -> None:
        """Start everybody."""
        self._members = _Members(
            self.spaces,
            self.folder / "members",
            frozenset(end.node for link in self._watched for end in link.ends),
            timers=replace(self._timers, session_interval_ns=self._interval_ns),
        )
        await self._members.start_all(lambda text: tell(f"{self.name}: {text}"))
        self.liveness = (
            f"{2 * len(self._watched)} session ends between switches, {self._interval_ns / MS:g} ms x {_MULTIPLIER}"
        )

    async def stop(self) -> None:
        """End everybody."""
        if self._members is not None:
            await self._members.stop()
            self._members = None

    def read_marks(self) -> list[tuple[int, str, dict[str, object]]]:
        """Return what controller and agents noted since the last call, as `Members.read_marks`."""
        assert self._members is not None
        return self._members.read_marks()

    def unready(self) -> str:
        """Return what keeps the programs from being ready."""
        assert self._members is not None
        self._members.check()
        return ""

    def processes(self) -> list[int]:
        """Return broker, controller, agents and what these have started."""
        assert self._members is not None
        return with_descendants(child.pid for child in self._members.running.values())


# --- what processes take ---------------------------------------------------------------------------------------------------
def with_descendants(pids: Iterable[int]) -> list[int]:
    """Return *pids* and everything they have started that still runs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            fields = _stat(int(path.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(path.name))
    found, todo = [], list(pids)
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, ())
    return sorted(found)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, 0 if it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def name_of(pid: int) -> str:
    """Return what a process calls itself, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def pss_kib(pid: int) -> int:
    """Return the proportional set size of a process, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return stat[stat.rindex(")") + 2 :].split()
