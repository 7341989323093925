"""How fast is the path engine, beside networkx and rustworkx on the same fabrics in the same run?

    python benchmarks/paths.py                                fat-trees of k = 8, 16, 32 and 48, and the Selene compute fabric
    python benchmarks/paths.py --sizes 8,16 --rounds 3        a quick look
    python benchmarks/paths.py --markdown docs/benchmarks.md  the tables, written between the markers of that file

Every answer is compared with the peers' once for each fabric: a wrong answer ends the benchmark with exit code 1. A missed target does not.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import networkx as nx
import numpy as np
import rustworkx as rx

from benchmarks.engine import (
    Armed,
    Bench,
    Chain,
    Protecting,
    State,
    check_updates,
    count_armed,
    count_armed_without_programs,
)
from benchmarks.timing import (
    ROOT,
    Series,
    begin_anew_if_misled,
    duration,
    in_turns,
    load_now,
    machine_facts,
    markdown_table,
    timed_s,
    write_between_markers,
)
from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.importers import load_fabric
from erfs.messages import Program
from erfs.paths import compute

SELENE: Final = ROOT.parent / "shared/topologies/ibnetdiscover_selene_compute_666sw.txt.xz"
PACKAGES: Final = ("numpy", "networkx", "rustworkx")
MARKERS: Final = "paths"
# Different links cut and restored in each round.
LINKS_A_ROUND: Final = 3
CHILD_SECONDS_MAX: Final = 900


# --- what is measured ---
@dataclass
class Result:
    """All figures of one fabric; times in seconds, medians. None: not measured at this size."""

    fabric: str
    switches: int
    trunks: int
    classes: int
    next_hops_s: float
    weights_s: float
    worn_weights_s: float
    cut_s: float
    restore_s: float
    door_s: float
    networkx_s: float | None = None
    networkx_answer: str = ""
    rustworkx_s: float | None = None
    rustworkx_answer: str = ""
    arming_s: float | None = None
    changes_s: float | None = None
    unprotected_s: float | None = None
    failures: int = 0
    rearm_s: float | None = None
    new_changes_s: float | None = None
    new_unprotected_s: float | None = None
    programs_s: float | None = None
    new_programs_s: float | None = None
    armed: Armed | None = None
    spread: dict[str, str] = field(default_factory=dict)

    @property
    def incremental_s(self) -> float:
        """A cut and a restoration, on the average."""
        return (self.cut_s + self.restore_s) / 2

    @property
    def full_s(self) -> float:
        """Everything that a computation from nothing takes."""
        return self.next_hops_s + self.weights_s


def measure(bench: Bench, options: argparse.Namespace, size: int) -> Result:
    """Run everything on one fabric, in turns."""
    state = State(bench)
    hops = state.hops
    trunks = bench.random_trunks((options.rounds + 1) * LINKS_A_ROUND)
    worn = bench.hops_without(bench.random_trunks(math.ceil(bench.trunk_count / 100)))
    cuts: list[float] = []
    restorations: list[float] = []
    doors: list[float] = []
    rearmed: list[float] = []
    rewritten: list[float] = []
    listed: list[float] = []
    check_updates(bench, trunks[0])
    chain = Chain(bench, is_protecting=False)

    def a_few_links() -> None:
        for _ in range(LINKS_A_ROUND):
            trunk = trunks[len(cuts) % len(trunks)]
            cuts.append(timed_s(partial(bench.change, state, trunk, is_usable=False)))
            restorations.append(timed_s(partial(bench.change, state, trunk, is_usable=True)))
            doors.append(timed_s(partial(chain.follow, frozenset({bench.topology.trunks[trunk].id}))))
            chain.follow(frozenset())

    answers: dict[str, Any] = {}
    tasks: dict[str, Callable[[], object]] = {
        "next hops": bench.next_hops,
        "weights": lambda: bench.weights(hops),
        "weights, worn": lambda: bench.weights(worn),
        "links": a_few_links,
    }
    if size <= options.networkx_to:
        plain, starts = bench.networkx_graph(), bench.sole_attachments()
        tasks["networkx"] = lambda: answers.update(networkx=[nx.predecessor(plain, start) for start in starts])
    if size <= options.rustworkx_to:
        graph = bench.rustworkx_graph()
        tasks["rustworkx"] = lambda: answers.update(
            rustworkx=rx.graph_distance_matrix(graph, parallel_threshold=10**9, null_value=-1.0)
        )
    if size <= options.protection_to:
        protecting = Protecting(bench)
        armed_chain = Chain(bench, is_protecting=True)

        def one_event() -> None:
            link = bench.topology.trunks[trunks[len(rearmed) % len(trunks)]].id
            armed_chain.follow(frozenset({link}))
            rearmed.append(timed_s(armed_chain.rearm))
            rewritten.append(timed_s(armed_chain.write_changes))
            listed.append(timed_s(armed_chain.list_unprotected))
            armed_chain.follow(frozenset())
            armed_chain.rearm()

        tasks["one event"] = one_event
        tasks["arming"] = protecting.arm
        tasks["changes"] = protecting.write_changes
        tasks["unprotected"] = protecting.list_unprotected
    taken = in_turns(tasks, options.rounds)
    result = Result(
        fabric=bench.name,
        switches=bench.switch_count,
        trunks=bench.trunk_count,
        classes=bench.class_count,
        next_hops_s=taken["next hops"].median_s,
        weights_s=taken["weights"].median_s,
        worn_weights_s=taken["weights, worn"].median_s,
        cut_s=Series.without_first(cuts, LINKS_A_ROUND).median_s,
        restore_s=Series.without_first(restorations, LINKS_A_ROUND).median_s,
        door_s=Series.without_first(doors, LINKS_A_ROUND).median_s,
        rearm_s=Series.without_first(rearmed, 1).median_s if rearmed else None,
        new_changes_s=Series.without_first(rewritten, 1).median_s if rewritten else None,
        new_unprotected_s=Series.without_first(listed, 1).median_s if listed else None,
        spread={
            **{name: series.spread for name, series in taken.items() if name not in ("links", "one event")},
            "cut": Series.without_first(cuts, LINKS_A_ROUND).spread,
            "restore": Series.without_first(restorations, LINKS_A_ROUND).spread,
        },
    )
    if "networkx" in taken:
        result.networkx_s = taken["networkx"].median_s
        result.networkx_answer = bench.compare_with_networkx(hops, answers["networkx"])
    if "rustworkx" in taken:
        result.rustworkx_s = taken["rustworkx"].median_s
        result.rustworkx_answer = bench.compare_with_rustworkx(hops, answers["rustworkx"])
    if "arming" in taken:
        result.failures = protecting.failure_count
        result.arming_s = taken["arming"].median_s
        result.changes_s = taken["changes"].median_s
        result.unprotected_s = taken["unprotected"].median_s
    return result


# Switches of each tier whose entries are written out where all programs are too many.
ARMED_SAMPLE = 12


# --- programs --------------------------------------------------------------------------------------------------------------
def measure_programs(bench: Bench, result: Result) -> None:
    """Build all programs, cut one cable and build them again: what is armed, and what re-arming takes."""
    programs: dict[NodeId, Program] = {}
    result.programs_s = timed_s(lambda: programs.update(compute(bench.topology, unusable=frozenset()).programs))
    result.armed = count_armed(programs, bench.topology)
    again = []
    for trunk in bench.random_trunks(3):
        cut = frozenset({bench.topology.trunks[trunk].id})
        again.append(timed_s(partial(compute, bench.topology, unusable=cut)))
        compute(bench.topology, unusable=frozenset())
    result.new_programs_s = statistics.median(again)


# --- memory ---
def print_peaks(k: int) -> None:
    """Do one stage after the other and print how much memory the process had at most so far. For a process of its own."""

    def peak(stage: str) -> None:
        print(json.dumps([stage, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), flush=True)

    peak("interpreter and packages")
    bench = Bench(f"fat-tree k={k}", generate("fat-tree", {"k": k}), 0)
    peak("fabric and topology")
    state = State(bench)
    peak("next hops and weights")
    bench.change(state, 0, is_usable=False)
    bench.change(state, 0, is_usable=True)
    peak("a link cut and restored")
    del state
    protecting = Protecting(bench)
    peak("arming")
    protecting.write_changes()
    peak("changes written out")


def measure_peaks(k: int, seconds: float) -> dict[str, int]:
    """Return the peak memory after each stage, in bytes; a stage that does not end within *seconds* is missing."""
    child = subprocess.Popen([sys.executable, __file__, "--peak-child", str(k)], stdout=subprocess.PIPE, text=True)
    try:
        text, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        text, _ = child.communicate()
    finally:
        child.kill()
        child.wait()
    return dict(json.loads(line) for line in text.splitlines() if line.endswith("]"))


# --- what comes out ----------------------------------------------------------------------------------------------------------
@dataclass
class Target:
    """One claim, and whether it holds here."""

    claim: str
    wanted: str
    measured: str
    is_met: bool | None

    @property
    def verdict(self) -> str:
        """For people."""
        return {True: "met", False: "**missed**", None: "not measured"}[self.is_met]


def at_least(claim: str, wanted: float, ratio: float | None) -> Target:
    """Return the target of being so many times faster."""
    is_met = None if ratio is None else ratio >= wanted
    return Target(claim, f">= {wanted:g} x", "-" if ratio is None else f"{ratio:.3g} x", is_met)


def at_most(claim: str, wanted: float, ratio: float | None) -> Target:
    """Return the target of taking no more than so many times as long."""
    is_met = None if ratio is None else ratio <= wanted
    return Target(claim, f"<= {wanted:g} x", "-" if ratio is None else f"{ratio:.4g} x", is_met)


def added(one: float | None, other: float | None) -> float | None:
    """Return the sum, if both were measured."""
    return None if one is None or other is None else one + other


def over(slow: float | None, fast: float | None) -> float | None:
    """Return the ratio, if both were measured."""
    return None if slow is None or fast is None else slow / fast


def targets_of(results: dict[str, Result], peaks: dict[str, int]) -> list[Target]:
    """Return every target whose fabric was asked for."""
    found: list[Target] = []

    def of(k: int) -> Result | None:
        return results.get(f"fat-tree k={k}")

    if (one := of(16)) is not None:
        found.append(at_least("next hops against networkx, k=16", 100, over(one.networkx_s, one.next_hops_s)))
    for k, wanted in ((32, 2), (48, 3)):
        if (one := of(k)) is not None:
            ratio = over(one.rustworkx_s, one.next_hops_s)
            found.append(at_least(f"next hops against rustworkx's distances, k={k}", wanted, ratio))
    for one in results.values():
        ratio = over(one.weights_s, one.next_hops_s)
        found.append(at_most(f"weights against next hops, {one.fabric}", 1, ratio))
    if (one := of(48)) is not None:
        found.append(at_least("one link brought up to date against all anew, k=48", 50, one.full_s / one.incremental_s))
    for k in (16, 32):
        if (one := of(k)) is not None:
            of_all = one.failures * one.full_s if one.failures else None
            written_s = added(one.arming_s, one.changes_s)
            found.append(at_most(f"arming against failures x all anew, k={k}", 1 / 50, over(one.arming_s, of_all)))
            claim = f"arming with every change written out against failures x all anew, k={k}"
            found.append(at_most(claim, 1 / 50, over(written_s, of_all)))
    for one in results.values():
        if one.rearm_s is not None:
            link_s = one.incremental_s
            found.append(
                at_most(f"re-arming against one link brought up to date, {one.fabric}", 10, one.rearm_s / link_s)
            )
            claim = f"re-arming with the changes written out against one link brought up to date, {one.fabric}"
            found.append(at_most(claim, 10, over(added(one.rearm_s, one.new_changes_s), link_s)))
    if peaks:
        highest = peaks.get("changes written out")
        measured = f"{highest / 1e9:.2f} GB" if highest is not None else "did not end in the time allowed"
        found.append(Target("peak memory, k=48", "<= 1 GB", measured, highest is not None and highest <= 1e9))
    return found


def growth(results: dict[str, Result], figure: Callable[[Result], float | None]) -> str:
    """Return the exponent of *figure* in the number of links, over the fat-trees; by least squares of the logarithms."""
    points = [
        (one.trunks, value) for one in results.values() if one.fabric.startswith("fat") and (value := figure(one))
    ]
    if len(points) < 2:
        return "-"
    slope, _ = np.polyfit([math.log(links) for links, _ in points], [math.log(value) for _, value in points], 1)
    return f"{slope:.2f}"


def shown(seconds: float | None) -> str:
    """Return a duration, or that there is none."""
    return "-" if seconds is None else duration(seconds)


def report(
    results: dict[str, Result], targets: list[Target], peaks: dict[str, int], facts: dict[str, str], rounds: int
) -> str:
    """Return everything as Markdown, which reads well on a terminal, too."""
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    parts = [f"{told}; {rounds} rounds, medians of processor time.", engine_table(results), peers_table(results)]
    growths = {
        "next hops": growth(results, lambda one: one.next_hops_s),
        "weights": growth(results, lambda one: one.weights_s),
        "one link": growth(results, lambda one: one.incremental_s),
        "arming": growth(results, lambda one: one.arming_s),
        "changes written out": growth(results, lambda one: one.changes_s),
        "networkx": growth(results, lambda one: one.networkx_s),
        "rustworkx": growth(results, lambda one: one.rustworkx_s),
    }
    grown = ", ".join(f"{name} {exponent}" for name, exponent in growths.items())
    parts.append(f"Growth in the number of links (exponent, fat-trees): {grown}.")
    if any(one.arming_s is not None for one in results.values()):
        parts.append(protection_table(results))
    if any(one.armed is not None for one in results.values()):
        parts.append(armed_table(results))
    if peaks:
        rows = [[stage, f"{size / 1e6:,.0f} MB"] for stage, size in peaks.items()]
        parts.append(markdown_table(["peak memory at k=48, so far", "bytes"], rows))
    rows = [[one.claim, one.wanted, one.measured, one.verdict] for one in targets]
    parts.append(markdown_table(["target", "wanted", "measured", "verdict"], rows))
    return "\n\n".join(parts)


def engine_table(results: dict[str, Result]) -> str:
    """Return what each part of the engine takes."""
    header = ["fabric", "switches", "links", "classes", "next hops", "weights", "weights, 1 % of links cut"]
    header += ["link cut", "link restored", "link cut, through `Situation`"]
    rows = []
    for one in results.values():
        row = [one.fabric, f"{one.switches:,}", f"{one.trunks:,}", f"{one.classes:,}"]
        row += [duration(one.next_hops_s), duration(one.weights_s), duration(one.worn_weights_s)]
        rows.append([*row, duration(one.cut_s), duration(one.restore_s), duration(one.door_s)])
    return markdown_table(header, rows)


def protection_table(results: dict[str, Result]) -> str:
    """Return what protection takes, from nothing and after one link was cut."""
    header = ["fabric", "failures", "arming", "changes written out", "what is unprotected"]
    header += ["re-arming", "changes written out", "what is unprotected", "all programs", "programs after a cut"]
    rows = []
    for one in results.values():
        if one.arming_s is not None:
            row = [one.fabric, f"{one.failures:,}", shown(one.arming_s), shown(one.changes_s), shown(one.unprotected_s)]
            row += [shown(one.rearm_s), shown(one.new_changes_s), shown(one.new_unprotected_s)]
            rows.append([*row, shown(one.programs_s), shown(one.new_programs_s)])
    return markdown_table(header, rows)


def peers_table(results: dict[str, Result]) -> str:
    """Return how the peers do."""
    header = ["fabric", "next hops", "networkx", "ratio", "its answer"]
    header += ["rustworkx", "ratio", "ratio per start", "its answer"]
    rows = []
    for one in results.values():
        row = [one.fabric, duration(one.next_hops_s)]
        row += [shown(one.networkx_s), times(over(one.networkx_s, one.next_hops_s)), one.networkx_answer or "-"]
        row += [shown(one.rustworkx_s), times(over(one.rustworkx_s, one.next_hops_s)), times(per_start(one))]
        rows.append([*row, one.rustworkx_answer or "-"])
    return markdown_table(header, rows)


def armed_table(results: dict[str, Result]) -> str:
    """Return what the programs hold ready."""
    header = ["fabric", "agents", "armed bytes per switch", "messages per link failure", "group flips per link failure"]
    header += ["messages per switch failure", "group flips per switch failure"]
    rows = []
    for result in results.values():
        one = result.armed
        if one is not None:
            row = [result.fabric, f"{one.agents:,}", f"{one.bytes_median:,} (max {one.bytes_max:,})"]
            row += [f"{one.link_messages_median:g} (max {one.link_messages_max:,})"]
            row += [f"{one.link_flips_median:g} (max {one.link_flips_max:,})"]
            row += [f"{one.switch_messages_median:g} (max {one.switch_messages_max:,})"]
            rows.append([*row, f"{one.switch_flips_median:g} (max {one.switch_flips_max:,})"])
    return markdown_table(header, rows)


def per_start(one: Result) -> float | None:
    """rustworkx searches from every switch, we from the classes only: the ratio as if it could leave the others out."""
    ratio = over(one.rustworkx_s, one.next_hops_s)
    return None if ratio is None else ratio * one.classes / one.switches


def times(ratio: float | None) -> str:
    """Return a ratio, or that there is none."""
    return "-" if ratio is None else f"{ratio:.3g} x"


# --- the program -------------------------------------------------------------------------------------------------------------
def main() -> None:
    """Measure what is asked for and print it."""
    options = parse()
    if options.peak_child:
        print_peaks(options.peak_child)
        return
    begin_anew_if_misled()
    facts = machine_facts(PACKAGES) | {"load before": load_now()}
    peaks: dict[str, int] = {}
    # First of all: Linux counts what the parent has when it starts a child as the child's, too.
    if 48 in options.sizes:
        tell("peak memory at k=48")
        peaks = measure_peaks(48, options.peak_seconds)
    results: dict[str, Result] = {}
    for k in options.sizes:
        tell(f"fat-tree k={k}")
        run(Bench(f"fat-tree k={k}", generate("fat-tree", {"k": k}), options.seed), options, k, results)
    if not options.no_selene:
        if SELENE.exists():
            tell("Selene compute")
            bench = Bench("Selene compute", read_selene(), options.seed)
            run(bench, options, 16, results)  # as many switches as between k=16 and k=32
        else:
            tell(f"skipped: the Selene compute fabric is not at {SELENE.relative_to(ROOT.parent)}")
    facts["load after"] = load_now()
    targets = targets_of(results, peaks)
    if options.json:
        told: dict[str, Any] = {"machine": facts, "rounds": options.rounds}
        told |= {"results": [asdict(one) for one in results.values()], "peaks": peaks}
        print(json.dumps(told | {"targets": [asdict(one) for one in targets]}, indent=1))
        return
    text = report(results, targets, peaks, facts, options.rounds)
    print(text)
    if options.markdown is not None:
        write_between_markers(options.markdown, MARKERS, text)


def run(bench: Bench, options: argparse.Namespace, size: int, results: dict[str, Result]) -> None:
    """Measure one fabric."""
    result = results[bench.name] = measure(bench, options, size)
    if size <= options.programs_to:
        measure_programs(bench, result)
    else:
        result.armed = count_armed_without_programs(bench, ARMED_SAMPLE)


def read_selene() -> Fabric:
    """Return the fabric that NVIDIA's Selene cluster was in 2021, with its faults."""
    return load_fabric(SELENE, is_lenient=True).fabric


def tell(what: str) -> None:
    """Say on standard error what is going on."""
    print(what, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[8, 16, 32, 48],
        help="k, one or several",
    )
    parser.add_argument("--rounds", type=int, default=7, help="of which the medians are taken")
    parser.add_argument("--seed", type=int, default=1, help="for the links that are cut")
    parser.add_argument("--networkx-to", type=int, default=32, metavar="K", help="largest size that networkx computes")
    parser.add_argument(
        "--rustworkx-to", type=int, default=48, metavar="K", help="largest size that rustworkx computes"
    )
    parser.add_argument("--protection-to", type=int, default=32, metavar="K", help="largest size that is protected")
    parser.add_argument(
        "--programs-to", type=int, default=16, metavar="K", help="largest size that programs are built for"
    )
    parser.add_argument("--no-selene", action="store_true", help="leave the Selene compute fabric out")
    parser.add_argument(
        "--peak-seconds", type=float, default=CHILD_SECONDS_MAX, help="for the run that measures memory"
    )
    parser.add_argument("--peak-child", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--markdown", type=Path, help="write the tables into this file, between its markers")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
