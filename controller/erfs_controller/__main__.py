"""The `erfs-controller` daemon: leads one fabric, from a configuration file, until it is told to stop.

Rule 1: agents keep forwarding whether this process lives or not; its start changes no route that is right.
Rule 2: a new configuration or fabric file is taken whole or refused whole.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final

import structlog

from erfs.aio import edge
from erfs.aio.config import load
from erfs.aio.logs import set_up_logs
from erfs.aio.loop import loop_factory
from erfs.aio.mqtt import MqttBus
from erfs.errors import ConfigError, FabricError
from erfs.fabric import Fabric
from erfs.importers import load_fabric
from erfs.journal import Journal
from erfs.topics import Topics
from erfs.units import MS
from erfs_controller.aio.embedded import ensure_broker
from erfs_controller.aio.runtime import AnotherLeads, ControllerRuntime
from erfs_controller.aio.store import ControllerStore
from erfs_controller.core import ControllerCore, FabricReloaded
from erfs_controller.settings import RELOADABLE, ControllerSettings

_log = structlog.get_logger("erfs_controller")

EXIT_ANOTHER_LEADS: Final = 3
EXIT_USAGE: Final = 64
# A goodbye that the broker does not take in this time is left to the last will.
GOODBYE_NS: Final = 500 * MS

_EPILOG: Final = """\
The configuration is TOML; the environment overrides it, nested names joined by "__":

  fabric = "/etc/erfs/fabric.json"
  state_dir = "/var/lib/erfs-controller"
  broker = "embedded"
  protection = true
  [bus]
  brokers = [{ host = "127.0.0.1", port = 1883 }]
  [timers]
  debounce_min = "10 ms"
  debounce_max = "50 ms"
  [log]
  level = "info"

  ERFS_CONTROLLER__TIMERS__DEBOUNCE_MIN="20 ms" erfs-controller --config controller.toml

The fabric may be in any format that "erfs fabric show" reads; paths count from the configuration file's folder.
With broker = "embedded" an "erfs broker" is started if nobody listens at the first address of the bus; it outlives the
controller.

SIGHUP reads both files again: fabric and log apply at once, other changes are named and wait for a restart, and a bad
file is refused whole. A new fabric that would withdraw what agents still report as working is not pushed until
"erfs confirm" says so. SIGTERM ends the controller; the fabric stays as it is, protected by its agents.
A second controller beside a live one ends with exit code 3.
"""


def main() -> None:
    """Run `erfs-controller`; the entry point of the package."""
    parser = argparse.ArgumentParser(
        prog="erfs-controller",
        description="Lead one fabric: adjudicate what its agents report, and push what to do next.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration, TOML")
    parser.add_argument("--check-config", action="store_true", help="say whether the configuration is good, and end")
    arguments = parser.parse_args()
    try:
        settings = _load(arguments.config)
        fabric = _load_fabric(settings)
        if arguments.check_config:
            brokers = ", ".join(str(broker) for broker in settings.bus.brokers)
            counts = f"{len(fabric.switches)} switches, {len(fabric.endpoints)} endpoints, {len(fabric.links)} links"
            sys.stdout.write(f"{arguments.config}: good: {settings.fabric} ({counts}), bus {brokers}\n")
            return
        set_up_logs(settings.log.level)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, fabric, arguments.config))
    except (ConfigError, FabricError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_USAGE)
    except AnotherLeads as error:
        sys.stderr.write(f"erfs-controller: {error}\n")
        sys.exit(EXIT_ANOTHER_LEADS)


def _load(path: Path) -> ControllerSettings:
    """Read the configuration and the files it names, the fabric apart. Raises ConfigError."""
    settings = load(ControllerSettings, path)
    settings.bus.secret()
    settings.bus.tls_context()
    folder = path.parent
    return settings.model_copy(update={"fabric": folder / settings.fabric, "state_dir": folder / settings.state_dir})


def _load_fabric(settings: ControllerSettings) -> Fabric:
    """Read the fabric file. Raises ConfigError or FabricError."""
    return load_fabric(settings.fabric).fabric


async def _serve(settings: ControllerSettings, fabric: Fabric, path: Path) -> None:
    # Unlike that of any other controller and of this one's last run, so that a stale leader message is never taken for ours.
    controller_id = f"{socket.gethostname()}-{os.getpid()}-{SystemRandom().getrandbits(24):06x}"
    store = ControllerStore(settings.state_dir / "controller.sqlite3")
    stored = store.load()
    core = ControllerCore(
        fabric,
        settings.core_timers(),
        controller_id,
        stored.epoch,
        stored.drains,
        wall_offset_ns=time.time_ns() - time.monotonic_ns(),
    )
    topics = Topics(settings.bus.prefix)
    if settings.broker == "embedded":
        await ensure_broker(settings.bus.brokers[0], settings.state_dir / "broker.log")
    # Every node may have to be given a program at once; a queue shorter than that would drop some for the retry to find.
    room = max(settings.bus.queue_length, 2 * len(fabric.nodes))
    bus = MqttBus(
        settings.bus.model_copy(update={"queue_length": room}),
        # A broker ends the elder of two sessions of one name: a second controller must not end the leader's by its name.
        f"controller-{controller_id}",
        will=edge.will(topics, core.last_will()),
        rng=SystemRandom(),
    )
    with Journal(settings.state_dir / "journal.jsonl") as journal:
        runtime = ControllerRuntime(core, bus, store, journal, topics=topics, refresh_ns=settings.timers.leader_refresh)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, runtime.stop)
        loop.add_signal_handler(signal.SIGINT, runtime.stop)
        loop.add_signal_handler(signal.SIGHUP, partial(_Reload(settings, fabric, path), runtime))
        _log.info(
            "controller_started", controller=controller_id, switches=len(fabric.switches), links=len(fabric.links)
        )
        rival: AnotherLeads | None = None
        async with asyncio.TaskGroup() as tasks:
            bus_task = tasks.create_task(bus.run(), name="bus")
            try:
                await runtime.run()
            except AnotherLeads as error:
                rival = error
            if bus.is_connected:
                await bus.drain(GOODBYE_NS)
            bus_task.cancel()
    store.close()
    if rival is not None:
        raise rival
    _log.info("controller_stopped")


class _Reload:
    """What a running controller does on SIGHUP."""

    def __init__(self, settings: ControllerSettings, fabric: Fabric, path: Path) -> None:
        self._settings = settings
        self._fabric = fabric
        self._path = path

    def __call__(self, runtime: ControllerRuntime) -> None:
        try:
            fresh = _load(self._path)
            fabric = _load_fabric(fresh)
        except (ConfigError, FabricError) as error:
            _log.error("config_refused", problems=str(error).splitlines())
            return
        changed = [
            name for name in ControllerSettings.model_fields if getattr(fresh, name) != getattr(self._settings, name)
        ]
        applied = {name: getattr(fresh, name) for name in changed if name in RELOADABLE}
        self._settings = self._settings.model_copy(update=applied)
        set_up_logs(self._settings.log.level)
        is_fabric_new = fabric != self._fabric
        _log.info(
            "config_reloaded",
            applied=sorted(applied),
            is_fabric_new=is_fabric_new,
            needs_restart=sorted(name for name in changed if name not in RELOADABLE),
        )
        if is_fabric_new:
            self._fabric = fabric
            runtime.take(FabricReloaded(fabric))


if __name__ == "__main__":
    main()
