"""The edge: what becomes an event for a core, and what never does."""

import pytest

from erfs.aio.edge import KINDS, Tally, check, filters, publish, receive, will
from erfs.errors import WireError
from erfs.ids import NodeId, link_id
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
    encode,
)
from erfs.ports import Delivered, Incoming, Priority, Publish, Subscribe
from erfs.topics import NOBODY, RETAINED, Address, Channel, Topics

LEAF, STRANGER = NodeId("leaf 1"), NodeId("stranger")
REQUEST = NodeId("00c0ffee")
BY_OPERATORS = (Channel.CONFIRM, Channel.DRAIN)
LINK = link_id((LEAF, "e1"), (NodeId("spine1"), "e9"))
TOPICS = Topics()

MESSAGES: dict[Channel, tuple[Address, Message]] = {
    Channel.HEALTH: (Address(Channel.HEALTH, LEAF), Health(sender=LEAF, ports=())),
    Channel.ACK: (
        Address(Channel.ACK, LEAF),
        Ack(sender=LEAF, program_epoch=1, generation=1, digest="d", outcome="installed"),
    ),
    Channel.PRESENCE: (Address(Channel.PRESENCE, LEAF), Presence(sender=LEAF, state="online")),
    Channel.FACT: (
        Address(Channel.FACT, LEAF, "e1"),
        DownFact(sender=LEAF, link=LINK, port="e1", far_end=NodeId("spine1"), counter=1, down=True),
    ),
    Channel.CANNOT_REACH: (Address(Channel.CANNOT_REACH, LEAF), CannotReach(sender=LEAF, counter=1, destinations=())),
    Channel.PROGRAM: (
        Address(Channel.PROGRAM, LEAF),
        Program(sender=CONTROLLER, node=LEAF, generation=1, digest="d", ports=(), groups=(), routes=()),
    ),
    Channel.LEADER: (Address(Channel.LEADER), Leader(sender=CONTROLLER, controller="a", state="alive")),
    Channel.CONFIRM: (
        Address(Channel.CONFIRM),
        Confirm(sender=NodeId("operator"), generation=1, reason="meant"),
    ),
    Channel.DRAIN: (
        Address(Channel.DRAIN),
        DrainRequest(sender=NodeId("operator"), request=REQUEST, action="drain", target="spine1"),
    ),
    Channel.DRAIN_ANSWER: (
        Address(Channel.DRAIN_ANSWER, REQUEST),
        DrainAnswer(sender=CONTROLLER, request=REQUEST, state="done"),
    ),
    Channel.DRAINS: (Address(Channel.DRAINS), Drains(sender=CONTROLLER, revision=1)),
}


def incoming(address: Address, message: Message, *, is_retained: bool = False) -> Incoming:
    return Incoming(TOPICS.topic(address), encode(message), is_retained)


def test_every_channel_has_a_kind_and_a_case_here() -> None:
    assert set(KINDS) == set(MESSAGES) == set(Channel)


@pytest.mark.parametrize("channel", Channel)
def test_what_its_owner_says_is_delivered(channel: Channel) -> None:
    address, message = MESSAGES[channel]
    assert receive(TOPICS, incoming(address, message, is_retained=True)) == Delivered(address, message, True)


@pytest.mark.parametrize("channel", [channel for channel in Channel if channel not in BY_OPERATORS])
def test_what_a_stranger_says_by_anothers_topic_is_refused_and_counted(channel: Channel) -> None:
    address, message = MESSAGES[channel]
    forged = message.model_copy(update={"sender": STRANGER})
    tally = Tally()

    with pytest.raises(WireError, match="stranger"):
        check(address, forged)
    assert receive(TOPICS, incoming(address, forged), tally) is None
    assert tally.refused_count == 1


@pytest.mark.parametrize("channel", [Channel.PROGRAM, Channel.LEADER, Channel.DRAIN_ANSWER, Channel.DRAINS])
def test_an_agent_cannot_speak_for_the_controller_even_by_its_own_topic(channel: Channel) -> None:
    address, message = MESSAGES[channel]
    with pytest.raises(WireError):
        check(address, message.model_copy(update={"sender": address.node or LEAF}))


@pytest.mark.parametrize("channel", Channel)
@pytest.mark.parametrize("other", Channel)
def test_a_channel_carries_only_its_own_kind(channel: Channel, other: Channel) -> None:
    address, _ = MESSAGES[channel]
    _, message = MESSAGES[other]
    if channel is other:
        check(address, message)
    else:
        with pytest.raises(WireError, match="carried a message of kind"):
            check(address, message)


def test_a_program_for_another_node_a_fact_of_another_port_and_anothers_answer_are_refused() -> None:
    _, answer = MESSAGES[Channel.DRAIN_ANSWER]
    with pytest.raises(WireError, match='carried one to "00c0ffee"'):
        check(Address(Channel.DRAIN_ANSWER, STRANGER), answer)
    _, program = MESSAGES[Channel.PROGRAM]
    _, fact = MESSAGES[Channel.FACT]
    with pytest.raises(WireError, match="program of"):
        check(Address(Channel.PROGRAM, STRANGER), program)
    with pytest.raises(WireError, match='fact of port "e1"'):
        check(Address(Channel.FACT, LEAF, "e2"), fact)


@pytest.mark.parametrize("payload", [b"\xff\x00", b"{}", b'{"kind":"health"}', b"[1,2]", b"null"])
def test_what_cannot_be_read_is_refused_and_counted(payload: bytes) -> None:
    tally = Tally()
    assert receive(TOPICS, Incoming(TOPICS.topic(Address(Channel.HEALTH, LEAF)), payload, False), tally) is None
    assert tally.refused_count == 1


@pytest.mark.parametrize("topic", ["erfs/v1/echo/a", "erfs/v1", "erfs/v2/health/a", "erfs/v1/health/a/b/c", "x"])
def test_other_topics_are_nobodys_fault(topic: str) -> None:
    tally = Tally()
    assert receive(TOPICS, Incoming(topic, b"x", False), tally) is None
    assert tally.refused_count == 0


def test_a_cleared_topic_says_nothing() -> None:
    tally = Tally()
    assert receive(TOPICS, Incoming(TOPICS.topic(Address(Channel.FACT, LEAF, "e1")), b"", False), tally) is None
    assert tally.refused_count == 0


def test_retained_copies_are_not_counted_as_holes_or_duplicates() -> None:
    tally = Tally()
    address, presence = MESSAGES[Channel.PRESENCE]
    for seq, is_retained in ((5, False), (1, True), (6, False)):
        receive(TOPICS, incoming(address, presence.model_copy(update={"seq": seq}), is_retained=is_retained), tally)
    assert (tally.gaps.missing_count, tally.gaps.duplicate_count) == (0, 0)


class RecordingBus:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, bool, Priority]] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool, priority: Priority) -> None:
        self.sent.append((topic, payload, retain, priority))


@pytest.mark.parametrize("channel", Channel)
def test_the_channel_says_what_is_retained(channel: Channel) -> None:
    bus = RecordingBus()
    address, message = MESSAGES[channel]
    publish(bus, TOPICS, Publish(address, message, Priority.URGENT))
    assert bus.sent == [(TOPICS.topic(address), encode(message), channel in RETAINED, Priority.URGENT)]


def test_a_subscription_becomes_the_filters_it_means() -> None:
    command = Subscribe(
        channels=(Channel.HEALTH,),
        addresses=(Address(Channel.PROGRAM, LEAF), Address(Channel.LEADER, NOBODY)),
        facts_of=(LEAF,),
    )
    assert filters(TOPICS, command) == {
        "erfs/v1/health/#",
        "erfs/v1/program/leaf%201",
        "erfs/v1/leader",
        "erfs/v1/fact/leaf%201/+",
    }


def test_a_last_will_is_a_topic_and_a_payload() -> None:
    address, message = MESSAGES[Channel.PRESENCE]
    assert will(TOPICS, Publish(address, message)) == ("erfs/v1/presence/leaf%201", encode(message))
