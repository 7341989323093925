"""FRR on the switches of a lab: zebra, ospfd and, tuned, bfdd, each with sockets and files of its own.

Rule 1: FRR's programs are started and spoken to as any user of them would; nothing of theirs is part of ERFS.
Rule 2: nothing outside the scratch folder: neither /etc/frr nor /var/run is read or written.
Rule 3: each daemon is a child that ends with this process, and is ended by its id.
"""

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final

from benchmarks.recovery_systems import POLL_S, System, Tell, access_subnet, name_of, read_table, with_descendants
from erfs.fabric import Link, LinkEnd
from erfs.ids import NodeId
from erfs.paths import Topology, compute
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.processes import Child

DAEMONS: Final = Path("/usr/lib/frr")
_PRIVATE: Final = ("/var/tmp", "/run/frr")
_NAMES: Final = frozenset({"zebra", "ospfd", "bfdd"})
# As ERFS's sessions have it.
PRIORITY: Final = 10
REALTIME: Final = {"none": frozenset[str](), "bfdd": frozenset({"bfdd"}), "all": frozenset({"zebra", "ospfd", "bfdd"})}
BFD_INTERVAL_MS: Final = 10
BFD_MULTIPLIER: Final = 3
_LINKS: Final = IPv4Address("10.200.0.0")
_ROUTERS: Final = IPv4Address("10.202.0.1")
_PROTOCOL: Final = 242
_CONVERGED_S: Final = 120.0
_HURRY_S: Final = 30.0
_VTY_S: Final = 10.0
_VTY_END: Final = b"\0\0\0"


def missing() -> list[str]:
    """Return the daemons that are not there."""
    return [str(DAEMONS / name) for name in ("zebra", "ospfd", "bfdd") if not (DAEMONS / name).exists()]


class Frr(System):
    """
    FRR's OSPF.

    Args:
        spaces, folder: As for any system.
        watched: The links that have BFD sessions when tuned.
        realtime: The daemons that run before ordinary processes.
        is_tuned: BFD, no SPF hold-off at first, no throttling of link-state advertisements; otherwise FRR's defaults.
    """

    # The longest wait that FRR makes of its own accord is five seconds (MinLSInterval); after six it has forgotten the last event.
    quiet_s = 6.0

    def __init__(
        self, spaces: Spaces, folder: Path, watched: Sequence[Link], *, is_tuned: bool, realtime: frozenset[str]
    ) -> None:
        super().__init__(spaces, folder)
        self.name = "FRR tuned" if is_tuned else "FRR default"
        self.hears_silence = is_tuned
        self._is_tuned = is_tuned
        self._realtime = realtime
        self._watched = frozenset(end for link in watched for end in link.ends)
        self._switches = [node.id for node in spaces.fabric.switches]
        self._children: list[Child] = []
        self._router = {node: _ROUTERS + place for place, node in enumerate(self._switches)}
        self._addresses: dict[LinkEnd, str] = {}
        """What each port of a switch gets, as `ip addr` wants it."""
        self._subnets: dict[NodeId, IPv4Network] = {}
        self._defaults: dict[NodeId, str] = {}
        """By which address and port a host sends everything."""
        self._plan()
        self._expected = self._expected_devices()
        self.liveness = (
            f"{len(self._watched)} BFD session ends between switches, {BFD_INTERVAL_MS} ms x {BFD_MULTIPLIER}"
            if is_tuned
            else "none but OSPF hellos, 10 s x 4"
        )

    # --- addresses --------------------------------------------------------------------------------------------------------
    def _plan(self) -> None:
        fabric, addressing = self.spaces.fabric, self.spaces.addressing
        for place, link in enumerate(fabric.trunks):
            for side, end in enumerate(link.ends):
                self._addresses[end] = f"{_LINKS + 2 * place + side}/31"
        for link in fabric.links.values():
            if not fabric.is_access(link):
                continue
            near, host = sorted(link.ends, key=lambda end: not fabric.nodes[end.node].is_switch)
            subnet = access_subnet(addressing, host.node)
            # OSPF announces the subnet of an interface by itself; what is redistributed it looks at a second later only.
            self._addresses[near] = f"{subnet[1]}/{subnet.prefixlen}"
            self._subnets[host.node] = subnet
            self._defaults[host.node] = f"default via {subnet[1]} dev {self.spaces.device(host)} onlink"

    def _expected_devices(self) -> dict[NodeId, dict[str, frozenset[str]]]:
        """Return the interfaces towards each host's subnet, of each switch: those of all shortest paths."""
        addressing = self.spaces.addressing
        found: dict[NodeId, dict[str, frozenset[str]]] = {}
        for node, program in compute(Topology(self.spaces.fabric), unusable=frozenset()).programs.items():
            if node not in self._switches:
                continue
            ports = addressing.nodes[node].ports
            devices = {group.id: frozenset(ports[one.port].device for one in group.members) for group in program.groups}
            by_prefix = {
                prefix: devices[route.group]
                for route in program.routes
                for prefix in addressing.destinations[route.destination]
            }
            found[node] = {
                str(subnet): by_prefix[IPv4Network((subnet.network_address, 32))] for subnet in self._subnets.values()
            }
        return found

    # --- life -------------------------------------------------------------------------------------------------------------
    async def start(self, tell: Tell) -> None:
        """Give everybody addresses, start the daemons, and wait for the routes."""
        for end, address in self._addresses.items():
            self.spaces.batch(end.node, (f"addr add {address} dev {self.spaces.device(end)}",))
        for host, route in self._defaults.items():
            self.spaces.batch(host, (f"route add {route} proto {_PROTOCOL}",))
        for node in self._switches:
            await self._start_daemons(node)
        tell(f"{self.name}: {len(self._children)} processes started")
        deadline_s = time.monotonic() + _CONVERGED_S
        quiet_from_s = None
        while quiet_from_s is None or time.monotonic() - quiet_from_s < self.quiet_s:
            reason = self._not_converged() or self.unready()
            if reason:
                quiet_from_s = None
            elif quiet_from_s is None:
                quiet_from_s = time.monotonic()
            if time.monotonic() > deadline_s:
                words = self._children[0].last_words()
                raise LabError(f"{self.name} did not converge within {_CONVERGED_S:.0f} s: {reason}; {words}")
            await asyncio.sleep(POLL_S)
        tell(f"{self.name}: converged")

    async def stop(self) -> None:
        """End the daemons and take the addresses away."""
        await asyncio.gather(*(child.kill() for child in self._children))
        self._children = []
        for end, address in self._addresses.items():
            self.spaces.attempt(end.node, ("ip", "addr", "del", *address.split(), "dev", self.spaces.device(end)))

    async def restore(self) -> None:
        """Shorten the wait for the next hello, which is up to ten seconds, where an adjacency is missing; then as before."""
        fabric = self.spaces.fabric
        hurried: set[LinkEnd] = set()
        deadline_s = time.monotonic() + _HURRY_S
        while time.monotonic() < deadline_s:
            missing_ends = self._ends_without_adjacency()
            fresh = {end for one in missing_ends for end in fabric.link_at[one].ends} - hurried
            for end in sorted(fresh):
                self._configure(end, "ip ospf hello-interval 1")
            hurried |= fresh
            if not missing_ends:
                break
            await asyncio.sleep(POLL_S)
        for end in sorted(hurried):
            self._configure(end, "no ip ospf hello-interval")

    def _ends_without_adjacency(self) -> list[LinkEnd]:
        found = []
        for node in self._switches:
            neighbours = self._ask(node, "ospfd", "show ip ospf neighbor json").get("neighbors", {})
            full = {
                str(one["ifaceName"]).partition(":")[0]
                for ones in neighbours.values()
                for one in ones
                if str(one.get("nbrState", "")).startswith("Full")
            }
            found += [end for end in self._trunk_ends(node) if self.spaces.device(end) not in full]
        return found

    def _configure(self, end: LinkEnd, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as vty:
            vty.settimeout(_VTY_S)
            vty.connect(str(self._folder_of(end.node) / "ospfd.vty"))
            for line in ("enable", "configure terminal", f"interface {self.spaces.device(end)}", command, "end"):
                answer = _told(vty, line)
                if answer:
                    raise LabError(f'ospfd of "{end.node}" answers "{line}" with: {answer[:200]}')

    def unready(self) -> str:
        """Return which session or adjacency is missing."""
        self._check()
        for node in self._switches:
            wanted = len(self._trunk_ends(node))
            neighbours = self._ask(node, "ospfd", "show ip ospf neighbor json").get("neighbors", {})
            full = sum(
                1 for found in neighbours.values() for one in found if str(one.get("nbrState", "")).startswith("Full")
            )
            if full != wanted:
                return f'"{node}" has {full} of {wanted} adjacencies'
            if self._is_tuned:
                peers = self._ask(node, "bfdd", "show bfd peers json")
                up = [peer for peer in peers if peer["status"] == "up"]
                wanted = sum(end.node == node for end in self._watched)
                if len(up) != wanted:
                    return f'"{node}" has {len(up)} of {wanted} BFD sessions'
                intervals = {(peer["transmit-interval"], peer["remote-receive-interval"]) for peer in up}
                if not intervals <= {(BFD_INTERVAL_MS, BFD_INTERVAL_MS)}:
                    return f'"{node}" has BFD sessions of {intervals} ms'
        return ""

    def processes(self) -> list[int]:
        """Return the daemons."""
        everybody = with_descendants(child.pid for child in self._children)
        return [pid for pid in everybody if name_of(pid) in _NAMES]

    def _check(self) -> None:
        for child in self._children:
            if not child.is_running:
                raise LabError(f"{child.name} ended with exit code {child.exit_code}: {child.last_words()}")

    def _not_converged(self) -> str:
        for node in self._switches:
            routes = {
                entry.key.split()[1]: frozenset(member.split()[0] for member in entry.members)
                for entry in read_table(self.spaces, node)
                if entry.kind == "route" and entry.family == 4 and entry.key.split()[2] in ("-", "main")
            }
            for address, devices in self._expected[node].items():
                found = routes.get(address)
                if found != devices:
                    return f'"{node}" reaches {address} by {sorted(found or ())}, not {sorted(devices)}'
        return ""

    # --- daemons ----------------------------------------------------------------------------------------------------------
    def _trunk_ends(self, node: NodeId) -> list[LinkEnd]:
        fabric = self.spaces.fabric
        return [link.end_at(node) for link in fabric.links_of[node] if fabric.is_trunk(link)]

    async def _start_daemons(self, node: NodeId) -> None:
        folder = self._folder_of(node)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.chown(folder, "frr", "frr")
        (folder / "zebra.conf").write_text("no zebra nexthop kernel enable\n")
        (folder / "ospfd.conf").write_text(self._ospf_conf(node))
        (folder / "bfdd.conf").write_text(
            f"bfd\n profile fast\n  detect-multiplier {BFD_MULTIPLIER}\n"
            f"  receive-interval {BFD_INTERVAL_MS}\n  transmit-interval {BFD_INTERVAL_MS}\n exit\nexit\n"
        )
        (folder / "start").write_text(self._script(folder))
        command = (
            *("nsenter", f"--net={self.spaces.path(node)}"),
            *("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "sh", str(folder / "start")),
        )
        self._children.append(await Child.start(f'FRR of "{node}"', command, folder / "log"))

    def _script(self, folder: Path) -> str:
        """Return what the first process of a node's daemons does; when it ends, however it ends, the kernel ends them all."""

        def daemon(name: str, *more: str) -> str:
            options = (
                *("-f", folder / f"{name}.conf", "-i", folder / f"{name}.pid", "-z", folder / "zserv"),
                *("--vty_socket", folder, "-A", "127.0.0.1", "-P", "0", "-u", "frr", "-g", "frr"),
                *("--log", "stdout", "--log-level", "warnings", *more),
            )
            before = ("chrt", "--fifo", PRIORITY) if name in self._realtime else ()
            return " ".join(map(str, (*before, DAEMONS / name, *options, "&")))

        return "\n".join(
            [
                "set -e",
                # Where FRR writes without being asked, it finds an empty place of its own.
                f"for place in {' '.join(_PRIVATE)}; do mount -t tmpfs -o mode=1777 tmpfs $place; done",
                daemon("zebra"),
                f"until [ -S {folder / 'zserv'} ]; do sleep 0.02; done",
                *([daemon("bfdd", "--bfdctl", str(folder / "bfdctl"))] if self._is_tuned else []),
                daemon("ospfd"),
                "wait",
                "",
            ]
        )

    def _folder_of(self, node: NodeId) -> Path:
        return self.folder / str(self._switches.index(node))

    def _ospf_conf(self, node: NodeId) -> str:
        lines = []
        trunks = self._trunk_ends(node)
        for end in sorted(end for end in self._addresses if end.node == node):
            lines += [
                f"interface {self.spaces.device(end)}",
                " ip ospf area 0",
                " ip ospf network point-to-point",
                " ip ospf cost 10",
                # FRR's default; said because it would otherwise follow the hello interval, which `restore` changes.
                " ip ospf dead-interval 40",
            ]
            if end not in trunks:
                lines.append(" ip ospf passive")
            elif self._is_tuned and end in self._watched:
                lines += [" ip ospf bfd", " ip ospf bfd profile fast"]
            lines.append("exit")
        lines += ["router ospf", f" ospf router-id {self._router[node]}", " maximum-paths 64"]
        if self._is_tuned:
            lines += [" timers throttle spf 0 10 50", " timers throttle lsa all 0", " timers lsa min-arrival 0"]
        return "\n".join([*lines, "exit", ""])

    def _ask(self, node: NodeId, daemon: str, command: str) -> Any:
        """Return a daemon's answer to a "show ... json"."""
        with socket.socket(socket.AF_UNIX) as vty:
            vty.settimeout(_VTY_S)
            try:
                vty.connect(str(self._folder_of(node) / f"{daemon}.vty"))
            except OSError:
                return {}
            _told(vty, "enable")
            text = _told(vty, command)
        try:
            return json.loads(text) if text else {}
        except ValueError:
            raise LabError(f'{daemon} of "{node}" answers "{command}" with: {text[:200]}') from None


def _told(vty: socket.socket, command: str) -> str:
    """Return what a daemon answers; it ends each answer with three zeros and a code."""
    vty.sendall(command.encode() + b"\0")
    answer = b""
    while answer[-4:-1] != _VTY_END:
        part = vty.recv(65536)
        if not part:
            break
        answer += part
    return answer[:-4].decode().strip()
