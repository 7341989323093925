"""What do liveness sessions cost, and do they cry wolf? Two processes on loopback, each with one end of every session.

    python benchmarks/sessions.py                      10, 5 and 3 ms, 64 ends a process, idle and with every core loaded
    python benchmarks/sessions.py --interval 10 --seconds 60 --load 2 --realtime 10

One line a run: CPU share of a core for each process, sessions lost, own lateness, judgements put off because of it.

    python benchmarks/sessions.py --cuts               one direction of one link at a time is cut: when does each end know?
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
from typing import Any

from erfs.aio.loop import loop_factory
from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.units import MS, SECOND
from erfs_agent.aio.realtime import be_realtime
from erfs_agent.aio.sessions import UdpSessions, Wire
from erfs_agent.probing import Send, SessionCommand, SessionDown, SessionEnd, Sessions, SessionTiming, SessionUp
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
    parser.add_argument("--cuts", action="store_true", help="cut the first process's sending, port after port")
    parser.add_argument("--node", type=int, choices=[0, 1], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node is not None:
        factory = loop_factory() if arguments.loop == "default" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            print(json.dumps(runner.run(run_node(arguments))))
        return
    for load in arguments.load:
        for interval in arguments.interval:
            figures = run_pair(arguments, interval, load)
            print(describe(interval, load, figures), flush=True)
            if arguments.cuts:
                print(describe_cuts(*figures), flush=True)


def run_pair(arguments: argparse.Namespace, interval: int, load: int) -> list[dict[str, Any]]:
    """Run both nodes beside *load* busy processes."""
    command = [sys.executable, __file__, "--interval", str(interval)]
    for name in ("ends", "seconds", "realtime", "loop", "port"):
        command += [f"--{name}", str(getattr(arguments, name))]
    if arguments.cuts:
        command.append("--cuts")
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


class Cuttable(UdpSessions):
    """Sessions whose packets can be made to vanish, as on a link that drops in one direction."""

    def __init__(self, core: Sessions, wires: dict[str, Wire]) -> None:
        super().__init__(core, wires, on_mark=lambda mark, at_ns: None)
        self.cut_ns: dict[str, int] = {}
        self.down_ns: dict[str, list[int]] = {port: [] for port in wires}

    def _carry_out(self, commands: list[SessionCommand]) -> None:
        if self.cut_ns:
            commands = [one for one in commands if not (isinstance(one, Send) and one.port in self.cut_ns)]
        super()._carry_out(commands)

    async def cut_one_after_the_other(self, seconds: int, rng: Random) -> None:
        """Cut a port's sending for good every so often, at instants that fall anywhere in an interval."""
        for port in sorted(self.ports):
            await asyncio.sleep(seconds / len(self.ports) * (0.5 + rng.random() / 2))
            self.cut_ns[port] = time.monotonic_ns()


async def run_node(arguments: argparse.Namespace) -> dict[str, Any]:
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
    shell = Cuttable(core, wires)
    down_count = 0

    def count(change: SessionUp | SessionDown) -> None:
        nonlocal down_count
        if isinstance(change, SessionDown):
            down_count += 1
            shell.down_ns[change.port].append(time.monotonic_ns())

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
    if arguments.cuts and arguments.node == 0:
        await shell.cut_one_after_the_other(arguments.seconds - 1, Random(0))
    await asyncio.sleep(wall_s + arguments.seconds - time.monotonic())
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
        "cut_ns": shell.cut_ns,
        "down_ns": shell.down_ns,
    }
    # The goodbye may come while the other still counts: it is no loss of a session.
    shell.stop()
    return figures


def describe_cuts(sender: dict[str, Any], receiver: dict[str, Any]) -> str:
    """Return how long after its cut each end knew. Both processes read the same clock."""

    cuts = list(sender["cut_ns"].items())

    def quantiles(end: dict[str, Any]) -> str:
        first = {port: [down_ns for down_ns in end["down_ns"][port] if down_ns >= at_ns][:1] for port, at_ns in cuts}
        waits = sorted((first[port][0] - at_ns) / MS for port, at_ns in cuts if first[port])
        median, p95 = (waits[min(len(waits) - 1, int(share * len(waits)))] for share in (0.5, 0.95))
        return f"{len(waits)} known after {median:.1f} / {p95:.1f} / {waits[-1]:.1f} ms"

    return (
        f"    {len(cuts)} cuts of one direction (median / p95 / maximum):"
        f" deaf end {quantiles(receiver)}, other end {quantiles(sender)}"
    )


def describe(interval: int, load: int, figures: list[dict[str, Any]]) -> str:
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
