"""What outages cost a job: it waits through short ones, and long ones throw it back to its checkpoint."""

import random
from typing import Any

import pytest

from erfs.units import SECOND
from erfs_scenario.jobs import NCCL_TIMEOUT_NS, Stall, Training, Work, stalls_of, work_of
from erfs_scenario.timeline import read_timeline

HOUR = 3_600 * SECOND
TRAINING = Training(transport_timeout_ns=30 * SECOND, checkpoint_interval_ns=600 * SECOND, restart_ns=60 * SECOND)


def dead(*downs: tuple[int, int]) -> list[Stall]:
    """Return stalls of dead flows, (from, until) in seconds each."""
    return [Stall(begin * SECOND, over * SECOND) for begin, over in downs]


def test_the_default_time_out_is_that_of_nccl() -> None:
    """4.096 us x 2^20 x 7."""
    assert NCCL_TIMEOUT_NS == 30_064_771_072


def test_a_job_without_outages_loses_nothing() -> None:
    assert work_of([], 0, HOUR, TRAINING) == Work(HOUR, 0, 0, 0, 0)


def test_an_outage_as_long_as_the_time_out_costs_its_own_length() -> None:
    assert work_of(dead((1_300, 1_330)), 0, HOUR, TRAINING) == Work(HOUR - 30 * SECOND, 30 * SECOND, 0, 0, 0)


def test_a_longer_one_costs_the_work_since_the_checkpoint_and_a_restart_too() -> None:
    """Checkpoints at 600 and 1,200 s; killed by an outage that begins at 1,300 s and lasts 40."""
    found = work_of(dead((1_300, 1_340)), 0, HOUR, TRAINING)
    assert found == Work(HOUR - 200 * SECOND, 40 * SECOND, 100 * SECOND, 60 * SECOND, 1)


def test_outages_of_several_flows_stall_together_and_are_timed_each_by_itself() -> None:
    """The job stands still for 41 s, but no connection was dead for longer than 21."""
    found = work_of(dead((620, 640), (600, 621), (640, 641)), 0, HOUR, TRAINING)
    assert (found.stalled_ns, found.kills) == (41 * SECOND, 0)


def test_what_only_loses_at_random_stalls_for_hours_and_kills_nothing() -> None:
    found = work_of([Stall(600 * SECOND, 2_400 * SECOND, is_dead=False)], 0, HOUR, TRAINING)
    assert found == Work(1_800 * SECOND, 1_800 * SECOND, 0, 0, 0)


def test_an_outage_during_the_restart_makes_it_longer_by_itself() -> None:
    found = work_of(dead((600, 640), (660, 670)), 0, HOUR, TRAINING)
    assert found == Work(HOUR - 110 * SECOND, 50 * SECOND, 0, 60 * SECOND, 1)


def test_a_job_that_is_killed_and_never_gets_its_network_back_has_done_what_its_checkpoint_holds() -> None:
    found = work_of(dead((1_300, 7_200)), 0, HOUR, TRAINING)
    assert found == Work(1_200 * SECOND, HOUR - 1_300 * SECOND, 100 * SECOND, 0, 1)


def test_the_parts_are_all_of_the_time_whatever_happens() -> None:
    rng = random.Random(1)
    for _ in range(300):
        downs = []
        for _ in range(rng.randrange(30)):
            begin = rng.randrange(3_600)
            downs.append(Stall(begin * SECOND, (begin + rng.randrange(1, 90)) * SECOND, rng.random() < 0.7))
        found = work_of(downs, SECOND, HOUR, TRAINING)
        parts = (found.useful_ns, found.stalled_ns, found.redone_ns, found.restarting_ns)
        assert sum(parts) == HOUR - SECOND
        assert min(parts) >= 0


def lossy_run(loss_ppm: int, *shares: tuple[int, int]) -> list[Stall]:
    """Return what stalls a job whose one flow is served (from, share in millionths), while a fault loses *loss_ppm* from 100 to 900 s."""
    fault: dict[str, Any] = {"id": "grey", "kind": "packet_loss", "links_hit": ["x|y"], "loss_ppm": loss_ppm}
    records: list[dict[str, Any]] = [
        {"at_ns": 0, "event": "run_started", "faults": [fault]},
        {"at_ns": 0, "event": "measurement_started", "flows": 1, "weights": {"job": 1}},
        {"at_ns": 100 * SECOND, "event": "fault_effective", "fault": "grey"},
        {"at_ns": 900 * SECOND, "event": "fault_ended", "fault": "grey"},
    ]
    rows = [["@a", "@b", {"job": 1}, 500_000, "near"]]
    records.append({"at_ns": 100 * SECOND, "event": "flows_affected", "fault": "grey", "flows": rows})
    for at_s, served_ppm in shares:
        cause = "served" if served_ppm == 1_000_000 else "not_recovered"
        change = {"source": "@a", "destination": "@b", "served_ppm": served_ppm, "cause": cause, "weights": {"job": 1}}
        records.append({"at_ns": at_s * SECOND, "event": "flow_changed"} | change)
    records.append({"at_ns": 1_000 * SECOND, "event": "measurement_finished"})
    return list(stalls_of(read_timeline(records), "job", Training()))


@pytest.mark.parametrize(
    ("loss_ppm", "expected"),
    [
        (1_000, []),
        (1_001, [Stall(100 * SECOND, 900 * SECOND, is_dead=False)]),
        # Retries do not survive as much as that.
        (100_001, [Stall(100 * SECOND, 900 * SECOND, is_dead=True)]),
    ],
)
def test_a_little_random_loss_costs_nothing_more_is_waited_through_and_most_is_death(
    loss_ppm: int, expected: list[Stall]
) -> None:
    assert lossy_run(loss_ppm, (100, 1_000_000 - loss_ppm), (900, 1_000_000)) == expected


def test_a_flow_that_loses_more_than_its_random_loss_is_dead_meanwhile() -> None:
    """A cut of 50 s amid tolerated loss, and the same amid loss that is not."""
    shares = ((100, 999_500), (300, 750_000), (350, 999_500), (900, 1_000_000))
    assert lossy_run(1_000, *shares) == dead((300, 350))
    assert [(one.is_dead, one.end_ns - one.start_ns) for one in lossy_run(2_000, *shares)] == [
        (False, 200 * SECOND),
        (True, 50 * SECOND),
        (False, 550 * SECOND),
    ]


def test_a_small_loss_that_no_fault_of_that_kind_explains_is_death() -> None:
    """A way of a thousand carries nothing: the connections on it do not come back by trying again."""
    assert lossy_run(1_000, (950, 999_000)) == dead((950, 1_000))
