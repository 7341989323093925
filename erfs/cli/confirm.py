"""`erfs confirm`: an operator's word that a generation which the controller refused may be pushed after all.

Rule 1: it says one message and ends; whether it meant a refusal that stands is the controller's to say.
"""

import asyncio
import os
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import click

from erfs.units import SECOND

if TYPE_CHECKING:
    from erfs.aio.mqtt import BusSettings

# To connect and to have the message acknowledged; on a loopback or management network a few ms.
DEADLINE_NS: Final = 5 * SECOND


def _address(_: click.Context, __: click.Parameter, value: str) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f'"{value}" is not HOST:PORT, such as 127.0.0.1:1883')
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command("confirm")
@click.argument("generation", type=click.IntRange(min=1))
@click.option("--reason", required=True, help="Why the withdrawal is meant; it goes to the controller's journal.")
@click.option("--broker", callback=_address, default="127.0.0.1:1883", show_default=True, metavar="HOST:PORT")
@click.option("--prefix", default="erfs/v1", show_default=True, help="The topics of the fabric.")
@click.option("--username", help="Who may confirm; the password is read from the environment, ERFS_PASSWORD.")
def command(generation: int, reason: str, broker: tuple[str, int], prefix: str, username: str | None) -> None:
    """Let the controller push GENERATION, which it refused.

    The controller refuses a push that takes away what agents still report as reachable, says "push_refused" in its log and
    journal with the generation, and waits. If the withdrawal is meant, confirm it; else repair the fabric file and reload.

    Example: erfs confirm 42 --reason "pod 3 was taken out of service"
    """
    from pydantic import ValidationError

    from erfs.aio.mqtt import BrokerAddress, BusSettings
    from erfs.errors import ErfsError

    if not reason.strip():
        raise click.BadParameter("say why, for whoever reads the journal later", param_hint="--reason")
    host, port = broker
    try:
        settings = BusSettings.model_validate(
            {
                "brokers": (BrokerAddress(host=host, port=port),),
                "prefix": prefix,
                "username": username,
                "password": os.environ.get("ERFS_PASSWORD") if username else None,
            }
        )
    except ValidationError as error:
        raise click.UsageError("; ".join(details["msg"] for details in error.errors())) from None
    if not asyncio.run(_say(settings, generation, reason)):
        raise ErfsError(f"no broker at {host}:{port} took the confirmation within {DEADLINE_NS // SECOND} s")
    click.echo(f"generation {generation} confirmed; the controller's journal says whether it was pushed")


async def _say(settings: "BusSettings", generation: int, reason: str) -> bool:
    """Publish the confirmation; return whether a broker acknowledged it."""
    from erfs.aio import edge
    from erfs.aio.mqtt import MqttBus
    from erfs.ids import NodeId
    from erfs.messages import Confirm
    from erfs.ports import Publish
    from erfs.topics import Address, Channel, Topics

    sender = settings.username or "operator"
    bus = MqttBus(settings, f"confirm-{os.getpid()}-{SystemRandom().getrandbits(24):06x}", rng=SystemRandom())
    message = Confirm(sender=NodeId(sender), generation=generation, reason=reason)
    edge.publish(bus, Topics(settings.prefix), Publish(Address(Channel.CONFIRM), message))
    serving = asyncio.create_task(bus.run(), name="bus")
    try:
        return await bus.drain(DEADLINE_NS)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
