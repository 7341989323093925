"""How fast does the Linux driver change the kernel, and how fast do others? As root, in namespaces of its own.

    python benchmarks/kernel_flip.py
    python benchmarks/kernel_flip.py --trials 200 --destinations 512

Medians and 95th percentiles in microseconds. The last lines are the peers: the same change by other means, same run.
"""

import argparse
import select
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyroute2 import IPRoute

from erfs.addressing import Addressing
from erfs.aio.namespaces import inside
from erfs.ids import DestinationId
from erfs_agent.core import WriteRoutes
from erfs_agent.drivers import netlink
from erfs_agent.drivers.kernel_objects import PutGroup, Stamp
from erfs_agent.drivers.netlink_socket import RequestSocket

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from kernel.bench import E1, E2, E3, A, Bench, bench  # type: ignore[import-not-found]


def main() -> None:
    """Run everything and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--destinations", type=int, default=512, help="of a large switch, each with a group of its own")
    arguments = parser.parse_args()
    with bench() as here:
        seen, flipped = lost_carriers(here, arguments.trials)
        show("peer set down -> carrier event seen", seen)
        show("peer set down -> one group flipped, acknowledged", flipped)
        show("one group flipped through the driver", flips(here, arguments.trials))
        show("the same, its bytes alone (made and sent)", raw_flips(here, arguments.trials))
        show("peer: pyroute2 route replace", pyroute2_replaces(here, arguments.trials))
        show("peer: `ip nexthop replace`", commands(here, arguments.trials))
    with bench() as here:
        for text, found in many(here, arguments.destinations, arguments.trials).items():
            show(f"{arguments.destinations} destinations: {text}", found)


def show(text: str, times_ns: list[int]) -> None:
    """Print one line."""
    ordered = sorted(times_ns)
    median, high = statistics.median(ordered) / 1000, ordered[int(len(ordered) * 0.95)] / 1000
    print(f"{text:62} median {median:9.1f}  p95 {high:9.1f}  n {len(ordered)}", flush=True)


def timed(action: Callable[[], object], trials: int) -> list[int]:
    """Return how long each of some trials takes."""
    found = []
    for _ in range(trials):
        began = time.monotonic_ns()
        action()
        found.append(time.monotonic_ns() - began)
    return found


def lost_carriers(here: Bench, trials: int) -> tuple[list[int], list[int]]:
    """Return the times from the call that sets the peer down to the event, and to the acknowledged flip."""
    seen, flipped = [], []
    for _ in range(trials):
        here.write_well({A: (E1, E2)})
        done: list[int] = []

        def react(port: str, oper_up: bool, done: list[int] = done) -> None:
            done.append(time.monotonic_ns())
            here.write_well({A: (E3,)})
            done.append(time.monotonic_ns())

        here.driver.on_port = react
        began = time.monotonic_ns()
        here.far.set_up("e1", False)
        while not done:
            select.select([here.driver.event_fileno()], [], [])
            here.driver.read_events()
        seen.append(done[0] - began)
        flipped.append(done[1] - began)
        here.driver.on_port = lambda port, oper_up: None
        here.mend("e1")
    return seen, flipped


def flips(here: Bench, trials: int) -> list[int]:
    """Return the times of a group's change through the whole driver."""
    turns = [{A: (E1, E2)}, {A: (E3,)}] * trials
    changes = iter([WriteRoutes(index, routes, ()) for index, routes in enumerate(turns)])
    return timed(lambda: here.driver.write(next(changes)), trials)


def gateways(here: Bench) -> list[int]:
    """Return the numbers of the objects that lead somewhere."""
    return [id_ for id_, found in here.objects().items() if "group" not in found and "blackhole" not in found]


def raw_flips(here: Bench, trials: int) -> list[int]:
    """Return the times of a group's change as bytes and system calls alone."""
    stamp = Stamp(229, 10)
    group = next(id_ for id_, found in here.objects().items() if "group" in found)
    hops = gateways(here)
    with inside(here.here.path):
        requests = RequestSocket()
    turns = iter([((hops[0], 1), (hops[1], 1)), ((hops[2], 1),)] * trials)

    def flip() -> None:
        (said,) = requests.ask([netlink.encode(PutGroup(group, next(turns), is_new=False), stamp, requests.next_seq())])
        assert not said.error

    return timed(flip, trials)


def pyroute2_replaces(here: Bench, trials: int) -> list[int]:
    """Return the times of a route's replacement through pyroute2."""
    with inside(here.here.path):
        ipr = IPRoute()
    index = here.driver._core.ifindex("e2")  # noqa: SLF001 -- a benchmark may look
    try:
        return timed(lambda: ipr.route("replace", dst="10.50.0.0/24", oif=index, priority=77), trials)
    finally:
        ipr.close()


def commands(here: Bench, trials: int) -> list[int]:
    """Return the times of a group's change by a command, started in the namespace."""
    hops = gateways(here)
    here.here(f"ip nexthop add id 50 group {hops[0]}")
    return timed(lambda: here.here(f"ip nexthop replace id 50 group {hops[1]}"), trials)


def many(here: Bench, count: int, trials: int) -> dict[str, list[int]]:
    """Return the times of events and changes that concern all destinations of a large switch."""
    names = [DestinationId(f"@{index}") for index in range(count)]
    destinations = {
        name: [f"10.{index >> 8}.{index & 255}.0/24", f"fd00:{index:x}::/32"] for index, name in enumerate(names)
    }
    here.addressing = Addressing.model_validate({"destinations": destinations, "nodes": {}})
    here.restart()
    both, other = dict.fromkeys(names, (E1, E2)), dict.fromkeys(names, (E2,))
    found: dict[str, list[int]] = {"all routes made": timed(lambda: here.write_well(both), 1)}
    found["all groups changed"] = timed(lambda: (here.write_well(other), here.write_well(both)), trials // 10 + 1)
    found["all groups changed"] = [value // 2 for value in found["all groups changed"]]
    losses, changes = [], []
    for _ in range(trials // 10 + 1):
        began = time.monotonic_ns()
        here.far.set_up("e1", False)
        here.until(lambda: not here.driver.ports()["e1"])
        losses.append(time.monotonic_ns() - began)
        changes += timed(lambda: here.write_well(other), 1)
        here.mend("e1")
        here.write_well(both)
    found["carrier lost -> event seen, books kept"] = losses
    found["then the agent's change, which the kernel has made already"] = changes
    found["a new driver reads everything"] = timed(lambda: here.restart(), 5)
    return found


if __name__ == "__main__":
    main()
