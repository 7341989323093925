"""What an agent's configuration file may say, and what it means to the core.

Rule 1: values only; reading and telling mistakes is `erfs.aio.config`'s work.
"""

from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from erfs.aio.config import DaemonSettings, Duration
from erfs.aio.mqtt import BusSettings
from erfs.errors import FabricError
from erfs.ids import NodeId, link_id
from erfs.messages import PortBinding
from erfs.units import format_duration
from erfs_agent.aio.sessions import Wire
from erfs_agent.core import AgentTimers
from erfs_agent.probing import INTERVAL_MIN_NS, SessionEnd, SessionTiming, discriminators

_DEFAULTS = AgentTimers()
_TIMING = SessionTiming()


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortSessionSettings(_Section):
    """Where the session of a port runs: over an interface, or between two addresses, or both."""

    interface: str | None = Field(default=None, min_length=1, max_length=15)
    local: str | None = None
    remote: str | None = None
    timing: str = "default"

    @model_validator(mode="after")
    def _is_a_wire(self) -> "PortSessionSettings":
        if (self.local is None) != (self.remote is None):
            raise ValueError("local and remote belong together")
        if self.interface is None and self.local is None:
            raise ValueError("needs an interface, or local and remote addresses")
        self.wire(0)
        return self

    def wire(self, udp_port: int) -> Wire:
        """Return it as the shell wants it. Raises ValueError."""
        if self.local is None or self.remote is None:
            # No address of the far end is needed: whoever is at the other end of the cable is in this group.
            return Wire(("::", udp_port), ("ff02::1", udp_port), self.interface)
        return Wire(_socket_address(self.local, udp_port), _socket_address(self.remote, udp_port), self.interface)


def _socket_address(text: str, udp_port: int) -> tuple[str, int]:
    """Return address and port of such as "10.0.0.1", "10.0.0.1:4000", "fe80::1" or "[fe80::1]:4000"."""
    host, port = text, str(udp_port)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    ip_address(host)
    if not (port.isdecimal() and int(port) < 65536):
        raise ValueError(f'"{port}" is no UDP port')
    return host, int(port)


class PortSettings(_Section):
    """One port and what should be at its other end."""

    port: str = Field(min_length=1)
    far_end: str = Field(min_length=1)
    far_port: str = Field(min_length=1)
    session: PortSessionSettings | None = None
    """Without it the port has no session: its carrier alone says whether it works."""


class TimerSettings(_Section):
    """Durations, written such as "2 s"."""

    wait_to_restore: Duration = _DEFAULTS.wait_to_restore_ns
    wait_to_restore_max: Duration = _DEFAULTS.wait_to_restore_max_ns
    flap_window: Duration = _DEFAULTS.flap_window_ns
    health_interval: Duration = _DEFAULTS.health_interval_ns

    @model_validator(mode="after")
    def _max_is_not_below(self) -> "TimerSettings":
        if self.wait_to_restore_max < self.wait_to_restore:
            raise ValueError("wait_to_restore_max is shorter than wait_to_restore")
        return self


class SessionTimingSettings(_Section):
    """How fast the sessions of one class of links are."""

    interval: Duration = Field(default=_TIMING.interval_ns, ge=INTERVAL_MIN_NS)
    multiplier: int = Field(default=_TIMING.multiplier, ge=2, le=255)
    slow_start: Duration = _TIMING.slow_start_ns

    @model_validator(mode="after")
    def _slow_is_slow(self) -> "SessionTimingSettings":
        if self.slow_start < self.interval:
            raise ValueError(f"slow_start is shorter than the interval of {format_duration(self.interval)}")
        return self

    def timing(self) -> SessionTiming:
        """Return it as the core wants it."""
        return SessionTiming(self.interval, self.multiplier, self.slow_start)


class SessionSettings(_Section):
    """What all sessions of the node share."""

    enabled: bool = True
    udp_port: int = Field(default=49784, ge=1, le=65535)
    dscp: int = Field(default=48, ge=0, le=63)
    realtime_priority: int = Field(default=0, ge=0, le=50)


class DriverSettings(_Section):
    """Which data plane."""

    kind: Literal["simulated", "linux"] = "simulated"
    addressing: Path | None = None
    """Which prefixes destinations mean, and what is at the other end of each port: see `erfs.addressing`."""
    namespace: Path | None = None
    protocol: int = Field(default=229, ge=5, le=255)
    metric: int = Field(default=10, ge=1, le=0xFFFFFFFF)
    dry_run: bool = False

    @model_validator(mode="after")
    def _linux_has_addresses(self) -> "DriverSettings":
        if self.kind == "linux" and self.addressing is None:
            raise ValueError("the linux driver needs an addressing file")
        return self


class LogSettings(_Section):
    """What is told."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class AgentSettings(DaemonSettings):
    """An agent's whole configuration."""

    model_config = SettingsConfigDict(env_prefix="ERFS_AGENT__")

    node: str = Field(min_length=1)
    state_file: Path | None = None
    """Without it the agent needs the bus to learn its program again after a restart."""
    protection: bool = True
    ports: tuple[PortSettings, ...] = Field(min_length=1)
    bus: BusSettings = BusSettings()
    timers: TimerSettings = TimerSettings()
    sessions: SessionSettings = SessionSettings()
    session_timing: dict[str, SessionTimingSettings] = Field(default_factory=dict)
    driver: DriverSettings = DriverSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _each_port_once(self) -> "AgentSettings":
        names = [port.port for port in self.ports]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"ports named twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _each_timing_is_there(self) -> "AgentSettings":
        wanted = {port.session.timing for port in self.ports if port.session is not None} - {"default"}
        missing = sorted(wanted - self.session_timing.keys())
        if missing:
            raise ValueError(f"no session_timing is called {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _ends_can_be_told_apart(self) -> "AgentSettings":
        try:
            discriminators(NodeId(self.node), (end.binding for end in self.session_ends()))
        except FabricError as error:
            raise ValueError(str(error)) from None
        return self

    def session_ends(self) -> tuple[SessionEnd, ...]:
        """Return the ends of the sessions of this node; none if they are not enabled."""
        bindings = {binding.port: binding for binding in self.bindings()}
        return tuple(
            SessionEnd(bindings[port.port], self._timing(port.session.timing))
            for port in self.ports
            if port.session is not None and self.sessions.enabled
        )

    def session_wires(self) -> dict[str, Wire]:
        """Return where each session of `session_ends` runs."""
        return {
            port.port: port.session.wire(self.sessions.udp_port)
            for port in self.ports
            if port.session is not None and self.sessions.enabled
        }

    def _timing(self, name: str) -> SessionTiming:
        return self.session_timing.get(name, SessionTimingSettings()).timing()

    def bindings(self) -> tuple[PortBinding, ...]:
        """Return the ports as the core wants them."""
        node = NodeId(self.node)
        return tuple(
            PortBinding(
                port=port.port,
                link=link_id((node, port.port), (NodeId(port.far_end), port.far_port)),
                far_end=NodeId(port.far_end),
            )
            for port in self.ports
        )

    def core_timers(self) -> AgentTimers:
        """Return the times as the core wants them."""
        timers = self.timers
        return AgentTimers(
            wait_to_restore_ns=timers.wait_to_restore,
            wait_to_restore_max_ns=timers.wait_to_restore_max,
            flap_window_ns=timers.flap_window,
            health_interval_ns=timers.health_interval,
            is_protecting=self.protection,
        )


RELOADABLE = ("timers", "session_timing", "log")
"""Sections that a running agent can take; the others need a restart."""
