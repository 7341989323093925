"""The `erfs-agent` daemon: one node's agent, from a configuration file, until it is told to stop.

Rule 1: forwarding outlives this process; neither its start nor its end changes what is right already.
Rule 2: a new configuration is taken whole or refused whole.
"""

import argparse
import asyncio
import gc
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final

import structlog

from erfs.addressing import Addressing, read_addressing
from erfs.aio import edge
from erfs.aio.config import load
from erfs.aio.logs import set_up_logs
from erfs.aio.loop import loop_factory
from erfs.aio.mqtt import MqttBus
from erfs.errors import ConfigError, FabricError, Problem
from erfs.ids import DestinationId, NodeId
from erfs.messages import Member
from erfs.topics import Topics
from erfs.units import MS
from erfs_agent.aio.marks import MarkLog
from erfs_agent.aio.realtime import be_realtime
from erfs_agent.aio.runtime import AgentRuntime
from erfs_agent.aio.session_child import Setup
from erfs_agent.aio.session_process import SessionProcess
from erfs_agent.aio.sessions import PortSessions, UdpSessions
from erfs_agent.aio.store import FileStore
from erfs_agent.core import AgentCore
from erfs_agent.drivers.base import Driver
from erfs_agent.drivers.simulated import SimulatedDriver
from erfs_agent.probing import Sessions
from erfs_agent.settings import RELOADABLE, AgentSettings
from erfs_agent.state import AgentState

_log = structlog.get_logger("erfs_agent")

EXIT_USAGE: Final = 64
# A goodbye that the broker does not take in this time is left to the last will.
GOODBYE_NS: Final = 500 * MS

_EPILOG: Final = """\
The configuration is TOML; the environment overrides it, nested names joined by "__":

  node = "leaf1"
  state_file = "/var/lib/erfs/leaf1.json"
  ports = [
    { port = "e1", far_end = "spine1", far_port = "e1" },
    { port = "e2", far_end = "spine2", far_port = "e1" },
  ]
  [bus]
  brokers = [{ host = "127.0.0.1", port = 1883 }]
  [timers]
  wait_to_restore = "2 s"

A port may also have a liveness session, which notices what no carrier tells:

  [[ports]]
  port = "e3"
  far_end = "spine3"
  far_port = "e1"
  session = { interface = "swp3" }

  ERFS_AGENT__TIMERS__WAIT_TO_RESTORE="5 s" erfs-agent --config agent.toml

The driver "simulated", the default, is a data plane inside this process whose ports are all up, for trying out an agent
against a real bus and controller. The kernel is driven with:

  [driver]
  kind = "linux"
  addressing = "/etc/erfs/addressing.json"

SIGHUP reads the file again: timers, session_timing and log apply at once, other changes are named and wait for a
restart, and a bad file is refused whole. SIGTERM ends the agent; forwarding stays as it is.
"""


def main() -> None:
    """Run `erfs-agent`; the entry point of the package."""
    parser = argparse.ArgumentParser(
        prog="erfs-agent",
        description="Keep one node forwarding while its fabric fails.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration, TOML")
    parser.add_argument("--check-config", action="store_true", help="say whether the configuration is good, and end")
    arguments = parser.parse_args()
    try:
        settings, addressing = _load(arguments.config)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_USAGE)
    if arguments.check_config:
        brokers = ", ".join(str(broker) for broker in settings.bus.brokers)
        sys.stdout.write(
            f'{arguments.config}: good: node "{settings.node}", {len(settings.ports)} ports, bus {brokers}\n'
        )
        return
    set_up_logs(settings.log.level)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, addressing, arguments.config))
    except ConfigError as error:
        # Good as a file, but this machine has no such thing.
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_USAGE)


def _load(path: Path) -> tuple[AgentSettings, Addressing | None]:
    """Read the configuration and the files it names, the addressing once: it may be a large one. Raises ConfigError."""
    settings = load(AgentSettings, path)
    settings.bus.secret()
    settings.bus.tls_context()
    return settings, _addressing(settings)


def _addressing(settings: AgentSettings) -> Addressing | None:
    """Return the addressing of the Linux driver, None for another one. Raises ConfigError."""
    path = settings.driver.addressing
    if settings.driver.kind != "linux" or path is None:
        return None
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(str(path), [Problem(0, f"cannot be read: {error.strerror}")]) from None
    addressing = read_addressing(text, str(path), NodeId(settings.node))
    known = addressing.nodes[NodeId(settings.node)].ports
    unknown = [port.port for port in settings.ports if port.port not in known]
    if unknown:
        raise ConfigError(str(path), [Problem(0, f'node "{settings.node}" has no port "{port}"') for port in unknown])
    return addressing


def _driver(settings: AgentSettings, addressing: Addressing | None, ports: Iterable[str]) -> Driver:
    """Return the driver asked for. Raises ConfigError."""
    node = NodeId(settings.node)
    if addressing is None:
        return SimulatedDriver(_OwnPlane(), node, ports)
    from erfs_agent.drivers.linux import LinuxDriver

    chosen = settings.driver
    try:
        return LinuxDriver(
            addressing,
            addressing.nodes[node],
            protocol=chosen.protocol,
            metric=chosen.metric,
            namespace=chosen.namespace,
            is_dry_run=chosen.dry_run,
        )
    except OSError as error:
        where = chosen.namespace if chosen.namespace is not None else "kernel"
        raise ConfigError(str(where), [Problem(0, f"cannot be driven: {error.strerror or error}")]) from None


class _OwnPlane:
    """A data plane with nothing behind it: takes every route, and every port has carrier."""

    def write_routes(
        self, node: NodeId, routes: Mapping[DestinationId, tuple[Member, ...]], removed: tuple[DestinationId, ...]
    ) -> None:
        """Take the routes; the driver remembers them."""

    def is_port_up(self, node: NodeId, port: str) -> bool:
        """All ports have carrier."""
        return True


async def _serve(settings: AgentSettings, addressing: Addressing | None, path: Path) -> None:
    node = NodeId(settings.node)
    structlog.contextvars.bind_contextvars(node=node)
    bindings = settings.bindings()
    driver = _driver(settings, addressing, [binding.port for binding in bindings])
    store = FileStore(settings.state_file) if settings.state_file is not None else None
    state = _last_state(store)
    marks = MarkLog()
    devices = _devices(settings, addressing)
    sessions = _sessions(settings, devices, marks)
    core = AgentCore(
        node,
        bindings,
        settings.core_timers(),
        state,
        ports_up=driver.ports(),
        routes_installed=driver.routes(),
        ports_watched=sessions.ports if sessions is not None else frozenset(),
    )
    topics = Topics(settings.bus.prefix)
    bus = MqttBus(settings.bus, node, will=edge.will(topics, core.last_will()), rng=SystemRandom())
    runtime = AgentRuntime(core, driver, bus, store, sessions, topics=topics, on_mark=marks)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, runtime.stop)
    loop.add_signal_handler(signal.SIGINT, runtime.stop)
    loop.add_signal_handler(signal.SIGHUP, partial(_Reload(settings, path, sessions, devices), runtime))
    try:
        async with asyncio.TaskGroup() as tasks:
            bus_task = tasks.create_task(bus.run(), name="bus")
            _log.info("agent_started", port_count=len(bindings), has_program=state.program is not None)
            driver.watch(loop)
            _spare_collector()
            # After the start, which takes long.
            if settings.realtime_priority and (refused := be_realtime(settings.realtime_priority)) is not None:
                marks(refused, time.monotonic_ns())
            await runtime.run()
            driver.close()
            if bus.is_connected:
                await bus.drain(GOODBYE_NS)
            bus_task.cancel()
    finally:
        marks.flush()
    _log.info("agent_stopped")


def _spare_collector() -> None:
    """
    What is loaded by now stays loaded: later collections pass over it.

    A full one takes 15 ms with it and under one without, and a failure that falls into it waits.
    """
    gc.collect()
    gc.freeze()


def _devices(settings: AgentSettings, addressing: Addressing | None) -> dict[str, str]:
    """Return the interface of each port, as far as an addressing file names it."""
    if addressing is None:
        return {}
    return {port: found.device for port, found in addressing.nodes[NodeId(settings.node)].ports.items()}


def _sessions(settings: AgentSettings, devices: Mapping[str, str], marks: MarkLog) -> PortSessions | None:
    """Return the sessions of the ports that have an addressing, None if no port has."""
    ends, shared = settings.session_ends(devices), settings.sessions
    wires = settings.session_wires(devices)
    if not ends:
        return None
    try:
        core = Sessions(NodeId(settings.node), ends, SystemRandom())
    except FabricError as error:
        raise ConfigError(settings.node, [Problem(0, str(error))]) from None
    if shared.own_process:
        priority = shared.realtime_priority
        setup = Setup(NodeId(settings.node), ends, wires, shared.dscp, priority)
        return SessionProcess(setup, on_mark=marks)
    return UdpSessions(core, wires, on_mark=marks, dscp=shared.dscp)


def _last_state(store: FileStore | None) -> AgentState:
    """Return what the last run kept. Without it, incarnations begin at the wall clock, above those of any earlier run."""
    nothing = AgentState(incarnation=int(time.time()))
    if store is None:
        return nothing
    try:
        return store.load() or nothing
    except ConfigError as error:
        _log.error("state_unreadable", reason=str(error), set_aside_as=str(store.set_aside()))
        return nothing


class _Reload:
    """What a running agent does on SIGHUP."""

    def __init__(
        self, settings: AgentSettings, path: Path, sessions: PortSessions | None, devices: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._path = path
        self._sessions = sessions
        self._devices = devices

    def __call__(self, runtime: AgentRuntime) -> None:
        try:
            fresh, _ = _load(self._path)
        except ConfigError as error:
            _log.error("config_refused", problems=str(error).splitlines())
            return
        changed = [name for name in AgentSettings.model_fields if getattr(fresh, name) != getattr(self._settings, name)]
        applied = {name: getattr(fresh, name) for name in changed if name in RELOADABLE}
        self._settings = self._settings.model_copy(update=applied)
        runtime.reload(self._settings.core_timers())
        if self._sessions is not None:
            self._sessions.retime({end.binding.port: end.timing for end in self._settings.session_ends(self._devices)})
        set_up_logs(self._settings.log.level)
        _log.info(
            "config_reloaded",
            applied=sorted(applied),
            needs_restart=sorted(name for name in changed if name not in RELOADABLE),
        )


if __name__ == "__main__":
    main()
