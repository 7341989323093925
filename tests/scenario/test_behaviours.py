"""The delays of other systems: where they are measured they are the measured ones."""

import pytest

from erfs.units import MS, US
from erfs_scenario.behaviours import behaviours, opensm_sweep_ns


@pytest.mark.parametrize(
    ("switches", "sweep_ns"), [(20, 5_850 * US), (80, 36_500 * US), (320, 387 * MS), (720, 2_100 * MS)]
)
def test_opensm_takes_what_was_measured_on_fabrics_that_were_measured(switches: int, sweep_ns: int) -> None:
    assert opensm_sweep_ns(switches) == sweep_ns


def test_opensm_takes_longer_on_larger_fabrics_between_and_beyond_those_measured() -> None:
    sizes = [1, 20, 40, 80, 200, 320, 500, 720, 1_500]
    delays = [opensm_sweep_ns(size) for size in sizes]
    assert delays == sorted(set(delays))


def test_only_delays_measured_on_real_packets_are_called_validated() -> None:
    known = behaviours(20)
    assert {name for name, behaviour in known.items() if behaviour.is_validated} == {"ospf", "frr-tuned"}
    assert all(behaviour.source for behaviour in known.values())
    assert list(known) == [behaviour.name for behaviour in known.values()]
