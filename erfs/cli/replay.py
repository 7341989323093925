"""`erfs replay`: does the plan in a journal give that journal again? And what becomes of a plan in a file?

Rule 1: the plan is run as `erfs run` runs one: the same code writes the journal, so that bytes can be compared.
Rule 2: bytes are compared only where they can be the same: simulation with simulation.
"""

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from erfs.cli.main import Exit
from erfs.cli.report import JOURNAL, read_report, show_report, write_report
from erfs.cli.run import execute, prepare


@click.command(name="replay")
@click.argument("source", metavar="JOURNAL|PLAN", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(["sim", "live", "kernel"]),
    default="sim",
    show_default=True,
    help="Where to run it, as with `erfs run`. Only in simulation do instants repeat.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Keep journal and reports of the rerun there."
)
@click.option("--force", is_flag=True, help="Overwrite an earlier run in that folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(source: Path, backend: str, out: Path | None, force: bool, as_json: bool) -> int:
    """Run the plan in JOURNAL again and say in which line its bytes first differ, if they do.

    Needs nothing but the file: no scenario, no fabric. A PLAN, as `erfs campaign` and `erfs shrink` write it, is run and judged. So is
    the plan of a run in real time: its faults repeat, its instants cannot, so no bytes are compared.

    Exit code: 0 if the journal is the same, 1 if it differs, 3 after Ctrl-C; where nothing is compared that of the verdict, as with
    `erfs run`; 64 bad input.

    Examples: erfs replay out/single-link-seed1/journal.jsonl

    erfs replay out/two-links-campaign/plans/seed-17.json --out out/again
    """
    from erfs_scenario.backends import refuse_plan
    from erfs_scenario.plan_file import load_plan
    from erfs_scenario.selfcheck import first_difference, is_whole, repeatable

    plan, header = load_plan(source)
    refuse_plan(plan, backend, str(source))
    is_compared = header is not None and header["backend"] == backend == "sim"
    with ExitStack() as stack:
        folder = out
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="erfs-replay-")))
        elif folder.resolve() == source.resolve().parent:
            raise click.UsageError("--out would overwrite what is replayed: name another folder")
        prepare(folder, force)
        is_residue = execute(plan, backend, folder, None, 4)
        again = folder / JOURNAL
        report = read_report(folder)
        if out is not None:
            write_report(report, folder)
        if not is_whole(again):
            click.echo("erfs: interrupted", err=True)
            return Exit.RESIDUE if is_residue else Exit.ABORTED
        if not is_compared:
            if header is not None:
                click.echo(f"erfs: no bytes to compare: run on {header['backend']}, now on {backend}", err=True)
            if as_json:
                click.echo(report.model_dump_json(indent=2, by_alias=True))
            else:
                show_report(report, folder if out is not None else None)
            return Exit.RESIDUE if is_residue else report.verdict.exit_code
        was_whole = is_whole(source)
        with source.open("rb") as then, again.open("rb") as now:
            difference = first_difference(repeatable(then), repeatable(now), is_one_cut=not was_whole)
        with source.open("rb") as then, again.open("rb") as now:
            before, after = (sum(1 for _ in repeatable(lines)) for lines in (then, now))
    if as_json:
        found: dict[str, Any] | None = None if difference is None else difference.to_json(("then", "now"))
        result = {
            "is_same": difference is None,
            "is_whole": was_whole,
            "lines": before,
            "difference": found,
            "outcome": report.verdict.outcome,
        }
        click.echo(json.dumps(result, indent=2, sort_keys=True))
    elif difference is not None:
        click.echo(difference.told(("then", "now")))
    else:
        rest = "" if was_whole else f", where the journal breaks off; the rerun has {after:,}"
        click.echo(f"the same {before:,} lines, byte for byte{rest}")
        click.echo(f"verdict: {report.verdict.outcome}: {'; '.join(report.verdict.reasons)}")
    return Exit.PASSED if difference is None else Exit.MISSED
