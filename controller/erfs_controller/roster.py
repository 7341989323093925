"""What is known of each agent: whether it is there, what it runs, what it was given.

Rule 1: what an agent runs is what it acknowledged, never what it was given.
Rule 2: an old word never replaces a newer one: a last will of an earlier incarnation, an installed program of an earlier push.
Rule 3: nothing here decides what to give.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from erfs.ids import NodeId
from erfs.messages import Installed, Presence, Program

# A gone agent is given every round it misses; only the newest few can be what it runs when it returns.
_OPEN_MAX: Final = 8
# As many agents as a file could lack; more than that is someone's noise.
_UNLISTED_MAX: Final = 20_000


@dataclass(slots=True)
class Agent:
    """One node's agent as the controller knows it."""

    node: NodeId
    is_online: bool = False
    incarnation: int = -1
    """-1: never heard of."""
    installed: Installed | None = None
    """What it says it runs."""
    running: Program | None = None
    """The same as an object, where the controller has it."""
    given: Program | None = None
    """The newest program on the agent's topic."""
    open: list[Program] = field(default_factory=list)
    """Given and not acknowledged, oldest first: any of them may be running by now."""

    @property
    def is_settled(self) -> bool:
        """Whether it is certain which program the agent runs: nothing is under way to it."""
        return not self.open

    def give(self, program: Program) -> None:
        """Note that *program* is on its way to the agent."""
        self.given = program
        if not any(program is other for other in self.open):
            self.open = [*self.open[1 - _OPEN_MAX :], program]

    def reports(self, installed: Installed | None, *, is_reborn: bool = False) -> None:
        """
        Take in what the agent says it runs, from an acknowledgement, its presence or its health report.

        Within one incarnation that only grows newer, so an older word is a late one. A reborn agent may have lost anything.
        """
        if is_reborn and installed is None:
            self.installed = self.running = None
        if installed is None or installed == self.installed:
            return
        if self.installed is not None and age(installed) < age(self.installed) and not is_reborn:
            return
        self.installed = installed
        candidates = [*self.open, *filter(None, (self.running, self.given))]
        self.running = next((program for program in candidates if program.digest == installed.digest), None)
        # Whatever is older than what runs can no longer be installed.
        self.open = [program for program in self.open if age(program) > age(installed)]


class Roster:
    """All agents of a fabric."""

    def __init__(self, nodes: Iterable[NodeId]) -> None:
        self.agents: dict[NodeId, Agent] = {node: Agent(node) for node in sorted(nodes)}
        self._unlisted_count = 0

    def add_nodes(self, nodes: Iterable[NodeId]) -> None:
        """Take in a new fabric's nodes; those it lacks are kept too, for a file that lacks them may be the one that is wrong."""
        self.agents = {node: self.agents.get(node) or Agent(node) for node in sorted({*self.agents, *nodes})}

    def hear_presence(self, presence: Presence) -> bool:
        """Take in an agent's coming or going. Return whether it was news."""
        agent = self._agent(presence.sender)
        if agent is None or presence.incarnation < agent.incarnation:
            return False
        is_online = presence.state == "online"
        is_reborn = is_online and presence.incarnation > agent.incarnation
        is_news = is_reborn or is_online != agent.is_online
        agent.is_online, agent.incarnation = is_online, presence.incarnation
        if is_online:
            agent.reports(presence.installed, is_reborn=is_reborn)
        return is_news

    def hear_given(self, program: Program) -> None:
        """Take in a program that an earlier reign left on an agent's topic: it runs there, or may soon."""
        agent = self._agent(program.node)
        if agent is None or agent.given is not None:
            return
        if agent.installed is None or age(program) > age(agent.installed):
            agent.give(program)
            return
        agent.given = program
        if agent.installed.digest == program.digest:
            agent.running = program

    def _agent(self, node: NodeId) -> Agent | None:
        """Return what is known of *node*, also of one that the fabric file lacks: the file may be what is wrong."""
        if node not in self.agents and self._unlisted_count < _UNLISTED_MAX:
            self._unlisted_count += 1
            self.agents[node] = Agent(node)
        return self.agents.get(node)

    def running(self) -> dict[NodeId, Program]:
        """
        Return the programs that run, as far as they are known, in canonical order.

        An agent that is not there cannot say; it will run what is on its topic.
        """
        found = {}
        for node, agent in sorted(self.agents.items()):
            program = agent.running or (None if agent.is_online else agent.given)
            if program is not None:
                found[node] = program
        return found

    def recognise(self, programs: Mapping[NodeId, Program]) -> None:
        """Find among computed *programs* those that agents run already: equal digest, equal content."""
        for node, program in programs.items():
            agent = self.agents[node]
            installed = agent.installed
            if agent.running is None and installed is not None and installed.digest == program.digest:
                stamp = {"epoch": installed.epoch, "generation": installed.generation}
                agent.running = program.model_copy(update=stamp)
                agent.given = agent.given or agent.running


def age(what: Installed | Program) -> tuple[int, int]:
    """Return the order in which programs replace each other."""
    return what.epoch, what.generation
