"""Which links, nodes or endpoints of a fabric a selector means. One selector runs on any fabric that has such things.

Rule 1: candidates come in the fabric's canonical order, so equal seeds draw equally on every machine.
Rule 2: a selector that means nothing here is an error that says what there is.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

from erfs.fabric import Fabric, Link, Node
from erfs.ids import LinkId, NodeId
from erfs.units import PPM
from erfs_scenario.schema import Selector
from erfs_scenario.yaml_marks import suggest

T = TypeVar("T")
SHARED_RISK: Final = "shared_risk"
"""Of `Selector.together`: not a label, but the shared-risk groups of links."""


@dataclass(frozen=True)
class Misfit(Exception):  # noqa: N818 -- it is told as a Problem; the caller knows the line
    """*key* of a selector does not fit the fabric."""

    key: str
    message: str
    suggestion: str = ""


def select_links(fabric: Fabric, selector: Selector, rng: random.Random) -> tuple[LinkId, ...]:
    """
    Return the links that *selector* means, sorted.

    Raises:
        Misfit: a name is not in the fabric, nothing fits, or less than `random` asks for.
    """
    if selector.share_switch:
        return _on_one_switch(fabric, _fitting_links(fabric, selector), selector.random or 1, rng)
    drawn = _drawn(link_groups(fabric, selector), selector, rng, "groups" if selector.together else "links")
    return tuple(sorted({link for group in drawn for link in group}))


def link_groups(fabric: Fabric, selector: Selector) -> tuple[tuple[LinkId, ...], ...]:
    """
    Return what *selector* may draw: each link by itself, or the links that go together.

    Raises:
        Misfit: nothing fits.
    """
    links = _fitting_links(fabric, selector)
    if selector.together is None:
        return tuple((link.id,) for link in links)
    key = selector.together

    def groups_of(link: Link) -> Iterable[str]:
        labels = (link.labels, *(fabric.nodes[end.node].labels for end in link.ends))
        return link.srlgs if key == SHARED_RISK else {found[key] for found in labels if key in found}

    return _grouped(fabric, key, "link", ((link.id, groups_of(link)) for link in links))


def _fitting_links(fabric: Fabric, selector: Selector) -> list[Link]:
    links = [link for link in fabric.links.values() if not link.is_self_loop]
    if selector.name is not None:
        links = _named_links(fabric, links, selector.name)
    if selector.kind is not None:
        fits = fabric.is_trunk if selector.kind == "trunk" else fabric.is_access
        links = _narrowed(links, fits, "kind", f"no {selector.kind} link fits")
    elif selector.name is None:
        links = [link for link in links if fabric.is_trunk(link) or fabric.is_access(link)]
    if (tier := _tier(fabric, selector)) is not None:
        links = _narrowed(
            links,
            lambda link: max(_tier_of(fabric.nodes[end.node]) for end in link.ends) == tier,
            "tier",
            f"no such link has its higher end in tier {tier}",
            _tiers_there(fabric),
        )
    for key, value in sorted(selector.labels.items()):
        links = _narrowed(
            links,
            lambda link, key=key, value=value: any(  # type: ignore[misc]
                labels.get(key) == value
                for labels in (link.labels, *(fabric.nodes[end.node].labels for end in link.ends))
            ),
            _label_key(selector, key),
            f'no such link, nor an end of one, has the label {key} = "{value}"',
            _labels_there(fabric, key),
        )
    return links


def select_nodes(
    fabric: Fabric, selector: Selector, rng: random.Random, *, is_for_endpoints: bool = False
) -> tuple[NodeId, ...]:
    """
    Return the nodes that *selector* means, sorted: switches and endpoints with a link, never aggregation nodes.

    Args:
        fabric: Where to look.
        selector: What is meant.
        rng: Draws where the selector says random.
        is_for_endpoints: Only endpoints count, as for demands.

    Raises:
        Misfit: as `select_links`.
    """
    groups = node_groups(fabric, selector, is_for_endpoints=is_for_endpoints)
    drawn = _drawn(groups, selector, rng, "groups" if selector.together else "nodes")
    return tuple(sorted({node for group in drawn for node in group}))


def node_groups(
    fabric: Fabric, selector: Selector, *, is_for_endpoints: bool = False
) -> tuple[tuple[NodeId, ...], ...]:
    """
    Return what *selector* may draw: each node by itself, or the nodes that go together.

    Raises:
        Misfit: nothing fits.
    """
    nodes = _fitting_nodes(fabric, selector, is_for_endpoints)
    if selector.together is None:
        return tuple((node.id,) for node in nodes)
    key = selector.together

    def groups_of(node: Node) -> Iterable[str]:
        if key == SHARED_RISK:
            return {srlg for link in fabric.links_of[node.id] for srlg in link.srlgs}
        return {node.labels[key]} if key in node.labels else ()

    return _grouped(fabric, key, "node", ((node.id, groups_of(node)) for node in nodes))


def _grouped(
    fabric: Fabric, key: str, kind: str, things: Iterable[tuple[T, Iterable[str]]]
) -> tuple[tuple[T, ...], ...]:
    """Return *things*, each given with the groups it belongs to, group by group. Raises Misfit if there is no group."""
    groups: dict[str, list[T]] = {}
    for thing, names in things:
        for name in names:
            groups.setdefault(name, []).append(thing)
    if not groups:
        what = "is in a shared-risk group" if key == SHARED_RISK else f"has the label {key}"
        raise Misfit("together", f"no such {kind} {what}", "" if key == SHARED_RISK else _labels_there(fabric, key))
    return tuple(tuple(groups[name]) for name in sorted(groups))


def _fitting_nodes(fabric: Fabric, selector: Selector, is_for_endpoints: bool) -> list[Node]:
    nodes = (
        list(fabric.endpoints)
        if is_for_endpoints
        else sorted((*fabric.switches, *fabric.endpoints), key=lambda node: node.id)
    )
    if selector.name is not None:
        nodes = _named_nodes(nodes, selector.name)
    if selector.kind is not None:
        nodes = _narrowed(
            nodes, lambda node: node.is_switch == (selector.kind == "switch"), "kind", f"no {selector.kind} fits"
        )
    if (tier := _tier(fabric, selector)) is not None:
        nodes = _narrowed(
            nodes, lambda node: _tier_of(node) == tier, "tier", f"no such node is in tier {tier}", _tiers_there(fabric)
        )
    for key, value in sorted(selector.labels.items()):
        nodes = _narrowed(
            nodes,
            lambda node, key=key, value=value: node.labels.get(key) == value,  # type: ignore[misc]
            _label_key(selector, key),
            f'no such node has the label {key} = "{value}"',
            _labels_there(fabric, key),
        )
    return nodes


def _label_key(selector: Selector, label: str) -> str:
    """Return the key of *selector* that asks for *label*."""
    return label if label in ("rail", "pod") and label in selector.model_fields_set else "label"


def _narrowed(items: list[T], fits: Callable[[T], bool], key: str, message: str, suggestion: str = "") -> list[T]:
    found = [item for item in items if fits(item)]
    if not found:
        raise Misfit(key, message, suggestion)
    return found


def _drawn(items: Sequence[T], selector: Selector, rng: random.Random, what: str) -> Sequence[T]:
    if selector.share is not None:
        count = max(1, round(Fraction(selector.share * len(items), PPM)))
        return [items[index] for index in sorted(rng.sample(range(len(items)), count))]
    if selector.random is None:
        return items
    if selector.random > len(items):
        raise Misfit("random", f"{selector.random} {what} asked for, {len(items)} fit")
    return [items[index] for index in sorted(rng.sample(range(len(items)), selector.random))]


def _on_one_switch(fabric: Fabric, links: Iterable[Link], count: int, rng: random.Random) -> tuple[LinkId, ...]:
    at: dict[NodeId, list[LinkId]] = {}
    for link in links:
        for end in link.ends:
            if fabric.nodes[end.node].is_switch:
                at.setdefault(end.node, []).append(link.id)
    able = [found for _, found in sorted(at.items()) if len(found) >= count]
    if not able:
        most = max((len(found) for found in at.values()), default=0)
        raise Misfit("random", f"{count} links of one switch asked for, no switch has more than {most} that fit")
    return tuple(sorted(rng.sample(rng.choice(able), count)))


def _named_nodes(nodes: Sequence[Node], names: Sequence[str]) -> list[Node]:
    found: dict[NodeId, Node] = {}
    for name in names:
        by_id = [node for node in nodes if node.id == name]
        by_name = [node for node in nodes if node.name == name]
        if not by_id and len(by_name) > 1:
            raise Misfit(
                "name",
                f'{len(by_name)} nodes are called "{name}"',
                f"say which: {', '.join(node.id for node in by_name[:4])}",
            )
        if not by_id and not by_name:
            known = [node.id for node in nodes] + [node.name for node in nodes if node.name]
            raise Misfit("name", f'there is no node "{name}"', suggest(name, known))
        found |= {node.id: node for node in by_id or by_name}
    return [found[node] for node in sorted(found)]


def _named_links(fabric: Fabric, links: Sequence[Link], names: Sequence[str]) -> list[Link]:
    known: dict[str, list[Link]] = {}
    for link in links:
        ends = [(end, fabric.nodes[end.node]) for end in link.ends]
        spellings: set[str] = {link.id}
        for end, node in ends:
            spellings |= {end.id, f"{node.label}:{end.port}"}
        for (_, one), (_, other) in (ends, ends[::-1]):
            spellings |= {f"{one.id} - {other.id}", f"{one.label} - {other.label}"}
        for (one_end, one), (other_end, other) in (ends, ends[::-1]):
            spellings.add(f"{one.label}:{one_end.port} - {other.label}:{other_end.port}")
        for spelling in spellings:
            known.setdefault(spelling, []).append(link)
    found: dict[LinkId, Link] = {}
    for name in names:
        hits = known.get(name)
        if hits is None:
            raise Misfit("name", f'there is no link "{name}"', suggest(name, sorted(known)))
        found |= {link.id: link for link in hits}
    return [found[link] for link in sorted(found)]


def _tier_of(node: Node) -> int:
    return -1 if node.tier is None else node.tier


def _tier(fabric: Fabric, selector: Selector) -> int | None:
    words: Mapping[object, int] = {
        "leaf": 1,
        "spine": 2,
        "top": max((_tier_of(node) for node in fabric.switches), default=0),
    }
    return words.get(selector.tier, selector.tier if isinstance(selector.tier, int) else None)


def _tiers_there(fabric: Fabric) -> str:
    tiers = sorted({_tier_of(node) for node in fabric.switches} - {-1})
    return f"switches here are in tier {', '.join(map(str, tiers))}" if tiers else "no tier could be inferred here"


def _labels_there(fabric: Fabric, key: str) -> str:
    values = sorted({node.labels[key] for node in fabric.nodes.values() if key in node.labels})
    if values:
        return f"{key} here is one of {', '.join(values[:8])}{', …' if len(values) > 8 else ''}"
    labels = sorted({label for node in fabric.nodes.values() for label in node.labels})
    return f"labels here: {', '.join(labels)}" if labels else "this fabric has no labels"
