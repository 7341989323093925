"""`erfs compare`: two runs of the same faults, each event with itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from erfs.errors import FabricError
from erfs_scenario.comparing import compare
from erfs_scenario.judging import judge
from erfs_scenario.report import Report
from tests.scenario.test_report import erfs

SCENARIO = """
name: eight
fabric: {generate: {kind: fat-tree, k: 4}}
faults:
""" + "".join(
    f"  - {{name: cut{index}, kind: link_down, target: {{kind: trunk, random: 1}}, at: {4 * index} s, for: 1 s}}\n"
    for index in range(1, 9)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eight cuts, run once with protection and once without."""
    found = tmp_path_factory.mktemp("compare")
    (found / "eight.yaml").write_text(SCENARIO)
    for name, options in (("with", ()), ("without", ("--no-protection",))):
        done = erfs("run", "eight.yaml", "--out", name, *options, folder=found)
        assert done.returncode == 0, done.stdout + done.stderr
    return found


@pytest.fixture(scope="module")
def reports(folder: Path) -> tuple[Report, Report]:
    """Without protection, and with."""
    return judge(folder / "without/journal.jsonl"), judge(folder / "with/journal.jsonl")


def test_protection_shows_as_a_paired_difference_with_its_interval(reports: tuple[Report, Report]) -> None:
    """Every single event is sooner with protection, so the interval of the median difference lies below zero."""
    found = compare(*reports, ("without", "with"))
    recovery, lost = found.quantities
    assert (recovery.pairs, recovery.smaller, recovery.equal, recovery.larger, recovery.left_out) == (8, 8, 0, 0, 0)
    differences = sorted(pair.recovery_ns[1] - pair.recovery_ns[0] for pair in found.events)  # type: ignore[operator]
    assert recovery.median.value_ns == differences[3], "nearest rank of an even number"
    interval = recovery.median.interval
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low <= differences[3] <= interval.high < -25_000_000
    assert interval.level_ppm == 950_000
    assert lost.smaller == 8
    assert [(one.name, one.first, one.second) for one in found.differences] == [("protection", "none", "armed")]
    assert found.faults_unpaired == (0, 0)
    (pairs,) = found.demand_sets
    assert pairs.difference_ppm == pairs.availability_ppm[1] - pairs.availability_ppm[0] > 0


def test_a_mean_of_eight_pairs_is_refused_and_the_events_that_it_takes_are_told(reports: tuple[Report, Report]) -> None:
    mean = compare(*reports, ("a", "b")).quantities[0].mean
    assert (mean.value_ns, mean.interval) == (None, None)
    assert mean.refusal is not None
    assert mean.refusal.events_needed is not None
    assert mean.refusal.events_needed >= 100


def test_a_run_differs_from_itself_in_nothing(reports: tuple[Report, Report]) -> None:
    found = compare(reports[0], reports[0], ("a", "a"))
    assert found.differences == ()
    assert [(one.smaller, one.equal, one.larger, one.median.value_ns) for one in found.quantities] == [(0, 8, 0, 0)] * 2


def changed(report: Report, **fault: Any) -> Report:
    """Return *report* with its first fault as *fault* says."""
    first = report.faults[0].model_copy(update=fault)
    return report.model_copy(update={"faults": (first, *report.faults[1:])})


def test_what_one_run_did_not_recover_from_is_slower_than_anything(reports: tuple[Report, Report]) -> None:
    """And what neither recovered from has no difference."""
    endless = {"not_recovered": reports[0].faults[0].affected}
    found = compare(changed(reports[0], **endless), reports[1], ("a", "b"))
    assert (found.quantities[0].smaller, found.events[0].recovery_ns[0]) == (8, None)
    both = compare(changed(reports[0], **endless), changed(reports[1], **endless), ("a", "b"))
    assert (both.quantities[0].pairs, both.quantities[0].left_out) == (7, 1)


def test_faults_without_a_counterpart_are_counted_not_compared(reports: tuple[Report, Report]) -> None:
    found = compare(changed(reports[0], links=("x|y",)), reports[1], ("a", "b"))
    assert (found.faults_unpaired, found.quantities[0].pairs) == ((1, 1), 7)


def test_runs_with_nothing_in_common_are_refused(reports: tuple[Report, Report]) -> None:
    with pytest.raises(FabricError, match="have no fault in common"):
        compare(reports[0], reports[1].model_copy(update={"faults": ()}), ("a", "b"))
    other = reports[1].fabric.model_copy(update={"digest": "0"})
    with pytest.raises(FabricError, match="only runs on the same fabric can be compared"):
        compare(reports[0], reports[1].model_copy(update={"fabric": other}), ("a", "b"))


def test_the_command_prints_a_table_or_json_and_refuses_a_folder_without_a_run(folder: Path) -> None:
    done = erfs("compare", "without", "with", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  protection: A none, B armed\n" in done.stdout
    assert "recovery, median: -" in done.stdout
    assert "95 %: -" in done.stdout
    printed = json.loads(erfs("compare", "without", "with", "--json", folder=folder).stdout)
    assert printed["quantities"][0]["smaller"] == 8
    refused = erfs("compare", "without", "nowhere", folder=folder)
    assert refused.returncode == 64
    assert "nowhere: there is no journal.jsonl" in refused.stderr
