"""`erfs report`: the journal alone is enough, whatever became of the run."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from erfs.journal import read
from erfs_scenario.timeline import read_timeline
from tests.scenario.command import erfs, run_small

SCENARIO = """
name: small
fabric: {generate: {kind: fat-tree, k: 4}}
faults:
  - {name: cut, kind: link_down, target: {kind: trunk, tier: 2, random: 1}, at: 1 s, for: 3 s}
expect:
  recovery: {max: 50 ms}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in whose ``out/small-seed1`` the small scenario has run."""
    found = tmp_path_factory.mktemp("report")
    run_small(found, SCENARIO)
    return found


def test_a_report_is_made_anew_byte_for_byte_from_the_journal_alone(folder: Path, tmp_path: Path) -> None:
    out = folder / "out/small-seed1"
    (tmp_path / "journal.jsonl").write_bytes((out / "journal.jsonl").read_bytes())
    done = erfs("report", tmp_path, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"passed: 5 expectations met\nreport: {tmp_path / 'report.html'}\n")
    for name in ("report.json", "report.html"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_the_journal_holds_the_ways_of_the_flows_that_were_harmed_longest(folder: Path) -> None:
    """Before over the cable that is cut, after beside it; and what broke."""
    (fault,) = read_timeline(read(folder / "out/small-seed1/journal.jsonl")).faults
    (cut,) = fault.broken
    assert 1 <= len(fault.paths) <= 10
    for before, after in fault.paths.values():
        steps = [{one, other} for one, other in pairwise(before)]
        assert set(cut) in steps
        assert set(cut) not in [{one, other} for one, other in pairwise(after)]
        assert (before[0], before[-1]) == (after[0], after[-1])
        assert set(before) | set(after) <= set(fault.nodes)
    tiers = {name: tier for name, (_, tier) in fault.nodes.items()}
    assert {tiers[node] for node in cut} == {1, 2}


def test_a_folder_without_a_journal_is_bad_usage(folder: Path) -> None:
    done = erfs("report", "out", folder=folder)
    assert done.returncode == 64
    assert done.stderr.startswith("erfs: out: there is no journal.jsonl in this folder (name the folder")


def test_the_journal_of_a_killed_run_is_judged_as_far_as_it_goes(tmp_path: Path) -> None:
    """SIGKILL while a link flaps for an hour: nothing of ours gets to run, the last line may be half a line, and nothing is left."""
    flap = "kind: link_flap, period: 100 ms, target: {kind: trunk, tier: 2, random: 1}, at: 1 s, for: 1 h}"
    text = SCENARIO.replace("kind: link_down, target: {kind: trunk, tier: 2, random: 1}, at: 1 s, for: 3 s}", flap)
    (tmp_path / "small.yaml").write_text(text)
    journal = tmp_path / "out/small-seed1/journal.jsonl"
    run = subprocess.Popen(
        [sys.executable, "-c", "from erfs.cli.main import main; main()", "run", "small.yaml"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 90
    while not (journal.exists() and b'"fault_effective"' in journal.read_bytes()):
        assert run.poll() is None, "it ended before its fault"
        assert time.monotonic() < until, "no fault in the journal"
    run.send_signal(signal.SIGKILL)
    assert run.wait(timeout=30) == -signal.SIGKILL
    assert not (tmp_path / "out/small-seed1/report.json").exists()

    with journal.open("ab") as file:
        file.write(b'{"at_ns":9')
    done = erfs("report", "out/small-seed1", "--json", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["outcome"] == "undecidable"
    assert verdict["reasons"][0].startswith("harness died at ")
    assert "undecidable" in (tmp_path / "out/small-seed1/report.html").read_text()
    with pytest.raises(ProcessLookupError):
        # The whole session of the run: nothing of it outlived the kill.
        os.killpg(run.pid, 0)
