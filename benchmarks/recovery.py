"""How fast do flows recover with ERFS, with FRR, and with nobody, on the same namespaces in the same run? As root.

    python benchmarks/recovery.py --out recovery.jsonl                  everything: 60 trials of two faults, 20 of three, about two hours
    python benchmarks/recovery.py --out recovery.jsonl                  the same again goes on where the last one was interrupted
    python benchmarks/recovery.py --quick --systems "kernel only" "FRR default"
    python benchmarks/recovery.py --report recovery.jsonl --svg docs/recovery.svg --markdown docs/benchmarks.md
                                                                        tables and chart, nothing is run

A k=4 fat-tree of 20 switches and 16 hosts, each a network namespace; numbered UDP at 1 ms; the systems take turns in blocks, and leave
nothing of theirs behind in between. What it needs and does not find it names; it installs nothing (apt install frr mosquitto nftables).
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks import frr
from benchmarks.recovery_report import (
    ERFS,
    ERFS_FAST,
    KERNEL_ONLY,
    SYSTEMS,
    Lines,
    chart,
    markdown,
    read_lines,
    show,
    summary,
)
from benchmarks.recovery_systems import Erfs, KernelOnly, System, bench_of, fabric_of, watched_links
from benchmarks.recovery_trials import (
    FAULTS,
    LIVENESS_FAULTS,
    MANY,
    SECOND_FAILURE,
    DisturbedError,
    Trial,
    has_chance,
    run_trial,
    trials_of,
    window_of,
)
from benchmarks.timing import fail, load_now, machine_facts, write_between_markers
from erfs.fabric import Medium
from erfs.units import MS, SECOND
from erfs_scenario.kernel.lab import why_not
from erfs_scenario.kernel.spaces import LabError, Spaces

MARKERS: Final = "recovery"
INTERVAL_NS: Final = 10 * MS
# What a trial takes beside its window: rest, choice of flows, prober; and a block beside its trials. Measured, for the estimate.
TRIAL_S: Final = {KERNEL_ONLY: 3.0, "FRR default": 15.0, "FRR tuned": 14.0, ERFS: 5.5, ERFS_FAST: 5.5}
TRIAL_UNMOVED_S: Final = 3.0
BLOCK_S: Final = {KERNEL_ONLY: 2.0, "FRR default": 35.0, "FRR tuned": 30.0, ERFS: 45.0, ERFS_FAST: 45.0}
# Of a system, one after the other without a trial in between: then its block is given up.
FAILURES_MAX: Final = 3
# In one block.
DISTURBANCES_MAX: Final = 10


def missing() -> str:
    """Return why the benchmark cannot run here, "" if it can."""
    reason = why_not()
    if reason:
        return reason
    absent = [name for name in ("mosquitto", "nft", "ip", "nsenter", "unshare", "chrt") if shutil.which(name) is None]
    absent += frr.missing()
    return f"not found: {', '.join(absent)} (apt install frr mosquitto nftables)" if absent else ""


def main() -> None:
    """Run what is asked for, and print what came out."""
    arguments = _arguments()
    if arguments.report is not None:
        lines = read_lines(arguments.report)
        if not lines.outcomes:
            fail(f"{arguments.report}: no trial in it")
        _tell(lines, arguments)
        return
    reason = missing()
    if reason:
        fail(reason)
    if arguments.out is None:
        with tempfile.TemporaryDirectory(prefix="erfs-recovery-") as folder:
            _measure_and_tell(arguments, Path(folder) / "results.jsonl")
    else:
        _measure_and_tell(arguments, arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60, help="of link down and silent drop")
    parser.add_argument("--few", type=int, default=20, help="of the other faults")
    parser.add_argument(
        "--block", type=int, default=20, help="trials of link down, and as many of the rest as go with it"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two trials of each fault: a look whether everything works"
    )
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME", help=str(SYSTEMS)
    )
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME", help=str(FAULTS))
    parser.add_argument("--fast-ms", type=float, default=3.0, help='interval of the sessions of "ERFS fast"')
    parser.add_argument("--pods", type=int, default=1, choices=range(1, 5), help="where links break and are watched")
    parser.add_argument(
        "--medium", choices=list(Medium), default=Medium.LOSSY, help="what the fabric's links are to ERFS"
    )
    parser.add_argument(
        "--frr-realtime",
        choices=list(frr.REALTIME),
        default="bfdd",
        help="daemons of FRR that run before ordinary processes",
    )
    parser.add_argument("--idle", type=float, default=20.0, help="seconds over which idle CPU is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a line for each trial, as it happens; what is in it is not run again")
    parser.add_argument("--report", type=Path, help="print what is in such a file")
    parser.add_argument("--svg", type=Path, help="write the chart here")
    parser.add_argument("--markdown", type=Path, help="write the tables into this file, between its markers")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON instead of tables")
    found = parser.parse_args()
    if found.quick:
        found.trials, found.few, found.block, found.idle = 2, 2, 2, 3.0
    return found


def _measure_and_tell(arguments: argparse.Namespace, out: Path) -> None:
    # Neither how many trials nor how they are cut into blocks: more begin with the fewer, so a run may be made longer.
    what = {name: getattr(arguments, name) for name in ("fast_ms", "pods", "frr_realtime", "seed")}
    what["medium"] = str(arguments.medium)
    before = read_lines(out)
    if before.header and before.header["parameters"] != what:
        fail(f"{out} was made with {before.header['parameters']}, not {what}: take another file")
    with out.open("a") as file:
        if not before.header:
            _write(file, "header", {"parameters": what, "machine": machine_facts(["erfs"]), "load": load_now()})
        is_whole = _measure(arguments, before, file)
    lines = read_lines(out)
    if lines.outcomes:
        _tell(lines, arguments)
    if not is_whole:
        sys.exit(1)


def _tell(lines: Lines, arguments: argparse.Namespace) -> None:
    told = summary(lines)
    if arguments.svg is not None:
        arguments.svg.write_text(chart(lines))
    if arguments.markdown is not None:
        write_between_markers(arguments.markdown, MARKERS, markdown(told))
    if arguments.json:
        print(json.dumps(told, indent=1))
    else:
        console = Console()
        show(told, console if console.is_terminal else Console(width=190))


def _write(file: Any, kind: str, fields: Mapping[str, Any]) -> None:
    file.write(json.dumps({"kind": kind, **fields}) + "\n")
    file.flush()


# --- running ---------------------------------------------------------------------------------------------------------------
def _measure(arguments: argparse.Namespace, before: Lines, file: Any) -> bool:
    """Run what is not done yet; return whether it came to its end."""
    fabric = fabric_of(4, Medium(arguments.medium))
    with bench_of(fabric, "erfs-recovery-") as (spaces, folder, runner):
        # FRR's daemons are another user's, and their files are in there.
        folder.chmod(0o711)
        run = _Run(arguments, before, file, spaces, folder)
        return runner.run(run.to_the_end())


class _Run:
    def __init__(self, arguments: argparse.Namespace, before: Lines, file: Any, spaces: Spaces, folder: Path) -> None:
        self._arguments = arguments
        self._file = file
        self._folder = folder
        self._spaces = spaces
        self._known = set(before.systems)
        self.left_out = 0
        self._watched = watched = watched_links(spaces.fabric, arguments.pods)
        realtime = frr.REALTIME[arguments.frr_realtime]
        makers: dict[str, Callable[[], System]] = {
            KERNEL_ONLY: lambda: KernelOnly(spaces, folder / "kernel"),
            "FRR default": lambda: frr.Frr(spaces, folder / "frr-default", watched, is_tuned=False, realtime=realtime),
            "FRR tuned": lambda: frr.Frr(spaces, folder / "frr-tuned", watched, is_tuned=True, realtime=realtime),
            ERFS: lambda: Erfs(spaces, folder / "erfs", watched, name=ERFS, interval_ns=INTERVAL_NS),
            ERFS_FAST: lambda: Erfs(
                spaces, folder / "erfs-fast", watched, name=ERFS_FAST, interval_ns=round(arguments.fast_ms * MS)
            ),
        }
        self._systems = [makers[name]() for name in SYSTEMS if name in arguments.systems]
        self._blocks = self._plan(before.done)
        self._left_s = sum(self._estimate_s(system, trials) for system, trials in self._blocks)

    def _plan(self, done: set[tuple[str, str, int]]) -> list[tuple[System, list[Trial]]]:
        """Return the blocks in order: each system in turn, each time with its share of every fault."""
        arguments, fabric = self._arguments, self._spaces.fabric
        rounds = max(1, -(-arguments.trials // arguments.block))
        shares: list[list[Trial]] = [[] for _ in range(rounds)]
        for fault in arguments.faults:
            count = arguments.trials if fault in MANY else arguments.few
            for place, trial in enumerate(trials_of(fabric, self._watched, fault, count, arguments.seed)):
                shares[place * rounds // count].append(trial)
        blocks = []
        for share in shares:
            for system in self._systems:
                left = [
                    trial
                    for trial in share
                    if (system.name, trial.fault, trial.index) not in done and self._is_tried(system, trial)
                ]
                if left:
                    blocks.append((system, left))
        return blocks

    def _is_tried(self, system: System, trial: Trial) -> bool:
        """Return whether a trial can tell anything new."""
        # Whoever cannot notice fails each time alike, and where the carrier tells, sessions' intervals are no matter.
        if not has_chance(system, trial.fault):
            return trial.index < int(self._arguments.few)
        return system.name != ERFS_FAST or trial.fault in LIVENESS_FAULTS

    async def to_the_end(self) -> bool:
        """Run all blocks; return whether all is measured: nobody asked to stop, and no block was given up."""
        total = sum(len(trials) for _, trials in self._blocks)
        self._say(f"{total} trials in {len(self._blocks)} blocks, about {self._left_s / 60:.0f} minutes")
        running = asyncio.ensure_future(self._all_blocks())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            self._say("interrupted; what has been measured is kept")
            return False
        return self.left_out == 0

    async def _all_blocks(self) -> None:
        for number, (system, trials) in enumerate(self._blocks, 1):
            self._say(f"block {number} of {len(self._blocks)}: {system.name}, {len(trials)} trials")
            todo, failures = list(trials), 0
            while todo and failures < FAILURES_MAX:
                before = len(todo)
                try:
                    await self._block(system, todo)
                except LabError as error:
                    failures = 1 if len(todo) < before else failures + 1
                    trial = todo[0]
                    told = {"system": system.name, "fault": trial.fault, "index": trial.index, "text": str(error)}
                    _write(self._file, "trouble", told)
                    self._say(f"trouble: {error}")
            if todo:
                self.left_out += len(todo)
                self._say(f"{system.name}: {len(todo)} trials left out; the same call again makes up for them")

    async def _block(self, system: System, todo: list[Trial]) -> None:
        """Run the trials and take each that is done from *todo*."""
        try:
            await system.enter(self._say)
            if system.name not in self._known:
                cost = await system.cost(self._arguments.idle)
                _write(self._file, "system", {"system": system.name, "liveness": system.liveness, **asdict(cost)})
                self._known.add(system.name)
            # What a system did not notice it need not get over.
            disturbances, is_moved = 0, True
            while todo:
                trial = todo[0]
                rest_from_s = await system.settle()
                began_s = time.monotonic()
                not_before_s = rest_from_s + (system.quiet_s if is_moved else 0.0)
                is_moved = True
                try:
                    outcomes = await run_trial(system, trial, self._folder, self._arguments.seed, not_before_s)
                except DisturbedError as error:
                    disturbances += 1
                    told = {"system": system.name, "fault": trial.fault, "index": trial.index, "text": str(error)}
                    _write(self._file, "disturbance", told)
                    self._say(f"{system.name}, {trial.fault} {trial.index}, again: {error}")
                    if disturbances >= DISTURBANCES_MAX:
                        raise
                    continue
                for outcome in outcomes:
                    _write(self._file, "outcome", outcome.line() | {"load": load_now()})
                    self._progress(outcome.line(), time.monotonic() - began_s)
                self._left_s -= self._estimate_s(system, [trial]) - BLOCK_S[system.name]
                is_moved = has_chance(system, trial.fault)
                del todo[0]
        finally:
            await system.leave()
        self._left_s -= BLOCK_S[system.name]

    def _estimate_s(self, system: System, trials: Sequence[Trial]) -> float:
        own_s = sum(
            window_of(system, trial.fault) / SECOND
            + (TRIAL_S[system.name] if has_chance(system, trial.fault) else TRIAL_UNMOVED_S)
            + (trial.fault == SECOND_FAILURE)
            for trial in trials
        )
        return own_s + BLOCK_S[system.name]

    def _progress(self, line: Mapping[str, Any], took_s: float) -> None:
        def told(side: Mapping[str, Any] | None) -> str:
            if side is None:
                return "-"
            return (
                f"{side['censored']} of {side['flows']} never"
                if side["last_ms"] is None
                else f"{side['last_ms']:.1f} ms"
            )

        self._say(
            f"{line['system']}, {line['fault']} {line['index']}: far {told(line['far'])}, near {told(line['near'])}"
            f" ({took_s:.1f} s; about {max(0.0, self._left_s) / 60:.0f} min left)"
        )

    def _say(self, text: str) -> None:
        with suppress(BrokenPipeError):
            print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
