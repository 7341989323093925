"""The calibration finds the delays again that simulated runs were made with, and tells a miss as one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.calibration import (
    FITTED_ON,
    Lines,
    Row,
    Run,
    Told,
    code_of,
    fit,
    middle_and_width,
    moved,
    plans_of,
    read_lines,
    rows_of,
    simulated,
    table_of,
)
from erfs.units import MS, US
from erfs_scenario.plan import Timing, as_json

ROOT = Path(__file__).resolve().parents[2]
FAR: dict[str, int | None] = {"flows": 30, "first": 9 * MS, "median": 13 * MS, "last": 16 * MS}
RUN = Run(
    scenario=FITTED_ON,
    seed=1,
    far=FAR,
    near={"flows": 0, "first": None, "median": None, "last": None},
    not_recovered=0,
    detected_ns=800 * US,
    computation_ns=35 * MS,
    told=(Told("pod1-agg0", 8 * MS, 500 * US),),
    chain=(("pod1-agg0", 800_000, 8_800_000, 9_300_000, 9_100_000),),
    interval_ns=MS,
    load_before="0.30 1.00 2.00",
)


def test_delays_that_runs_were_simulated_with_are_found_again() -> None:
    true = Timing(
        carrier_ns=700 * US,
        carrier_jitter_ns=900 * US,
        bus_ns=2 * MS,
        bus_jitter_ns=8 * MS,
        write_ns=600 * US,
        computation_ns=30 * MS,
    )
    bare = [replace(RUN, seed=seed) for seed in range(1, 7)]
    measured = [replace(run, seed=run.seed % 1_000) for run in simulated(plans_of(bare, 1), true)]

    found = fit(measured, draws=1)
    # Other widths draw other numbers, so six runs give back no more than this.
    assert as_json(found) == {name: pytest.approx(value, rel=0.25) for name, value in as_json(true).items()}


def test_runs_of_other_faults_change_no_fitted_delay() -> None:
    own = [replace(RUN, seed=seed) for seed in (1, 2)]
    others = [replace(RUN, scenario="silent-drop", detected_ns=25 * MS, computation_ns=900 * MS)]

    assert fit([*own, *others], draws=1) == fit(own, draws=1)


def test_without_a_run_of_link_down_there_is_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="no run of single-link"):
        fit([replace(RUN, scenario="silent-drop")])


def test_one_disturbed_run_moves_neither_the_middle_nor_the_width_much() -> None:
    assert middle_and_width([1, 2, 3, 4, 5]) == (3, 2)
    assert middle_and_width([1, 2, 3, 4, 5_000]) == (3, 2)
    assert middle_and_width([7]) == (7, 0)
    assert middle_and_width([]) == (0, 0)


def test_a_delay_is_never_negative() -> None:
    """A spread too wide for its median: the median is kept, for what is judged depends on it."""
    assert moved(100, 100, (150, 25), (400, 50)) == (300, 200)
    assert moved(100, 100, (150, 25), (100, 100)) == (0, 200)
    assert moved(100, 0, (100, 0), (250, 60)) == (250, 0)


def test_a_node_that_noticed_the_failure_itself_was_not_told() -> None:
    (run,) = simulated(plans_of([RUN], 1), Timing())

    assert {one.node for one in run.told} == {"pod1-agg0", "pod2-agg0", "pod3-agg0"}
    assert {one.write_ns for one in run.told} == {Timing().write_ns}
    assert all(Timing().bus_ns <= one.told_ns for one in run.told)


def test_the_verdict_says_by_how_much_and_on_which_side() -> None:
    row = Row("silent-drop", "last", predicted=(1 * MS, 20 * MS, 99 * MS), measured=(10 * MS, 30 * MS, 40 * MS))

    assert row.verdict == "within"
    assert replace(row, predicted=(0, 7 * MS, 99 * MS)).verdict == "**missed by 3.0 ms** (below)"
    assert replace(row, predicted=(0, 42 * MS, 99 * MS)).verdict == "**missed by 2.0 ms** (above)"


def test_the_table_has_every_figure_and_what_the_runs_leave_unexplained() -> None:
    lines = Lines(runs=[RUN, replace(RUN, seed=2, far=FAR | {"last": 20 * MS}, not_recovered=4)], troubles=1)
    predicted = [replace(RUN, far=FAR | {"first": 2 * MS})]

    text = table_of(rows_of(lines.runs, predicted), lines, predicted)

    assert "1 runs failed" in text
    assert "| single-link | first | 2.0 ms | 2.0 .. 2.0 | 9.0 ms | 9.0 .. 9.0 | **missed by 7.0 ms** (below) |" in text
    assert "| single-link | last | 16.0 ms | 16.0 .. 16.0 | 18.0 ms | 16.0 .. 20.0 | within |" in text
    assert "- single-link (fitted on it): 2 runs measured, 1 simulated; 2 of 2 measured chains add up; 4 flows" in text
    assert "| silent-drop |" not in text


def test_lines_are_read_as_they_were_written_and_half_a_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert read_lines(path) == Lines()
    header = json.dumps({"kind": "header", "machine": {"cores": "2"}})
    trouble = json.dumps({"kind": "trouble", "reason": "exit code 4"})
    path.write_text("\n".join([header, json.dumps(RUN.line()), trouble, json.dumps(RUN.line())[:50]]))

    assert read_lines(path) == Lines({"kind": "header", "machine": {"cores": "2"}}, [RUN], 1)


def test_what_is_printed_is_the_timing_with_its_source() -> None:
    lines = Lines({"machine": {"cores": "2", "processor": "a processor", "day": "2026-01-02"}}, [RUN])
    namespace: dict[str, object] = {"Timing": Timing, "US": US, "Final": object}
    timing = Timing(bus_ns=1_230 * US, write_ns=40 * US)

    code = code_of(timing, lines)
    exec(code, namespace)

    assert namespace["LAB_K4"] == timing
    assert "1 run of single-link" in code
    assert "2 cores (a processor), 2026-01-02, load before a run 0.3 .. 0.3" in code


def test_a_journal_without_chains_has_none() -> None:
    (run,) = simulated(plans_of([RUN], 1), Timing())

    assert (run.chain, run.interval_ns) == ((), 0)


def test_help_has_an_example() -> None:
    command = [sys.executable, "benchmarks/calibration.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "python benchmarks/calibration.py --out calibration.jsonl --measure 20" in done.stdout
