"""A report for other programs: JUnit XML for a build server, Markdown for a pull request, OpenSLO for a catalogue of objectives.

Rule 1: shows, never computes: every figure is the report's.
Rule 2: what could not be decided is an error there, never a success and never passed over.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

import yaml

from erfs.errors import ConfigError, Problem
from erfs.units import MINUTE, PPM, SECOND, format_duration
from erfs_scenario.report import FaultReport, Report
from erfs_scenario.tables import measured, milliseconds, three
from erfs_scenario.verdict import format_magnitude, format_share

# What XML 1.0 cannot hold at all, not even escaped.
_NO_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# More faults than this make a summary unreadable; the page has them.
FAULTS_MAX: Final = 20


def junit_of(report: Report) -> str:
    """
    Return JUnit XML: a test suite with a case for each expectation, and one for the run itself.

    A missed expectation is a failure; what was undecidable is an error, as is a run that was aborted or invalid.
    """
    verdict = report.verdict
    cases = []
    found = {"failure": 0, "error": 0}
    run = [] if verdict.outcome in ("passed", "missed") else [("error", verdict.outcome, "; ".join(verdict.reasons))]
    rows = [("the run itself", run)]
    for check in verdict.checks:
        kind = {"missed": "failure", "undecidable": "error"}.get(check.outcome)
        text = f"expected {check.expected}, measured {check.measured}" + (f": {check.reason}" if check.reason else "")
        rows.append((check.name, [] if kind is None else [(kind, check.outcome, text)]))
    of = f"{report.name}.seed{report.seed}"
    for name, troubles in rows:
        inside = "".join(f"<{kind} type={_xml(sort)} message={_xml(text)}/>" for kind, sort, text in troubles)
        for kind, _, _ in troubles:
            found[kind] += 1
        cases.append(f'<testcase classname={_xml(of)} name={_xml(name)} time="0">{inside}</testcase>')
    counts = f'tests="{len(rows)}" failures="{found["failure"]}" errors="{found["error"]}"'
    properties = {
        "backend": report.backend,
        "seed": str(report.seed),
        "fabric": f"{report.fabric.name} ({report.fabric.digest})",
        "replay": report.replay,
        "verdict": f"{verdict.outcome}, exit code {verdict.exit_code}",
    }
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="erfs" {counts}>',
        f'<testsuite name={_xml(report.name)} {counts} skipped="0" time="{report.measured_ns / SECOND:.3f}">',
        "<properties>",
        *(f"<property name={_xml(name)} value={_xml(value)}/>" for name, value in properties.items()),
        "</properties>",
        *cases,
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _xml(text: str) -> str:
    """Return *text* as an XML attribute's value, quotes included."""
    return f'"{escape(_NO_XML.sub("?", text))}"'.replace("\n", "&#10;")


def markdown_of(report: Report) -> str:
    """Return a summary in Markdown: verdict, expectations, recovery and availability."""
    verdict = report.verdict
    protection = "protection armed" if report.is_protecting else "no protection"
    again = (
        f"Seed {report.seed}, backend {report.backend}, {protection}, fabric {_plain(report.fabric.name)}"
        f" (`{report.fabric.digest}`). Again: `{report.replay}`"
    )
    lines = [
        f"## {_plain(report.name)}: {verdict.outcome}",
        "",
        *(f"- {_plain(reason)}" for reason in verdict.reasons),
        "",
        again,
        "",
        *_table(
            ("expectation", "bound", "measured", "outcome"),
            ((check.name, check.expected, check.measured, check.outcome) for check in verdict.checks),
        ),
        "",
        *_table(
            (
                "fault",
                "target",
                "measured of asked",
                "flows affected",
                "near end, ms",
                "far end, ms",
                "not recovered",
                "cut",
                "restored",
            ),
            (
                (
                    f"{fault.id}: {fault.kind.replace('_', ' ')}",
                    fault.target,
                    _measured_of_asked(fault),
                    f"{fault.affected.flows:,}",
                    three(fault.near),
                    three(fault.far),
                    f"{fault.not_recovered.flows:,}",
                    f"{fault.cut.flows:,}",
                    milliseconds(fault.stages.restoration_finished_ns),
                )
                for fault in report.faults[:FAULTS_MAX]
            ),
        ),
    ]
    if len(report.faults) > FAULTS_MAX:
        lines.append(f"\nand {len(report.faults) - FAULTS_MAX:,} more faults, in report.json")
    lines += [
        "",
        *_table(
            ("availability", "demands", "of those with a path", "of all", "job"),
            (
                (
                    part.name,
                    f"{part.demands:,}",
                    format_share(part.availability_ppm),
                    format_share(part.availability_of_all_ppm),
                    "-" if part.job_availability_ppm is None else format_share(part.job_availability_ppm),
                )
                for part in report.demand_sets
            ),
        ),
        "",
        "Recovery: first / median / last flow, from the fault taking effect.",
    ]
    return "\n".join(lines) + "\n"


def _measured_of_asked(fault: FaultReport) -> str:
    return "; ".join(
        f"{one.name} {measured(one)} of {format_magnitude(one.asked, one.unit)}" for one in fault.magnitudes
    )


def _plain(text: str) -> str:
    """Return *text* with nothing in it that Markdown would take for markup, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"


# OpenSLO has no objective without a budget: a target is below 1 (OpenSLO v1, SLO, objectives[].target). This leaves 0.1 s in three years.
BELOW_ALL: Final = 0.999999999

# By name: the bound's key, the measured figure, and good and total of the ratio, in the fields of a demand set.
_ASKED: Final = {
    "availability": (
        "availability_min_ppm",
        "availability_ppm",
        "total_demand_ns - lost_demand_ns",
        "total_demand_ns - pathless_demand_ns",
    ),
    "availability of all": (
        "availability_all_min_ppm",
        "availability_of_all_ppm",
        "total_demand_ns - lost_demand_ns",
        "total_demand_ns",
    ),
    "job availability": (
        "job_availability_min_ppm",
        "job_availability_ppm",
        "measured_until_ns - measured_from_ns - down_ns",
        "measured_until_ns - measured_from_ns",
    ),
}


def openslo_of(report: Report) -> str:
    """
    Return the availability that was asked for as OpenSLO v1: one SLO for each bound and demand set, with what was measured.

    The window is the time measured, rounded up to minutes, the smallest unit that OpenSLO has.

    Raises:
        ConfigError: the scenario asks for no availability.
    """
    documents = [
        _slo(report, name, part.name, bound_ppm, measured_ppm)
        for name, (key, figure, _, _) in _ASKED.items()
        if (bound_ppm := report.expectations.get(key)) is not None
        for part in report.demand_sets
        if (measured_ppm := getattr(part, figure)) is not None
    ]
    if not documents:
        message = "its scenario expects no availability, so there is no objective to export"
        raise ConfigError(report.name, [Problem(0, message, suggestion="say expect: {availability: {min: 99.99 %}}")])
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, explicit_start=True)


def _slo(report: Report, name: str, of: str, bound_ppm: int, measured_ppm: int) -> dict[str, Any]:
    minutes = max(1, -(-report.measured_ns // MINUTE))
    interval = next((one.interval for one in report.figures if (one.name, one.of) == (name, of)), None)
    _, _, good, total = _ASKED[name]
    annotations = {
        "erfs/measured-ppm": str(measured_ppm),
        "erfs/interval": "none"
        if interval is None
        else f"{interval.low} to {interval.high} ppm at {interval.level_ppm / 10_000:g} %",
        "erfs/measured-for": format_duration(report.measured_ns),
        "erfs/verdict": report.verdict.outcome,
        "erfs/asked-ppm": str(bound_ppm),
        "erfs/replay": report.replay,
        "erfs/fabric": f"{report.fabric.name} ({report.fabric.digest})",
    }

    def source(expression: str) -> dict[str, Any]:
        spec = {"file": "report.json", "demandSet": of, "expression": expression}
        return {"metricSource": {"type": "erfs-report", "spec": spec}}

    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {
            "name": _dns(f"{report.name}-{of}-{name}"),
            "displayName": f"{report.name}: {name}, {of}",
            "annotations": annotations,
        },
        "spec": {
            "description": report.description,
            "service": _dns(report.fabric.name),
            "indicator": {
                "metadata": {"name": _dns(f"{of}-{name}")},
                "spec": {
                    "description": report.definitions["job availability" if name.startswith("job") else "availability"],
                    "ratioMetric": {
                        "counter": True,
                        "good": source(good),
                        "total": source(total),
                    },
                },
            },
            "timeWindow": [{"duration": f"{minutes}m", "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [
                {
                    "displayName": f"at least {format_share(bound_ppm)}",
                    "target": bound_ppm / PPM if bound_ppm < PPM else BELOW_ALL,
                }
            ],
        },
    }


def _dns(text: str) -> str:
    """Return *text* as a name that OpenSLO takes: lower case letters, digits and hyphens, 63 at most."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "unnamed"
