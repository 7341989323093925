"""`erfs plan`: what exactly would a scenario do? The concrete faults, and whom they could harm."""

import json
import sys
from pathlib import Path

import click

from erfs.cli.main import Exit
from erfs.cli.settings import setting


@click.command(name="plan")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--fabric", type=click.Path(path_type=Path), help="Plan for this fabric file instead of the scenario's fabric."
)
@click.option(
    "--backend",
    type=click.Choice(["sim", "live", "kernel"]),
    help="As a run on it would be: refused if it cannot do a fault, and on the fabric that the scenario names for it.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the scenario's seed.")
@setting
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    scenario: Path,
    fabric: Path | None,
    backend: str | None,
    seed: int | None,
    settings: dict[str, str],
    as_json: bool,
) -> int:
    """Show the faults SCENARIO would inject, with all chance drawn, and the demands they could affect.

    Example: erfs plan scenarios/library/two-links.yaml --seed 3
    """
    from rich.console import Console
    from rich.table import Table

    from erfs.cli.run import fabric_for
    from erfs.units import format_duration
    from erfs_scenario.backends import refuse_unsupported
    from erfs_scenario.plan import compile_plan
    from erfs_scenario.preview import reach_of_faults
    from erfs_scenario.schema import load_scenario

    file = load_scenario(scenario, settings)
    plan = compile_plan(file, fabric_for(file, fabric, backend or "sim"), seed=seed)
    if backend is not None:
        refuse_unsupported(plan, backend, file)
    reach = reach_of_faults(plan)
    if as_json:
        header = plan.header(backend or "none")
        for fault in header["faults"]:
            found = reach[fault["id"]]
            fault |= {"flows": found.flows, "demands": found.demands, "far_flows": found.far_flows}
        click.echo(json.dumps(header, indent=2, sort_keys=True))
        return Exit.PASSED
    count = sum(demands.count for demands in plan.demands)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 118)
    console.print(
        f"{plan.name}, seed {plan.seed}: {plan.fabric.name}, {count:,} demands, measured from"
        f" {format_duration(plan.measure_from_ns)} to {format_duration(plan.duration_ns)}"
    )
    table = Table("at", "for", "fault", "what", "target", "flows", "far end", "demands", box=None, pad_edge=False)
    for fault in plan.faults:
        found = reach[fault.id]
        table.add_row(
            format_duration(fault.at_ns),
            format_duration(fault.end_at_ns - fault.at_ns),
            fault.id,
            fault.kind.value,
            plan.describe_target(fault),
            str(found.flows),
            str(found.far_flows),
            f"{found.demands:,}",
        )
    console.print(table)
    if plan.passed_over:
        refused = Table("at", "passed over", "as held by", "what", box=None, pad_edge=False)
        for passed in plan.passed_over:
            refused.add_row(format_duration(passed.at_ns), passed.fault, passed.by, ", ".join(passed.things))
        console.print(refused)
    if plan.rates:
        rates = Table("rate", "things", "expected", "drawn", "faults", "stretched", "basis", box=None, pad_edge=False)
        for use in plan.rates:
            figures = (use.things, f"{use.expected_events:.3g}", use.events, use.faults, use.stretched, use.basis)
            rates.add_row(use.name, *map(str, figures))
        console.print(rates)
    return Exit.PASSED
