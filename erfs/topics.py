"""Every MQTT topic, and who may write it. The access-control template in deploy/ says the same to the broker.

Rule 1: no other file spells a topic.
Rule 2: the last segments name the writer, so a broker can bind them to a client's name.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from erfs.ids import NodeId


class Channel(StrEnum):
    """The kinds of topic. The value is the segment on the wire."""

    HEALTH = "health"  # agent -> controller
    ACK = "ack"  # agent -> controller
    PRESENCE = "presence"  # agent, retained, last will
    FACT = "fact"  # agent, retained, per reporter and port
    CANNOT_REACH = "cannot_reach"  # agent, retained
    PROGRAM = "program"  # controller -> agent, retained
    LEADER = "leader"  # controller, retained, last will
    CONFIRM = "confirm"  # operator -> controller
    DRAIN = "drain"  # operator -> controller
    DRAIN_ANSWER = "drain_answer"  # controller -> operator, per request
    DRAINS = "drains"  # controller, retained


NOBODY: Final = NodeId("")
_CHANNELS: Final = frozenset(channel.value for channel in Channel)
RETAINED = frozenset(
    {Channel.PRESENCE, Channel.FACT, Channel.CANNOT_REACH, Channel.PROGRAM, Channel.LEADER, Channel.DRAINS}
)


@lru_cache(maxsize=1 << 16)
def _segment(name: str) -> str:
    """Return *name* as one segment of a topic; thousands of agents spell the same few thousand names again and again."""
    return quote(name, safe="")


@dataclass(frozen=True, slots=True)
class Address:
    """A topic taken apart: what it carries, which node it belongs to (writer; for programs the reader; for answers the request), which port."""

    channel: Channel
    node: NodeId = NOBODY
    port: str = ""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics below one *prefix*; one prefix is one fabric."""

    prefix: str = "erfs/v1"

    def topic(self, address: Address) -> str:
        """Return the topic of *address*."""
        parts = [self.prefix, address.channel.value]
        parts += [_segment(part) for part in (address.node, address.port) if part]
        return "/".join(parts)

    def address(self, topic: str) -> Address | None:
        """Return what *topic* means, or None if it is not ours."""
        head, _, rest = topic.partition(f"{self.prefix}/")
        if head or not rest:
            return None
        channel, *names = rest.split("/")
        if channel not in _CHANNELS or len(names) > 2:
            return None
        node, port = ([unquote(name) for name in names] + ["", ""])[:2]
        return Address(Channel(channel), NodeId(node), port)

    def all_of(self, channel: Channel) -> str:
        """Return the filter for every topic of *channel*."""
        return f"{self.prefix}/{channel.value}/#"

    def facts_of(self, reporter: NodeId) -> str:
        """Return the filter for every fact of *reporter*."""
        return f"{self.prefix}/{Channel.FACT.value}/{_segment(reporter)}/+"
