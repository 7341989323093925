"""`erfs compare`: two runs of the same faults side by side, with the difference that the pairs show and how sure it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from erfs.cli.report import read_report, show
from erfs.units import format_duration, format_ms

if TYPE_CHECKING:
    from erfs_scenario.comparing import Comparison, Estimated

# More events than this scroll the differences away; --json has them all.
ROWS_MAX = 40


@click.command(name="compare")
@click.argument("first", metavar="A", type=click.Path(path_type=Path, file_okay=False))
@click.argument("second", metavar="B", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
def command(first: Path, second: Path, as_json: bool) -> int:
    """Compare the runs in folders A and B, event by event.

    Differences are B's figure minus A's: below zero means that B has less. Both are judged anew from their journals, and must
    have run the same faults on the same fabric. Exit code: 0 whatever the difference, 64 if they cannot be compared.

    Example: erfs compare out/without out/with
    """
    from erfs_scenario.comparing import compare

    found = compare(read_report(first), read_report(second), (str(first), str(second)))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        _show(found)
    return 0


def _show(found: "Comparison") -> None:
    from rich.text import Text

    from erfs_scenario.tables import plain_table
    from erfs_scenario.verdict import format_share

    parts: list[Any] = [Text(f"A: {found.first}\nB: {found.second}", style="bold")]
    parts += [Text(f"  {one.name}: A {one.first}, B {one.second}") for one in found.differences]
    if not found.differences:
        parts.append(Text("  no setting differs"))
    if any(found.faults_unpaired):
        parts.append(Text("  faults without a counterpart: A {}, B {}".format(*found.faults_unpaired), style="yellow"))
    rows = plain_table("event", ("recovery A", "recovery B", "lost demand-time A", "lost demand-time B"))
    for event in found.events[:ROWS_MAX]:
        recoveries = (
            f"{count} flows did not" if count else "-" if value is None else format_ms(value)
            for value, count in zip(event.recovery_ns, event.not_recovered_flows, strict=True)
        )
        rows.add_row(", ".join(event.faults), *recoveries, *map(format_duration, event.lost_demand_ns))
    parts.append(rows)
    if len(found.events) > ROWS_MAX:
        parts.append(Text(f"… and {len(found.events) - ROWS_MAX} more events, with --json"))
    shares = plain_table("availability", ("A", "B", "A of all", "B of all"))
    for one in found.demand_sets:
        shares.add_row(one.name, *map(format_share, (*one.availability_ppm, *one.availability_of_all_ppm)))
    parts.append(shares)
    differences = plain_table("B minus A", ("pairs", "B less", "equal", "B more"))
    for quantity in found.quantities:
        counts = (quantity.pairs, quantity.smaller, quantity.equal, quantity.larger)
        differences.add_row(quantity.name, *map(str, counts))
    parts += [Text(), differences]
    for quantity in found.quantities:
        parts.append(Text(f"{quantity.name}, median: {_told(quantity.median)}"))
        parts.append(Text(f"{quantity.name}, mean: {_told(quantity.mean)}"))
    show(parts)


def _told(found: "Estimated") -> str:
    """Return a difference with its interval, or why there is none."""
    if found.interval is None:
        assert found.refusal is not None
        needed = found.refusal.events_needed
        return f"no figure: {found.refusal.reason}" + (f"; needs {needed:,}" if needed is not None else "")

    def signed(value: int | None) -> str:
        return "beyond anything measured" if value is None else f"{value / 1e6:+.2f} ms"

    interval = found.interval
    level = f"{interval.level_ppm / 10_000:g} %"
    return f"{signed(found.value_ns)} ({level}: {signed(interval.low)} to {signed(interval.high)}; {interval.method})"
