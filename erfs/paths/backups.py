"""By which ports may a switch send what has lost its only link, before anybody has heard of the loss?

Rule 1: only back to a neighbour that has another way: one that sends to this switch and to others for the same destination.
Rule 2: the neighbour never sends such a packet back by the port it came by; the driver sees to that.
Rule 3: this is a valley, so none of it exists where policy forbids valleys (`erfs.fabric.is_valley_free_required`).

Be X the switch, W the far end of its only link towards destination D, Y the neighbour and Z another next hop of Y. X and Z are both next hops of
Y, and the link from Y to X costs the least a link can; so Z is no farther from D than X is. Every next hop is nearer than the node that uses it:
neither X nor Y is on any path from Z on, and the lost link, which leads on from X, is on none either. One bounce, no loop.

This holds for the loss of one link. When W itself dies, every X that had its only link to it bounces, and what goes to D circles until the facts
have come round or its hop limit ends it (docs/adr/0018). Compare link-protecting loop-free alternates, RFC 5286.
"""

import numpy as np

from erfs.paths.bits import Bits, unpacked
from erfs.paths.situation import Situation


def has_backups(situation: Situation) -> bool:
    """Return whether policy permits a packet to be sent back up."""
    return not situation.topology.is_valley_free


def backup_ports(situation: Situation, switch: int) -> list[tuple[str, ...]]:
    """
    Return for each target the ports to neighbours that take what the switch's only link towards it no longer does, sorted.

    Empty where the switch has no link or several, or no such neighbour.

    Cost: O(link-ends of the switch x targets).
    """
    topology, mesh, hops = situation.topology, situation.mesh, situation.hops
    start, stop = int(mesh.source_start[switch]), int(mesh.source_start[switch + 1])
    count = len(situation.targets)
    chosen = unpacked(hops.members[start:stop], count)
    back = topology.opposite[start:stop]
    neighbours = mesh.target[start:stop]
    # A link that costs more may lead to somebody farther away than those beside it.
    takes = unpacked(hops.members[back] & situation.has_choice[neighbours], count) & (hops.cost[back] == 1)[:, None]
    takes &= chosen.sum(axis=0) == 1
    return _ports(takes, topology.end_port[start:stop])


def _ports(marks: Bits, ports: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the *ports* marked in each column."""
    found: dict[bytes, tuple[str, ...]] = {}
    columns = []
    for row in np.packbits(marks, axis=0).T:
        key = row.tobytes()
        if key not in found:
            which = np.unpackbits(row, count=len(ports)).tolist()
            found[key] = tuple(sorted(port for port, mark in zip(ports, which, strict=True) if mark))
        columns.append(found[key])
    return columns
