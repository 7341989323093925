"""What do liveness sessions cost, and do they cry wolf? Two processes on loopback, each with one end of every session.

    python benchmarks/sessions.py                      10, 5 and 3 ms, 64 ends a process, idle and with every core loaded
    python benchmarks/sessions.py --interval 10 --seconds 60 --load 2 --realtime 10

One line a run: CPU share of a core for each process, sessions lost, own lateness, judgements put off because of it.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from erfs.aio.loop import loop_factory
from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.units import MS, SECOND
from erfs_agent.aio.sessions import UdpSessions, Wire, be_realtime
from erfs_agent.probing import SessionDown, SessionEnd, Sessions, SessionTiming, SessionUp
from erfs_agent.session_packet import SessionState

NODES = (NodeId("a"), NodeId("b"))
SETTLE_NS = 2 * SECOND


def main() -> None:
    """Run one end as a child, or all runs asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interval", type=int, nargs="*", default=[10, 5, 3], help="ms, one or several")
    parser.add_argument("--ends", type=int, default=64, help="session ends in each process")
    parser.add_argument("--seconds", type=int, default=12, help="measured, after two that settle")
    parser.add_argument("--load", type=int, nargs="*", default=[0, os.cpu_count() or 1], help="busy processes beside")
    parser.add_argument("--realtime", type=int, default=0, help="SCHED_FIFO priority; 0: ordinary")
    parser.add_argument(
        "--loop", choices=["default", "asyncio"], default="default", help="default: uvloop where installed"
    )
    parser.add_argument("--port", type=int, default=21000, help="the first of twice as many UDP ports as ends")
    parser.add_argument("--node", type=int, choices=[0, 1], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node is not None:
        factory = loop_factory() if arguments.loop == "default" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            print(json.dumps(runner.run(run_node(arguments))))
        return
    for load in arguments.load:
        for interval in arguments.interval:
            print(describe(interval, load, run_pair(arguments, interval, load)), flush=True)


def run_pair(arguments: argparse.Namespace, interval: int, load: int) -> list[dict[str, float]]:
    """Run both nodes beside *load* busy processes."""
    command = [sys.executable, __file__, "--interval", str(interval)]
    for name in ("ends", "seconds", "realtime", "loop", "port"):
        command += [f"--{name}", str(getattr(arguments, name))]
    with busy(load, arguments.seconds + 10):
        children = [subprocess.Popen([*command, "--node", str(node)], stdout=subprocess.PIPE) for node in (0, 1)]
        return [json.loads(child.communicate(timeout=arguments.seconds + 30)[0]) for child in children]


@contextmanager
def busy(count: int, seconds: int) -> Iterator[None]:
    """Keep *count* cores busy; the programs end by themselves, too."""
    program = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: sum(range(1000))"
    children = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


async def run_node(arguments: argparse.Namespace) -> dict[str, float]:
    """Run one node's ends; return its figures."""
    node, far_end = NODES[arguments.node], NODES[1 - arguments.node]
    timing = SessionTiming(interval_ns=arguments.interval[0] * MS, multiplier=3)
    bindings = [
        PortBinding(port=f"e{index}", link=LinkId(f"a:e{index}|b:e{index}"), far_end=far_end)
        for index in range(arguments.ends)
    ]
    wires = {}
    for index, binding in enumerate(bindings):
        near, far = (arguments.port + 2 * index + side for side in (arguments.node, 1 - arguments.node))
        wires[binding.port] = Wire(("127.0.0.1", near), ("127.0.0.1", far))
    core = Sessions(node, [SessionEnd(binding, timing) for binding in bindings], Random(arguments.node))
    shell = UdpSessions(core, wires, on_mark=lambda mark: None)
    down_count = 0

    def count(change: SessionUp | SessionDown) -> None:
        nonlocal down_count
        down_count += isinstance(change, SessionDown)

    shell.on_change = count
    if arguments.realtime:
        be_realtime(arguments.realtime)
    shell.start()
    # Both settle and leave at the same instants, whichever started first.
    begin_s = (time.time() // 1 + 1) + SETTLE_NS / SECOND
    await asyncio.sleep(begin_s - time.time())
    up_count = sum(core.state_of(binding.port) is SessionState.UP for binding in bindings)
    down_count = 0
    core.tally.lateness_max_ns = core.tally.late_count = core.tally.abstained = 0
    accepted, cpu_s, wall_s = core.tally.accepted, time.process_time(), time.monotonic()
    await asyncio.sleep(arguments.seconds)
    cpu_share = (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
    tally = core.tally
    figures = {
        "cpu_percent": 100 * cpu_share,
        "up": up_count,
        "down": down_count,
        "received_per_s": (tally.accepted - accepted) / arguments.seconds,
        "lateness_max_ms": tally.lateness_max_ns / MS,
        "late": tally.late_count,
        "abstained": tally.abstained,
    }
    # The goodbye may come while the other still counts: it is no loss of a session.
    shell.stop()
    return figures


def describe(interval: int, load: int, figures: list[dict[str, float]]) -> str:
    """Return one run's line."""

    def both(name: str, places: int = 0) -> str:
        return " / ".join(f"{one[name]:.{places}f}" for one in figures)

    return (
        f"{interval:>2} ms x 3, {load} busy: CPU {both('cpu_percent', 1)} % of a core, up {both('up')},"
        f" lost {both('down')}, {both('received_per_s')} packets/s in, late by up to {both('lateness_max_ms', 1)} ms,"
        f" {both('late')} times, abstained {both('abstained')}; load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
