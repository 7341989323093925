"""Which next-hop objects, groups and routes must the kernel be asked for, in which order, and what if it refuses?

Rule 1: no I/O: writes go out, answers and readings come in.
Rule 2: a write names only what exists: the kernel refuses a group whole for one member that is missing.
Rule 3: nothing is taken out before what replaces it is in: a group that loses its last member takes its routes along.
Rule 4: only objects and routes with our protocol number are ever touched.

The kernel has a will of its own. When a port loses carrier or is set down it deletes the next-hop objects over it,
takes them out of every group, deletes the groups this empties and their routes, says nothing of all that, and restores
nothing later. `link_changed` keeps the same books, so that what the kernel has done already is not asked for again.

Destinations that want the same members share a group. When some of them change, the larger part of a group's routes
keeps it: if that is the part that changes, one replacement flips it for all of them, however many routes they are; the
smaller part is moved to a group that holds what it wants, made first if need be (figures: docs/adr/0013). The number of an object is a digest of its content when it
was made; a restarted agent knows its own by the protocol number and reads what they hold.
"""

import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from erfs.addressing import Addressing, NodeAddressing
from erfs.errors import Bug
from erfs.ids import EVERYTHING, DestinationId, is_endpoint, lookup_order
from erfs.messages import Member
from erfs_agent.drivers.kernel_backups import KernelBackups
from erfs_agent.drivers.kernel_objects import (
    BLACKHOLE,
    IPV4,
    IPV6,
    TABLE_MAIN,
    GroupMembers,
    Hop,
    KernelState,
    LinkState,
    Place,
    Prefix,
    PutBackup,
    PutGroup,
    PutHop,
    PutRoute,
    PutRule,
    RemoveBackup,
    RemoveObject,
    RemoveRoute,
    RemoveRule,
    RouteObject,
    Rule,
    Stamp,
    Write,
    prefix_of,
)
from erfs_agent.forwarding import Backups

# Numbers of ours: 0xE5 and 24 bits, of which the highest tells groups from single next hops, and the second backups' groups. Others count from 1.
_BASE: Final = 0xE5000000
_GROUP_BIT: Final = 0x800000
_BACKUP_BIT: Final = 0x400000
_SLOTS: Final = 0x400000
# Kernels before 6.13 take eight bits.
WEIGHT_MAX: Final = 256
# So far from its own slot a number may be; with thousands of objects the first two or three are enough.
_PROBES: Final = 64

# So many routes are moved to a group that holds what they want rather than that their own is made its equal.
MOVED_MAX: Final = 8

Parts = dict[int, dict[GroupMembers, list[Prefix]]]
"""For each group in use (0: none) the routes to change, by what they want."""


class Reaction(Enum):
    """What to do about a refused write."""

    DONE = "done"  # what was asked for is so already
    READ_BACK = "read back"  # the kernel holds something else than we think
    GIVE_UP = "give up"


_STALE: Final = {errno.ENOENT, errno.EINVAL, errno.EEXIST, errno.ENODEV, errno.ENETDOWN, errno.ESRCH, errno.EBUSY}


def reaction(write: Write, error: int) -> Reaction:
    """Return what to do when the kernel answered *write* with *error*."""
    match write:
        case RemoveRoute() | RemoveObject() | RemoveBackup() | RemoveRule() if error in (errno.ENOENT, errno.ESRCH):
            return Reaction.DONE
        case _:
            return Reaction.READ_BACK if error in _STALE else Reaction.GIVE_UP


@dataclass(slots=True)
class _Port:
    """A port, the interface it is, and its gateways by the family of the routes that use them."""

    device: str
    gateways: dict[int, bytes]
    ifindex: int = 0
    is_up: bool = False


@dataclass(frozen=True, slots=True)
class PortNews:
    """A port got or lost its carrier."""

    port: str
    oper_up: bool


class KernelRoutes:
    """
    The books of one node's routes in the kernel.

    Args:
        addressing: What destinations mean.
        node: This node's part of it.
        stamp: What marks routes and objects as ours.
    """

    def __init__(self, addressing: Addressing, node: NodeAddressing, stamp: Stamp) -> None:
        self.stamp = stamp
        self._ports: dict[str, _Port] = {}
        for name, port in sorted(node.ports.items()):
            of_version = {address.version: address.packed for address in port.next_hops}
            gateways = {IPV4: of_version.get(4, of_version[6]), IPV6: of_version[6]}
            self._ports[name] = _Port(port.device, gateways)
        self._port_of_device = {port.device: name for name, port in self._ports.items()}
        self._prefixes: dict[DestinationId, tuple[Prefix, ...]] = {
            destination: tuple(prefix_of(network) for network in networks)
            for destination, networks in addressing.destinations.items()
        }
        self._claims = _claims(self._prefixes)
        self._rivals = _rivals(self._claims)

        self._wanted: dict[DestinationId, tuple[Member, ...]] = {}
        self._unknown: set[DestinationId] = set()
        self._dirty: set[DestinationId] = set()
        self._is_hop_missing = True
        self._may_remove = False
        self._is_cleanup_due = True
        # What the kernel will not have, read back or not: prefixes that are somebody else's, gateways with the reason.
        self._blocked: set[Prefix] = set()
        self._barred: dict[Hop, str] = {}
        self._is_newly_barred = False

        self._taken: frozenset[int] = frozenset()
        self._hop_ids: dict[Hop, int] = {}
        self._groups: dict[int, GroupMembers] = {}
        self._routes: dict[Prefix, int] = {}
        self._users: dict[int, set[Prefix]] = {}
        self._strays: set[RemoveObject | RemoveRoute] = set()
        self._backups = KernelBackups(addressing, self._prefixes, self.devices(), stamp)

    # --- what there is ---------------------------------------------------------------------------------------------------
    def ports(self) -> dict[str, bool]:
        """Return whether each port is admin up and has carrier."""
        return {name: port.is_up for name, port in self._ports.items()}

    def devices(self) -> dict[str, str]:
        """Return the interface of each port."""
        return {name: port.device for name, port in self._ports.items()}

    def neighbours(self, port: str | None = None) -> list[tuple[int, bytes]]:
        """Return (ifindex, gateway) of what is to be kept resolved at *port*, or at all ports that are up."""
        names = self._ports if port is None else (port,)
        return [
            (found.ifindex, gateway)
            for found in (self._ports[name] for name in names)
            if found.is_up
            for gateway in sorted(set(found.gateways.values()))
        ]

    def ifindex(self, port: str) -> int:
        """Return the number of the interface that is *port* now, 0 if there is none."""
        return self._ports[port].ifindex

    def port_at(self, ifindex: int) -> str | None:
        """Return the port that is interface *ifindex*."""
        return next((name for name, port in self._ports.items() if port.ifindex == ifindex), None)

    def is_ours(self, object_id: int) -> bool:
        """Return whether the next-hop object or group *object_id* is one the kernel should hold for us."""
        is_of_routes = object_id in self._groups or object_id in self._hop_ids.values()
        return is_of_routes or self._backups.is_ours(object_id)

    def has_route(self, place: Place) -> bool:
        """Return whether the kernel should hold a route of ours at *place*."""
        if (place.table, place.metric) == (TABLE_MAIN, self.stamp.metric):
            return place.prefix in self._routes
        return self._backups.has(place)

    def has_rule(self, rule: Rule) -> bool:
        """Return whether the kernel should hold our *rule*."""
        return self._backups.has_rule(rule)

    @property
    def is_following_due(self) -> bool:
        """Whether the ports' own tables have still to follow the routes: see `writes`."""
        return self._backups.is_following_due

    def routes(self) -> dict[DestinationId, tuple[Member, ...]]:
        """
        Return what the kernel holds, as destinations with their members.

        A destination of which something is missing, or that has more than we could have written, is not among them: it
        will be asked for again, and then whatever is right stays.
        """
        port_of = {id_: hop.port for hop, id_ in self._hop_ids.items()}
        held: dict[int, tuple[Member, ...] | None] = {}
        for group, members in self._groups.items():
            is_known = all(id_ in port_of for id_, _ in members)
            ports = tuple(Member(port=port_of[id_], weight=weight) for id_, weight in members if port_of.get(id_))
            held[group] = ports if is_known else None
        claimed = {claimant for prefix in self._routes for claimant in self._claims.get(prefix, ())}
        asked = {destination: self._held(destination, held) for destination in sorted(claimed)}
        found = {destination: members for destination, members in asked.items() if members is not None}
        return {name: members for name, members in found.items() if not self._is_covered(name, members, found)}

    def _is_covered(
        self, destination: DestinationId, members: tuple[Member, ...], found: Mapping[DestinationId, tuple[Member, ...]]
    ) -> bool:
        """Return whether wider destinations that mean the same prefixes explain all there is of this one."""
        for prefix in self._prefixes[destination]:
            claimants = self._claims[prefix]
            wider = claimants[claimants.index(destination) + 1 :]
            if not any(found.get(claimant) == members for claimant in wider):
                return False
        return True

    def _held(
        self, destination: DestinationId, held: Mapping[int, tuple[Member, ...] | None]
    ) -> tuple[Member, ...] | None:
        """Return the members that all of a destination's prefixes have, None if it is not all there."""
        prefixes = self._prefixes[destination]
        if any(prefix not in self._routes for prefix in prefixes):
            return None
        # What a more specific destination means too may be that one's.
        own = [prefix for prefix in prefixes if self._claims[prefix][0] == destination] or list(prefixes)
        contents = [held.get(self._routes[prefix]) for prefix in own]
        return contents[0] if all(content == contents[0] for content in contents) else None

    # --- what comes in ---------------------------------------------------------------------------------------------------
    def want(
        self,
        routes: Mapping[DestinationId, tuple[Member, ...]],
        removed: Iterable[DestinationId],
        backups: Backups | None = None,
    ) -> None:
        """From now on hold *routes* too, *removed* no longer, and *backups*, if any, alone; what was left over from earlier goes as well."""
        removed = tuple(removed)
        self._wanted.update(routes)
        self._unknown.update(destination for destination in routes if not self._prefixes.get(destination))
        for destination in removed:
            self._wanted.pop(destination, None)
            self._unknown.discard(destination)
        for destination in (*routes, *removed):
            self._dirty.add(destination)
            # Of a prefix that several claim, the most specific one wanted has it.
            self._dirty.update(self._rivals.get(destination, ()))
            if self._blocked:
                self._blocked.difference_update(self._prefixes.get(destination, ()))
        self._may_remove = True
        self._is_cleanup_due |= bool(removed)
        self._backups.want(backups)
        if backups is not None:
            # What sends nowhere drops, or leaves it to its backup.
            self._dirty.update(name for name, members in self._wanted.items() if not self._is_any_up(members))

    def _is_any_up(self, members: tuple[Member, ...]) -> bool:
        return any(member.port in self._ports and self._ports[member.port].is_up for member in members)

    def adopt(self) -> None:
        """Hold what the kernel holds already, until somebody wants something else."""
        self._wanted = self.routes()

    def unbar(self, port: str) -> None:
        """Try the gateways of *port* again: something about its interface has changed."""
        barred = {hop: why for hop, why in self._barred.items() if hop.port != port}
        if len(barred) != len(self._barred):
            self._barred = barred
            self._is_hop_missing = True
            self._use_again(port)

    def _use_again(self, port: str) -> None:
        self._dirty.update(
            destination
            for destination, members in self._wanted.items()
            if any(member.port == port for member in members)
        )

    def link_changed(self, link: LinkState) -> PortNews | None:
        """Take note of an interface, and of what the kernel does because of it; return the port's news, if any."""
        name = self._port_of_device.get(link.device)
        if name is None:
            return None
        port = self._ports[name]
        if link.is_gone and port.ifindex not in (0, link.ifindex):
            # The end of an older interface of this name; its successor is what counts.
            return None
        if link.is_flushed or link.ifindex != port.ifindex:
            self._lose_hops(name)
        port.ifindex = 0 if link.is_gone else link.ifindex
        if link.is_up == port.is_up:
            return None
        port.is_up = link.is_up
        self._is_hop_missing = True
        self.unbar(name)
        if not link.is_flushed:
            # Otherwise the kernel has done it.
            self._use_again(name)
        return PortNews(name, link.is_up)

    def _lose_hops(self, name: str) -> None:
        """Do what the kernel does to the objects over a port that lost its carrier."""
        lost = {id_ for hop, id_ in self._hop_ids.items() if hop.port == name}
        if not lost:
            return
        self._is_hop_missing = True
        self._hop_ids = {hop: id_ for hop, id_ in self._hop_ids.items() if hop.port != name}
        # Hundreds of groups share a few contents.
        left_of: dict[GroupMembers, GroupMembers] = {}
        for group, members in list(self._groups.items()):
            left = left_of.get(members)
            if left is None:
                left = left_of[members] = tuple(member for member in members if member[0] not in lost)
            if left:
                self._groups[group] = left
            else:
                self._lose_group(group)
        self._expose(self._backups.lose_hops(lost))

    def _expose(self, prefixes: Iterable[Prefix]) -> None:
        """Look again at *prefixes*, whose backup came or went: if they have no members they drop, or leave it to the backup."""
        for prefix in prefixes:
            self._dirty.update(self._claims.get(prefix, ()))

    def _lose_group(self, group: int) -> None:
        self._groups.pop(group, None)
        for prefix in self._users.pop(group, ()):
            del self._routes[prefix]
            self._dirty.update(self._claims.get(prefix, ()))

    def _set_route(self, prefix: Prefix, group: int | None) -> None:
        """Take note which group *prefix* uses; None: there is no route."""
        before = self._routes.pop(prefix, None)
        if before is not None:
            self._users[before].discard(prefix)
        if group is not None:
            self._routes[prefix] = group
            self._users.setdefault(group, set()).add(prefix)

    def read_back(self, state: KernelState) -> list[PortNews]:
        """Take what the kernel really holds in place of what it was thought to; return the ports' news."""
        news = self._read_links(state.links)
        port_of_ifindex = {port.ifindex: name for name, port in self._ports.items() if port.ifindex}
        gateways = {name: set(port.gateways.values()) for name, port in self._ports.items()}
        ours = [found for found in state.objects if found.protocol == self.stamp.protocol]
        self._taken = frozenset(found.id for found in state.objects if found.protocol != self.stamp.protocol)
        self._hop_ids, self._groups, self._routes, self._users, self._strays = {}, {}, {}, {}, set()
        groups_behind: dict[int, GroupMembers] = {}
        for found in sorted(ours, key=lambda found: found.id):
            port = port_of_ifindex.get(found.ifindex, "")
            if found.members and _is_behind(found.id):
                groups_behind[found.id] = found.members
            elif found.members:
                self._groups[found.id] = found.members
            elif found.is_blackhole and len(found.gateway) == 0:
                self._adopt_hop(BLACKHOLE, found.id)
            elif port and found.gateway in gateways[port]:
                self._adopt_hop(Hop(port, found.gateway), found.id)
            else:
                self._strays.add(RemoveObject(found.id))
        routes_behind: list[RouteObject] = []
        for route in state.routes:
            if route.table != TABLE_MAIN or route.metric == self.stamp.metric + 1:
                routes_behind.append(route)
            elif route.metric == self.stamp.metric:
                self._set_route(route.prefix, route.group)
            else:
                self._strays.add(RemoveRoute(route.prefix, route.metric))
        self._backups.read_back(groups_behind, routes_behind, state.rules)
        self._is_hop_missing = self._is_cleanup_due = True
        self._dirty |= self._wanted.keys()
        return news

    def _read_links(self, links: tuple[LinkState, ...]) -> list[PortNews]:
        present = {link.device: link for link in links if link.device in self._port_of_device}
        news = []
        for name, port in self._ports.items():
            link = present.get(port.device) or LinkState(0, port.device, is_up=False, is_flushed=True)
            port.ifindex = link.ifindex
            if link.is_up != port.is_up:
                port.is_up = link.is_up
                news.append(PortNews(name, link.is_up))
        return news

    def _adopt_hop(self, hop: Hop, id_: int) -> None:
        if hop in self._hop_ids:
            self._strays.add(RemoveObject(id_))
        else:
            self._hop_ids[hop] = id_

    # --- what goes out ---------------------------------------------------------------------------------------------------
    def writes(self, *, is_urgent: bool = False, has_tables: bool = True) -> list[Write]:
        """
        Return what to ask for next, in order; nothing when the kernel holds what is wanted.

        Ask again once these are answered: removals come only when everything else is in.

        Args:
            is_urgent: Leave for another time what is merely no longer used; it harms nobody.
            has_tables: Let the ports' own tables follow; only what goes around another failure needs them.

        Cost: O(what changed since), O(routes) when something is to be removed.
        """
        self._is_newly_barred = False
        puts = self._puts()
        if puts:
            return puts
        self._dirty.clear()
        if not self._may_remove:
            return []
        if self._is_cleanup_due:
            removals = self._route_removals()
            if removals:
                return removals
            self._is_cleanup_due = False
        found = self._backups.writes(
            lambda members, family: self._existing(members, family, self._hop_ids),
            self._owned,
            lambda name, used: self._free_id(name, _GROUP_BIT | _BACKUP_BIT, used),
            has_tables=has_tables,
            is_tidying=not is_urgent,
        )
        return found or ([] if is_urgent else self._object_removals())

    def _owned(self) -> dict[Prefix, tuple[Member, ...]]:
        """Return where each prefix goes: to nothing, if nobody wants the class it is."""
        found: dict[Prefix, tuple[Member, ...]] = {}
        for prefix, claimants in self._claims.items():
            owner = self._owner(prefix)
            if owner is not None:
                found[prefix] = self._wanted[owner]
            elif any(not is_endpoint(name) and name != EVERYTHING for name in claimants):
                found[prefix] = ()
        return found

    def problems(self) -> list[str]:
        """Return what of the wanted cannot be had, whatever is written."""
        used = {member.port for members in self._wanted.values() for member in members} if self._barred else set()
        return (
            [f'the addressing has no prefix for "{destination}"' for destination in sorted(self._unknown)]
            + [f"{prefix}: somebody else has a route of metric {self.stamp.metric}" for prefix in sorted(self._blocked)]
            + [f'port "{hop.port}": {why}' for hop, why in sorted(self._barred.items()) if hop.port in {*used, ""}]
        )

    def refused_backups(self) -> list[str]:
        """Return what of the wanted backups the kernel refuses; forwarding does not depend on them."""
        return self._backups.problems()

    def answered(self, write: Write) -> None:
        """Take note that *write* is done."""
        match write:
            case PutHop():
                self._hop_ids[write.hop] = write.id
                self._backups.hops_changed()
            case PutGroup() | RemoveObject() if _is_behind(write.id):
                self._backups.answered(write)
            case PutBackup() | RemoveBackup():
                self._backups.answered(write)
                if write.place.table == TABLE_MAIN:
                    self._expose([write.place.prefix])
            case PutRule() | RemoveRule():
                self._backups.answered(write)
            case PutGroup():
                self._groups[write.id] = write.members
            case PutRoute():
                self._set_route(write.prefix, write.group)
            case RemoveRoute():
                if write.metric == self.stamp.metric:
                    self._set_route(write.prefix, None)
                self._strays.discard(write)
            case RemoveObject():
                self._strays.discard(write)
                self._hop_ids = {hop: id_ for hop, id_ in self._hop_ids.items() if id_ != write.id}
                self._lose_group(write.id)

    def refused(self, write: Write, error: int, text: str, *, is_last: bool) -> Reaction:
        """
        Take note that *write* was refused with *error*; return what to do.

        Args:
            text: What the kernel says about it.
            is_last: The kernel was read back before and refuses still.
        """
        react = reaction(write, error)
        if react is Reaction.DONE:
            self.answered(write)
        elif react is Reaction.GIVE_UP or is_last:
            match write:
                case PutBackup() | RemoveBackup() | PutRule() | RemoveRule():
                    self._backups.give_up(write, text)
                    return Reaction.DONE
                case PutGroup() | RemoveObject() if _is_behind(write.id):
                    self._backups.give_up(write, text)
                    return Reaction.DONE
                case PutHop():
                    # The other ports' groups must not suffer for it.
                    self._barred[write.hop] = text
                    self._is_newly_barred = True
                    return Reaction.DONE
                case PutGroup() | PutRoute() if self._is_newly_barred:
                    # It names what was refused a moment ago; the next round leaves that out.
                    return Reaction.DONE
                case PutRoute() if error == errno.EEXIST:
                    self._blocked.add(write.prefix)
                    return Reaction.DONE
                case _:
                    return Reaction.GIVE_UP
        return react

    def _puts(self) -> list[Write]:
        hops: list[Write] = []
        ids = self._hop_ids
        if self._is_hop_missing:
            ids = dict(ids)
            for hop in self._hops_to_have():
                if hop not in ids and hop not in self._barred:
                    ids[hop] = self._free_id(f"{hop.port} {hop.gateway.hex()}", 0, ids.values())
                    hops.append(PutHop(ids[hop], hop, self._ports[hop.port].ifindex if hop.port else 0))
            if not hops:
                self._is_hop_missing = False
        shadows: list[Write] = []
        parts = self._parts(ids, shadows)
        return hops + self._regrouped(parts) + shadows

    def _parts(self, ids: Mapping[Hop, int], shadows: list[Write]) -> Parts:
        """Return what each route of a destination that changed wants, by the group it uses now; add what hides a backup to *shadows*."""
        parts: Parts = {}
        drop = self._dropping(ids)
        # Hundreds of destinations share a few member tuples.
        contents: dict[tuple[int, int], GroupMembers] = {}
        for destination in sorted(self._dirty):
            members = self._wanted.get(destination)
            if members is None:
                continue
            for prefix in self._prefixes.get(destination, ()):
                if prefix in self._blocked or self._owner(prefix) != destination:
                    continue
                key = id(members), prefix.family
                content = contents.get(key)
                if content is None:
                    content = contents[key] = self._existing(members, prefix.family, ids) or drop
                if content == drop and self._backups.is_backed(prefix):
                    if prefix in self._routes:
                        shadows.append(RemoveRoute(prefix, self.stamp.metric))
                    continue
                group = self._routes.get(prefix, 0)
                parts.setdefault(group, {}).setdefault(content, []).append(prefix)
        return parts

    def _regrouped(self, parts: Parts) -> list[Write]:
        """
        Return the writes that give every route what it wants: new groups, then moved routes, then flipped groups.

        Nothing moves to a group that is about to flip, and a group flips only when those have left who don't want that.
        """
        flips: dict[int, GroupMembers] = {}
        moves: list[tuple[GroupMembers, list[Prefix]]] = []
        for group, wanted in sorted(parts.items()):
            held = self._groups.get(group)
            if held is None:
                moves += sorted(wanted.items())
                continue
            changed = sorted((content, prefixes) for content, prefixes in wanted.items() if content != held)
            if not changed:
                continue
            leaving = {prefix for _, prefixes in changed for prefix in prefixes}
            staying = sorted(self._users[group] - leaving)
            largest = max(changed, key=lambda part: len(part[1]))
            if len(largest[1]) > len(staying):
                flips[group] = largest[0]
                changed.remove(largest)
                changed += [(held, staying)] if staying else []
            moves += changed
        target = {content: group for group, content in sorted(self._groups.items()) if group not in flips}
        for group, content in list(flips.items()):
            users = self._users[group]
            if content in target and len(users) <= MOVED_MAX and not any(users & set(part) for _, part in moves):
                del flips[group]
                moves.append((content, sorted(users)))
        return self._moved(moves, target) + [PutGroup(id_, flips[id_], is_new=False) for id_ in sorted(flips)]

    def _moved(self, moves: list[tuple[GroupMembers, list[Prefix]]], target: dict[GroupMembers, int]) -> list[Write]:
        """Return the writes that move routes to groups of *target*, which new ones are added to."""
        groups: list[Write] = []
        routes: list[Write] = []
        for content, prefixes in moves:
            group = target.get(content)
            if group is None:
                group = target[content] = self._free_id(str(content), _GROUP_BIT, {*self._groups, *target.values()})
                groups.append(PutGroup(group, content, is_new=True))
            routes += [PutRoute(prefix, group, is_new=prefix not in self._routes) for prefix in prefixes]
        return groups + routes

    def _hops_to_have(self) -> Iterator[Hop]:
        yield BLACKHOLE
        for name, port in self._ports.items():
            if port.is_up:
                for gateway in sorted(set(port.gateways.values())):
                    yield Hop(name, gateway)

    @staticmethod
    def _dropping(ids: Mapping[Hop, int]) -> GroupMembers:
        """Return the members that drop. Without an object that does, one that does not exist: the kernel's refusal is then told."""
        return ((ids.get(BLACKHOLE, _BASE), 1),)

    def _existing(self, members: tuple[Member, ...], family: int, ids: Mapping[Hop, int]) -> GroupMembers | None:
        """Return the members that exist, None if none does."""
        found: dict[int, int] = {}
        for member in members:
            port = self._ports.get(member.port)
            if port is None or not port.is_up:
                continue
            id_ = ids.get(Hop(member.port, port.gateways[family]))
            if id_ is not None:
                found[id_] = found.get(id_, 0) + member.weight
        if not found:
            return None
        return tuple(zip(found, scaled(list(found.values())), strict=True))

    def _route_removals(self) -> list[Write]:
        strays = [stray for stray in self._strays if isinstance(stray, RemoveRoute)]
        unowned = [prefix for prefix in self._routes if self._owner(prefix) is None]
        return [
            *sorted(strays, key=lambda stray: (stray.prefix, stray.metric)),
            *(RemoveRoute(prefix, self.stamp.metric) for prefix in sorted(unowned)),
        ]

    def _object_removals(self) -> list[Write]:
        unused = [group for group in self._groups if not self._users.get(group)]
        # Groups first: one that loses its last member would go without being asked.
        strays = [stray.id for stray in self._strays if isinstance(stray, RemoveObject)]
        return [RemoveObject(id_) for id_ in sorted(unused) + sorted(strays)]

    # --- names and numbers -----------------------------------------------------------------------------------------------
    def _owner(self, prefix: Prefix) -> DestinationId | None:
        return next((claimant for claimant in self._claims.get(prefix, ()) if claimant in self._wanted), None)

    def _free_id(self, name: str, kind: int, used: Iterable[int]) -> int:
        leftovers = {stray.id for stray in self._strays if isinstance(stray, RemoveObject)}
        used = {*used, *leftovers, *self._taken}
        slot = _slot(name)
        for step in range(_PROBES):
            id_ = _BASE | kind | ((slot + step) % _SLOTS)
            if id_ not in used:
                return id_
        raise Bug(f'no number left for the next-hop object "{name}"')


def scaled(weights: list[int], weight_max: int = WEIGHT_MAX) -> list[int]:
    """Return *weights* as they are if the kernel takes them, else in proportion, none below 1."""
    largest = max(weights)
    if largest <= weight_max:
        return weights
    return [max(1, weight * weight_max // largest) for weight in weights]


def _is_behind(object_id: int) -> bool:
    """Return whether *object_id* is the number of a backup's group."""
    return object_id & ~(_SLOTS - 1) == _BASE | _GROUP_BIT | _BACKUP_BIT


def _slot(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % _SLOTS


def _claims(prefixes: Mapping[DestinationId, tuple[Prefix, ...]]) -> dict[Prefix, tuple[DestinationId, ...]]:
    """Return who means each prefix, the most specific destination first."""
    found: dict[Prefix, list[DestinationId]] = {}
    for destination in sorted(prefixes, key=_specific_first()):
        for prefix in prefixes[destination]:
            found.setdefault(prefix, []).append(destination)
    return {prefix: tuple(claimants) for prefix, claimants in found.items()}


def _specific_first() -> Callable[[DestinationId], tuple[int, DestinationId]]:
    return lambda destination: (-len(lookup_order(destination)), destination)


def _rivals(claims: Mapping[Prefix, tuple[DestinationId, ...]]) -> dict[DestinationId, set[DestinationId]]:
    found: dict[DestinationId, set[DestinationId]] = {}
    for claimants in claims.values():
        if len(claimants) > 1:
            for claimant in claimants:
                found.setdefault(claimant, set()).update(claimants)
    return found
