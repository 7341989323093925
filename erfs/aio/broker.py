"""The embedded broker: amqtt, made fit for a bus of hundreds of agents on one machine.

Rule 1: it is always a process of its own (`erfs broker`), so it outlives whoever started it.
Rule 2: loopback unless told otherwise; a production fabric uses Mosquitto or EMQX (deploy/).
"""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import structlog
from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from erfs.aio.config import DaemonSettings
from erfs.errors import ConfigError, Problem

_log = structlog.get_logger(__name__)

_LISTENER = "default"


class BrokerTls(BaseModel):
    """Transport security. With *ca*, only clients with a certificate of that authority are let in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cert: Path
    key: Path
    ca: Path | None = None


class BrokerSettings(DaemonSettings):
    """What a broker's configuration file may say."""

    model_config = SettingsConfigDict(env_prefix="ERFS_BROKER__")

    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=0, le=65535)
    """0: any free one."""
    password_file: Path | None = None
    """Lines of ``user:hash`` as ``erfs broker --hash-password`` prints them; without it everybody is let in."""
    tls: BrokerTls | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class _OwnRetainedOnly(Broker):  # type: ignore[misc] # amqtt ships no types
    """
    amqtt 0.12.1 hands a new client every retained message that matches anybody's subscription, its own or not.

    With n agents that is n squared messages when they all connect; and as subscriptions change while it iterates over them, a
    connection may be left without service. A session's own subscriptions are the only ones that count here.
    """

    async def _publish_retained_messages_for_subscription(self, subscription: tuple[str, int], session: Any) -> None:
        holders = self._subscriptions.get(subscription[0], ())
        if any(holder.client_id == session.client_id for holder, _ in holders):
            await super()._publish_retained_messages_for_subscription(subscription, session)


class EmbeddedBroker:
    """One broker in the running event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.port = settings.port
        self._server: asyncio.Server | None = None
        self._broker: Broker | None = None

    async def start(self) -> None:
        """
        Listen; then `port` is the real one.

        Raises:
            ConfigError: the address is taken or not ours, or a file that the settings name cannot be used.
        """
        settings = self.settings
        context = _tls_context(settings.tls)
        listening = _listening_socket(settings.host, settings.port)
        self._broker = _OwnRetainedOnly({"listeners": {_LISTENER: {"type": "external"}}, "plugins": _plugins(settings)})
        await self._broker.start()
        self._server = await asyncio.start_server(self._serve, sock=listening, ssl=context)
        self.port = listening.getsockname()[1]

    async def stop(self) -> None:
        """Close every connection; no last will is said."""
        assert self._server is not None
        assert self._broker is not None
        self._server.close()
        await self._broker.shutdown()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._broker is not None
        connection = writer.get_extra_info("socket")
        # asyncio's own loops do this already; nothing promises it, and without it a round takes 41-85 ms instead of 2.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self._broker.external_connected(StreamReaderAdapter(reader), StreamWriterAdapter(writer), _LISTENER)


async def serve(settings: BrokerSettings, on_listening: Callable[[int], None]) -> None:
    """
    Run a broker until SIGTERM or SIGINT.

    Args:
        settings: What to be.
        on_listening: Called with the port once clients can connect.

    Raises:
        ConfigError: it cannot listen, or a file that the settings name cannot be used.
    """
    logging.getLogger("amqtt.broker").addFilter(_is_worth_telling)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = EmbeddedBroker(settings)
    await broker.start()
    _log.info("broker_listening", host=settings.host, port=broker.port, has_tls=settings.tls is not None)
    if settings.host not in ("127.0.0.1", "::1", "localhost") and settings.password_file is None:
        _log.warning("broker_exposed", host=settings.host)
    on_listening(broker.port)
    await stopping.wait()
    await broker.stop()
    _log.info("broker_stopped")


def hash_password(password: str) -> str:
    """Return what a password file holds instead of *password*."""
    from pwdlib import PasswordHash  # of amqtt's own requirements
    from pwdlib.hashers.argon2 import Argon2Hasher

    return PasswordHash((Argon2Hasher(),)).hash(password)


def _plugins(settings: BrokerSettings) -> dict[str, dict[str, Any]]:
    if settings.password_file is None:
        return {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    try:
        settings.password_file.read_bytes()
    except OSError as error:
        raise ConfigError(
            str(settings.password_file), [Problem(0, f"cannot read the password file: {error.strerror}")]
        ) from None
    return {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(settings.password_file)}}


def _tls_context(tls: BrokerTls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    at = tls.ca
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
        at = tls.cert
        context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise ConfigError(str(at), [Problem(0, f"cannot be used for TLS: {error.strerror or error}")]) from None
    if tls.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        # A whole fabric of agents connects at once after a restart.
        return socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{host}:{port}", [Problem(0, f"cannot listen there: {reason}; choose another --host or --port")]
        ) from None


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Leave out that somebody connected and said nothing: that is how others see whether we listen."""
    return not record.getMessage().startswith(("No data from", "Failed to initialize client session"))
