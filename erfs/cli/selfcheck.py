"""`erfs selfcheck`: does a scenario give the same journal in two processes that hash differently?

Rule 1: both runs are ordinary ones, from reading the file on, each in a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from erfs.cli.interrupts import terminable
from erfs.cli.main import Exit
from erfs.cli.report import JOURNAL
from erfs.cli.settings import setting

HASH_SEEDS: Final = ("0", "1")


@click.command(name="selfcheck")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--fabric", type=click.Path(path_type=Path), help="Run on this fabric file instead of the scenario's fabric."
)
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the scenario's seed.")
@setting
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(scenario: Path, fabric: Path | None, seed: int | None, settings: dict[str, str], as_json: bool) -> int:
    """Run SCENARIO twice in simulation, under different hash seeds, and show the first line in which the journals differ.

    Exit code: 0 if they are the same bytes, 1 if not, 3 after Ctrl-C, 64 bad input, 70 a run broke.

    Example: erfs selfcheck scenarios/library/two-links.yaml
    """
    from erfs_scenario.selfcheck import first_difference, is_whole

    options = [] if fabric is None else ["--fabric", str(fabric)]
    options += [] if seed is None else ["--seed", str(seed)]
    options += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    try:
        with tempfile.TemporaryDirectory(prefix="erfs-selfcheck-") as folder, terminable():
            journals = []
            for hash_seed in HASH_SEEDS:
                out = Path(folder) / hash_seed
                done = subprocess.run(  # noqa: S603 -- this very program
                    [sys.executable, "-m", "erfs", "run", str(scenario), "--out", str(out), *options],
                    env=os.environ | {"PYTHONHASHSEED": hash_seed},
                    capture_output=True,
                    text=True,
                )
                journal = out / JOURNAL
                if not journal.is_file() or not is_whole(journal):
                    click.echo(done.stderr, err=True, nl=False)
                    return Exit.USAGE if done.returncode == Exit.USAGE else Exit.HARNESS
                journals.append(journal)
            with journals[0].open("rb") as one, journals[1].open("rb") as other:
                difference = first_difference(one, other)
            with journals[0].open("rb") as one:
                count = sum(1 for _ in one)
    except KeyboardInterrupt:
        click.echo("erfs: interrupted", err=True)
        return Exit.ABORTED
    if as_json:
        found = None if difference is None else difference.to_json(("one", "other"))
        result = {"is_same": difference is None, "hash_seeds": HASH_SEEDS, "lines": count, "difference": found}
        click.echo(json.dumps(result, indent=2, sort_keys=True))
    elif difference is None:
        click.echo(f"the same {count:,} lines under hash seeds {' and '.join(HASH_SEEDS)}")
    else:
        click.echo(difference.told((f"hash seed {HASH_SEEDS[0]}", f"hash seed {HASH_SEEDS[1]}")))
    return Exit.PASSED if difference is None else Exit.MISSED
