"""The bus over MQTT: connects, connects again, sends what waits, and knows within two round trips when a broker is dead.

Rule 1: only this file imports the MQTT client.
Rule 2: no method of the port blocks; everything that waits lives in the tasks of `MqttBus.run`.
Rule 3: what arrives by a topic that was not asked for is counted and dropped: brokers do deliver such things.
Rule 4: a message waits for no task: one that has room is written where it is published, one that arrives is handed over
where it is read. aiomqtt connects, subscribes and says goodbye; messages go past its queues, straight to paho beneath.
"""

# ruff: noqa: SLF001 -- a bus and its connections are one thing in two classes

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiomqtt
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from erfs.aio.config import Duration
from erfs.aio.filters import FilterIndex
from erfs.aio.outbox import Item, Outbox
from erfs.aio.retry import Sleep, backoff_ns, retrying
from erfs.errors import ConfigError, Problem, first_error
from erfs.ports import Incoming, Priority
from erfs.units import MS, SECOND

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)

# Without it Nagle's algorithm and delayed acknowledgements make a round of 1 ms last 41-85 ms; neither aiomqtt nor paho sets it.
_SOCKET_OPTIONS: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
# paho's own limit would let an urgent message wait behind routine ones; ours is `BusSettings.in_flight` per lane.
_PAHO_IN_FLIGHT: Final = 65_535
# Filters in one SUBSCRIBE packet: far below any broker's packet limit.
_FILTERS_PER_PACKET: Final = 100
# When our own event loop is so late, a missing echo says nothing about the broker.
_OWN_LATENESS_NS: Final = 100 * MS


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BrokerAddress(_Settings):
    """Where one broker listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=1, le=65535)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def is_loopback(self) -> bool:
        """Return whether nobody else can hear what goes there."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class TlsSettings(_Settings):
    """Transport security. Without *ca* the system's authorities count; *cert* and *key* prove who we are."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> "TlsSettings":
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both or neither")
        return self


class BusSettings(_Settings):
    """How to reach the bus. The same model in every process of ours; durations are written such as "30 s"."""

    brokers: tuple[BrokerAddress, ...] = Field(default=(BrokerAddress(),), min_length=1)
    """Everything is published on all and received from all; duplicates are harmless."""
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    """A file that holds only the password; better than *password* where the settings are readable by others."""
    tls: TlsSettings | None = None
    prefix: str = "erfs/v1"
    """One prefix is one fabric."""
    client_id: str | None = None
    """Default: what the process calls itself (the node's name, or "controller")."""
    queue_length: int = Field(default=1_000, ge=1)
    """Messages that may wait per broker; see `erfs.ports.Bus` for what gives way."""
    in_flight: int = Field(default=8, ge=1, le=1_000)
    """Unacknowledged messages per lane and broker."""
    keepalive: Duration = Field(default=30 * SECOND, ge=SECOND)
    """After 1.5 times this without a word the broker says our last will."""
    echo_interval: Duration = Field(default=SECOND, ge=10 * MS)
    """How often the round trip is tried."""
    echo_deadline: Duration = Field(default=SECOND, ge=10 * MS)
    """A broker that takes longer for a round trip is given up."""
    connect_deadline: Duration = Field(default=5 * SECOND, ge=10 * MS)
    """Limit of every handshake and acknowledgement."""
    backoff_initial: Duration = Field(default=50 * MS, ge=MS)
    backoff_max: Duration = Field(default=5 * SECOND, ge=MS)

    @field_validator("prefix")
    @classmethod
    def _plain(cls, prefix: str) -> str:
        if not all(prefix.split("/")) or set(prefix) & set("+#\0") or prefix.startswith("$"):
            raise ValueError(
                f'"{prefix}" is not a prefix: expected names joined by "/", without "+", "#" or a leading "$"'
            )
        return prefix

    @model_validator(mode="after")
    def _one_password(self) -> "BusSettings":
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other")
        if self.username is None and (self.password is not None or self.password_file is not None):
            raise ValueError("a password needs a username")
        return self

    def secret(self) -> str | None:
        """
        Return the password, read anew so that it can be changed in place.

        Raises:
            ConfigError: the file cannot be read.
        """
        if self.password_file is None:
            return self.password.get_secret_value() if self.password is not None else None
        try:
            return self.password_file.read_text().rstrip("\r\n")
        except OSError as error:
            raise ConfigError(
                str(self.password_file), [Problem(0, f"cannot read the password: {error.strerror}")]
            ) from None

    def tls_context(self) -> ssl.SSLContext | None:
        """
        Return what the connection needs for TLS, or None without it.

        Raises:
            ConfigError: a file is missing or holds something else.
        """
        if self.tls is None:
            return None
        at = self.tls.ca
        try:
            context = ssl.create_default_context(cafile=self.tls.ca)
            if self.tls.cert is not None:
                at = self.tls.cert
                context.load_cert_chain(self.tls.cert, self.tls.key)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(str(at), [Problem(0, f"cannot be used for TLS: {reason}")]) from None
        return context


class MqttBus:
    """
    The bus port over one or several MQTT brokers.

    ``on_state(True)`` means: a broker took us in and knows what we want, so everything retained of ours must be published
    (again); it comes once per broker and reconnect, and when a broker said our last will although we live.
    ``on_state(False)`` means: no broker is left.

    Args:
        settings: How to reach the brokers.
        client_id: Unique on the broker; *settings* may name another.
        will: Topic and payload that the broker publishes, retained, if we vanish.
        rng: Where the jitter of reconnecting comes from.
        sleep: Awaited with seconds; `asyncio.sleep` outside of tests.

    Raises:
        ConfigError: a file that the settings name cannot be used.
    """

    on_message: Callable[[Incoming], None]
    on_state: Callable[[bool], None]

    def __init__(
        self,
        settings: BusSettings,
        client_id: str,
        *,
        will: tuple[str, bytes] | None = None,
        rng: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self.client_id = settings.client_id or client_id
        self.will = will
        self.unmatched_count = 0
        """Arrivals by topics nobody asked for."""
        self.echo_count = 0
        """Round trips that came back."""
        self.failure_count = 0
        """Attempts to connect that led to nothing."""
        self.on_message = _ignore_message
        self.on_state = _ignore_state
        settings.secret()  # unreadable files are reported now, not at some reconnect
        self._tls_context = settings.tls_context()
        self._wanted: frozenset[str] = frozenset()
        self._filters: FilterIndex[None] = FilterIndex()
        self._connections = [_Connection(self, address, rng, sleep) for address in settings.brokers]

    @property
    def dropped_count(self) -> int:
        """Messages that found no room in a queue."""
        return sum(connection.outbox.dropped_count for connection in self._connections)

    @property
    def is_connected(self) -> bool:
        """Whether at least one broker can be used."""
        return any(connection.is_ready for connection in self._connections)

    async def run(self) -> None:
        """Keep connected to every broker until cancelled; then say goodbye, so that no last will is said."""
        exposed = [str(address) for address in self.settings.brokers if not address.is_loopback()]
        if exposed and (self.settings.tls is None or self.settings.username is None):
            # Not refused: a management network may be closed by other means. But nobody should end up here unknowingly.
            _log.warning(
                "bus_exposed",
                brokers=exposed,
                has_tls=self.settings.tls is not None,
                has_credentials=self.settings.username is not None,
            )
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(connection.run(), name=f"bus {connection.address}")

    def subscribe(self, filters: frozenset[str]) -> None:
        """Want exactly these topic filters from now on."""
        if filters == self._wanted:
            return
        self._wanted = filters
        self._filters = FilterIndex()
        for pattern in sorted(filters):
            self._filters.add(pattern, None)
        for connection in self._connections:
            connection.wanted_changed.set()

    def publish(self, topic: str, payload: bytes, *, retain: bool, priority: Priority) -> None:
        """Queue one message on every broker; QoS 1."""
        for connection in self._connections:
            connection.put(Item(topic, payload, retain, priority))

    async def drain(self, deadline_ns: int) -> bool:
        """Wait until everything queued is acknowledged by every broker; return False if that took too long."""
        try:
            async with asyncio.timeout(deadline_ns / SECOND):
                for connection in self._connections:
                    await connection.idle.wait()
        except TimeoutError:
            return False
        return True

    def _arrived(self, topic: str, payload: bytes, *, is_retained: bool) -> None:
        if self._filters.holders(topic):
            self.on_message(Incoming(topic, payload, is_retained))
        else:
            self.unmatched_count += 1
            _log.debug("unwanted_topic_dropped", topic=topic, is_retained=is_retained)

    def _became_ready(self) -> None:
        self.on_state(True)

    def _was_lost(self) -> None:
        if not self.is_connected:
            self.on_state(False)


class _EchoLost(aiomqtt.MqttError):
    """The broker took our echo and did not give it back in time."""


class _Unacknowledged(aiomqtt.MqttError):
    """The broker took a message and did not say so in time."""


class _Connection:
    """One broker: one session after the other."""

    def __init__(self, bus: MqttBus, address: BrokerAddress, rng: Random, sleep: Sleep) -> None:
        self.bus = bus
        self.address = address
        self.is_ready = False
        self.outbox: Outbox[bytes] = Outbox(bus.settings.queue_length)
        self.wanted_changed = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._rng = rng
        self._sleep = sleep
        # paho's client, which ships no types for its callbacks' owners; from the connection on it is driven from here.
        self._paho: Any = None
        self._is_in_callback = False
        self._failed: asyncio.Future[None] | None = None
        # By paho's message number, oldest first, each with the instant it left.
        self._in_flight: dict[int, tuple[Item[bytes], int]] = {}
        self._room = dict.fromkeys(Priority, bus.settings.in_flight)
        self._overdue: asyncio.TimerHandle | None = None
        self._early: list[tuple[str, bytes, bool]] = []
        self._subscribed: frozenset[str] = frozenset()
        self._echo_topic = f"{bus.settings.prefix}/echo/{quote(bus.client_id, safe='')}"
        self._echo_number = 0
        self._echo_returned = asyncio.Event()

    def put(self, item: Item[bytes]) -> None:
        """Send *item* to this broker, or queue it while there is no room or no connection."""
        self.idle.clear()
        dropped = self.outbox.put(item)
        if dropped is not None:
            # One line when it begins and then ever more rarely; the counter has them all.
            count = self.outbox.dropped_count
            if count & (count - 1) == 0:
                _log.warning("bus_queue_full", broker=str(self.address), topic=dropped.topic, dropped_count=count)
        if self.is_ready:
            self._send_waiting()
            # Routine messages are written when the work that gave rise to them is done.
            if item.priority is Priority.URGENT and not self._is_in_callback:
                self._flush()

    async def run(self) -> None:
        """Hold one session after the other."""
        settings = self.bus.settings
        while True:
            # Returns when a session that worked has ended; failed attempts stay inside.
            await retrying(
                aiomqtt.MqttError,
                attempts=None,
                initial_ns=settings.backoff_initial,
                max_ns=settings.backoff_max,
                rng=self._rng,
                sleep=self._sleep,
                on_retry=self._on_retry,
            )(self._session)
            wait_ns = backoff_ns(1, initial_ns=settings.backoff_initial, max_ns=settings.backoff_max, rng=self._rng)
            await self._sleep(wait_ns / SECOND)

    def _on_retry(self, attempt: int, wait_ns: int, error: BaseException | None) -> None:
        self.bus.failure_count += 1
        # 1, 2, 4, 8 …: a broker that stays away for a month must not fill the disk.
        if attempt & (attempt - 1) == 0:
            _log.warning(
                "bus_unreachable", broker=str(self.address), attempt=attempt, wait_ms=wait_ns // MS, reason=str(error)
            )

    async def _session(self) -> None:
        """
        Connect and serve until the connection ends.

        Raises:
            aiomqtt.MqttError: it ended before it was ready.
        """
        settings = self.bus.settings
        will = self.bus.will
        client = aiomqtt.Client(
            self.address.host,
            self.address.port,
            username=settings.username,
            password=settings.secret(),
            identifier=self.bus.client_id,
            protocol=aiomqtt.ProtocolVersion.V311,
            will=aiomqtt.Will(will[0], will[1], qos=1, retain=True) if will is not None else None,
            clean_session=True,
            timeout=settings.connect_deadline / SECOND,
            keepalive=settings.keepalive // SECOND,
            max_inflight_messages=_PAHO_IN_FLIGHT,
            tls_context=self.bus._tls_context,
            socket_options=_SOCKET_OPTIONS,
        )
        client.pending_calls_threshold = 2 * settings.in_flight + 10
        _give_up_when_dropped(client)
        self._subscribed = frozenset()
        self._early = []
        reason: BaseException | None = None
        try:
            async with client:
                try:
                    await self._serve(client)
                finally:
                    # A frozen broker must not hold up the goodbye.
                    client.timeout = min(client.timeout, settings.echo_deadline / SECOND)
        except* aiomqtt.MqttError as group:
            reason = first_error(group)
        finally:
            _close_socket(client)
            self.outbox.put_back([item for item, _ in self._in_flight.values()])
            self._in_flight = {}
            self._room = dict.fromkeys(Priority, settings.in_flight)
            if self._overdue is not None:
                self._overdue.cancel()
                self._overdue = None
            was_ready, self.is_ready = self.is_ready, False
            if was_ready:
                self.bus._was_lost()
        _stop_if_cancelled()
        if reason is not None and not was_ready:
            raise aiomqtt.MqttError(str(reason))
        _log.warning("bus_lost", broker=str(self.address), reason=str(reason))

    async def _serve(self, client: aiomqtt.Client) -> None:
        _stop_if_cancelled()
        self._take_over(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._get_ready(client, group), name="bus prepare")
            assert self._failed is not None
            group.create_task(_raised(self._failed), name="bus callbacks")
            # Not a task of its own: a group whose body has ended before a task fails leaves the cancellation it then asks for
            # behind (Python 3.11), and nobody could tell it from a real one. No message comes this way: it ends, with an
            # error, when the connection does.
            async for _ in client.messages:
                pass

    def _take_over(self, client: aiomqtt.Client) -> None:
        """From the handshake on, messages go past aiomqtt: its queues cost each of them two tasks and a turn of the loop."""
        self._failed = asyncio.get_running_loop().create_future()
        self._paho = client._client  # aiomqtt offers no other way to its connection
        self._paho.on_message = self._on_message
        self._paho.on_publish = self._on_acknowledged
        self._paho.on_socket_register_write = self._on_want_write

    async def _get_ready(self, client: aiomqtt.Client, group: asyncio.TaskGroup) -> None:
        await self._subscribe_own(client)
        await self._keep_subscribed(client, once=True)
        self.is_ready = True
        _log.info("bus_connected", broker=str(self.address), client_id=self.bus.client_id)
        self._send_waiting()
        self.bus._became_ready()
        early, self._early = self._early, []
        for topic, payload, is_retained in early:
            self.bus._arrived(topic, payload, is_retained=is_retained)
        group.create_task(self._keep_subscribed(client), name="bus subscribe")
        group.create_task(self._echo(), name="bus echo")

    # --- called by paho --------------------------------------------------------------------------------------------------
    def _on_message(self, _paho: Any, _userdata: Any, message: Any) -> None:
        self._called_back(lambda: self._receive(message.topic, message.payload, is_retained=bool(message.retain)))

    def _on_acknowledged(self, _paho: Any, _userdata: Any, number: int, _code: Any, _properties: Any) -> None:
        self._called_back(lambda: self._acknowledged(number))

    def _on_want_write(self, _paho: Any, _userdata: Any, _socket: Any) -> None:
        """What paho wants to write goes out when the present work is done, all of it in one go."""
        asyncio.get_running_loop().call_soon(self._flush)

    def _called_back(self, action: Callable[[], None]) -> None:
        """Paho takes an error for one of the connection's; it is raised where the bus is run. And it must not be told to write."""
        self._is_in_callback = True
        try:
            action()
        except Exception as error:  # noqa: BLE001 -- raised where the bus is run
            self._fail(error)
        finally:
            self._is_in_callback = False

    def _fail(self, error: Exception) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    # --- messages --------------------------------------------------------------------------------------------------------
    def _receive(self, topic: str, payload: bytes, *, is_retained: bool) -> None:
        own_will = self.bus.will
        if topic == self._echo_topic:
            if payload == str(self._echo_number).encode():
                self._echo_returned.set()
            return
        if own_will == (topic, payload) and not is_retained and self.is_ready:
            # An earlier session's end was noticed late (a frozen broker woke up): contradict it.
            _log.warning("own_will_contradicted", broker=str(self.address), topic=topic)
            self.bus._became_ready()
        if own_will is not None and topic == own_will[0] and topic not in self.bus._wanted:
            return
        if self.is_ready:
            self.bus._arrived(topic, payload, is_retained=is_retained)
        else:
            # What is retained comes before the last acknowledgement of a subscription; nobody may hear of it before the connection.
            self._early.append((topic, payload, is_retained))

    def _send_waiting(self) -> None:
        """Give paho what has room, urgent messages first."""
        for priority in Priority:
            while self._room[priority] and (item := self.outbox.take(priority)) is not None:
                sent = self._paho.publish(item.topic, item.payload, qos=1, retain=item.retain)
                # Whatever paho says of the connection, it is in flight: the next session sends it again.
                self._in_flight[sent.mid] = item, time.monotonic_ns()
                self._room[priority] -= 1
        if self._in_flight and self._overdue is None:
            self._watch_acknowledgements(self.bus.settings.connect_deadline)

    def _acknowledged(self, number: int) -> None:
        found = self._in_flight.pop(number, None)
        if found is None:
            return  # an echo, which is told of when it is written
        self._room[found[0].priority] += 1
        self._send_waiting()
        if not self._in_flight and not len(self.outbox):
            self.idle.set()

    def _watch_acknowledgements(self, wait_ns: int) -> None:
        self._overdue = asyncio.get_running_loop().call_later(wait_ns / SECOND, self._look_at_oldest)

    def _look_at_oldest(self) -> None:
        self._overdue = None
        if not self._in_flight:
            return
        _, since_ns = next(iter(self._in_flight.values()))
        deadline_ns = self.bus.settings.connect_deadline
        left_ns = since_ns + deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            self._watch_acknowledgements(left_ns)
        else:
            self._fail(_Unacknowledged(f"no acknowledgement within {deadline_ns // MS} ms"))

    def _flush(self) -> None:
        """Write what paho has, as far as the socket takes it; the rest when it takes more."""
        paho = self._paho
        if not paho.want_write():
            return
        try:
            paho.loop_write()
        except Exception as error:  # noqa: BLE001 -- raised where the bus is run
            self._fail(error)
            return
        if (writable := paho.socket()) is not None:
            loop = asyncio.get_running_loop()
            if paho.want_write():
                loop.add_writer(writable.fileno(), self._flush)
            else:
                loop.remove_writer(writable.fileno())

    async def _subscribe_own(self, client: aiomqtt.Client) -> None:
        own = [(self._echo_topic, 0)]
        if self.bus.will is not None:
            own.append((self.bus.will[0], 1))
        await _unless_cancelled(client.subscribe(own))

    async def _keep_subscribed(self, client: aiomqtt.Client, *, once: bool = False) -> None:
        while True:
            self.wanted_changed.clear()
            wanted = self.bus._wanted
            # New before old: what both cover never has a hole.
            added = sorted(wanted - self._subscribed)
            removed = sorted(self._subscribed - wanted - {self.bus.will[0] if self.bus.will else ""})
            for start in range(0, len(added), _FILTERS_PER_PACKET):
                chunk = added[start : start + _FILTERS_PER_PACKET]
                granted = await _unless_cancelled(client.subscribe([(pattern, 1) for pattern in chunk]))
                for pattern, code in zip(chunk, granted, strict=True):
                    if _is_refusal(code):
                        _log.error("bus_subscription_refused", broker=str(self.address), filter=pattern)
            for start in range(0, len(removed), _FILTERS_PER_PACKET):
                await _unless_cancelled(client.unsubscribe(removed[start : start + _FILTERS_PER_PACKET]))
            self._subscribed = wanted
            if once:
                return
            await self.wanted_changed.wait()

    async def _echo(self) -> None:
        settings = self.bus.settings
        while True:
            self._echo_number += 1
            self._echo_returned.clear()
            self._paho.publish(self._echo_topic, str(self._echo_number).encode(), qos=0)
            await self._await_echo(settings.echo_deadline)
            self.bus.echo_count += 1
            await self._sleep(settings.echo_interval / SECOND)

    async def _await_echo(self, deadline_ns: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + deadline_ns / SECOND
            try:
                async with asyncio.timeout_at(due):
                    await self._echo_returned.wait()
                    return
            except TimeoutError:
                if loop.time() - due < _OWN_LATENESS_NS / SECOND:
                    raise _EchoLost(f"no echo within {deadline_ns // MS} ms") from None


async def _raised(failed: "asyncio.Future[None]") -> None:
    """Raise what *failed* ends with."""
    await failed


async def _unless_cancelled(call: Awaitable[Result]) -> Result:
    """
    Return what *call* returns, unless we are being cancelled.

    Before Python 3.12 `asyncio.wait_for`, on which aiomqtt's calls rest, swallows a cancellation that comes together with its
    result; the task would then go on for ever, and its group wait for it.
    """
    result = await call
    _stop_if_cancelled()
    return result


def _stop_if_cancelled() -> None:
    """Raise the cancellation that an error of the goodbye, or of another task, has covered."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _give_up_when_dropped(client: aiomqtt.Client) -> None:
    """Let a connection that ends before the broker's answer fail at once; aiomqtt (2.5) would wait for the answer until its deadline."""
    paho, connected = client._client, client._connected  # aiomqtt offers no other way to either
    tell: Any = paho.on_disconnect

    def on_disconnect(*words: Any) -> None:
        if not connected.done():
            connected.set_exception(aiomqtt.MqttError("the broker closed the connection before it answered"))
        tell(*words)

    paho.on_disconnect = on_disconnect


def _close_socket(client: aiomqtt.Client) -> None:
    """Close what aiomqtt leaves open when its goodbye could not be written."""
    left_open = client._client.socket()  # aiomqtt offers no other way to its socket
    if left_open is not None:
        with contextlib.suppress(OSError):
            left_open.close()


def _is_refusal(code: object) -> bool:
    return getattr(code, "value", code) == 0x80


def _ignore_message(incoming: Incoming) -> None:
    pass


def _ignore_state(is_connected: bool) -> None:
    pass
