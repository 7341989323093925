"""What the programs of a run are told: the configuration files of controller, agents and Mosquitto, as text.

Rule 1: pure: a plan's settings in, a file's content out; whoever starts the program writes it down.
"""

import json
from pathlib import Path
from typing import Final

from erfs.fabric import Fabric, LinkEnd
from erfs.ids import NodeId
from erfs_scenario.nodes import port_bindings
from erfs_scenario.plan import Timers

ACCESS_FACTOR: Final = 5
"""How much slower sessions with hosts are: a silent fault there is not to be routed around where the host has no other port."""


def controller_toml(timers: Timers, *, is_protecting: bool, prefix: str, host: str, port: int) -> str:
    """Return the controller's configuration: fabric.json and its state beside it, the broker at *host*:*port*."""
    durations = {
        "discovery": timers.discovery_ns,
        "debounce_min": timers.debounce_min_ns,
        "debounce_max": timers.debounce_max_ns,
        "ack_wait": timers.ack_wait_ns,
        "leader_refresh": timers.leader_refresh_ns,
        "leader_listen": timers.leader_listen_ns,
    }
    return "\n".join(
        [
            'fabric = "fabric.json"',
            'state_dir = "."',
            'broker = "external"',
            f"protection = {str(is_protecting).lower()}",
            "[bus]",
            f'brokers = [{{ host = "{host}", port = {port} }}]',
            f'prefix = "{prefix}"',
            "[timers]",
            *(f'{name} = "{value_ns} ns"' for name, value_ns in durations.items()),
            f"ack_attempts = {timers.ack_attempts}",
            "",
        ]
    )


def agent_toml(
    fabric: Fabric,
    node: NodeId,
    timers: Timers,
    *,
    is_protecting: bool,
    prefix: str,
    host: str,
    port: int,
    addressing: Path,
    state_file: Path,
) -> str:
    """
    Return the configuration of a *node*'s agent that drives the kernel of the namespace it runs in.

    Args:
        fabric, node, is_protecting: Of the run.
        timers: Of the run; its session interval is that of trunks, `ACCESS_FACTOR` times as long on access links. 0: no sessions.
        prefix, host, port: The bus.
        addressing: The addressing file; one serves all.
        state_file: Where the agent keeps its program.
    """
    ports = []
    for binding in port_bindings(fabric, node):
        near = LinkEnd(node, binding.port)
        link = fabric.link_at[near]
        far = link.other_end(near)
        slower = ', session = { timing = "access" }' if fabric.is_access(link) else ""
        # A JSON string is a TOML one.
        ports.append(
            f"  {{ port = {json.dumps(binding.port)}, far_end = {json.dumps(far.node)}, far_port = {json.dumps(far.port)}"
            f"{slower} }},"
        )
    durations = {
        "wait_to_restore": timers.wait_to_restore_ns,
        "wait_to_restore_max": timers.wait_to_restore_max_ns,
        "flap_window": timers.flap_window_ns,
        "health_interval": timers.health_interval_ns,
    }
    sessions = []
    for name, factor in (("default", 1), ("access", ACCESS_FACTOR)):
        sessions += [f"[session_timing.{name}]", f"multiplier = {timers.session_multiplier}"]
        if timers.session_interval_ns:
            sessions += [f'interval = "{timers.session_interval_ns * factor} ns"']
    return "\n".join(
        [
            f"node = {json.dumps(node)}",
            f"state_file = {json.dumps(str(state_file))}",
            f"protection = {str(is_protecting).lower()}",
            "ports = [",
            *ports,
            "]",
            "[bus]",
            f'brokers = [{{ host = "{host}", port = {port} }}]',
            f'prefix = "{prefix}"',
            "[driver]",
            'kind = "linux"',
            f"addressing = {json.dumps(str(addressing))}",
            "[timers]",
            *(f'{name} = "{value_ns} ns"' for name, value_ns in durations.items()),
            "[sessions]",
            f"enabled = {str(bool(timers.session_interval_ns)).lower()}",
            *sessions,
            "",
        ]
    )


def mosquitto_conf(host: str, port: int) -> str:
    """Return Mosquitto's configuration: everybody on that address is let in, nothing is kept on disk."""
    return (
        f"user root\nlistener {port} {host}\nallow_anonymous true\npersistence false\n"
        # Without it rounds of 1 ms take 41 to 85.
        "set_tcp_nodelay true\n"
    )
