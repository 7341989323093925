"""`erfs fabric show` and `erfs fabric make`: what is in a fabric file, and a new one from a few numbers.

Rule 1: nothing is decided here: importers read, `inspect_fabric` finds, generators make; this file prints.
Rule 2: what only a subcommand needs is imported when it runs, so that help stays fast.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from rich.table import Table

    from erfs.errors import Problem
    from erfs.importers import Imported
    from erfs.inspect_fabric import Findings

# Rows of a list on a terminal: what fits beside the tables without scrolling. --json has them all.
ROWS_MAX: Final = 8


@click.group("fabric")
def command() -> None:
    """Look at a fabric file, or generate one.

    Example: erfs fabric make rail --hosts 16 -o rail.json && erfs fabric show rail.json
    """


@command.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--lenient", "is_lenient", is_flag=True, help="Keep what is sound of a damaged file; problems go to stderr."
)
def show(file: Path, is_json: bool, is_lenient: bool) -> None:
    """Show what is in FILE: counts, tiers, speeds, single points of failure, what is missing or odd.

    FILE may be ibnetdiscover output (plain or -p), a NetQ topology graph, a containerlab topology, GraphML, node-link JSON or a
    Slurm topology.conf, also packed with gzip or xz. The format is told by the content; the name does not matter.

    Example: erfs fabric show ibnetdiscover.txt.gz
    """
    from erfs.importers import load_fabric
    from erfs.inspect_fabric import inspect

    imported = load_fabric(file, is_lenient=is_lenient)
    findings = inspect(imported.fabric)
    if is_json:
        data = {"file": str(file), "format": imported.format} | findings.as_json()
        data |= {"problems": _as_json(imported.problems), "unparsed": _as_json(imported.unparsed)}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        _print(file, imported, findings)
    for problem in imported.problems:
        click.echo(f"erfs: {problem.describe(str(file))}", err=True)


def _as_json(problems: Iterable["Problem"]) -> list[dict[str, object]]:
    return [
        {"line": problem.line, "message": problem.message, "suggestion": problem.suggestion} for problem in problems
    ]


def _print(file: Path, imported: "Imported", found: "Findings") -> None:
    from rich.console import Console

    # No highlighting and no markup: names such as "S-1"[3] are data.
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"{file}: {imported.format}", soft_wrap=True)
    tables = [_counts(imported, found), _links(found), *([_missing(found)] if found.uplinks or found.bundles else [])]
    for table in tables:
        console.print()
        console.print(table)
    for title, rows in _lists(imported, found):
        console.print()
        console.print(f"{title} ({len(rows):,})", soft_wrap=True)
        for row in rows[:ROWS_MAX]:
            console.print(f"  {row}", soft_wrap=True)
        if len(rows) > ROWS_MAX:
            console.print(f"  ... and {len(rows) - ROWS_MAX:,} more, --json lists them all")


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    return table


def _counts(imported: "Imported", found: "Findings") -> "Table":
    from erfs.inspect_fabric import NO_TIER

    table = _table("", "what", "count", "remark", numbers=("count",))
    tiers = ", ".join(
        f"{count} in tier {tier}" for tier, count in found.nodes_by_tier.items() if tier not in ("0", NO_TIER)
    )
    attached = ", ".join(
        f"{count:,} on {n} switch{'es' * (n != 1)}" for n, count in found.endpoints_by_attachments.items()
    )
    policy = (
        "valley-free paths (tiered, lossless or unknown medium)"
        if found.is_valley_free_required
        else "any shortest path"
    )
    rows = (
        ("switches", found.switches, tiers),
        ("endpoints", found.endpoints, f"{attached or 'none'}; of {found.hosts:,} hosts"),
        ("aggregation nodes", found.aggregation_nodes, "in-network computing inside switches, no endpoints"),
        ("links", found.links, f"{found.trunks:,} between switches"),
        ("self-loops", found.self_loops, "cables with both ends on one switch"),
        ("components", len(found.components), _components(found)),
        ("unlinked nodes", len(found.unlinked_nodes), ""),
        ("names that repeat", found.repeated_names, "identity is the id, never the name"),
        ("problems", len(imported.problems), "lines that were left out or doubted" if imported.problems else ""),
    )
    for what, count, remark in rows:
        if count or what in ("switches", "endpoints", "links", "self-loops", "components"):
            table.add_row(what, f"{count:,}", remark)
    table.add_row("tiered", "yes" if found.is_tiered else "no", policy)
    return table


def _components(found: "Findings") -> str:
    sizes = ", ".join(f"{size:,}" for size in found.components[:ROWS_MAX])
    more = ", ..." if len(found.components) > ROWS_MAX else ""
    return f"connected: {sizes} nodes" if len(found.components) == 1 else f"NOT connected: {sizes}{more} nodes"


def _links(found: "Findings") -> "Table":
    table = _table("links by tier and speed", "tiers", "joins", "speed", "medium", "links", numbers=("links",))
    for sort in found.links_by_sort:
        table.add_row(sort.tiers, sort.joins, sort.speed, sort.medium, f"{sort.count:,}")
    return table


def _missing(found: "Findings") -> "Table":
    title = "below the usual (modal) count: never fitted, isolated or broken"
    table = _table(title, "what", "usual", "spread", "missing", numbers=("usual", "missing"))
    for up in found.uplinks:
        spread = ", ".join(f"{count} on {switches:,}" for count, switches in up.switches_by_count.items())
        table.add_row(f"uplinks per switch of tier {up.tier}", str(up.modal), spread, f"{up.missing:,}")
    for bundle in found.bundles:
        spread = ", ".join(f"{links} on {pairs:,}" for links, pairs in bundle.pairs_by_count.items())
        table.add_row(f"links per pair, tiers {bundle.tiers}", str(bundle.modal), spread, f"{bundle.missing:,}")
    return table


def _lists(imported: "Imported", found: "Findings") -> Iterable[tuple[str, list[str]]]:
    """Yield the lists worth printing; empty ones are not."""
    splitting = [cut for cut in found.cutting_switches if cut.switches_cut_off]
    leaves = [cut for cut in found.cutting_switches if not cut.switches_cut_off]
    lists: tuple[tuple[str, list[str]], ...] = (
        (
            "single points of failure: links whose loss splits the switches",
            [
                f"{cut.name} [{cut.id}]: cuts off {_counted(cut.endpoints_cut_off, 'endpoint', 'endpoints')}"
                for cut in found.bridges
            ],
        ),
        (
            "single points of failure: switches whose loss splits the others",
            [
                f"{cut.name}: cuts off {_counted(cut.switches_cut_off, 'switch', 'switches')} and "
                + _counted(cut.endpoints_cut_off, "endpoint", "endpoints")
                for cut in splitting
            ],
        ),
        (
            "single points of failure: switches whose loss cuts off the endpoints on them alone",
            [f"{cut.name}: {_counted(cut.endpoints_cut_off, 'endpoint', 'endpoints')}" for cut in leaves],
        ),
        (
            "switches with fewer uplinks than usual",
            [
                f"{name}: {count} of {up.modal}, tier {up.tier}{remark}"
                for up in found.uplinks
                for group, remark in ((up.short, ""), (up.other_role, " (another role?)"))
                for _, name, count in group
            ],
        ),
        (
            "switch pairs with fewer parallel links than usual",
            [
                f"{imported.fabric.nodes[one].label} to {imported.fabric.nodes[other].label}: {count} of {bundle.modal}"
                for bundle in found.bundles
                for one, other, count in bundle.short
            ],
        ),
        ("self-loop cables", [str(link) for link in found.self_loop_links]),
        ("nodes without a link", [imported.fabric.nodes[node].label for node in found.unlinked_nodes]),
        ("left out of the file", [problem.describe("line") for problem in imported.unparsed]),
    )
    return ((title, rows) for title, rows in lists if rows)


def _counted(things: Sequence[object], one: str, many: str) -> str:
    return f"{len(things):,} {one if len(things) == 1 else many}"


@command.command("addresses")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--ipv4-pool", default="10.64.0.0/10", show_default=True, help="Endpoints' IPv4 addresses come from here."
)
@click.option("--ipv6-pool", default="fd5e:7f3a:91c4::/48", show_default=True, help="The same for IPv6: a /64 a class.")
@click.option("--node", "nodes", multiple=True, help="Only this node's part; may be given several times.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write; stdout if not given.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite an existing file.")
def addresses(
    file: Path, ipv4_pool: str, ipv6_pool: str, nodes: tuple[str, ...], output: Path | None, is_forced: bool
) -> None:
    """Plan IP addresses for the fabric in FILE: what an agent with the Linux driver must know.

    Endpoints with a label "prefixes" keep those. Links need no addresses: next hops are IPv6 link-local ones.

    Example: erfs fabric addresses fabric.json -o addressing.json
    """
    from ipaddress import IPv4Network, IPv6Network

    from erfs.addressing import plan_addresses
    from erfs.importers import load_fabric

    try:
        pools = IPv4Network(ipv4_pool), IPv6Network(ipv6_pool)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    plan = plan_addresses(load_fabric(file).fabric, ipv4_pool=pools[0], ipv6_pool=pools[1])
    unknown = sorted(set(nodes) - plan.nodes.keys())
    if unknown:
        raise click.UsageError(f"no such node: {', '.join(unknown)}")
    if nodes:
        plan = plan.model_copy(update={"nodes": {name: found for name, found in plan.nodes.items() if name in nodes}})
    what = f"{len(plan.destinations):,} destinations, {len(plan.nodes):,} nodes"
    _write(plan.model_dump_json(indent=1, exclude_defaults=True) + "\n", output, is_forced, what)


class _Kinds(click.Group):
    """One subcommand a generator, its options made from the generator's parameters."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from erfs.generators import GENERATORS

        return list(GENERATORS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _make_command(cmd_name) if cmd_name in self.list_commands(ctx) else None


@command.group("make", cls=_Kinds)
def make() -> None:
    """Generate a fabric of some KIND, to stdout or to a file.

    Example: erfs fabric make leaf-spine --leaves 16 --spines 4 --attachments 2 -o pod.json
    """


def _make_command(kind: str) -> click.Command:
    from erfs.exporters import WRITERS
    from erfs.generators import GENERATORS

    fields = GENERATORS[kind].params.model_fields

    def run(format_: str, output: Path | None, is_forced: bool, **params: object) -> None:
        _make(kind, {name: value for name, value in params.items() if value is not None}, format_, output, is_forced)

    options: list[click.Parameter] = [_option(name, field) for name, field in fields.items()]
    options += [
        click.Option(["--format", "format_"], type=click.Choice(list(WRITERS)), default="node-link", show_default=True),
        click.Option(["-o", "--output"], type=click.Path(path_type=Path), help="Where to write; stdout if not given."),
        click.Option(["--force", "is_forced"], is_flag=True, help="Overwrite an existing file."),
    ]
    example = next(
        iter(fields[name].alias or name for name in fields if name not in ("access_gbps", "trunk_gbps", "medium"))
    )
    value = _shown_default(fields[example])
    doc = f"{GENERATORS[kind].summary}.\n\nExample: erfs fabric make {kind} --{example.replace('_', '-')} {value} -o {kind}.json"
    return click.Command(kind, callback=run, params=options, help=doc, short_help=GENERATORS[kind].summary)


def _option(name: str, field: "FieldInfo") -> click.Option:
    from enum import Enum

    type_: Any = str
    if field.annotation is int:
        type_ = int
    elif isinstance(field.annotation, type) and issubclass(field.annotation, Enum):
        type_ = click.Choice([member.value for member in field.annotation])
    bounds = {key: getattr(item, key) for item in field.metadata for key in ("ge", "le") if hasattr(item, key)}
    limits = f"; {bounds['ge']} to {bounds['le']:,}" if len(bounds) == 2 else ""
    text = f"{(field.description or '')[:1].upper()}{(field.description or '')[1:]} [default: {_shown_default(field)}{limits}]"
    return click.Option([f"--{name.replace('_', '-')}"], type=type_, default=None, help=text)


def _shown_default(field: "FieldInfo") -> str:
    return "x".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)


def _make(kind: str, params: dict[str, object], format_: str, output: Path | None, is_forced: bool) -> None:
    from pydantic import ValidationError

    from erfs.exporters import write_fabric
    from erfs.generators import generate

    try:
        fabric = generate(kind, params)
    except ValidationError as error:
        raise click.UsageError(_faults(error)) from error
    counts = f"{len(fabric.switches):,} switches, {len(fabric.endpoints):,} endpoints, {len(fabric.links):,} links"
    _write(write_fabric(fabric, format_), output, is_forced, f"{fabric.name}, {counts}")


def _write(text: str, output: Path | None, is_forced: bool, what: str) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("w" if is_forced else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise click.UsageError(
            f'"{output}" is there already: name another file, or add --force to overwrite it'
        ) from error
    except OSError as error:
        raise click.UsageError(f'"{output}" cannot be written: {(error.strerror or str(error)).lower()}') from error
    click.echo(f"wrote {output}: {what}", err=True)


def _faults(error: "ValidationError") -> str:
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        option = f"--{str(fault['loc'][0]).replace('_', '-')}: " if fault["loc"] else ""
        message = fault["msg"].removeprefix("Value error, ")
        value = f", not {fault['input']}" if fault["loc"] else ""
        lines.append(f"{option}{message[:1].lower()}{message[1:]}{value}")
    return "\n".join(lines)
