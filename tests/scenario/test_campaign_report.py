"""What campaign.json says of findings: counts, the share of seeds that fail with its interval, and which plans are written."""

import json

import jsonschema
import pytest

from erfs.generators import generate
from erfs_scenario.campaign import Finding, SeedFinding, Work
from erfs_scenario.campaign_report import PLANS_MAX, CampaignReport, campaign_report
from erfs_scenario.plan import Plan
from erfs_scenario.schema import parse_scenario
from erfs_scenario.schema_files import schema_of

PASSED = Finding("passed")
SLOW = Finding("failed", "safety", "recovery max", 'the last flow of "cut" took 60.00 ms')
CRASHED = Finding("failed", "safety", "crash: Bug", "no row")
UNSURE = Finding("undecidable", "", "", 'fault "cut" is crossed by no measured flow')


@pytest.fixture(scope="module")
def plan() -> Plan:
    text = b"name: n\nfabric: {generate: {kind: fat-tree, k: 4}}\nfaults: [{kind: controller_kill, at: 1 s, for: 1 s}]"
    return Work(parse_scenario(text, "n.yaml"), generate("fat-tree", {"k": 4})).plan(1)


def report_on(plan: Plan, *findings: Finding) -> CampaignReport:
    found = [SeedFinding(seed, finding, faults=3) for seed, finding in enumerate(findings, start=5)]
    return campaign_report(plan, 5, 100, found)


def test_the_share_that_fails_is_over_what_was_decided_and_has_its_exact_interval(plan: Plan) -> None:
    report = report_on(plan, *[PASSED] * 9, SLOW, *[UNSURE] * 2)

    assert (report.seeds_asked, report.seeds_run, report.passed, report.failed, report.undecidable) == (
        100,
        12,
        9,
        1,
        2,
    )
    share = report.failing
    assert (share.name, share.of, share.events, share.count, share.value) == (
        "seeds that fail",
        "seeds",
        10,
        1,
        100_000,
    )
    assert share.interval is not None
    # Clopper and Pearson's for 1 of 10.
    assert (share.interval.low, share.interval.high) == (2528, 445_017)


def test_no_failure_is_told_with_the_bound_of_the_rule_of_three(plan: Plan) -> None:
    share = report_on(plan, *[PASSED] * 200).failing

    assert share.interval is not None
    assert share.interval.low == 0
    assert share.interval.method == "Clopper-Pearson; rule of three: one-sided, at most 0.01498"


def test_nothing_decided_is_no_share(plan: Plan) -> None:
    share = report_on(plan, UNSURE).failing

    assert (share.value, share.interval, share.events) == (None, None, 0)
    assert share.refusal is not None


def test_each_way_to_fail_has_its_first_plans_and_the_undecidable_have_none(plan: Plan) -> None:
    report = report_on(plan, UNSURE, *[SLOW] * (PLANS_MAX + 2), CRASHED)
    plans = [one.plan for one in report.findings]

    assert plans == [
        None,
        *(f"plans/seed-{seed}.json" for seed in range(6, 6 + PLANS_MAX)),
        None,
        None,
        f"plans/seed-{6 + PLANS_MAX + 2}.json",
    ]


def test_it_fits_its_published_schema(plan: Plan) -> None:
    report = report_on(plan, PASSED, SLOW, UNSURE)
    jsonschema.validate(json.loads(report.model_dump_json()), schema_of("campaign"))
