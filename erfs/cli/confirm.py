"""`erfs confirm`: an operator's word that a generation which the controller refused may be pushed after all.

Rule 1: it says one message and ends; whether it meant a refusal that stands is the controller's to say.
"""

import asyncio
from typing import TYPE_CHECKING

import click

from erfs.cli.operator import DEADLINE_NS, bus_options, new_bus, settings_of
from erfs.units import SECOND

if TYPE_CHECKING:
    from erfs.aio.mqtt import BusSettings


@click.command("confirm")
@click.argument("generation", type=click.IntRange(min=1))
@click.option("--reason", required=True, help="Why the withdrawal is meant; it goes to the controller's journal.")
@bus_options
def command(generation: int, reason: str, broker: tuple[str, int], prefix: str, username: str | None) -> None:
    """Let the controller push GENERATION, which it refused.

    The controller refuses a push that takes away what agents still report as reachable, says "push_refused" in its log and
    journal with the generation, and waits. If the withdrawal is meant, confirm it; else repair the fabric file and reload.

    Example: erfs confirm 42 --reason "pod 3 was taken out of service"
    """
    from erfs.errors import ErfsError

    if not reason.strip():
        raise click.BadParameter("say why, for whoever reads the journal later", param_hint="--reason")
    settings = settings_of(broker, prefix, username)
    if not asyncio.run(_say(settings, generation, reason)):
        raise ErfsError(f"no broker at {settings.brokers[0]} took the confirmation within {DEADLINE_NS // SECOND} s")
    click.echo(f"generation {generation} confirmed; the controller's journal says whether it was pushed")


async def _say(settings: "BusSettings", generation: int, reason: str) -> bool:
    """Publish the confirmation; return whether a broker acknowledged it."""
    from erfs.aio import edge
    from erfs.ids import NodeId
    from erfs.messages import Confirm
    from erfs.ports import Publish
    from erfs.topics import Address, Channel, Topics

    sender = settings.username or "operator"
    bus = new_bus(settings, "confirm")
    message = Confirm(sender=NodeId(sender), generation=generation, reason=reason)
    edge.publish(bus, Topics(settings.prefix), Publish(Address(Channel.CONFIRM), message))
    serving = asyncio.create_task(bus.run(), name="bus")
    try:
        return await bus.drain(DEADLINE_NS)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
