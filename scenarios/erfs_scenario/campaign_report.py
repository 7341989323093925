"""What campaign.json holds: which seeds of a scenario failed, why, how to run them again, and how sure the share of failures is.

Rule 1: nothing of the machine, the workers or the time it took: the same seeds give the same bytes.
Rule 2: a share is over the seeds that were decided; those that were not are counted beside it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from erfs_scenario.campaign import SeedFinding
from erfs_scenario.figures import share_figure
from erfs_scenario.plan import Plan
from erfs_scenario.report import FabricSummary, Figure

PLANS_MAX: Final = 10
"""Plans written for one way to fail: a hundred of the same tell no more, and each has the whole fabric."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SeedReport(_Value):
    """A seed that did not pass."""

    seed: int
    faults: int
    """In its plan."""
    outcome: Literal["failed", "undecidable"]
    phase: Literal["safety", "liveness", ""]
    """In which it failed."""
    check: str
    """The first expectation that it failed, or that could not be decided; "" where no expectation is to blame."""
    reason: str
    plan: str | None
    """The file with its plan, beside campaign.json; None for the undecidable, and where there are ten that failed the same way."""


class CampaignReport(_Value):
    """campaign.json."""

    campaign_version: Literal[1] = 1
    name: str
    description: str
    is_protecting: bool
    fabric: FabricSummary
    first_seed: int
    seeds_asked: int
    seeds_run: int
    """Fewer than asked for after Ctrl-C."""
    passed: int
    failed: int
    undecidable: int
    failing: Figure
    """The share of seeds that fail, and how sure that is."""
    findings: tuple[SeedReport, ...]
    """All that did not pass, by seed."""


def campaign_report(plan: Plan, first_seed: int, asked: int, found: Sequence[SeedFinding]) -> CampaignReport:
    """
    Return the report on a campaign.

    Args:
        plan: Of any of its seeds.
        first_seed: Its first.
        asked: How many seeds it was to run.
        found: What became of those that it ran, in their order.

    Cost: O(seeds).
    """
    outcomes = Counter(one.finding.outcome for one in found)
    decided = outcomes["passed"] + outcomes["failed"]
    alike: Counter[tuple[str, str]] = Counter()
    findings = []
    for one in found:
        finding = one.finding
        if finding.outcome == "passed":
            continue
        way = finding.phase, finding.check
        has_plan = finding.outcome == "failed" and alike[way] < PLANS_MAX
        alike[way] += has_plan
        findings.append(
            SeedReport(
                seed=one.seed,
                faults=one.faults,
                outcome=finding.outcome,
                phase=finding.phase,
                check=finding.check,
                reason=finding.reason,
                plan=f"plans/seed-{one.seed}.json" if has_plan else None,
            )
        )
    definition = (
        "seeds that failed, of those that passed or failed; the interval is for the share of all seeds there are"
    )
    return CampaignReport(
        name=plan.name,
        description=plan.description,
        is_protecting=plan.is_protecting,
        fabric=FabricSummary(**plan.header("sim")["fabric"]),
        first_seed=first_seed,
        seeds_asked=asked,
        seeds_run=len(found),
        passed=outcomes["passed"],
        failed=outcomes["failed"],
        undecidable=outcomes["undecidable"],
        failing=share_figure("seeds that fail", outcomes["failed"], decided, definition).model_copy(
            update={"of": "seeds"}
        ),
        findings=tuple(findings),
    )
