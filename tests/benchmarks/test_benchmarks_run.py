"""The benchmarks run, and ours and the peers' answers agree. How fast anything is is none of a test's business."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import Bench, count_armed, count_armed_without_programs
from erfs.generators import generate
from erfs.paths import compute

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"benchmarks/{script}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


def test_next_hops_and_distances_are_those_of_the_peers() -> None:
    done = run("paths.py", "--sizes", "4", "--rounds", "1", "--no-selene", "--json")

    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    (result,) = told["results"]
    assert (result["fabric"], result["switches"], result["trunks"], result["classes"]) == ("fat-tree k=4", 20, 32, 8)
    assert (result["networkx_answer"], result["rustworkx_answer"]) == ("equal", "equal")
    assert result["failures"] == 32 + 20


def test_tables_are_written_between_the_markers_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- paths: begin -->\nold\n<!-- paths: end -->\nafter\n")

    done = run("paths.py", "--sizes", "4", "--rounds", "1", "--no-selene", "--markdown", str(page))

    assert done.returncode == 0, done.stderr
    before, begin, rest = page.read_text().partition("<!-- paths: begin -->")
    inside, end, after = rest.partition("<!-- paths: end -->")
    assert (before, bool(begin), bool(end), after) == ("before\n", True, True, "\nafter\n")
    assert "| fat-tree k=4 |" in inside
    assert "old" not in inside


@pytest.mark.parametrize("script", ["paths.py", "opensm.py"])
def test_help_has_an_example(script: str) -> None:
    done = run(script, "--help")

    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{script} --sizes 8" in done.stdout


def test_without_its_peer_the_opensm_benchmark_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    import benchmarks.opensm as benchmark

    monkeypatch.setattr(benchmark, "WRAPPERS", ())
    monkeypatch.setattr(benchmark, "SYSTEM_FOLDERS", "")
    monkeypatch.setenv("PATH", "")

    assert benchmark.missing() == ["ibsim", "opensm", "libumad2sim.so"]


def test_a_sweep_is_timed_from_the_first_engine_to_the_tables(tmp_path: Path) -> None:
    """An engine that gives up counts with the one that takes over, and a line that is half written is waited for."""
    from benchmarks.opensm import LogReader, Sweep, next_sweep

    log = tmp_path / "opensm.log"
    log.write_text(
        "Dec 02 23:59:59 900000 [6FFFC6C0] 0x01 -> log_trap_info: Received Generic Notice type:1 num:128 (Link state)\n"
        "Dec 02 23:59:59 950000 [6FFFC6C0] 0x04 -> ucast_mgr_route: building routing with 'ftree' routing algorithm...\n"
        "Dec 02 23:59:59 990000 [6FFFC6C0] 0x04 -> ucast_mgr_route: building routing with 'minhop' routing algorithm...\n"
        "Dec 03 00:00:00 150000 [6FFFC6C0] 0x02 -> osm_ucast_mgr_process: minhop tables configured on all switches\n"
        "Dec 03 00:00:00 400000 [6FFFC6C0] 0x02 -> SUB"
    )

    def is_running() -> bool:
        with log.open("a") as file:
            file.write("NET UP\n")
        return True

    sweep = next_sweep(LogReader(log), 10, is_running, None)

    assert sweep == Sweep("minhop", pytest.approx(0.2), pytest.approx(0.5))


def test_every_agent_acknowledges_every_fact_and_none_before_it_was_said() -> None:
    done = run(
        "fact_fanout.py", "--agents", "5", "--brokers", "embedded", "--rounds", "3", "--per-process", "3", "--json"
    )

    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["broker"], result["agents"], result["processes"]) == ("embedded", 5, 2)
    rounds = list(zip(result["first_s"], result["median_s"], result["last_s"], strict=True))
    assert len(rounds) == 3
    assert all(0 < first <= median <= last for first, median, last in rounds)


@pytest.mark.parametrize("k", [4, 6])
def test_what_is_armed_is_counted_alike_from_programs_and_from_arrays(k: int) -> None:
    fabric = generate("fat-tree", {"k": k})
    bench = Bench(f"fat-tree k={k}", fabric, 1)
    programs = compute(bench.topology, unusable=frozenset()).programs
    assert count_armed_without_programs(bench, 100) == count_armed(programs, bench.topology)
