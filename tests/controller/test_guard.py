"""A push that withdraws what the reports still allow is refused until an operator confirms it."""

import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import LinkId
from erfs.messages import Confirm, sealed
from erfs.ports import Mark
from erfs.units import MS, SECOND
from erfs_controller.core import FabricReloaded
from erfs_controller.drain import Use
from erfs_controller.guard import Guard
from erfs_controller.routes import Routes
from erfs_controller.timers import ControllerTimers


def without(fabric, links=(), nodes=()):  # type: ignore[no-untyped-def]
    """Return *fabric* as a file says that lost some lines."""
    return Fabric(
        [node for node in fabric.nodes.values() if node.id not in nodes],
        [
            link
            for link in fabric.links.values()
            if link.id not in links and not {link.a.node, link.b.node} & set(nodes)
        ],
        name=fabric.name,
    )


def confirm(generation, reason="leaf3 is gone for good"):  # type: ignore[no-untyped-def]
    return Confirm(sender="operator", generation=generation, reason=reason)


def uplinks(fabric, leaf):  # type: ignore[no-untyped-def]
    return [link.id for link in fabric.trunks if leaf in (link.a.node, link.b.node)]


def test_a_truncated_fabric_file_is_refused(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """The new file lacks leaf3 and all below it, but everybody still reports the links: nobody loses a route."""
    bench = kit.bench(leaf_spine)
    bench.lead()
    before = dict(bench.programs)
    said = bench.handle(FabricReloaded(without(leaf_spine, nodes={"leaf3", "leaf3-host0", "leaf3-host1"})))
    refusals = kit.marks(said, "push_refused")
    assert len(refusals) == 1
    assert refusals[0].fields["generation"] == 2
    assert refusals[0].fields["destinations"] == ["@leaf3"]
    assert set(refusals[0].fields["nodes"]) == {"leaf0", "leaf1", "leaf2", "spine0", "spine1"}
    assert refusals[0].fields["count"] == 5
    assert kit.pushed(said + bench.wait(60 * SECOND)) == []
    assert bench.programs == before


def test_a_file_that_lost_trunks_is_refused_and_a_sound_one_goes_on(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    said = bench.handle(FabricReloaded(without(leaf_spine, links=uplinks(leaf_spine, "leaf3"))))
    assert [mark.event for mark in kit.marks(said)] == ["routes_computed", "push_refused"]
    said = bench.handle(FabricReloaded(leaf_spine))
    assert kit.pushed(said) == []
    assert kit.marks(said)[-1].event == "restoration_finished"


def test_confirmation_releases_the_generation_it_names_and_no_other(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.handle(FabricReloaded(without(leaf_spine, nodes={"leaf3", "leaf3-host0", "leaf3-host1"})))

    assert bench.hear(confirm(7)) == [
        Mark("confirmation_ignored", {"generation": 7, "reason": "leaf3 is gone for good"})
    ]
    said = bench.hear(confirm(2))
    assert kit.marks(said)[0] == Mark("push_confirmed", {"generation": 2, "reason": "leaf3 is gone for good"})
    assert kit.marks(said, "generation_pushed")[0].fields["generation"] == 2
    assert kit.marks(said)[-1].event == "restoration_finished"
    assert all(route.destination != "@leaf3" for node in ("leaf0", "spine1") for route in bench.programs[node].routes)
    assert bench.hear(confirm(2))[0].event == "confirmation_ignored"


def test_a_refusal_of_something_else_has_another_number(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """The operator was shown one loss; the word for it must not release a greater one."""
    bench = kit.bench(leaf_spine)
    bench.lead()
    first = bench.handle(FabricReloaded(without(leaf_spine, links=uplinks(leaf_spine, "leaf3"))))
    same = bench.handle(FabricReloaded(without(leaf_spine, links=uplinks(leaf_spine, "leaf3"))))
    worse = bench.handle(
        FabricReloaded(without(leaf_spine, links=uplinks(leaf_spine, "leaf3") + uplinks(leaf_spine, "leaf2")))
    )
    numbers = [kit.marks(said, "push_refused")[0].fields["generation"] for said in (first, same, worse)]
    assert numbers == [2, 2, 3]
    assert bench.hear(confirm(2))[0].event == "confirmation_ignored"
    assert kit.marks(bench.hear(confirm(3)), "generation_pushed")[0].fields["generation"] == 3


def test_what_reports_explain_is_pushed(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """Leaf3 loses its last uplink: everybody loses the route to it, and rightly so."""
    bench = kit.bench(leaf_spine)
    bench.lead()
    for link in uplinks(leaf_spine, "leaf3"):
        bench.fail(link)
    said = bench.wait(100 * MS)
    assert kit.marks(said, "push_refused") == []
    assert kit.marks(said)[-1].event == "restoration_finished"
    assert all(route.destination != "@leaf3" for route in bench.programs["spine0"].routes)


def test_failures_go_on_being_healed_while_a_bad_file_is_held_only_if_the_rest_is_sound(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """Everything computed on the bad file would withdraw the same, so everything is held; protection works meanwhile."""
    bench = kit.bench(leaf_spine)
    bench.lead()
    bench.handle(FabricReloaded(without(leaf_spine, links=uplinks(leaf_spine, "leaf3"))))
    said = bench.fail(bench.link("leaf0", "spine0")) + bench.wait(100 * MS)
    assert [mark.event for mark in kit.marks(said)] == ["link_down_adjudicated", "routes_computed", "push_refused"]
    assert kit.pushed(said) == []


def test_a_successor_with_a_truncated_file_is_refused_too(kit, leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """It never saw the whole file: what agents run, and the ports in it, are all it can know."""
    first = kit.bench(leaf_spine)
    first.lead()
    second = first.succeed(fabric=without(leaf_spine, nodes={"leaf3", "leaf3-host0", "leaf3-host1"}))
    second.agents = first.agents
    said = second.lead()
    assert kit.pushed(said) == []
    assert kit.marks(said, "push_refused")[0].fields["destinations"] == ["@leaf3"]


# --- the guard alone ---------------------------------------------------------------------------------------------------
def programs(fabric, unusable=()):  # type: ignore[no-untyped-def]
    return Routes(fabric, ControllerTimers()).compute(Use(frozenset(unusable)), ()).programs


def words(fabric, down=()):  # type: ignore[no-untyped-def]
    from erfs_controller.adjacency import Word

    for link in fabric.links.values():
        for end in link.ends:
            yield link.id, end.node, Word(link.id not in down, 1, link.far_end(end.node).node)


def verdict(fabric, before, after, down=()):  # type: ignore[no-untyped-def]
    refusal = Guard(fabric).check(before, after, words(fabric, down), fabric, 9)
    return None if refusal is None else sorted(refusal.withdrawn)


def emptied(program, destination):  # type: ignore[no-untyped-def]
    """Return *program* without its route to *destination*."""
    routes = tuple(route for route in program.routes if route.destination != destination)
    assert routes != program.routes
    return sealed(program.model_copy(update={"routes": routes}))


def test_one_withdrawn_route_is_found(leaf_spine) -> None:  # type: ignore[no-untyped-def]
    before = programs(leaf_spine)
    after = before | {"leaf0": emptied(before["leaf0"], "@leaf1")}
    assert verdict(leaf_spine, before, after) == [("leaf0", "@leaf1")]
    assert verdict(leaf_spine, before, before) is None


def test_an_endpoints_own_routes_are_guarded(leaf_spine) -> None:  # type: ignore[no-untyped-def]
    before = programs(leaf_spine)
    after = before | {
        "leaf0": emptied(before["leaf0"], "@leaf0/leaf0-host1"),
        "leaf0-host0": emptied(before["leaf0-host0"], "*"),
    }
    assert verdict(leaf_spine, before, after) == [("leaf0", "@leaf0/leaf0-host1"), ("leaf0-host0", "*")]
    down = {link.id for link in leaf_spine.links_of["leaf0-host0"]} | {
        link.id for link in leaf_spine.links_of["leaf0-host1"]
    }
    assert verdict(leaf_spine, before, after, down) is None


def test_a_route_that_the_class_serves_again_is_no_withdrawal() -> None:
    """Host and leaf link return: the endpoint's exception goes, its class's route serves it."""
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "attachments": 2})
    host = next(iter(fabric.endpoints)).id
    lost = fabric.access_links[host][0].id
    before, after = programs(fabric, {lost}), programs(fabric)
    gone = {
        node
        for node, program in before.items()
        if {route.destination for route in program.routes} - {route.destination for route in after[node].routes}
    }
    assert gone
    assert verdict(fabric, before, after) is None
    assert verdict(fabric, after, before, {lost}) is None


def test_an_exception_without_members_takes_away_what_the_class_served() -> None:
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "attachments": 2})
    host = next(iter(fabric.endpoints)).id
    destination = fabric.destination_of[host]
    before = programs(fabric)
    far = next(switch.id for switch in fabric.switches if switch.id.startswith("spine"))
    program = before[far]
    hole = program.groups[0].model_copy(update={"id": len(program.groups), "members": ()})
    route = program.routes[0].model_copy(update={"destination": destination, "group": hole.id})
    cut = sealed(program.model_copy(update={"groups": (*program.groups, hole), "routes": (*program.routes, route)}))
    assert verdict(fabric, before, before | {far: cut}) == [(far, destination)]


@pytest.mark.parametrize("leaf", ["leaf0", "leaf1"])
def test_a_cut_off_leaf_loses_everything_and_that_is_explained(leaf: str) -> None:
    """More destinations than are searched for one by one."""
    fabric = generate("leaf-spine", {"leaves": 16, "spines": 2, "hosts_per_leaf": 1})
    name = {"leaf0": "leaf00", "leaf1": "leaf01"}[leaf]
    down = set(uplinks(fabric, name))
    before, after = programs(fabric), programs(fabric, down)
    assert verdict(fabric, before, after, down) is None
    unexplained = verdict(fabric, before, after, ())
    assert unexplained is not None
    assert len([node for node, _ in unexplained if node == name]) == 15


def test_a_way_through_a_valley_is_no_reason_to_refuse(fat_tree) -> None:  # type: ignore[no-untyped-def]
    """pod0-edge0 has lost one uplink and the other aggregation switch its cores: what is left leads down and up again."""
    down: set[LinkId] = set()
    for link in fat_tree.trunks:
        ends = {link.a.node, link.b.node}
        if ends == {"pod0-agg0", "pod0-edge0"} or ("pod0-agg1" in ends and any(end.startswith("core") for end in ends)):
            down.add(link.id)
    before, after = programs(fat_tree), programs(fat_tree, down)
    lost = {route.destination for route in before["pod0-edge0"].routes} - {
        route.destination for route in after["pod0-edge0"].routes
    }
    assert "@pod1-edge0" in lost
    assert verdict(fat_tree, before, after, down) is None


def test_a_link_of_the_trusted_file_counts_even_if_only_one_end_has_a_program(leaf_spine) -> None:  # type: ignore[no-untyped-def]
    """The others have not been heard of yet; nobody has called anything down."""
    whole = programs(leaf_spine)
    before = {"leaf0": whole["leaf0"]}
    after = whole | {"leaf0": emptied(whole["leaf0"], "@leaf1")}
    refusal = Guard(leaf_spine).check(before, after, (), leaf_spine, 9)
    assert refusal is not None
    assert sorted(refusal.withdrawn) == [("leaf0", "@leaf1")]
