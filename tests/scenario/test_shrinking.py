"""A failing plan is made small by leaving out, and only what fails the same way counts. What runs is a fake, so that each case is plain."""

from collections.abc import Callable

import pytest

from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.units import SECOND
from erfs_scenario.campaign import Finding
from erfs_scenario.demands import DemandSet
from erfs_scenario.measurement import Record
from erfs_scenario.plan import Plan
from erfs_scenario.shrinking import Shrinker

Fails = Callable[[Plan], str]
"""Returns what the plan fails with, nothing if it does not fail."""


def plan_with(fabric: Fabric, faults: tuple[Fault, ...]) -> Plan:
    endpoints = tuple(node.id for node in fabric.endpoints)
    demands = (DemandSet("all_pairs", endpoints=endpoints),)
    return Plan("p", fabric, demands, faults, seed=1, measure_from_ns=SECOND, duration_ns=60 * SECOND)


def cuts(fabric: Fabric, count: int, links_each: int = 1) -> tuple[Fault, ...]:
    links = [link.id for link in fabric.trunks]
    return tuple(
        Fault(
            f"f{place}",
            FaultKind.SILENT_DROP,
            (2 + place) * SECOND,
            (22 + place) * SECOND,
            tuple(links[place * links_each : (place + 1) * links_each]),
        )
        for place in range(count)
    )


def crashing(fails: Fails) -> Callable[[Plan, Record], None]:
    """Return a runner that dies of a `ValueError` or `KeyError` named by *fails*, or comes to an undecidable end."""

    def run(plan: Plan, record: Record) -> None:
        match fails(plan):
            case "value":
                raise ValueError
            case "key":
                raise KeyError

    return run


def test_one_fault_of_many_is_found_and_its_time_and_fabric_shrink(fat_tree: Fabric) -> None:
    plan = plan_with(fat_tree, cuts(fat_tree, 12))
    run = crashing(lambda plan: "value" if any(fault.id == "f7" for fault in plan.faults) else "")
    shrunk = Shrinker(plan, run=run).shrink()

    (fault,) = shrunk.plan.faults
    assert (fault.id, fault.end_at_ns - fault.at_ns, shrunk.is_minimal) == ("f7", SECOND // 10, True)
    assert shrunk.plan.duration_ns == fault.end_at_ns + SECOND
    # The two ends of the fault's link, and two endpoints for a demand.
    assert (len(shrunk.plan.fabric.links), sum(one.count for one in shrunk.plan.demands)) == (3, 2)
    assert shrunk.runs < 120


def test_two_faults_that_need_each_other_both_stay(fat_tree: Fabric) -> None:
    def fails(plan: Plan) -> str:
        return "value" if {"f2", "f9"} <= {fault.id for fault in plan.faults} else ""

    shrunk = Shrinker(plan_with(fat_tree, cuts(fat_tree, 12)), run=crashing(fails)).shrink()
    assert [fault.id for fault in shrunk.plan.faults] == ["f2", "f9"]


def test_the_targets_of_one_fault_are_left_out_too(fat_tree: Fabric) -> None:
    faults = cuts(fat_tree, 1, links_each=8)
    guilty = faults[0].links[5]
    run = crashing(lambda plan: "value" if any(guilty in fault.links for fault in plan.faults) else "")

    assert Shrinker(plan_with(fat_tree, faults), run=run).shrink().plan.faults[0].links == (guilty,)


def test_another_failure_on_the_way_is_not_followed(fat_tree: Fabric) -> None:
    def fails(plan: Plan) -> str:
        names = {fault.id for fault in plan.faults}
        return "value" if {"f0", "f1"} <= names else "key" if "f0" in names else ""

    shrunk = Shrinker(plan_with(fat_tree, cuts(fat_tree, 4)), run=crashing(fails)).shrink()
    assert [fault.id for fault in shrunk.plan.faults] == ["f0", "f1"]
    assert shrunk.finding == Finding("failed", "safety", "crash: ValueError", "")


def test_too_few_runs_leave_the_smallest_so_far(fat_tree: Fabric) -> None:
    seen: list[tuple[int, int]] = []
    run = crashing(lambda plan: "value" if any(fault.id == "f7" for fault in plan.faults) else "")
    shrinker = Shrinker(
        plan_with(fat_tree, cuts(fat_tree, 12)),
        run=run,
        runs_max=4,
        on_run=lambda plan, runs: seen.append((runs, len(plan.faults))),
    )
    shrunk = shrinker.shrink()

    assert (shrunk.is_minimal, shrunk.runs, len(shrunk.plan.faults)) == (False, 4, seen[-1][1])
    assert [runs for runs, _ in seen] == [2, 3, 4]
    assert len(shrunk.plan.faults) < 12


def test_ctrl_c_leaves_the_smallest_so_far(fat_tree: Fabric) -> None:
    def interrupt(_plan: Plan, runs: int) -> None:
        if runs == 3:
            raise KeyboardInterrupt

    run = crashing(lambda plan: "value" if any(fault.id == "f7" for fault in plan.faults) else "")
    shrinker = Shrinker(plan_with(fat_tree, cuts(fat_tree, 12)), run=run, on_run=interrupt)
    with pytest.raises(KeyboardInterrupt):
        shrinker.shrink()
    assert "f7" in [fault.id for fault in shrinker.plan.faults]
    assert len(shrinker.plan.faults) < 12
