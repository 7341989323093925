"""`erfs drain`: take a node, link, shared-risk group or rack out of use without losing a packet.

Rule 1: it says what is wanted and tells what the controller answers; the controller alone decides.
"""

import click

from erfs.cli.operator import ask, bus_options, duration, settings_of
from erfs.units import MINUTE


@click.command("drain")
@click.argument("target")
@click.option("--hard", "strength", flag_value="hard", default=True, help="Carry nothing through it; the default.")
@click.option("--soft", "strength", flag_value="soft", help="Use it only where nothing else remains.")
@click.option(
    "--for", "lasts_ns", callback=duration, metavar="DURATION", help='Undo it by itself after this, such as "2 h".'
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what it would do, and do nothing.")
@click.option(
    "--force", metavar="REASON", help="Do it though the path floor forbids it; the reason goes to the journal."
)
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
    target: str,
    strength: str,
    lasts_ns: int | None,
    is_dry_run: bool,
    force: str | None,
    wait_ns: int | None,
    is_json: bool,
    broker: tuple[str, int],
    prefix: str,
    username: str | None,
) -> int:
    """Take TARGET out of use: a node, a link, a shared-risk group, or the switches of a rack.

    TARGET is its identity or name. A link may also be spelled by one end ("leaf1:e3") or both nodes ("leaf1 - spine2"). Where several
    things have one name, say "node:", "link:", "srlg:" or "rack:" before it.

    The controller refuses what would leave anybody with less of its paths or capacity than the path floor, or without a last path.
    Traffic is moved before anything is given up. A drain holds until "erfs undrain", or for the time given, also over restarts.

    Exit codes: 0 done, 2 not done yet, 3 refused.

    Example: erfs drain spine3 --for "2 h"
    """
    if force is not None and not force.strip():
        raise click.BadParameter("say why, for whoever reads the journal later", param_hint="--force")
    if lasts_ns == 0:
        raise click.BadParameter("no time at all", param_hint="--for")
    return ask(
        settings_of(broker, prefix, username),
        wait_ns or MINUTE,
        is_json=is_json,
        action="drain",
        target=target,
        strength=strength,
        lasts_ns=lasts_ns,
        is_dry_run=is_dry_run,
        force=(force or "").strip(),
    )
