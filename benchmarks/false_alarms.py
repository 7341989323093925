"""Do liveness sessions cry wolf beside another program that never rests? On the fabric of `benchmarks/recovery.py`. As root.

    python benchmarks/false_alarms.py                          10 minutes at 10 ms x 3, 10 minutes at 3 ms x 3, one core loaded
    python benchmarks/false_alarms.py --minutes 2 --interval-ms 10 --loaded 2 --pods 4

A k=4 fat-tree of network namespaces, with broker, controller and an agent process for each node; nothing fails. One line a run: sessions, how
many of them went down, how often an observer that was late itself put a judgement off, and the machine's load. Exit code 1: one went down.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter

from benchmarks.recovery_systems import Erfs, bench_of, fabric_of, watched_links
from benchmarks.sessions import busy
from benchmarks.timing import fail, load_now
from erfs.fabric import Medium
from erfs.units import MS, SECOND
from erfs_scenario.kernel.lab import why_not


def main() -> None:
    """Run each interval in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--interval-ms", type=float, nargs="*", default=[10.0, 3.0], help="one or several")
    parser.add_argument("--loaded", type=int, default=1, help="programs that never rest")
    parser.add_argument("--pods", type=int, default=1, choices=range(1, 5), help="where links have sessions")
    arguments = parser.parse_args()
    if reason := why_not():
        fail(reason)
    is_quiet = True
    for interval_ms in arguments.interval_ms:
        told = watch(round(interval_ms * MS), round(60 * arguments.minutes), arguments.loaded, arguments.pods)
        is_quiet &= not told["session_down"]
        print(
            f"{interval_ms:g} ms x 3, {arguments.minutes:g} minutes, {arguments.loaded} loaded: {told['session_down']} of"
            f" {told['sessions']} session ends went down, {told['own_lateness_noticed']} late observers put a judgement off,"
            f" load {load_now()}",
            flush=True,
        )
    sys.exit(not is_quiet)


def watch(interval_ns: int, seconds: int, loaded: int, pods: int) -> Counter[str]:
    """Return how many sessions there are, and what happened to them within so many seconds."""
    fabric = fabric_of(4, Medium.LOSSY)
    links = watched_links(fabric, pods)
    with bench_of(fabric, "erfs-false-alarms-") as (spaces, folder, runner):
        system = Erfs(spaces, folder, links, name="ERFS", interval_ns=interval_ns)
        found = runner.run(_watch(system, seconds, loaded))
    found["sessions"] = 2 * len(links)
    return found


async def _watch(system: Erfs, seconds: int, loaded: int) -> Counter[str]:
    try:
        await system.start(lambda text: print(text, file=sys.stderr, flush=True))
        await system.settle()
        since_ns = time.monotonic_ns() + SECOND
        with busy(loaded, seconds + 5):
            await asyncio.sleep(seconds + 1)
        return Counter(event for at_ns, event, _ in system.read_marks() if at_ns >= since_ns)
    finally:
        await system.stop()


if __name__ == "__main__":
    main()
