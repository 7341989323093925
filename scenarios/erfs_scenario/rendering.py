"""report.html: one page that needs nothing but itself, for a browser in light or dark, wide or narrow, or for paper.

Rule 1: shows, never computes: every figure is the report's.
Rule 2: no request leaves the page: no script, font, image or style from elsewhere.
Rule 3: no picture is the only place where something is told: each has the same in words or in a table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jinja2

from erfs.units import SECOND, format_duration
from erfs_scenario.pictures import bucket_name, graph_of, lengths_of, picture_of, stages_of, timeline_of
from erfs_scenario.report import Cost, Figure, Report
from erfs_scenario.tables import figure_interval, figure_value, measured, milliseconds, probes_line, three
from erfs_scenario.verdict import format_magnitude, format_share

_FOLDER: Final = Path(__file__).parent / "templates"

# A soak has thousands of faults: those that cost most are shown each, report.json has them all.
FAULTS_SHOWN_MAX: Final = 40
# Rows of the table beside the time line: what a picture shows in its steps.
STEPS_SHOWN_MAX: Final = 60


def instant(at_ns: int | None) -> str:
    """Return an instant of the run in seconds, to the microsecond; a dash where there is none."""
    return "-" if at_ns is None else f"{at_ns // SECOND}.{at_ns % SECOND // 1000:06} s"


def sure(figures: Sequence[Figure], of: str) -> str:
    """Return the interval of the availability of the demand set *of*, over demand-time that had a path; a dash where there is none."""
    found = next((one for one in figures if (one.name, one.of) == ("availability", of)), None)
    return "-" if found is None or found.interval is None else figure_interval(found, found.interval)


def costs_of(report: Report) -> list[tuple[str, list[tuple[Cost, dict[str, int]]]]]:
    """Return the tables of what each kind of fault cost: title, and each row with its figure by system; what cost nobody anything is left out."""
    jobs = [part.name for part in report.demand_sets if part.is_job]
    tables = [
        ("demand-time lost, of those with a path", [(cost, cost.lost_ns) for cost in report.costs]),
        ("demand-time not served in full", [(cost, cost.not_in_full_ns) for cost in report.costs]),
        ("demand-time lost, of all", [(cost, cost.lost_of_all_ns) for cost in report.costs]),
        *((f"{job} down", [(cost, cost.down_ns[job]) for cost in report.costs]) for job in jobs),
    ]
    return [(title, rows) for title, every in tables if (rows := [row for row in every if any(row[1].values())])]


def html_of(report: Report) -> str:
    """Return the page for *report*."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ms": milliseconds,
        "three": three,
        "share": format_share,
        "instant": instant,
        "duration": lambda value: "-" if value is None else format_duration(value),
        "thousands": lambda value: f"{value:,}",
        "bucket": lambda bucket: bucket_name(bucket.from_ns, bucket.until_ns),
        "asked": lambda one: format_magnitude(one.asked, one.unit),
        "measured": measured,
        "value": figure_value,
        "interval": figure_interval,
    }
    costly = sorted(report.faults, key=lambda fault: (-fault.lost_demand_ns, fault.planned_at_ns, fault.id))
    shown = {fault.id for fault in costly[:FAULTS_SHOWN_MAX]}
    faults = [fault for fault in report.faults if fault.id in shown]
    return environment.get_template("report.html.j2").render(
        report=report,
        faults=faults,
        sure=sure,
        costs=costs_of(report),
        systems=list(report.costs[0].lost_ns) if report.costs else [],
        natural=[
            (system, figure)
            for system, figures in (
                ("this run", report.figures),
                *((one.name, one.figures) for one in report.baselines),
            )
            for figure in figures
            if figure.name.endswith("at natural rates")
        ],
        trained=[("this run", report.jobs), *((one.name, one.jobs) for one in report.baselines)],
        steps=report.service[:STEPS_SHOWN_MAX],
        timeline=timeline_of(report),
        pictures={fault.id: picture_of(fault) for fault in faults},
        stages={fault.id: stages_of(fault) for fault in faults},
        lengths=lengths_of(report.outage_lengths),
        graphs=[(drawing, graph_of(drawing)) for drawing in report.drawings],
        probes=None if report.probes is None else probes_line(report.probes),
    )
