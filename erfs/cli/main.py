"""The `erfs` command: finds a subcommand's file, loads it on use, and turns errors into messages and exit codes.

Rule 1: a subcommand is one file here, named in SUBCOMMANDS, with a click command called ``command``.
Rule 2: a user never sees a traceback for their own mistake.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import click

from erfs.errors import ConfigError, ErfsError, FabricError

SUBCOMMANDS: Final = {
    "fabric": "look at a fabric file, or generate one",
    "sweep": "find what breaks if any link, switch or risk group fails",
    "paths": "show the paths between two places, and disjoint ones",
    "run": "run a scenario and judge it",
    "plan": "show the concrete faults a scenario would inject",
    "check": "check scenario files, all errors at once",
    "campaign": "run a scenario with many seeds, and tell which fail",
    "replay": "run the plan in a journal or a file again, byte for byte",
    "shrink": "make a failing run as small as it can be",
    "selfcheck": "run a scenario twice under different hash seeds",
    "report": "judge a run again from its journal, and write its reports anew",
    "compare": "compare two runs of the same faults, event by event",
    "broker": "run the embedded MQTT broker",
    "lab": "run a fabric as network namespaces, with real agents",
    "drain": "take a node, link, shared-risk group or rack out of use",
    "undrain": "let what was drained carry traffic again",
    "drains": "list what is drained",
    "confirm": "let the controller push a generation it refused",
}


class Exit(IntEnum):
    """Exit codes of `erfs`; where several apply the first of 70, 75, 4, 3, 2, 1 counts."""

    PASSED = 0
    MISSED = 1
    UNDECIDABLE = 2
    ABORTED = 3
    INVALID = 4
    USAGE = 64
    HARNESS = 70
    RESIDUE = 75


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(f"erfs.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="erfs")
def erfs() -> None:
    """Keep a GPU cluster's network delivering while its parts fail, and prove it.

    Example: erfs run scenarios/library/single-link.yaml
    """


def main() -> None:
    """Run `erfs`; the entry point of the package."""
    sys.exit(reporting_errors(lambda: erfs.main(standalone_mode=False)))


def reporting_errors(run: Callable[[], int | None]) -> int:
    """Call *run*; return its exit code, or that of the error which ended it, told on standard error."""
    try:
        code = run()
    except click.exceptions.Abort:
        _say("interrupted")
        code = 130
    except click.ClickException as error:
        error.show()
        code = Exit.USAGE
    except (ConfigError, FabricError) as error:
        _say(str(error))
        code = Exit.USAGE
    except ErfsError as error:
        _say(str(error))
        code = Exit.HARNESS
    except BrokenPipeError:
        # The reader (head, less) went away; that is not our failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception:  # noqa: BLE001 -- told in full, and an exit code of its own
        # Python's own exit code for this is 1, which would say that an objective was missed.
        traceback.print_exc()
        code = Exit.HARNESS
    return int(code or 0)


def _say(message: str) -> None:
    click.echo(f"erfs: {message}", err=True)
