"""What an agent's configuration file may say, and what it means to the core.

Rule 1: values only; reading and telling mistakes is `erfs.aio.config`'s work.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from erfs.aio.config import DaemonSettings, Duration
from erfs.aio.mqtt import BusSettings
from erfs.ids import NodeId, link_id
from erfs.messages import PortBinding
from erfs_agent.core import AgentTimers

_DEFAULTS = AgentTimers()


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortSettings(_Section):
    """One port and what should be at its other end."""

    port: str = Field(min_length=1)
    far_end: str = Field(min_length=1)
    far_port: str = Field(min_length=1)


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


class DriverSettings(_Section):
    """Which data plane."""

    kind: Literal["simulated"] = "simulated"


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
    driver: DriverSettings = DriverSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _each_port_once(self) -> "AgentSettings":
        names = [port.port for port in self.ports]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"ports named twice: {', '.join(twice)}")
        return self

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


RELOADABLE = ("timers", "log")
"""Sections that a running agent can take; the others need a restart."""
