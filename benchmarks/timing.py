"""How are two ways of doing the same thing timed side by side, and where do the figures go?

Rule 1: what is compared is run in turns (A B C A B C), so that whatever else the machine does meets all of them alike.
Rule 2: medians, never the best run; the machine's load is told with them.
"""

import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
# Settings of OpenBLAS that some images carry for a processor they don't run on: they slow all of numpy down.
MISLEADING: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# One core for everybody. What is compared is the method, and a controller has other things to do.
ONE_THREAD: Final = {"RAYON_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def begin_anew_if_misled() -> None:
    """Start this program again without the settings that would falsify its figures, if there are any."""
    wanted = {name: value for name, value in os.environ.items() if name not in MISLEADING} | ONE_THREAD
    if wanted != dict(os.environ):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)


@dataclass
class Series:
    """How long each run took, in seconds."""

    runs_s: list[float]

    @classmethod
    def without_first(cls, runs_s: list[float], count: int) -> "Series":
        """Leave out the first *count* runs, which warm the caches, unless they are all there is."""
        return cls(runs_s[count:] or runs_s)

    @property
    def median_s(self) -> float:
        """The median."""
        return statistics.median(self.runs_s)

    @property
    def spread(self) -> str:
        """Smallest and largest, for people."""
        return f"{duration(min(self.runs_s))} .. {duration(max(self.runs_s))}"


def timed_s(task: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """
    Return how long *task* takes, without the collector's pauses.

    Args:
        task: What to do, on one thread, without waiting for anything.
        clock: By default the processor time of this process, which other programs on the machine disturb less than the time on the
            wall; on a quiet machine both are the same.
    """
    gc.collect()
    gc.disable()
    try:
        start = clock()
        task()
        return clock() - start
    finally:
        gc.enable()


def in_turns(
    tasks: Mapping[str, Callable[[], object]], rounds: int, *, once_if_slower_than_s: float = 5.0
) -> dict[str, Series]:
    """
    Run all *tasks* in turns, *rounds* times.

    Args:
        tasks: By name.
        rounds: How often.
        once_if_slower_than_s: A task whose first run takes longer is not run again.

    Returns:
        What each took. The first of several runs warms the caches and does not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            if number and taken[name][0] > once_if_slower_than_s:
                continue
            taken[name].append(timed_s(task))
    return {name: Series.without_first(runs, 1) for name, runs in taken.items()}


def machine_facts(packages: Iterable[str]) -> dict[str, str]:
    """Return what figures depend on: processor, cores, versions; load is told by `load_now`."""
    facts = {"processor": _processor(), "cores": str(os.cpu_count()), "python": platform.python_version()}
    for package in packages:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts


def load_now() -> str:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def duration(seconds: float) -> str:
    """Return *seconds* as people write it, three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor or unit == "us":
            return f"{seconds / factor:.3g} {unit}" if seconds / factor < 1000 else f"{seconds / factor:,.0f} {unit}"
    raise AssertionError("microseconds take whatever is left")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def read_lines_of_json(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what is in a file of JSON lines, if there is one; half a line at its end, from an interruption, is left out."""
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        yield line


def write_between_markers(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of *name* in the file by *text*."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = path.read_text()
    before, has_begin, rest = old.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        fail(f'{path}: no markers "{begin}" and "{end}" to write between')
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def fail(message: str) -> NoReturn:
    """End with *message*: the benchmark's answer is wrong, or it cannot be run as asked."""
    print(f"failed: {message}", file=sys.stderr)
    sys.exit(1)
