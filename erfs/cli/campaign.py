"""`erfs campaign`: does a scenario hold for any seed?

Rule 1: what is written is the same bytes for any number of workers: seeds are told in their order, and no times.
Rule 2: what is known is written, however it ends.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from erfs.cli.interrupts import terminable
from erfs.cli.main import Exit
from erfs.cli.report import show, write_file
from erfs.cli.run import prepare
from erfs.cli.settings import setting

if TYPE_CHECKING:
    from erfs_scenario.campaign import SeedFinding
    from erfs_scenario.campaign_report import CampaignReport

RESULT = "campaign.json"
# More seeds than this scroll the first away; campaign.json has them all.
ROWS_MAX = 20


@click.command(name="campaign")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="How many seeds.")
@click.option("--first-seed", type=click.IntRange(min=0), default=1, show_default=True, help="The first of them.")
@click.option(
    "--fabric", type=click.Path(path_type=Path), help="Run on this fabric file instead of the scenario's fabric."
)
@setting
@click.option("--no-protection", is_flag=True, help="Arm nothing: every repair waits for the controller.")
@click.option("--jobs", type=click.IntRange(min=1), help="Worker processes. [default: the usable cores, if it pays]")
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Let a running Dask scheduler's workers do it.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Where to write; out/NAME-campaign by default."
)
@click.option("--force", is_flag=True, help="Overwrite an earlier campaign in that folder.")
@click.option("--json", "as_json", is_flag=True, help="Print campaign.json instead of tables.")
def command(
    scenario: Path,
    seeds: int,
    first_seed: int,
    fabric: Path | None,
    settings: dict[str, str],
    no_protection: bool,
    jobs: int | None,
    scheduler: str | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """Run SCENARIO in simulation with many seeds, and tell which of them fail, why, and how sure that is.

    Each seed is put to two questions. Safety: did anything happen that was not to happen, while faults came and went? Then liveness:
    after the last fault, is everything good in the end? A run that crashes is unsafe.

    Writes campaign.json, and plans/seed-N.json for what fails: `erfs replay` runs such a plan again, `erfs shrink` makes it small.

    Exit code: 0 if no seed failed, 1 if one did, 2 if some were undecidable and none failed, 3 after Ctrl-C (what is known is written),
    4 if a fault did not happen as asked, 64 bad input, 70 the harness broke.

    Example: erfs campaign scenarios/library/two-links.yaml --seeds 200 --jobs 4
    """
    from erfs.cli.run import fabric_for
    from erfs.cli.workers import progress, workers_for
    from erfs_scenario.backends import refuse_unsupported
    from erfs_scenario.campaign import VALIDITY, Work, examine_seed
    from erfs_scenario.campaign_report import campaign_report
    from erfs_scenario.plan_file import write_plan
    from erfs_scenario.schema import load_scenario

    file = load_scenario(scenario, settings)
    work = Work(file, fabric_for(file, fabric), is_protecting=False if no_protection else None)
    plan = work.plan(first_seed)
    refuse_unsupported(plan, "sim", file)
    found: list[SeedFinding] = []
    is_interrupted = False
    try:
        with terminable(), workers_for(jobs, scheduler) as workers:
            folder = out or Path("out") / f"{plan.name}-campaign"
            prepare(folder, force, (RESULT,))
            for old in (folder / "plans").glob("seed-*.json"):
                old.unlink()
            with progress(plan.name, seeds) as advance:
                for finding in workers(examine_seed, work, range(first_seed, first_seed + seeds)):
                    found.append(finding)
                    advance()
    except KeyboardInterrupt:
        is_interrupted = True
    report = campaign_report(plan, first_seed, seeds, found)
    text = report.model_dump_json(indent=2)
    write_file(folder / RESULT, text + "\n")
    for one in report.findings:
        if one.plan is not None:
            write_plan(work.plan(one.seed), folder / one.plan)
    if as_json:
        click.echo(text)
    else:
        again = ["erfs", "run", str(scenario), *([] if fabric is None else ["--fabric", str(fabric)])]
        again += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        _show(report, folder, again + (["--no-protection"] if no_protection else []))
    if is_interrupted:
        click.echo("erfs: interrupted", err=True)
        return Exit.ABORTED
    if any(one.check == VALIDITY for one in report.findings):
        return Exit.INVALID
    if report.failed:
        return Exit.MISSED
    return Exit.UNDECIDABLE if report.undecidable else Exit.PASSED


def _show(report: "CampaignReport", folder: Path, again: list[str]) -> None:
    from rich.text import Text

    from erfs_scenario.tables import figure_interval, figure_value, plain_table

    run = f"{report.seeds_asked:,}"
    if report.seeds_run < report.seeds_asked:
        run = f"{report.seeds_run:,} of {run}"
    counts = f"{report.passed:,} passed, {report.failed:,} failed, {report.undecidable:,} undecidable"
    last = report.first_seed + report.seeds_run - 1
    head = Text(f"{report.name}, seeds {report.first_seed} to {last}: {report.fabric.name}", style="bold")
    console = show([head, Text(f"{run} seeds: {counts}")])

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    share = report.failing
    if share.interval is not None:
        interval = f"{figure_interval(share, share.interval)}, {share.interval.method}"
        line(f"{share.name}: {figure_value(share)}; {interval}")
    # What fails first: of hundreds that are undecidable only some are shown.
    told = sorted(report.findings, key=lambda one: (one.outcome, one.seed))
    if told:
        table = plain_table("seed", ("outcome", "phase", "expectation", "reason"))
        for column in table.columns[1:]:
            column.justify = "left"
        for one in told[:ROWS_MAX]:
            table.add_row(str(one.seed), one.outcome, one.phase or "-", one.check or "-", Text(one.reason))
        console.print()
        console.print(table)
    if len(told) > ROWS_MAX:
        line(f"… and {len(told) - ROWS_MAX:,} more seeds, in {folder / RESULT}")
    first = next((one for one in told if one.plan is not None), None)
    if first is not None and first.plan is not None:
        plan = str(folder / first.plan)
        line(f"\nreplay seed {first.seed}: {shlex.join(['erfs', 'replay', plan])}")
        line(
            f"make it small: {shlex.join(['erfs', 'shrink', plan, '--out', str(folder / f'seed-{first.seed}-shrunk.json')])}"
        )
    elif told:
        line(f"\nrun seed {told[0].seed} again: {shlex.join([*again, '--seed', str(told[0].seed)])}")
    line(f"campaign: {folder / RESULT}")
