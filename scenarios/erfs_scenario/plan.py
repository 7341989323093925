"""What exactly will be done: a scenario with all chance drawn, on a named fabric. The same plan runs on every backend.

Rule 1: after `compile_plan` nothing is random but what the backend draws from named streams of the plan's seed (`stream`).
Rule 2: every duration has a default whose source stands beside it.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from erfs.errors import ConfigError, Problem
from erfs.fabric import Fabric, LinkEnd
from erfs.faults import LINK_KINDS, NAMELESS_TARGETS, ONE_ENDED, WHOLE_NODES, Fault, FaultKind
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND, US, format_duration
from erfs_scenario.demands import DemandSet, ring_of_each, ring_pairs, sampled_pairs
from erfs_scenario.fault_model import published_rates
from erfs_scenario.jobs import Training
from erfs_scenario.schedules import PassedOver, RateUse, draw_faults, instants, one_by_one, pass_over, spread_out
from erfs_scenario.schema import (
    FAULT_COUNT_MAX,
    TAIL_NS,
    Expect,
    FaultPart,
    ScenarioFile,
    ShareBound,
    TimersPart,
    TimingName,
    TimingPart,
    TrainingPart,
    in_order,
)
from erfs_scenario.selectors import Misfit, select_links, select_nodes
from erfs_scenario.yaml_marks import suggest

T = TypeVar("T")
_COUNTS: Final = frozenset({"ack_attempts", "session_multiplier"})
"""Settings that are no durations."""


def stream(seed: int, name: str) -> random.Random:
    """Return the generator of the named stream of *seed*: streams don't disturb each other."""
    return random.Random(f"{seed}/{name}")  # noqa: S311 -- repeatable chance is the point


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take in simulation; the live backend measures its own. Jitters are the width of a uniform draw."""

    carrier_ns: int = 360 * US
    """Cable cut until the agent is told: link-down call to event at the far end, kernel and Python, 0.36 ms (anchors)."""
    carrier_jitter_ns: int = 200 * US
    """Our choice: about half the delay."""
    write_ns: int = 100 * US
    """Agent's request until the data plane acknowledged: one group replace over raw netlink, 0.10 ms (anchors)."""
    bus_ns: int = 1000 * US
    """One message, sender to reader: half of the 2.0 ms round of the embedded broker at QoS 1 (anchors)."""
    bus_jitter_ns: int = 600 * US
    """Half of what separates that round's p99 (3.1 ms) from its median."""
    computation_ns: int = 20 * MS
    """Routes and protection in the controller: 12 ms for 1,280 switches in the array prototype (anchors), rounded up."""
    start_ns: int = 300 * MS
    """A killed agent or controller until it acts again: start of a Python process with our imports, measured here."""
    reconnect_ns: int = 100 * MS
    """A cut-off client until the bus is back after the partition ended: the first retry of the client."""
    will_ns: int = 15 * SECOND
    """A client that vanished without a goodbye until the broker speaks its last will: 1.5 times a keep-alive of 10 s."""


LAB_K4: Final = Timing(
    carrier_ns=330 * US,
    carrier_jitter_ns=220 * US,
    write_ns=760 * US,
    bus_ns=2_890 * US,
    bus_jitter_ns=15_150 * US,
    computation_ns=21_910 * US,
)
"""
Fitted by benchmarks/calibration.py to 5 runs of single-link on the kernel backend, fat-tree k=4,
2 cores (Intel(R) Xeon(R) Processor), 2026-12-03, load before a run 1.3 .. 12.9.
"""
TIMINGS: Final[Mapping[TimingName, Timing]] = {"default": Timing(), "lab-k4": LAB_K4}
"""What a scenario's `timing.like` may name."""


@dataclass(frozen=True, slots=True)
class Timers:
    """The settings of agents and controller in this run; names as in their own settings."""

    wait_to_restore_ns: int = 2 * SECOND
    wait_to_restore_max_ns: int = 300 * SECOND
    flap_window_ns: int = 60 * SECOND
    health_interval_ns: int = 0
    discovery_ns: int = 500 * MS
    debounce_min_ns: int = 10 * MS
    debounce_max_ns: int = 50 * MS
    ack_wait_ns: int = 800 * MS
    ack_attempts: int = 3
    leader_refresh_ns: int = 1 * SECOND
    leader_listen_ns: int = 3 * SECOND
    session_interval_ns: int = 10 * MS
    session_multiplier: int = 3


@dataclass(frozen=True, slots=True)
class Expectations:
    """What must hold. None and False mean: not asked."""

    recovery_max_ns: int | None = None
    """Upper bound on the recovery of every flow that still has a path."""
    recovery_p95_ns: int | None = None
    """The same for the 95th percentile over events; below 59 events the maximum is judged instead."""
    availability_min_ppm: int | None = None
    """Lower bound on served demand-time over the demand-time that had a path."""
    availability_all_min_ppm: int | None = None
    """Lower bound on served demand-time over all demand-time, path or not."""
    job_availability_min_ppm: int | None = None
    """Lower bound on the availability of every job."""
    capacity_min_ppm: int | None = None
    """Lower bound on the capacity retained by every affected flow that still has a path."""
    is_loop_free: bool = True
    """No packet of a demand ever meets the same node twice."""
    is_black_hole_free: bool = True
    """No flow that has a path loses anything but while a fault that crosses it is being recovered from."""
    converges: bool = True
    """When the run ends, every flow that has a path is served in full."""
    loses_nothing_on_return: bool = True
    """The end of a fault costs no flow anything."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a backend needs, and everything the judge must know of it."""

    name: str
    fabric: Fabric
    demands: tuple[DemandSet, ...]
    faults: tuple[Fault, ...]
    seed: int
    measure_from_ns: int
    """From here on everything counts; the steady state must hold."""
    duration_ns: int
    """The run ends here."""
    timing: Timing = field(default_factory=Timing)
    timers: Timers = field(default_factory=Timers)
    is_protecting: bool = True
    is_bus_in_band: bool = False
    """Whether the bus runs over the fabric's links; only the kernel backend can."""
    expectations: Expectations = field(default_factory=Expectations)
    description: str = ""
    baselines: tuple[str, ...] = ()
    """Behaviours that the same faults are replayed against; only in simulation."""

    passed_over: tuple[PassedOver, ...] = ()
    """Drawn faults that do not happen, as another holds their target."""
    rates: tuple[RateUse, ...] = ()
    """What the rates of the fault model came to, where faults were drawn by them."""
    missing: tuple[LinkId, ...] = ()
    """Links taken out of the fabric before the run."""
    parameters: tuple[tuple[str, str], ...] = ()
    """The scenario's parameters and their values, as text that could be set."""

    def header(self, backend: str) -> dict[str, Any]:
        """Return the fields of the journal's ``run_started``: all the judge needs, and nothing of this machine."""
        kinds = [node.kind.value for node in self.fabric.nodes.values()]
        drawn: dict[str, Any] = {}
        if self.passed_over:
            drawn["passed_over"] = [passed.to_json() for passed in self.passed_over]
        if self.rates:
            drawn["rates"] = [use.to_json() for use in self.rates]
        if self.missing:
            drawn["missing_links"] = list(self.missing)
        if self.parameters:
            drawn["parameters"] = dict(self.parameters)
        return drawn | {
            "name": self.name,
            "description": self.description,
            "backend": backend,
            "seed": self.seed,
            "measure_from_ns": self.measure_from_ns,
            "duration_ns": self.duration_ns,
            "is_protecting": self.is_protecting,
            "is_bus_in_band": self.is_bus_in_band,
            "fabric": {
                "name": self.fabric.name,
                "digest": fabric_digest(self.fabric),
                "nodes": len(self.fabric.nodes),
                "switches": kinds.count("switch"),
                "endpoints": len(self.fabric.endpoints),
                "links": len(self.fabric.links),
                "trunks": len(self.fabric.trunks),
                "classes": len(self.fabric.class_members),
            },
            "demands": [_demands_json(demands) for demands in self.demands],
            "faults": [self.fault_json(fault) for fault in self.faults],
            "timing": as_json(self.timing),
            "timers": as_json(self.timers),
            "expectations": as_json(self.expectations),
        }

    def fault_json(self, fault: Fault) -> dict[str, Any]:
        """Return *fault* as plain JSON values, with names for people beside the identities."""
        return fault.to_json() | {"target": self.describe_target(fault), "links_hit": list(self.links_hit(fault))}

    def links_hit(self, fault: Fault) -> tuple[LinkId, ...]:
        """Return the links that *fault* takes out of service or harms: its own, and all of a node that is drained, or without power or neighbours."""
        links = set(fault.links)
        if fault.kind in WHOLE_NODES:
            links.update(link.id for node in fault.nodes for link in self.fabric.links_of[node])
        return tuple(sorted(links))

    def describe_target(self, fault: Fault) -> str:
        """Return what *fault* hits, in names for people: both ends of a link, with their ports."""
        found = []
        for link_id in fault.links:
            link = self.fabric.links[link_id]
            found.append(" - ".join(f"{self.fabric.nodes[end.node].label}:{end.port}" for end in link.ends))
        found += [self.fabric.nodes[node].label for node in fault.nodes]
        return ", ".join(found) or NAMELESS_TARGETS.get(fault.kind, "everybody")


def compile_plan(
    file: ScenarioFile,
    fabric: Fabric,
    *,
    seed: int | None = None,
    is_protecting: bool | None = None,
) -> Plan:
    """
    Draw all chance of a scenario on *fabric*.

    Args:
        file: The scenario.
        fabric: What it runs on.
        seed: Instead of the scenario's own.
        is_protecting: Instead of the scenario's own ``protection``.

    Returns:
        The plan; the same for the same arguments, on every machine and hash seed.

    Raises:
        ConfigError: a selector does not fit the fabric, or there are no demands on it; all problems at once.
    """
    scenario = file.scenario
    seed = scenario.seed if seed is None else seed
    problems: list[Problem] = []

    def resolved(path: tuple[str | int, ...], choose: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        try:
            return choose()
        except Misfit as misfit:
            message = f'{misfit.message} in fabric "{fabric.name}"'
            problems.append(file.document.problem((*path, misfit.key), message, misfit.suggestion))
            return ()

    zero_ns = scenario.warm_up + scenario.settle
    missing: tuple[LinkId, ...] = ()
    if (absent := scenario.fabric.missing) is not None:
        missing = resolved(("fabric", "missing"), partial(select_links, fabric, absent, stream(seed, "missing")))
        fabric = fabric.without_links(missing)
    single: list[Fault] = []
    repeated: list[Fault] = []
    for index, (name, part) in enumerate(zip(file.fault_names(), scenario.faults, strict=True)):
        starts = instants(part, scenario.duration)
        if not starts:
            problems.append(file.document.problem(("faults", index, "at"), "not one of these ends before the run does"))
        for number, start_ns in enumerate(starts, start=1):
            fault_id = name if part.every is None else f"{name}#{number}"
            links: tuple[LinkId, ...] = ()
            nodes: tuple[NodeId, ...] = ()
            if part.target is not None:
                rng = stream(seed, f"fault/{fault_id}")
                path = ("faults", index, "target")
                if part.kind in LINK_KINDS:
                    links = resolved(path, partial(select_links, fabric, part.target, rng))
                else:
                    nodes = resolved(path, partial(select_nodes, fabric, part.target, rng))
                if not links and not nodes:
                    break  # the same would be wrong with the others
            fault = Fault(
                fault_id,
                part.kind,
                zero_ns + start_ns,
                zero_ns + start_ns + part.end_ns - part.at,
                links,
                nodes,
                ends=_ends(fabric, part, links, stream(seed, f"end/{fault_id}")),
                loss_ppm=part.loss or 0,
                period_ns=part.period_ns if part.kind is FaultKind.LINK_FLAP else 0,
                rate_bps=part.rate or 0,
                strength=(part.strength or "hard") if part.kind is FaultKind.DRAIN else "",
                force=part.force or "",
            )
            if part.pause is not None:
                repeated += one_by_one(fault, part.pause)
            elif part.spread is not None:
                repeated += spread_out(fault, part.spread, stream(seed, f"spread/{fault_id}"))
            else:
                (single if part.every is None else repeated).append(fault)
        last_ns = max((fault.end_at_ns for fault in repeated), default=0)
        if scenario.duration is not None and last_ns > zero_ns + scenario.duration:
            key = "pause" if part.pause is not None else "times"
            message = (
                f"the last of them ends {format_duration(last_ns - zero_ns - scenario.duration)} after the run does"
            )
            problems.append(file.document.problem(("faults", index, key), message, "raise duration"))
            break
    by_chance, rates = _by_chance(file, fabric, seed, problems)
    faults, passed_over = pass_over(single, [*repeated, *by_chance])
    if len(single) + len(repeated) + len(by_chance) > FAULT_COUNT_MAX:
        place = ("random_faults", "acceleration") if by_chance else ("faults",)
        problems.append(file.document.problem(place, f"more than {FAULT_COUNT_MAX:,} faults in one plan"))
    sets = []
    wanted = scenario.demands
    endpoints = tuple(node.id for node in fabric.endpoints if fabric.attachments[node.id])
    if wanted.all_pairs:
        sets.append(DemandSet("all_pairs", endpoints=endpoints))
    if wanted.sampled is not None:
        is_small = len(endpoints) * (len(endpoints) - 1) <= wanted.sampled.all_up_to
        if is_small and not wanted.all_pairs:
            sets.append(DemandSet("all_pairs", endpoints=endpoints))
        elif not is_small:
            pairs = sampled_pairs(endpoints, wanted.sampled.count, stream(seed, "demands"))
            sets.append(DemandSet("sampled", pairs=pairs))
    for name, group in wanted.groups.items():
        choose = partial(select_nodes, fabric, group.select, stream(seed, f"group/{name}"), is_for_endpoints=True)
        chosen = resolved(("demands", "groups", name, "select"), choose)
        members = tuple(node for node in chosen if fabric.attachments[node])
        job = DemandSet(name, is_job=True, training=_training(group.training))
        if group.pattern == "all_pairs":
            sets.append(replace(job, endpoints=members))
        elif group.pattern == "ring":
            sets.append(replace(job, pairs=ring_pairs(members)))
        else:
            rail_of = {node: str(fabric.nodes[node].labels.get("rail", "")) for node in members}
            sets.append(replace(job, pairs=ring_of_each(members, rail_of)))
        if chosen and not sets[-1].count:
            problems.append(file.document.problem(("demands", "groups", name), "a job needs two endpoints at least"))
    if not problems and not any(found.count for found in sets):
        message = f'no demands: {len(endpoints)} attached endpoints in fabric "{fabric.name}"'
        problems.append(file.document.problem(("demands",), message))
    if problems:
        raise ConfigError(file.source, sorted(problems, key=in_order))
    # By chance nothing may have happened; the run is then as long as something could have.
    last_ns = max([fault.end_at_ns for fault in faults] + [zero_ns + use.until_ns for use in rates], default=zero_ns)
    tail_ns = last_ns + TAIL_NS
    return Plan(
        name=scenario.name,
        description=scenario.description.strip(),
        fabric=fabric,
        demands=tuple(sets),
        faults=tuple(faults),
        seed=seed,
        measure_from_ns=scenario.warm_up,
        duration_ns=tail_ns if scenario.duration is None else zero_ns + scenario.duration,
        timing=replace(TIMINGS[scenario.timing.like], **_given(scenario.timing)),
        timers=Timers(**_given(scenario.timers)),
        is_protecting=scenario.protection if is_protecting is None else is_protecting,
        is_bus_in_band=scenario.fabric.kernel is not None and scenario.fabric.kernel.bus == "in_band",
        expectations=_expectations(scenario.expect),
        baselines=scenario.baselines,
        passed_over=tuple(passed_over),
        rates=rates,
        missing=missing,
        parameters=tuple(sorted(file.parameters.items())),
    )


def _by_chance(
    file: ScenarioFile, fabric: Fabric, seed: int, problems: list[Problem]
) -> tuple[list[Fault], tuple[RateUse, ...]]:
    """Return the faults drawn at the rates of the fault model; what is wrong goes to *problems*."""
    part = file.scenario.random_faults
    if part is None:
        return [], ()
    zero_ns = file.scenario.warm_up + file.scenario.settle
    until_ns = part.until if part.until is not None else file.scenario.duration
    assert until_ns is not None
    known = published_rates()
    place: tuple[str | int, ...] = ("random_faults", "rates")
    for name in part.per_month:
        if name not in part.rates:
            message = f'"{name}" is not among the rates'
            advice = suggest(name, part.rates)
            path = ("random_faults", "per_month", name)
            problems.append(file.document.problem(path, message, advice, is_key=True))
    found: list[Fault] = []
    uses: list[RateUse] = []
    names = set(file.fault_names())
    for index, name in enumerate(part.rates):
        here = (*place, index) if (*place, index) in file.document.values else place
        if name not in known:
            problems.append(file.document.problem(here, f'there is no rate "{name}"', suggest(name, known)))
            continue
        if name in names or name in part.rates[:index]:
            problems.append(file.document.problem(here, f'"{name}" is there twice', "names are unique"))
            continue
        rng = stream(seed, f"rate/{name}")
        try:
            drawn, use = draw_faults(
                name, known[name], part, fabric, zero_ns, zero_ns + until_ns, rng, count_max=FAULT_COUNT_MAX
            )
        except Misfit as misfit:
            message = f'{name}: {misfit.message} in fabric "{fabric.name}"'
            problems.append(file.document.problem(here, message, misfit.suggestion))
            continue
        found += drawn
        uses.append(use)
    return found, tuple(uses)


def _ends(fabric: Fabric, part: FaultPart, links: tuple[LinkId, ...], rng: random.Random) -> tuple[LinkEnd, ...]:
    """Return the end of each of *links* that a fault with one end is about; links within a tier have a lower end by name."""
    if part.kind not in ONE_ENDED:
        return ()
    found = []
    for link in links:
        lower, higher = sorted(fabric.links[link].ends, key=lambda end: (fabric.nodes[end.node].tier or 0, end))
        drawn = rng.choice(("lower", "higher"))
        found.append(lower if (part.end or drawn) == "lower" else higher)
    return tuple(found)


def _given(part: TimingPart | TimersPart) -> dict[str, int]:
    """Return the settings a scenario names, under the plan's names: durations end in _ns."""
    given = part.model_dump(exclude_none=True, exclude={"like"})
    return {name if name in _COUNTS else f"{name}_ns": value for name, value in given.items()}


def _expectations(expect: Expect) -> Expectations:
    def lower(bound: ShareBound | None) -> int | None:
        return None if bound is None else bound.min

    return Expectations(
        recovery_max_ns=expect.recovery.max,
        recovery_p95_ns=expect.recovery.p95,
        availability_min_ppm=lower(expect.availability),
        availability_all_min_ppm=lower(expect.availability_of_all),
        job_availability_min_ppm=lower(expect.job_availability),
        capacity_min_ppm=lower(expect.capacity_retained),
        is_loop_free=expect.no_loop,
        is_black_hole_free=expect.no_black_hole_while_path,
        converges=expect.converges,
        loses_nothing_on_return=expect.lossless_return,
    )


def _training(part: TrainingPart | None) -> Training | None:
    return (
        None
        if part is None
        else Training(
            transport_timeout_ns=part.transport_timeout,
            checkpoint_interval_ns=part.checkpoint_interval,
            restart_ns=part.restart,
            loss_tolerated_ppm=part.loss_tolerated,
        )
    )


def _demands_json(demands: DemandSet) -> dict[str, Any]:
    found: dict[str, Any] = {"name": demands.name, "is_job": demands.is_job, "count": demands.count}
    if demands.training is not None:
        found |= {"gpus": len(demands.members), "training": asdict(demands.training)}
    return found


def as_json(values: Timing | Timers | Expectations) -> dict[str, Any]:
    """Return the fields of a flat dataclass as a dictionary."""
    return {item.name: getattr(values, item.name) for item in fields(values)}


def fabric_digest(fabric: Fabric) -> str:
    """Return 16 hex digits of SHA-256 over nodes and links: which fabric this was, whatever its file was called."""
    digest = hashlib.sha256()
    for node in fabric.nodes.values():
        digest.update(f"{node.id}\t{node.kind.value}\t{node.tier}\n".encode())
    for link in fabric.links.values():
        digest.update(f"{link.id}\t{link.capacity_bps}\t{link.medium.value}\n".encode())
    return digest.hexdigest()[:16]
