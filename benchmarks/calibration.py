"""Do the simulator's delays, taken from link down on real packets, foretell what other faults cost? `--measure` as root.

    python benchmarks/calibration.py --out calibration.jsonl --measure 20          80 runs of about 35 s, in turns; again goes on
    python benchmarks/calibration.py --out calibration.jsonl --fit                 the delays, from the runs of link down alone
    python benchmarks/calibration.py --out calibration.jsonl --fit --validate      what they foretell beside what was measured
    python benchmarks/calibration.py --out calibration.jsonl --validate            the same with the frozen set "lab-k4"
    python benchmarks/calibration.py --out calibration.jsonl --validate --markdown docs/benchmarks.md

Rule 1: fitted is what makes the simulator's own stages equal the measured ones; the same function reads them from either journal.
Rule 2: of the other three faults nothing is fitted; they are run with the same links broken, and a miss is told.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.timing import (  # noqa: E402 -- the line above is for it
    ROOT,
    fail,
    load_now,
    machine_facts,
    markdown_table,
    read_lines_of_json,
    write_between_markers,
)
from erfs.cli.run import fabric_for  # noqa: E402
from erfs.journal import read  # noqa: E402
from erfs.units import MS, US  # noqa: E402
from erfs_scenario.judging import judge_records  # noqa: E402
from erfs_scenario.plan import TIMINGS, Plan, Timing, compile_plan  # noqa: E402
from erfs_scenario.report import FaultReport  # noqa: E402
from erfs_scenario.schema import load_scenario  # noqa: E402
from erfs_scenario.simulation import simulate  # noqa: E402

MARKERS: Final = "calibration"
FITTED_ON: Final = "single-link"
SCENARIOS: Final = (FITTED_ON, "silent-drop", "one-way-drop", "node-isolated")
FIGURES: Final = ("first", "median", "last")
# A run with its lab's start takes 35 s; a machine that needs more than this measures nothing.
PATIENCE_S: Final = 300.0
# One after the other: then it is not chance.
TROUBLES_MAX: Final = 3
# Of chance (phases of sessions, jitter) for each fault that was measured.
DRAWS: Final = 10
ROUNDS: Final = 8
GRAIN_NS: Final = 10 * US
"""What delays are rounded to; the probes are 100 times as coarse."""


# --- what a run tells ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Told:
    """A node that repaired on reading of the failure: from the first detection to that, and from that to its acknowledgement."""

    node: str
    told_ns: int
    write_ns: int


@dataclass(frozen=True)
class Run:
    """
    One run of one scenario, measured or simulated.

    Args:
        scenario, seed: Which.
        far, near: Flows and the first, median and last of their recoveries; None where there are none.
        not_recovered: Flows that had a path and never came back.
        detected_ns: From the fault taking effect to the first end that noticed.
        computation_ns: From the controller's word that the link is down to new routes, its debounce included.
        told: The nodes that repaired on reading of it.
        chain: Of each flow brought back by an agent's change: node, detected, fact received, acknowledged, first datagram through.
        interval_ns: Of the probes.
        late_p99_ns, late_max_ns: How late the prober was.
        load_before, load_after: Load averages.
    """

    scenario: str
    seed: int
    far: dict[str, int | None]
    near: dict[str, int | None]
    not_recovered: int
    detected_ns: int | None
    computation_ns: int | None
    told: tuple[Told, ...]
    chain: tuple[tuple[str, int, int | None, int, int], ...] = ()
    interval_ns: int = 0
    late_p99_ns: int = 0
    late_max_ns: int = 0
    load_before: str = ""
    load_after: str = ""

    def line(self) -> dict[str, Any]:
        """Return it as plain values."""
        told = [[one.node, one.told_ns, one.write_ns] for one in self.told]
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"kind": "run", "told": told}

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> "Run":
        """Return what `line` made plain."""
        known = {one.name: line[one.name] for one in fields(cls)}
        known["told"] = tuple(Told(*one) for one in line["told"])
        known["chain"] = tuple(tuple(one) for one in line["chain"])
        return cls(**known)


def run_of(scenario: str, seed: int, records: Sequence[Mapping[str, Any]]) -> Run:
    """
    Return the figures of a journal's *records*: one run with one fault, on either backend.

    Raises:
        ConfigError: they hold no run.
    """
    report = judge_records([dict(one) for one in records])
    fault = report.faults[0]
    nothing: Mapping[str, Any] = {"flows": [], "interval_ns": 0}
    chains = next((one for one in records if one["event"] == "chains_measured"), nothing)
    probes = report.probes
    return Run(
        scenario,
        seed,
        far=_spread(fault.far),
        near=_spread(fault.near),
        not_recovered=fault.not_recovered.flows,
        detected_ns=fault.stages.detection_ns,
        computation_ns=fault.stages.computation_ns,
        told=_told(records, fault),
        chain=tuple(tuple(row[2:]) for row in chains["flows"]),
        interval_ns=chains["interval_ns"],
        late_p99_ns=0 if probes is None else probes.late_p99_ns,
        late_max_ns=0 if probes is None else probes.late_max_ns,
    )


def _spread(of: Any) -> dict[str, int | None]:
    return {"flows": of.flows, "first": of.first_ns, "median": of.median_ns, "last": of.last_ns}


def _told(records: Sequence[Mapping[str, Any]], fault: FaultReport) -> tuple[Told, ...]:
    """Return the nodes that first read of one of *fault*'s links and then changed for it, without having noticed it themselves."""
    if fault.effective_at_ns is None or fault.stages.detection_ns is None:
        return ()
    end_ns = records[-1]["at_ns"] if fault.ended_at_ns is None else fault.ended_at_ns
    failed = {*fault.links, *fault.nodes}
    noticed: set[str] = set()
    heard: dict[str, int] = {}
    found: dict[str, Told] = {}
    for one in sorted(records, key=lambda record: int(record["at_ns"])):
        node, at_ns = str(one.get("node")), int(one["at_ns"])
        if not fault.effective_at_ns <= at_ns < end_ns:
            continue
        if one["event"] == "port_down_detected" and one["link"] in failed:
            noticed.add(node)
        elif one["event"] == "fact_received" and one["link"] in failed and one["down"]:
            heard.setdefault(node, at_ns)
        elif one["event"] == "change_acknowledged" and failed & set(one["failures"]) and node in heard:
            detected_at_ns = fault.effective_at_ns + fault.stages.detection_ns
            if node not in noticed:
                found.setdefault(node, Told(node, heard[node] - detected_at_ns, at_ns - heard[node]))
    return tuple(found.values())


# --- measuring -------------------------------------------------------------------------------------------------------------
@dataclass
class Lines:
    """What is in a file of runs."""

    header: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    troubles: int = 0


def read_lines(path: Path) -> Lines:
    """Return what is in a file of runs; half a line at its end, from an interruption, is left out."""
    found = Lines()
    for line in read_lines_of_json(path):
        if line["kind"] == "run":
            found.runs.append(Run.of_line(line))
        elif line["kind"] == "header":
            found.header = line
        else:
            found.troubles += 1
    return found


def scenario_path(scenario: str) -> Path:
    """Return where the library has it."""
    return ROOT / f"scenarios/library/{scenario}.yaml"


def measure(count: int, out: Path) -> None:
    """Run what *out* has not yet of *count* runs of each scenario, in turns, and add a line for each."""
    before = read_lines(out)
    done = {(run.scenario, run.seed) for run in before.runs}
    todo = [(name, seed) for seed in range(1, count + 1) for name in SCENARIOS if (name, seed) not in done]
    troubles = 0
    with out.open("a") as file:
        if not before.header:
            facts = machine_facts(["erfs"]) | {"day": time.strftime("%Y-%m-%d", time.gmtime())}
            print(json.dumps({"kind": "header", "machine": facts}), file=file, flush=True)
        for place, (name, seed) in enumerate(todo, 1):
            run, reason = _measured(name, seed)
            line = run.line() if run else {"kind": "trouble", "scenario": name, "seed": seed, "reason": reason}
            print(json.dumps(line), file=file, flush=True)
            told = f"far {run.far}, load {run.load_before}" if run else f"trouble: {reason}"
            print(f"{place} of {len(todo)}: {name} {seed}: {told}", file=sys.stderr, flush=True)
            troubles = 0 if run else troubles + 1
            if troubles == TROUBLES_MAX:
                fail(f"{TROUBLES_MAX} runs one after the other failed; the same call again goes on")


def _measured(scenario: str, seed: int) -> tuple[Run | None, str]:
    """Return one run on real packets, or why there is none."""
    load = load_now()
    with tempfile.TemporaryDirectory(prefix="erfs-calibration-") as folder:
        command = [sys.executable, "-m", "erfs", "run", str(scenario_path(scenario)), "--backend", "kernel"]
        command += ["--seed", str(seed), "--out", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                _, said = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.terminate()  # it mends what it broke and takes its lab down
                process.communicate(timeout=PATIENCE_S)
                return None, f"not done after {PATIENCE_S:.0f} s"
            except BaseException:
                process.terminate()
                raise
        # Whether an objective was met is not asked here; whether the fault happened as asked is.
        if process.returncode not in (0, 1, 2):
            return None, f"exit code {process.returncode}: {said.strip()[-300:]}"
        found = run_of(scenario, seed, list(read(Path(folder) / "journal.jsonl")))
    return replace(found, load_before=load, load_after=load_now()), ""


# --- simulating ------------------------------------------------------------------------------------------------------------
def plans_of(runs: Iterable[Run], draws: int) -> list[tuple[Run, Plan]]:
    """Return for each measured run *draws* plans that break the same and draw everything else anew."""
    found = []
    for run in runs:
        file = load_scenario(scenario_path(run.scenario))
        plan = compile_plan(file, fabric_for(file, None, "kernel"), seed=run.seed)
        found += [(run, replace(plan, seed=run.seed + 1_000 * draw)) for draw in range(draws)]
    return found


def simulated(plans: Iterable[tuple[Run, Plan]], timing: Timing) -> list[Run]:
    """Return what the simulator makes of *plans* with *timing*. Cost: some 0.1 s a plan."""
    found = []
    for run, plan in plans:
        timed = replace(plan, timing=timing)
        records: list[dict[str, Any]] = [{"at_ns": 0, "event": "run_started", **timed.header("sim")}]

        def record(at_ns: int, event: str, told: dict[str, Any], to: list[dict[str, Any]] = records) -> None:
            to.append({"at_ns": at_ns, "event": event, **told})

        simulate(timed, record=record, on_progress=lambda _: None)
        record(timed.duration_ns, "run_finished", {})
        found.append(run_of(run.scenario, plan.seed, records))
    return found


# --- fitting ---------------------------------------------------------------------------------------------------------------
def middle_and_width(values: Sequence[int]) -> tuple[int, int]:
    """Return the median, and what separates the quartiles: neither heeds a few runs that were disturbed. 0, 0 of nothing."""
    if len(values) < 2:
        return (values[0], 0) if values else (0, 0)
    first, second, third = statistics.quantiles(values, n=4, method="inclusive")
    return round(second), round(third - first)


@dataclass(frozen=True)
class Stages:
    """The stages of some runs of link down, each as median and distance of the quartiles; without spread where the simulator has none."""

    detected: tuple[int, int]
    told: tuple[int, int]
    write_ns: int
    computation_ns: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Stages":
        """Return those of *runs*."""
        return cls(
            middle_and_width([run.detected_ns for run in runs if run.detected_ns is not None]),
            middle_and_width([one.told_ns for run in runs for one in run.told]),
            middle_and_width([one.write_ns for run in runs for one in run.told])[0],
            middle_and_width([run.computation_ns for run in runs if run.computation_ns is not None])[0],
        )


def moved(delay_ns: int, jitter_ns: int, got: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """
    Return the delay and jitter that bring a stage's median and width from *got* to *wanted*, if it is linear in both.

    A delay is not negative: where it would be, it is 0 and the jitter is what the median asks for.
    """
    slope = (got[0] - delay_ns) / jitter_ns if jitter_ns else 0.0
    jitter = jitter_ns * wanted[1] / got[1] if got[1] else 0.0
    delay = wanted[0] - slope * jitter
    if delay < 0:
        return 0, round(wanted[0] / slope) if slope > 0 else 0
    return round(delay), round(jitter)


def fit(runs: Sequence[Run], *, draws: int = DRAWS) -> Timing:
    """
    Return the delays with which the simulator's stages of link down are those of *runs*.

    Args:
        runs: Measured; those of other scenarios are not looked at.
        draws: Of chance for each.

    Returns:
        Carrier, bus (both with jitter), write and computation fitted; the others, which link down does not show, as by default.

    Raises:
        ValueError: no run of link down in which a node was told of the failure.

    Cost: `ROUNDS` * runs * *draws* simulated runs.
    """
    own = [run for run in runs if run.scenario == FITTED_ON]
    if not any(run.told for run in own):
        raise ValueError(f"no run of {FITTED_ON} in which a node was told of the failure")
    wanted = Stages.of(own)
    plans = plans_of(own, draws)
    timing = Timing()
    for _ in range(ROUNDS):
        got = Stages.of(simulated(plans, timing))
        carrier, carrier_jitter = moved(timing.carrier_ns, timing.carrier_jitter_ns, got.detected, wanted.detected)
        bus, bus_jitter = moved(timing.bus_ns, timing.bus_jitter_ns, got.told, wanted.told)
        timing = replace(
            timing,
            carrier_ns=carrier,
            carrier_jitter_ns=carrier_jitter,
            bus_ns=bus,
            bus_jitter_ns=bus_jitter,
            write_ns=max(0, timing.write_ns + wanted.write_ns - got.write_ns),
            computation_ns=max(0, timing.computation_ns + wanted.computation_ns - got.computation_ns),
        )
    return Timing(**{one.name: _rounded(getattr(timing, one.name)) for one in fields(Timing)})


def _rounded(value_ns: int) -> int:
    return round(value_ns / GRAIN_NS) * GRAIN_NS


def _loads(runs: Sequence[Run]) -> list[float]:
    """Return the load of the last minute before each run, where it is known."""
    return [float(run.load_before.split()[0]) for run in runs if run.load_before]


def code_of(timing: Timing, lines: Lines) -> str:
    """Return what `LAB_K4` in erfs_scenario/plan.py is to be replaced by, its source included."""
    default = Timing()
    runs = [run for run in lines.runs if run.scenario == FITTED_ON]
    machine = lines.header.get("machine", {})
    loads = _loads(runs)
    settings = [
        f"    {one.name}={getattr(timing, one.name) // US:_} * US,"
        for one in fields(Timing)
        if getattr(timing, one.name) != getattr(default, one.name)
    ]
    load = f"load before a run {min(loads):.1f} .. {max(loads):.1f}" if loads else "load unknown"
    source = (
        f"Fitted by benchmarks/calibration.py to {len(runs)} run{'s' * (len(runs) != 1)} of {FITTED_ON} on the kernel backend, fat-tree k=4,\n"
        f"{machine.get('cores', '?')} cores ({machine.get('processor', 'unknown')}), {machine.get('day', 'day unknown')}, {load}."
    )
    return "\n".join(["LAB_K4: Final = Timing(", *settings, ")", f'"""\n{source}\n"""'])


# --- validating ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """One figure of the far-end flows under one fault, over runs: (least, median, most)."""

    scenario: str
    figure: str
    predicted: tuple[int, int, int]
    measured: tuple[int, int, int]

    @property
    def missed_ns(self) -> int:
        """How far the predicted median is outside the measured range; negative below it, 0 within."""
        least, _, most = self.measured
        return min(0, self.predicted[1] - least) + max(0, self.predicted[1] - most)

    @property
    def verdict(self) -> str:
        """For people."""
        if not self.missed_ns:
            return "within"
        return f"**missed by {abs(self.missed_ns) / MS:.1f} ms** ({'above' if self.missed_ns > 0 else 'below'})"


def rows_of(measured: Sequence[Run], predicted: Sequence[Run]) -> list[Row]:
    """Return a row for each scenario and figure that both have; flows that never came back are in none (see `never`)."""
    found = []
    for scenario in SCENARIOS:
        for figure in FIGURES:
            sides = [_range_of(runs, scenario, figure) for runs in (predicted, measured)]
            if sides[0] is not None and sides[1] is not None:
                found.append(Row(scenario, figure, sides[0], sides[1]))
    return found


def _range_of(runs: Sequence[Run], scenario: str, figure: str) -> tuple[int, int, int] | None:
    values = [value for run in runs if run.scenario == scenario and (value := run.far[figure]) is not None]
    return (min(values), round(statistics.median(values)), max(values)) if values else None


def table_of(rows: Sequence[Row], lines: Lines, predicted: Sequence[Run]) -> str:
    """Return the table and what belongs to it: how many runs, how far chains explain them, who never came back."""

    def told(of: tuple[int, int, int]) -> list[str]:
        return [f"{of[1] / MS:.1f} ms", f"{of[0] / MS:.1f} .. {of[2] / MS:.1f}"]

    header = ("fault", "far-end flows", "predicted", "range", "measured", "range", "predicted median in measured range")
    table = markdown_table(
        header,
        ([row.scenario, row.figure, *told(row.predicted), *told(row.measured), row.verdict] for row in rows),
    )
    notes = []
    for scenario in SCENARIOS:
        runs = [run for run in lines.runs if run.scenario == scenario]
        chains = [(row, run.interval_ns) for run in runs for row in run.chain]
        explained = sum(abs(row[4] - row[3]) <= 2 * interval_ns for row, interval_ns in chains)
        never = sum(run.not_recovered for run in runs)
        said = f"{len(runs)} runs measured, {sum(one.scenario == scenario for one in predicted)} simulated"
        said += f"; {explained} of {len(chains)} measured chains add up; {never} flows never recovered"
        notes.append(f"- {scenario}{' (fitted on it)' if scenario == FITTED_ON else ''}: {said}.")
    machine = lines.header.get("machine", {})
    where = f"processor {machine.get('processor', '?')}, cores {machine.get('cores', '?')}, {machine.get('day', '?')}"
    loads = _loads(lines.runs)
    if loads:
        where += f", load before a run {min(loads):.2f} .. {max(loads):.2f}"
    return "\n".join([f"{where}; {lines.troubles} runs failed.", "", table, "", *notes])


def main() -> None:
    """Do what is asked for, in the order measure, fit, validate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a line for each run; what is in it is not run again")
    parser.add_argument("--measure", type=int, metavar="N", help="runs of each scenario on the kernel backend (root)")
    parser.add_argument("--fit", action="store_true", help="fit the delays to the runs of link down")
    parser.add_argument("--validate", action="store_true", help='beside --fit with what it found, else with "lab-k4"')
    parser.add_argument("--draws", type=int, default=DRAWS, help="simulated runs for each measured one")
    parser.add_argument("--markdown", type=Path, help="write the table between this file's markers")
    arguments = parser.parse_args()
    if arguments.measure is not None:
        measure(arguments.measure, arguments.out)
    lines = read_lines(arguments.out)
    timing = TIMINGS["lab-k4"]
    if arguments.fit:
        try:
            timing = fit(lines.runs, draws=arguments.draws)
        except ValueError as error:
            fail(f"{arguments.out}: {error}")
        print(code_of(timing, lines), end="\n\n")
    if arguments.validate:
        predicted = simulated(plans_of(lines.runs, arguments.draws), timing)
        text = table_of(rows_of(lines.runs, predicted), lines, predicted)
        print(text)
        if arguments.markdown is not None:
            write_between_markers(arguments.markdown, MARKERS, text)


if __name__ == "__main__":
    main()
