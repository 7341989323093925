"""What did the outages cost a training job? Goodput and GPU-hours, from the times in which any of its flows was not served.

Rule 1: a job is down while any of its flows is not served; its ranks wait for each other, so it then does nothing.
Rule 2: a flow that is dead for longer than the transport's time-out kills it: it begins again from its last checkpoint, after the
network is back and a restart has passed.
Rule 3: what is lost at random is sent again: little of it costs nothing, more of it is down time, and none of it kills.
Rule 4: exact integers; a checkpoint is free and instantaneous.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from erfs.units import PPM, SECOND
from erfs_scenario.timeline import FlowId, Outage, Timeline

NCCL_TIMEOUT_NS: Final = 7 * (4_096 << 20)
"""
NCCL's defaults: 4.096 us x 2^NCCL_IB_TIMEOUT (20) for each of NCCL_IB_RETRY_CNT (7) tries, 30.06 s. Source: NCCL user guide,
environment variables; NCCL_IB_TIMEOUT is 20 since 2.23, was 18 since 2.14 (7.5 s in all), and 14 before (0.5 s).
"""
CHECKPOINT_NS: Final = 30 * 60 * SECOND
"""Our choice: the order of magnitude of what large runs tell of."""
RESTART_NS: Final = 10 * 60 * SECOND
"""Our choice: scheduling, starting the processes and reading the checkpoint."""
LOSS_TOLERATED_PPM: Final = 1_000
"""Above 0.1 % loss RDMA loses a quarter of its throughput and more. Source: CorrOpt, SIGCOMM'17."""
_RETRIES_SURVIVE_PPM: Final = 100_000
"""Up to here a message and its seven retries are lost at random once in a hundred million times."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a job does about an outage."""

    transport_timeout_ns: int = NCCL_TIMEOUT_NS
    checkpoint_interval_ns: int = CHECKPOINT_NS
    restart_ns: int = RESTART_NS
    loss_tolerated_ppm: int = LOSS_TOLERATED_PPM


@dataclass(frozen=True, slots=True)
class Stall:
    """A stretch of time in which one flow kept a job waiting."""

    start_ns: int
    end_ns: int
    is_dead: bool = True
    """Some of its traffic got through by no retry."""


@dataclass(frozen=True, slots=True)
class Work:
    """What became of a job's time; the first four are all of it."""

    useful_ns: int
    stalled_ns: int
    """Waiting through outages, those that killed it included."""
    redone_ns: int
    """Work since the last checkpoint, lost when it was killed."""
    restarting_ns: int
    kills: int


def work_of(stalls: Iterable[Stall], start_ns: int, end_ns: int, training: Training) -> Work:
    """
    Return what a job made of the time from *start_ns* to *end_ns*.

    Args:
        stalls: Of any of its flows; they may overlap. Each counts by itself against the time-out: connections do not wait for each other.
        start_ns, end_ns: The time that is looked at; the job begins with a checkpoint.
        training: Its terms.

    Cost: O(stalls log stalls).
    """
    useful = stalled = redone = restarting = kills = 0
    since_checkpoint = 0
    at_ns = start_ns
    restart_left = 0

    def go_on(until_ns: int) -> None:
        """Spend the time until *until_ns* with the network whole."""
        nonlocal useful, restarting, since_checkpoint, restart_left, at_ns
        spent = min(restart_left, until_ns - at_ns)
        restarting += spent
        restart_left -= spent
        worked = until_ns - at_ns - spent
        useful += worked
        since_checkpoint = (since_checkpoint + worked) % training.checkpoint_interval_ns
        at_ns = until_ns

    for begin_ns, over_ns, dead_ns in _united(stalls, start_ns, end_ns):
        go_on(begin_ns)
        stalled += over_ns - begin_ns
        at_ns = over_ns
        if dead_ns > training.transport_timeout_ns:
            kills += 1
            useful -= since_checkpoint
            redone += since_checkpoint
            since_checkpoint = 0
            restart_left = training.restart_ns
    go_on(end_ns)
    return Work(useful, stalled, redone, restarting, kills)


def _united(stalls: Iterable[Stall], start_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
    """Return (from, until, longest that one flow was dead) of the *stalls* within the time looked at, sorted, those that touch made one."""
    found: list[tuple[int, int, int]] = []
    within = ((max(one.start_ns, start_ns), min(one.end_ns, end_ns), one.is_dead) for one in stalls)
    for begin_ns, over_ns, is_dead in sorted(within):
        if begin_ns >= over_ns:
            continue
        dead_ns = over_ns - begin_ns if is_dead else 0
        if found and begin_ns <= found[-1][1]:
            first_ns, last_ns, longest_ns = found[-1]
            found[-1] = first_ns, max(last_ns, over_ns), max(longest_ns, dead_ns)
        else:
            found.append((begin_ns, over_ns, dead_ns))
    return found


def stalls_of(timeline: Timeline, job: str, training: Training) -> Iterator[Stall]:
    """
    Yield what kept the flows of *job* waiting.

    A flow loses at random what faults of that kind on its way may cost it together, and is dead if it loses more.

    Cost: O(segments * faults with random loss on the way of a flow).
    """
    lossy = _losses_of(timeline)
    for outage in timeline.outages:
        if timeline.flow_weights[outage.flow].get(job):
            yield from _stalls_in(outage, lossy.get(outage.flow, ()), training)


def _losses_of(timeline: Timeline) -> dict[FlowId, list[tuple[int, int, int]]]:
    """Return (from, until, share lost) of the faults with random loss on the way of each flow."""
    found: dict[FlowId, list[tuple[int, int, int]]] = {}
    for fault in timeline.faults:
        loss_ppm = fault.plan.get("loss_ppm", 0)
        if 0 < loss_ppm <= _RETRIES_SURVIVE_PPM and fault.effective_at_ns is not None:
            until_ns = timeline.finished_ns if fault.ended_at_ns is None else fault.ended_at_ns
            for flow in fault.affected:
                found.setdefault(flow, []).append((fault.effective_at_ns, until_ns, loss_ppm))
    return found


def _stalls_in(outage: Outage, lossy: Iterable[tuple[int, int, int]], training: Training) -> Iterator[Stall]:
    """Yield the stalls of one outage, neighbours alike made one."""
    pending: Stall | None = None
    for part in outage.segments:
        rates = [
            loss_ppm for from_ns, until_ns, loss_ppm in lossy if from_ns < part.end_ns and part.start_ns < until_ns
        ]
        # What is served is rounded down.
        is_random = bool(rates) and PPM - part.served_ppm <= sum(rates) + 1
        if is_random and max(rates) <= training.loss_tolerated_ppm:
            if pending is not None:
                yield pending
            pending = None
        elif pending is not None and pending.is_dead is not is_random and pending.end_ns == part.start_ns:
            pending = Stall(pending.start_ns, part.end_ns, pending.is_dead)
        else:
            if pending is not None:
                yield pending
            pending = Stall(part.start_ns, part.end_ns, is_dead=not is_random)
    if pending is not None:
        yield pending
