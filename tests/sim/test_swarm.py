"""Random faults on small fabrics of every kind: no loop at any instant, and in the end everything is as after a fresh start."""

import itertools
import random
from collections.abc import Sequence
from functools import cache

import pytest

from erfs.fabric import Fabric
from erfs.faults import LINK_KINDS, NODE_KINDS, ONE_ENDED, Fault, FaultKind
from erfs.generators import generate
from erfs.units import MS, SECOND
from erfs_scenario.backends import kinds_of
from tests.sim.runs import MEASURE_FROM_NS, Tables, plan_on, run

FABRICS = {
    "fat-tree": {"k": 4},
    "leaf-spine": {"leaves": 4, "spines": 3, "hosts_per_leaf": 2, "cables": 2},
    "dual-homed": {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "attachments": 2},
    "rail": {"hosts": 4, "nics_per_host": 4, "hosts_per_group": 2, "spines": 2, "cables": 2},
    "dragonfly": {"switches_per_group": 3, "hosts_per_switch": 1, "global_links_per_switch": 1},
    "torus": {"dims": [3, 4], "hosts_per_switch": 1},
}
SEEDS = range(1, 5)
FIRST_KINDS = (
    FaultKind.LINK_DOWN,
    FaultKind.NODE_DOWN,
    FaultKind.AGENT_KILL,
    FaultKind.CONTROLLER_KILL,
    FaultKind.BUS_PARTITION,
)
"""Those that the seeds of TAUGHT were drawn from: what a seed draws depends on what there is."""
TAUGHT = {
    # While an agent is gone its switch forwards as before: nobody may be sent through it as if it had followed.
    ("torus", 0),
    ("torus", 37),
    ("dragonfly", 13),
    ("dragonfly", 14),
    # An agent that returns under a successor refuses what the predecessor had left for it.
    ("leaf-spine", 23),
}
FAULTS_END_NS = 6 * SECOND
LASTS_NS = 14 * SECOND


def fabric_of(kind: str) -> Fabric:
    return generate("leaf-spine" if kind == "dual-homed" else kind, FABRICS[kind])


def random_faults(fabric: Fabric, rng: random.Random, kinds: Sequence[FaultKind]) -> tuple[Fault, ...]:
    """Return three to six faults of these kinds that overlap as they like; all are over at FAULTS_END_NS."""
    trunks = [link.id for link in fabric.trunks]
    switches = [node.id for node in fabric.switches]
    found = []
    for index in range(rng.randint(3, 6)):
        kind = rng.choice([FaultKind.LINK_DOWN, FaultKind.LINK_DOWN, *kinds])
        at_ns = rng.randrange(MEASURE_FROM_NS + 100 * MS, FAULTS_END_NS - SECOND)
        # From a blink to seconds; some end before the news of them has spread.
        lasts_ns = rng.choice([1 * MS, 20 * MS, 300 * MS, 2 * SECOND])
        links = tuple(sorted(rng.sample(trunks, rng.randint(1, 2)))) if kind in LINK_KINDS else ()
        nodes = (rng.choice(switches),) if kind in NODE_KINDS else ()
        # A drain may be refused, which has a test of its own: here it is done whatever it cuts off.
        force = "chance wants it" if kind is FaultKind.DRAIN else ""
        found.append(
            Fault(
                f"fault-{index}",
                kind,
                at_ns,
                min(at_ns + lasts_ns, FAULTS_END_NS),
                links,
                nodes,
                ends=tuple(fabric.links[link].ends[index % 2] for link in links) if kind in ONE_ENDED else (),
                loss_ppm=300_000 if kind is FaultKind.PACKET_LOSS else 0,
                period_ns=200 * MS if kind is FaultKind.LINK_FLAP else 0,
                force=force,
            )
        )
    return tuple(sorted(found, key=lambda fault: fault.at_ns))


@cache
def tables_when_new(kind: str) -> Tables:
    return run(plan_on(fabric_of(kind), lasts_ns=2 * SECOND)).tables


def assert_as_good_as_new(kind: str, seed: int, kinds: Sequence[FaultKind]) -> None:
    fabric = fabric_of(kind)
    faults = random_faults(fabric, random.Random(f"{kind} {seed}"), kinds)

    ran = run(plan_on(fabric, *faults, lasts_ns=LASTS_NS, seed=seed))

    assert not ran.of("loops_changed", "steady_state_missed", "fault_not_effective", "fault_not_ended")
    assert ran.of("measurement_finished") == [(LASTS_NS, {"flows_below_full": 0})]
    assert ran.tables == tables_when_new(kind)


@pytest.mark.parametrize(("kind", "seed"), list(itertools.product(FABRICS, SEEDS)))
def test_no_loop_ever_and_as_good_as_new_in_the_end(kind: str, seed: int) -> None:
    assert_as_good_as_new(kind, seed, [found for found in FaultKind if found in kinds_of("sim")])


@pytest.mark.parametrize(("kind", "seed"), sorted(TAUGHT))
def test_what_seeds_have_taught_still_holds(kind: str, seed: int) -> None:
    assert_as_good_as_new(kind, seed, FIRST_KINDS)
