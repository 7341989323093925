"""A bench for the controller: agents that answer as the real ones do, and a clock that the test moves."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.messages import (
    CONTROLLER,
    Ack,
    DownFact,
    Drains,
    Health,
    Installed,
    Leader,
    Message,
    PortHealth,
    Presence,
    Program,
)
from erfs.ports import BusConnected, Delivered, Mark, Publish, TimerFired
from erfs.topics import Address, Channel
from erfs.units import MS, SECOND
from erfs_controller.core import Command, ControllerCore, ControllerTimers, Event

TIMERS = ControllerTimers(
    discovery_ns=500 * MS,
    debounce_min_ns=10 * MS,
    debounce_max_ns=50 * MS,
    ack_wait_ns=800 * MS,
    ack_attempts=3,
    leader_refresh_ns=1 * SECOND,
    leader_listen_ns=3 * SECOND,
)
CHANNELS = {
    "presence": Channel.PRESENCE,
    "health": Channel.HEALTH,
    "fact": Channel.FACT,
    "ack": Channel.ACK,
    "leader": Channel.LEADER,
    "confirm": Channel.CONFIRM,
    "drain": Channel.DRAIN,
    "drains": Channel.DRAINS,
}
FROM_OPERATORS = ("confirm", "drain")


@dataclass
class Bench:
    """One controller core, the agents of its fabric, and everything it ever said."""

    fabric: Fabric
    timers: ControllerTimers = TIMERS
    controller_id: str = "one"
    stored_epoch: int = 0
    stored_drains: Drains | None = None
    now_ns: int = 0
    programs: dict[NodeId, Program] = field(default_factory=dict)
    """What agents run: kept by the bench, so it outlives a controller."""
    topics: dict[NodeId, Program] = field(default_factory=dict)
    """What is retained on the program topics."""
    mute: set[NodeId] = field(default_factory=set)
    """Agents that get programs and do not answer."""
    said: list[Command] = field(default_factory=list)
    facts: dict[tuple[NodeId, LinkId], DownFact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agents = {node.id for node in self.fabric.switches} | {node.id for node in self.fabric.endpoints}
        self.core = ControllerCore(self.fabric, self.timers, self.controller_id, self.stored_epoch, self.stored_drains)

    # --- driving ------------------------------------------------------------------------------------------------------
    def handle(self, event: Event) -> list[Command]:
        """Give one event to the core; agents answer what it pushes, and so on until nothing more is said."""
        said: list[Command] = []
        pending = [event]
        while pending:
            for command in self.core.handle(pending.pop(0), self.now_ns):
                said.append(command)
                if isinstance(command, Publish) and isinstance(command.message, Program):
                    pending += self._install(command.message)
        self.said += said
        return said

    def _install(self, program: Program) -> list[Event]:
        self.topics[program.node] = program
        if program.node in self.mute:
            return []
        self.programs[program.node] = program
        return [self.arrival(self.ack(program))]

    def ack(self, program: Program, outcome: str = "installed", **fields: object) -> Ack:
        """Return the answer of a node to *program*."""
        running = self.programs.get(program.node)
        base: dict[str, object] = {
            "sender": program.node,
            "epoch": program.epoch,
            "program_epoch": program.epoch,
            "generation": program.generation,
            "digest": program.digest,
            "outcome": outcome,
            "installed": installed(running) if running is not None else None,
        }
        return Ack.model_validate(base | fields)

    def arrival(self, message: Message, *, is_retained: bool = False) -> Delivered:
        """Return the event of *message*."""
        node = NodeId("") if message.sender == CONTROLLER or message.kind in FROM_OPERATORS else message.sender
        if isinstance(message, Program):
            return Delivered(Address(Channel.PROGRAM, message.node), message, is_retained)
        port = message.port if isinstance(message, DownFact) else ""
        return Delivered(Address(CHANNELS[message.kind], node, port), message, is_retained)

    def hear(self, message: Message, *, is_retained: bool = False) -> list[Command]:
        """Deliver *message* now."""
        return self.handle(self.arrival(message, is_retained=is_retained))

    def advance(self, until_ns: int) -> list[Command]:
        """Let time pass until *until_ns*, waking the core whenever it wants to be."""
        said: list[Command] = []
        for _ in range(10_000):
            wakeup_ns = self.core.next_wakeup_ns()
            if wakeup_ns is None or wakeup_ns > until_ns:
                self.now_ns = until_ns
                return said
            self.now_ns = max(self.now_ns, wakeup_ns)
            said += self.handle(TimerFired())
        raise AssertionError("too many wake-ups")

    def wait(self, for_ns: int) -> list[Command]:
        """Let *for_ns* pass."""
        return self.advance(self.now_ns + for_ns)

    # --- conversations ------------------------------------------------------------------------------------------------
    def meet(self, nodes: Iterable[NodeId] | None = None) -> None:
        """Start the core and connect it; agents say hello and what they run; retained programs and facts arrive."""
        self.said += self.core.start(self.now_ns)
        self.handle(BusConnected())
        for node in sorted(self.agents if nodes is None else nodes):
            self.hear(self.presence(node), is_retained=True)
        for node in sorted(self.topics):
            self.hear(self.topics[node], is_retained=True)
        for key in sorted(self.facts):
            self.hear(self.facts[key], is_retained=True)

    def lead(self, nodes: Iterable[NodeId] | None = None) -> list[Command]:
        """Meet everybody and wait until the first restoration is finished."""
        self.meet(nodes)
        return self.wait(self.timers.discovery_ns)

    def succeed(self, **fields: object) -> "Bench":
        """Return the bench of a successor: the agents, topics and facts are those of this one."""
        kept = {"fabric": self.fabric, "timers": self.timers, "now_ns": self.now_ns, "facts": self.facts}
        kept |= {"programs": self.programs, "topics": self.topics, "controller_id": "two"}
        return Bench(**(kept | fields))  # type: ignore[arg-type]

    def presence(self, node: NodeId, state: str = "online", incarnation: int = 1) -> Presence:
        """Return what an agent says of itself."""
        program = self.programs.get(node)
        said = installed(program) if program is not None else None
        return Presence.model_validate(
            {
                "sender": node,
                "state": state,
                "incarnation": incarnation,
                "installed": said,
                "epoch": program.epoch if program else 0,
            }
        )

    def fact(self, node: NodeId, link: LinkId, counter: int = 1, *, down: bool = True) -> DownFact:
        """Return the word of *node* about *link*, and keep it as the broker would."""
        cable = self.fabric.links[link]
        fact = DownFact(
            sender=node,
            link=link,
            port=cable.end_at(node).port,
            far_end=cable.far_end(node).node,
            counter=counter,
            down=down,
        )
        self.facts[node, link] = fact
        return fact

    def health(self, node: NodeId, down: Iterable[LinkId] = (), counter: int = 0, *, held: bool = False) -> Health:
        """Return the report of *node*: all ports up but those of the links *down*."""
        lost = set(down)
        return Health(
            sender=node,
            ports=tuple(
                PortHealth(
                    port=link.end_at(node).port,
                    link=link.id,
                    far_end=link.far_end(node).node,
                    oper_up=held or link.id not in lost,
                    held=held and link.id in lost,
                    counter=counter if link.id in lost else 0,
                )
                for link in self.fabric.links_of[node]
            ),
        )

    def link(self, one: str, other: str) -> LinkId:
        """Return the first link between two nodes."""
        return next(link.id for link in self.fabric.links.values() if {link.a.node, link.b.node} == {one, other})

    def fail(self, link: LinkId, counter: int = 1) -> list[Command]:
        """Both ends lose *link* and say so."""
        ends = self.fabric.links[link].ends
        return [command for end in ends for command in self.hear(self.fact(end.node, link, counter))]

    def repair(self, link: LinkId, counter: int = 2) -> list[Command]:
        """Both ends have *link* back and say so."""
        ends = self.fabric.links[link].ends
        return [command for end in ends for command in self.hear(self.fact(end.node, link, counter, down=False))]


def installed(program: Program) -> Installed:
    """Return what an agent says that runs *program*."""
    return Installed(epoch=program.epoch, generation=program.generation, digest=program.digest)


def marks(commands: Iterable[Command], *events: str) -> list[Mark]:
    """Return the marks among *commands*, of *events* if any are given."""
    return [command for command in commands if isinstance(command, Mark) and (not events or command.event in events)]


def pushed(commands: Iterable[Command]) -> list[Program]:
    """Return the programs among *commands*, in order."""
    messages = [command.message for command in commands if isinstance(command, Publish)]
    return [message for message in messages if isinstance(message, Program)]


def alive(controller: str, epoch: int, state: str = "alive") -> Leader:
    """Return a leader message."""
    return Leader.model_validate({"sender": CONTROLLER, "controller": controller, "epoch": epoch, "state": state})


@dataclass(frozen=True)
class Kit:
    """What the tests of the controller share."""

    bench: Callable[..., Bench]
    marks: Callable[..., list[Mark]]
    pushed: Callable[..., list[Program]]
    alive: Callable[..., Leader]
    installed: Callable[..., Installed]


@pytest.fixture(scope="session")
def leaf_spine() -> Fabric:
    """Four leaves, two spines, two hosts a leaf, each attached once."""
    return generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2})


@pytest.fixture(scope="session")
def fat_tree() -> Fabric:
    """The k=4 fat-tree."""
    return generate("fat-tree", {"k": 4})


@pytest.fixture(scope="session")
def kit() -> Kit:
    """The bench and its readers."""
    return Kit(Bench, marks, pushed, alive, installed)
