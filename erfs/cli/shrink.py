"""`erfs shrink`: what is the least of a failing run that still fails?

Rule 1: what is smallest so far is written, however it ends.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from erfs.cli.interrupts import terminable
from erfs.cli.main import Exit

if TYPE_CHECKING:
    from erfs_scenario.plan import Plan


@click.command(name="shrink")
@click.argument("source", metavar="JOURNAL|PLAN", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The plan file. [default: NAME-shrunk.json]"
)
@click.option("--runs", type=click.IntRange(min=1), default=2000, show_default=True, help="End after so many runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(source: Path, out: Path | None, runs: int, as_json: bool) -> int:
    """Make the failing plan in JOURNAL or PLAN as small as it can be and still fail the same way: faults, times, fabric.

    Writes a plan that `erfs replay` runs, and which needs no scenario. A smaller plan counts only if it misses the same expectation.
    Every try is a run in simulation.

    Exit code: 0 if a smallest plan was found, 2 if there is no failure to shrink or --runs did not suffice, 3 after Ctrl-C (the
    smallest so far is written), 64 bad input.

    Example: erfs shrink out/two-links-seed17/journal.jsonl --out smallest.json
    """
    from erfs_scenario.backends import refuse_plan
    from erfs_scenario.plan_file import load_plan, write_plan
    from erfs_scenario.shrinking import Shrinker

    plan, _ = load_plan(source)
    refuse_plan(plan, "sim", str(source))
    path = out or Path(f"{plan.name}-shrunk.json")
    is_interrupted = is_minimal = False
    shrinker: Shrinker | None = None
    try:
        with terminable(), _progress() as on_run:
            shrinker = Shrinker(plan, runs_max=runs, on_run=on_run)
            is_minimal = shrinker.shrink().is_minimal
    except KeyboardInterrupt:
        is_interrupted = True
    if shrinker is None:
        click.echo("erfs: interrupted", err=True)
        return Exit.ABORTED
    is_failing = shrinker.finding.outcome == "failed"
    if is_failing:
        write_plan(shrinker.plan, path)
    if as_json:
        result = {
            "outcome": shrinker.finding.outcome,
            "check": shrinker.finding.check,
            "reason": shrinker.finding.reason,
            "is_minimal": is_minimal,
            "runs": shrinker.runs,
            "before": _size_of(plan),
            "after": _size_of(shrinker.plan),
            "plan": str(path) if is_failing else None,
        }
        click.echo(json.dumps(result, indent=2, sort_keys=True))
    elif not is_failing:
        click.echo(f"nothing to shrink: the plan {_said(shrinker.finding.outcome)} in simulation")
    else:
        _show(plan, shrinker.plan)
        ended = "as small as leaving out makes it" if is_minimal else "perhaps not the smallest"
        click.echo(f"fails {shrinker.finding.check}; {shrinker.runs:,} runs, {ended}")
        click.echo(f"replay: {shlex.join(['erfs', 'replay', str(path)])}")
    if is_interrupted:
        click.echo("erfs: interrupted", err=True)
        return Exit.ABORTED
    return Exit.PASSED if is_minimal else Exit.UNDECIDABLE


def _said(outcome: str) -> str:
    return "passes" if outcome == "passed" else "is undecidable"


def _size_of(plan: "Plan") -> dict[str, Any]:
    return {
        "faults": len(plan.faults),
        "targets": sum(max(1, len(fault.links) + len(fault.nodes)) for fault in plan.faults),
        "nodes": len(plan.fabric.nodes),
        "links": len(plan.fabric.links),
        "duration_ns": plan.duration_ns,
    }


def _show(before: "Plan", after: "Plan") -> None:
    from rich.console import Console
    from rich.table import Table

    from erfs.units import format_duration

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 118)
    table = Table("", "before", "after", box=None, pad_edge=False)
    small = _size_of(after)
    for name, large in _size_of(before).items():
        if name == "duration_ns":
            table.add_row("lasts", format_duration(large), format_duration(small[name]))
        else:
            table.add_row(name, f"{large:,}", f"{small[name]:,}")
    console.print(table)
    faults = Table("at", "for", "fault", "what", "target", box=None, pad_edge=False)
    for fault in after.faults:
        lasts = format_duration(fault.end_at_ns - fault.at_ns)
        faults.add_row(format_duration(fault.at_ns), lasts, fault.id, fault.kind.value, after.describe_target(fault))
    console.print(faults)


@contextmanager
def _progress() -> "Iterator[Callable[[Plan, int], None]]":
    """Yield what to call after each run: a line on a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _plan, _runs: None
        return
    from rich.console import Console

    with Console(stderr=True).status("shrinking") as status:

        def told(plan: "Plan", runs: int) -> None:
            size = f"{len(plan.faults)} faults, {len(plan.fabric.nodes)} nodes"
            status.update(f"shrinking: {runs:,} runs, {size}")

        yield told
