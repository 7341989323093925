"""`erfs campaign`, `replay`, `shrink` and `selfcheck` from outside: processes, exit codes, files."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import psutil
import pytest

from erfs_scenario.schema_files import schema_of
from tests.scenario.command import erfs

SCENARIO = """
name: quick
fabric: {generate: {kind: leaf-spine, leaves: 3, spines: 2, hosts_per_leaf: 1}}
faults:
  - {name: cut, kind: link_down, target: {kind: trunk, random: 1}, at: 1 s, for: 1 s}
  - {name: silent, kind: silent_drop, target: {kind: trunk, random: 1}, at: 4 s, for: 1 s}
expect: {recovery: {max: 25100 us}}
"""
"""Some seeds notice the silence sooner than others: 25.1 ms splits them."""

CALM = SCENARIO.replace("25100 us", "1 s")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "quick.yaml").write_text(SCENARIO)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below *folder*."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_campaign_writes_the_same_bytes_for_any_workers_and_hash_seed(folder: Path) -> None:
    arguments = ("campaign", "quick.yaml", "--seeds", 12, "--json", "--force", "--jobs")
    alone = erfs(*arguments, 1, folder=folder, hash_seed="1")
    files = contents(folder / "out")
    two = erfs(*arguments, 2, folder=folder, hash_seed="2")
    result = json.loads(alone.stdout)
    failed = [one for one in result["findings"] if one["outcome"] == "failed"]

    assert (two.returncode, two.stdout) == (alone.returncode, alone.stdout)
    assert contents(folder / "out") == files
    assert files["quick-campaign/campaign.json"].decode() == alone.stdout
    assert sorted(files) == ["quick-campaign/campaign.json", *sorted(f"quick-campaign/{one['plan']}" for one in failed)]
    assert 0 < len(failed) < 12
    assert {(one["phase"], one["check"]) for one in failed} == {("safety", "recovery max")}
    jsonschema.validate(result, schema_of("campaign"))


def test_a_failing_seed_is_replayed_shrunk_and_replayed(folder: Path) -> None:
    """Each command is the one that the command before it names."""
    campaign = erfs("campaign", "quick.yaml", "--seeds", 12, "--jobs", 1, "--out", "c", folder=folder)
    commands = dict(line.split(": ", 1) for line in campaign.stdout.splitlines() if ": erfs " in line)
    seed = min(int(name.rpartition(" ")[2]) for name in commands if name.startswith("replay seed "))
    replayed = erfs(*commands[f"replay seed {seed}"].split()[1:], "--out", "again", folder=folder)
    shrunk = erfs(*commands["make it small"].split()[1:], folder=folder)
    small = folder / "c" / f"seed-{seed}-shrunk.json"
    run = erfs("run", "quick.yaml", "--seed", seed, folder=folder)

    assert campaign.returncode == replayed.returncode == run.returncode == 1
    assert contents(folder / "again") == contents(folder / "out" / f"quick-seed{seed}"), "as if it had been run so"
    assert shrunk.returncode == 0, shrunk.stderr
    assert f"replay: erfs replay c/seed-{seed}-shrunk.json" in shrunk.stdout
    plan = json.loads(small.read_text())
    assert len(plan["faults"]) == 1
    assert len(plan["fabric"]["nodes"]) < 8
    again = erfs("replay", small, "--out", "small", folder=folder)
    assert again.returncode == 1, "it fails as the run did"
    assert "recovery max" in again.stdout
    assert (folder / "small" / "report.html").is_file()


def test_a_journal_is_replayed_and_shrunk_without_its_scenario_by_the_command_in_its_report(folder: Path) -> None:
    erfs("run", "quick.yaml", "--out", "run", folder=folder)
    (folder / "quick.yaml").unlink()
    command = json.loads((folder / "run" / "report.json").read_text())["replay"]
    replay = erfs(*command.split()[1:], folder=folder / "run", hash_seed="7")
    lines = (folder / "run" / "journal.jsonl").read_bytes().count(b"\n")

    assert command == "erfs replay journal.jsonl"
    assert (replay.returncode, replay.stdout.splitlines()[0]) == (0, f"the same {lines} lines, byte for byte")


def test_a_changed_journal_is_told_where(folder: Path) -> None:
    erfs("run", "quick.yaml", "--out", "run", folder=folder)
    journal = folder / "run" / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    lines[40] = lines[40].replace(b'"at_ns":', b'"at_ns":9')
    journal.write_bytes(b"\n".join(lines))
    done = erfs("replay", "run/journal.jsonl", "--json", folder=folder)
    result = json.loads(done.stdout)

    assert (done.returncode, result["is_same"], result["difference"]["line"]) == (1, False, 41)
    assert result["difference"]["column"] == 10
    told = erfs("replay", "run/journal.jsonl", folder=folder).stdout.splitlines()
    assert told[0] == "line 41 is the first that differs, from column 10 on"
    assert told[1].startswith('  then: {"at_ns":9')


def test_a_journal_that_breaks_off_is_the_same_as_far_as_it_goes(folder: Path) -> None:
    erfs("run", "quick.yaml", "--out", "run", folder=folder)
    journal = folder / "run" / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")
    journal.write_bytes(b"\n".join(lines[:30]) + b'\n{"at_ns"')
    done = erfs("replay", "run/journal.jsonl", folder=folder)

    assert done.returncode == 0
    assert done.stdout.startswith("the same 30 lines, byte for byte, where the journal breaks off; the rerun has ")

    journal.write_bytes(lines[0] + b"\n" + lines[1][:1000])
    done = erfs("replay", "run/journal.jsonl", folder=folder)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith(
        "erfs: run/journal.jsonl:2: this journal breaks off before the plan of its run (run its"
    )


def test_a_run_in_real_time_is_replayed_in_simulation_where_that_can_do_it_and_no_bytes_are_compared(
    folder: Path,
) -> None:
    (folder / "calm.yaml").write_text(CALM)
    erfs("run", "calm.yaml", "--out", "run", folder=folder)
    journal = folder / "run" / "journal.jsonl"
    text = journal.read_text()
    journal.write_text(text.replace('"backend":"sim"', '"backend":"kernel"', 1))
    done = erfs("replay", journal, folder=folder)
    assert (done.returncode, done.stderr) == (0, "erfs: no bytes to compare: run on kernel, now on sim\n")
    assert done.stdout.rstrip().endswith("met")

    journal.write_text(text.replace('"kind":"silent_drop"', '"kind":"rate_limit"'))
    for arguments, reason in (
        (("replay", journal), "no rates are simulated"),
        (("shrink", journal), "no rates are simulated"),
        (("replay", journal, "--backend", "live"), "no packets are sent"),
    ):
        done = erfs(*arguments, folder=folder)
        assert (done.returncode, done.stdout) == (64, "")
        assert f"cannot do rate_limit: {reason} (run it with --backend kernel)" in done.stderr


def test_a_replay_does_not_overwrite_what_it_replays(folder: Path) -> None:
    erfs("run", "quick.yaml", "--out", "run", folder=folder)
    before = contents(folder / "run")
    done = erfs("replay", "run/journal.jsonl", "--out", "run", "--force", folder=folder)

    assert (done.returncode, contents(folder / "run")) == (64, before)
    assert "name another folder" in done.stderr


def test_what_passes_is_not_shrunk(folder: Path) -> None:
    (folder / "calm.yaml").write_text(CALM)
    erfs("run", "calm.yaml", "--out", "run", folder=folder)
    done = erfs("shrink", "run/journal.jsonl", "--out", "small.json", folder=folder)

    assert (done.returncode, done.stdout) == (2, "nothing to shrink: the plan passes in simulation\n")
    assert not (folder / "small.json").exists()


def test_a_campaign_without_a_failure_says_how_sure_that_is(folder: Path) -> None:
    (folder / "calm.yaml").write_text(CALM)
    done = erfs("campaign", "calm.yaml", "--seeds", 4, folder=folder)

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == [
        "quick, seeds 1 to 4: leaf-spine 3x2",
        "4 seeds: 4 passed, 0 failed, 0 undecidable",
        "seeds that fail: 0.0000 % (0 of 4); 95 %: 0.0000 % to 60.2365 %, Clopper-Pearson; rule of three: one-sided, at most 0.7489",
        "campaign: out/quick-campaign/campaign.json",
    ]
    again = erfs("campaign", "calm.yaml", "--seeds", 4, folder=folder)
    assert (again.returncode, again.stdout) == (64, "")
    assert "there is a campaign.json in this folder already" in again.stderr


def test_a_selfcheck_of_what_repeats_finds_nothing(folder: Path) -> None:
    done = erfs("selfcheck", "quick.yaml", "--json", folder=folder)
    result = json.loads(done.stdout)

    assert (done.returncode, result["is_same"], result["difference"]) == (0, True, None)


def test_a_selfcheck_finds_what_depends_on_the_hash_seed(folder: Path) -> None:
    """Chance is planted from outside: a module that Python loads at its start lets streams begin with a hash."""
    (folder / "sitecustomize.py").write_text(
        "import random, erfs_scenario.plan as plan\nplan.stream = lambda seed, name: random.Random(hash(name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "erfs", "selfcheck", "quick.yaml"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("line 1 is the first that differs, from column ")
    assert [line.partition(": ")[0] for line in lines[1:]] == ["  hash seed 0", "  hash seed 1"]


def test_bad_input_is_told_as_always(folder: Path) -> None:
    (folder / "other.jsonl").write_text('{"event": "run_started"}\n{"event": "x"}\n')
    for arguments, message in (
        (("campaign", "none.yaml"), "none.yaml: cannot be read"),
        (("selfcheck", "none.yaml"), "none.yaml: cannot be read"),
        (("replay", "none.jsonl"), "none.jsonl: cannot be read"),
        (("shrink", "none.jsonl"), "none.jsonl: cannot be read"),
        (("replay", "quick.yaml"), "quick.yaml: neither a journal nor a plan"),
        (("replay", "other.jsonl"), "other.jsonl:2: expected the plan of this journal's run"),
    ):
        done = erfs(*arguments, folder=folder)
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (64, "", False), arguments
        assert done.stderr.startswith(f"erfs: {message}"), done.stderr
    both = erfs("campaign", "quick.yaml", "--jobs", 2, "--scheduler", "tcp://127.0.0.1:1", folder=folder)
    assert (both.returncode, "--jobs is for processes on this machine" in both.stderr) == (64, True)
    assert not (folder / "out").exists(), "nothing is made for what never starts"


def test_ctrl_c_writes_what_is_known_and_leaves_no_worker(folder: Path) -> None:
    campaign = subprocess.Popen(
        [sys.executable, "-m", "erfs", "campaign", "quick.yaml", "--seeds", "100000", "--jobs", "2", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers: list[psutil.Process] = []
    try:
        while campaign.poll() is None and len(workers) < 2:
            children = psutil.Process(campaign.pid).children(recursive=True)
            workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        os.killpg(campaign.pid, signal.SIGINT)
        out, err = campaign.communicate(timeout=60)
    finally:
        if campaign.poll() is None:
            os.killpg(campaign.pid, signal.SIGKILL)

    assert (campaign.returncode, err) == (3, "erfs: interrupted\n")
    result = json.loads(out)
    assert (result["seeds_asked"], result["seeds_run"] < 100000) == (100000, True)
    assert (folder / "out" / "quick-campaign" / "campaign.json").read_text() == out
    assert psutil.wait_procs(workers, timeout=20)[1] == []


def test_a_dask_cluster_says_the_same(folder: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    arguments = ("campaign", "quick.yaml", "--seeds", 6, "--json", "--force")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        dask = erfs(*arguments, "--scheduler", cluster.scheduler_address, folder=folder)
    alone = erfs(*arguments, "--jobs", 1, folder=folder)

    assert (dask.returncode, dask.stdout) == (alone.returncode, alone.stdout)
