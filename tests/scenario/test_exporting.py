"""A report for other programs, read back by parsers that are not ours."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from erfs.errors import ConfigError
from erfs_scenario.exporting import junit_of, markdown_of, openslo_of
from erfs_scenario.report import Report
from tests.scenario.test_judging import A, B, Record, affected, begins, ends, flow, run
from tests.scenario.test_report import SCENARIO, erfs


def slow(**expect: int) -> Report:
    """Return a run whose last flow took 900 ns, with an expectation."""
    records: tuple[Record, ...] = (
        affected((A, B, "near")),
        begins(),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2900, A, B, 1_000_000, "served"),
        ends(),
    )
    return run(*records, expect=dict(expect))


def outcomes(report: Report) -> dict[str, list[str]]:
    """Return what JUnit's reader sees of each case."""
    suite = ET.fromstring(junit_of(report))[0]
    return {case.attrib["name"]: [part.tag for part in case] for case in suite.iter("testcase")}


def test_a_missed_expectation_is_a_failure_for_a_build_server() -> None:
    report = slow(recovery_max_ns=500)
    assert report.verdict.outcome == "missed"
    suites = ET.fromstring(junit_of(report))
    (suite,) = suites
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == ("6", "1", "0")
    assert outcomes(report) == {
        "the run itself": [],
        "recovery max": ["failure"],
        "no loop": [],
        "no black hole while there is a path": [],
        "lossless return": [],
        "converges": [],
    }
    (failure,) = suites.iter("failure")
    assert failure.attrib["message"] == 'expected at most 0.00 ms, measured 0.00 ms: the last flow of "f" took 0.00 ms'


def test_what_was_undecidable_is_an_error_never_a_success() -> None:
    dead = run(affected((A, B, "near")), begins(), is_finished=False)
    assert outcomes(dead)["the run itself"] == ["error"]
    assert "harness died at" in junit_of(dead)
    late = run(affected((A, B, "near")), begins(), ends(), flow(10_000, A, B, 0, "not_recovered"))
    assert (outcomes(late)["converges"], outcomes(late)["the run itself"]) == (["error"], ["error"])


def test_names_cannot_break_the_formats() -> None:
    """Quotes, markup, a line's end, what XML cannot hold at all, and what Markdown takes for a table."""
    nasty = '<a href="x">&\n\x00|`*'
    report = slow().model_copy(update={"name": nasty})
    (suite,) = ET.fromstring(junit_of(report))
    assert suite.attrib["name"] == nasty.replace("\x00", "?")
    first = markdown_of(report).splitlines()[0]
    assert first == '## \\<a href="x"\\>& \x00\\|\\`\\*: passed'
    (slo,) = yaml.safe_load_all(openslo_of(slow(availability_min_ppm=1).model_copy(update={"name": "Ä " + "x" * 99})))
    assert slo["metadata"]["name"] == "x" * 63


def test_the_summary_has_verdict_expectations_recovery_and_availability() -> None:
    text = markdown_of(slow(recovery_max_ns=500))
    assert text.startswith('## n: missed\n\n- recovery max: the last flow of "f" took 0.00 ms\n')
    assert "| recovery max | at most 0.00 ms | 0.00 ms | missed |\n" in text
    assert "| f: link down | x - y |  | 1 | 0.00 / 0.00 / 0.00 | - | 0 | 0 | - |\n" in text
    assert "| all | 100 | 99.1000 % | 99.1000 % | - |\n" in text


def test_an_availability_that_was_asked_for_is_an_objective_with_what_was_measured() -> None:
    report = slow(availability_min_ppm=999_900)
    (slo,) = yaml.safe_load_all(openslo_of(report))
    assert (slo["apiVersion"], slo["kind"], slo["metadata"]["name"]) == ("openslo/v1", "SLO", "n-all-availability")
    spec = slo["spec"]
    assert spec["objectives"] == [{"displayName": "at least 99.9900 %", "target": 0.9999}]
    assert spec["timeWindow"] == [{"duration": "1m", "isRolling": True}]
    ratio = spec["indicator"]["spec"]["ratioMetric"]
    part = report.demand_sets[0].model_dump()
    good, total = (
        eval(ratio[side]["metricSource"]["spec"]["expression"], {}, part)  # names and minus signs of our own
        for side in ("good", "total")
    )
    assert (
        good * 1_000_000 // total
        == part["availability_ppm"]
        == int(slo["metadata"]["annotations"]["erfs/measured-ppm"])
    )


def test_an_objective_of_all_is_written_as_the_most_that_openslo_has_and_says_what_was_asked() -> None:
    (slo,) = yaml.safe_load_all(openslo_of(slow(availability_min_ppm=1_000_000)))
    assert slo["spec"]["objectives"] == [{"displayName": "at least 100.0000 %", "target": 0.999999999}]
    assert slo["metadata"]["annotations"]["erfs/asked-ppm"] == "1000000"


def test_without_an_availability_there_is_no_objective_to_export() -> None:
    with pytest.raises(ConfigError, match="expects no availability"):
        openslo_of(slow())


def test_the_command_writes_what_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO + "  availability: {min: 99 %}\n")
    assert erfs("run", "small.yaml", "--out", "out", folder=tmp_path).returncode == 0
    options = ("--junit", "j.xml", "--markdown", "m.md", "--openslo", "o.yaml")
    done = erfs("report", "out", *options, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ET.parse(tmp_path / "j.xml").getroot().attrib["failures"] == "0"
    assert (tmp_path / "m.md").read_text().startswith("## small: passed\n")
    assert yaml.safe_load((tmp_path / "o.yaml").read_text())["kind"] == "SLO"
    refused = erfs("report", "out", "--junit", "nowhere/j.xml", folder=tmp_path)
    assert refused.returncode == 64
    assert "nowhere/j.xml: cannot be written" in refused.stderr
