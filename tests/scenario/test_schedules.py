"""Faults by schedule and by chance: equal seeds draw equally, rates are met, and no two of those drawn hold one thing at once."""

from itertools import pairwise

import pytest

from erfs.errors import ConfigError
from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.units import HOUR, MINUTE, MS, SECOND
from erfs_scenario.fault_model import published_rates
from erfs_scenario.plan import Plan, compile_plan, stream
from erfs_scenario.schedules import by_instant, draw_faults, held_by, pass_over
from erfs_scenario.schema import RandomFaults, Selector, parse_scenario
from erfs_scenario.selectors import Misfit, link_groups, select_links, select_nodes

ZERO = 6 * SECOND
HEAD = "name: s\nfabric: {generate: {kind: rail}}\ndemands: {sampled: {count: 10}}\n"


@pytest.fixture(scope="module")
def rail() -> Fabric:
    return generate(
        "rail", {"hosts": 16, "hosts_per_group": 8, "nics_per_host": 4, "spines": 4, "cables": 2, "hosts_per_rack": 4}
    )


def plan_of(text: str, fabric: Fabric, seed: int = 1) -> Plan:
    return compile_plan(parse_scenario((HEAD + text).encode(), "s.yaml"), fabric, seed=seed)


def complaint_about(text: str, fabric: Fabric) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(text, fabric)
    return str(caught.value)


def times_of(plan: Plan) -> list[tuple[str, int, int]]:
    return [(fault.id, fault.at_ns - ZERO, fault.end_at_ns - ZERO) for fault in plan.faults]


def test_every_draws_a_new_target_each_time(rail: Fabric) -> None:
    text = "faults: [{name: cut, kind: link_down, target: {kind: trunk, random: 1}, at: 1 s, every: 10 s, times: 3, for: 2 s}]"
    plan = plan_of(text, rail)
    assert times_of(plan) == [
        ("cut#1", 1 * SECOND, 3 * SECOND),
        ("cut#2", 11 * SECOND, 13 * SECOND),
        ("cut#3", 21 * SECOND, 23 * SECOND),
    ]
    assert len({fault.links for fault in plan.faults}) == 3


def test_every_without_times_goes_on_while_one_more_ends_before_the_run_does(rail: Fabric) -> None:
    text = "duration: 23 s\nfaults: [{name: k, kind: controller_kill, at: 1 s, every: 10 s, for: 2 s}]"
    assert [at for _, at, _ in times_of(plan_of(text, rail))] == [1 * SECOND, 11 * SECOND, 21 * SECOND]
    assert len(plan_of(text.replace("23 s", "22 s"), rail).faults) == 2


def test_a_pause_takes_one_after_the_other(rail: Fabric) -> None:
    text = "faults: [{name: m, kind: node_down, target: {kind: switch, tier: spine}, at: 1 s, for: 5 s, pause: 2 s}]"
    plan = plan_of(text, rail)
    assert times_of(plan) == [
        (f"m#{index + 1}", (1 + 7 * index) * SECOND, (6 + 7 * index) * SECOND) for index in range(4)
    ]
    assert [fault.nodes for fault in plan.faults] == [(NodeId(f"spine{index}"),) for index in range(4)]


def test_a_spread_burst_begins_within_its_time_and_ends_as_one(rail: Fabric) -> None:
    text = "faults: [{name: b, kind: link_down, target: {kind: access, together: rack, random: 1}, at: 1 s, for: 5 s, spread: 400 ms}]"
    plan = plan_of(text, rail)
    assert len(plan.faults) == 16
    assert {fault.end_at_ns for fault in plan.faults} == {ZERO + 6 * SECOND}
    begins = {fault.at_ns - ZERO for fault in plan.faults}
    assert len(begins) > 8
    assert all(SECOND <= at_ns <= SECOND + 400 * MS for at_ns in begins)


def test_what_goes_together_is_drawn_by_the_group(rail: Fabric) -> None:
    links = select_links(rail, Selector(kind="trunk", together="shared_risk", random=1), stream(1, "x"))
    assert any(
        set(links) == {one.id for one in rail.trunks if srlg in one.srlgs} for srlg in rail.links[links[0]].srlgs
    )
    nodes = select_nodes(rail, Selector(together="rack", random=2), stream(1, "x"))
    assert len({rail.nodes[node].labels["rack"] for node in nodes}) == 2
    assert len(nodes) == 2 * 16
    with pytest.raises(Misfit, match="no such link has the label colour"):
        link_groups(rail, Selector(kind="trunk", together="colour"))


def test_rail_and_pod_are_short_for_labels(rail: Fabric) -> None:
    rng = stream(1, "x")
    short = select_links(rail, Selector(kind="trunk", rail=3, pod="su1"), rng)
    assert short == select_links(rail, Selector(kind="trunk", label={"rail": 3, "pod": "su1"}), rng)
    assert len(short) == 8


@pytest.mark.parametrize(("share_ppm", "count"), [(1, 1), (125_000, 8), (1_000_000, 64)])
def test_a_share_draws_the_nearest_number_and_one_at_least(rail: Fabric, share_ppm: int, count: int) -> None:
    selector = Selector.model_validate({"kind": "trunk", "share": f"{share_ppm / 10_000:.4f} %"})
    assert len(select_links(rail, selector, stream(1, "x"))) == count


def test_missing_links_are_in_no_fabric_and_hit_by_nothing(rail: Fabric) -> None:
    text = HEAD.replace("{generate: {kind: rail}}", "{generate: {kind: rail}, missing: {kind: trunk, share: 10 %}}")
    text += "faults: [{kind: link_down, target: {kind: trunk}, at: 1 s, for: 1 s}]"
    plan = compile_plan(parse_scenario(text.encode(), "s.yaml"), rail)
    assert len(plan.missing) == 6
    assert set(plan.fabric.links) == set(rail.links) - set(plan.missing)
    assert set(plan.faults[0].links) == {link.id for link in plan.fabric.trunks}
    assert plan.header("sim")["missing_links"] == list(plan.missing)


def fault(name: str, at: int, end: int, *links: str) -> Fault:
    return Fault(name, FaultKind.LINK_DOWN, at, end, tuple(LinkId(link) for link in links))


def test_of_two_that_want_one_thing_the_earlier_has_it_and_what_is_stated_goes_first() -> None:
    stated = [fault("stated", 50, 60, "a")]
    drawn = [
        fault("d#1", 10, 20, "a"),
        fault("d#2", 15, 30, "a", "b"),
        fault("d#10", 45, 51, "a"),
        fault("d#9", 20, 30, "a"),
    ]
    happening, passed = pass_over(stated, drawn)
    assert [(one.id, one.links) for one in happening] == [
        ("d#1", ("a",)),
        ("d#2", ("b",)),
        ("d#9", ("a",)),
        ("stated", ("a",)),
    ]
    assert [(one.fault, one.things, one.by) for one in passed] == [("d#2", ("a",), "d#1"), ("d#10", ("a",), "stated")]


SOAK = """
random_faults:
  rates: [trunk_link_down, trunk_flap_train, trunk_grey_loss, trunk_shared_risk, leaf_crash, controller_restart]
  acceleration: 5000
  until: 71 h
duration: 72 h
"""


def test_no_two_faults_by_chance_hold_one_thing_at_once(rail: Fabric) -> None:
    plan = plan_of(SOAK, rail)
    assert plan.passed_over
    until: dict[str, int] = {}
    for one in plan.faults:
        for thing in held_by(one):
            assert until.get(thing, 0) <= one.at_ns, one
            until[thing] = one.end_at_ns
    assert list(plan.faults) == sorted(plan.faults, key=by_instant)
    assert max(until.values()) <= ZERO + 71 * HOUR


def test_a_rate_draws_from_a_stream_of_its_own(rail: Fabric) -> None:
    alone = plan_of(SOAK.replace("trunk_flap_train, trunk_grey_loss, trunk_shared_risk, leaf_crash, ", ""), rail)
    both = plan_of(SOAK, rail)
    names = [use.name for use in alone.rates]
    assert names == ["trunk_link_down", "controller_restart"]
    assert tuple(use for use in both.rates if use.name in names) == alone.rates
    restarts = [[one for one in plan.faults if one.kind is FaultKind.CONTROLLER_KILL] for plan in (alone, both)]
    assert restarts[0] == restarts[1]
    assert plan_of(SOAK, rail).faults == both.faults != plan_of(SOAK, rail, 2).faults


@pytest.mark.parametrize("name", ["trunk_link_down", "trunk_shared_risk", "controller_restart"])
def test_the_number_of_events_is_the_one_that_the_rate_makes_expect(rail: Fabric, name: str) -> None:
    """Over 200 seeds the mean is within four standard errors, and the variance is a Poisson's."""
    part = RandomFaults.model_validate({"rates": name, "acceleration": 100})
    uses = [
        draw_faults(
            name, published_rates()[name], part, rail, ZERO, ZERO + 72 * HOUR, stream(seed, name), count_max=9999
        )[1]
        for seed in range(200)
    ]
    mean = sum(use.events for use in uses) / len(uses)
    expected = uses[0].expected_events
    assert abs(mean - expected) < 4 * (expected / len(uses)) ** 0.5
    variance = sum((use.events - mean) ** 2 for use in uses) / (len(uses) - 1)
    assert 0.6 < variance / expected < 1.5


def test_the_acceleration_scales_rates_and_repairs_alike(rail: Fabric) -> None:
    """What is down at any time stays the same: one hundred times as many, each a hundredth as long."""
    downtimes = []
    for factor, span_ns in ((10, 100_000 * HOUR), (1000, 1_000 * HOUR)):
        part = RandomFaults.model_validate({"rates": "trunk_grey_one_way", "acceleration": factor, "shortest": "0 s"})
        rate = published_rates()["trunk_grey_one_way"]
        found, use = draw_faults("x", rate, part, rail, 0, span_ns, stream(1, "x"), count_max=99_999)
        assert use.stretched == 0
        downtimes.append(sum(one.end_at_ns - one.at_ns for one in found) / span_ns)
    # 64 trunks at 0.092 % a month, 72 h each: what Little's law makes expect.
    expected = 64 * 0.00092 * 72 / 730
    assert all(abs(downtime / expected - 1) < 0.25 for downtime in downtimes), (downtimes, expected)


def test_repairs_that_get_too_short_are_counted(rail: Fabric) -> None:
    part = RandomFaults.model_validate({"rates": "leaf_crash", "acceleration": 100_000, "shortest": "2 s"})
    found, use = draw_faults(
        "leaf_crash", published_rates()["leaf_crash"], part, rail, 0, 72 * HOUR, stream(1, "x"), count_max=9999
    )
    assert use.stretched == len(found) > 10
    assert {one.end_at_ns - one.at_ns for one in found[:-3]} == {2 * SECOND}


def test_repairs_that_outlast_the_span_end_with_it_and_are_counted(rail: Fabric) -> None:
    part = RandomFaults.model_validate({"rates": "x", "per_month": {"x": "100 %"}, "acceleration": 2})
    rate = published_rates()["trunk_link_down"]
    found, use = draw_faults("x", rate, part, rail, ZERO, ZERO + 72 * HOUR, stream(1, "x"), count_max=9999)
    assert max(one.end_at_ns for one in found) == ZERO + 72 * HOUR
    assert use.cut == sum(one.end_at_ns == ZERO + 72 * HOUR for one in found) > 0


def test_a_train_flaps_one_thing_several_times(rail: Fabric) -> None:
    part = RandomFaults.model_validate({"rates": "trunk_flap_train"})
    rate = published_rates()["trunk_flap_train"]
    found, use = draw_faults("x", rate, part, rail, 0, 100_000 * HOUR, stream(1, "x"), count_max=9999)
    assert use.events > 20
    assert all(SECOND <= one.end_at_ns - one.at_ns <= 10 * SECOND for one in found)
    assert 3 * use.events <= len(found) <= 8 * use.events
    assert all(one.end_at_ns < later.at_ns for one, later in pairwise(found) if one.links == later.links)


def test_every_rate_of_the_fault_model_says_where_it_is_from_and_is_drawn(rail: Fabric) -> None:
    names = list(published_rates())
    text = f"random_faults: {{rates: [{', '.join(names)}], acceleration: 10000, until: 24 h}}"
    plan = plan_of(text, rail)
    assert [use.name for use in plan.rates] == names
    assert all(use.source and use.basis in ("published", "inferred", "choice") for use in plan.rates)
    assert plan.header("sim")["rates"] == [use.to_json() for use in plan.rates]


def test_a_plan_may_hold_chance_that_drew_nothing(rail: Fabric) -> None:
    plan = plan_of("random_faults: {rates: leaf_crash, from: 1 min, until: 2 min}", rail)
    assert plan.faults == ()
    assert plan.duration_ns == ZERO + 2 * MINUTE + 5 * SECOND


def test_a_plan_of_more_faults_than_anyone_means_is_refused(rail: Fabric) -> None:
    told = complaint_about(SOAK.replace("5000", "1000000"), rail)
    assert told == "s.yaml:7:17: more than 20,000 faults in one plan"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("faults: []", "s.yaml:4:9: expected at least one"),
        ("random_faults: {rates: trunk_link_down}", "s.yaml:4:16: random faults have no end (say until: 1 h)"),
        (
            "random_faults: {rates: [trunk_link_don], until: 1 h}",
            's.yaml:4:25: there is no rate "trunk_link_don" (did you mean "trunk_link_down"?)',
        ),
        (
            "random_faults: {rates: [leaf_crash], until: 1 h, acceleration: {rates: 10, repairs: 1}}",
            "s.yaml:4:64: rates and repairs are scaled alike, or nothing could be said of natural rates (one number, such as acceleration: 100)",
        ),
        (
            "faults: [{kind: controller_kill, at: 1 s, for: 1 s, times: 3}]",
            "s.yaml:4:53: times goes with every (add every: 10 s)",
        ),
        (
            "faults: [{kind: controller_kill, at: 1 s, for: 1 s, every: 3 s}]",
            "s.yaml:4:60: every has no end (say times, or the run's duration)",
        ),
        (
            "duration: 10 s\nfaults: [{kind: controller_kill, at: 1 s, for: 1 s, every: 5 s, times: 3}]",
            "s.yaml:5:72: the last of them ends 2 s after the run does (raise duration)",
        ),
        (
            "faults: [{kind: link_down, target: {rail: 9}, at: 1 s, for: 1 s}]",
            's.yaml:4:43: no such link, nor an end of one, has the label rail = "9" in fabric "rail 16x4" (rail here is one of 0, 1, 2, 3)',
        ),
    ],
)
def test_what_is_wrong_with_a_schedule_is_told_where_it_stands(rail: Fabric, text: str, told: str) -> None:
    assert complaint_about(text, rail) == told
