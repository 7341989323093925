"""What is said to operators who drain and undrain: the plan, the refusal, how far it is.

Rule 1: nothing is promised before it is on disk: the drains are persisted before they are announced or a request is answered.
Rule 2: "done" means that nobody may still send through what is drained: every agent that might has acknowledged a program computed
with the drain. Until then what is in the way is named.
Rule 3: nothing is decided here: what may be drained is `erfs_controller.drain`'s, when programs are pushed is programming's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from erfs.ids import LinkId, NodeId
from erfs.messages import CONTROLLER, Drain, DrainAnswer, DrainRequest, Drains
from erfs.ports import Mark, Publish
from erfs.topics import Address, Channel
from erfs_controller.drain import DrainList
from erfs_controller.sequence import Sequence

# More operators than this at once are a script gone wild; who asked first is told no more.
WAITING_MAX: Final = 1_000
State = Literal["planned", "refused", "accepted", "moving", "waiting", "done"]


@dataclass(frozen=True, slots=True)
class PersistDrains:
    """Keep *drains* where the next start finds them, before anything is said of them."""

    drains: Drains


Commands = list[Publish | Mark | PersistDrains]


class Orders:
    """
    The requests of operators.

    Args:
        drains: What is drained.
        sequence: Numbers what is said.
        wall_offset_ns: The wall clock's reading less that of the clock of ``now_ns``. Fixed at the start, so that a clock that is set
            meanwhile neither ends a drain nor prolongs it.
    """

    def __init__(self, drains: DrainList, sequence: Sequence, wall_offset_ns: int) -> None:
        self._drains = drains
        self._sequence = sequence
        self._wall_offset_ns = wall_offset_ns
        self._epoch = 0
        self._moving: dict[str, None] = {}
        """Accepted requests whose traffic is not known to have moved."""
        self._is_stuck = False
        self._users: tuple[NodeId, ...] | None = None
        """Who was last told to be in the way; None: nothing has been told since a request was accepted."""

    # --- the reign ----------------------------------------------------------------------------------------------------
    def hear_predecessor(self, drains: Drains) -> Commands:
        """Take in what is retained on the bus of an earlier reign; it may come after this one has begun."""
        if not self._epoch:
            return [PersistDrains(self._message())] if self._drains.adopt(drains) else []
        return [*self._restored(), *self._changed()] if self._drains.merge(drains) else []

    def lead(self, epoch: int) -> Commands:
        """Say what is drained, now that this controller leads in *epoch*."""
        self._epoch = epoch
        if not self._drains.revision:
            return []
        return [*self._restored(), self.announcement()]

    def announcement(self) -> Publish:
        """Return the message that says what is drained."""
        return Publish(Address(Channel.DRAINS), self._message())

    def next_wakeup_ns(self) -> int | None:
        """Return when the first drain ends by itself."""
        ends_wall_ns = self._drains.next_end_wall_ns()
        return None if ends_wall_ns is None else ends_wall_ns - self._wall_offset_ns

    # --- requests -----------------------------------------------------------------------------------------------------
    def hear(self, request: DrainRequest, down: frozenset[LinkId], now_ns: int) -> Commands:
        """Take in a request: plan it, refuse it, or accept it. Cost: that of `DrainList.decide`."""
        decision = self._drains.decide(request, down, now_ns + self._wall_offset_ns)
        drain = decision.drain
        if decision.reasons or drain is None:
            told: Commands = [
                self._answer(request.request, "refused", decision.reasons, plan=decision.plan, drain=drain)
            ]
            if request.is_dry_run:
                return told
            said = {"action": request.action, "target": request.target, "by": request.sender}
            return [Mark("drain_refused", said | {"reasons": list(decision.reasons)}), *told]
        if request.is_dry_run:
            return [self._answer(request.request, "planned", decision.overridden, plan=decision.plan, drain=drain)]
        if request.action == "undrain":
            self._drains.end(drain)
            mark = Mark("drain_ended", {"target": drain.name, "because": "undrained", "by": request.sender})
        else:
            self._drains.begin(drain)
            mark = Mark("drain_begun", _facts_of(drain) | {"overridden": list(decision.overridden)})
        self._moving[request.request] = self._users = None
        if len(self._moving) > WAITING_MAX:
            del self._moving[next(iter(self._moving))]
        accepted = self._answer(request.request, "accepted", decision.overridden, plan=decision.plan, drain=drain)
        return [mark, *self._changed(), accepted]

    def end_those_over(self, now_ns: int) -> Commands:
        """Undo the drains whose time is up."""
        over = self._drains.over(now_ns + self._wall_offset_ns)
        for drain in over:
            self._drains.end(drain)
        marks = [Mark("drain_ended", {"target": drain.name, "because": "its time is up"}) for drain in over]
        return [*marks, *self._changed()] if over else []

    # --- progress -----------------------------------------------------------------------------------------------------
    def follow(
        self,
        commands: Iterable[object],
        *,
        is_current: Callable[[], bool],
        is_idle: bool,
        users: Callable[[], tuple[NodeId, ...]],
    ) -> Commands:
        """
        Tell those who wait how far it is.

        Args:
            commands: What has just been decided; the marks of the push are read.
            is_current: Tells whether the last computation took everything drained into account; asked only if somebody waits.
            is_idle: Whether nothing is being pushed.
            users: Tells which nodes may still send through what carries nothing any more, their agents being away.
        """
        marks = [command for command in commands if isinstance(command, Mark) and command.event in _PROGRESS]
        if marks:
            self._is_stuck = _PROGRESS[marks[-1].event][0] == "waiting"
        told: Commands = []
        if self._moving and is_current():
            for mark in marks:
                state, reason = _PROGRESS[mark.event]
                if state != "done":
                    reasons = (reason.format(**{"missing_count": 0} | mark.fields),) if reason else ()
                    generation = mark.fields.get("generation", 0)
                    told += self._tell(state, reasons, generation if isinstance(generation, int) else 0)
            if is_idle and not self._is_stuck:
                told += self._tell_end(users())
        return told

    def _tell_end(self, users: tuple[NodeId, ...]) -> Commands:
        if users == self._users:
            return []
        self._users = users
        if users:
            named = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            return self._tell("waiting", (f"agents are away whose nodes may still send through it: {named}",))
        told = self._tell("done")
        self._moving.clear()
        return told

    def _tell(self, state: State, reasons: tuple[str, ...] = (), generation: int = 0) -> Commands:
        return [self._answer(request, state, reasons, generation=generation) for request in self._moving]

    # --- what is said -------------------------------------------------------------------------------------------------
    def _restored(self) -> Commands:
        return [Mark("drains_restored", {"drains": [drain.name for drain in self._drains.drains]})]

    def _changed(self) -> Commands:
        return [PersistDrains(self._message()), self.announcement()]

    def _message(self) -> Drains:
        return Drains(
            sender=CONTROLLER,
            epoch=self._epoch,
            seq=self._sequence.next(),
            revision=self._drains.revision,
            drains=self._drains.drains,
        )

    def _answer(self, request: str, state: State, reasons: tuple[str, ...] = (), **more: Any) -> Publish:
        stamp = {"sender": CONTROLLER, "epoch": self._epoch, "seq": self._sequence.next()}
        answer = DrainAnswer(request=request, state=state, reasons=reasons, **stamp, **more)
        return Publish(Address(Channel.DRAIN_ANSWER, NodeId(request)), answer)


_PROGRESS: Final[dict[str, tuple[State, str]]] = {
    "generation_pushed": ("moving", ""),
    "restoration_finished": ("done", ""),
    "generation_incomplete": ("waiting", "{missing_count} agents have not acknowledged generation {generation}"),
    "push_withheld": (
        "waiting",
        "generation {generation} is withheld, for what its round {round} might bring: {finding}",
    ),
    "push_refused": (
        "waiting",
        "generation {generation} takes away what agents report as reachable: erfs confirm {generation} if that is meant",
    ),
}
"""What the marks of a push mean to an operator."""


def _facts_of(drain: Drain) -> dict[str, object]:
    """Return a drain for the journal."""
    found: dict[str, object] = {"target": drain.name, "strength": drain.strength, "by": drain.by}
    if drain.ends_wall_ns is not None:
        found["lasts_ns"] = drain.ends_wall_ns - drain.begins_wall_ns
    if drain.forced_because:
        found["forced_because"] = drain.forced_because
    return found
