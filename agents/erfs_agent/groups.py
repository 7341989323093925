"""Which destinations change together, whatever single failure the node is armed for?

Rule 1: a group's destinations have the same members now, and after any armed failure the same members again: one flip of the group serves all of them.
Rule 2: groups follow from the program alone; they are not sent, for a list of members in each of them would be most of a program.
"""

from collections.abc import Mapping

from erfs.ids import DestinationId, lookup_order
from erfs.messages import ChangeRef
from erfs_agent.forwarding import CompiledProgram, FailureKey

Places = frozenset[int]
"""The sets of the program that name a destination or what it inherits from."""


def groups_of(compiled: CompiledProgram) -> dict[DestinationId, int]:
    """
    Return the group of each destination: of those with a route, and of those that some failure gives one of their own.

    Groups are numbered in the order of the destinations. A destination without a route of its own has the members of the route that serves
    it, but a group apart if some failure concerns it alone.

    Cost: O(routes + destinations in the program's sets).
    """
    named: dict[DestinationId, set[int]] = {}
    for place, destinations in enumerate(compiled.program.armed.sets):
        for destination in destinations:
            named.setdefault(destination, set()).add(place)
    numbers: dict[tuple[int, Places], int] = {}
    found: dict[DestinationId, int] = {}
    for destination in sorted({*compiled.routes, *named}):
        route = compiled.base(destination)
        if route is not None:
            places = Places(place for name in lookup_order(destination) for place in named.get(name, ()))
            found[destination] = numbers.setdefault((route.group, places), len(numbers))
    return found


def flips_of(compiled: CompiledProgram, groups: Mapping[DestinationId, int]) -> dict[FailureKey, int]:
    """
    Return for each failure armed for how many groups it changes: what a data plane has to write.

    Args:
        compiled: The program.
        groups: Its `groups_of`.

    Cost: O(destinations of all changes).
    """
    armed = compiled.program.armed
    below: dict[DestinationId, list[DestinationId]] = {}
    for destination in groups:
        for wider in lookup_order(destination):
            below.setdefault(wider, []).append(destination)
    groups_of_set = [
        frozenset(groups[name] for wider in destinations for name in below.get(wider, ()))
        for destinations in armed.sets
    ]
    refs: dict[FailureKey, tuple[ChangeRef, ...]] = {}
    refs.update((("link", link), changes) for link, changes in armed.links.items())
    refs.update((("node", node), changes) for node, changes in armed.nodes.items())
    refs.update((("srlg", srlg), risk.changes) for srlg, risk in armed.srlgs.items())
    return {
        failure: len(frozenset[int]().union(*(groups_of_set[ref.destinations] for ref in changes)))
        for failure, changes in refs.items()
    }
