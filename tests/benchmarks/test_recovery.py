"""The benchmark of recovery: what breaks is the same for everybody, and what the lines of a run are made into.

How fast anything is is none of a test's business.
"""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import missing
from benchmarks.recovery_report import SYSTEMS, chart, figures_of, quantile, read_lines, summary
from benchmarks.recovery_systems import access_subnet, fabric_of, watched_links
from benchmarks.recovery_trials import (
    FAULTS,
    ISOLATED,
    LINK_DOWN,
    ONE_WAY,
    SECOND_FAILURE,
    SILENT,
    Break,
    Outcome,
    Side,
    _fate,
    _side,
    sending_ends,
    trials_of,
)
from erfs.addressing import plan_addresses
from erfs.fabric import LinkEnd, Medium, goes_up
from erfs.ids import NodeId
from erfs.units import MS
from erfs_scenario.kernel.outages import FlowRecord, Gap

ROOT = Path(__file__).resolve().parents[2]
FABRIC = fabric_of(4, Medium.LOSSY)
WATCHED = watched_links(FABRIC, 1)
SIDE = Side(flows=30, last_ms=10.0, largest_ms=9.0, median_ms=8.0, censored=0, several=0)
OUTCOME = Outcome(
    system="ERFS",
    fault=LINK_DOWN,
    index=0,
    links=("a:1|b:1",),
    far=SIDE,
    near=None,
    flows=72,
    beside_lost=0,
    call_ms=0.3,
    late_p99_ms=0.1,
    late_max_ms=0.4,
    prober_percent=50.0,
    window_ms=1000.0,
)


def line(system: str, fault: str, index: int, last_ms: float | None) -> dict[str, Any]:
    far = replace(SIDE, last_ms=last_ms, censored=0 if last_ms is not None else 3)
    return replace(OUTCOME, system=system, fault=fault, index=index, far=far).line()


def written(path: Path, outcomes: list[dict[str, Any]], *more: str) -> Path:
    header = json.dumps({"kind": "header", "parameters": {}, "machine": {}, "load": ""})
    path.write_text("\n".join([header, *(json.dumps({"kind": "outcome", **one}) for one in outcomes), *more]))
    return path


# --- what breaks -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", FAULTS)
def test_equal_seeds_break_the_same_and_others_something_else(fault: str) -> None:
    one, same, other = (trials_of(FABRIC, WATCHED, fault, 20, seed) for seed in (1, 1, 2))

    assert one == same
    assert one != other


def test_more_trials_begin_with_the_fewer() -> None:
    assert trials_of(FABRIC, WATCHED, SILENT, 60, 1)[:2] == trials_of(FABRIC, WATCHED, SILENT, 2, 1)


def test_one_pod_has_eight_links_between_switches_and_each_breaks_equally_often() -> None:
    broken = Counter(trial.first.links for trial in trials_of(FABRIC, WATCHED, LINK_DOWN, 24, 1))

    assert broken == {(link.id,): 3 for link in WATCHED}
    assert len(WATCHED) == 8


def test_what_is_isolated_is_watched_on_all_its_links() -> None:
    nodes = {end.node for trial in trials_of(FABRIC, WATCHED, ISOLATED, 8, 1) for end in trial.first.deaf}

    assert nodes == {"pod0-agg0", "pod0-agg1"}


def test_a_one_way_drop_is_on_the_way_down() -> None:
    for trial in trials_of(FABRIC, WATCHED, ONE_WAY, 8, 1):
        (deaf,) = trial.first.deaf
        (sender,) = sending_ends(FABRIC, trial.first)
        link = FABRIC.link_at[deaf]
        assert (sender, goes_up(FABRIC, link, deaf.node)) == (link.far_end(deaf.node), True)


def test_the_second_failure_hits_an_uplink_of_the_other_way_out() -> None:
    for trial in trials_of(FABRIC, WATCHED, SECOND_FAILURE, 8, 1):
        assert trial.then is not None
        first, then = (FABRIC.links[what.links[0]] for what in (trial.first, trial.then))
        assert {end.node[5:9] for end in first.ends} >= {"edge"}
        assert {end.node[:4] for end in then.ends} == {"pod0", "core"}
        assert not {end.node for end in first.ends} & {end.node for end in then.ends}


def test_a_port_set_down_harms_both_directions_and_a_deaf_one_only_what_comes() -> None:
    link = WATCHED[0]

    assert sending_ends(FABRIC, Break(down=(link.a,))) == {link.a, link.b}
    assert sending_ends(FABRIC, Break(deaf=(link.a,))) == {link.b}
    assert sending_ends(FABRIC, Break(deaf=(link.a,), mute=(link.a,))) == {link.a, link.b}


def test_each_host_has_a_subnet_with_an_address_left_for_its_switch() -> None:
    addressing = plan_addresses(FABRIC)
    subnets = [access_subnet(addressing, host.id) for host in FABRIC.endpoints]

    assert subnets[:2] == [IPv4Network("10.64.0.0/31"), IPv4Network("10.64.0.2/31")]
    assert len(set(subnets)) == len(FABRIC.endpoints) == 16
    assert LinkEnd(NodeId("pod0-edge0"), "1") in FABRIC.link_at


# --- what became of a flow -------------------------------------------------------------------------------------------------
def record(*gaps: tuple[int, int]) -> FlowRecord:
    """A flow that sent a datagram each millisecond and lost those from .. to."""
    found = tuple(
        Gap(start, stop - start, start * MS, stop * MS, (stop - start + 1) * MS, is_open=stop == 1000)
        for start, stop in gaps
    )
    return FlowRecord(1000, found, 0, 0, 0, 0, 0)


def test_the_last_recovery_counts_from_the_effect_to_the_end_of_the_last_gap() -> None:
    fates = [
        _fate(record((101, 111)), 100 * MS, 900 * MS, MS),
        _fate(record((101, 103), (110, 130)), 100 * MS, 900 * MS, MS),
    ]

    assert _side(fates) == Side(flows=2, last_ms=30.0, largest_ms=20.0, median_ms=15.0, censored=0, several=1)


def test_a_flow_that_lost_nothing_counts_as_nothing_and_one_that_stays_away_is_censored() -> None:
    fates = [_fate(record(), 100 * MS, 900 * MS, MS), _fate(record((101, 1000)), 100 * MS, 900 * MS, MS)]

    assert _side(fates) == Side(flows=2, last_ms=None, largest_ms=799.0, median_ms=399.5, censored=1, several=0)


def test_what_was_lost_before_the_effect_or_after_the_window_does_not_count() -> None:
    assert _side([_fate(record((10, 20), (950, 960)), 100 * MS, 900 * MS, MS)]) == Side(1, 0.0, 0.0, 0.0, 0, 0)


# --- what the lines say ----------------------------------------------------------------------------------------------------
def test_a_trial_that_never_recovered_is_larger_than_all_others() -> None:
    found = figures_of([line("ERFS", SILENT, index, value) for index, value in enumerate([5.0, None, 7.0])], "far")

    assert found is not None
    assert (found.trials, found.median_ms, found.max_ms, found.censored, found.censored_flows) == (
        3,
        7.0,
        math.inf,
        1,
        3,
    )


@pytest.mark.parametrize(("count", "p95"), [(58, None), (59, 57.0), (60, 57.0)])
def test_a_95th_percentile_needs_59_trials(count: int, p95: float | None) -> None:
    found = figures_of([line("ERFS", SILENT, index, float(index + 1)) for index in range(count)], "far")

    assert found is not None
    assert found.p95_ms == p95


def test_quantiles_are_of_the_sample_and_the_median_of_two_is_between_them() -> None:
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([1.0, math.inf], 0.5) == math.inf
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([float(value) for value in range(1, 101)], 0.95) == 95.0


def test_ratios_are_against_the_better_frr_and_a_missed_target_is_called_missed(tmp_path: Path) -> None:
    outcomes = [
        line(system, fault, 0, value)
        for system, fault, value in [
            ("FRR default", LINK_DOWN, 20.0),
            ("FRR tuned", LINK_DOWN, 10.0),
            ("ERFS", LINK_DOWN, 2.0),
            ("FRR default", SILENT, None),
            ("FRR tuned", SILENT, 40.0),
            ("ERFS", SILENT, 36.0),
        ]
    ]

    told = summary(read_lines(written(tmp_path / "lines", outcomes)))

    judged = {(one["what"], one["system"]): (one["ratio"], one["is_met"]) for one in told["targets"]}
    assert judged[f"{LINK_DOWN}, median", "ERFS"] == (0.2, True)
    assert judged[f"{SILENT}, median", "ERFS"] == (0.9, False)
    assert judged[f"{ISOLATED}, median", "ERFS"] == (None, None)


def test_half_a_line_at_the_end_is_left_out_and_what_is_whole_is_not_run_again(tmp_path: Path) -> None:
    lines = read_lines(written(tmp_path / "lines", [line("ERFS", SILENT, 4, 3.0)], '{"kind": "outco'))

    assert lines.done == {("ERFS", SILENT, 4)}


def test_the_chart_is_well_formed_and_says_who_did_not_recover(tmp_path: Path) -> None:
    outcomes = [line(system, LINK_DOWN, index, 3.0) for system in SYSTEMS[1:] for index in range(3)]
    outcomes += [line(SYSTEMS[0], LINK_DOWN, index, None) for index in range(3)]

    drawn = ElementTree.fromstring(chart(read_lines(written(tmp_path / "lines", outcomes))))

    assert len(drawn.findall("{*}circle")) == 12
    assert "3 of 3 not recovered" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_a_report_needs_nothing_but_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "lines", [line("ERFS", LINK_DOWN, 0, 2.0)])

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- recovery: begin -->old<!-- recovery: end -->\nafter\n")

    done = run("--report", str(path), "--json", "--svg", str(tmp_path / "chart.svg"), "--markdown", str(page))

    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["system"], row["far"]["median_ms"], row["near"]) == ("ERFS", 2.0, None)
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
    told = page.read_text()
    assert told.startswith("before\n<!-- recovery: begin -->\n")
    assert told.endswith("<!-- recovery: end -->\nafter\n")
    assert "| link down | ERFS | 1 | 2.0 |" in told


# --- really ----------------------------------------------------------------------------------------------------------------
def run(*arguments: str, timeout_s: int = 110) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "benchmarks/recovery.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_help_has_an_example() -> None:
    done = run("--help")

    assert done.returncode == 0, done.stderr
    assert "python benchmarks/recovery.py --out recovery.jsonl" in done.stdout


@pytest.mark.kernel
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
def test_systems_take_turns_on_the_same_namespaces_and_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "lines"
    arguments = ("--quick", "--faults", LINK_DOWN, "--out", str(out), "--json", "--systems", "kernel only")

    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    before = out.read_text()
    second = run(*arguments, "FRR default", timeout_s=280)

    assert second.returncode == 0, second.stderr
    assert out.read_text().startswith(before)
    rows = {row["system"]: row for row in json.loads(second.stdout)["rows"]}
    assert {name: row["trials"] for name, row in rows.items()} == {"kernel only": 2, "FRR default": 2}
    assert (rows["kernel only"]["far"]["censored"], rows["FRR default"]["far"]["censored"]) == (2, 0)
    assert rows["FRR default"]["flows_min"] >= 20
