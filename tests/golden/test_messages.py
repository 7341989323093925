"""One line of each message kind, exactly as it goes over the wire: renaming a field breaks every running agent.

To change the wire form on purpose, run ``GOLDEN_UPDATE=1 pytest tests/golden`` and review the difference like code.
"""

import os
from pathlib import Path
from typing import Final, get_args

import pytest

from erfs.ids import DestinationId, LinkId, NodeId, SrlgId
from erfs.messages import (
    CONTROLLER,
    Ack,
    Armed,
    Backup,
    CannotReach,
    ChangeRef,
    Confirm,
    DownFact,
    Drain,
    DrainAnswer,
    DrainPlan,
    DrainRequest,
    Drains,
    DrainShare,
    FactRef,
    Group,
    Health,
    Installed,
    Leader,
    Member,
    Message,
    PortBinding,
    PortHealth,
    Presence,
    Program,
    Route,
    SharedRisk,
    Step,
    decode,
    encode,
    sealed,
)

GOLDEN: Final = Path(__file__).with_name("messages.jsonl")

LEAF = NodeId("leaf1")
LINK = LinkId("leaf1:e1|spine1:e1")
FAR_LINK = LinkId("leaf2:e1|spine1:e2")
INSTALLED = Installed(epoch=7, generation=3, digest="0123456789abcdef")
PROGRAM = sealed(
    Program(
        sender=CONTROLLER,
        epoch=7,
        seq=21,
        node=LEAF,
        generation=3,
        digest="",
        computed_from=(FactRef(link=FAR_LINK, reporter=NodeId("leaf2"), counter=1),),
        ports=(PortBinding(port="e1", link=LINK, far_end=NodeId("spine1")),),
        groups=(Group(id=0, members=(Member(port="e1"), Member(port="e2", weight=3))),),
        routes=(
            Route(destination=DestinationId("@leaf2"), group=0),
            Route(destination=DestinationId("@leaf1/host1"), group=0, has_detour=False),
        ),
        armed=Armed(
            reporters=(NodeId("leaf2"), NodeId("spine1"), NodeId("spine2")),
            ignored=(LinkId("leaf3:e1|spine1:e3"),),
            sets=((DestinationId("@leaf2"),), (DestinationId("@leaf2"), DestinationId("@leaf4"))),
            steps=(Step(drop=("e1",), add=(Member(port="e3", weight=2),)), Step(drop=("e1",))),
            links={FAR_LINK: (ChangeRef(0, 0),)},
            nodes={NodeId("spine1"): (ChangeRef(1, 1),)},
            srlgs={
                SrlgId("tray 7"): SharedRisk(
                    links=(FAR_LINK, LinkId("leaf2:e2|spine2:e2")), changes=(ChangeRef(0, 0), ChangeRef(1, 1))
                )
            },
        ),
    )
)
BACKED: Final = sealed(
    PROGRAM.model_copy(update={"backups": (Backup(ports=("e2", "e3"), destinations=(DestinationId("@leaf2"),)),)})
)
DRAIN: Final = Drain(
    target_kind="node",
    target="spine1",
    strength="hard",
    by=NodeId("operator"),
    begins_wall_ns=1_800_000_000_000_000_000,
    ends_wall_ns=1_800_007_200_000_000_000,
    forced_because="the fan trays are replaced",
)
MESSAGES: Final[tuple[Message, ...]] = (
    Presence(sender=LEAF, epoch=7, seq=11, state="online", incarnation=4, installed=INSTALLED),
    Presence(sender=LEAF, state="gone", incarnation=4),
    Health(
        sender=LEAF,
        epoch=7,
        seq=12,
        ports=(
            PortHealth(port="e1", link=LINK, far_end=NodeId("spine1"), oper_up=True, held=True, counter=1),
            PortHealth(
                port="e2", link=LinkId("leaf1:e2|spine2:e1"), far_end=NodeId("spine2"), oper_up=False, counter=3
            ),
        ),
        installed=INSTALLED,
    ),
    DownFact(sender=LEAF, epoch=7, seq=13, link=LINK, port="e1", far_end=NodeId("spine1"), counter=5, down=True),
    CannotReach(
        sender=LEAF,
        epoch=7,
        seq=14,
        counter=2,
        destinations=(DestinationId("@leaf2"), DestinationId("@leaf3+leaf4/host9")),
    ),
    PROGRAM,
    BACKED,
    Ack(
        sender=LEAF,
        epoch=7,
        seq=15,
        program_epoch=7,
        generation=2,
        digest="fedcba9876543210",
        outcome="refused",
        reason="older than 7.3, which runs",
        installed=INSTALLED,
    ),
    Leader(sender=CONTROLLER, epoch=7, seq=22, controller="host-a:4711", state="alive"),
    Confirm(sender=NodeId("operator"), generation=4, reason="the leaf is being replaced"),
    DrainRequest(
        sender=NodeId("operator"),
        request="00c0ffee00c0ffee",
        action="drain",
        target="spine1",
        lasts_ns=7_200_000_000_000,
        force="the fan trays are replaced",
    ),
    DrainAnswer(
        sender=CONTROLLER,
        epoch=7,
        seq=23,
        request="00c0ffee00c0ffee",
        state="accepted",
        reasons=("leaf1 would keep 50 % of its paths towards @leaf2, less than the path floor of 75 %",),
        plan=DrainPlan(
            target_kind="node",
            target="spine1",
            link_count=4,
            endpoints=(NodeId("host1"),),
            endpoint_count=1,
            cut=(NodeId("host1"),),
            cut_count=1,
            shares=(DrainShare(of="paths", source=LEAF, destination=DestinationId("@leaf2"), ppm=500_000),),
            own_shares=(DrainShare(of="capacity", source=LEAF, destination=DestinationId("@leaf2"), ppm=500_000),),
        ),
        drain=DRAIN,
    ),
    Drains(sender=CONTROLLER, epoch=7, seq=24, revision=3, drains=(DRAIN,)),
)


def test_messages_look_on_the_wire_as_they_always_did() -> None:
    lines = b"".join(encode(message) + b"\n" for message in MESSAGES)
    if os.environ.get("GOLDEN_UPDATE"):
        GOLDEN.write_bytes(lines)

    assert lines.decode().splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_what_is_read_from_the_wire_is_what_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message


def test_every_message_kind_has_a_line() -> None:
    kinds = get_args(get_args(Message)[0])

    assert {type(message) for message in MESSAGES} == set(kinds)


def test_a_program_without_backups_says_nothing_of_them() -> None:
    assert b"backups" not in encode(PROGRAM)
    assert PROGRAM.digest != BACKED.digest
