"""Who leads, and in which epoch.

Rule 1: at each start the epoch is one above every epoch known: the own store's, the leader message's, the agents'.
Rule 2: of two leaders the one with the greater (epoch, id) stays; the other exits. Nobody pushes while in doubt.
Rule 3: nothing here knows of routes or programs.
"""

from enum import StrEnum
from typing import Final

from erfs.messages import CONTROLLER, Leader
from erfs.ports import Mark, Priority, Publish
from erfs.topics import Address, Channel
from erfs_controller.sequence import Sequence
from erfs_controller.timers import ControllerTimers

LEADER: Final = Address(Channel.LEADER)


class Phase(StrEnum):
    """Where this controller stands."""

    OFFLINE = "offline"  # no bus
    LISTENING = "listening"  # collecting what others say, pushing nothing
    LEADING = "leading"
    LEFT = "left"  # another leads: this one must exit


class Election:
    """
    The reign of one controller: listens, leads, gives way.

    Args:
        controller: This controller's id, unlike any other's.
        stored_epoch: The epoch of this controller's last reign, 0 if there was none.
        sequence: Numbers what is said.
    """

    def __init__(self, controller: str, stored_epoch: int, timers: ControllerTimers, sequence: Sequence) -> None:
        self.controller = controller
        self.phase = Phase.OFFLINE
        self.epoch = 0
        """The epoch of this reign; 0 before the first."""
        self.rival = ""
        """Who leads instead, once this one has left."""
        self._timers = timers
        self._sequence = sequence
        self._epoch_seen = stored_epoch
        self._listen_until_ns = 0
        self._refresh_at_ns = 0

    # --- what happens -------------------------------------------------------------------------------------------------
    def connected(self, now_ns: int) -> None:
        """
        A broker can be used: listen first, also after a break, for another may have taken over meanwhile.

        While we lead, it is one more broker, or one that said our last will by mistake: tell it.
        """
        if self.phase is Phase.LEADING:
            self._refresh_at_ns = now_ns
        elif self.phase is not Phase.LEFT:
            self._listen(now_ns, self._timers.discovery_ns)

    def disconnected(self) -> None:
        """The bus is gone: nobody can be led."""
        if self.phase is not Phase.LEFT:
            self.phase = Phase.OFFLINE

    def saw_epoch(self, epoch: int, now_ns: int) -> None:
        """
        Take in an epoch that an agent runs.

        One above ours while we lead means either that another controller leads and its word has not reached us yet, or that agents
        survived a reign that left no other trace. Listening tells which: the leader's refresh, or silence and then an epoch above.
        """
        self._epoch_seen = max(self._epoch_seen, epoch)
        if self.phase is Phase.LEADING and epoch > self.epoch:
            self._listen(now_ns, self._timers.leader_listen_ns)

    def hear(self, leader: Leader, now_ns: int, *, is_retained: bool) -> list[Publish]:
        """Take in a leader message, our own included; return our answer to one that should give way."""
        self._epoch_seen = max(self._epoch_seen, leader.epoch)
        if leader.controller == self.controller or self.phase in (Phase.OFFLINE, Phase.LEFT):
            return []
        is_alive = leader.state == "alive"
        if self.epoch == 0:
            if is_alive and is_retained:
                self._listen(now_ns, self._timers.leader_listen_ns)
            elif is_alive:
                self._leave(leader)
            return []
        if is_alive and (leader.epoch, leader.controller) > (self.epoch, self.controller):
            self._leave(leader)
            return []
        # An elder's last word may just have replaced ours as the retained one.
        return [self.announcement()] if self.phase is Phase.LEADING else []

    def advance(self, now_ns: int) -> list[Publish]:
        """Do what is due: start or resume the reign when listening is over, refresh while leading."""
        if self.phase is Phase.LISTENING and now_ns >= self._listen_until_ns:
            if self.epoch == 0 or self._epoch_seen > self.epoch:
                self.epoch = self._epoch_seen + 1
                self._epoch_seen = self.epoch
            self.phase = Phase.LEADING
            self._refresh_at_ns = now_ns
        if self.phase is not Phase.LEADING or now_ns < self._refresh_at_ns:
            return []
        if now_ns - self._refresh_at_ns > self._timers.leader_listen_ns:
            # We were frozen for so long that a newcomer may have taken us for dead: listen before saying or pushing anything.
            self._listen(now_ns, self._timers.leader_listen_ns)
            return []
        self._refresh_at_ns = now_ns + self._timers.leader_refresh_ns
        return [self.announcement()]

    def next_wakeup_ns(self) -> int | None:
        """Return when `advance` has something to do."""
        match self.phase:
            case Phase.LISTENING:
                return self._listen_until_ns
            case Phase.LEADING:
                return self._refresh_at_ns
            case Phase.OFFLINE | Phase.LEFT:
                return None

    def may_lead(self, now_ns: int) -> bool:
        """Return whether `advance` would find or leave us leading."""
        return self.is_leading or (self.phase is Phase.LISTENING and now_ns >= self._listen_until_ns)

    def refreshed(self, now_ns: int) -> None:
        """Our last announcement was said again at *now_ns*."""
        self._refresh_at_ns = now_ns + self._timers.leader_refresh_ns

    # --- what is said -------------------------------------------------------------------------------------------------
    @property
    def is_leading(self) -> bool:
        """Whether programs may be pushed."""
        return self.phase is Phase.LEADING

    def announcement(self) -> Publish:
        """Return the message that says we lead."""
        return self._say("alive", self._sequence.next())

    def farewell(self) -> Publish:
        """Return the message for a clean end."""
        return self._say("gone", self._sequence.next())

    def last_will(self) -> Publish:
        """Return what the broker says when we vanish."""
        return self._say("gone", 0)

    def departure(self) -> Mark:
        """Return the mark that says who leads instead."""
        return Mark("another_leads", {"leader": self.rival, "epoch": self._epoch_seen})

    def reason_to_leave(self) -> str:
        """Return the same for people."""
        return f'controller "{self.rival}" leads in epoch {self._epoch_seen}: only one may; stop it first to lead with this one'

    def _say(self, state: str, seq: int) -> Publish:
        message = Leader.model_validate(
            {"sender": CONTROLLER, "epoch": self.epoch, "seq": seq, "controller": self.controller, "state": state}
        )
        return Publish(LEADER, message, Priority.URGENT)

    def _listen(self, now_ns: int, for_ns: int) -> None:
        if self.phase is not Phase.LISTENING:
            self._listen_until_ns = 0
        self.phase = Phase.LISTENING
        self._listen_until_ns = max(self._listen_until_ns, now_ns + for_ns)

    def _leave(self, leader: Leader) -> None:
        self.phase = Phase.LEFT
        self.rival = leader.controller
