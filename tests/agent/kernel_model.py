"""A kernel of next-hop objects small enough to read, with the refusals of the real one.

Rule 1: tests/kernel holds the driver against the real kernel; this one is for what needs thousands of situations.
"""

import errno
from dataclasses import dataclass, field

from erfs.addressing import Addressing, NodeAddressing
from erfs.ids import DestinationId
from erfs.messages import Member
from erfs_agent.drivers.kernel_objects import (
    BLACKHOLE,
    TABLE_MAIN,
    GroupMembers,
    KernelState,
    LinkState,
    NextHopObject,
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
)
from erfs_agent.drivers.kernel_routes import KernelRoutes, Reaction

STAMP = Stamp(protocol=229, metric=10)
FOREIGN = 11
# Classes with one prefix each.
MANY = "cdefghijkl"


def addressing(ports: int = 3, *, numbered: bool = False) -> tuple[Addressing, NodeAddressing]:
    """Two classes, an endpoint with a prefix of its own, one that shares a prefix with its class, and MANY."""
    node = NodeAddressing.model_validate(
        {
            "is_forwarding": True,
            "ports": {
                f"e{index}": {
                    "device": f"swp{index}",
                    "next_hops": [f"fe80::{index}", *([f"10.9.{index}.1"] if numbered else [])],
                }
                for index in range(ports)
            },
        }
    )
    destinations = {
        "@a": ["10.1.0.0/24", "fd01::/64"],
        "@a/h1": ["10.1.0.1/32", "fd01::1/128"],
        "@b": ["10.2.0.1/32", "10.2.0.2/32"],
        "@b/h2": ["10.2.0.2/32"],
        "*": ["10.0.0.0/8", "fd00::/8"],
        **{f"@{name}": [f"10.{place}.0.0/24"] for place, name in enumerate(MANY, start=50)},
    }
    return Addressing.model_validate({"destinations": destinations, "nodes": {"leaf": node}}), node


def members(*ports: int) -> tuple[Member, ...]:
    return tuple(Member(port=f"e{port}") for port in ports)


@dataclass
class Kernel:
    """Carriers, objects, groups and routes; *log* has every write that was done."""

    up: dict[int, bool]
    hops: dict[int, NextHopObject] = field(default_factory=dict)
    groups: dict[int, NextHopObject] = field(default_factory=dict)
    routes: dict[tuple[Prefix, int], tuple[int, int]] = field(default_factory=dict)
    """(prefix, metric) -> (protocol, group)"""
    behind: dict[Place, int] = field(default_factory=dict)
    """Our backups, and what is in the ports' tables; 0: look on in the next table."""
    rules: set[Rule] = field(default_factory=set)
    log: list[Write] = field(default_factory=list)

    def link(self, ifindex: int) -> LinkState:
        up = self.up[ifindex]
        return LinkState(ifindex, f"swp{ifindex - 100}", is_up=up, is_flushed=not up)

    def state(self) -> KernelState:
        return KernelState(
            tuple(self.link(ifindex) for ifindex in self.up),
            (*self.hops.values(), *self.groups.values()),
            tuple(
                RouteObject(prefix, metric, group)
                for (prefix, metric), (protocol, group) in self.routes.items()
                if protocol == STAMP.protocol
            )
            + tuple(
                RouteObject(place.prefix, place.metric, group, place.table) for place, group in self.behind.items()
            ),
            tuple(sorted(self.rules)),
        )

    def set_carrier(self, ifindex: int, is_up: bool) -> LinkState:
        self.up[ifindex] = is_up
        if not is_up:
            for id_ in [id_ for id_, hop in self.hops.items() if hop.ifindex == ifindex]:
                self.remove(id_)
        return self.link(ifindex)

    def remove(self, id_: int) -> None:
        self.hops.pop(id_, None)
        self.groups.pop(id_, None)
        for group in list(self.groups.values()):
            left = tuple(member for member in group.members if member[0] != id_)
            if left:
                self.groups[group.id] = NextHopObject(group.id, group.protocol, members=left)
            else:
                del self.groups[group.id]
        gone = [key for key, (_, group) in self.routes.items() if group and group not in self.groups]
        for key in gone:
            del self.routes[key]
        self.behind = {place: group for place, group in self.behind.items() if not group or group in self.groups}

    def write(self, write: Write) -> int:
        error = self._refusal(write)
        if not error:
            self.log.append(write)
            self._do(write)
        return error

    def _refusal(self, write: Write) -> int:
        match write:
            case PutHop():
                if write.id in self.hops or write.id in self.groups:
                    return errno.EEXIST
                return errno.ENETDOWN if write.hop != BLACKHOLE and not self.up[write.ifindex] else 0
            case PutGroup():
                if write.is_new and (write.id in self.hops or write.id in self.groups):
                    return errno.EEXIST
                if not write.is_new and write.id not in self.groups:
                    return errno.ENOENT
                drops = [id_ for id_, _ in write.members if id_ in self.hops and self.hops[id_].is_blackhole]
                if drops and len(write.members) > 1:
                    return errno.EINVAL
                return 0 if all(id_ in self.hops for id_, _ in write.members) else errno.EINVAL
            case PutRoute():
                if write.group not in self.groups:
                    return errno.EINVAL
                return errno.EEXIST if write.is_new and (write.prefix, STAMP.metric) in self.routes else 0
            case RemoveRoute():
                ours = self.routes.get((write.prefix, write.metric), (0, 0))[0] == STAMP.protocol
                return 0 if ours else errno.ESRCH
            case RemoveObject():
                return 0 if write.id in self.hops or write.id in self.groups else errno.ENOENT
            case PutBackup():
                if write.group and write.group not in self.groups:
                    return errno.EINVAL
                return errno.EEXIST if write.is_new and write.place in self.behind else 0
            case RemoveBackup():
                return 0 if write.place in self.behind else errno.ESRCH
            case PutRule():
                return errno.EEXIST if write.rule in self.rules else 0
            case RemoveRule():
                return 0 if write.rule in self.rules else errno.ENOENT

    def _do(self, write: Write) -> None:
        match write:
            case PutHop():
                is_blackhole = write.hop == BLACKHOLE
                self.hops[write.id] = NextHopObject(
                    write.id, STAMP.protocol, write.ifindex, write.hop.gateway, is_blackhole=is_blackhole
                )
            case PutGroup():
                held: GroupMembers = write.members
                self.groups[write.id] = NextHopObject(write.id, STAMP.protocol, members=held)
            case PutRoute():
                assert self.routes.get((write.prefix, STAMP.metric), (STAMP.protocol, 0))[0] == STAMP.protocol, (
                    "took somebody else's route away"
                )
                self.routes[write.prefix, STAMP.metric] = (STAMP.protocol, write.group)
            case RemoveRoute():
                del self.routes[write.prefix, write.metric]
            case RemoveObject():
                self.remove(write.id)
            case PutBackup():
                self.behind[write.place] = write.group
            case RemoveBackup():
                del self.behind[write.place]
            case PutRule():
                self.rules.add(write.rule)
            case RemoveRule():
                self.rules.remove(write.rule)

    def contents(self) -> dict[Prefix, GroupMembers | None]:
        """Return what each of our routes' groups holds."""
        found: dict[Prefix, GroupMembers | None] = {}
        for (prefix, _), (protocol, group) in self.routes.items():
            if protocol == STAMP.protocol:
                found[prefix] = self.groups[group].members if group in self.groups else None
        return found

    def meaning(self) -> tuple[object, ...]:
        """Return all that is ours, by interfaces instead of numbers; groups that nothing uses would be left over."""

        def held(group: int) -> tuple[tuple[int, int], ...]:
            members = self.groups[group].members if group else ()
            return tuple(sorted((self.hops[id_].ifindex, weight) for id_, weight in members))

        used = {group for _, group in self.routes.values()} | set(self.behind.values())
        return (
            {prefix: held(group) for (prefix, _), (_, group) in self.routes.items()},
            {place: held(group) for place, group in self.behind.items()},
            self.rules,
            self.groups.keys() - used,
        )

    # --- what packets see ------------------------------------------------------------------------------------------------
    def served(self, text: str) -> tuple[int, ...] | None:
        """Return the interfaces by which the route of this prefix sends, () if it drops, None if there is none."""
        behind = [(place.prefix, group) for place, group in self.behind.items() if place.table == TABLE_MAIN]
        for prefix, group in [*((prefix, group) for (prefix, _), (_, group) in self.routes.items()), *behind]:
            if str(prefix) == text and group:
                return tuple(self.hops[id_].ifindex for id_, _ in self.groups[group].members if self.hops[id_].ifindex)
        return None


def settle(core: KernelRoutes, kernel: Kernel, rounds_max: int = 12) -> str:
    """Do what the driver does: ask until there is nothing left to ask; return why it gave up, "" if it did not."""
    read_backs = 0
    for _ in range(rounds_max):
        writes = core.writes()
        if not writes:
            return "; ".join(core.problems())
        reactions = []
        for write in writes:
            error = kernel.write(write)
            if error:
                text = errno.errorcode[error]
                reactions.append((core.refused(write, error, text, is_last=read_backs == 3), f"{write}: {text}"))
            else:
                core.answered(write)
        for reaction, text in reactions:
            if reaction is Reaction.GIVE_UP:
                return text
        if any(reaction is Reaction.READ_BACK for reaction, _ in reactions):
            read_backs += 1
            core.read_back(kernel.state())
    raise AssertionError("too many rounds")


def agent_of(kernel: Kernel, *, numbered: bool = False) -> KernelRoutes:
    """Return the books of an agent that starts on this kernel."""
    core = KernelRoutes(*addressing(len(kernel.up), numbered=numbered), STAMP)
    core.read_back(kernel.state())
    core.adopt()
    return core


def wanted_of(**routes: tuple[Member, ...]) -> dict[DestinationId, tuple[Member, ...]]:
    """Return routes by short names: ``a`` for "@a", ``a_h1`` for "@a/h1", ``all`` for "*"."""
    names = {"all": "*"}
    return {DestinationId(names.get(name, "@" + name.replace("_", "/"))): found for name, found in routes.items()}
