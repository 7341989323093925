"""What a controller's configuration file may say, and what it means to the core.

Rule 1: values only; reading and telling mistakes is `erfs.aio.config`'s work.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from erfs.aio.config import DaemonSettings, Duration
from erfs.aio.mqtt import BusSettings
from erfs.units import PPM
from erfs_controller.timers import ControllerTimers

_DEFAULTS = ControllerTimers()


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TimerSettings(_Section):
    """Durations, written such as "50 ms"; `erfs_controller.timers` says what each is for."""

    discovery: Duration = _DEFAULTS.discovery_ns
    debounce_min: Duration = _DEFAULTS.debounce_min_ns
    debounce_max: Duration = _DEFAULTS.debounce_max_ns
    ack_wait: Duration = _DEFAULTS.ack_wait_ns
    ack_attempts: int = Field(default=_DEFAULTS.ack_attempts, ge=1, le=100)
    leader_refresh: Duration = _DEFAULTS.leader_refresh_ns
    leader_listen: Duration = _DEFAULTS.leader_listen_ns

    @model_validator(mode="after")
    def _fit_together(self) -> "TimerSettings":
        if self.debounce_max < self.debounce_min:
            raise ValueError("debounce_max is shorter than debounce_min")
        if self.leader_listen < 2 * self.leader_refresh:
            # One refresh may be late; whoever then takes the leader for dead leads beside it.
            raise ValueError("leader_listen must be at least twice leader_refresh")
        return self


class LogSettings(_Section):
    """What is told."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class ControllerSettings(DaemonSettings):
    """A controller's whole configuration."""

    model_config = SettingsConfigDict(env_prefix="ERFS_CONTROLLER__")

    fabric: Path
    """The fabric as built, in any format that `erfs fabric show` reads."""
    state_dir: Path
    """Holds controller.sqlite3 and journal.jsonl."""
    broker: Literal["embedded", "external"] = "embedded"
    """Embedded: an `erfs broker` is started where nobody listens at the first address of the bus; it outlives the controller."""
    protection: bool = True
    path_floor_percent: int = Field(default=_DEFAULTS.floor_ppm * 100 // PPM, ge=0, le=100)
    """What every destination class must keep of its paths and capacity when something is drained."""
    bus: BusSettings = BusSettings()
    timers: TimerSettings = TimerSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _embedded_is_here(self) -> "ControllerSettings":
        first = self.bus.brokers[0]
        if self.broker == "embedded" and not first.is_loopback():
            raise ValueError(
                f'broker "embedded" listens on this machine alone, but the bus is at {first}: set broker = "external"'
            )
        return self

    def core_timers(self) -> ControllerTimers:
        """Return the times as the core wants them."""
        timers = self.timers
        return ControllerTimers(
            discovery_ns=timers.discovery,
            debounce_min_ns=timers.debounce_min,
            debounce_max_ns=timers.debounce_max,
            ack_wait_ns=timers.ack_wait,
            ack_attempts=timers.ack_attempts,
            leader_refresh_ns=timers.leader_refresh,
            leader_listen_ns=timers.leader_listen,
            is_protecting=self.protection,
            floor_ppm=self.path_floor_percent * PPM // 100,
        )


RELOADABLE = ("fabric", "log")
"""What a running controller can take; the rest needs a restart."""
