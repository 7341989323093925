"""The page of a report: every number on it is the report's, and a browser shows it without asking anybody for anything."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from erfs.units import format_duration, format_ms
from erfs_scenario.judging import judge, judge_records
from erfs_scenario.pictures import share_text
from erfs_scenario.rendering import html_of, instant
from erfs_scenario.report import Report
from erfs_scenario.verdict import format_share
from tests.scenario.browser import CHROMIUM, Browser
from tests.scenario.test_report import erfs

SCENARIO = """
name: page
description: A switch, a cable and a controller.
fabric: {generate: {kind: fat-tree, k: 4}}
demands:
  all_pairs: true
  groups:
    job: {select: {kind: host, random: 4}, pattern: ring, training: {transport_timeout: 2 s, restart: 1 s}}
faults:
  - {name: edge, kind: node_down, target: {kind: switch, tier: 1, random: 1}, at: 1 s, for: 3 s}
  - {name: cut, kind: link_down, target: {kind: trunk, tier: 2, random: 1}, at: 8 s, for: 3 s}
  - {name: gone, kind: controller_kill, at: 9 s, for: 3 s}
expect:
  recovery: {max: 50 ms}
baselines: [static, ospf]
"""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A run in which something was cut, something recovered and a job waited."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.yaml").write_text(SCENARIO)
    done = erfs("run", "page.yaml", "--out", "out", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return judge(folder / "out/journal.jsonl")


class _Words(HTMLParser):
    """Collects what a reader sees, the marks of axes apart: they are a picture's scale, no figures."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("style", "text", "title"):
            self._open.append(tag if dict(attrs).get("class") != "scale" else "scale")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("style", "text", "title"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "scale"):
            self.words.append(data)


def numbers_on(page: str) -> list[str]:
    """Return every number that a reader of *page* sees."""
    words = _Words()
    words.feed(page)
    return [found.rstrip(",") for word in words.words for found in NUMBER.findall(word)]


def numbers_in(value: Any) -> Iterator[str]:
    """Yield every number of a JSON value as the page may write it, and how many a list holds."""
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers_in(part)
    elif isinstance(value, list):
        yield from (str(len(value)), f"{len(value):,}")
        for part in value:
            yield from numbers_in(part)
    elif isinstance(value, str):
        yield from (found.rstrip(",") for found in NUMBER.findall(value))
    elif isinstance(value, int) and not isinstance(value, bool):
        ways = (format_duration, format_ms, format_share, instant, share_text)
        texts = [str(value), f"{value:,}", f"{value / 1e6:.2f}", f"{value / 10_000:g}", *(way(value) for way in ways)]
        yield from (found for text in texts for found in NUMBER.findall(text))


def strangers(page: str, report: Report) -> list[str]:
    """Return the numbers on *page* that *report* does not have."""
    known = set(numbers_in(json.loads(report.model_dump_json(by_alias=True))))
    return [found for found in numbers_on(page) if found not in known]


def test_every_number_on_the_page_is_in_the_report(report: Report) -> None:
    page = html_of(report)
    assert len(numbers_on(page)) > 200
    assert strangers(page, report) == []


def test_a_number_that_the_page_made_up_would_be_seen(report: Report) -> None:
    page = html_of(report).replace("<h2>Availability</h2>", "<h2>Availability</h2><p>99.9871 % in 31.4159 s</p>")
    assert strangers(page, report) == ["99.9871", "31.4159"]


def test_the_verdict_comes_first_then_what_a_reader_asks_next(report: Report) -> None:
    page = html_of(report)
    assert page.index('<section class="card verdict passed">') < page.index("<h2>")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "What was expected",
        "Which run this is",
        "Faults, as asked and as measured",
        "Time line",
        "Recovery, fault by fault",
        "How long flows were without full service",
        "The worst flows",
        "The part of the fabric that was hit",
        "Availability",
        "What it cost training jobs",
        "Beside other systems, on the same faults",
        "What each kind of fault cost",
        "Figures, and how sure they are",
        "Left without full service",
        "What this measurement cannot tell",
        "What the words mean",
    ]
    assert f"<code>{report.replay}</code>" in page


def test_every_picture_says_what_it_shows_and_has_the_same_in_words_beside_it(report: Report) -> None:
    page = html_of(report)
    pictures = re.findall(r"<svg[^>]*>", page)
    assert len(pictures) >= 5
    assert all('role="img" aria-label="' in picture for picture in pictures)
    for after in page.split("</svg>")[1:]:
        told = after[:6000]
        assert "<details><summary>the same" in told or "<p" in told


def many_flows(count: int) -> list[dict[str, Any]]:
    """Return the journal of a run in which a fault harms *count* flows, each for a time of its own, and cuts a hundred."""
    fault = {"id": "f", "kind": "link_down", "target": "x - y", "at_ns": 2_000_000_000, "end_at_ns": 6_000_000_000}
    lists = {"links": ["x:1|y:1"], "nodes": [], "links_hit": ["x:1|y:1"]}
    counts = dict.fromkeys(("nodes", "switches", "endpoints", "links", "trunks", "classes"), count)
    bounds = ("recovery_max_ns", "recovery_p95_ns", "availability_min_ppm", "availability_all_min_ppm")
    expectations = dict.fromkeys((*bounds, "job_availability_min_ppm", "capacity_min_ppm")) | dict.fromkeys(
        ("is_loop_free", "is_black_hole_free", "converges", "loses_nothing_on_return"), True
    )
    header = {"name": "n", "description": "", "backend": "sim", "seed": 1, "is_protecting": True, "timing": {}}
    header |= {"timers": {}, "expectations": expectations, "faults": [fault | lists]}
    header |= {"fabric": counts | {"name": "f", "digest": "d"}}
    header |= {"demands": [{"name": "all", "is_job": False, "count": count}]}
    records: list[dict[str, Any]] = [{"at_ns": 0, "event": "run_started"} | header]

    def note(at_ns: int, event: str, **fields: object) -> None:
        records.append({"at_ns": at_ns, "event": event} | fields)

    note(10**9, "measurement_started", flows=count, weights={"all": count})
    rows = [[f"@a{index}", "@b", {"all": 1}, 1_000_000, "near"] for index in range(count)]
    note(2 * 10**9, "flows_affected", fault="f", flows=rows)
    note(2 * 10**9, "fault_effective", fault="f")
    for share, cause, at_ns in ((0, "not_recovered", 0), (1_000_000, "served", 1)):
        for index in range(count):
            is_cut = index < 100
            moment = 2 * 10**9 + (at_ns * (5 * 10**9 if is_cut else 1_000 * (index + 1)))
            fields = {"served_ppm": share, "cause": "cut" if is_cut and not at_ns else cause, "weights": {"all": 1}}
            note(moment, "flow_changed", source=f"@a{index}", destination="@b", **fields)
    note(6 * 10**9, "fault_ended", fault="f")
    note(8 * 10**9, "measurement_finished", flows_below_full=0)
    return sorted(records, key=lambda record: record["at_ns"])


def test_ten_thousand_harmed_flows_fit_a_page_of_3_megabytes() -> None:
    report = judge_records(many_flows(10_000))
    assert report.outage_lengths.outages == 10_000
    page = html_of(report)
    assert len(page.encode()) <= 3_000_000
    assert strangers(page, report) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all that look at pages; one start is enough."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with Browser() as found:
        yield found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_the_page_from_the_disk_without_complaint_or_request(
    report: Report, browser: Browser, tmp_path: Path, width: int, is_dark: bool
) -> None:
    page = tmp_path / "report.html"
    page.write_text(html_of(report))
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page, width=width, is_dark=is_dark)
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.ask("document.documentElement.scrollWidth") == width, (
        "nothing sticks out: wide tables scroll by themselves"
    )
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(18, 22, 29)" if is_dark else "rgb(246, 247, 249)")
    sizes = browser.ask("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().height)")
    assert len(sizes) >= 5
    assert min(sizes) > 20
    outside = """[...document.querySelectorAll('svg')].flatMap(svg => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
        }).map(text => text.textContent);
    })"""
    assert browser.ask(outside) == [], "words that a picture cuts off"
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_prints(report: Report, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html_of(report))
    browser.open(page, width=1280, is_dark=True)
    assert browser.pdf().startswith(b"%PDF")


def test_a_browser_that_met_a_request_or_an_error_would_tell(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no"); throw Error("broken")</script>')
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page, width=1280, is_dark=False)
    assert browser.requests == [page.as_uri(), "http://127.0.0.1:9/x.png"]
    assert "no" in browser.complaints
    assert len(browser.complaints) >= 2
