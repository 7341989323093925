"""`erfs paths`: how many equal-cost paths join two places, which ones, and how many share nothing?

Rule 1: nothing is decided here: `erfs.paths.between` finds; this file reads names and prints.
"""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from erfs.cli.main import Exit

if TYPE_CHECKING:
    from erfs.fabric import Fabric
    from erfs.ids import NodeId
    from erfs.paths.between import Between, Disjoint
    from erfs.paths.between import Path as Way


@click.command("paths")
@click.argument("fabric", type=click.Path(path_type=Path))
@click.argument("one")
@click.argument("other")
@click.option(
    "--disjoint", "is_disjoint", is_flag=True, help="Also find paths that share no link, switch or risk group."
)
@click.option("--count", type=click.IntRange(min=0), default=8, show_default=True, help="Print so many of each sort.")
@click.option("--valleys", "are_valleys_allowed", is_flag=True, help="Allow valleys even where policy forbids them.")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
@click.option("--lenient", "is_lenient", is_flag=True, help="Keep what is sound of a damaged file.")
def command(
    fabric: Path,
    one: str,
    other: str,
    is_disjoint: bool,
    count: int,
    are_valleys_allowed: bool,
    is_json: bool,
    is_lenient: bool,
) -> int:
    """Show the equal-cost paths of FABRIC from ONE place to the OTHER: endpoints or switches, by id or by name.

    They are counted exactly, however many there are, and the first are printed. Ends with 1 if there is none.

    Example: erfs paths pod.json rack0-host0 rack3-host1 --disjoint
    """
    from erfs.fabric import is_valley_free_required
    from erfs.importers import load_fabric
    from erfs.paths.between import BY_GROUP, BY_LINK, BY_NODE, Between

    imported = load_fabric(fabric, is_lenient=is_lenient)
    for problem in imported.problems:
        click.echo(f"erfs: {problem.describe(str(fabric))}", err=True)
    built = imported.fabric
    start, end = _place(built, one), _place(built, other)
    if start == end:
        raise click.UsageError(f'"{one}" and "{other}" are the same place: expected two')
    is_required = is_valley_free_required(built)
    permitted = Between(built, start, end, is_valley_free=is_required and not are_valleys_allowed)
    lax = Between(built, start, end, is_valley_free=False)
    sorts = (BY_LINK, BY_NODE, BY_GROUP) if is_disjoint else ()
    found = [(permitted.disjoint(by), lax.disjoint(by) if permitted.is_valley_free else None) for by in sorts]
    ways = list(islice(permitted.equal_cost(), count))
    if is_json:
        click.echo(
            json.dumps(_as_json(permitted, lax, ways, found, count), indent=1, sort_keys=True, ensure_ascii=False)
        )
    else:
        for line in _lines(permitted, lax, ways, found, count):
            click.echo(line)
    return Exit.PASSED if permitted.count else Exit.MISSED


def _place(fabric: "Fabric", word: str) -> "NodeId":
    """Return the endpoint or switch that *word* means. Raises UsageError with what was meant perhaps."""
    import difflib

    from erfs.ids import NodeId

    node = fabric.nodes.get(NodeId(word))
    if node is None:
        named = [node for node in fabric.nodes.values() if node.name == word and (node.is_switch or node.is_endpoint)]
        if len(named) > 1:
            ids = ", ".join(node.id for node in named[:4]) + (", …" if len(named) > 4 else "")
            raise click.UsageError(f'{len(named)} nodes are named "{word}": give the id of one, such as {ids}')
        if not named:
            known = [word_ for node in fabric.nodes.values() for word_ in (node.id, node.name) if word_]
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
            hint = f' (did you mean "{near[0]}"?)' if near else ": `erfs fabric show` tells what is there"
            raise click.UsageError(f'there is no node "{word}" in fabric "{fabric.name}"{hint}')
        (node,) = named
    if not (node.is_switch or node.is_endpoint):
        raise click.UsageError(f'"{word}" is an {node.kind} node: expected an endpoint or a switch')
    return node.id


def _as_json(
    permitted: "Between",
    lax: "Between",
    ways: "list[Way]",
    found: "list[tuple[Disjoint, Disjoint | None]]",
    count: int,
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "from": permitted.one,
        "to": permitted.other,
        "policy": "valley-free" if permitted.is_valley_free else "any path",
        "equal_cost_paths": permitted.count,
        "links_each": len(ways[0].links) if ways else None,
        "paths": [_way(way) for way in ways],
    }
    if not permitted.count and permitted.is_valley_free:
        data["valleys_would_join"] = bool(lax.count)
    if found:
        data["disjoint"] = {
            strict.by: {
                "paths": [_way(way) for way in strict.paths[:count]],
                "count": len(strict.paths),
                "is_largest": strict.is_largest,
                "shared_by_all": list(strict.exempt),
                "count_with_valleys": None if free is None else max(len(free.paths), len(strict.paths)),
            }
            for strict, free in found
        }
    return data


def _way(way: "Way") -> dict[str, Any]:
    return {"nodes": list(way.nodes), "links": list(way.links)}


def _lines(
    permitted: "Between",
    lax: "Between",
    ways: "list[Way]",
    found: "list[tuple[Disjoint, Disjoint | None]]",
    count: int,
) -> Iterable[str]:
    label = {node.id: node.label for node in permitted.fabric.nodes.values()}
    policy = "valley-free" if permitted.is_valley_free else "any path"
    title = f"{label[permitted.one]} to {label[permitted.other]}"
    if permitted.count:
        plural = "s" if permitted.count != 1 else ""
        length = f" of {len(ways[0].links)} links" if ways else ""
        yield f"{title}: {permitted.count:,} equal-cost path{plural}{length}, {policy}"
    else:
        valley = permitted.is_valley_free and lax.count
        yield f"{title}: no path" + (", but for valleys, which policy forbids (--valleys shows them)" if valley else "")
    yield from _listed(permitted, ways, permitted.count)
    for strict, free in found:
        at_least = "" if strict.is_largest else "at least "
        yield ""
        yield f"{strict.by}-disjoint: {at_least}{len(strict.paths):,}" + _remark(strict, free, label)
        yield from _listed(permitted, strict.paths[:count], len(strict.paths))


def _remark(strict: "Disjoint", free: "Disjoint | None", label: "dict[NodeId, str]") -> str:
    parts = []
    if strict.exempt:
        shared = ", ".join(label.get(name, name) for name in strict.exempt)  # type: ignore[call-overload]
        parts.append(f"but for what an end has no other of: {shared}")
    if free is not None and len(free.paths) > len(strict.paths):
        parts.append(f"{len(free.paths) - len(strict.paths):,} more would be valleys, which policy forbids")
    return f" ({'; '.join(parts)})" if parts else ""


def _listed(between: "Between", ways: "Iterable[Way]", total: int) -> Iterable[str]:
    shown = 0
    for way in ways:
        shown += 1
        yield f"  {shown}. " + _told(between, way)
    if shown < total:
        yield f"  ... and {total - shown:,} more, --count N prints them"


def _told(between: "Between", way: "Way") -> str:
    """Return a path for people: the nodes, and the port where parallel links leave a choice."""
    nodes = between.fabric.nodes
    text = nodes[way.nodes[0]].label
    for near, far, link_id in zip(way.nodes, way.nodes[1:], way.links, strict=False):
        link = between.fabric.links[link_id]
        parallel = sum(one.far_end(near).node == far for one in between.fabric.links_of[near])
        port = f" (port {link.end_at(near).port})" if parallel > 1 else ""
        text += f"{port} > {nodes[far].label}"
    return text
