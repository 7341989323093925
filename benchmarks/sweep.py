"""How long does it take to know what every single failure cuts: `erfs sweep` beside the same question through networkx?

    python benchmarks/sweep.py FABRIC                        such as an ibnetdiscover dump of 666 switches
    python benchmarks/sweep.py FABRIC --links 20 --switches 10 --seed 1

Both answer: how many ordered pairs of endpoints lose every permitted path when this trunk, or this switch, fails. networkx walks a copy of the
fabric without what failed, from each leaf (parallel trunks are one edge; up and down are two layers where valleys are forbidden). It
does so for a sample, drawn with the seed, and its time for all is the mean of each kind times their number. `erfs sweep` is timed as a
whole process, from reading the file to the last byte of JSON, with one worker and with its default; it answers for all access links, what repairs
each failure and what capacity is left as well. The two must agree on every failure of the sample, or there is no table.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx

from erfs.fabric import Fabric, Link, goes_up, is_valley_free_required
from erfs.ids import NodeId
from erfs.importers import load_fabric

Layered = tuple[NodeId, int]  # a switch, and 1 once the path went down


def main() -> None:
    """Time both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fabric", type=Path)
    parser.add_argument("--links", type=int, default=12, help="trunks that networkx fails")
    parser.add_argument("--switches", type=int, default=12, help="switches that networkx fails")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3, help="runs of erfs, of which the median counts")
    asked = parser.parse_args()
    fabric = load_fabric(asked.fabric).fabric
    if any(len(homes) > 1 for homes in fabric.attachments.values()):
        sys.exit("this comparison is for fabrics whose endpoints attach to one switch each")

    ours_s, ours = erfs_sweep(asked.fabric, asked.runs, ())
    alone_s, _ = erfs_sweep(asked.fabric, asked.runs, ("--jobs", "1"))
    lost = {
        outcome["id"]: outcome["demands_cut"] + outcome["demands_cut_by_policy"] + outcome["demands_detached"]
        for outcome in ours["outcomes"]
    }
    peer = Peer(fabric)
    random = Random(asked.seed)
    trunks = random.sample(fabric.trunks, min(asked.links, len(fabric.trunks)))
    switches = random.sample([node.id for node in fabric.switches], min(asked.switches, len(fabric.switches)))
    link_s = [seconds_of(peer, trunk, lost[trunk.id]) for trunk in trunks]
    switch_s = [seconds_of(peer, switch, lost[switch]) for switch in switches]
    theirs_s = statistics.mean(link_s) * len(fabric.trunks) + statistics.mean(switch_s) * len(fabric.switches)

    failures = f"{len(fabric.trunks):,} trunks and {len(fabric.switches):,} switches"
    print(f"{fabric.name}: {failures}, {len(fabric.class_members):,} leaves, {ours['fabric']['demands']:,} demands.")
    print(
        f"networkx {nx.__version__}: {len(link_s)} trunks and {len(switch_s)} switches measured, the rest extrapolated;"
    )
    print("both agree on how many demands each of these cuts.\n")
    print("| what | failures answered | one trunk | one switch | all | ratio |")
    print("|---|---|---|---|---|---|")
    print(
        f"| networkx, one process | {len(link_s) + len(switch_s)} measured | {1000 * statistics.mean(link_s):,.0f} ms"
        f" | {1000 * statistics.mean(switch_s):,.0f} ms | {theirs_s:,.0f} s (extrapolated) | 1 |"
    )
    for name, taken_s in (("erfs sweep --jobs 1", alone_s), ("erfs sweep", ours_s)):
        count = len(ours["outcomes"])
        print(f"| {name}, whole process | {count:,} measured | - | - | {taken_s:.2f} s | {theirs_s / taken_s:,.0f} |")


def erfs_sweep(path: Path, runs: int, options: tuple[str, ...]) -> tuple[float, dict[str, Any]]:
    """Return the median seconds of `erfs sweep` on the file, and what it printed."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "erfs", "sweep", str(path), "--kinds", "link,node", "--json", *options],
            capture_output=True,
            check=True,
        )
        taken.append(time.perf_counter() - started)
    return statistics.median(taken), json.loads(done.stdout)


class Peer:
    """The same question through networkx."""

    def __init__(self, fabric: Fabric) -> None:
        self.is_layered = is_valley_free_required(fabric)
        self.count = Counter(homes[0] for homes in fabric.attachments.values() if homes)
        self.parallel = Counter(frozenset(end.node for end in link.ends) for link in fabric.trunks)
        self.graph: nx.DiGraph[Layered] = nx.DiGraph()
        for node in fabric.switches:
            self.graph.add_nodes_from(self._layers(node.id))
        for link in fabric.trunks:
            for end in link.ends:
                self.graph.add_edges_from(self._edges(fabric, link, end.node))
        self.fabric = fabric
        self.before = self._connected(self.graph)

    def _layers(self, switch: NodeId) -> list[Layered]:
        return [(switch, 0), (switch, 1)] if self.is_layered else [(switch, 0)]

    def _edges(self, fabric: Fabric, link: Link, near: NodeId) -> list[tuple[Layered, Layered]]:
        far = link.far_end(near).node
        if not self.is_layered:
            return [((near, 0), (far, 0))]
        if goes_up(fabric, link, near):
            return [((near, 0), (far, 0))]
        return [((near, 0), (far, 1)), ((near, 1), (far, 1))]

    def _connected(self, graph: "nx.DiGraph[Layered]") -> int:
        """Return how many ordered pairs of endpoints a path joins."""
        demands = 0
        for leaf, weight in self.count.items():
            if (leaf, 0) in graph:
                reached = {switch for switch, _ in nx.descendants(graph, (leaf, 0))} | {leaf}
                demands += weight * (sum(self.count[switch] for switch in reached if switch in self.count) - 1)
        return demands

    def lost(self, failure: Link | NodeId) -> int:
        """Return how many demands one failure cuts."""
        graph = self.graph.copy()
        if isinstance(failure, Link):
            if self.parallel[frozenset(end.node for end in failure.ends)] == 1:
                for end in failure.ends:
                    graph.remove_edges_from(self._edges(self.fabric, failure, end.node))
        else:
            graph.remove_nodes_from(self._layers(failure))
        return self.before - self._connected(graph)


def seconds_of(peer: Peer, failure: Link | NodeId, expected: int) -> float:
    """Return how long networkx takes for one failure. Ends the program if it disagrees with *expected*."""
    started = time.perf_counter()
    lost = peer.lost(failure)
    taken = time.perf_counter() - started
    if lost != expected:
        name = failure.id if isinstance(failure, Link) else failure
        sys.exit(f"{name}: erfs says {expected:,} demands are cut, networkx says {lost:,}")
    return taken


if __name__ == "__main__":
    main()
