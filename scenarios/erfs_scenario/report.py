"""What report.json holds: the models, from which its JSON Schema is generated, and the definition of each figure.

Rule 1: every figure is an exact integer: nanoseconds, counts, or millionths rounded down.
Rule 2: nothing here computes; `erfs_scenario.judging` fills it in.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

DEFINITIONS: Final = {
    "flow": "all demands from one attachment (or one endpoint, where it can fare differently) to one destination class (or endpoint)",
    "served": "the share of a flow's traffic that arrives, following all equal-cost next hops by weight; what enters a cycle is lost",
    "as measured": "seen by something other than what made the fault: the state of the simulated data plane; on the kernel backend the kernel's own state and counters, and datagrams of the referee's straight over the cable",
    "affected": "flows whose paths crossed the fault's target right before it, whatever happened to them after",
    "near end": "affected flows whose last node before the break has another live next hop of its own",
    "far end": "affected flows for which another node must change its next hops",
    "recovery": "from the fault taking effect until the flow is served in full again and stays so until the fault ends or the next one harms it; 0 if it lost nothing",
    "detection": "from the fault taking effect until the first agent notices it",
    "computation": "from the controller's word that the link is down (or else the detection) until new routes are computed",
    "programming": "from routes computed until the last required acknowledgement",
    "cut": "no working path is left (single-homed endpoints, for example)",
    "cut by policy": "a path is left, but only with a valley (down, then up), which policy forbids on lossless fabrics",
    "not recovered": "a permitted path existed and was still not used in full when the fault ended",
    "capacity retained": "trunk capacity of the flow's next-hop graph right before the fault ends, over what it was right before it began",
    "availability": "served demand-time over demand-time; once over all of it, once over that which had a permitted path",
    "pair availability": "time in which a pair is served in full over time in which it has a permitted path, of all pairs together; random loss is down time, however little it is",
    "job availability": "time in which all of the job's demands are served in full, over all time",
    "event": "all faults planned for one instant; figures with an interval are over events, never over flows or packets, which fail together",
    "interval": "holds the true figure in 95 of 100 such runs; absent, with the reason, where the events are too few to tell",
    "goodput": "time in which a job did work that it kept, over all time; a flow that is dead for longer than the transport's time-out throws it back to its checkpoint",
    "at natural rates": "without the acceleration: what lasted until its fault ended weighs as long as the repair takes by nature, what was over before as it was, and there are as many fewer events",
    "owed": "an outage is owed to the fault that began it until that ends, then to another on the flow's way that the outage outlasts",
    "bystander": "a flow that lost something under a fault that its paths do not cross",
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)


class Spread(_Value):
    """First, median and last of some flows; the median is the lower one of an even number. Absent where there are none."""

    flows: int
    first_ns: int | None = None
    median_ns: int | None = None
    last_ns: int | None = None


class Tally(_Value):
    """How many flows, and how many demands they stand for."""

    flows: int = 0
    demands: int = 0


class Stages(_Value):
    """When the parts of a recovery were reached, counted from the fault taking effect, unless said otherwise. Absent: not reached."""

    detection_ns: int | None = None
    fact_received_first_ns: int | None = None
    """First node that read of the failure."""
    protection_first_ns: int | None = None
    """First change acknowledged by a data plane."""
    protection_last_ns: int | None = None
    """Last change acknowledged before new routes were pushed."""
    adjudicated_ns: int | None = None
    """The controller holds a link of the fault for down."""
    computation_ns: int | None = None
    """Duration."""
    programming_ns: int | None = None
    """Duration."""
    restoration_finished_ns: int | None = None
    cannot_reach_count: int = 0
    """Nodes that told others they have no next hop left."""


class Chain(_Value):
    """
    How affected flows came back by an agent's change, measured packet by packet; medians over flows, counted from the fault taking
    effect. Detected, fact received at the node that repairs the flow, its kernel acknowledged, first datagram through.
    """

    flows: int
    detected_ns: int | None = None
    fact_received_ns: int | None = None
    """Of the flows whose repairing node did not see the failure itself."""
    acknowledged_ns: int | None = None
    through_ns: int | None = None
    rest_max_ns: int | None = None
    """The largest difference between the acknowledgement and the first datagram through, over all flows."""
    within_two_intervals: int = 0
    """Flows for which that is at most two probe intervals: the chain adds up."""


class Return(_Value):
    """What the end of the fault did."""

    flows_lost: int
    """Flows that lost something by it; 0 is expected."""
    demands_lost: int
    longest_loss_ns: int | None = None
    restored: Spread
    """Flows without a path during the fault: from its end until served in full."""
    not_restored: Tally
    capacity_back_ns: int | None = None
    """From its end until the restored routes are acknowledged everywhere (wait-to-restore included)."""


class Magnitude(_Value):
    """How much of something a fault was to do, and how much of it there was, seen by something other than what made it."""

    name: str
    unit: Literal["count", "ppm", "bps"]
    asked: int
    measured: int | None
    """Of several targets, or over time, the one farthest off. None: could not be measured."""
    how: str
    off_max: int = 0
    """How far the measured may be off for reasons of the measurement, where it is no sample."""
    low: int | None = None
    """Of a sample: between these the true value lies."""
    high: int | None = None
    level_ppm: int | None = None
    """How often such an interval holds it."""

    @property
    def is_as_asked(self) -> bool:
        """Whether what was measured may be what was asked for."""
        if self.low is not None and self.high is not None:
            return self.low <= self.asked <= self.high
        return self.measured is not None and abs(self.measured - self.asked) <= self.off_max


class FaultReport(_Value):
    """One fault: what it hit and how the fabric took it."""

    id: str
    kind: str
    target: str
    links: tuple[str, ...]
    nodes: tuple[str, ...]
    is_physical: bool
    planned_at_ns: int
    planned_end_at_ns: int
    due_at_ns: int
    """As planned, counted from when the run was ready: in real time everything moves behind its start."""
    due_end_at_ns: int
    effective_at_ns: int | None
    ended_at_ns: int | None
    magnitudes: tuple[Magnitude, ...]
    """As asked and as measured; none where the journal has none."""
    affected: Tally
    lost_something: Tally
    near: Spread
    far: Spread
    all: Spread
    stages: Stages
    chain: Chain | None = None
    """Of the kernel backend."""
    not_recovered: Tally
    cut: Tally
    cut_by_policy: Tally
    capacity_retained_min_ppm: int | None
    bystanders: Tally
    lost_demand_ns: int
    """Demand-time not served, of affected flows with a path."""
    return_: Return = Field(alias="return")
    curve: tuple[tuple[int, int], ...]
    """(instant counted from effective, served share of the affected demands in millionths), as steps."""


class SetReport(_Value):
    """One demand set."""

    name: str
    is_job: bool
    demands: int
    availability_of_all_ppm: int
    availability_ppm: int
    """Over demand-time with a permitted path."""
    pair_availability_ppm: int | None = None
    """Time served in full over time with a permitted path, of all pairs together: however little is lost, it is down time."""
    lost_demand_ns: int
    """Demand-time not served."""
    pathless_demand_ns: int
    """Of it, without a permitted path."""
    total_demand_ns: int
    down_ns: int | None = None
    """Jobs: time in which any of the demands was not served in full."""
    job_availability_ppm: int | None = None


class IntervalReport(_Value):
    """Where the true figure lies, in the figure's unit, rounded outwards."""

    low: int | None
    """None: beyond anything that was measured."""
    high: int | None
    level_ppm: int
    """How often such intervals hold the true figure."""
    method: str


class RefusalReport(_Value):
    """Why there is no figure, or no interval."""

    reason: str
    events_needed: int | None
    """How many events it would take; None where more of the same would not help."""


class Figure(_Value):
    """A figure that says something beyond this run, and how sure it is: it has either an interval or a refusal."""

    name: str
    of: str
    """A demand set's name, or "events"."""
    unit: Literal["ns", "ppm"]
    value: int | None
    """None: refused, or beyond anything that was measured."""
    events: int
    """How many it rests on."""
    count: int | None = None
    """Of a share of events: how many of them."""
    interval: IntervalReport | None
    refusal: RefusalReport | None
    definition: str


class Job(_Value):
    """What the outages cost one training job; useful, stalled, redone and restarting are all of the time."""

    gpus: int
    """Its endpoints: one GPU to a NIC."""
    goodput_ppm: int
    """Useful time over all time."""
    useful_ns: int
    stalled_ns: int
    """Some flow was not served in full, random loss within what is tolerated apart."""
    redone_ns: int
    """Work since the last checkpoint, lost when the job was killed."""
    restarting_ns: int
    kills: int
    """Outages in which a flow was dead for longer than the transport's time-out."""
    lost_gpu_ns: int
    """GPU-time that was not useful."""
    transport_timeout_ns: int
    checkpoint_interval_ns: int
    restart_ns: int
    loss_tolerated_ppm: int


class Rate(_Value):
    """A rate of the fault model that faults were drawn at."""

    name: str
    kind: str
    per_month_ppm: int
    """Natural events per thing and month of 730 h, in millionths."""
    things: int
    acceleration: int
    """Rates times this, repairs through this."""
    natural_events: float
    """The mean number of events in the same time without acceleration."""
    expected_events: float
    """The mean with it."""
    events: int
    """Drawn; a train of flaps is one."""
    faults: int
    stretched: int
    """Repairs that the acceleration would have made shorter than allowed: they last the shortest allowed."""
    cut: int
    """Faults that end with the span, before their repair."""
    basis: str
    source: str


class Cost(_Value):
    """What the faults of one rate, or of one name, cost; by system: "erfs" is this run, the others are its baselines."""

    name: str
    """Of the rate or of the fault as the scenario has it."""
    kind: str
    faults: int
    """That took effect."""
    lost_ns: dict[str, int]
    """Demand-time not served while there was a permitted path."""
    lost_of_all_ns: dict[str, int]
    """Demand-time not served, path or not."""
    not_in_full_ns: dict[str, int]
    """Demand-time with a permitted path in which not all was served, however little was missing."""
    down_ns: dict[str, dict[str, int]]
    """By job, then by system: time in which some demand of the job was not served in full; what several faults cover is the first's."""


class Baseline(_Value):
    """What the same faults would have cost with another system, a model of delays over the same fabric, flows and meter."""

    name: str
    is_validated: bool
    """Whether its delays are our own measurements on real packets."""
    source: str
    """Where they are from."""
    demand_sets: tuple[SetReport, ...]
    figures: tuple[Figure, ...]
    """Its availability, with interval and definition."""
    jobs: dict[str, Job] = {}
    lost_demand_ns: dict[str, int]
    """By fault that is an event to it: demand-time not served while there was a path, return and bystanders included."""
    lost_demand_ns_by_kind: dict[str, int]
    erfs_lost_demand_ns: dict[str, int]
    """The same of this run, of the same faults."""
    faults_paired: int
    erfs_lost_less: int
    """Faults that cost less in this run."""
    erfs_lost_more: int


class Unserved(_Value):
    """A flow without full service for want of a path."""

    source: str
    destination: str
    demands: int
    cause: Literal["cut", "cut_by_policy", "not_recovered"]
    when: str
    """The fault under which, or "steady state"."""


class Check(_Value):
    """One expectation and what became of it."""

    name: str
    expected: str
    measured: str
    outcome: Literal["passed", "missed", "undecidable"]
    reason: str = ""


class Verdict(_Value):
    """The end of it."""

    outcome: Literal["passed", "missed", "undecidable", "aborted", "invalid"]
    exit_code: int
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]


class SteadyState(_Value):
    """How things were before the first fault."""

    held: bool
    flows: int
    not_served: Tally
    """With a permitted path and yet not served in full: the steady state does not hold."""
    cut: Tally
    cut_by_policy: Tally
    remarks: tuple[str, ...] = ()


class Probes(_Value):
    """How a real forwarding plane was measured: numbered datagrams, and what the instrument itself did wrong."""

    flows: int
    """A sample of the demands, chosen before the run so that enough of them cross whatever breaks."""
    ip_version: int
    interval_ns: int
    """Between two datagrams of a flow; no figure is finer than that."""
    sent: int
    lost: int
    duplicates: int
    reordered: int
    refused: int
    """Datagrams that the sender's own kernel did not take."""
    late_p99_ns: int
    late_max_ns: int
    """How late the prober was; instants are those at which it really sent."""
    cpu_ppm: int
    """Its share of one processor, the kernel's work of forwarding its datagrams included."""
    several_gaps: dict[str, tuple[tuple[str, str], ...]]
    """By fault, the affected flows that saw several gaps, or whose gap by loss and by time between arrivals differ."""


class Bucket(_Value):
    """Outages of one order of length: from the first bound on, up to and without the second; None: however long."""

    from_ns: int
    until_ns: int | None
    with_path: int
    """Outages in which a permitted path existed all the time."""
    pathless: int
    """Outages in which none existed for some of the time."""


class OutageLengths(_Value):
    """How long the outages of flows lasted, each outage of each flow counted once; steady state apart."""

    outages: int
    still_open: int
    """Of them, not over when the run ended: counted by what they had lasted."""
    longest_ns: int | None
    buckets: tuple[Bucket, ...]


class WorstFlow(_Value):
    """One of the ten flows that a fault or its end cost most: the longest of those that had a path all the time first, then those cut."""

    source: str
    destination: str
    demands: int
    fault: str
    at_ns: int
    """When the outage began."""
    lasted_ns: int
    pathless_ns: int
    """Of it, without a permitted path."""
    is_open: bool
    """It lasted until the run ended."""
    served_min_ppm: int
    path_before: tuple[str, ...] = ()
    """One way that crossed what broke, in names for people; empty where the journal has none."""
    path_after: tuple[str, ...] = ()
    """The way taken right before the fault ended; empty where none was left."""


class DrawnNode(_Value):
    """A node of a drawing."""

    id: str
    label: str
    tier: int | None


class Drawing(_Value):
    """What a fault broke and how the flows that it harmed longest went before and after, as a small graph."""

    fault: str
    nodes: tuple[DrawnNode, ...]
    """Highest tier first."""
    hit: tuple[str, ...]
    """Of them, those that the fault was about: the nodes it named, or else the ends of its links."""
    broken: tuple[tuple[str, str], ...]
    before: tuple[tuple[str, str], ...]
    after: tuple[tuple[str, str], ...]
    left_out: int
    """Nodes of them that are not drawn, for want of room."""


class FabricSummary(_Value):
    """Which fabric."""

    name: str
    digest: str
    nodes: int
    switches: int
    endpoints: int
    links: int
    trunks: int
    classes: int


class Report(_Value):
    """report.json."""

    report_version: Literal[1] = 1
    name: str
    description: str
    backend: str
    seed: int
    is_protecting: bool
    is_bus_in_band: bool
    """Whether the bus ran over the fabric's own links."""
    replay: str
    """The command that runs the same faults again, in the folder of this report."""
    fabric: FabricSummary
    measured_from_ns: int | None
    measured_until_ns: int
    verdict: Verdict
    steady_state: SteadyState
    probes: Probes | None = None
    """Of the kernel backend."""
    faults: tuple[FaultReport, ...]
    uncrossed: tuple[str, ...] = ()
    """Faults that broke something over which no measured flow went: they say nothing about recovery."""
    service: tuple[tuple[int, int], ...]
    """(instant, served share of all demands in millionths), as steps; of a long run the lowest share in each stretch of time."""
    outage_lengths: OutageLengths
    worst_flows: tuple[WorstFlow, ...]
    drawings: tuple[Drawing, ...]
    demand_sets: tuple[SetReport, ...]
    jobs: dict[str, Job] = {}
    """Training jobs by name, where the scenario gives their terms."""
    baselines: tuple[Baseline, ...] = ()
    """Other systems on the same faults, where the scenario asks for them."""
    figures: tuple[Figure, ...]
    """Shares and percentiles, each with its interval or the reason why there is none."""
    costs: tuple[Cost, ...] = ()
    """By rate or fault: what that cost, here and with other systems."""
    rates: tuple[Rate, ...] = ()
    """Of the faults drawn by chance, and what they came to here."""
    loops: tuple[tuple[str, ...], ...]
    """Every knot of nodes that traffic of a demand went round in."""
    unserved: tuple[Unserved, ...]
    """The first of them; the counts are with the faults."""
    unserved_count: int
    expectations: dict[str, int | bool | None]
    timers: dict[str, int]
    timing: dict[str, int]
    limits: tuple[str, ...]
    """What this measurement cannot tell."""
    definitions: dict[str, str]

    @property
    def measured_ns(self) -> int:
        """How long was measured."""
        return 0 if self.measured_from_ns is None else self.measured_until_ns - self.measured_from_ns
