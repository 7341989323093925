"""The Linux kernel as a data plane: carrier from netlink, routes as next-hop groups.

Rule 1: what to write, in which order and what to do about a refusal is `kernel_routes`' business; this file carries it out.
Rule 2: every acknowledgement is read, and `write` returns when the kernel has given the last one.
Rule 3: forwarding outlives the driver: opening it reads, closing it closes sockets.

Linux 5.16 or newer. Writing needs CAP_NET_ADMIN; a *namespace* needs CAP_SYS_ADMIN too.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from erfs.addressing import Addressing, NodeAddressing
from erfs.aio.namespaces import inside
from erfs.ids import DestinationId
from erfs.messages import Member
from erfs_agent.core import RoutesWritten, WriteRoutes
from erfs_agent.drivers import netlink
from erfs_agent.drivers.counters import NicCounters
from erfs_agent.drivers.kernel_objects import (
    IPV4,
    IPV6,
    TABLE_MAIN,
    AddressAdded,
    KernelState,
    LinkState,
    ObjectTouched,
    Place,
    PutBackup,
    PutRoute,
    RouteGone,
    RuleGone,
    Stamp,
    Write,
    describe,
)
from erfs_agent.drivers.kernel_routes import KernelRoutes, PortNews, Reaction
from erfs_agent.drivers.netlink_socket import EventSocket, RequestSocket
from erfs_agent.drivers.requirements import Missing, missing, read_sysctl

_log = structlog.get_logger(__name__)

# Refused writes are worked out anew from what the kernel really holds, so often for one change.
READ_BACKS_MAX: Final = 3
# Somebody who removes our objects again and again is answered once in this time.
_REPAIR_WAIT: Final = 1.0
# Groups no longer used go when the change that left them is done with; another one often wants them again.
_TIDY_WAIT: Final = 1.0
# A burst of facts is over by then; the tables of what came by a port matter only for a second failure meanwhile.
_FOLLOW_WAIT: Final = 0.05
_EVENT_GROUPS: Final = (
    netlink.GROUP_LINK,
    netlink.GROUP_IPV6_ADDRESS,
    netlink.GROUP_NEXTHOP,
    netlink.GROUP_IPV4_ROUTE,
    netlink.GROUP_IPV6_ROUTE,
    netlink.GROUP_IPV4_RULE,
    netlink.GROUP_IPV6_RULE,
)


class LinuxDriver:
    """
    The driver of one node; its contract is `erfs_agent.drivers.base.Driver`.

    Args:
        addressing: What destinations mean.
        node: This node's interfaces and next hops.
        protocol: The routing protocol number that marks routes and objects as ours.
        metric: Of our routes; the lower one of two protocols' routes to a prefix wins.
        namespace: Whose kernel tables; None: those of this process. The process itself stays where it is.
        is_dry_run: Log what would be written and believe it done.

    Raises:
        OSError: the kernel cannot be asked, or there is no such namespace.
    """

    def __init__(
        self,
        addressing: Addressing,
        node: NodeAddressing,
        *,
        protocol: int,
        metric: int,
        namespace: Path | None = None,
        is_dry_run: bool = False,
    ) -> None:
        self.on_port: Callable[[str, bool], None] = _nobody_listens
        self._node = node
        self._stamp = Stamp(protocol, metric)
        self._namespace = namespace
        self._is_dry_run = is_dry_run
        self._core = KernelRoutes(addressing, node, self._stamp)
        self._devices = self._core.devices()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._repair: asyncio.TimerHandle | None = None
        self._tidying: asyncio.TimerHandle | None = None
        self._following: asyncio.TimerHandle | None = None
        # What somebody else did since the last repair.
        self._is_touched = False
        self._gone: set[Place] = set()
        with inside(namespace):
            self._requests = RequestSocket()
            # Before anything is read, so that no change falls between.
            self._events = EventSocket(_EVENT_GROUPS, deaf_to=self._requests.number, protocol=protocol)
            self._nics = NicCounters()
        self._refused_backups: list[str] = []
        """What has been logged and still stands."""
        self._core.read_back(self._read())
        self._core.adopt()

    # --- the contract ----------------------------------------------------------------------------------------------------
    def ports(self) -> dict[str, bool]:
        """Return whether each port is admin up and has carrier."""
        return self._core.ports()

    def routes(self) -> dict[DestinationId, tuple[Member, ...]]:
        """Return what the kernel holds for us, whole destinations only."""
        return self._core.routes()

    def write(self, command: WriteRoutes) -> RoutesWritten:
        """
        Change the kernel's groups and routes; members whose port has no carrier are left out, as the kernel does.

        Backups count as written even if the kernel refuses some of them: what is refused is logged.
        """
        self._core.want(command.routes, command.removed, command.backups)
        reason = self._settle(is_urgent=self._loop is not None)
        if self._loop is not None and self._tidying is None:
            self._tidying = self._loop.call_later(_TIDY_WAIT, self._tidy)
        return RoutesWritten(command.change, is_ok=not reason, reason=reason)

    # --- beyond the contract ---------------------------------------------------------------------------------------------
    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell changes of carrier from now on, in *loop*, and keep the neighbours at all ports resolved."""
        self._loop = loop
        loop.add_reader(self._events.fileno(), self.read_events)
        self._restore()
        self._keep_neighbours(None)
        for found in self.missing():
            _log.warning("driver_requirement_missing", setting=found.setting, found=found.found, wanted=found.wanted)

    def close(self) -> None:
        """Let go of the kernel, which goes on forwarding."""
        for timer in (self._repair, self._tidying, self._following):
            if timer is not None:
                timer.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self._events.fileno())
            self._loop = None
        self._requests.close()
        self._events.close()
        self._nics.close()

    def event_fileno(self) -> int:
        """Return the descriptor that is readable when `read_events` has something to do; for other loops than asyncio's."""
        return self._events.fileno()

    def read_events(self) -> None:
        """Take in what the kernel has told since; called by the loop."""
        while True:
            raws = self._events.read()
            if raws is None:
                _log.warning("kernel_events_lost")
                self._restore(is_read_back=True)
                continue
            if not raws:
                return
            for raw in raws:
                found = netlink.event(raw, self._stamp)
                match found:
                    case LinkState():
                        self._on_link(found)
                    case AddressAdded():
                        self._on_address(found.ifindex)
                    case ObjectTouched():
                        self._on_touched(found)
                    case RouteGone():
                        self._on_route_gone(found)
                    case RuleGone():
                        self._on_rule_gone(found)
                    case None:
                        pass

    def counters(self) -> dict[str, dict[str, int]]:
        """
        Return the counters of each port that has an interface: the kernel's by their names in `rtnl_link_stats64`,
        and the adapter's own error and discard counters as ``nic.NAME``.
        """
        found: dict[str, dict[str, int]] = {}
        for port, device in self._devices.items():
            ifindex = self._core.ifindex(port)
            raw = self._requests.get(netlink.ask_link(ifindex, self._requests.next_seq())) if ifindex else None
            if raw is not None:
                found[port] = netlink.counters(raw) | self._nics.read(device)
        return found

    def missing(self) -> list[Missing]:
        """Return what the system must still be told so that this node forwards as it should."""
        with inside(self._namespace):
            return missing(self._node, read_sysctl)

    # --- events ----------------------------------------------------------------------------------------------------------
    def _on_link(self, link: LinkState) -> None:
        news = self._core.link_changed(link)
        if news is None:
            self._restore()
        elif news.oper_up:
            # Ready before anyone may use it.
            self._restore()
            self._keep_neighbours(news.port)
            self._tell([news])
        else:
            # The kernel has reacted already; what the agent has to say and to change comes before the rest.
            self._tell([news])
            self._restore()

    def _on_address(self, ifindex: int) -> None:
        port = self._core.port_at(ifindex)
        if port is not None:
            self._core.unbar(port)
            self._restore()
            self._keep_neighbours(port)

    def _on_touched(self, touched: ObjectTouched) -> None:
        if not self._core.is_ours(touched.id):
            return
        if self._repair is not None:
            self._is_touched = True
            return
        _log.warning("kernel_objects_touched_by_others", object=touched.id)
        self._repair_later()
        self._restore(is_read_back=True)

    def _on_route_gone(self, gone: RouteGone) -> None:
        # Along with its group the kernel removes a route a moment before it tells of the carrier, which explains it.
        place = Place(gone.table, gone.prefix, gone.metric)
        if self._core.has_route(place):
            self._gone.add(place)
            self._repair_later()

    def _on_rule_gone(self, gone: RuleGone) -> None:
        if self._core.has_rule(gone.rule):
            _log.warning("kernel_rule_removed_by_others", device=gone.rule.device, table=gone.rule.table)
            self._is_touched = True
            self._repair_later()

    def _repair_later(self) -> None:
        if self._loop is not None and self._repair is None:
            self._repair = self._loop.call_later(_REPAIR_WAIT, self._repair_now)

    def _repair_now(self) -> None:
        self._repair = None
        # What is no longer in the books went along with its group, and has a backup instead.
        gone = {place for place in self._gone if self._core.has_route(place)}
        if gone:
            _log.warning("kernel_routes_removed_by_others", prefixes=sorted({str(place.prefix) for place in gone}))
        is_needed = self._is_touched or bool(gone)
        self._is_touched = False
        self._gone.clear()
        if is_needed:
            self._restore(is_read_back=True)

    def _tidy(self) -> None:
        self._tidying = None
        self._restore()

    def _follow(self) -> None:
        self._following = None
        reason = self._settle(is_urgent=True, has_tables=True)
        if reason:
            _log.warning("kernel_not_as_wanted", reason=reason)

    def _tell(self, news: list[PortNews]) -> None:
        for found in news:
            self.on_port(found.port, found.oper_up)

    # --- writing ---------------------------------------------------------------------------------------------------------
    def _restore(self, *, is_read_back: bool = False) -> None:
        """Make the kernel hold again what was last asked for, after it or somebody else changed something."""
        reason = self._settle(is_read_back=is_read_back)
        if reason:
            _log.warning("kernel_not_as_wanted", reason=reason)

    def _settle(self, *, is_read_back: bool = False, is_urgent: bool = False, has_tables: bool = False) -> str:
        """
        Ask until the kernel holds what is wanted; return why it does not, "" if it does.

        In a loop, the tables of what came by a port follow a moment later unless *has_tables*.
        """
        has_tables |= self._loop is None
        try:
            return self._asked(is_read_back=is_read_back, is_urgent=is_urgent, has_tables=has_tables)
        finally:
            if self._loop is not None and self._following is None and self._core.is_following_due:
                self._following = self._loop.call_later(_FOLLOW_WAIT, self._follow)

    def _asked(self, *, is_read_back: bool, is_urgent: bool, has_tables: bool) -> str:
        read_backs = 0
        try:
            if is_read_back:
                self._read_back()
            while writes := self._core.writes(is_urgent=is_urgent, has_tables=has_tables):
                refusals = self._carry_out(writes, is_last=read_backs == READ_BACKS_MAX)
                if Reaction.GIVE_UP in refusals:
                    return refusals[Reaction.GIVE_UP]
                if Reaction.READ_BACK in refusals:
                    read_backs += 1
                    self._read_back()
        except OSError as error:
            return f"the kernel does not answer: {error.strerror or error}"
        refused = self._core.refused_backups()
        for reason in refused:
            if reason not in self._refused_backups:
                _log.warning("kernel_backup_refused", reason=reason)
        self._refused_backups = refused
        return "; ".join(self._core.problems())

    def _carry_out(self, writes: list[Write], *, is_last: bool) -> dict[Reaction, str]:
        """Ask for all of *writes*; return the reactions to what was refused, each with the first reason."""
        if self._is_dry_run:
            for write in writes:
                _log.info("dry_run", would=describe(write, self._stamp, self._devices))
                self._core.answered(write)
            return {}
        requests = [netlink.encode(write, self._stamp, self._requests.next_seq()) for write in writes]
        found: dict[Reaction, str] = {}
        for write, said in zip(writes, self._requests.ask(requests), strict=True):
            if not said.error:
                self._core.answered(write)
                if self._gone and isinstance(write, PutRoute):
                    self._gone.discard(Place(TABLE_MAIN, write.prefix, self._stamp.metric))
                elif self._gone and isinstance(write, PutBackup):
                    self._gone.discard(write.place)
                continue
            text = said.text or os.strerror(said.error)
            reaction = self._core.refused(write, said.error, text, is_last=is_last)
            if reaction not in found:
                found[reaction] = f"{describe(write, self._stamp, self._devices)}: {text}"
        return found

    def _keep_neighbours(self, port: str | None) -> None:
        if self._is_dry_run:
            return
        for ifindex, gateway in self._core.neighbours(port):
            raw = self._requests.get(netlink.ask_neighbour(ifindex, gateway, self._requests.next_seq()))
            state = netlink.neighbour_state(raw) if raw is not None and raw.kind == netlink.RTM_NEWNEIGH else 0
            if state & (netlink.NUD_PERMANENT | netlink.NUD_NOARP):
                # Somebody set it by hand; the kernel would take that back.
                continue
            request = netlink.encode_neighbour(ifindex, gateway, self._stamp, self._requests.next_seq())
            said = self._requests.ask([request])[0]
            if said.error:
                reason = said.text or os.strerror(said.error)
                _log.warning("neighbour_not_kept", port=self._core.port_at(ifindex), reason=reason)

    # --- reading ---------------------------------------------------------------------------------------------------------
    def _read_back(self) -> None:
        # Events up to now are older than what is about to be read: the agent must hear of them, the books must not.
        while raws := self._events.read():
            for raw in raws:
                found = netlink.event(raw, self._stamp)
                if isinstance(found, LinkState):
                    news = self._core.link_changed(found)
                    self._tell([news] if news is not None else [])
        self._tell(self._core.read_back(self._read()))

    def _read(self) -> KernelState:
        requests = self._requests
        links = tuple(netlink.link(raw) for raw in requests.dump(netlink.ask_links(requests.next_seq())))
        objects = tuple(netlink.next_hop(raw) for raw in requests.dump(netlink.ask_next_hops(requests.next_seq())))
        routes = [
            netlink.route(raw, self._stamp)
            for family in (IPV4, IPV6)
            for raw in requests.dump(netlink.ask_routes(family, self._stamp, requests.next_seq()))
        ]
        rules = [
            netlink.rule(raw, self._stamp)
            for family in (IPV4, IPV6)
            for raw in requests.dump(netlink.ask_rules(family, requests.next_seq()))
        ]
        return KernelState(
            links,
            objects,
            tuple(route for route in routes if route is not None),
            tuple(rule for rule in rules if rule is not None),
        )


def _nobody_listens(port: str, oper_up: bool) -> None:
    """Stand for the time before a runtime listens."""
