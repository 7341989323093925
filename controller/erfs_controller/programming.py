"""How programs reach the agents: generation by generation, round by round, each acknowledged before the next.

Rule 1: a round starts when every agent that must has acknowledged the one before; nobody skips the wait.
Rule 2: every plan starts from what agents really run. What may be under way to one is overtaken in the first round.
Rule 3: who is gone or cut off is given its program last and not waited for; who does not answer is named, and later rounds wait.
Rule 4: a gone agent's node goes on forwarding as it did: additions are planned around it, and planned anew when agents come or go.
Rule 5: no round is pushed that could loop or lose what works, whichever of its agents are first: each is verified in the plan.
Rule 6: nothing here knows why routes changed.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from erfs.fabric import Fabric
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Ack, Installed, Program
from erfs.paths import PushVerdict, Verifier, plan_rounds
from erfs.ports import Mark, Publish
from erfs.topics import Address, Channel
from erfs_controller.roster import Roster, age
from erfs_controller.routes import keeping
from erfs_controller.sequence import Sequence
from erfs_controller.timers import ControllerTimers

Commands = list[Publish | Mark]
Round = dict[NodeId, Program]

# So many missing nodes are named in a mark; the count is exact.
NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A way from what agents run to what they should run.

    Args:
        before: What agents run, as far as it is known; also agents that the fabric file lacks.
        after: What they should run; the same object where that is the same work.
        rounds: Who is given what, in which order.
        held_by: The gone agents for whose sake some destinations keep next hops that are not what *after* has; empty if none do.
        flaw: Why the plan must not be carried out; None if it may.
    """

    before: Mapping[NodeId, Program]
    after: Mapping[NodeId, Program]
    rounds: list[Round]
    held_by: tuple[NodeId, ...] = ()
    flaw: "Flaw | None" = None

    @property
    def changed_count(self) -> int:
        """How many nodes get something."""
        return len({node for round_ in self.rounds for node in round_})


@dataclass(frozen=True, slots=True)
class Flaw:
    """
    What could happen in a round of a plan.

    Args:
        round_number: The first round in which it could, counted from 1.
        kind: "loop", "valley" or "interruption", the worst of what was found.
        destinations: Whose packets.
        nodes: Among or at which nodes; of an interruption, the sources.
    """

    round_number: int
    kind: str
    destinations: tuple[DestinationId, ...]
    nodes: tuple[NodeId, ...]

    @classmethod
    def first_of(cls, verdict: PushVerdict) -> "Flaw | None":
        """Return why *verdict* forbids a push, None if it does not."""
        number = verdict.unsafe_round()
        if number is None:
            return None
        found = verdict.rounds[number]
        kind, pairs = "interruption", [(item.destination, item.sources) for item in found.interrupted]
        if found.loops:
            kind, pairs = "loop", [(loop.destination, loop.nodes) for loop in found.loops]
        elif found.valleys:
            kind, pairs = "valley", [(valley.destination, (valley.node,)) for valley in found.valleys]
        destinations = sorted({destination for destination, _ in pairs})
        nodes = sorted({node for _, among in pairs for node in among})
        return cls(number + 1, kind, tuple(destinations), tuple(nodes))


@dataclass(slots=True)
class _Push:
    """The push under way. *round* is the one in flight, *later* those behind it."""

    round: Round
    later: list[Round]
    generation: int = 0
    missing: set[NodeId] = field(default_factory=set)
    """Who must still acknowledge the round."""
    attempts: int = 0
    resend_at_ns: int | None = None
    """None: not waiting for time: everybody answered, or too many attempts were in vain."""


class Programming:
    """
    The pushes of one reign.

    Args:
        roster: What is known of the agents; acknowledgements are noted there.
        is_cut_off: Whether nobody can reach a node, so that what it runs does not matter.
        sequence: Numbers what is said.
    """

    def __init__(
        self, roster: Roster, is_cut_off: Callable[[NodeId], bool], timers: ControllerTimers, sequence: Sequence
    ) -> None:
        self._roster = roster
        self._is_cut_off = is_cut_off
        self._timers = timers
        self._sequence = sequence
        self._epoch = 0
        self._last_generation = 0
        self._push: _Push | None = None
        self._is_paused = True
        self._held_by: tuple[NodeId, ...] = ()
        self._verifier: tuple[Fabric, Verifier] | None = None
        self._is_withheld = False
        self.is_plan_stale = False
        """Whether agents came or went so that what is left of the plan is no longer proven; plan anew."""

    @property
    def next_generation(self) -> int:
        """The number that the next round will carry."""
        return self._last_generation + 1

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being pushed."""
        return self._push is None

    def next_wakeup_ns(self) -> int | None:
        """Return when unanswered programs are to be sent again."""
        return None if self._push is None or self._is_paused else self._push.resend_at_ns

    # --- planning -----------------------------------------------------------------------------------------------------
    def plan(self, computed: Mapping[NodeId, Program], fabric: Fabric, unusable: Collection[LinkId]) -> Plan:
        """
        Return how to get from what agents run to the *computed* programs; no round if they run it all.

        Every round is verified, in every mixture of old and new programs that it may pass through; links that are *unusable* count as
        such. What a gone agent may be running is part of each mixture.

        Where no agent runs anything yet one round is enough: any part of an acyclic whole is acyclic.
        An agent with something unacknowledged under way is in the first round whatever it runs, for a node that turns out to run
        another program than the plan assumes could close a loop.
        """
        self._roster.recognise(computed)
        running = self._roster.running()
        before = {node: program for node, program in running.items() if node in computed}
        after = keeping(before, computed)
        pinned = self._pinned(before)
        rounds = plan_rounds(before, after, fabric, pinned) if before else [dict(after)]
        reached = dict(before)
        for round_ in rounds:
            reached.update(round_)
        is_held = any(program.digest != reached[node].digest for node, program in after.items())
        for node, program in after.items():
            agent = self._roster.agents[node]
            if not agent.open or (not agent.is_online and agent.given is program):
                continue
            if not rounds:
                rounds.append({})
            rounds[0].setdefault(node, before.get(node, program))
        verdict = self._verifier_of(fabric).verify_rounds(
            before, rounds, working=lambda link: link not in unusable, pinned=pinned
        )
        return Plan(running, after, rounds, tuple(pinned) if is_held else (), Flaw.first_of(verdict))

    def _verifier_of(self, fabric: Fabric) -> Verifier:
        if self._verifier is None or self._verifier[0] is not fabric:
            self._verifier = (fabric, Verifier(fabric))
        return self._verifier[1]

    def _pinned(self, before: Mapping[NodeId, Program]) -> dict[NodeId, tuple[Program, ...]]:
        """Return the nodes that forward without an agent, with all that they may be running."""
        return {
            node: (program, *(other for other in self._roster.agents[node].open if other is not program))
            for node, program in before.items()
            if not self._roster.agents[node].is_online and not self._is_cut_off(node)
        }

    # --- pushing ------------------------------------------------------------------------------------------------------
    def begin(self, plan: Plan, now_ns: int) -> Commands:
        """
        Push the rounds of *plan* in their order; whatever was under way is superseded.

        A plan with a flaw is not carried out at all: agents keep what they run until links or agents come or go and there is another plan.
        """
        self._push = None
        self._held_by = plan.held_by
        self._is_withheld = plan.flaw is not None
        self.is_plan_stale = False
        if plan.flaw is not None:
            return [self._withheld(plan, plan.flaw)]
        if not plan.rounds:
            return self._finished()
        self._push = _Push(round=plan.rounds[0], later=plan.rounds[1:])
        return self._send_round(self._push, now_ns)

    def hold(self, generation: int) -> None:
        """Push nothing more: *generation* was refused, and keeps its number for when it may go after all."""
        self._push = None
        self._is_withheld = False
        self._last_generation = generation - 1

    def pause(self) -> None:
        """Say nothing for now: the bus is gone, or it is in doubt who leads. Time so spent counts against no agent."""
        self._is_paused = True

    def resume(self, epoch: int, now_ns: int) -> Commands:
        """Go on, with *epoch* on all that is pushed from now on. The caller plans anew after a change of epoch."""
        self._is_paused = False
        self._epoch = epoch
        push = self._push
        if push is not None:
            push.attempts = 1
            push.resend_at_ns = now_ns + self._timers.ack_wait_ns
        return self.reconsider(now_ns)

    def republish(self) -> Commands:
        """Put every agent's newest program on its topic again: a broker may have come back without its memory."""
        return [self._publish(agent.given) for agent in self._roster.agents.values() if agent.given is not None]

    def _send_round(self, push: _Push, now_ns: int) -> Commands:
        self._last_generation += 1
        push.generation = self._last_generation
        push.round = {node: self._stamped(program, push.generation) for node, program in sorted(push.round.items())}
        commands: Commands = [self._generation_mark("generation_pushed", push.generation, nodes=len(push.round))]
        for node, program in push.round.items():
            self._roster.agents[node].give(program)
            commands.append(Publish(Address(Channel.PROGRAM, node), program))
        push.missing = {node for node in push.round if self._must_acknowledge(node)}
        push.attempts = 1
        push.resend_at_ns = now_ns + self._timers.ack_wait_ns
        return commands + self._go_on(now_ns)

    def _go_on(self, now_ns: int) -> Commands:
        push = self._push
        if push is None or push.missing or self._is_paused or self.is_plan_stale:
            return []
        commands: Commands = [self._generation_mark("generation_acknowledged", push.generation)]
        if not push.later:
            self._push = None
            return commands + self._finished()
        push.round, push.later = push.later[0], push.later[1:]
        return commands + self._send_round(push, now_ns)

    # --- what agents answer -------------------------------------------------------------------------------------------
    def hear_ack(self, ack: Ack, now_ns: int) -> Commands:
        """Take in an acknowledgement: note what runs, and go on when it was the last one missing."""
        agent = self._roster.agents.get(ack.sender)
        if agent is None:
            return [Mark("acknowledgement_refused", {"reporter": ack.sender, "reason": "the fabric has no such node"})]
        done = Installed(epoch=ack.program_epoch, generation=ack.generation, digest=ack.digest)
        agent.reports(done if ack.outcome == "installed" else ack.installed)
        commands: Commands = []
        if ack.outcome != "installed":
            stamp = {"epoch": ack.program_epoch, "generation": ack.generation}
            said = {"reporter": ack.sender, "outcome": ack.outcome, "reason": ack.reason}
            commands.append(Mark("program_not_installed", {**stamp, **said}))
        return commands + self._count(ack.sender, now_ns)

    def hear_installed(self, node: NodeId, installed: Installed | None, now_ns: int) -> Commands:
        """Take in what an agent's report says it runs: its acknowledgement may have been lost."""
        agent = self._roster.agents.get(node)
        if agent is None:
            return []
        agent.reports(installed)
        return self._count(node, now_ns)

    def agent_moved(self, node: NodeId, now_ns: int) -> Commands:
        """An agent came or went. One that returns with something else than it was given is sent it again."""
        agent = self._roster.agents[node]
        push = self._push
        # What was withheld may go when other agents are there to be ordered.
        self.is_plan_stale |= self._is_withheld
        if not agent.is_online:
            if push is not None and push.later and not self._is_cut_off(node):
                # The rounds to come were ordered for a node that follows; this one stays where it is.
                self.is_plan_stale = True
                return []
            return self.reconsider(now_ns)
        self.is_plan_stale |= node in self._held_by
        commands: Commands = []
        if agent.given is not None and not self._is_paused and not _runs(agent.installed, agent.given):
            if agent.given.epoch < self._epoch:
                # An earlier reign left it. It is right still, but an agent that has heard of this reign takes nothing older.
                self._last_generation += 1
                agent.given = self._stamped(agent.given, self._last_generation)
            agent.give(agent.given)
            commands.append(self._publish(agent.given))
            if push is not None and push.round.get(node) is agent.given and self._must_acknowledge(node):
                push.missing.add(node)
                push.attempts = 1
                push.resend_at_ns = now_ns + self._timers.ack_wait_ns
        return commands + self._count(node, now_ns)

    def reconsider(self, now_ns: int) -> Commands:
        """Agents left or nodes were cut off: stop waiting for them. Cost: O(missing)."""
        push = self._push
        if push is None:
            return []
        push.missing = {node for node in push.missing if self._must_acknowledge(node)}
        return self._go_on(now_ns)

    def tick(self, now_ns: int) -> Commands:
        """Send unanswered programs again when their time has come; after the last attempt name who is missing and hold."""
        push = self._push
        if push is None or self._is_paused or push.resend_at_ns is None or now_ns < push.resend_at_ns:
            return []
        missing = sorted(push.missing)
        if push.attempts >= self._timers.ack_attempts:
            push.resend_at_ns = None
            named = {"missing": missing[:NAMED_MAX], "missing_count": len(missing)}
            return [self._generation_mark("generation_incomplete", push.generation, **named)]
        push.attempts += 1
        push.resend_at_ns = now_ns + self._timers.ack_wait_ns
        return [self._publish(push.round[node]) for node in missing]

    def may_still_use(self, links: Collection[LinkId]) -> tuple[NodeId, ...]:
        """
        Return the nodes, none of them cut off, that have not confirmed their newest program and may be running one that uses *links*.

        Cost: O(unconfirmed nodes * members of their programs).
        """
        found = []
        for node, agent in sorted(self._roster.agents.items()):
            if agent.given is None or _runs(agent.installed, agent.given) or self._is_cut_off(node):
                continue
            programs = [program for program in (agent.running, *agent.open) if program is not None]
            if any(_uses(program, links) for program in programs):
                found.append(node)
        return tuple(found)

    def _count(self, node: NodeId, now_ns: int) -> Commands:
        push = self._push
        if push is None or node not in push.missing or not _runs(self._roster.agents[node].installed, push.round[node]):
            return []
        push.missing.remove(node)
        if push.resend_at_ns is not None:
            # While answers keep coming nobody is late: sending again would only lengthen the queue they wait in.
            push.resend_at_ns = now_ns + self._timers.ack_wait_ns
        return self._go_on(now_ns)

    def _must_acknowledge(self, node: NodeId) -> bool:
        return self._roster.agents[node].is_online and not self._is_cut_off(node)

    # --- what is said -------------------------------------------------------------------------------------------------
    def _stamped(self, program: Program, generation: int) -> Program:
        stamp = {"epoch": self._epoch, "generation": generation, "seq": self._sequence.next()}
        return program.model_copy(update=stamp)

    def _publish(self, program: Program) -> Publish:
        again = program.model_copy(update={"seq": self._sequence.next()})
        return Publish(Address(Channel.PROGRAM, program.node), again)

    def _withheld(self, plan: Plan, flaw: Flaw) -> Mark:
        named = {
            "destinations": list(flaw.destinations[:NAMED_MAX]),
            "destination_count": len(flaw.destinations),
            "nodes": list(flaw.nodes[:NAMED_MAX]),
            "node_count": len(flaw.nodes),
        }
        at = {"round": flaw.round_number, "rounds": len(plan.rounds), "finding": flaw.kind}
        return self._generation_mark("push_withheld", self.next_generation, **at, **named)

    def _generation_mark(self, event: str, generation: int, **fields: object) -> Mark:
        return Mark(event, {"epoch": self._epoch, "generation": generation} | fields)

    def _finished(self) -> Commands:
        if self._held_by:
            named = {"missing": list(self._held_by[:NAMED_MAX]), "missing_count": len(self._held_by)}
            return [self._generation_mark("generation_incomplete", self._last_generation, **named)]
        return [self._generation_mark("restoration_finished", self._last_generation)]


def _uses(program: Program, links: Collection[LinkId]) -> bool:
    ports = {binding.port for binding in program.ports if binding.link in links}
    members = [member for group in program.groups for member in group.members]
    members += [member for step in program.armed.steps for member in step.add]
    return any(member.port in ports for member in members)


def _runs(installed: Installed | None, program: Program) -> bool:
    return installed is not None and age(installed) >= age(program) and installed.digest == program.digest
