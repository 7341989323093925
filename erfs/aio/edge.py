"""Where bytes become messages and messages become bytes; shared by agents, controller and simulator.

Rule 1: no core ever sees bytes, a topic, or a message whose sender is not the one its topic belongs to.
Rule 2: nothing bad that arrives raises further than here: it is counted, logged and gone.
"""

from dataclasses import dataclass, field
from typing import Final

import structlog

from erfs.aio.gaps import GapCounter
from erfs.errors import WireError
from erfs.ids import NodeId
from erfs.messages import (
    CONTROLLER,
    Ack,
    CannotReach,
    Confirm,
    DownFact,
    DrainAnswer,
    DrainRequest,
    Drains,
    Health,
    Leader,
    Message,
    Presence,
    Program,
    decode,
    encode,
)
from erfs.ports import Bus, Delivered, Incoming, Publish, Subscribe
from erfs.topics import RETAINED, Address, Channel, Topics

KINDS: Final[dict[Channel, type[Message]]] = {
    Channel.HEALTH: Health,
    Channel.ACK: Ack,
    Channel.PRESENCE: Presence,
    Channel.FACT: DownFact,
    Channel.CANNOT_REACH: CannotReach,
    Channel.PROGRAM: Program,
    Channel.LEADER: Leader,
    Channel.CONFIRM: Confirm,
    Channel.DRAIN: DrainRequest,
    Channel.DRAIN_ANSWER: DrainAnswer,
    Channel.DRAINS: Drains,
}
# Written by the controller alone, or by operators; every other channel is written by the node of its topic.
_BY_CONTROLLER: Final = frozenset({Channel.PROGRAM, Channel.LEADER, Channel.DRAIN_ANSWER, Channel.DRAINS})
_BY_OPERATORS: Final = frozenset({Channel.CONFIRM, Channel.DRAIN})

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Tally:
    """What a receiver counts at its edge."""

    refused_count: int = 0
    gaps: GapCounter = field(default_factory=GapCounter)


def check(address: Address, message: Message) -> None:
    """
    Check that *message* may come by *address*.

    Raises:
        WireError: the wrong kind for the channel, a sender other than the one the topic belongs to, another node's program,
            another request's answer, or another port's fact.
    """
    channel = address.channel
    if type(message) is not KINDS[channel]:
        raise WireError(f'channel "{channel}" carried a message of kind "{message.kind}"')
    if channel in _BY_OPERATORS:
        return
    sender = CONTROLLER if channel in _BY_CONTROLLER else address.node
    if message.sender != sender:
        raise WireError(f'channel "{channel}" of "{sender}" carried a message of "{message.sender}"')
    if isinstance(message, Program) and message.node != address.node:
        raise WireError(f'the program topic of "{address.node}" carried the program of "{message.node}"')
    if isinstance(message, DrainAnswer) and message.request != address.node:
        raise WireError(f'the answers to "{address.node}" carried one to "{message.request}"')
    if isinstance(message, DownFact) and message.port != address.port:
        raise WireError(f'the fact topic of port "{address.port}" carried a fact of port "{message.port}"')


def receive(topics: Topics, incoming: Incoming, tally: Tally | None = None) -> Delivered | None:
    """
    Return what arrived as an event, or None if it is not for a core: another's topic, a cleared one, or refused.

    What is refused (unreadable, or said by someone who may not) is logged, and counted in *tally*.
    """
    address = topics.address(incoming.topic)
    if address is None or not incoming.payload:
        return None
    try:
        message = decode(incoming.payload)
        check(address, message)
    except WireError as error:
        _log.warning("message_refused", topic=incoming.topic, reason=str(error))
        if tally is not None:
            tally.refused_count += 1
        return None
    if tally is not None and not incoming.is_retained:
        tally.gaps.observe(message)
    return Delivered(address, message, incoming.is_retained)


def publish(bus: Bus, topics: Topics, command: Publish) -> None:
    """Encode and queue the message of *command*; its channel says whether it is retained."""
    bus.publish(
        topics.topic(command.address),
        encode(command.message),
        retain=command.address.channel in RETAINED,
        priority=command.priority,
    )


def filters(topics: Topics, command: Subscribe) -> frozenset[str]:
    """Return the topic filters that *command* means."""
    return frozenset(
        [topics.all_of(channel) for channel in command.channels]
        + [topics.topic(address) for address in command.addresses]
        + [topics.facts_of(NodeId(reporter)) for reporter in command.facts_of]
    )


def will(topics: Topics, command: Publish) -> tuple[str, bytes]:
    """Return the topic and payload of a last will; the broker says it, retained, if the client vanishes."""
    return topics.topic(command.address), encode(command.message)
