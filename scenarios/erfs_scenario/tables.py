"""A report for the terminal: what each fault did in a few lines, availability, and the verdict last.

Rule 1: shows, never computes: every figure is the report's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from erfs.units import format_duration, format_ms
from erfs_scenario.report import Chain, FaultReport, Figure, IntervalReport, Magnitude, Probes, Report, Spread, Tally
from erfs_scenario.statistics import percentile_events_min
from erfs_scenario.verdict import format_magnitude, format_share

# More faults than this scroll the verdict's context away; report.json has them all.
ROWS_MAX = 40

_STYLES = {"passed": "bold green", "missed": "bold red", "undecidable": "bold yellow"}


def milliseconds(duration_ns: int | None) -> str:
    """Return *duration_ns* in milliseconds, a dash where there is none."""
    return "-" if duration_ns is None else format_ms(duration_ns)


def three(spread: Spread) -> str:
    """Return first, median and last of *spread* in milliseconds; a dash without any flow."""
    if spread.first_ns is None or spread.median_ns is None or spread.last_ns is None:
        return "-"
    return " / ".join(f"{value / 1e6:.2f}" for value in (spread.first_ns, spread.median_ns, spread.last_ns))


def measured(magnitude: Magnitude) -> str:
    """Return what was measured of a fault; of a sample with the interval that holds the true value."""
    value = format_magnitude(magnitude.measured, magnitude.unit)
    if magnitude.low is None or magnitude.high is None or magnitude.level_ppm is None:
        return value
    ends = f"{format_magnitude(magnitude.low, magnitude.unit)} to {format_magnitude(magnitude.high, magnitude.unit)}"
    return f"{value} ({magnitude.level_ppm / 10_000:g} %: {ends})"


def tables_of(report: Report) -> list[Any]:
    """Return what to print, in order: texts and tables of rich."""
    fabric = report.fabric
    armed = "protection armed" if report.is_protecting else "no protection"
    bus = ", bus in band" if report.is_bus_in_band else ""
    head = (
        f"{report.name}, seed {report.seed}, {report.backend}, {armed}{bus}: {fabric.name}"
        f" ({fabric.switches} switches, {fabric.endpoints} endpoints, {fabric.links} links)"
    )
    parts: list[Any] = [Text(head, style="bold")]
    parts += [_as_asked_and_measured(fault) for fault in report.faults[:ROWS_MAX]]
    faults = report.faults[:ROWS_MAX]
    parts.append(Text("\nflows: first / median / last", style="dim"))
    parts.append(
        _table(
            "recovery",
            faults,
            {
                "near end (ms)": lambda fault: three(fault.near),
                "far end (ms)": lambda fault: three(fault.far),
                "affected": lambda fault: _affected(fault.affected),
                "not recovered": lambda fault: str(fault.not_recovered.flows),
                "cut": lambda fault: str(fault.cut.flows),
                "by policy": lambda fault: str(fault.cut_by_policy.flows),
                "capacity": lambda fault: (
                    "-"
                    if fault.capacity_retained_min_ppm is None
                    else f"{fault.capacity_retained_min_ppm / 10_000:.1f} %"
                ),
            },
        )
    )
    parts.append(
        _table(
            "stages",
            faults,
            {
                "detection": lambda fault: milliseconds(fault.stages.detection_ns),
                "fact read": lambda fault: milliseconds(fault.stages.fact_received_first_ns),
                "protection": lambda fault: milliseconds(fault.stages.protection_last_ns),
                "computation": lambda fault: milliseconds(fault.stages.computation_ns),
                "programming": lambda fault: milliseconds(fault.stages.programming_ns),
                "restored": lambda fault: milliseconds(fault.stages.restoration_finished_ns),
            },
        )
    )
    chained = [fault for fault in faults if fault.chain is not None and fault.chain.flows]
    if chained:
        parts.append(
            _table(
                "by packets",
                chained,
                {
                    "flows": lambda fault: str(_chain(fault).flows),
                    "detected": lambda fault: milliseconds(_chain(fault).detected_ns),
                    "fact received": lambda fault: milliseconds(_chain(fault).fact_received_ns),
                    "acknowledged": lambda fault: milliseconds(_chain(fault).acknowledged_ns),
                    "first through": lambda fault: milliseconds(_chain(fault).through_ns),
                    "adds up": lambda fault: f"{_chain(fault).within_two_intervals} of {_chain(fault).flows}",
                },
            )
        )
    parts.append(
        _table(
            "return",
            faults,
            {
                "flows that lost": lambda fault: str(fault.return_.flows_lost),
                "longest loss": lambda fault: milliseconds(fault.return_.longest_loss_ns),
                "cut flows back (ms)": lambda fault: three(fault.return_.restored),
                "not back": lambda fault: str(fault.return_.not_restored.flows),
                "capacity back": lambda fault: (
                    "-" if fault.return_.capacity_back_ns is None else format_duration(fault.return_.capacity_back_ns)
                ),
            },
        )
    )
    if len(report.faults) > ROWS_MAX:
        parts.append(Text(f"… and {len(report.faults) - ROWS_MAX} more faults, in report.json"))
    if report.uncrossed:
        count = f"{len(report.uncrossed)} of {len(report.faults)} faults"
        parts.append(Text(f"{count} broke something over which no measured flow went at that time", style="dim"))
    availability = plain_table("availability", ("demands", "with a path", "pairs in full", "of all", "down"))
    for part in report.demand_sets:
        down = (
            ""
            if part.job_availability_ppm is None or part.down_ns is None
            else f"job {format_share(part.job_availability_ppm)}, down {format_duration(part.down_ns)}"
        )
        availability.add_row(
            part.name,
            f"{part.demands:,}",
            format_share(part.availability_ppm),
            "-" if part.pair_availability_ppm is None else format_share(part.pair_availability_ppm),
            format_share(part.availability_of_all_ppm),
            down,
        )
    parts.append(availability)
    if report.jobs:
        parts.append(_jobs(report))
    if report.rates or report.baselines:
        parts.append(_costs(report))
    parts += _figures(report.figures)
    if report.probes is not None:
        parts.append(Text(probes_line(report.probes), style="dim"))
    if report.unserved_count:
        parts.append(Text(f"{report.unserved_count} flows were left without full service, listed in the report"))
    parts.append(Text())
    verdict = report.verdict
    text = Text(f"{verdict.outcome.replace('_', ' ')}: ", style=_STYLES.get(verdict.outcome, "bold red"))
    text.append("; ".join(verdict.reasons), style="default not bold")
    parts.append(text)
    return parts


def _as_asked_and_measured(fault: FaultReport) -> Text:
    lasts_ns = fault.planned_end_at_ns - fault.planned_at_ns
    text = Text(
        f"  {fault.id}: {fault.kind} {fault.target} at {format_duration(fault.planned_at_ns)} for {format_duration(lasts_ns)}"
    )
    for one in fault.magnitudes:
        asked = format_magnitude(one.asked, one.unit)
        text.append(f"; {one.name} {measured(one)} of {asked}", style="" if one.is_as_asked else "bold red")
    return text


def figure_value(figure: Figure) -> str:
    """Return the value of *figure*, with the count where it is a share of events; a dash where it was refused."""
    if figure.value is None:
        return "-" if figure.interval is None else "beyond the longest"
    value = format_share(figure.value) if figure.unit == "ppm" else format_ms(figure.value)
    return value if figure.count is None else f"{value} ({figure.count:,} of {figure.events:,})"


def figure_interval(figure: Figure, interval: IntervalReport) -> str:
    """Return the ends of the *interval* of *figure* and its level."""
    ends = (
        "beyond the longest" if end is None else format_share(end) if figure.unit == "ppm" else format_ms(end)
        for end in (interval.low, interval.high)
    )
    return f"{interval.level_ppm / 10_000:g} %: " + " to ".join(ends)


def _figures(figures: Sequence[Figure]) -> list[Any]:
    """Return a table of the figures that have an interval, and a line on the events that others lack."""
    parts: list[Any] = []
    # Below that not even a median has an interval, and shares have one that says next to nothing.
    shown = [
        (one, one.interval) for one in figures if one.interval is not None and one.events >= percentile_events_min(0.5)
    ]
    if shown:
        table = plain_table("over events", ("events", "value", "interval"))
        for one, interval in shown:
            name = one.name if one.of == "events" else f"{one.name}, {one.of}"
            table.add_row(name, f"{one.events:,}", figure_value(one), figure_interval(one, interval))
        parts.append(table)
    # One name for each number of events: the shares of availability all take as many.
    lacking: dict[int, str] = {}
    for one in figures:
        if one.refusal is not None and one.refusal.events_needed is not None:
            lacking.setdefault(one.refusal.events_needed, one.name)
    if lacking:
        count = max(one.events for one in figures)
        needs = ", ".join(f"{name} ({needed:,})" for needed, name in sorted(lacking.items()))
        parts.append(Text(f"{count:,} event{'s' if count != 1 else ''}: too few for {needs}", style="dim"))
    return parts


def _costs(report: Report) -> Table:
    """Return what each kind of fault cost demands that had a path, here and with other systems."""
    systems = list(report.costs[0].lost_ns) if report.costs else []
    table = plain_table("demand-time lost", ("faults", *("this run" if one == "erfs" else one for one in systems)))
    for cost in report.costs:
        if any(cost.lost_ns.values()):
            lost = (format_duration(cost.lost_ns[system]) for system in systems)
            table.add_row(cost.name, f"{cost.faults:,}", *lost)
    return table


def _jobs(report: Report) -> Table:
    """Return what the outages cost each training job, here and with other systems."""
    columns = ("job", "goodput", "stalled", "redone", "restarting", "kills", "GPU-time lost")
    table = plain_table("training", columns)
    for system, jobs in (("this run", report.jobs), *((one.name, one.jobs) for one in report.baselines)):
        for name, job in jobs.items():
            durations = (job.stalled_ns, job.redone_ns, job.restarting_ns)
            texts = [format_share(job.goodput_ppm), *map(format_duration, durations), f"{job.kills:,}"]
            table.add_row(system, name, *texts, format_duration(job.lost_gpu_ns))
    return table


def _affected(tally: Tally) -> str:
    return f"{tally.flows} ({tally.demands:,} demands)" if tally.flows else "0"


def _chain(fault: FaultReport) -> Chain:
    assert fault.chain is not None
    return fault.chain


def probes_line(probes: Probes) -> str:
    """Return how a real forwarding plane was measured, and how well."""
    odd = sum(map(len, probes.several_gaps.values()))
    return (
        f"probes: {probes.flows} flows of IPv{probes.ip_version} datagrams every {format_duration(probes.interval_ns)},"
        f" {probes.lost:,} of {probes.sent:,} lost, {probes.duplicates} twice, {probes.reordered} out of order;"
        f" the prober was {format_ms(probes.late_p99_ns)} late at the 99th percentile, {format_ms(probes.late_max_ns)} at most,"
        f" on {probes.cpu_ppm / 10_000:.0f} % of a processor" + (f"; {odd} flows saw several gaps" if odd else "")
    )


def _table(title: str, faults: Sequence[FaultReport], columns: dict[str, Callable[[FaultReport], str]]) -> Table:
    table = plain_table(title, tuple(columns))
    for fault in faults:
        table.add_row(fault.id, *(show(fault) for show in columns.values()))
    return table


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table; its *title* stands in the first column's head: rich would pad one of its own to the table's width."""
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate((title, *columns)):
        table.add_column(column, justify="right" if index else "left", header_style="dim" if index else "bold")
    return table
