"""How do operators' commands reach the controller? Where the bus is, who asks, and the answers to a request as they come.

Rule 1: nothing is decided here: what an operator may do, the broker's access list and the controller say.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from erfs.units import SECOND, format_duration, parse_duration

if TYPE_CHECKING:
    from erfs.aio.mqtt import BusSettings, MqttBus
    from erfs.messages import DrainAnswer, DrainPlan, DrainRequest, DrainShare
    from erfs.ports import Delivered, Publish
    from erfs.topics import Address

# To connect and to have a message acknowledged; on a loopback or management network a few ms.
DEADLINE_NS: Final = 5 * SECOND
# For the first answer: the controller may be computing, which takes seconds on thousands of switches, and then looks at the path floor.
ANSWER_NS: Final = 20 * SECOND

Function = TypeVar("Function", bound=Callable[..., Any])


def bus_options(function: Function) -> Function:
    """Add the options that say where the bus is and who speaks."""
    for option in (
        click.option(
            "--username", help="Who you are on the bus; the password is read from the environment, ERFS_PASSWORD."
        ),
        click.option("--prefix", default="erfs/v1", show_default=True, help="The topics of the fabric."),
        click.option("--broker", callback=_address, default="127.0.0.1:1883", show_default=True, metavar="HOST:PORT"),
    ):
        function = option(function)
    return function


def _address(_: click.Context, __: click.Parameter, value: str) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f'"{value}" is not HOST:PORT, such as 127.0.0.1:1883')
    return host.removeprefix("[").removesuffix("]"), int(port)


def duration(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read an option that is a duration, such as "2 h"."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def settings_of(broker: tuple[str, int], prefix: str, username: str | None) -> "BusSettings":
    """Return what the bus options say. Raises UsageError."""
    from pydantic import ValidationError

    from erfs.aio.mqtt import BrokerAddress, BusSettings

    try:
        return BusSettings.model_validate(
            {
                "brokers": (BrokerAddress(host=broker[0], port=broker[1]),),
                "prefix": prefix,
                "username": username,
                "password": os.environ.get("ERFS_PASSWORD") if username else None,
            }
        )
    except ValidationError as error:
        raise click.UsageError("; ".join(details["msg"] for details in error.errors())) from None


def new_bus(settings: "BusSettings", purpose: str) -> "MqttBus":
    """Return an end of the bus unlike any other's."""
    from erfs.aio.mqtt import MqttBus

    return MqttBus(settings, f"{purpose}-{os.getpid()}-{SystemRandom().getrandbits(24):06x}", rng=SystemRandom())


# --- drains ------------------------------------------------------------------------------------------------------------
def ask(settings: "BusSettings", wait_ns: int, *, is_json: bool, **request: Any) -> int:
    """
    Ask the controller to drain or undrain, tell its answers as they come, and return the exit code.

    Args:
        settings: Of the bus.
        wait_ns: How long to wait for the traffic to have moved.
        is_json: Whether to print the answers as they are, one a line.
        request: Of the fields of a `DrainRequest`, the operator's own.

    Raises:
        ErfsError: no controller answered.
    """
    from erfs.ids import NodeId
    from erfs.messages import DrainRequest

    said = DrainRequest.model_validate(
        {"sender": NodeId(settings.username or "operator"), "request": f"{SystemRandom().getrandbits(128):032x}"}
        | request
    )
    return asyncio.run(_converse(settings, said, wait_ns, is_json=is_json))


async def _converse(settings: "BusSettings", request: "DrainRequest", wait_ns: int, *, is_json: bool) -> int:
    from erfs.cli.main import Exit
    from erfs.errors import ErfsError
    from erfs.messages import encode

    last = ""
    try:
        async for answer in _answers(settings, request, wait_ns):
            if is_json:
                click.echo(encode(answer).decode())
            elif answer.state != last or answer.reasons:
                _tell(answer, is_first=not last)
            last = answer.state
    except TimeoutError:
        if not last:
            where = settings.brokers[0]
            raise ErfsError(
                f'no controller answered within {ANSWER_NS // SECOND} s at {where} below "{settings.prefix}": is one leading, '
                "and may you write to its topic?"
            ) from None
        click.echo(
            f"not done within {format_duration(wait_ns)}; it stands, and the controller goes on with it (erfs drains)",
            err=True,
        )
        return Exit.UNDECIDABLE
    return Exit.ABORTED if last == "refused" else Exit.PASSED


async def _answers(settings: "BusSettings", request: "DrainRequest", wait_ns: int) -> "AsyncIterator[DrainAnswer]":
    """Yield the answers to *request* up to the last one. Raises TimeoutError."""
    from erfs.ids import NodeId
    from erfs.messages import DrainAnswer
    from erfs.ports import Publish
    from erfs.topics import Address, Channel

    answers = Address(Channel.DRAIN_ANSWER, NodeId(request.request))
    begun_s = asyncio.get_running_loop().time()
    until_s = begun_s + ANSWER_NS / SECOND
    async with listening(settings, "drain", (answers,), Publish(Address(Channel.DRAIN), request)) as next_by:
        while True:
            message = (await next_by(until_s)).message
            if isinstance(message, DrainAnswer):
                until_s = begun_s + max(wait_ns, ANSWER_NS) / SECOND
                yield message
                if message.state in ("planned", "refused", "done"):
                    return


@asynccontextmanager
async def listening(
    settings: "BusSettings", purpose: str, addresses: "tuple[Address, ...]", word: "Publish | None" = None
) -> "AsyncIterator[Callable[[float], Awaitable[Delivered]]]":
    """
    Subscribe to *addresses*, then say *word*.

    Yields what awaits the next arrival up to an instant of the event loop's clock, and raises TimeoutError if there is none by then.
    """
    from erfs.aio import edge
    from erfs.ports import Incoming, Subscribe
    from erfs.topics import Topics

    topics = Topics(settings.prefix)
    bus = new_bus(settings, purpose)
    arrived: asyncio.Queue[Incoming] = asyncio.Queue()
    bus.on_message = arrived.put_nowait
    bus.subscribe(edge.filters(topics, Subscribe(addresses=addresses)))
    if word is not None:
        edge.publish(bus, topics, word)

    async def next_by(until_s: float) -> "Delivered":
        async with asyncio.timeout_at(until_s):
            while True:
                delivered = edge.receive(topics, await arrived.get())
                if delivered is not None:
                    return delivered

    serving = asyncio.create_task(bus.run(), name="bus")
    try:
        yield next_by
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _tell(answer: "DrainAnswer", *, is_first: bool) -> None:
    if is_first and answer.plan is not None and answer.drain is not None:
        for line in plan_lines(answer.plan):
            click.echo(line)
    match answer.state:
        case "planned":
            click.echo("nothing was done: this was a dry run")
            _tell_reasons("only with --force", answer.reasons)
        case "refused":
            _tell_reasons("refused", answer.reasons)
        case "accepted":
            click.echo("accepted; it outlives a restart of the controller")
            _tell_reasons("forced, although", answer.reasons)
        case "moving":
            click.echo("moving traffic: new routes first, then the old ones go")
        case "waiting":
            _tell_reasons("waiting", answer.reasons)
        case "done":
            click.echo("done")


def _tell_reasons(head: str, reasons: tuple[str, ...]) -> None:
    for reason in reasons:
        click.echo(f"{head}: {reason}")


def plan_lines(plan: "DrainPlan") -> list[str]:
    """Return a drain's plan for people."""
    lines = [f"{plan.target_kind} {plan.target}: {plan.link_count} links"]
    if plan.endpoint_count:
        lines.append(f"  attached to it: {_named(plan.endpoints, plan.endpoint_count)}")
    lines.append(f"  everybody else keeps {_shares(plan.shares) or 'everything'}")
    if plan.own_shares:
        lines.append(f"  what is attached to it keeps {_shares(plan.own_shares)}")
    if plan.cut_count:
        lines.append(f"  last path lost: {_named(plan.cut, plan.cut_count)}")
    return lines


def _shares(shares: "tuple[DrainShare, ...]") -> str:
    return ", ".join(
        f"at least {share.ppm / 10_000:.4g} % of {share.of} ({share.source} towards {share.destination})"
        for share in shares
    )


def _named(names: tuple[str, ...], count: int) -> str:
    more = count - len(names)
    return f"{', '.join(names)}{f' and {more} more' if more else ''}"
