"""A message broker in simulated time: delay, loss, reordering, partition, death and restart, all drawn from one seeded stream.

Rule 1: no asyncio, no clock, no global random: the owner moves time with `advance` and everything follows.
Rule 2: the cost of a publication depends on who wants it, not on how many clients or filters there are.
Rule 3: what travels is not looked at, so a simulation may send message objects and skip their encoding.
"""

# ruff: noqa: SLF001 -- broker and client are the two halves of one thing; only their owner sees a border

import heapq
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Generic, TypeVar

from erfs.aio.filters import FilterIndex, ancestors, matches
from erfs.aio.outbox import Item, Outbox
from erfs.ports import Incoming, Priority
from erfs.units import MS, PPM, SECOND, US

Payload = TypeVar("Payload")

# A fact goes to some tens of armed agents, each at its own time. What goes to thousands (the leader's refresh) would only cost events.
APART_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class BusConditions:
    """How the simulated bus behaves. Two hops make a delivery: publisher to broker, broker to subscriber."""

    hop_ns: int = 150 * US
    """One hop. Default: half of the 0.3 ms one-way delivery measured through Mosquitto on loopback with QoS 1."""
    jitter_ns: int = 0
    """Added to each hop, drawn evenly from 0 to this."""
    loss_ppm: int = 0
    """Chance that a hop loses the packet. Delivery is reliable, so a loss is a retransmission and means lateness."""
    retransmit_ns: int = 200 * MS
    """What one loss costs: Linux's minimal retransmission time-out."""
    drop_ppm: int = 0
    """Chance that a delivery never happens, as with an overfull broker. Real QoS 1 hardly does that; tests do."""
    duplicate_ppm: int = 0
    """Chance that a delivery happens twice, as with QoS 1 after a reconnect, or with two brokers."""
    is_reordering: bool = False
    """Whether jitter may let a later message overtake. One TCP connection never does that; two brokers do."""
    notice_ns: int = 2 * SECOND
    """After so long without a round trip a cut-off client knows it: the echo interval and its deadline together."""
    session_timeout_ns: int = 45 * SECOND
    """After so long the broker gives up a silent client and says its last will: 1.5 keep-alives of 30 s."""
    reconnect_ns: int = 50 * MS
    """How long a client waits before it connects again; the first step of the real client's back-off."""


class MemoryClient(Generic[Payload]):
    """One client's end of the simulated bus. Set ``on_arrival`` (topic, payload, is_retained) and ``on_state``."""

    on_arrival: Callable[[str, Payload, bool], None]
    on_state: Callable[[bool], None]

    def __init__(
        self, broker: "MemoryBroker[Payload]", client_id: str, will: tuple[str, Payload] | None, outbox_length: int
    ) -> None:
        self.client_id = client_id
        self.will = will
        self.outbox: Outbox[Payload] = Outbox(outbox_length)
        self.on_arrival = _ignore_arrival
        self.on_state = _ignore_state
        self._broker = broker
        self._wanted: frozenset[str] = frozenset()
        # As the client believes; the broker learns of a cut later, or earlier.
        self._is_connected = False
        self._is_gone = False
        self._cut_count = 0
        self._is_cut = False
        self._session = 0
        self._in_flight: dict[Item[Payload], None] = {}
        self._held_back: list[tuple[int, str, Payload, bool]] = []
        self._last_up_ns = 0
        self._last_down_ns = 0
        # As the broker knows it: 0 is no session.
        self._broker_session = 0
        self._subscribed: frozenset[str] = frozenset()

    @property
    def is_cut(self) -> bool:
        """Whether nothing passes between this client and the broker."""
        return self._is_cut

    def subscribe(self, filters: frozenset[str]) -> None:
        """Want exactly these topic filters from now on."""
        if filters == self._wanted:
            return
        self._wanted = filters
        if self._is_connected:
            self._broker._send_subscription(self)

    def publish(self, topic: str, payload: Payload, *, retain: bool, priority: Priority) -> None:
        """Send one message, or queue it while that is not possible."""
        item = Item(topic, payload, retain, priority)
        if self._is_gone:
            return
        if self._is_connected and not self._is_cut:
            self._broker._send(self, item)
        else:
            self.outbox.put(item)


class MemoryBus:
    """A `MemoryClient` of bytes as the bus port that shells know."""

    on_message: Callable[[Incoming], None]
    on_state: Callable[[bool], None]

    def __init__(self, client: MemoryClient[bytes]) -> None:
        self.client = client
        self.on_message = _ignore_message
        self.on_state = _ignore_state
        client.on_arrival = lambda topic, payload, is_retained: self.on_message(Incoming(topic, payload, is_retained))
        client.on_state = lambda is_connected: self.on_state(is_connected)

    @property
    def dropped_count(self) -> int:
        """Messages that found no room in the queue."""
        return self.client.outbox.dropped_count

    def subscribe(self, filters: frozenset[str]) -> None:
        """Want exactly these topic filters from now on."""
        self.client.subscribe(filters)

    def publish(self, topic: str, payload: bytes, *, retain: bool, priority: Priority) -> None:
        """Send one message, or queue it while that is not possible."""
        self.client.publish(topic, payload, retain=retain, priority=priority)


class MemoryBroker(Generic[Payload]):
    """
    The broker and the network around it.

    The owner calls ``advance`` before it acts at a new instant: what is due is delivered through the clients' callbacks, and
    what clients do in between happens at the instant last advanced to.
    """

    def __init__(self, rng: Random, conditions: BusConditions | None = None) -> None:
        self.conditions = conditions or BusConditions()
        self.now_ns = 0
        self.delivered_count = 0
        self.dropped_count = 0
        self._rng = rng
        self._is_up = True
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._session_count = 0
        self._clients: dict[str, MemoryClient[Payload]] = {}
        self._subscriptions: FilterIndex[MemoryClient[Payload]] = FilterIndex()
        self._retained: dict[str, Payload] = {}
        self._retained_below: dict[str, dict[str, None]] = {}
        self.is_old_news: Callable[[Payload], bool] = _is_never
        """
        Asked of what goes to more than `APART_MAX`: whether none of them would learn anything from it. Then it keeps its place in the
        order and is retained if it asks for that, but nobody is given it: a refresh an hour long is no million deliveries.
        """
        self._spared_ns = 0
        """When the last of those would have arrived."""

    @property
    def is_up(self) -> bool:
        """Whether the broker runs."""
        return self._is_up

    # --- time ----------------------------------------------------------------------------------------------------------
    def next_event_ns(self) -> int | None:
        """Return when something is due next, or None if nothing is on its way."""
        return self._events[0][0] if self._events else None

    def advance(self, now_ns: int) -> None:
        """Make everything happen that is due until *now_ns*, in order; then it is *now_ns*."""
        assert now_ns >= self.now_ns
        events = self._events
        while events and events[0][0] <= now_ns:
            at_ns, _, action = heapq.heappop(events)
            self.now_ns = at_ns
            action()
        self.now_ns = now_ns

    # --- clients -------------------------------------------------------------------------------------------------------
    def connect(
        self, client_id: str, will: tuple[str, Payload] | None = None, *, outbox_length: int = 1_000
    ) -> MemoryClient[Payload]:
        """
        Return a new client that starts to connect now; ``on_state(True)`` follows two round trips later, when the broker
        knows what the client wants.

        A client of the same name loses its session when this one's begins, and its last will is said.

        Args:
            client_id: Its name on the broker.
            will: Topic and payload of its last will.
            outbox_length: Places in its queue while it cannot send.
        """
        older = self._clients.get(client_id)
        client = MemoryClient(self, client_id, will, outbox_length)
        if older is not None:
            older._is_gone = True
            older._is_connected = False
            client._is_cut = older._is_cut
        self._clients[client_id] = client
        self._after(self._hop_ns(), partial(self._open, client, older))
        return client

    def disconnect(self, client_id: str) -> None:
        """Let a client leave with a goodbye: what it sent before still arrives, its last will is not said."""
        client = self._clients[client_id]
        client._is_gone = True
        client._is_connected = False
        if not client._is_cut:
            self._up(client, partial(self._close, client, client._broker_session, is_will_due=False))

    def kill(self, client_id: str) -> None:
        """Let a client vanish without a goodbye; the broker sees the connection break and says the last will."""
        client = self._clients[client_id]
        client._is_gone = True
        client._is_connected = False
        if not client._is_cut:
            self._up(client, partial(self._close, client, client._broker_session, is_will_due=True))

    def give_up(self, client_id: str) -> None:
        """Let the broker take a client for dead that has long been silent: it says the last will; the client is not told."""
        client = self._clients[client_id]
        self._close(client, client._broker_session, is_will_due=True)

    def look_after(self, client_id: str) -> None:
        """Let a client that stood still find out whether the broker has given it up; then it connects again."""
        client = self._clients[client_id]
        if client._is_connected and not client._is_cut and client._session != client._broker_session:
            self._lose(client)

    # --- the network ---------------------------------------------------------------------------------------------------
    def partition(self, client_ids: Iterable[str]) -> None:
        """Cut clients off from the broker: nothing passes either way, and neither side is told."""
        for client_id in sorted(client_ids):
            client = self._clients[client_id]
            if client._is_cut:
                continue
            client._is_cut = True
            client._cut_count += 1
            self._after(self.conditions.notice_ns, partial(self._notice_cut, client, client._cut_count))
            self._after(self.conditions.session_timeout_ns, partial(self._time_out, client, client._cut_count))

    def heal(self, client_ids: Iterable[str]) -> None:
        """End the cut: what was under way is retransmitted, and who had given up connects again."""
        for client_id in sorted(client_ids):
            client = self._clients[client_id]
            if not client._is_cut:
                continue
            client._is_cut = False
            if client._is_gone:
                self._up(client, partial(self._close, client, client._broker_session, is_will_due=True))
            elif client._is_connected and client._session == client._broker_session:
                self._resume(client)
            elif client._is_connected:
                self._lose(client)
            else:
                self._reconnect(client)

    def stop(self, *, keeps_retained: bool) -> None:
        """Stop the broker: connections break and clients see it; no last will is said."""
        self._is_up = False
        if not keeps_retained:
            self._retained.clear()
            self._retained_below.clear()
        for client in self._clients.values():
            self._forget_session(client)
            if client._is_connected and not client._is_cut:
                self._after(self._hop_ns(), partial(self._lose_session, client, client._session))

    def start(self) -> None:
        """Start the broker again; clients find it."""
        self._is_up = True
        for client in self._clients.values():
            if not client._is_gone and not client._is_connected and not client._is_cut:
                self._reconnect(client)

    # --- sessions ------------------------------------------------------------------------------------------------------
    def _open(self, client: MemoryClient[Payload], older: MemoryClient[Payload] | None = None) -> None:
        """Let the broker take a client in, if both are there; `start` and `heal` try again otherwise."""
        if older is not None and older._broker_session and self._is_up and not client._is_cut:
            self._close(older, older._broker_session, is_will_due=True)
        if not self._is_up or client._is_cut or client._is_gone or client._is_connected:
            return
        if client._broker_session:
            self._close(client, client._broker_session, is_will_due=True)
        self._session_count += 1
        client._broker_session = self._session_count
        self._after(self._hop_ns(), partial(self._opened, client, self._session_count))

    def _opened(self, client: MemoryClient[Payload], session: int) -> None:
        if client._broker_session != session or client._is_gone or client._is_cut:
            return
        client._session = session
        client._held_back = []
        self._up(client, partial(self._subscribe, client, session, client._wanted, is_first=True))

    def _ready(self, client: MemoryClient[Payload], session: int, wanted: frozenset[str]) -> None:
        if client._session != session or client._broker_session != session or client._is_gone or client._is_cut:
            return
        client._is_connected = True
        if client._wanted != wanted:
            self._send_subscription(client)
        self._flush(client)
        client.on_state(True)

    def _reconnect(self, client: MemoryClient[Payload]) -> None:
        self._after(self.conditions.reconnect_ns + self._hop_ns(), partial(self._open, client))

    def _close(self, client: MemoryClient[Payload], session: int, *, is_will_due: bool) -> None:
        if session == 0 or client._broker_session != session:
            return
        self._forget_session(client)
        if is_will_due and client.will is not None:
            topic, payload = client.will
            self._route(topic, payload, retain=True)

    def _forget_session(self, client: MemoryClient[Payload]) -> None:
        client._broker_session = 0
        for pattern in sorted(client._subscribed):
            self._subscriptions.remove(pattern, client)
        client._subscribed = frozenset()

    def _notice_cut(self, client: MemoryClient[Payload], cut: int) -> None:
        if client._is_cut and client._cut_count == cut and client._is_connected:
            self._lose(client)

    def _time_out(self, client: MemoryClient[Payload], cut: int) -> None:
        if client._is_cut and client._cut_count == cut:
            self._close(client, client._broker_session, is_will_due=True)

    def _lose_session(self, client: MemoryClient[Payload], session: int) -> None:
        if client._is_connected and client._session == session:
            self._lose(client)

    def _lose(self, client: MemoryClient[Payload]) -> None:
        client._is_connected = False
        client._session = 0
        client.outbox.put_back(list(client._in_flight))
        client._in_flight = {}
        if self._is_up and not client._is_cut:
            self._reconnect(client)
        client.on_state(False)

    def _resume(self, client: MemoryClient[Payload]) -> None:
        in_flight = list(client._in_flight)
        client._in_flight = {}
        self._send_subscription(client)
        for item in in_flight:
            self._send(client, item)
        self._flush(client)
        held_back, client._held_back = client._held_back, []
        for session, topic, payload, is_retained in held_back:
            self._down([client], topic, payload, is_retained, session=session)

    # --- messages ------------------------------------------------------------------------------------------------------
    def _send_subscription(self, client: MemoryClient[Payload]) -> None:
        self._up(client, partial(self._subscribe, client, client._session, client._wanted))

    def _send(self, client: MemoryClient[Payload], item: Item[Payload]) -> None:
        client._in_flight[item] = None
        self._up(client, partial(self._arrive, client, client._session, item))

    def _flush(self, client: MemoryClient[Payload]) -> None:
        for priority in Priority:
            while (item := client.outbox.take(priority)) is not None:
                self._send(client, item)

    def _up(self, client: MemoryClient[Payload], action: Callable[[], None]) -> None:
        """Let *action* happen at the broker when what *client* sends now arrives."""
        at_ns = self.now_ns + self._hop_ns()
        if not self.conditions.is_reordering:
            at_ns = max(at_ns, client._last_up_ns)
            client._last_up_ns = at_ns
        self._at(at_ns, action)

    def _arrive(self, client: MemoryClient[Payload], session: int, item: Item[Payload]) -> None:
        if client._broker_session != session or client._is_cut:
            return
        client._in_flight.pop(item, None)
        self._route(item.topic, item.payload, retain=item.retain)

    def _subscribe(
        self, client: MemoryClient[Payload], session: int, wanted: frozenset[str], *, is_first: bool = False
    ) -> None:
        if client._broker_session != session or client._is_cut:
            return
        if is_first:
            # The acknowledgement goes before what is retained, as brokers do it.
            at_ns = client._last_down_ns = max(self.now_ns + self._hop_ns(), client._last_down_ns)
            self._at(at_ns, partial(self._ready, client, session, wanted))
        added = sorted(wanted - client._subscribed)
        for pattern in sorted(client._subscribed - wanted):
            self._subscriptions.remove(pattern, client)
        client._subscribed = wanted
        topics: dict[str, None] = {}
        for pattern in added:
            self._subscriptions.add(pattern, client)
            topics |= self._retained_for(pattern)
        for topic in topics:
            self._down([client], topic, self._retained[topic], is_retained=True)

    def _route(self, topic: str, payload: Payload, *, retain: bool) -> None:
        if retain:
            self._retain(topic, payload)
        holders = self._subscriptions.holders(topic)
        if holders:
            self._down(holders, topic, payload, is_retained=False)

    def _down(
        self,
        clients: Collection[MemoryClient[Payload]],
        topic: str,
        payload: Payload,
        is_retained: bool,
        session: int | None = None,
    ) -> None:
        """Send to *clients*, each with a delay of its own; a large fan-out shares one delay, and so costs one event."""
        conditions = self.conditions
        is_calm = not (conditions.loss_ppm or conditions.drop_ppm or conditions.duplicate_ppm)
        is_together = is_calm and len(clients) > APART_MAX
        common_ns = self.now_ns + self._hop_ns()
        if is_together and not is_retained and self.is_old_news(payload):
            self._spared_ns = max(self._spared_ns, common_ns)
            return
        batches: dict[int, list[tuple[MemoryClient[Payload], int]]] = {}
        for client in clients:
            at_ns = common_ns
            copy_count = 1
            if not is_together:
                at_ns = self.now_ns + self._hop_ns()
            if not is_calm:
                copy_count = self._copy_count()
            if not conditions.is_reordering:
                at_ns = max(at_ns, client._last_down_ns, self._spared_ns)
                client._last_down_ns = at_ns
            for _ in range(copy_count):
                batches.setdefault(at_ns, []).append((client, session or client._broker_session))
        for at_ns, recipients in batches.items():
            self._at(at_ns, partial(self._deliver, recipients, topic, payload, is_retained))

    def _deliver(
        self, recipients: list[tuple[MemoryClient[Payload], int]], topic: str, payload: Payload, is_retained: bool
    ) -> None:
        for client, session in recipients:
            # A session that has ended, at either side, delivers nothing; what is retained comes again by the next one.
            if client._is_gone or client._session != session:
                continue
            if client._is_cut:
                client._held_back.append((session, topic, payload, is_retained))
                continue
            self.delivered_count += 1
            client.on_arrival(topic, payload, is_retained)

    # --- what is retained ----------------------------------------------------------------------------------------------
    def _retain(self, topic: str, payload: Payload) -> None:
        if payload:
            if topic not in self._retained:
                for place in ancestors(topic):
                    self._retained_below.setdefault(place, {})[topic] = None
            self._retained[topic] = payload
        elif topic in self._retained:
            # An empty payload clears the topic (MQTT 3.1.1, 3.3.1.3).
            del self._retained[topic]
            for place in ancestors(topic):
                del self._retained_below[place][topic]

    def _retained_for(self, pattern: str) -> dict[str, None]:
        if "+" not in pattern and "#" not in pattern:
            return {pattern: None} if pattern in self._retained else {}
        head, _, _ = pattern.rpartition("/")
        if head and "+" not in head:
            candidates = dict.fromkeys([head] if head in self._retained else []) | self._retained_below.get(head, {})
        else:
            candidates = dict.fromkeys(self._retained)
        return {topic: None for topic in candidates if matches(pattern, topic)}

    # --- chance and time -----------------------------------------------------------------------------------------------
    def _hop_ns(self) -> int:
        conditions = self.conditions
        hop_ns = conditions.hop_ns
        if conditions.jitter_ns:
            hop_ns += self._rng.randrange(conditions.jitter_ns + 1)
        if conditions.loss_ppm:
            while self._rng.randrange(PPM) < conditions.loss_ppm:
                hop_ns += conditions.retransmit_ns
        return hop_ns

    def _copy_count(self) -> int:
        conditions = self.conditions
        if conditions.drop_ppm and self._rng.randrange(PPM) < conditions.drop_ppm:
            self.dropped_count += 1
            return 0
        if conditions.duplicate_ppm and self._rng.randrange(PPM) < conditions.duplicate_ppm:
            return 2
        return 1

    def _after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._at(self.now_ns + delay_ns, action)

    def _at(self, at_ns: int, action: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (at_ns, self._event_count, action))


def _is_never(payload: object) -> bool:
    return False


def _ignore_arrival(topic: str, payload: object, is_retained: bool) -> None:
    pass


def _ignore_message(incoming: Incoming) -> None:
    pass


def _ignore_state(is_connected: bool) -> None:
    pass
