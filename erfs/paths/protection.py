"""placeholder until arm() is written."""

from dataclasses import dataclass

from erfs.ids import DestinationId, NodeId
from erfs.paths.situation import Situation


@dataclass(frozen=True)
class Unprotected:
    """Something a single failure cuts off although nothing is armed against it, and why."""

    failure: str
    reason: str
    destinations: tuple[DestinationId, ...]
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True)
class Armory:
    """What is armed."""

    unprotected: tuple[Unprotected, ...] = ()


def arm(situation: Situation) -> Armory:
    """Nothing yet."""
    return Armory()
