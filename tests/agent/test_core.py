"""Conversations with an agent's core: what goes in, and the whole list of what comes out."""

from dataclasses import replace

import pytest

from erfs.errors import Bug
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import (
    CONTROLLER,
    Ack,
    Armed,
    CannotReach,
    ChangeRef,
    DownFact,
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
    Step,
    decode,
    encode,
    sealed,
)
from erfs.ports import BusConnected, BusLost, Delivered, Mark, Priority, Publish, Subscribe, TimerFired
from erfs.topics import Address, Channel
from erfs.units import MS, SECOND
from erfs_agent.core import (
    AgentCommand,
    AgentCore,
    AgentTimers,
    Persist,
    PortChanged,
    RoutesWritten,
    WriteRoutes,
)
from erfs_agent.probing import DownReason, SessionDown, SessionUp
from erfs_agent.state import AgentState, SpokenFact
from erfs_agent.unarmed import FACTS_MAX

LEAF = NodeId("leafA")
SPINE1 = NodeId("spine1")
SPINE2 = NodeId("spine2")
LEAF_B = DestinationId("@leafB")
LINK1 = LinkId("leafA:e1|spine1:1")
LINK2 = LinkId("leafA:e2|spine2:1")
FAR1 = LinkId("leafB:e1|spine1:2")
PORTS = (PortBinding(port="e1", link=LINK1, far_end=SPINE1), PortBinding(port="e2", link=LINK2, far_end=SPINE2))
BOTH_UP = {"e1": True, "e2": True}
TIMERS = AgentTimers(
    wait_to_restore_ns=2 * SECOND,
    wait_to_restore_max_ns=300 * SECOND,
    flap_window_ns=60 * SECOND,
    health_interval_ns=30 * SECOND,
)
E1, E2 = Member(port="e1"), Member(port="e2")


def program(generation: int = 1, *, epoch: int = 1, is_armed: bool = True, listed: tuple[FactRef, ...] = ()) -> Program:
    """Leaf A reaches leaf B by both spines; without *is_armed* nothing is prepared."""
    armed = Armed(
        reporters=(NodeId("leafB"), SPINE1),
        sets=((LEAF_B,),),
        steps=(Step(drop=("e1",)),),
        links={FAR1: (ChangeRef(0, 0),)},
    )
    return sealed(
        Program(
            sender=CONTROLLER,
            node=LEAF,
            epoch=epoch,
            generation=generation,
            digest="",
            computed_from=listed,
            ports=PORTS,
            groups=(Group(id=0, members=(E1, E2)),),
            routes=(Route(destination=LEAF_B, group=0),),
            armed=armed if is_armed else Armed(),
        )
    )


def installed_by(found: Program) -> Installed:
    return Installed(epoch=found.epoch, generation=found.generation, digest=found.digest)


def program_arrives(found: Program) -> Delivered:
    return Delivered(Address(Channel.PROGRAM, LEAF), found, is_retained=True)


def fact_arrives(link: LinkId, reporter: NodeId, counter: int, *, down: bool = True) -> Delivered:
    """A fact of an end of *link*; who is none claims to be at its second end."""
    first, second = (end.split(":") for end in link.split("|"))
    (_, port), (far_end, _) = (first, second) if reporter == first[0] else (second, first)
    fact = DownFact(sender=reporter, link=link, port=port, far_end=NodeId(far_end), counter=counter, down=down)
    return Delivered(Address(Channel.FACT, reporter, port), fact)


def health(*ports: PortHealth, seq: int, epoch: int = 0, installed: Installed | None = None) -> Publish:
    return Publish(
        Address(Channel.HEALTH, LEAF), Health(sender=LEAF, epoch=epoch, seq=seq, ports=ports, installed=installed)
    )


def port1(*, oper_up: bool = True, held: bool = False, counter: int = 0) -> PortHealth:
    return PortHealth(port="e1", link=LINK1, far_end=SPINE1, oper_up=oper_up, held=held, counter=counter)


def port2(*, oper_up: bool = True, held: bool = False, counter: int = 0) -> PortHealth:
    return PortHealth(port="e2", link=LINK2, far_end=SPINE2, oper_up=oper_up, held=held, counter=counter)


def own_fact(counter: int, *, down: bool, seq: int, epoch: int = 0) -> list[AgentCommand]:
    fact = DownFact(
        sender=LEAF, epoch=epoch, seq=seq, link=LINK1, port="e1", far_end=SPINE1, counter=counter, down=down
    )
    return [
        Publish(Address(Channel.FACT, LEAF, "e1"), fact, Priority.URGENT),
        Mark("fact_published", {"link": LINK1, "counter": counter, "down": down}),
    ]


def connected(core: AgentCore | None = None) -> AgentCore:
    """A core that has started and is on the bus; it has said two messages."""
    core = core or AgentCore(LEAF, PORTS, TIMERS, ports_up=BOTH_UP)
    core.start(0)
    core.handle(BusConnected(), 0)
    return core


def running(found: Program | None = None) -> AgentCore:
    """A core that runs a program; it has said four messages."""
    core = connected()
    core.handle(program_arrives(found or program()), 0)
    core.handle(RoutesWritten(1, is_ok=True), 0)
    assert core.installed is not None
    return core


def of(kind: type, commands: list[AgentCommand]) -> list[AgentCommand]:
    return [command for command in commands if isinstance(command, kind)]


def said(commands: list[AgentCommand]) -> list[Message]:
    return [command.message for command in commands if isinstance(command, Publish)]


def marks(commands: list[AgentCommand]) -> list[str]:
    return [command.event for command in commands if isinstance(command, Mark)]


# --- start and introduction ------------------------------------------------------------------------------------------------
def test_a_new_agent_asks_for_its_program_and_keeps_its_incarnation() -> None:
    core = AgentCore(LEAF, PORTS, TIMERS, ports_up=BOTH_UP)

    assert core.start(5) == [
        Subscribe(
            addresses=(
                Address(Channel.PROGRAM, LEAF),
                Address(Channel.LEADER),
                Address(Channel.CANNOT_REACH, LEAF),
            ),
            facts_of=("leafA", "spine1", "spine2"),
        ),
        Persist(AgentState(incarnation=1)),
    ]
    assert core.next_wakeup_ns() == 5 + 30 * SECOND


def test_an_agent_introduces_itself_when_the_bus_comes() -> None:
    core = AgentCore(LEAF, PORTS, TIMERS, ports_up=BOTH_UP)
    core.start(0)

    assert core.handle(BusConnected(), 7) == [
        Publish(Address(Channel.PRESENCE, LEAF), Presence(sender=LEAF, seq=1, state="online", incarnation=1)),
        health(port1(), port2(), seq=2),
    ]


def test_the_last_will_carries_the_incarnation_and_no_number() -> None:
    core = AgentCore(LEAF, PORTS, TIMERS, AgentState(incarnation=6), ports_up=BOTH_UP)

    assert core.last_will() == Publish(
        Address(Channel.PRESENCE, LEAF), Presence(sender=LEAF, state="gone", incarnation=7)
    )


def test_an_agent_that_ends_on_purpose_says_so() -> None:
    core = running()

    assert said(core.stop()) == [
        Presence(sender=LEAF, epoch=1, seq=5, state="gone", incarnation=1, installed=installed_by(program()))
    ]


def test_health_is_said_slowly_when_nothing_happens() -> None:
    core = connected()

    assert core.handle(TimerFired(), 30 * SECOND) == [health(port1(), port2(), seq=3)]
    assert core.next_wakeup_ns() == 60 * SECOND


def test_health_is_said_on_changes_only_if_there_is_no_interval() -> None:
    core = connected(AgentCore(LEAF, PORTS, replace(TIMERS, health_interval_ns=0), ports_up=BOTH_UP))

    assert core.next_wakeup_ns() is None


def test_a_port_without_carrier_at_the_start_is_a_down_fact() -> None:
    core = AgentCore(LEAF, PORTS, TIMERS, ports_up={"e2": True})

    commands = core.start(0)

    assert commands[0] == Mark("port_down_detected", {"port": "e1", "link": LINK1})
    assert commands[-1] == Persist(AgentState(incarnation=1, facts=(SpokenFact(port="e1", counter=1, down=True),)))
    assert core.handle(BusConnected(), 0)[1:3] == own_fact(1, down=True, seq=2)


def test_nothing_is_said_while_the_bus_is_away_and_all_of_it_when_it_is_back() -> None:
    core = running()
    core.handle(BusLost(), 1)

    assert said(core.handle(PortChanged("e1", oper_up=False), 2)) == []
    back = said(core.handle(BusConnected(), 3))

    assert [message.kind for message in back] == ["presence", "fact", "health"]
    assert [message.seq for message in back] == [5, 6, 7]


# --- ports -----------------------------------------------------------------------------------------------------------------
def test_a_lost_carrier_changes_forwarding_first_and_is_told_at_once() -> None:
    core = running()

    assert core.handle(PortChanged("e1", oper_up=False), 9) == [
        Mark("port_down_detected", {"port": "e1", "link": LINK1}),
        Mark("change_requested", {"change": 2, "failures": [LINK1]}),
        WriteRoutes(2, {LEAF_B: (E2,)}, ()),
        *own_fact(1, down=True, seq=5, epoch=1),
        health(port1(oper_up=False, counter=1), port2(), seq=6, epoch=1, installed=installed_by(program())),
        Persist(AgentState(incarnation=1, program=program(), facts=(SpokenFact(port="e1", counter=1, down=True),))),
    ]
    assert core.handle(RoutesWritten(2, is_ok=True), 10) == [
        Mark("change_acknowledged", {"change": 2, "failures": [LINK1], "epoch": 1, "generation": 1})
    ]


def test_a_returned_carrier_is_reported_but_not_used() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)
    core.handle(RoutesWritten(2, is_ok=True), 0)

    assert core.handle(PortChanged("e1", oper_up=True), 1 * SECOND) == [
        Mark("port_up_detected", {"port": "e1", "link": LINK1}),
        health(port1(held=True, counter=1), port2(), seq=7, epoch=1, installed=installed_by(program())),
    ]
    assert core.next_wakeup_ns() == 3 * SECOND


def test_good_news_is_said_only_when_the_own_data_plane_is_ready() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)
    core.handle(RoutesWritten(2, is_ok=True), 0)
    core.handle(PortChanged("e1", oper_up=True), 1 * SECOND)

    assert core.handle(TimerFired(), 3 * SECOND) == [
        Mark("port_restored", {"port": "e1", "link": LINK1}),
        Mark("change_requested", {"change": 3, "failures": []}),
        WriteRoutes(3, {LEAF_B: (E1, E2)}, ()),
    ]
    assert core.handle(RoutesWritten(3, is_ok=True), 3 * SECOND + 1) == [
        Mark("change_acknowledged", {"change": 3, "failures": [], "epoch": 1, "generation": 1}),
        *own_fact(2, down=False, seq=8, epoch=1),
        health(port1(counter=2), port2(), seq=9, epoch=1, installed=installed_by(program())),
        Persist(AgentState(incarnation=1, program=program(), facts=(SpokenFact(port="e1", counter=2, down=False),))),
    ]


def test_a_port_lost_again_before_its_good_news_was_said_stays_down_for_everyone() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)
    core.handle(PortChanged("e1", oper_up=True), 1 * SECOND)
    core.handle(TimerFired(), 3 * SECOND)

    again = core.handle(PortChanged("e1", oper_up=False), 3 * SECOND + 1)
    for change in (2, 3, 4):
        answers = core.handle(RoutesWritten(change, is_ok=True), 3 * SECOND + 2)
        assert said(answers) == []

    assert of(WriteRoutes, again) == [WriteRoutes(4, {LEAF_B: (E2,)}, ())]
    assert again[3:5] == own_fact(3, down=True, seq=8, epoch=1)


def test_a_carrier_lost_while_held_is_no_new_fact_but_a_longer_wait() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)
    core.handle(PortChanged("e1", oper_up=True), 1 * SECOND)

    flap = core.handle(PortChanged("e1", oper_up=False), 2 * SECOND)
    core.handle(PortChanged("e1", oper_up=True), 2 * SECOND)

    assert [message.kind for message in said(flap)] == ["health"]
    assert core.next_wakeup_ns() == 6 * SECOND


def test_hearing_of_a_port_again_changes_nothing() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)

    assert core.handle(PortChanged("e1", oper_up=False), 1) == []
    assert core.handle(PortChanged("e2", oper_up=True), 1) == []


def test_a_port_nobody_told_the_agent_of_is_marked() -> None:
    assert running().handle(PortChanged("e9", oper_up=False), 0) == [Mark("port_unknown", {"port": "e9"})]


# --- sessions --------------------------------------------------------------------------------------------------------------
def lost_session(core: AgentCore, now_ns: int = 9) -> list[AgentCommand]:
    return core.handle(SessionDown("e1", DownReason.SILENT), now_ns)


def test_a_lost_session_is_a_lost_port_although_the_carrier_is_there() -> None:
    core = running()

    assert lost_session(core) == [
        Mark("port_down_detected", {"port": "e1", "link": LINK1, "cause": "session"}),
        Mark("change_requested", {"change": 2, "failures": [LINK1]}),
        WriteRoutes(2, {LEAF_B: (E2,)}, ()),
        *own_fact(1, down=True, seq=5, epoch=1),
        health(port1(held=True, counter=1), port2(), seq=6, epoch=1, installed=installed_by(program())),
        Persist(
            AgentState(
                incarnation=1,
                program=program(),
                facts=(SpokenFact(port="e1", counter=1, down=True),),
                sessions_down=("e1",),
            )
        ),
    ]


def test_a_session_that_is_back_is_held_like_a_carrier_that_is_back() -> None:
    core = running()
    lost_session(core, 0)
    core.handle(RoutesWritten(2, is_ok=True), 0)

    back = core.handle(SessionUp("e1"), 1 * SECOND)
    assert marks(back) == ["port_up_detected"]
    assert (of(WriteRoutes, back), core.next_wakeup_ns()) == ([], 3 * SECOND)
    assert of(WriteRoutes, core.handle(TimerFired(), 3 * SECOND)) == [WriteRoutes(3, {LEAF_B: (E1, E2)}, ())]


@pytest.mark.parametrize("is_carrier_last", [True, False])
def test_a_port_is_back_when_carrier_and_session_are(is_carrier_last: bool) -> None:
    """Whichever goes or comes first: one fact, one return."""
    core = running()
    carrier, session = PortChanged("e1", oper_up=True), SessionUp("e1")
    lost = core.handle(PortChanged("e1", oper_up=False), 0)
    assert of(WriteRoutes, lost) == [WriteRoutes(2, {LEAF_B: (E2,)}, ())]
    silent = lost_session(core, 30 * MS)
    assert [command.state.sessions_down for command in silent if isinstance(command, Persist)] == [("e1",)]
    assert len(silent) == 1

    first, second = (session, carrier) if is_carrier_last else (carrier, session)
    assert marks(core.handle(first, 1 * SECOND)) == []
    assert marks(core.handle(second, 2 * SECOND)) == ["port_up_detected"]
    assert core.next_wakeup_ns() == 4 * SECOND


def test_a_session_lost_while_held_prolongs_the_wait() -> None:
    core = running()
    lost_session(core, 0)
    core.handle(SessionUp("e1"), 1 * SECOND)

    assert [message.kind for message in said(lost_session(core, 2 * SECOND))] == ["health"]
    core.handle(SessionUp("e1"), 2 * SECOND)
    assert core.next_wakeup_ns() == 6 * SECOND


def test_the_first_session_of_a_port_changes_nothing() -> None:
    assert running().handle(SessionUp("e1"), 1) == []


def restarted(core: AgentCore, watched: frozenset[str]) -> AgentCore:
    """A restart on a port whose session was last down and whose carrier is there."""
    (kept,) = of(Persist, lost_session(core))
    assert isinstance(kept, Persist)
    again = AgentCore(LEAF, PORTS, TIMERS, kept.state, ports_up=BOTH_UP, ports_watched=watched)
    again.start(10)
    return again


def test_a_restart_does_not_bring_back_a_port_whose_session_was_down() -> None:
    core = restarted(running(), frozenset({"e1", "e2"}))

    assert core.next_wakeup_ns() == 10 + 30 * SECOND
    assert core.forwarding.routes == {LEAF_B: (E2,)}
    assert marks(core.handle(SessionUp("e1"), 1 * SECOND)) == ["port_up_detected"]


def test_a_port_that_is_no_longer_watched_is_back_by_its_carrier() -> None:
    assert restarted(running(), frozenset()).next_wakeup_ns() == 10 + 2 * SECOND


# --- programs --------------------------------------------------------------------------------------------------------------
def test_a_program_is_acknowledged_when_the_data_plane_confirmed_it() -> None:
    core = connected()
    first = program()

    assert core.handle(program_arrives(first), 1) == [
        Mark("change_requested", {"change": 1, "failures": []}),
        WriteRoutes(1, {LEAF_B: (E1, E2)}, ()),
        Subscribe(
            addresses=(
                Address(Channel.PROGRAM, LEAF),
                Address(Channel.LEADER),
                Address(Channel.CANNOT_REACH, LEAF),
                Address(Channel.CANNOT_REACH, SPINE1),
                Address(Channel.CANNOT_REACH, SPINE2),
            ),
            facts_of=("leafA", "leafB", "spine1", "spine2"),
        ),
    ]
    assert core.installed is None
    assert core.handle(RoutesWritten(1, is_ok=True), 2) == [
        Mark("change_acknowledged", {"change": 1, "failures": [], "epoch": 1, "generation": 1}),
        Mark("program_installed", {"epoch": 1, "generation": 1}),
        Publish(
            Address(Channel.ACK, LEAF),
            Ack(
                sender=LEAF,
                epoch=1,
                seq=3,
                program_epoch=1,
                generation=1,
                digest=first.digest,
                outcome="installed",
                installed=installed_by(first),
            ),
        ),
        Publish(
            Address(Channel.PRESENCE, LEAF),
            Presence(sender=LEAF, epoch=1, seq=4, state="online", incarnation=1, installed=installed_by(first)),
        ),
        Persist(AgentState(incarnation=1, program=first)),
    ]


def test_equal_content_of_a_new_epoch_is_adopted_without_touching_the_data_plane() -> None:
    core = running()
    successor = program(1, epoch=2)

    commands = core.handle(program_arrives(successor), 5)

    assert of(WriteRoutes, commands) == []
    assert [message.kind for message in said(commands)] == ["ack", "presence"]
    assert core.installed == installed_by(successor)


def test_a_program_that_comes_again_is_acknowledged_again_and_changes_nothing() -> None:
    core = running()

    commands = core.handle(program_arrives(program()), 5)

    assert [(message.kind, getattr(message, "outcome", "")) for message in said(commands)] == [("ack", "installed")]
    assert len(commands) == 1


def test_routes_that_a_program_no_longer_has_are_removed() -> None:
    core = running()
    other = sealed(program(2).model_copy(update={"routes": (Route(destination=DestinationId("@leafC"), group=0),)}))

    writes = of(WriteRoutes, core.handle(program_arrives(other), 5))

    assert writes == [WriteRoutes(2, {DestinationId("@leafC"): (E1, E2)}, (LEAF_B,))]


ELSEWHERE = sealed(program(9).model_copy(update={"node": NodeId("leafZ")}))
BY_SOMEONE = program(9).model_copy(update={"sender": NodeId("leafZ")})
FORGED = program(9).model_copy(update={"routes": ()})
NO_SUCH_PORT = sealed(program(9).model_copy(update={"groups": (Group(id=0, members=(E1, Member(port="e7"))),)}))


@pytest.mark.parametrize(
    ("refused", "reason", "is_alarm"),
    [
        (program(1, epoch=3), "older than 3.2, which runs", False),
        (program(9, epoch=2), "older than 3.2, which runs", False),
        (program(2, epoch=3, is_armed=False), "other content than the 3.2 that runs", True),
        (ELSEWHERE, 'for node "leafZ"', True),
        (BY_SOMEONE, 'from "leafZ", not from the controller', True),
        (FORGED.model_copy(update={"epoch": 3}), f"digest {FORGED.digest} does not match the content", True),
        (NO_SUCH_PORT.model_copy(update={"epoch": 3}), "uses ports this node does not have: e7", True),
    ],
    ids=["generation", "epoch", "content", "node", "sender", "digest", "port"],
)
def test_a_program_that_must_not_run_is_refused_with_its_reason(refused: Program, reason: str, is_alarm: bool) -> None:
    current = program(2, epoch=3)
    core = running(current)

    assert core.handle(program_arrives(refused), 5) == [
        Mark(
            "program_refused",
            {"epoch": refused.epoch, "generation": refused.generation, "reason": reason, "alarm": is_alarm},
        ),
        Publish(
            Address(Channel.ACK, LEAF),
            Ack(
                sender=LEAF,
                epoch=3,
                seq=5,
                program_epoch=refused.epoch,
                generation=refused.generation,
                digest=refused.digest,
                outcome="refused",
                reason=reason,
                installed=installed_by(current),
            ),
        ),
    ]
    assert core.installed == installed_by(current)


def test_a_forged_program_is_seen_through_after_the_wire_too() -> None:
    core = connected()

    commands = core.handle(program_arrives(decode(encode(FORGED))), 5)  # type: ignore[arg-type]

    assert marks(commands) == ["program_refused"]


def test_a_program_older_than_the_leaders_reign_is_refused() -> None:
    core = connected()
    leader = Leader(sender=CONTROLLER, epoch=4, controller="other", state="alive")

    assert core.handle(Delivered(Address(Channel.LEADER), leader), 1) == []
    commands = core.handle(program_arrives(program(5, epoch=3)), 2)

    assert commands[0].fields["reason"] == "of epoch 3, but the leader has 4"  # type: ignore[union-attr]


def test_the_program_that_runs_may_come_again_under_a_new_leader() -> None:
    """A successor that finds the right program in place pushes nothing, so the broker keeps the old epoch's."""
    core = running()
    core.handle(
        Delivered(Address(Channel.LEADER), Leader(sender=CONTROLLER, epoch=9, controller="x", state="alive")), 1
    )

    commands = core.handle(program_arrives(program()), 2)

    assert [message.outcome for message in said(commands) if isinstance(message, Ack)] == ["installed"]


# --- what the data plane answers -------------------------------------------------------------------------------------------
def test_a_refused_write_is_told_and_tried_again() -> None:
    core = connected()
    core.handle(program_arrives(program()), 0)

    failed = core.handle(RoutesWritten(1, is_ok=False, reason="table full"), 0)

    assert [(ack.outcome, ack.reason) for ack in said(failed) if isinstance(ack, Ack)] == [("failed", "table full")]
    assert core.next_wakeup_ns() == 10 * MS
    assert of(WriteRoutes, core.handle(TimerFired(), 10 * MS)) == [WriteRoutes(2, {LEAF_B: (E1, E2)}, ())]
    done = core.handle(RoutesWritten(2, is_ok=True), 11 * MS)
    assert [ack.outcome for ack in said(done) if isinstance(ack, Ack)] == ["installed"]


def test_retries_slow_down_and_end_and_the_next_change_tries_again() -> None:
    core = connected()
    core.handle(program_arrives(program()), 0)
    change, now_ns, waits = 1, 0, []
    while True:
        commands = core.handle(RoutesWritten(change, is_ok=False, reason="busy"), now_ns)
        mark = commands[0]
        assert isinstance(mark, Mark)
        if not mark.fields["retry"]:
            break
        wakeup_ns = core.next_wakeup_ns()
        assert wakeup_ns is not None
        waits.append((wakeup_ns - now_ns) // MS)
        now_ns = wakeup_ns
        change += 1
        core.handle(TimerFired(), now_ns)

    assert waits == [10, 20, 40, 80, 160, 320, 640, 1000]
    assert core.next_wakeup_ns() == 30 * SECOND
    assert of(WriteRoutes, core.handle(PortChanged("e1", oper_up=False), now_ns)) == [
        WriteRoutes(change + 1, {LEAF_B: (E2,)}, ())
    ]


def test_a_failed_removal_is_tried_again_too() -> None:
    core = running()
    empty = sealed(program(2).model_copy(update={"routes": ()}))
    core.handle(program_arrives(empty), 0)
    core.handle(RoutesWritten(2, is_ok=False), 0)

    assert of(WriteRoutes, core.handle(TimerFired(), 10 * MS)) == [WriteRoutes(3, {}, (LEAF_B,))]


def test_a_program_is_not_acknowledged_while_an_earlier_change_is_unanswered() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)
    armed_otherwise = program(2, is_armed=False)

    assert said(core.handle(program_arrives(armed_otherwise), 1)) == []
    assert core.installed == installed_by(program())
    core.handle(RoutesWritten(2, is_ok=True), 2)
    assert core.installed == installed_by(armed_otherwise)


def test_an_answer_to_no_question_is_a_bug() -> None:
    with pytest.raises(Bug, match="change 7"):
        running().handle(RoutesWritten(7, is_ok=True), 0)


# --- facts -----------------------------------------------------------------------------------------------------------------
def test_a_fact_of_a_witness_changes_forwarding_without_the_controller() -> None:
    core = running()

    assert core.handle(fact_arrives(FAR1, NodeId("leafB"), 1), 3) == [
        Mark("fact_received", {"link": FAR1, "reporter": "leafB", "counter": 1, "down": True}),
        Mark("change_requested", {"change": 2, "failures": [FAR1]}),
        WriteRoutes(2, {LEAF_B: (E2,)}, ()),
    ]


def test_a_fact_that_comes_late_or_again_changes_nothing() -> None:
    core = running()
    core.handle(fact_arrives(FAR1, SPINE1, 4), 3)

    assert core.handle(fact_arrives(FAR1, SPINE1, 4), 4) == []
    assert core.handle(fact_arrives(FAR1, SPINE1, 3, down=False), 5) == []


def test_a_strangers_fact_is_refused_and_told_once() -> None:
    core = running()

    assert core.handle(fact_arrives(FAR1, NodeId("evil"), 9), 3) == [
        Mark(
            "fact_refused",
            {"link": FAR1, "reporter": "evil", "reason": "not an end of this link", "count": 1},
        )
    ]
    again = [core.handle(fact_arrives(FAR1, NodeId("evil"), counter), 3) for counter in range(10, 30)]
    assert [commands for commands in again if commands] == [
        [
            Mark(
                "fact_refused",
                {"link": FAR1, "reporter": "evil", "reason": "not an end of this link", "count": 10},
            )
        ]
    ]
    assert core.forwarding.routes == {LEAF_B: (E1, E2)}


def test_a_lie_about_another_nodes_link_is_refused_even_of_a_reporter_armed_for() -> None:
    """Neither with a port of another name, nor with the port's name and another far end."""
    core = running()
    other = DownFact(sender=SPINE1, link=LinkId("leafB:e2|spine2:2"), port="2", far_end=SPINE2, counter=1, down=True)
    wrong_port = DownFact(sender=SPINE1, link=FAR1, port="3", far_end=NodeId("leafB"), counter=1, down=True)
    wrong_far_end = DownFact(sender=SPINE1, link=FAR1, port="2", far_end=NodeId("leaf"), counter=1, down=True)

    for fact in (other, wrong_port, wrong_far_end):
        commands = core.handle(Delivered(Address(Channel.FACT, SPINE1, fact.port), fact), 3)
        assert marks(commands) == (["fact_refused"] if fact is other else [])
    assert core.forwarding.routes == {LEAF_B: (E1, E2)}
    assert len(core._unarmed._facts) == 0


def test_a_strangers_fact_about_its_own_link_is_refused_too() -> None:
    told = running().handle(fact_arrives(LinkId("q:9|r:e1"), NodeId("q"), 1), 3)

    assert told == [
        Mark("fact_refused", {"link": "q:9|r:e1", "reporter": "q", "reason": "no witness of anything here", "count": 1})
    ]


def test_a_neighbours_fact_about_something_else_is_no_offence() -> None:
    core = running()

    assert core.handle(fact_arrives(LinkId("leafQ:e1|spine1:9"), SPINE1, 1), 3) == []
    assert marks(core.handle(fact_arrives(LinkId("q:9|r:e1"), NodeId("q"), 1), 3)) == ["fact_refused"]


def test_a_known_fact_is_applied_when_a_program_that_does_not_list_it_is_installed() -> None:
    core = running()
    core.handle(fact_arrives(FAR1, SPINE1, 1), 1)
    core.handle(RoutesWritten(2, is_ok=True), 1)

    not_listing = core.handle(program_arrives(program(2)), 2)

    assert of(WriteRoutes, not_listing) == []
    assert core.forwarding.routes == {LEAF_B: (E2,)}


def test_a_listed_fact_is_taken_as_done() -> None:
    core = running()
    core.handle(fact_arrives(FAR1, SPINE1, 1), 1)
    core.handle(RoutesWritten(2, is_ok=True), 1)
    listing = program(2, listed=(FactRef(link=FAR1, reporter=SPINE1, counter=1),))

    assert of(WriteRoutes, core.handle(program_arrives(listing), 2)) == [WriteRoutes(3, {LEAF_B: (E1, E2)}, ())]


def test_a_fact_that_overtakes_the_program_that_is_armed_for_it_is_not_lost() -> None:
    core = running(program(1, is_armed=False))
    assert core.handle(fact_arrives(FAR1, SPINE1, 1), 1) == []

    core.handle(program_arrives(program(2)), 2)

    assert core.forwarding.routes == {LEAF_B: (E2,)}


def test_a_fact_that_comes_before_any_program_is_not_lost() -> None:
    core = connected()
    assert core.handle(fact_arrives(FAR1, NodeId("leafB"), 1), 1) == []

    core.handle(program_arrives(program()), 2)

    assert core.forwarding.routes == {LEAF_B: (E2,)}


def test_a_fact_put_aside_by_one_program_counts_again_for_the_next() -> None:
    core = running()
    core.handle(fact_arrives(FAR1, SPINE1, 1), 1)
    core.handle(program_arrives(program(2, is_armed=False)), 2)
    assert core.forwarding.routes == {LEAF_B: (E1, E2)}

    core.handle(program_arrives(program(3)), 3)

    assert core.forwarding.routes == {LEAF_B: (E2,)}


def test_a_flood_of_strangers_takes_no_more_memory_than_allowed() -> None:
    core = running()
    for number in range(FACTS_MAX + 50):
        core.handle(fact_arrives(LinkId(f"evil{number}:1|x:1"), NodeId(f"evil{number}"), 1), 1)

    assert len(core._unarmed._facts) == FACTS_MAX


def test_the_far_end_may_speak_of_the_own_link_without_being_named_a_witness() -> None:
    core = running()

    core.handle(fact_arrives(LINK2, SPINE2, 1), 1)

    assert core.forwarding.routes == {LEAF_B: (E1,)}


def test_without_protection_facts_are_not_asked_for_and_change_nothing() -> None:
    core = connected(AgentCore(LEAF, PORTS, replace(TIMERS, is_protecting=False), ports_up=BOTH_UP))
    core.handle(program_arrives(program()), 1)
    core.handle(RoutesWritten(1, is_ok=True), 1)

    down = core.handle(PortChanged("e1", oper_up=False), 2)

    assert of(WriteRoutes, down) == []
    assert [message.kind for message in said(down)] == ["fact", "health"]
    assert core._subscription is not None
    assert core._subscription.facts_of == ("leafA",)


# --- what cannot be reached ------------------------------------------------------------------------------------------------
def cannot_reach(counter: int, *destinations: DestinationId, seq: int) -> list[AgentCommand]:
    message = CannotReach(sender=LEAF, epoch=1, seq=seq, counter=counter, destinations=destinations)
    return [
        Publish(Address(Channel.CANNOT_REACH, LEAF), message, Priority.URGENT),
        Mark("cannot_reach_published", {"destinations": list(destinations)}),
    ]


def far_end_says(counter: int, *destinations: DestinationId, sender: NodeId = SPINE1) -> Delivered:
    message = CannotReach(sender=sender, counter=counter, destinations=destinations)
    return Delivered(Address(Channel.CANNOT_REACH, sender), message)


def test_an_emptied_group_is_told_upstream_at_once_and_taken_back_when_the_data_plane_is_ready() -> None:
    core = running()
    core.handle(far_end_says(1, LEAF_B, sender=SPINE2), 1)
    core.handle(RoutesWritten(2, is_ok=True), 1)

    emptied = core.handle(far_end_says(1, LEAF_B), 2)
    assert emptied[3:5] == cannot_reach(1, LEAF_B, seq=5)
    assert of(WriteRoutes, emptied) == [WriteRoutes(3, {LEAF_B: (E1, E2)}, ())]
    core.handle(RoutesWritten(3, is_ok=True), 2)

    assert said(core.handle(far_end_says(2), 3)) == []
    assert core.handle(RoutesWritten(4, is_ok=True), 3)[1:3] == cannot_reach(2, seq=6)


def test_what_a_far_end_cannot_reach_is_taken_by_its_highest_counter() -> None:
    core = running()
    core.handle(far_end_says(5, LEAF_B), 1)

    assert core.handle(far_end_says(4), 2) == []
    assert core.forwarding.routes == {LEAF_B: (E2,)}


def test_a_node_that_is_no_far_end_cannot_take_anything_away() -> None:
    core = running()

    assert core.handle(far_end_says(1, LEAF_B, sender=NodeId("evil")), 1) == []


# --- what can wait ---------------------------------------------------------------------------------------------------------
NO_HURRY_NS = 300 * MS


def by_one_port(generation: int = 1, *, members: tuple[Member, ...] = (E1,)) -> Program:
    """Leaf A reaches leaf B by spine 1 alone."""
    return sealed(program(generation).model_copy(update={"groups": (Group(id=0, members=members),)}))


def test_what_one_failure_makes_unreachable_is_not_said_while_those_armed_for_it_repair() -> None:
    core = running(by_one_port())
    down = core.handle(PortChanged("e1", oper_up=False), 2)
    core.handle(RoutesWritten(2, is_ok=True), 3)
    assert [message.kind for message in said(down)] == ["fact", "health"]
    assert core.forwarding.cannot_reach == {LEAF_B}
    assert core.next_wakeup_ns() == 2 + NO_HURRY_NS

    assert said(core.handle(TimerFired(), 1 + NO_HURRY_NS)) == []
    assert core.handle(TimerFired(), 2 + NO_HURRY_NS)[:2] == cannot_reach(1, LEAF_B, seq=7)
    assert core.next_wakeup_ns() == 2 + 30 * SECOND


def test_what_the_next_generation_reaches_again_was_never_said() -> None:
    core = running(by_one_port())
    core.handle(PortChanged("e1", oper_up=False), 2)
    core.handle(RoutesWritten(2, is_ok=True), 3)

    core.handle(program_arrives(by_one_port(2, members=(E2,))), 4)
    assert [message.kind for message in said(core.handle(RoutesWritten(3, is_ok=True), 5))] == ["ack", "presence"]
    assert said(core.handle(TimerFired(), 2 + NO_HURRY_NS)) == []


def test_what_two_failures_make_unreachable_is_said_at_once() -> None:
    core = running()
    core.handle(fact_arrives(FAR1, NodeId("leafB"), 1), 1)
    core.handle(RoutesWritten(2, is_ok=True), 1)

    down = core.handle(PortChanged("e2", oper_up=False), 2)

    assert [message.kind for message in said(down)] == ["fact", "health", "cannot_reach"]


def test_the_second_ends_word_about_a_link_waits_and_is_said_all_the_same() -> None:
    core = running()
    core.handle(fact_arrives(LINK1, SPINE1, 1), 1)

    assert [message.kind for message in said(core.handle(PortChanged("e1", oper_up=False), 2))] == ["health"]
    assert core.next_wakeup_ns() == 2 + NO_HURRY_NS

    assert core.handle(TimerFired(), 2 + NO_HURRY_NS)[:2] == own_fact(1, down=True, seq=6, epoch=1)
    assert said(core.handle(TimerFired(), 3 + NO_HURRY_NS)) == []


def test_the_second_ends_word_is_said_as_soon_as_the_first_takes_its_own_back() -> None:
    core = running()
    core.handle(fact_arrives(LINK1, SPINE1, 1), 1)
    core.handle(PortChanged("e1", oper_up=False), 2)

    back = core.handle(fact_arrives(LINK1, SPINE1, 2, down=False), 3)

    assert [message.kind for message in said(back)] == ["fact"]


def test_the_second_ends_word_is_said_at_once_where_it_may_testify_to_the_death_of_the_first() -> None:
    core = running()
    core.handle(fact_arrives(LINK1, SPINE1, 1), 1)
    core.handle(fact_arrives(FAR1, NodeId("leafB"), 1), 1)

    down = core.handle(PortChanged("e1", oper_up=False), 2)

    assert [message.kind for message in said(down)] == ["fact", "health"]


def test_a_second_testimony_against_the_far_end_lets_the_word_wait_no_longer() -> None:
    core = running()
    core.handle(fact_arrives(LINK1, SPINE1, 1), 1)
    core.handle(PortChanged("e1", oper_up=False), 2)

    assert [message.kind for message in said(core.handle(fact_arrives(FAR1, NodeId("leafB"), 1), 3))] == ["fact"]


def test_after_a_reconnect_what_waited_is_said_with_all_the_rest_and_once() -> None:
    core = running()
    core.handle(fact_arrives(LINK1, SPINE1, 1), 1)
    core.handle(PortChanged("e1", oper_up=False), 2)
    core.handle(BusLost(), 3)

    assert [message.kind for message in said(core.handle(BusConnected(), 4))] == ["presence", "fact", "health"]
    assert said(core.handle(TimerFired(), 2 + NO_HURRY_NS)) == []


# --- restarts --------------------------------------------------------------------------------------------------------------
def kept_by(*commands: AgentCommand) -> AgentState:
    persisted = [command.state for command in commands if isinstance(command, Persist)]
    return persisted[-1]


def test_a_restart_changes_nothing_that_is_right_already() -> None:
    state = AgentState(incarnation=3, program=program())
    core = AgentCore(LEAF, PORTS, TIMERS, state, ports_up=BOTH_UP, routes_installed={LEAF_B: (E1, E2)})

    commands = core.start(0)

    assert of(WriteRoutes, commands) == []
    assert core.installed == installed_by(program())
    assert kept_by(*commands).incarnation == 4
    online = said(core.handle(BusConnected(), 1))[0]
    assert online == Presence(
        sender=LEAF, epoch=1, seq=1, state="online", incarnation=4, installed=installed_by(program())
    )


def test_a_restart_after_the_data_plane_lost_its_routes_writes_them_and_only_then_claims_them() -> None:
    state = AgentState(incarnation=3, program=program())
    core = AgentCore(LEAF, PORTS, TIMERS, state, ports_up=BOTH_UP, routes_installed={})

    assert of(WriteRoutes, core.start(0)) == [WriteRoutes(1, {LEAF_B: (E1, E2)}, ())]
    assert core.installed is None
    core.handle(RoutesWritten(1, is_ok=True), 1)
    assert core.installed == installed_by(program())


def test_an_agent_without_a_program_leaves_the_data_plane_alone_until_it_has_one() -> None:
    core = AgentCore(LEAF, PORTS, TIMERS, ports_up=BOTH_UP, routes_installed={DestinationId("@old"): (E1,)})

    assert of(WriteRoutes, core.start(0)) == []
    core.handle(BusConnected(), 1)
    assert of(WriteRoutes, core.handle(program_arrives(program()), 2)) == [
        WriteRoutes(1, {LEAF_B: (E1, E2)}, (DestinationId("@old"),))
    ]


def test_a_port_that_was_down_before_the_restart_is_held_and_its_counter_goes_on() -> None:
    state = AgentState(incarnation=3, program=program(), facts=(SpokenFact(port="e1", counter=7, down=True),))
    core = AgentCore(LEAF, PORTS, TIMERS, state, ports_up=BOTH_UP, routes_installed={LEAF_B: (E2,)})

    assert of(WriteRoutes, core.start(0)) == []
    core.handle(BusConnected(), 0)
    core.handle(TimerFired(), 2 * SECOND)
    restored = core.handle(RoutesWritten(1, is_ok=True), 2 * SECOND)

    facts = [message for message in said(restored) if isinstance(message, DownFact)]
    assert [(fact.counter, fact.down) for fact in facts] == [(8, False)]


def test_a_port_that_went_down_while_the_agent_was_away_is_a_new_fact() -> None:
    state = AgentState(incarnation=3, program=program(), facts=(SpokenFact(port="e1", counter=8, down=False),))
    core = AgentCore(LEAF, PORTS, TIMERS, state, ports_up={"e2": True}, routes_installed={LEAF_B: (E1, E2)})

    commands = core.start(0)

    assert of(WriteRoutes, commands) == [WriteRoutes(1, {LEAF_B: (E2,)}, ())]
    assert kept_by(*commands).facts == (SpokenFact(port="e1", counter=9, down=True),)


def test_a_cleared_fact_is_published_again_after_a_restart() -> None:
    state = AgentState(facts=(SpokenFact(port="e1", counter=8, down=False),))
    core = AgentCore(LEAF, PORTS, TIMERS, state, ports_up=BOTH_UP)
    core.start(0)

    assert core.handle(BusConnected(), 0)[1:3] == own_fact(8, down=False, seq=2)


def test_an_agent_that_lost_its_state_corrects_its_own_retained_words() -> None:
    """The broker still holds "down, counter 5" of an earlier life; nobody would believe a counter of 1."""
    core = connected()
    retained = DownFact(sender=LEAF, link=LINK1, port="e1", far_end=SPINE1, counter=5, down=True)

    commands = core.handle(Delivered(Address(Channel.FACT, LEAF, "e1"), retained, is_retained=True), 1)

    assert commands[:2] == own_fact(6, down=False, seq=3)
    old_word = CannotReach(sender=LEAF, counter=4, destinations=(LEAF_B,))
    corrected = said(core.handle(Delivered(Address(Channel.CANNOT_REACH, LEAF), old_word, is_retained=True), 2))
    assert corrected == [CannotReach(sender=LEAF, seq=4, counter=5, destinations=())]


def test_hearing_ones_own_words_back_changes_nothing() -> None:
    core = running()
    told = said(core.handle(PortChanged("e1", oper_up=False), 1))

    for message in told:
        if isinstance(message, DownFact):
            assert core.handle(Delivered(Address(Channel.FACT, LEAF, "e1"), message), 2) == []


def test_a_message_that_is_not_for_agents_is_passed_over() -> None:
    presence = Presence(sender=SPINE1, state="online")

    assert running().handle(Delivered(Address(Channel.PRESENCE, SPINE1), presence), 1) == []


def test_other_times_count_from_the_next_wait_on() -> None:
    core = running()
    core.handle(PortChanged("e1", oper_up=False), 0)
    core.reload(replace(TIMERS, wait_to_restore_ns=5 * SECOND))

    core.handle(PortChanged("e1", oper_up=True), 1 * SECOND)

    assert core.next_wakeup_ns() == 6 * SECOND
