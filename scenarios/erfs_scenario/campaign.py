"""Does a scenario hold for any seed? Each seed's plan is run and put to two questions: safety, then liveness.

Rule 1: safety is asked of the whole run as planned: while faults come and go, nothing happens that was not to happen.
Rule 2: liveness is asked of the time after the last fault, and only of what was safe: in the end, everything good has happened. What is not
over when the run ends is given the time that all who wait may take one after another, in a longer run of the same faults.
Rule 3: a seed's finding depends on the scenario and the seed alone, so it is the same whoever computes it, in whatever order.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from erfs.errors import ConfigError
from erfs.fabric import Fabric
from erfs.journal import line_of
from erfs_scenario.judging import judge_records
from erfs_scenario.measurement import Record
from erfs_scenario.plan import Plan, compile_plan
from erfs_scenario.report import Verdict
from erfs_scenario.schema import TAIL_NS, ScenarioFile

Outcome = Literal["passed", "failed", "undecidable"]
Phase = Literal["safety", "liveness", ""]
Run = Callable[[Plan, Record], None]
"""Runs a plan, telling all that happens: `simulated`, or what a test has tampered with."""

CRASH: Final = "crash"
VALIDITY: Final = "faults as asked"
ABORT: Final = "no abort"
CONVERGES: Final = "converges"
RESTORES: Final = "restores"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one plan."""

    outcome: Outcome
    phase: Phase = ""
    """In which it failed."""
    check: str = ""
    """The first expectation that it failed, or could not be decided."""
    reason: str = ""

    def is_like(self, other: "Finding") -> bool:
        """Whether both are the same failure, be the figures others."""
        return (self.outcome, self.phase, self.check) == (other.outcome, other.phase, other.check)


@dataclass(frozen=True, slots=True)
class SeedFinding:
    """What became of one seed."""

    seed: int
    finding: Finding
    faults: int


@dataclass(frozen=True)
class Work:
    """What every seed of a campaign shares; it can be sent to another process."""

    file: ScenarioFile
    fabric: Fabric
    is_protecting: bool | None = None
    """Instead of the scenario's own ``protection``."""

    def plan(self, seed: int) -> Plan:
        """Return the plan of *seed*. Raises ConfigError if the scenario does not fit the fabric."""
        return compile_plan(self.file, self.fabric, seed=seed, is_protecting=self.is_protecting)


def simulated(plan: Plan, record: Record) -> None:
    """Run *plan* in simulated time."""
    # Here, as a campaign over another runner needs neither controller nor agent.
    from erfs_scenario.simulation import simulate

    simulate(plan, record=record, on_progress=lambda _now_ns: None)


def records_of(plan: Plan, run: Run = simulated) -> list[bytes]:
    """Return the lines of the journal of *plan*, as a simulated `erfs run` writes them but for the plan itself."""
    lines = [line_of(0, "run_started", plan.header("sim"))]
    last_ns = 0

    def record(at_ns: int, event: str, fields: dict[str, Any]) -> None:
        nonlocal last_ns
        last_ns = max(last_ns, at_ns)
        lines.append(line_of(at_ns, event, fields))

    run(plan, record)
    record(max(last_ns, plan.duration_ns), "run_finished", {})
    return lines


def examine(plan: Plan, run: Run = simulated) -> Finding:
    """
    Run *plan* and return what became of it: safety first, and liveness where that held.

    Cost: one run, its journal in memory; two where something is not over when the first ends.
    """
    watched = _watched(plan, run)
    if isinstance(watched, Finding):
        return watched
    verdict, unfinished = watched
    if (unsafe := _unsafe(verdict)) is not None:
        return unsafe
    if unfinished is not None and plan.duration_ns < (until_ns := _all_over_ns(plan)):
        watched = _watched(replace(plan, duration_ns=until_ns), run)
        if isinstance(watched, Finding):
            return watched
        _, unfinished = watched
    if unfinished is not None:
        return unfinished
    unsure = [reason for reason in verdict.reasons if not reason.startswith(f"{CONVERGES}: ")]
    if verdict.outcome != "passed" and unsure:
        names = (check.name for check in verdict.checks if check.outcome != "passed" and check.name != CONVERGES)
        return Finding("undecidable", "", next(names, ""), unsure[0])
    return Finding("passed")


def _watched(plan: Plan, run: Run) -> tuple[Verdict, Finding | None] | Finding:
    """Run *plan*; return its verdict and what was not over when it ended, or the finding that it crashed."""
    try:
        records = [json.loads(line) for line in records_of(plan, run)]
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever a core dies of is what a campaign is for
        return Finding("failed", "safety", f"{CRASH}: {type(error).__name__}", str(error))
    verdict = judge_records(records).verdict
    for check in verdict.checks:
        if check.name == CONVERGES and check.outcome != "passed":
            return verdict, Finding("failed", "liveness", CONVERGES, check.reason)
    if (reason := _unrestored(records)) is not None:
        return verdict, Finding("failed", "liveness", RESTORES, reason)
    return verdict, None


def _unsafe(verdict: Verdict) -> Finding | None:
    if verdict.outcome == "invalid":
        return Finding("failed", "safety", VALIDITY, verdict.reasons[0])
    if verdict.outcome == "aborted":
        return Finding("failed", "safety", ABORT, verdict.reasons[0])
    for check in verdict.checks:
        if check.outcome == "missed":
            return Finding("failed", "safety", check.name, check.reason)
    return None


def _all_over_ns(plan: Plan) -> int:
    """Return when everything is over at the latest: the last fault, and whatever anybody then waits for, one after another."""
    timers, timing = plan.timers, plan.timing
    waits_ns = (
        timing.will_ns,
        timing.start_ns,
        timing.reconnect_ns,
        timers.leader_listen_ns,
        timers.wait_to_restore_max_ns,
        timers.debounce_max_ns,
        timing.computation_ns,
        timers.ack_wait_ns * timers.ack_attempts,
    )
    return max((fault.end_at_ns for fault in plan.faults), default=0) + sum(waits_ns) + TAIL_NS


def _unrestored(records: Iterable[dict[str, Any]]) -> str | None:
    """Return why restoration is not over; None if it is."""
    pushed: dict[str, Any] | None = None
    for record in records:
        if record["event"] == "generation_pushed":
            pushed = record
        elif record["event"] == "restoration_finished":
            pushed = None
    if pushed is None:
        return None
    return f"generation {pushed.get('generation')} was not acknowledged by everybody when the run ended"


def examine_seed(work: Work, seed: int, run: Run = simulated) -> SeedFinding:
    """Return what becomes of *seed*. Raises ConfigError if the scenario does not fit the fabric."""
    plan = work.plan(seed)
    return SeedFinding(seed, examine(plan, run), len(plan.faults))
