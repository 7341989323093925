"""What stands in for a lost link: what the agent asks for as facts come and go, and what the kernel's tables then are."""

from ipaddress import ip_network
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import CONTROLLER, Backup, Group, Installed, Member, PortBinding, Program, Route
from erfs_agent.drivers.kernel_backups import cut, layout, table_of
from erfs_agent.drivers.kernel_objects import IPV4, GroupMembers, Prefix, prefix_of
from erfs_agent.forwarding import NO_BACKUPS, Backups, CompiledProgram, FactSet, Forwarder, forwarding
from erfs_agent.writes import WriteRoutes, Writes

from .kernel_model import Kernel, agent_of, members, settle, wanted_of

NO_FACTS, NO_PORTS = FactSet(), frozenset[str]()
EDGE1, EDGE2 = DestinationId("@edge1"), DestinationId("@edge2")
INSTALLED = Installed(epoch=1, generation=1, digest="")


def named(*ports: str) -> tuple[Member, ...]:
    return tuple(Member(port=port) for port in ports)


def program(backups: tuple[Backup, ...] | None = (Backup(ports=("e2", "e3"), destinations=(EDGE1,)),)) -> Program:
    """An aggregation switch: edges 1 to 3 below it at e1 to e3, edge 1 by its link alone."""
    return Program(
        sender=CONTROLLER,
        node=NodeId("agg"),
        generation=1,
        digest="",
        ports=tuple(
            PortBinding(port=f"e{n}", link=LinkId(f"agg:e{n}|edge{n}:1"), far_end=NodeId(f"edge{n}")) for n in (1, 2, 3)
        ),
        groups=(Group(id=0, members=named("e1")), Group(id=1, members=named("e2"))),
        routes=(Route(destination=EDGE1, group=0), Route(destination=EDGE2, group=1)),
        backups=backups,
    )


# --- what is asked for ----------------------------------------------------------------------------------------------------
def test_without_failures_the_backups_are_the_programs_and_every_port_to_a_switch_is_named() -> None:
    assert forwarding(program(), NO_FACTS, NO_PORTS, {}).backups == Backups(
        {EDGE1: named("e2", "e3")}, {"e1": ("e1",), "e2": ("e2",), "e3": ("e3",)}
    )


def test_where_policy_forbids_it_there_are_none() -> None:
    assert forwarding(program(None), NO_FACTS, NO_PORTS, {}).backups == NO_BACKUPS
    assert forwarding(program(), NO_FACTS, NO_PORTS, {}, is_protecting=False).backups == NO_BACKUPS


def test_the_lost_port_empties_the_route_is_told_upstream_and_the_backup_stays() -> None:
    found = forwarding(program(), NO_FACTS, frozenset({"e1"}), {})

    assert found.routes[EDGE1] == ()
    assert found.cannot_reach == {EDGE1}
    assert found.backups.routes == {EDGE1: named("e2", "e3")}


def test_a_neighbour_that_cannot_reach_it_either_is_no_backup() -> None:
    """When the far switch itself is dead this ends the circling: all neighbours say so."""
    one = forwarding(program(), NO_FACTS, frozenset({"e1"}), {NodeId("edge2"): frozenset({EDGE1})})
    both = forwarding(
        program(), NO_FACTS, frozenset({"e1"}), dict.fromkeys(map(NodeId, ("edge2", "edge3")), frozenset({EDGE1}))
    )

    assert one.backups.routes == {EDGE1: named("e3")}
    assert both.backups.routes == {}
    assert both.routes[EDGE1] == ()


def test_a_port_that_is_down_or_that_its_far_end_lost_is_no_backup() -> None:
    lost = NO_FACTS.with_fact(LinkId("agg:e3|edge3:1"), NodeId("edge3"), 1, True, NodeId("agg"))

    assert forwarding(program(), NO_FACTS, frozenset({"e2"}), {}).backups.routes == {EDGE1: named("e3")}
    assert forwarding(program(), lost, NO_PORTS, {}).backups.routes == {EDGE1: named("e2")}


def test_the_forwarder_says_the_same_step_by_step() -> None:
    forwarder = Forwarder(CompiledProgram(program()))
    words = {NodeId("edge2"): frozenset({EDGE1})}
    for down in (NO_PORTS, frozenset({"e1"}), frozenset({"e1", "e3"}), frozenset({"e3"}), NO_PORTS):
        assert forwarder.update(NO_FACTS, down, words) == forwarding(program(), NO_FACTS, down, words)


def test_who_may_say_that_it_cannot_reach_includes_the_backups_far_ends() -> None:
    alone = program(backups=(Backup(ports=("e3",), destinations=(EDGE1,)),))

    assert CompiledProgram(program(None)).transit_far_ends == {"edge1", "edge2"}
    assert CompiledProgram(alone).transit_far_ends == {"edge1", "edge2", "edge3"}


def test_backups_are_said_whole_when_they_change_and_again_after_a_refusal() -> None:
    writes = Writes({EDGE1: named("e1")})
    routes, backups = {EDGE1: named("e1")}, Backups({EDGE1: named("e2")}, {})

    assert writes.request(routes, (), INSTALLED) is None
    assert writes.request(routes, (), INSTALLED, backups) == WriteRoutes(1, {}, (), backups)
    assert writes.request(routes, (), INSTALLED, backups) is None
    writes.refused(1, 0)
    assert not writes.is_confirmed(1)
    assert writes.request(routes, (), INSTALLED, backups) == WriteRoutes(2, {}, (), backups)
    writes.confirmed(2)
    assert writes.is_confirmed(2)
    assert writes.request(routes, (), INSTALLED) == WriteRoutes(3, {}, (), NO_BACKUPS)


# --- the table of what came by a port -------------------------------------------------------------------------------------
FABRIC = Prefix(IPV4, bytes([10, 0, 0, 0]), 8)


def ids(members: tuple[Member, ...], family: int) -> GroupMembers | None:
    return tuple((int(member.port[1:]), member.weight) for member in members) or None


def lookup(table: dict[Prefix, GroupMembers], prefix: Prefix) -> GroupMembers:
    for length in range(prefix.length, -1, -1):
        if cut(prefix, length) in table:
            return table[cut(prefix, length)]
    return ()


@given(st.integers(0, 10_000))
@settings(max_examples=400, deadline=None)
def test_a_ports_table_says_of_every_destination_what_it_should_and_of_others_nothing(seed: int) -> None:
    random = Random(seed)
    owned: dict[Prefix, tuple[Member, ...]] = {}
    usual = named(*(f"e{n}" for n in range(1, 4)))
    for _ in range(random.randrange(40)):
        length = random.choice([16, 24, 24, 24, 32])
        address = bytes(
            [random.choice([10, 10, 10, 11]), random.randrange(3), random.randrange(3), random.randrange(2)]
        )
        own = named(*random.sample(["e1", "e2", "e3", "e4"], random.randrange(4)))
        owned[cut(Prefix(IPV4, address, 32), length)] = usual if random.random() < 0.6 else own
    banned = random.sample(["e1", "e2"], random.randrange(1, 3))
    summary = random.choice([(), (FABRIC,), (Prefix(IPV4, bytes(4), 0),)])

    table = table_of(layout(owned, summary), banned, ids)

    for prefix, wanted in owned.items():
        others = tuple(member for member in wanted if member.port not in banned)
        expected = ids(others, IPV4) if others and len(others) < len(wanted) else None
        assert lookup(table, prefix) == (expected or ())
    assert lookup(table, Prefix(IPV4, bytes([12, 0, 0, 0]), 8)) == ()
    plain = table_of(layout(owned, ()), banned, ids)
    assert len(table) <= len(plain)


def test_one_route_and_the_exceptions_stand_for_the_rest_of_a_fabric() -> None:
    """An aggregation switch of k = 32: 496 classes by all cores, 16 below."""
    cores = named(*(f"e{n}" for n in range(1, 17)))
    prefixes = [prefix_of(ip_network((0x0A000000 + (n << 8), 24))) for n in range(512)]
    owned = {prefix: cores if n >= 16 else named(f"e{17 + n}") for n, prefix in enumerate(prefixes)}

    table = table_of(layout(owned, [FABRIC]), ["e1"], ids)

    assert len(table) == 17
    assert len(table_of(layout(owned, []), ["e1"], ids)) == 496
    assert table[FABRIC] == tuple((n, 1) for n in range(2, 17))
    assert table_of(layout(owned, [FABRIC]), ["e17"], ids) == {}


# --- against a small kernel ----------------------------------------------------------------------------------------------
A, B = DestinationId("@a"), DestinationId("@b")
PORT_SETS = st.lists(st.integers(0, 2), unique=True, max_size=3).map(lambda ports: members(*ports))
BACKUPS = st.dictionaries(st.sampled_from([A, B]), PORT_SETS.filter(bool), max_size=2)
STEP = st.one_of(
    st.tuples(
        st.just("want"),
        st.dictionaries(st.sampled_from([A, B]), PORT_SETS),
        st.none() | st.tuples(BACKUPS, st.booleans()),
    ),
    st.tuples(st.just("carrier"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


@given(st.lists(STEP, max_size=12))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_kernel_ends_with_what_is_wanted_and_with_nothing_else(
    steps: list[tuple[str, object, object]],
) -> None:
    kernel = Kernel({100 + port: True for port in range(3)})
    core = agent_of(kernel)
    wanted: dict[DestinationId, tuple[Member, ...]] = {}
    backups = NO_BACKUPS
    for kind, one, two in steps:
        if kind == "want":
            wanted |= one  # type: ignore[operator]
            if two is not None:
                routes, has_rules = two  # type: ignore[misc]
                backups = Backups(routes, {f"e{n}": (f"e{n}",) for n in range(3)} if has_rules else {})
        elif kind == "carrier":
            if kernel.up[100 + one] != two:  # type: ignore[operator]
                core.link_changed(kernel.set_carrier(100 + one, two))  # type: ignore[operator, arg-type]
        else:
            core = agent_of(kernel)
        if kind != "carrier":
            core.want(wanted, (), backups)
        assert settle(core, kernel) == ""
    core.want(wanted, (), backups)
    assert settle(core, kernel) == ""

    fresh = Kernel(dict(kernel.up))
    other = agent_of(fresh)
    other.want(wanted, (), backups)
    assert settle(other, fresh) == ""
    assert kernel.meaning() == fresh.meaning()


def test_a_backup_is_in_before_the_route_that_drops_goes_and_out_after_it_came() -> None:
    kernel = Kernel({100 + port: True for port in range(3)})
    core = agent_of(kernel)
    core.want(wanted_of(a=()), (), NO_BACKUPS)
    assert settle(core, kernel) == ""
    assert kernel.served("10.1.0.0/24") == ()
    kernel.log.clear()

    core.want({}, (), Backups({A: members(1)}, {}))
    assert settle(core, kernel) == ""
    assert [type(write).__name__ for write in kernel.log[:5]] == [
        "PutGroup",
        "PutBackup",
        "PutBackup",
        "RemoveRoute",
        "RemoveRoute",
    ]
    assert kernel.served("10.1.0.0/24") == (101,)


def test_a_change_of_routes_that_is_urgent_leaves_the_ports_tables_for_later() -> None:
    kernel = Kernel({100 + port: True for port in range(3)})
    core = agent_of(kernel)
    core.want(wanted_of(a=members(0, 1), b=members(1, 2)), (), Backups({}, {f"e{n}": (f"e{n}",) for n in range(3)}))
    assert settle(core, kernel) == ""

    core.want(wanted_of(a=members(1, 2)), ())
    urgent = core.writes(is_urgent=True, has_tables=False)

    assert [type(write).__name__ for write in urgent] == ["PutRoute", "PutRoute"]
    assert core.is_following_due
