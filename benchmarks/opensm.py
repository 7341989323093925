"""How long does OpenSM calculate routes after a cable is cut, beside ERFS on the same fabric in the same run?

    python benchmarks/opensm.py                                    fat-trees of k = 8 and 16; minhop, updn and ftree; 5 cuts each
    python benchmarks/opensm.py --sizes 8 --engines minhop --cuts 3
    python benchmarks/opensm.py --markdown docs/benchmarks.md      the table, written between the markers of that file

OpenSM runs on ibsim, a simulated InfiniBand fabric (Debian packages opensm and ibsim-utils), without privileges, in a folder that is
removed at the end. Where either is absent the benchmark says so and ends with exit code 0.
"""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

import numpy as np

from benchmarks.timing import (
    begin_anew_if_misled,
    duration,
    fail,
    load_now,
    machine_facts,
    markdown_table,
    timed_s,
    write_between_markers,
)
from erfs.exporters import write_fabric
from erfs.fabric import Fabric, Link
from erfs.generators import generate
from erfs.paths import Topology
from erfs.paths.bits import Indices
from erfs.paths.situation import Situation
from erfs.paths.weights import Ground, Weighing

WRAPPERS: Final = ("/usr/lib/*/umad2sim/libumad2sim.so", "/usr/local/lib/umad2sim/libumad2sim.so")
SYSTEM_FOLDERS: Final = "/usr/local/sbin:/usr/sbin:/sbin"
ENGINES: Final = ("minhop", "updn", "ftree")
MARKERS: Final = "opensm"
# ibsim knows the speeds up to 4xQDR; routes don't depend on them.
GBPS: Final = 40
# Errors, information, verbose and system messages. "Functions" and "debug" would log inside the calculation and slow it.
LOG_FLAGS: Final = "0x87"
READY_SECONDS_MAX: Final = 60.0
SWEEP_SECONDS_MAX: Final = 30.0
# ibsim sends the trap at once. OpenSM leaves traps alone that repeat within seconds: then a signal asks for the same sweep.
TRAP_SECONDS_MAX: Final = 2.0
# Both ends of a cable report, and the second report may bring a sweep of its own: so long without a line, and all is done.
QUIET_SECONDS: Final = 0.5
POLL_SECONDS: Final = 0.01

STAMP: Final = re.compile(r"^\w{3} \d{2} (\d{2}):(\d{2}):(\d{2}) (\d{6}) \[\w+\] 0x\w+ -> (.*)$")
BEGIN: Final = re.compile(r"ucast_mgr_route: building routing with '([\w-]+)' routing algorithm")
END: Final = re.compile(r"osm_ucast_mgr_process: ([\w-]+) tables configured on all switches")
UP: Final = re.compile(r"SUBNET UP")
TRAP: Final = re.compile(r"log_trap_info: Received Generic Notice type:1 num:128")
DAY_S: Final = 24 * 3600


# --- OpenSM's log ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Sweep:
    """
    One sweep of OpenSM that calculated routes.

    Args:
        engine: Which calculated in the end: one that cannot gives way to another.
        routing_s: From the first "building routing with" to "tables configured on all switches".
        whole_s: From the trap, or else from the first line seen, to "SUBNET UP".
    """

    engine: str
    routing_s: float
    whole_s: float


class LogReader:
    """Follows OpenSM's log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = ""

    def new_lines(self) -> Iterator[tuple[float, str]]:
        """Yield (seconds of the day, text) of each whole line written since the last call."""
        if not self._path.exists():
            return
        with self._path.open(errors="replace") as file:
            file.seek(self._offset)
            text = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = text.split("\n")
        for line in lines:
            match = STAMP.match(line)
            if match is not None:
                hours, minutes, seconds, micros = (int(match[group]) for group in range(1, 5))
                yield hours * 3600 + minutes * 60 + seconds + micros / 1e6, match[5]


def next_sweep(
    log: LogReader, seconds_max: float, is_running: Callable[[], bool], ask: Callable[[], None] | None
) -> Sweep:
    """
    Wait for a sweep that calculates routes and ends with the subnet up.

    Args:
        log: Where it is told.
        seconds_max: How long to wait.
        is_running: Whether OpenSM still runs.
        ask: Asks for a sweep, if none has begun after `TRAP_SECONDS_MAX`.
    """
    deadline, ask_at = time.monotonic() + seconds_max, time.monotonic() + TRAP_SECONDS_MAX
    first: float | None = None
    begin: float | None = None
    found: tuple[str, float] | None = None
    while time.monotonic() < deadline:
        for at, text in log.new_lines():
            if first is None or (begin is None and TRAP.search(text)):
                first = at
            if BEGIN.search(text) and begin is None:
                begin = at
            elif (match := END.search(text)) and begin is not None:
                found = match[1], (at - begin) % DAY_S
            elif UP.search(text) and found is not None:
                return Sweep(*found, (at - first) % DAY_S)
        if not is_running():
            fail("opensm ended by itself")
        if ask is not None and begin is None and time.monotonic() > ask_at:
            ask()
            ask = None
        time.sleep(POLL_SECONDS)
    return fail(f"opensm calculated no routes within {seconds_max:g} s")


# --- programs we start -----------------------------------------------------------------------------------------------------
@contextmanager
def started(
    command: list[str], folder: Path, environment: dict[str, str], name: str
) -> "Iterator[subprocess.Popen[str]]":
    """Run a program in a process group of its own, which is gone in the end, however the end comes."""
    # Should this process be killed, the kernel ends the others.
    reaper = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with (folder / f"{name}.out").open("w") as out:
        process = subprocess.Popen(
            [*reaper, *command],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            # Until it has been waited for its number is nobody else's.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Subnet:
    """A fabric in ibsim, and OpenSM on it."""

    def __init__(self, stack: ExitStack, fabric: Fabric, engine: str, wrapper: str) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="erfs-opensm-")))
        netlist = folder / "fabric.net"
        netlist.write_text(write_fabric(fabric, "ibnetdiscover"))
        self._names = guid_names(netlist.read_text())
        host = next(node.id for node in fabric.nodes.values() if node.is_endpoint)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        environment |= {
            # A name of its own, so that another ibsim on this machine is neither met nor disturbed.
            "IBSIM_SOCKNAME": folder.name,
            "SIM_HOST": self._names[host],
            "OSM_TMP_DIR": str(folder),
            "OSM_CACHE_DIR": str(folder),
        }
        nodes, switches = len(fabric.nodes), len(fabric.switches)
        ports = sum(len(links) + 1 for links in fabric.links_of.values())
        limits = ["-N", str(nodes + 16), "-S", str(switches + 16), "-P", str(ports + 256)]
        self._ibsim = stack.enter_context(
            started([program("ibsim"), "-s", *limits, str(netlist)], folder, environment, "ibsim")
        )
        self._wait_for(folder / "ibsim.out", "Network simulator ready")
        command = [
            "env",
            f"LD_PRELOAD={wrapper}",
            program("opensm"),
            "-e",
            "-f",
            str(folder / "opensm.log"),
            "-R",
            engine,
            "-D",
            LOG_FLAGS,
        ]
        # Each line written at once; no sweep but by traps and signals; time enough for answers on a busy machine.
        command += ["-d", "2", "-s", "0", "-t", "2000"]
        self._opensm = stack.enter_context(started(command, folder, environment, "opensm"))
        self._log = LogReader(folder / "opensm.log")
        self.first = self._sweep(READY_SECONDS_MAX, can_ask=False)

    def _wait_for(self, path: Path, text: str) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._ibsim.poll() is None:
            if text in path.read_text(errors="replace"):
                return
            time.sleep(POLL_SECONDS)
        fail(f"ibsim did not start: {path.read_text(errors='replace')[-400:]}")

    def _sweep(self, seconds_max: float, *, can_ask: bool) -> Sweep:
        ask = (lambda: self._opensm.send_signal(signal.SIGHUP)) if can_ask else None
        return next_sweep(self._log, seconds_max, lambda: self._opensm.poll() is None, ask)

    def _settle(self) -> None:
        """Wait until OpenSM is done with what came before, so that it is not taken for what follows."""
        deadline = quiet_at = time.monotonic()
        deadline += SWEEP_SECONDS_MAX
        while time.monotonic() < min(deadline, quiet_at + QUIET_SECONDS):
            if list(self._log.new_lines()):
                quiet_at = time.monotonic()
            time.sleep(POLL_SECONDS)

    def _order(self, text: str) -> None:
        assert self._ibsim.stdin is not None
        self._settle()
        self._ibsim.stdin.write(text + "\n")
        self._ibsim.stdin.flush()

    def _port(self, link: Link, end: int) -> str:
        node, port = link.ends[end]
        return f'"{self._names[node]}"[{port}]'

    def cut(self, link: Link) -> Sweep:
        """Cut a cable, and return the sweep that follows."""
        self._order(f"Unlink {self._port(link, 0)}")
        return self._sweep(SWEEP_SECONDS_MAX, can_ask=True)

    def restore(self, link: Link) -> Sweep:
        """Plug a cable in again, and return the sweep that follows."""
        self._order(f"Link {self._port(link, 0)} {self._port(link, 1)}")
        return self._sweep(SWEEP_SECONDS_MAX, can_ask=True)

    def sweep_again(self) -> Sweep:
        """Ask for a sweep of the same fabric: routes are calculated again, and no table differs."""
        self._settle()
        self._opensm.send_signal(signal.SIGHUP)
        return self._sweep(SWEEP_SECONDS_MAX, can_ask=False)


def program(name: str) -> str:
    """Return the path of a program that `missing` has found."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")
    assert found is not None, name
    return found


def wrapper_path() -> str | None:
    """Return the library that makes OpenSM speak to ibsim."""
    return next((path for pattern in WRAPPERS for path in sorted(glob.glob(pattern))), None)


def missing() -> list[str]:
    """Return what has to be installed first."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}"
    found = [name for name in ("ibsim", "opensm") if shutil.which(name, path=path) is None]
    return found if wrapper_path() is not None else [*found, "libumad2sim.so"]


def guid_names(netlist: str) -> dict[str, str]:
    """Return, by the description in a netlist, the id that ibsim calls a node by."""
    return {
        match[2]: match[1]
        for match in re.finditer(r'^(?:Switch|Ca)\t\d+ "([^"]+)"\t+# "([^"]+)"', netlist, re.MULTILINE)
    }


# --- what is measured ------------------------------------------------------------------------------------------------------
@dataclass
class Result:
    """Medians of one engine on one fabric, in seconds."""

    k: int
    switches: int
    hosts: int
    engine: str
    first_s: float
    cut_s: float
    again_s: float
    sweep_s: float
    erfs_s: float
    erfs_full_s: float
    cuts: int
    engines_after_cuts: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times longer OpenSM calculates, by the shorter of its two figures."""
        return min(self.cut_s, self.again_s) / self.erfs_s


def measure(k: int, engine: str, cuts: int, seed: int, wrapper: str) -> Result:
    """Cut cables one after the other, and let OpenSM and ERFS each work out the new routes."""
    fabric = generate("fat-tree", {"k": k, "access_gbps": GBPS, "trunk_gbps": GBPS})
    topology = Topology(fabric)
    full_s: list[float] = []
    ours_s: list[float] = []
    after_cut: list[Sweep] = []
    again: list[Sweep] = []
    situation = Situation(topology, frozenset())
    hops = situation.hops
    weighing = Weighing(hops, Ground(hops, topology.arrivals_bps))

    def change(ends: Indices, *, is_usable: bool) -> None:
        weighing.update(hops.update(ends, np.full(len(ends), is_usable), np.ones(len(ends), dtype=np.int64)))

    def anew() -> None:
        _ = Situation(topology, frozenset()).sharing

    with ExitStack() as stack:
        subnet = Subnet(stack, fabric, engine, wrapper)
        for number in Random(seed).sample(range(len(topology.trunks)), cuts):
            link, ends = topology.trunks[number], topology.ends_of_trunk[number]
            after_cut.append(subnet.cut(link))
            again.append(subnet.sweep_again())
            ours_s.append(timed_s(partial(change, ends, is_usable=False), time.perf_counter))
            change(ends, is_usable=True)
            full_s.append(timed_s(anew, time.perf_counter))
            subnet.restore(link)
        first_s = subnet.first.routing_s
    return Result(
        k=k,
        switches=len(topology.switches),
        hosts=len(fabric.destination_of),
        engine=engine,
        first_s=first_s,
        cut_s=statistics.median(sweep.routing_s for sweep in after_cut),
        again_s=statistics.median(sweep.routing_s for sweep in again),
        sweep_s=statistics.median(sweep.whole_s for sweep in after_cut),
        erfs_s=statistics.median(ours_s),
        erfs_full_s=statistics.median(full_s),
        cuts=cuts,
        engines_after_cuts=sorted({sweep.engine for sweep in after_cut}),
    )


def report(results: list[Result], facts: dict[str, str]) -> str:
    """Return the table as Markdown."""
    header = ["k", "switches / hosts", "engine", "engine after a cut", "OpenSM at start", "after a cut"]
    header += ["again, same fabric", "sweep after a cut", "ERFS, the cut", "ERFS, all anew", "ratio"]
    rows = []
    for one in results:
        row = [str(one.k), f"{one.switches:,} / {one.hosts:,}", one.engine, ", ".join(one.engines_after_cuts)]
        row += [duration(one.first_s), duration(one.cut_s), duration(one.again_s), duration(one.sweep_s)]
        rows.append([*row, duration(one.erfs_s), duration(one.erfs_full_s), f"{one.ratio:.3g} x"])
    table = markdown_table(header, rows)
    verdicts = [
        f"Target: at least 10 x at k=16, {one.engine}: {'met' if one.ratio >= 10 else '**missed**'} ({one.ratio:.3g} x)."
        for one in results
        if one.k == 16
    ]
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    cuts = results[0].cuts if results else 0
    return "\n\n".join([f"{told}; {cuts} cuts, medians.", table, "\n".join(verdicts)])


def main() -> None:
    """Measure what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[8, 16], help="k")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=list(ENGINES), help="OpenSM's engines")
    parser.add_argument("--cuts", type=int, default=5, help="cables cut, one after the other")
    parser.add_argument("--seed", type=int, default=1, help="for the cables that are cut")
    parser.add_argument("--markdown", type=Path, help="write the table into this file, between its markers")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    options = parser.parse_args()
    lacking = missing()
    wrapper = wrapper_path()
    if lacking or wrapper is None:
        print(f"skipped: {', '.join(lacking)} not found (Debian packages opensm and ibsim-utils)")
        return
    begin_anew_if_misled()
    signal.signal(signal.SIGTERM, _end)  # so that what was started ends, too
    facts = machine_facts(["numpy"]) | {"load before": load_now()}
    results = []
    for k in options.sizes:
        for engine in options.engines:
            print(f"fat-tree k={k}, {engine}", file=sys.stderr, flush=True)
            results.append(measure(k, engine, options.cuts, options.seed, wrapper))
    facts["load after"] = load_now()
    if options.json:
        print(json.dumps({"machine": facts, "results": [asdict(one) for one in results]}, indent=1))
        return
    text = report(results, facts)
    print(text)
    if options.markdown is not None:
        write_between_markers(options.markdown, MARKERS, text)


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
