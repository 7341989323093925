"""`erfs drains`: what is drained now, by whom, and until when.

Rule 1: it reads what the controller left on the bus, and says whether that controller lives.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from erfs.cli.operator import DEADLINE_NS, bus_options, listening, settings_of
from erfs.units import MS, SECOND, format_duration

if TYPE_CHECKING:
    from erfs.aio.mqtt import BusSettings
    from erfs.messages import Drain, Drains, Leader

# Where nothing has ever been drained there is no message that says so: all that is retained arrives together.
_TOGETHER_NS: Final = 500 * MS


@click.command("drains")
@click.option("--json", "is_json", is_flag=True, help="Print the controller's message as it is.")
@bus_options
def command(is_json: bool, broker: tuple[str, int], prefix: str, username: str | None) -> None:
    """List what is drained.

    Example: erfs drains
    """
    from erfs.errors import ErfsError
    from erfs.messages import CONTROLLER, Drains, encode

    drains, leader = asyncio.run(_look(settings_of(broker, prefix, username)))
    if leader is None and drains is None:
        raise ErfsError(f'no controller has led at {broker[0]}:{broker[1]} below "{prefix}"')
    drains = drains or Drains(sender=CONTROLLER)
    if is_json:
        click.echo(encode(drains).decode())
        return
    is_live = leader is not None and leader.state == "alive"
    click.echo("as the controller says" if is_live else "as the last controller left it; none leads now")
    if not drains.drains:
        click.echo("nothing is drained")
    for drain in drains.drains:
        click.echo(line_of(drain, time.time_ns()))


def line_of(drain: "Drain", wall_ns: int) -> str:
    """Return one drain for people."""
    begun = datetime.fromtimestamp(drain.begins_wall_ns / SECOND, UTC).isoformat(sep=" ", timespec="seconds")
    until = "until it is undrained"
    if drain.ends_wall_ns is not None:
        left_ns = drain.ends_wall_ns - wall_ns
        until = f"for another {format_duration(left_ns)}" if left_ns > 0 else "its time is up"
    forced = f', forced: "{drain.forced_because}"' if drain.forced_because else ""
    return f"{drain.target_kind} {drain.target}: {drain.strength}, since {begun} by {drain.by}, {until}{forced}"


async def _look(settings: "BusSettings") -> "tuple[Drains | None, Leader | None]":
    from erfs.messages import Drains, Leader
    from erfs.topics import Address, Channel

    drains: Drains | None = None
    leader: Leader | None = None
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEADLINE_NS / SECOND
    try:
        async with listening(settings, "drains", (Address(Channel.DRAINS), Address(Channel.LEADER))) as next_by:
            while drains is None or leader is None:
                match (await next_by(until_s)).message:
                    case Drains() as message:
                        drains = message
                    case Leader() as message:
                        leader = message
                until_s = min(until_s, loop.time() + _TOGETHER_NS / SECOND)
    except TimeoutError:
        pass
    return drains, leader
