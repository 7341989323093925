"""What a campaign says of a seed: safety before liveness, a crash is a finding, and a planted bug is found and made small."""

import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from erfs.errors import Bug, ConfigError, Problem
from erfs.fabric import Fabric
from erfs.generators import generate
from erfs_scenario.campaign import Finding, SeedFinding, Work, examine, examine_seed, records_of, simulated
from erfs_scenario.measurement import Record
from erfs_scenario.plan import Plan, compile_plan
from erfs_scenario.plan_file import load_plan, write_plan
from erfs_scenario.schema import parse_scenario
from erfs_scenario.shrinking import Shrinker
from tests.scenario.planted import forgetting

WEAR = b"""
name: wear
fabric: {generate: {kind: fat-tree, k: 4}}
faults:
  - {name: one, kind: link_down, target: {kind: trunk, random: 1}, at: 1 s, until: 6 s}
  - {name: crash, kind: agent_kill, target: {kind: switch, random: 1}, at: 1500 ms, for: 500 ms}
  - {name: two, kind: link_down, target: {kind: trunk, random: 1}, at: 3 s, until: 6 s}
  - {name: hang, kind: controller_freeze, at: 3500 ms, for: 500 ms}
  - {name: split, kind: bus_partition, target: {kind: host, random: 2}, at: 4 s, for: 1 s}
expect: {recovery: {max: 20 ms}}
"""
FIRST_SEED = int(os.environ.get("PLANTED_FIRST_SEED", "101"))
"""The whole claim is from 1 on; that takes longer than a test should."""
SEEDS = 200


@pytest.fixture(scope="module")
def wear() -> Work:
    """Two cables break one after the other, while agent, controller and bus have troubles of their own."""
    return Work(parse_scenario(WEAR, "wear.yaml"), generate("fat-tree", {"k": 4}))


def test_a_sound_run_is_safe_and_live(wear: Work) -> None:
    assert examine_seed(wear, 1) == SeedFinding(1, Finding("passed"), faults=5)


def test_the_same_seed_is_the_same_finding_from_a_copy_in_another_process(wear: Work) -> None:
    copy = pickle.loads(pickle.dumps(wear))

    assert examine_seed(copy, 14) == examine_seed(wear, 14)


def test_an_expectation_missed_is_unsafe(wear: Work) -> None:
    plan = compile_plan(wear.file, wear.fabric, seed=1)
    strict = replace(plan, expectations=replace(plan.expectations, recovery_max_ns=1))
    finding = examine(strict)

    assert (finding.outcome, finding.phase, finding.check) == ("failed", "safety", "recovery max")
    assert finding.reason.startswith('the last flow of "')


def test_what_is_wrong_with_a_file_comes_whole_from_another_process() -> None:
    error = ConfigError(
        "wear.yaml", [Problem(3, "more than 20,000 faults in one plan", 5, "lower it"), Problem(0, "no")]
    )
    again = pickle.loads(pickle.dumps(error))

    assert (again.source, again.problems, str(again)) == (error.source, error.problems, str(error))


def test_a_crash_is_a_finding_not_the_end_of_the_campaign(wear: Work) -> None:
    def run(plan: Plan, record: Record) -> None:
        raise Bug("a row without a column")

    assert examine_seed(wear, 1, run) == SeedFinding(
        1, Finding("failed", "safety", "crash: Bug", "a row without a column"), faults=5
    )


def test_a_fault_that_does_nothing_is_invalid_not_passed(wear: Work) -> None:
    def run(plan: Plan, record: Record) -> None:
        def deaf(at_ns: int, event: str, fields: dict[str, object]) -> None:
            record(at_ns, "fault_not_effective" if event == "fault_effective" else event, fields)

        simulated(plan, deaf)

    finding = examine_seed(wear, 1, run).finding
    assert finding == Finding("failed", "safety", "faults as asked", 'fault "one" did not take effect')


def test_a_restoration_that_never_ends_is_not_live(wear: Work) -> None:
    def run(plan: Plan, record: Record) -> None:
        def unfinished(at_ns: int, event: str, fields: dict[str, object]) -> None:
            if event != "restoration_finished" or at_ns < plan.faults[-1].end_at_ns:
                record(at_ns, event, fields)

        simulated(plan, unfinished)

    finding = examine_seed(wear, 1, run).finding
    assert (finding.outcome, finding.phase, finding.check) == ("failed", "liveness", "restores")
    assert finding.reason.endswith("was not acknowledged by everybody when the run ended")


def test_what_is_not_over_when_the_run_ends_is_given_the_time_it_may_take(wear: Work) -> None:
    """The run ends between a push and its acknowledgements: that is no failure, and the plan itself stays as it is."""
    plan = wear.plan(1)
    records = [json.loads(line) for line in records_of(plan)]
    pushed_ns = [record["at_ns"] for record in records if record["event"] == "generation_pushed"]
    last_ns = max(at_ns for at_ns in pushed_ns if at_ns > plan.faults[-1].end_at_ns)
    ran: list[int] = []

    def run(plan: Plan, record: Record) -> None:
        ran.append(plan.duration_ns)
        simulated(plan, record)

    assert examine(replace(plan, duration_ns=last_ns + 1), run) == Finding("passed")
    assert len(ran) == 2
    assert ran[1] - ran[0] > plan.timers.wait_to_restore_max_ns


def test_a_run_that_a_guard_aborts_is_unsafe(wear: Work) -> None:
    def run(plan: Plan, record: Record) -> None:
        simulated(plan, record)
        record(plan.duration_ns, "run_aborted", {"reason": "availability of all fell below 90 %"})

    assert examine_seed(wear, 1, run).finding == Finding(
        "failed", "safety", "no abort", "the run was aborted: availability of all fell below 90 %"
    )


def test_a_fault_that_harms_nobody_is_undecidable_not_passed(wear: Work) -> None:
    finding = examine_seed(wear, 14).finding

    assert (finding.outcome, finding.phase) == ("undecidable", "")
    assert finding.reason.endswith("is crossed by no measured flow")


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield *plan* without each one of its faults, nodes and links."""
    fabric = plan.fabric
    for fault in plan.faults:
        yield replace(plan, faults=tuple(one for one in plan.faults if one is not fault))
    named = {link for fault in plan.faults for link in fault.links}
    ends = {end.node for link in named for end in fabric.links[link].ends}
    for node in fabric.nodes.keys() - ends:
        links = [link for link in fabric.links.values() if node not in {end.node for end in link.ends}]
        left = Fabric([one for one in fabric.nodes.values() if one.id != node], links, name=fabric.name)
        there = [one.id for one in left.endpoints if left.attachments.get(one.id)]
        yield replace(plan, fabric=left, demands=tuple(replace(one, endpoints=tuple(there)) for one in plan.demands))
    for name in fabric.links.keys() - named:
        left = Fabric(
            fabric.nodes.values(), [link for link in fabric.links.values() if link.id != name], name=fabric.name
        )
        there = [one.id for one in left.endpoints if left.attachments.get(one.id)]
        yield replace(plan, fabric=left, demands=tuple(replace(one, endpoints=tuple(there)) for one in plan.demands))


def test_a_planted_bug_is_found_and_made_as_small_as_it_can_be(wear: Work, tmp_path: Path) -> None:
    """The bug: while any link is down, the controller forgets to arm for one other. No option of the product does that."""
    forgotten = sorted(link.id for link in wear.fabric.trunks)[5]
    run = forgetting(forgotten)
    found = next(
        one
        for seed in range(FIRST_SEED, SEEDS + 1)
        if (one := examine_seed(wear, seed, run)).finding.outcome == "failed"
    )
    plan = compile_plan(wear.file, wear.fabric, seed=found.seed)
    shrunk = Shrinker(plan, run=run).shrink()
    path = tmp_path / "shrunk.json"
    write_plan(shrunk.plan, path)

    assert (found.finding.check, shrunk.is_minimal, shrunk.finding.check) == ("recovery max", True, "recovery max")
    assert [fault.id for fault in shrunk.plan.faults] == ["one", "two"]
    assert shrunk.plan.faults[1].links == (forgotten,)
    assert (len(plan.fabric.nodes), len(shrunk.plan.fabric.nodes), len(shrunk.plan.fabric.links)) == (36, 9, 9)
    assert not any(
        examine(one, run).is_like(shrunk.finding) for one in _smaller(shrunk.plan) if any(d.count for d in one.demands)
    )
    again, header = load_plan(path)
    assert (again, header) == (shrunk.plan, None)
    assert records_of(again, run) == records_of(shrunk.plan, run)
    assert examine(again).outcome != "failed", "it is the bug that fails, not the plan"


def test_nobody_fails_without_the_bug(wear: Work) -> None:
    findings = [examine_seed(wear, seed).finding for seed in range(108, 116)]

    assert "failed" not in {finding.outcome for finding in findings}
