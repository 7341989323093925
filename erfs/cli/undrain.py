"""`erfs undrain`: let what was drained carry traffic again.

Rule 1: as for `erfs drain`: it says what is wanted and tells what the controller answers.
"""

import click

from erfs.cli.operator import ask, bus_options, duration, settings_of
from erfs.units import MINUTE


@click.command("undrain")
@click.argument("target")
@click.option(
    "--wait",
    "wait_ns",
    callback=duration,
    metavar="DURATION",
    default="60 s",
    show_default=True,
    help="How long to wait until it is done.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the controller's answers, one JSON object a line.")
@bus_options
def command(
    target: str, wait_ns: int | None, is_json: bool, broker: tuple[str, int], prefix: str, username: str | None
) -> int:
    """Let TARGET, which was drained, carry traffic again; TARGET is spelled as for "erfs drain".

    The far ends are ready before anybody sends by it. What of it has failed stays unused until it works.

    Exit codes: 0 done, 2 not done yet, 3 refused: it is not drained.

    Example: erfs undrain spine3
    """
    settings = settings_of(broker, prefix, username)
    return ask(settings, wait_ns or MINUTE, is_json=is_json, action="undrain", target=target)
