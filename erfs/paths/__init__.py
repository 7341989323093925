"""The path engine: arrays, next hops, protection, ordering, verification. Pure."""

from erfs.paths.ordering import plan_rounds
from erfs.paths.programs import ProgramSet, compute
from erfs.paths.protection import Unprotected
from erfs.paths.topology import Topology

__all__ = ["ProgramSet", "Topology", "Unprotected", "compute", "plan_rounds"]
