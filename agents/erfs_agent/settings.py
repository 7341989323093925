"""What an agent's configuration file may say, and what it means to the core.

Rule 1: values only; reading and telling mistakes is `erfs.aio.config`'s work.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from erfs.addressing import DEVICE_PATTERN
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

    interface: str | None = Field(default=None, pattern=DEVICE_PATTERN)
    """None: the one that the addressing file of the Linux driver names."""
    local: str | None = None
    remote: str | None = None
    timing: str = "default"

    @model_validator(mode="after")
    def _addresses_can_be_read(self) -> "PortSessionSettings":
        if (self.local is None) != (self.remote is None):
            raise ValueError("local and remote belong together")
        for text in (self.local, self.remote):
            if text is not None:
                _socket_address(text, 0)
        return self

    def wire(self, udp_port: int, device: str | None, namespace: Path | None) -> Wire:
        """Return it as the shell wants it; *device* is the port's interface where none is named here."""
        interface = self.interface or device
        if self.local is None or self.remote is None:
            assert interface is not None, "the configuration was checked"
            # No address of the far end is needed: whoever is at the other end of the cable is in this group.
            return Wire(("::", udp_port), ("ff02::1", udp_port), interface, namespace)
        return Wire(_socket_address(self.local, udp_port), _socket_address(self.remote, udp_port), interface, namespace)


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
    """Without it the port has a session only if the Linux driver's addressing file names its interface."""


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
    own_process: bool = True
    """False: in the agent's process, whose work can hold them up longer than neighbours wait; for laboratories."""
    realtime_priority: int = Field(default=10, ge=0, le=50)
    """Of a process of their own, where the system permits; above the agent's."""


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
    realtime_priority: int = Field(default=5, ge=0, le=50)
    """SCHED_FIFO, where the system permits, for repairs, not for taking in programs; 0: as an ordinary process."""
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
            discriminators(NodeId(self.node), (end.binding for end in self.session_ends({})))
        except FabricError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _each_session_has_a_wire(self) -> "AgentSettings":
        for port in self.ports:
            found = port.session
            if found is not None and self.driver.kind != "linux" and not (found.interface or found.local):
                raise ValueError(f'the session of port "{port.port}" needs an interface, or local and remote addresses')
        return self

    def session_ends(self, devices: Mapping[str, str]) -> tuple[SessionEnd, ...]:
        """Return the ends of the sessions of this node: of all ports that say so, or whose interface *devices* names."""
        bindings = {binding.port: binding for binding in self.bindings()}
        return tuple(
            SessionEnd(bindings[port], self._timing(found.timing)) for port, found in self._sessions(devices).items()
        )

    def session_wires(self, devices: Mapping[str, str]) -> dict[str, Wire]:
        """Return where each session of `session_ends` runs."""
        return {
            port: found.wire(self.sessions.udp_port, devices.get(port), self.driver.namespace)
            for port, found in self._sessions(devices).items()
        }

    def _sessions(self, devices: Mapping[str, str]) -> dict[str, PortSessionSettings]:
        if not self.sessions.enabled:
            return {}
        wanted = {port.port: port.session for port in self.ports if port.session is not None}
        # The two ends of a cable looped on this node cannot be told apart, and no route uses it.
        looped = {port.port for port in self.ports if port.far_end == self.node}
        known = {
            port: PortSessionSettings()
            for port in sorted(devices.keys() & ({port.port for port in self.ports} - looped))
        }
        return known | wanted

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
