"""`erfs run`, `plan` and `check` as a user meets them: files, exit codes, and the page nobody needs a network for."""

import hashlib
import json
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from erfs.journal import read
from erfs_scenario.judging import judge
from erfs_scenario.rendering import html_of
from erfs_scenario.schema_files import schema_of
from tests.scenario.command import erfs, run_small

SCENARIO = """
name: small
fabric: {generate: {kind: fat-tree, k: 4}}
faults:
  - {name: cut, kind: link_down, target: {kind: trunk, tier: 2, random: 1}, at: 1 s, for: 3 s}
expect:
  recovery: {max: 50 ms}
  availability: {min: 99.99 %}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small scenario, run once with seed 1."""
    found = tmp_path_factory.mktemp("run")
    (found / "stdout.txt").write_text(run_small(found, SCENARIO).stdout)
    return found


@pytest.fixture(scope="module")
def out(folder: Path) -> Path:
    """Where that run went when nobody said where."""
    return folder / "out/small-seed1"


def test_a_run_leaves_its_journal_its_report_and_its_page(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == ["journal.jsonl", "report.html", "report.json"]


def test_the_terminal_shows_recovery_stages_return_availability_verdict_and_where_the_page_is(folder: Path) -> None:
    text = (folder / "stdout.txt").read_text()
    for heading in (
        "recovery",
        "near end (ms)",
        "far end (ms)",
        "detection",
        "computation",
        "programming",
        "availability",
    ):
        assert heading in text
    assert re.search(r"^passed: 6 expectations met$", text, re.MULTILINE)
    assert text.rstrip().endswith("report: out/small-seed1/report.html")
    assert "\x1b" not in text, "no colours for a file"


def test_the_report_fits_its_published_schema_and_the_journal_gives_it_again(out: Path) -> None:
    report = json.loads((out / "report.json").read_text())
    jsonschema.validate(report, schema_of("report"))
    assert json.loads(judge(out / "journal.jsonl").model_dump_json(by_alias=True)) == report


def test_near_and_far_end_flows_both_recover_within_the_founding_promise(out: Path) -> None:
    """Outbound flows have another uplink at the edge switch; inbound ones need the fact to travel."""
    (fault,) = judge(out / "journal.jsonl").faults
    assert fault.near.flows == fault.far.flows == 7
    assert fault.near.last_ns is not None
    assert fault.far.last_ns is not None
    assert fault.near.last_ns < fault.far.last_ns < 50_000_000
    assert (fault.not_recovered.flows, fault.return_.flows_lost) == (0, 0)


def test_the_same_run_gives_the_same_journal_bytes_and_another_seed_others(folder: Path, out: Path) -> None:
    def digest(name: str, hash_seed: str, seed: int) -> str:
        done = erfs("run", "small.yaml", "--seed", seed, "--out", name, folder=folder, hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        return hashlib.sha256((folder / name / "journal.jsonl").read_bytes()).hexdigest()

    first = hashlib.sha256((out / "journal.jsonl").read_bytes()).hexdigest()
    assert digest("again", "1", 1) == first
    assert digest("random", "random", 1) == first
    assert digest("other", "0", 2) != first


def test_the_journal_names_nothing_of_this_machine(folder: Path, out: Path) -> None:
    text = (out / "journal.jsonl").read_text()
    assert str(folder) not in text
    instants = [record["at_ns"] for record in read(out / "journal.jsonl")]
    assert instants == sorted(instants)


def test_an_earlier_run_is_not_overwritten_unless_forced(folder: Path) -> None:
    refused = erfs("run", "small.yaml", folder=folder)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr.startswith(
        "erfs: out/small-seed1: there is a journal.jsonl in this folder already (name another"
    )
    forced = erfs("run", "small.yaml", "--force", "--json", folder=folder)
    assert forced.returncode == 0
    assert json.loads(forced.stdout)["verdict"]["outcome"] == "passed"


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (("max: 50 ms", "max: 1 us"), 1, "recovery max: the last flow of"),
        (("tier: 2", "label: {pod: 0}, tier: 3"), 0, "met"),
        (
            ("faults:", "demands: {groups: {job: {select: {label: {pod: 3}}}}}\nfaults:"),
            2,
            "is crossed by no measured flow",
        ),
    ],
)
def test_the_exit_code_says_what_became_of_it(tmp_path: Path, change: tuple[str, str], code: int, reason: str) -> None:
    text = SCENARIO.replace(*change)
    if code == 2:
        text = text.replace("tier: 2, random: 1", "name: pod0-edge0 - pod0-agg0")
    (tmp_path / "s.yaml").write_text(text)
    done = erfs("run", "s.yaml", folder=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert reason in done.stdout


def test_without_protection_the_far_end_waits_for_the_controller(folder: Path, out: Path) -> None:
    done = erfs("run", "small.yaml", "--no-protection", "--out", "bare", "--json", folder=folder)
    (bare,) = json.loads(done.stdout)["faults"]
    (armed,) = judge(out / "journal.jsonl").faults
    assert armed.far.last_ns is not None
    assert bare["far"]["last_ns"] > armed.far.last_ns
    assert bare["far"]["first_ns"] > bare["stages"]["computation_ns"]


class _Links(HTMLParser):
    """Collects everything on a page that could make a browser ask somebody for something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object", "embed"):
            self.found.append(tag)
        self.found += [
            f"{key}={value}" for key, value in attrs if key in ("src", "href", "srcset", "xlink:href", "action")
        ]


def test_the_page_asks_nobody_for_anything(out: Path) -> None:
    page = (out / "report.html").read_text()
    links = _Links()
    links.feed(page)
    assert links.found == []
    assert not re.search(r"https?:|url\(|@import", page)


def test_names_of_the_fabric_cannot_put_markup_on_the_page(out: Path) -> None:
    report = judge(out / "journal.jsonl")
    nasty = report.model_copy(update={"name": "<script>alert(1)</script>"})
    assert "<script>" not in html_of(nasty)


def test_an_interrupted_run_keeps_a_journal_that_can_be_judged(tmp_path: Path) -> None:
    """SIGTERM, like Ctrl-C: exit 3, and the report says so."""
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("k: 4", "k: 8").replace("for: 3 s", "for: 3000 h"))
    program = """
import os, signal
import erfs_scenario.simulation as simulation
real = simulation.simulate
def simulate(plan, *, record, on_progress):
    def stop_at_the_fault(at_ns, event, fields):
        record(at_ns, event, fields)
        if event == "fault_effective":
            os.kill(os.getpid(), signal.SIGTERM)
    real(plan, record=stop_at_the_fault, on_progress=on_progress)
simulation.simulate = simulate
from erfs.cli.main import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "s.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 3, done.stderr
    assert "aborted: the run was aborted: interrupted" in done.stdout
    assert judge(tmp_path / "out/small-seed1/journal.jsonl").verdict.exit_code == 3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("is_measured", "code"), [(True, 75), (False, 70)])
def test_what_goes_wrong_in_taking_things_down_does_not_cost_the_verdict(
    tmp_path: Path, is_measured: bool, code: int
) -> None:
    """A backend that breaks after the measurement: the verdict is there and 75 is returned; one that breaks before it has none."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    program = f"""
import erfs_scenario.live as live
from erfs_scenario.simulation import simulate
def run_live(plan, *, record, on_progress, out, broker):
    if {is_measured}:
        simulate(plan, record=record, on_progress=on_progress)
    raise OSError("a broker that would not go")
live.run_live = run_live
from erfs.cli.main import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "s.yaml", "--backend", "live", "--out", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "out/report.json").exists() is is_measured
    if is_measured:
        assert "passed: " in done.stdout
        *_, last = read(tmp_path / "out/journal.jsonl")
        assert last["event"] == "cleanup_failed"
        assert last["what"] == "OSError: a broker that would not go"
    else:
        assert "a broker that would not go" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.yaml"), "erfs: nowhere.yaml: cannot be read: No such file or directory"),
        (("run", "small.yaml", "--fabric", "nowhere.txt", "--out", "x"), "nowhere.txt"),
        (("run", "small.yaml", "--broker", "localhost:1883"), "--broker is for --backend live"),
        (("run", "small.yaml", "--seed", "-1"), "-1"),
        (("check",), "no scenario to check"),
    ],
)
def test_bad_usage_is_64_and_one_message(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = erfs(*arguments, folder=folder)
    assert done.returncode == 64
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_check_tells_all_errors_of_all_files(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(SCENARIO.replace("at: 1 s", "at: 1").replace("name: small", "nam: small"))
    done = erfs("check", "small.yaml", bad, folder=folder)
    assert done.returncode == 64
    assert done.stdout == "small.yaml: right\n"
    assert done.stderr.count(f"{bad}:") == 3
    assert erfs("check", "small.yaml", folder=folder).returncode == 0


@pytest.mark.parametrize("kind", ["scenario", "report"])
def test_check_prints_the_schemas(folder: Path, kind: str) -> None:
    done = erfs("check", "--schema", kind, folder=folder)
    assert json.loads(done.stdout) == schema_of(kind)


def test_a_plan_shows_what_would_be_hit_and_is_what_the_run_then_does(folder: Path, out: Path) -> None:
    done = erfs("plan", "small.yaml", "--json", folder=folder)
    (planned,) = json.loads(done.stdout)["faults"]
    header: dict[str, Any] = next(iter(read(out / "journal.jsonl")))
    (injected,) = header["faults"]
    assert injected.items() <= planned.items()
    (report,) = judge(out / "journal.jsonl").faults
    assert (planned["flows"], planned["demands"]) == (report.affected.flows, report.affected.demands)
    table = erfs("plan", "small.yaml", folder=folder).stdout
    assert injected["target"] in table
