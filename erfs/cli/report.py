"""`erfs report`: judge a run again from its journal alone, and write what is told of it.

Rule 1: only the journal is read: what a run wrote beside it may be gone, and is written anew.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from erfs.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rich.console import Console

    from erfs_scenario.report import Report

JOURNAL = "journal.jsonl"
WRITTEN = ("report.json", "report.html")
"""What is made of a journal."""
_FILE = click.Path(path_type=Path, dir_okay=False)


def read_report(folder: Path) -> "Report":
    """
    Return the report on the run in *folder*.

    Raises:
        ConfigError: there is no journal, or it holds no run.
    """
    from erfs_scenario.judging import judge

    journal = folder / JOURNAL
    if not journal.is_file():
        message = f"there is no {JOURNAL} in this folder"
        raise ConfigError(
            str(folder), [Problem(0, message, suggestion="name the folder that `erfs run --out` wrote to")]
        )
    return judge(journal)


def write_report(report: "Report", folder: Path) -> str:
    """Write report.json and report.html to *folder*; return the text of the first."""
    from erfs_scenario.rendering import html_of

    text = report.model_dump_json(indent=2, by_alias=True)
    write_file(folder / "report.json", text + "\n")
    write_file(folder / "report.html", html_of(report))
    return text


def write_file(path: Path, text: str) -> None:
    """Write *text* to *path*. Raises ConfigError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(str(path), [Problem(0, f"cannot be written: {error.strerror or error}")]) from None


def show(parts: Iterable[Any]) -> "Console":
    """Print texts and tables of rich one below the other; return where, for what is to follow."""
    from rich.console import Console

    # Away from a terminal there is no width to ask for; 118 holds every table without folding.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 118)
    for part in parts:
        console.print(part)
    return console


def show_report(report: "Report", folder: Path | None) -> None:
    """Print *report* as tables, and where its page is; without a *folder* there is none."""
    from erfs_scenario.tables import tables_of

    console = show(tables_of(report))
    if folder is not None:
        console.print(f"report: {folder / 'report.html'}", markup=False, soft_wrap=True)


@click.command(name="report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print report.json instead of tables.")
@click.option("--junit", type=_FILE, help="Also write JUnit XML there, for a build server.")
@click.option("--markdown", type=_FILE, help="Also write a summary in Markdown there.")
@click.option("--openslo", type=_FILE, help="Also write the availability asked for as OpenSLO v1 there.")
def command(folder: Path, as_json: bool, junit: Path | None, markdown: Path | None, openslo: Path | None) -> int:
    """Judge the run in DIR again and write its reports anew, from its journal alone.

    A journal that breaks off, because its run was killed or its machine died, is judged as far as it goes: undecidable.
    Exit code: that of the verdict, as with `erfs run`; 64 if there is no journal of a run.

    Example: erfs report out/single-link-seed1 --junit junit.xml
    """
    from erfs_scenario.exporting import junit_of, markdown_of, openslo_of

    report = read_report(folder)
    text = write_report(report, folder)
    for path, export in ((junit, junit_of), (markdown, markdown_of), (openslo, openslo_of)):
        if path is not None:
            write_file(path, export(report))
    if as_json:
        click.echo(text)
    else:
        show_report(report, folder)
    return report.verdict.exit_code
