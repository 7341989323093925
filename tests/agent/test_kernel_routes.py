"""Which writes, in which order, and what after a refusal: against a small kernel, in thousands of situations."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.errors import Bug
from erfs.ids import DestinationId
from erfs.messages import Member
from erfs_agent.drivers.kernel_objects import (
    BLACKHOLE,
    GroupMembers,
    LinkState,
    NextHopObject,
    Prefix,
    PutGroup,
    PutHop,
    RemoveObject,
    RemoveRoute,
)
from erfs_agent.drivers.kernel_routes import KernelRoutes, PortNews, Reaction, reaction, scaled

from .kernel_model import FOREIGN, MANY, STAMP, Kernel, agent_of, members, settle, wanted_of

A, B = DestinationId("@a"), DestinationId("@b")
PORT_SETS = st.lists(st.integers(0, 2), unique=True, max_size=3).map(lambda ports: members(*ports))


def kernel(ports: int = 3) -> Kernel:
    return Kernel({100 + index: True for index in range(ports)})


def started(*, numbered: bool = False) -> tuple[KernelRoutes, Kernel]:
    """An agent whose two classes are in the kernel."""
    plane = kernel()
    core = agent_of(plane, numbered=numbered)
    core.want(wanted_of(a=members(0, 1), b=members(1, 2)), ())
    assert settle(core, plane) == ""
    plane.log.clear()
    return core, plane


def kinds(plane: Kernel) -> list[str]:
    return [type(write).__name__ for write in plane.log]


def test_objects_come_first_then_groups_then_routes() -> None:
    plane = kernel()
    core = agent_of(plane)
    core.want(wanted_of(a=members(0, 1)), ())

    assert settle(core, plane) == ""

    assert kinds(plane) == ["PutHop"] * 4 + ["PutGroup"] + ["PutRoute"] * 2
    assert plane.served("10.1.0.0/24") == plane.served("fd01::/64") == (100, 101)


def test_a_change_of_members_is_one_group_replacement_however_many_prefixes() -> None:
    core, plane = started()

    core.want(wanted_of(b=members(2)), ())

    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutGroup"]
    assert plane.served("10.2.0.1/32") == plane.served("10.2.0.2/32") == (102,)


def many(**parts: tuple[Member, ...]) -> dict[DestinationId, tuple[Member, ...]]:
    """Return routes for groups of classes: ``cde=members(0)``."""
    return {DestinationId(f"@{name}"): found for names, found in parts.items() for name in names}


def sharing() -> tuple[KernelRoutes, Kernel]:
    """An agent whose ten classes share one group."""
    plane = kernel()
    core = agent_of(plane)
    core.want(many(**{MANY: members(0, 1)}), ())
    assert settle(core, plane) == ""
    assert len(plane.groups) == 1
    plane.log.clear()
    return core, plane


def test_destinations_that_want_the_same_share_a_group_and_flip_as_one() -> None:
    core, plane = sharing()

    core.want(many(**{MANY: members(2)}), ())

    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutGroup"]


def test_a_few_that_change_are_moved_and_the_rest_is_not_touched() -> None:
    core, plane = sharing()

    core.want(many(cd=members(2)), ())

    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutGroup", "PutRoute", "PutRoute"]
    assert plane.served("10.50.0.0/24") == (102,)
    assert plane.served("10.59.0.0/24") == (100, 101)


def test_most_that_change_flip_their_group_after_the_few_others_have_left_it() -> None:
    core, plane = sharing()

    core.want(many(efghijkl=members(2)), ())

    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutGroup", "PutRoute", "PutRoute", "PutGroup"]
    first, *_, last = plane.log
    assert isinstance(first, PutGroup)
    assert isinstance(last, PutGroup)
    assert (first.is_new, last.is_new) == (True, False)


def test_those_that_come_back_join_the_others_and_their_group_goes() -> None:
    core, plane = sharing()
    core.want(many(cd=members(1)), ())
    assert settle(core, plane) == ""
    plane.log.clear()

    core.want(many(cd=members(0, 1)), ())

    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutRoute", "PutRoute", "RemoveObject"]
    assert len(plane.groups) == 1


SITUATION = st.dictionaries(st.sampled_from(MANY), PORT_SETS, max_size=10)


@given(st.lists(SITUATION, min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_no_route_ever_leads_where_neither_before_nor_after_wanted_it(situations: list[dict[str, object]]) -> None:
    """Write by write: regrouping must not send a bystander's packets by a group that is being turned into something else."""
    plane = kernel()
    core = agent_of(plane)
    for situation in situations:
        before = plane.contents()
        core.want(many(**situation), ())  # type: ignore[arg-type]
        seen: list[dict[Prefix, GroupMembers | None]] = []
        while writes := core.writes():
            for write in writes:
                assert plane.write(write) == 0
                core.answered(write)
                seen.append(plane.contents())
        after = plane.contents()
        for contents in seen:
            assert contents.keys() >= before.keys()
            for prefix, content in contents.items():
                assert content in (before.get(prefix, after[prefix]), after[prefix])
    assert {group for _, group in plane.routes.values()} == set(plane.groups)


def test_what_the_kernel_has_pruned_by_itself_is_not_written() -> None:
    core, plane = started()

    assert core.link_changed(plane.set_carrier(101, is_up=False)) == PortNews("e1", oper_up=False)
    core.want(wanted_of(a=members(0), b=members(2)), ())

    assert settle(core, plane) == ""
    assert plane.log == []
    assert plane.served("10.1.0.0/24") == (100,)


def test_a_port_that_is_down_before_the_kernel_flushed_it_is_taken_out() -> None:
    """Carrier is lost at once, the deletion of the objects may come a batch later; a message between shows the one alone."""
    core, plane = started()

    core.link_changed(LinkState(101, "swp1", is_up=False, is_flushed=False))

    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutGroup", "PutGroup"]
    core.want(wanted_of(a=members(0), b=members(2)), ())
    assert core.writes() == []
    core.link_changed(plane.set_carrier(101, is_up=False))
    assert settle(core, plane) == ""


def test_after_a_double_failure_group_and_routes_are_made_again_with_the_member_that_drops() -> None:
    core, plane = started()
    core.link_changed(plane.set_carrier(100, is_up=False))
    core.want(wanted_of(a=members(1)), ())
    core.link_changed(plane.set_carrier(101, is_up=False))
    assert plane.served("10.1.0.0/24") is None
    core.want(wanted_of(a=(), b=members(2)), ())

    assert settle(core, plane) == ""

    assert kinds(plane) == ["PutGroup", "PutRoute", "PutRoute"]
    assert plane.served("10.1.0.0/24") == ()
    assert core.routes() == wanted_of(a=(), b=members(2))


def test_on_return_of_the_carrier_the_object_is_made_and_groups_wait_for_the_agent() -> None:
    core, plane = started()
    core.link_changed(plane.set_carrier(101, is_up=False))
    core.want(wanted_of(a=members(0), b=members(2)), ())
    assert settle(core, plane) == ""

    assert core.link_changed(plane.set_carrier(101, is_up=True)) == PortNews("e1", oper_up=True)
    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutHop"]

    core.want(wanted_of(a=members(0, 1), b=members(1, 2)), ())
    assert settle(core, plane) == ""
    assert kinds(plane) == ["PutHop", "PutGroup", "PutGroup"]


def test_an_agent_that_does_not_protect_gets_its_members_back_with_the_carrier() -> None:
    core, plane = started()
    core.link_changed(plane.set_carrier(100, is_up=False))
    core.link_changed(plane.set_carrier(101, is_up=False))
    assert settle(core, plane) == ""
    assert plane.served("10.1.0.0/24") == ()

    core.link_changed(plane.set_carrier(100, is_up=True))
    core.link_changed(plane.set_carrier(101, is_up=True))

    assert settle(core, plane) == ""
    assert plane.served("10.1.0.0/24") == (100, 101)


def test_a_member_that_died_unheard_is_left_out_after_the_refusal() -> None:
    """The event waits in the socket while a change goes out: the kernel refuses the group, which is worked out anew."""
    core, plane = started()
    plane.set_carrier(101, is_up=False)
    core.want(wanted_of(a=members(1, 2), b=members(1, 0)), ())

    assert settle(core, plane) == ""

    assert plane.served("10.1.0.0/24") == (102,)
    assert plane.served("10.2.0.1/32") == (100,)
    assert core.ports() == {"e0": True, "e1": False, "e2": True}


def test_a_restarted_agent_finds_everything_and_writes_nothing() -> None:
    core, plane = started()

    again = agent_of(plane)
    assert again.routes() == core.routes() == wanted_of(a=members(0, 1), b=members(1, 2))
    again.want(again.routes(), ())

    assert settle(again, plane) == ""
    assert plane.log == []


def test_numbers_do_not_depend_on_the_order_in_which_routes_came() -> None:
    planes = []
    for order in (("a", "b"), ("b", "a")):
        plane = kernel()
        core = agent_of(plane)
        for name in order:
            core.want(wanted_of(**{name: members(0, 1)}), ())
            settle(core, plane)
        planes.append(plane)

    assert planes[0].state().objects == tuple(sorted(planes[1].state().objects, key=planes[0].state().objects.index))


def test_a_restarted_agent_removes_what_nobody_wants_once_it_knows_what_is_wanted() -> None:
    _, plane = started()
    again = agent_of(plane)
    assert settle(again, plane) == ""
    assert plane.log == []

    again.want(wanted_of(a=members(0, 1)), (B,))

    assert settle(again, plane) == ""
    assert kinds(plane) == ["RemoveRoute", "RemoveRoute", "RemoveObject"]
    assert plane.served("10.2.0.1/32") is None
    assert plane.served("10.1.0.0/24") == (100, 101)


def test_a_destination_that_is_half_there_counts_as_not_there_and_what_is_right_of_it_stays() -> None:
    _, plane = started()
    del plane.routes[next(key for key in plane.routes if str(key[0]) == "fd01::/64")]

    again = agent_of(plane)
    assert again.routes() == wanted_of(b=members(1, 2))
    # As long as nobody has said what is wanted, what is half there serves better than nothing.
    assert settle(again, plane) == ""
    assert plane.log == []
    again.want(wanted_of(a=members(0, 1)), ())

    assert settle(again, plane) == ""
    assert kinds(plane) == ["PutRoute"]


def test_a_group_of_ours_with_a_member_nobody_knows_is_written_anew_before_the_member_goes() -> None:
    _, plane = started()
    stray = NextHopObject(0xE5000007, STAMP.protocol, 102, b"\xfe\x80" + bytes(13) + b"\x99")
    plane.hops[stray.id] = stray
    group = next(found for found in plane.groups.values() if len(found.members) == 2)
    plane.groups[group.id] = NextHopObject(group.id, STAMP.protocol, members=((stray.id, 1),))

    again = agent_of(plane)
    again.want(wanted_of(a=members(0, 1), b=members(1, 2)), ())

    assert settle(again, plane) == ""
    assert kinds(plane) == ["PutGroup", "RemoveObject"]


def test_routes_of_an_earlier_metric_go_after_the_new_ones_are_in() -> None:
    _, plane = started()
    plane.routes = {(prefix, 20): found for (prefix, _), found in plane.routes.items()}

    again = agent_of(plane)
    again.want(wanted_of(a=members(0, 1), b=members(1, 2)), ())

    assert settle(again, plane) == ""
    assert kinds(plane) == ["PutRoute"] * 4 + ["RemoveRoute"] * 4
    assert {metric for _, metric in plane.routes} == {STAMP.metric}


def test_somebody_elses_route_of_the_same_metric_is_left_alone_and_told() -> None:
    plane = kernel()
    core = agent_of(plane)
    prefix = next(prefix for prefix in core._claims if str(prefix) == "10.1.0.0/24")
    plane.routes[prefix, STAMP.metric] = (FOREIGN, 0)
    core.want(wanted_of(a=members(0, 1), b=members(2)), ())

    assert settle(core, plane) == "10.1.0.0/24: somebody else has a route of metric 10"

    assert plane.routes[prefix, STAMP.metric] == (FOREIGN, 0)
    assert plane.served("fd01::/64") == (100, 101)
    assert plane.served("10.2.0.1/32") == (102,)
    del plane.routes[prefix, STAMP.metric]
    core.want(wanted_of(a=members(0, 1)), ())
    assert settle(core, plane) == ""
    assert plane.served("10.1.0.0/24") == (100, 101)


def test_somebody_elses_object_with_our_number_makes_us_take_the_next() -> None:
    _, plane = started()
    ours = sorted(plane.groups)
    plane = kernel()
    for id_ in ours:
        plane.groups[id_] = NextHopObject(id_, FOREIGN, members=((1, 1),))
    plane.hops[1] = NextHopObject(1, FOREIGN, 100)

    core = agent_of(plane)
    core.want(wanted_of(a=members(0, 1), b=members(1, 2)), ())

    assert settle(core, plane) == ""
    assert {write.id for write in plane.log if isinstance(write, PutGroup)} == {id_ + 1 for id_ in ours}
    assert agent_of(plane).routes() == core.routes()


def test_one_port_whose_gateway_the_kernel_will_not_have_costs_the_others_nothing() -> None:
    plane = kernel()
    core = agent_of(plane)
    refusals = 0

    def write(put: object) -> int:
        nonlocal refusals
        if isinstance(put, PutHop) and put.hop.port == "e1":
            refusals += 1
            return errno.EINVAL
        return Kernel.write(plane, put)  # type: ignore[arg-type]

    plane.write = write  # type: ignore[method-assign]
    core.want(wanted_of(a=members(0, 1)), ())

    assert settle(core, plane) == 'port "e1": EINVAL'
    assert plane.served("10.1.0.0/24") == (100,)
    assert refusals == 4
    core.want(wanted_of(a=members(1, 0)), ())
    assert settle(core, plane) == 'port "e1": EINVAL'
    assert refusals == 4

    del plane.write  # type: ignore[method-assign]
    core.unbar("e1")
    assert settle(core, plane) == ""
    assert plane.served("10.1.0.0/24") == (101, 100)


def test_a_destination_without_prefixes_is_told_and_the_others_are_served() -> None:
    plane = kernel()
    core = agent_of(plane)
    core.want({DestinationId("@nowhere"): members(0)} | wanted_of(a=members(0)), ())

    assert settle(core, plane) == 'the addressing has no prefix for "@nowhere"'
    assert plane.served("10.1.0.0/24") == (100,)


def test_the_most_specific_destination_has_a_prefix_that_two_claim() -> None:
    core, plane = started()
    core.want(wanted_of(b_h2=members(0)), ())
    assert settle(core, plane) == ""
    assert (plane.served("10.2.0.1/32"), plane.served("10.2.0.2/32")) == ((101, 102), (100,))
    assert agent_of(plane).routes() == wanted_of(a=members(0, 1), b=members(1, 2), b_h2=members(0))

    core.want({}, (DestinationId("@b/h2"),))
    assert settle(core, plane) == ""
    assert plane.served("10.2.0.2/32") == (101, 102)


def test_numbered_ports_have_a_group_for_each_family() -> None:
    core, plane = started(numbered=True)

    assert [group.members for group in plane.groups.values() if len(group.members) == 2] != []
    assert len(plane.groups) == 3
    assert plane.served("10.1.0.0/24") == plane.served("fd01::/64") == (100, 101)
    assert agent_of(plane, numbered=True).routes() == core.routes() == wanted_of(a=members(0, 1), b=members(1, 2))


def test_an_interface_made_anew_under_its_old_name_is_a_new_interface() -> None:
    core, plane = started()
    plane.set_carrier(101, is_up=False)
    del plane.up[101]
    plane.up[101 + 100] = True

    assert core.link_changed(LinkState(101, "swp1", is_up=False, is_flushed=True, is_gone=True)) is not None
    assert core.link_changed(LinkState(201, "swp1", is_up=True, is_flushed=False)) == PortNews("e1", oper_up=True)

    assert core.ifindex("e1") == 201
    assert settle(core, plane) == ""
    assert plane.served("10.1.0.0/24") == (100, 201)


def test_weights_beyond_what_the_kernel_takes_keep_their_proportion() -> None:
    assert scaled([1, 256]) == [1, 256]
    assert scaled([100, 1000, 1]) == [25, 256, 1]


def test_members_over_one_port_are_one_member_with_their_weights_added() -> None:
    plane = kernel()
    core = agent_of(plane)
    core.want({A: (Member(port="e0", weight=2), Member(port="e1"), Member(port="e0", weight=3))}, ())

    assert settle(core, plane) == ""
    assert core.routes() == {A: (Member(port="e0", weight=5), Member(port="e1", weight=1))}


@pytest.mark.parametrize(
    ("write", "error", "expected"),
    [
        (PutGroup(1, ((2, 1),), is_new=False), errno.ENOENT, Reaction.READ_BACK),
        (PutGroup(1, ((2, 1),), is_new=False), errno.EINVAL, Reaction.READ_BACK),
        (PutHop(1, BLACKHOLE, 0), errno.EEXIST, Reaction.READ_BACK),
        (RemoveObject(1), errno.ENOENT, Reaction.DONE),
        (RemoveObject(1), errno.EPERM, Reaction.GIVE_UP),
        (PutGroup(1, ((2, 1),), is_new=True), errno.ENOMEM, Reaction.GIVE_UP),
    ],
)
def test_what_a_refusal_means(write: PutGroup | PutHop | RemoveObject, error: int, expected: Reaction) -> None:
    assert reaction(write, error) is expected


def test_without_the_right_to_write_the_reason_is_told() -> None:
    plane = kernel()
    core = agent_of(plane)
    plane.write = lambda _: errno.EPERM  # type: ignore[method-assign]
    core.want(wanted_of(a=members(0)), ())

    assert "EPERM" in settle(core, plane)


NAMES = st.sampled_from(["a", "a_h1", "b", "b_h2", "all"])
STEPS = st.one_of(
    st.tuples(st.just("want"), st.dictionaries(NAMES, PORT_SETS, max_size=5), st.sets(NAMES, max_size=2)),
    st.tuples(st.just("carrier"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("unheard"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("meddle"), st.integers(0, 30), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


@given(st.lists(STEPS, max_size=14), st.booleans())
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_kernel_ends_with_what_is_wanted_over_the_ports_that_are_up(
    steps: list[tuple[str, object, object]], numbered: bool
) -> None:
    plane = kernel()
    core = agent_of(plane, numbered=numbered)
    wanted: dict[DestinationId, tuple[Member, ...]] = {}
    for kind, first, second in steps:
        match kind, first, second:
            case "want", dict(), set():
                removed = wanted_of(**dict.fromkeys(second - first.keys(), ()))
                wanted = {name: found for name, found in wanted.items() if name not in removed} | wanted_of(**first)
                core.want(wanted_of(**first), tuple(sorted(removed)))
            case "carrier", int(port), bool(is_up):
                core.link_changed(plane.set_carrier(100 + port, is_up))
            case "unheard", int(port), bool(is_up):
                plane.set_carrier(100 + port, is_up)
            case "meddle", int(index), None:
                ids = [*plane.hops, *plane.groups]
                if ids:
                    plane.remove(ids[index % len(ids)])
            case _:
                core = agent_of(plane, numbered=numbered)
                core.want(wanted, tuple(sorted(core.routes().keys() - wanted.keys())))
        assert settle(core, plane) == ""
    core.read_back(plane.state())
    core.want(wanted, ())
    assert settle(core, plane) == ""

    up = {f"e{index}" for index in range(3) if plane.up[100 + index]}
    expected = {name: tuple(member for member in found if member.port in up) for name, found in wanted.items()}
    if expected.get(DestinationId("@b/h2"), ()) == expected.get(B):
        # Its class explains it.
        expected.pop(DestinationId("@b/h2"), None)
    assert core.routes() == dict(sorted(expected.items()))
    assert agent_of(plane, numbered=numbered).routes() == dict(sorted(expected.items()))
    assert {group for _, group in plane.routes.values()} == set(plane.groups)
    assert core.writes() == []


def test_removals_are_asked_for_only_when_everything_else_is_in() -> None:
    core, plane = started()
    core.want(wanted_of(a=members(2)), (B,))

    first = core.writes()

    assert [type(write) for write in first] == [PutGroup]
    for write in first:
        assert plane.write(write) == 0
        core.answered(write)
    second = core.writes()
    assert [type(write) for write in second] == [RemoveRoute, RemoveRoute]
    for write in second:
        assert plane.write(write) == 0
        core.answered(write)
    assert core.writes(is_urgent=True) == []
    assert [type(write) for write in core.writes()] == [RemoveObject]


def test_what_is_to_be_kept_resolved_are_the_gateways_of_the_ports_that_are_up() -> None:
    core, plane = started(numbered=True)
    core.link_changed(plane.set_carrier(101, is_up=False))

    assert core.devices() == {"e0": "swp0", "e1": "swp1", "e2": "swp2"}
    assert core.neighbours("e1") == []
    first, second = core.neighbours("e0")
    assert (first, second) == ((100, bytes([10, 9, 0, 1])), (100, b"\xfe\x80" + bytes(14)))
    assert [ifindex for ifindex, _ in core.neighbours()] == [100, 100, 102, 102]
    assert (core.port_at(102), core.port_at(7)) == ("e2", None)


def test_ours_are_the_objects_that_the_kernel_should_hold() -> None:
    core, plane = started()
    assert all(core.is_ours(id_) for id_ in (*plane.hops, *plane.groups))
    assert not core.is_ours(7)


def test_interfaces_that_are_no_ports_and_ends_of_older_ones_are_no_news() -> None:
    core, plane = started()

    assert core.link_changed(LinkState(1, "eth0", is_up=False, is_flushed=True)) is None
    assert core.link_changed(LinkState(55, "swp1", is_up=False, is_flushed=True, is_gone=True)) is None
    assert core.ports()["e1"]
    assert plane.served("10.1.0.0/24") == (100, 101)


def test_of_two_equal_objects_of_ours_one_is_left_over() -> None:
    _, plane = started()
    hop = next(hop for hop in plane.hops.values() if hop.ifindex == 101)
    twin = NextHopObject(hop.id + 1, hop.protocol, hop.ifindex, hop.gateway)
    plane.hops[twin.id] = twin

    again = agent_of(plane)
    again.want(wanted_of(a=members(0, 1), b=members(1, 2)), ())

    assert settle(again, plane) == ""
    assert plane.log == [RemoveObject(twin.id)]


def test_a_table_in_which_no_number_is_left_is_a_bug_and_no_endless_search() -> None:
    plane = kernel()
    core = agent_of(plane)
    core.want(wanted_of(a=members(0)), ())
    first = core.writes()[0]
    assert isinstance(first, PutHop)
    for step in range(64):
        plane.hops[first.id + step] = NextHopObject(first.id + step, FOREIGN, 999)
    core.read_back(plane.state())

    with pytest.raises(Bug, match="no number left"):
        core.writes()
