"""The programs accept what a run tells them."""

from dataclasses import replace
from pathlib import Path

from erfs.aio.config import load
from erfs.exporters import write_fabric
from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.messages import PortBinding
from erfs.units import MS
from erfs_agent.settings import AgentSettings
from erfs_controller.settings import ControllerSettings
from erfs_scenario.daemon_files import ACCESS_FACTOR, agent_toml, controller_toml
from erfs_scenario.nodes import port_bindings
from erfs_scenario.plan import Timers

TIMERS = Timers(wait_to_restore_ns=123 * MS, ack_wait_ns=456 * MS)


def agent(fabric: Fabric, node: str, folder: Path, session_interval_ns: int = 10 * MS) -> AgentSettings:
    (folder / "agent.toml").write_text(
        agent_toml(
            fabric,
            NodeId(node),
            replace(TIMERS, session_interval_ns=session_interval_ns),
            is_protecting=False,
            prefix="p/1",
            host="198.18.0.1",
            port=1883,
            addressing=folder / "a.json",
            state_file=folder / "s.json",
        )
    )
    return load(AgentSettings, folder / "agent.toml")


def test_an_agent_is_told_its_ports_its_times_and_its_kernel(tmp_path: Path) -> None:
    fabric = generate("fat-tree", {"k": 4})
    settings = agent(fabric, "pod0-edge0", tmp_path, 7 * MS)
    assert settings.bindings() == port_bindings(fabric, NodeId("pod0-edge0"))
    assert (settings.timers.wait_to_restore, settings.protection, settings.bus.prefix) == (123 * MS, False, "p/1")
    assert (settings.driver.kind, settings.driver.addressing) == ("linux", tmp_path / "a.json")
    assert (settings.sessions.enabled, settings.session_timing["default"].interval) == (True, 7 * MS)
    ends = settings.session_ends({port.port: port.port for port in settings.ports})
    assert {end.binding.far_end: end.timing.interval_ns for end in ends} == {
        "pod0-agg0": 7 * MS,
        "pod0-agg1": 7 * MS,
        "pod0-edge0-host0": 7 * MS * ACCESS_FACTOR,
        "pod0-edge0-host1": 7 * MS * ACCESS_FACTOR,
    }
    assert agent(fabric, "pod0-edge0", tmp_path, 0).sessions.enabled is False


def test_both_ends_of_a_cable_looped_on_one_node_are_told_of_each_other(tmp_path: Path) -> None:
    node = NodeId('s "1"')
    fabric = Fabric(
        [Node(node, NodeKind.SWITCH)],
        [Link.between(LinkEnd(node, "a"), LinkEnd(node, "b"), capacity_bps=1)],
        name="loop",
    )
    settings = agent(fabric, node, tmp_path)
    link = next(iter(fabric.links))
    assert settings.bindings() == (
        PortBinding(port="a", link=link, far_end=node),
        PortBinding(port="b", link=link, far_end=node),
    )
    assert [(port.port, port.far_port) for port in settings.ports] == [("a", "b"), ("b", "a")]


def test_a_controller_is_told_its_fabric_its_bus_and_its_times(tmp_path: Path) -> None:
    (tmp_path / "fabric.json").write_text(write_fabric(generate("fat-tree", {"k": 4}), "node-link"))
    (tmp_path / "controller.toml").write_text(
        controller_toml(TIMERS, is_protecting=False, prefix="p/1", host="198.18.0.1", port=1883)
    )
    settings = load(ControllerSettings, tmp_path / "controller.toml")
    assert (settings.timers.ack_wait, settings.protection) == (456 * MS, False)
    assert (settings.bus.prefix, str(settings.bus.brokers[0]), settings.broker) == (
        "p/1",
        "198.18.0.1:1883",
        "external",
    )
