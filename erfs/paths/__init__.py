"""The path engine: arrays, next hops, protection, ordering, verification. Pure."""

from erfs.paths.ordering import plan_rounds
from erfs.paths.programs import ProgramSet, compute
from erfs.paths.protection import Unprotected
from erfs.paths.situation import Sharing
from erfs.paths.topology import Topology
from erfs.paths.verifier import Blackhole, Loop, PushVerdict, RoundVerdict, Unreached, Valley, Verdict, Verifier, verify

__all__ = [
    "Blackhole",
    "Loop",
    "ProgramSet",
    "PushVerdict",
    "RoundVerdict",
    "Sharing",
    "Topology",
    "Unprotected",
    "Unreached",
    "Valley",
    "Verdict",
    "Verifier",
    "compute",
    "plan_rounds",
    "verify",
]
