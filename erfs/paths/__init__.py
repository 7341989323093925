"""The path engine: arrays, next hops, protection, ordering, verification. Pure."""

from erfs.paths.ordering import plan_rounds
from erfs.paths.programs import ProgramSet, compute
from erfs.paths.protection import Unprotected
from erfs.paths.topology import Topology
from erfs.paths.verifier import Blackhole, Loop, Unreached, Verdict, verify

__all__ = [
    "Blackhole",
    "Loop",
    "ProgramSet",
    "Topology",
    "Unprotected",
    "Unreached",
    "Verdict",
    "compute",
    "plan_rounds",
    "verify",
]
