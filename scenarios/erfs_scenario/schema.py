"""What a scenario file may say. Data, not code; everything wrong with a file is told at once, each with line, column and advice.

Rule 1: a duration has a unit, a fault has an end, a share has a per-cent sign; there is no guessing.
Rule 2: what needs a fabric to be checked (names, selectors) is checked in `erfs_scenario.plan`.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from erfs.errors import ConfigError, Problem
from erfs.faults import LINK_KINDS, NAMELESS_TARGETS, ONE_ENDED, Fault, FaultKind
from erfs.generators import GENERATORS
from erfs.units import MS, SECOND
from erfs_scenario import yaml_marks
from erfs_scenario.composing import compose
from erfs_scenario.jobs import CHECKPOINT_NS, LOSS_TOLERATED_PPM, NCCL_TIMEOUT_NS, RESTART_NS
from erfs_scenario.quantities import Duration, Names, Rate, Share
from erfs_scenario.yaml_marks import Document, suggest


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Generate(BaseModel):
    """A fabric made by a generator; the other keys are its parameters (`erfs fabric make --help`)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str
    """One of the generators: fat-tree, leaf-spine, rail, dragonfly, torus."""

    @property
    def params(self) -> dict[str, Any]:
        """The generator's own parameters."""
        return dict(self.model_extra or {})


class KernelFabric(Generate):
    """A fabric made for the kernel backend, and how its agents reach the bus."""

    bus: Literal["out_of_band", "in_band"] = "out_of_band"
    """out_of_band: over a management network that no fault touches; in_band: over the fabric's own links."""


class Selector(_Part):
    """
    Which links or nodes. Every key narrows the choice; `random` then draws that many of what is left.

    Without `random`, `share` and `name` everything that fits is hit.
    """

    kind: Literal["trunk", "access", "switch", "host"] | None = None
    """trunk: links between switches; access: links of endpoints; host: hosts and NICs."""
    tier: Literal["leaf", "spine", "top"] | Annotated[int, Field(ge=0)] | None = None
    """leaf is 1, spine is 2, top the highest there is; of a link, the tier of its higher end."""
    label: dict[str, str | int] = {}
    """Labels and their values, such as {rail: 3}; of a link, those of either end or its own."""
    rail: str | int | None = None
    """Short for label: {rail: …}."""
    pod: str | int | None = None
    """Short for label: {pod: …}."""
    name: Names | None = None
    """Identities or display names. Of links also "node:port", or "node - node" for all cables between two nodes."""
    random: Annotated[int, Field(ge=1)] | None = None
    """Draw this many, from the seed."""
    share: Share | None = None
    """Draw this share of what fits, from the seed: to the nearest number, at least one."""
    share_switch: bool = False
    """Of links drawn by `random`: all on one switch, as when a line card dies."""
    together: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """Things that go together: those of one shared_risk group, or those with one value of the label named here, such as
    rack. `random` and `share` then draw groups, not things."""

    @model_validator(mode="after")
    def _is_sensible(self) -> Self:
        if self.share_switch and (self.random is None or self.kind in ("switch", "host")):
            raise PydanticCustomError("selector", "share_switch is for links drawn by random", {"key": "share_switch"})
        if self.share is not None and self.random is not None:
            raise PydanticCustomError("selector", "both random and share say how many", {"key": "share"})
        if self.together is not None and self.share_switch:
            raise PydanticCustomError("selector", "share_switch is a way to be together", {"key": "share_switch"})
        if not self.model_dump(exclude_defaults=True):
            raise PydanticCustomError(
                "selector",
                "an empty selector would hit everything",
                {"advice": "say kind, tier, label, name or random"},
            )
        return self

    @property
    def labels(self) -> dict[str, str]:
        """Every label asked for, rail and pod among them."""
        short = {key: value for key, value in (("rail", self.rail), ("pod", self.pod)) if value is not None}
        return {key: str(value) for key, value in (self.label | short).items()}


class FabricPart(_Part):
    """Where the fabric comes from; `--fabric` overrides it."""

    file: str | None = None
    """A fabric file, relative to the scenario."""
    generate: Generate | None = None
    kernel: KernelFabric | None = None
    """Made instead for the kernel backend, whose fabric must fit on one machine."""
    missing: Selector | None = None
    """Links that were never there: real fabrics begin with some of their trunks gone."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.file is None) == (self.generate is None):
            raise PydanticCustomError(
                "fabric", "a fabric is either a file or generated", {"advice": "keep one of file, generate"}
            )
        return self


class Sampled(_Part):
    """Pairs drawn from the seed."""

    count: Annotated[int, Field(ge=1, le=1_000_000)]
    """How many ordered pairs."""
    all_up_to: Annotated[int, Field(ge=0)] = 0
    """On a fabric with no more pairs than this, take them all instead."""


class TrainingPart(_Part):
    """What a training job does about outages; where the defaults come from is said in `erfs_scenario.jobs`."""

    transport_timeout: Duration = NCCL_TIMEOUT_NS
    """A flow that is dead for longer kills the job; NCCL's own default where left out."""
    checkpoint_interval: Annotated[Duration, Field(gt=0)] = CHECKPOINT_NS
    """Killed, it begins again from the last of these."""
    restart: Duration = RESTART_NS
    """From the network's return until it works again."""
    loss_tolerated: Share = LOSS_TOLERATED_PPM
    """So much random loss on the way of a flow costs the job nothing; more of it counts as an outage that kills nothing."""


class Group(_Part):
    """A job: endpoints that work together; it stands still while any of its demands is not served."""

    select: Selector
    pattern: Literal["all_pairs", "ring", "rail_rings"] = "all_pairs"
    """ring: each to its neighbours in canonical order, both ways; rail_rings: a ring for each rail among them."""
    training: TrainingPart | None = None
    """Of a training job: what an outage costs it; its goodput is then reported. {} takes the defaults."""


class Demands(_Part):
    """Who talks to whom. Several of these may be said; each is measured apart."""

    all_pairs: bool = False
    sampled: Sampled | None = None
    groups: dict[Annotated[str, Field(pattern=r"^[\w.-]+$")], Group] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"all_pairs": True} if value == "all_pairs" else value

    @model_validator(mode="after")
    def _is_something(self) -> Self:
        if not (self.all_pairs or self.sampled or self.groups):
            raise PydanticCustomError("demands", "no demands", {"advice": "say all_pairs, sampled or groups"})
        return self


_LINK_TARGETS: Final = ("trunk", "access")
_NODE_TARGETS: Final = ("switch", "host")
_FLAP_PERIOD_NS: Final = 1 * SECOND
_FLAP_PERIOD_MIN_NS: Final = 20 * MS
_SESSION_INTERVAL_MIN_NS: Final = 2 * MS


class FaultPart(_Part):
    """One thing that goes wrong, and its end. Instants count from the end of the settle time."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """Unique; the kind and a number where it is left out."""
    kind: Annotated[FaultKind, Field(strict=False)]
    target: Selector | None = None
    """Links or nodes, as the kind says; none for controller and broker; bus_partition without one cuts everybody off."""
    at: Duration
    for_: Annotated[Duration | None, Field(alias="for")] = None
    """How long it lasts: this, or until."""
    until: Duration | None = None
    end: Literal["lower", "higher"] | None = None
    """The end of each link that is set down (the other loses its carrier), or of one_way_drop the one that hears nothing;
    lower is nearer to the hosts. Drawn from the seed where left out."""
    loss: Share | None = None
    """Of packet_loss: how much is lost."""
    period: Duration | None = None
    """Of link_flap: down for one half of it, up for the other; 1 s where left out."""
    rate: Rate | None = None
    """Of rate_limit: what is left, such as "10 Mbit/s"."""
    every: Duration | None = None
    """Again and again, `at` being the first time; the target is drawn anew each time."""
    times: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Of every: how often; up to the scenario's duration where left out."""
    pause: Duration | None = None
    """One target after another, each for as long as the fault lasts, with this pause between two: rolling maintenance."""
    spread: Duration | None = None
    """The targets fail one by one within this time, drawn from the seed, and are mended together."""
    strength: Literal["hard", "soft"] | None = None
    """Of drain: hard carries nothing, soft only what nothing else can; hard where left out."""
    force: Annotated[str, Field(min_length=1)] | None = None
    """Of drain: why it is done though the path floor forbids it."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.for_ is None and self.until is None:
            raise PydanticCustomError("fault", "the fault has no end", {"advice": 'add "for: 3 s" or "until: 5 s"'})
        if self.for_ is not None and self.until is not None:
            raise PydanticCustomError(
                "fault", "both for and until say when it ends", {"key": "until", "advice": "keep one"}
            )
        if self.end_ns <= self.at:
            key = "until" if self.for_ is None else "for"
            raise PydanticCustomError("fault", "the fault ends before it has begun", {"key": key})
        self._check_target()
        self._check_options()
        self._check_schedule()
        return self

    @property
    def end_ns(self) -> int:
        """When it ends, on the same clock as `at`."""
        return self.until if self.until is not None else self.at + (self.for_ or 0)

    @property
    def period_ns(self) -> int:
        """The period of a flapping link."""
        return self.period or _FLAP_PERIOD_NS

    def _check_target(self) -> None:
        kind = self.kind.value
        if self.kind in NAMELESS_TARGETS:
            if self.target is not None:
                raise PydanticCustomError("fault", "{kind} takes no target", {"kind": kind, "key": "target"})
            return
        if self.target is None:
            if self.kind is FaultKind.BUS_PARTITION:
                return
            raise PydanticCustomError(
                "fault",
                "{kind} needs a target",
                {"kind": kind, "advice": f"such as target: {_EXAMPLES[self.kind in LINK_KINDS]}"},
            )
        fitting = _LINK_TARGETS if self.kind in LINK_KINDS else _NODE_TARGETS
        if self.target.kind is not None and self.target.kind not in fitting:
            raise PydanticCustomError(
                "fault",
                '{kind} cannot hit "{target}"',
                {
                    "kind": kind,
                    "target": self.target.kind,
                    "key": "target.kind",
                    "advice": f"say {' or '.join(fitting)}",
                },
            )
        if self.target.share_switch and self.kind not in LINK_KINDS:
            raise PydanticCustomError("fault", "share_switch is for links", {"key": "target.share_switch"})

    def _check_schedule(self) -> None:
        for key in ("every", "times", "pause", "spread"):
            if key != "times" and getattr(self, key) == 0:
                raise PydanticCustomError("fault", "{key} is zero", {"key": key, "advice": "leave it out"})
        if self.times is not None and self.every is None:
            raise PydanticCustomError("fault", "times goes with every", {"key": "times", "advice": "add every: 10 s"})
        both = [key for key in ("every", "pause", "spread") if getattr(self, key) is not None]
        if len(both) > 1:
            names = " and ".join(both)
            raise PydanticCustomError("fault", "{names} do not go together", {"names": names, "key": both[1]})
        if both and both != ["every"] and self.target is None:
            raise PydanticCustomError("fault", "{key} needs targets", {"key": both[0]})
        if self.spread is not None and self.spread >= self.end_ns - self.at:
            raise PydanticCustomError("fault", "some would begin after all are mended", {"key": "spread"})

    def _check_options(self) -> None:
        kind = self.kind.value
        for key, kinds in _OPTIONS.items():
            if getattr(self, key) is not None and self.kind not in kinds:
                names = " and ".join(sorted(one.value for one in kinds))
                raise PydanticCustomError(
                    "fault", "{kind} has no {key}: it is for {names}", {"kind": kind, "names": names, "key": key}
                )
        for key, needed, example in _NEEDED:
            if self.kind is needed and not getattr(self, key):
                raise PydanticCustomError(
                    "fault", "{kind} needs {key}", {"kind": kind, "key": key, "advice": f"such as {key}: {example}"}
                )
        if self.period is not None and self.period < _FLAP_PERIOD_MIN_NS:
            raise PydanticCustomError("fault", "a link cannot go down and up in less than 20 ms", {"key": "period"})


_EXAMPLES: Final = {True: "{kind: trunk, random: 1}", False: "{kind: switch, random: 1}"}
_OPTIONS: Final = {
    "end": ONE_ENDED,
    "loss": frozenset({FaultKind.PACKET_LOSS}),
    "period": frozenset({FaultKind.LINK_FLAP}),
    "rate": frozenset({FaultKind.RATE_LIMIT}),
    "strength": frozenset({FaultKind.DRAIN}),
    "force": frozenset({FaultKind.DRAIN}),
}
_NEEDED: Final = (("loss", FaultKind.PACKET_LOSS, "30 %"), ("rate", FaultKind.RATE_LIMIT, "10 Mbit/s"))


def _acceleration(value: object) -> object:
    if isinstance(value, dict):
        raise PydanticCustomError(
            "acceleration",
            "rates and repairs are scaled alike, or nothing could be said of natural rates",
            {"advice": "one number, such as acceleration: 100"},
        )
    return value


class RandomFaults(_Part):
    """Faults drawn at the rates of the fault model; `erfs_scenario/fault-model.yaml` has each with its source."""

    rates: Names
    """Which of its rates."""
    acceleration: Annotated[int, BeforeValidator(_acceleration), Field(ge=1, le=1_000_000)] = 1
    """Rates times this, repairs through this."""
    per_month: dict[str, Share] = {}
    """Events per thing and month of 730 h, instead of the fault model's."""
    shortest: Duration = 1 * SECOND
    """Repairs that the acceleration makes shorter than this last this long, which overstates their downtime."""
    from_: Annotated[Duration, Field(alias="from")] = 0
    until: Duration | None = None
    """All are over by then; by default the scenario's duration."""


class RecoveryBounds(_Part):
    """How long a flow that has a path may go without full service after a fault."""

    max: Duration | None = None
    p95: Duration | None = None
    """Needs 59 events; with fewer the maximum is judged against it."""


class ShareBound(_Part):
    """A lower bound."""

    min: Share


class Expect(_Part):
    """What must hold; the verdict names every bound that does not."""

    recovery: RecoveryBounds = RecoveryBounds()
    availability: ShareBound | None = None
    """Served demand-time over the demand-time that had a path permitted by policy."""
    availability_of_all: ShareBound | None = None
    """Served demand-time over all demand-time."""
    job_availability: ShareBound | None = None
    """Of every job."""
    capacity_retained: ShareBound | None = None
    """Of every affected flow that still has a path, right before the fault ends."""
    no_loop: bool = True
    no_black_hole_while_path: bool = True
    """A flow that has a path loses something only while a fault that crosses it is being recovered from."""
    lossless_return: bool = True
    """The end of a fault costs nothing."""
    converges: bool = True
    """When the run ends everything that has a path is served in full."""


TimingName = Literal["default", "lab-k4"]
"""Sets of delays with a source of their own; `erfs_scenario.plan.TIMINGS` has them."""


BaselineName = Literal["static", "ospf", "bgp", "frr-tuned", "opensm"]
"""Systems whose delays `erfs_scenario.behaviours` has."""


class TimingPart(_Part):
    """How long things take in simulation; `erfs_scenario.plan.Timing` says where each default comes from."""

    like: TimingName = "default"
    """Whose delays apply where none is given here: "lab-k4" is a k=4 fat-tree of namespaces on one machine."""
    carrier: Duration | None = None
    carrier_jitter: Duration | None = None
    write: Duration | None = None
    bus: Duration | None = None
    bus_jitter: Duration | None = None
    computation: Duration | None = None
    start: Duration | None = None
    reconnect: Duration | None = None
    will: Duration | None = None


class TimersPart(_Part):
    """Settings of agents and controller in this run."""

    wait_to_restore: Duration | None = None
    wait_to_restore_max: Duration | None = None
    flap_window: Duration | None = None
    health_interval: Duration | None = None
    discovery: Duration | None = None
    debounce_min: Duration | None = None
    debounce_max: Duration | None = None
    ack_wait: Duration | None = None
    ack_attempts: Annotated[int, Field(ge=1)] | None = None
    leader_refresh: Duration | None = None
    leader_listen: Duration | None = None
    session_interval: Duration | None = None
    """Between two packets of a liveness session."""
    session_multiplier: Annotated[int, Field(ge=2, le=255)] | None = None
    """After so many intervals of silence the far end is down."""

    @model_validator(mode="after")
    def _is_fast_enough(self) -> Self:
        if self.session_interval is not None and self.session_interval < _SESSION_INTERVAL_MIN_NS:
            raise PydanticCustomError("fault", "sessions are no faster than 2 ms", {"key": "session_interval"})
        return self


class Scenario(_Part):
    """A scenario file."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=100)]
    """Names the output folder."""
    description: str = ""
    parameters: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], str | int | float | bool | None] = {}
    """Names and their values where `--set` says no other; "${name}" in a value stands for it. Nothing: it must be set."""
    includes: Names | tuple[()] = ()
    """Files whose faults and expectations are taken in, relative to this file; what is said here counts over what they say."""
    fabric: FabricPart
    demands: Demands = Demands(all_pairs=True)
    faults: Annotated[tuple[FaultPart, ...], Field(min_length=1, max_length=10_000, strict=False)] = ()
    """What happens at stated times; may be left out where there are random_faults."""
    random_faults: RandomFaults | None = None
    """What happens by chance."""
    expect: Expect = Expect()
    seed: Annotated[int, Field(ge=0)] = 1
    warm_up: Duration = 5 * SECOND
    """From the start until the system must have reached its steady state."""
    settle: Duration = 1 * SECOND
    """How long the steady state is then watched before anything is done; it must hold."""
    duration: Duration | None = None
    """From the end of settle to the end of the run; by default 5 s after the last fault ended."""
    timing: TimingPart = TimingPart()
    timers: TimersPart = TimersPart()
    baselines: Annotated[tuple[BaselineName, ...], Field(strict=False)] = ()
    """Other systems that the same faults are replayed against, in simulation."""
    protection: bool = True
    """Whether programs are armed; `--no-protection` switches it off."""


FAULT_COUNT_MAX: Final = 20_000
"""Of one plan, however it came about: more is a typing mistake in a rate or a period."""

# What is left to happen after the last fault ended, unless the file says otherwise: the default wait-to-restore of 2 s, then the
# restoration, and as much again for seeing that nothing else happens.
TAIL_NS: Final = 5 * SECOND


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario and where each part of it stands in its file."""

    scenario: Scenario
    document: Document
    folder: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The value of each parameter, as it could be set."""

    @property
    def source(self) -> str:
        """The file's name as the user gave it."""
        return self.document.source

    def fault_names(self) -> tuple[str, ...]:
        """Return the name of each fault, in the order of the file."""
        return tuple(
            fault.name or f"{fault.kind.value}-{index}" for index, fault in enumerate(self.scenario.faults, start=1)
        )

    def place_of(self, fault: Fault) -> yaml_marks.Path:
        """Return where the kind of a fault of a plan is said: the n-th of several is called NAME#n."""
        name = fault.id.partition("#")[0]
        names = self.fault_names()
        if name in names:
            return ("faults", names.index(name), "kind")
        chance = self.scenario.random_faults
        assert chance is not None
        place: yaml_marks.Path = ("random_faults", "rates", chance.rates.index(name))
        return place if place in self.document.values else place[:-1]


def load_scenario(path: Path, settings: Mapping[str, str] | None = None) -> ScenarioFile:
    """
    Return the scenario in the file *path*, with parameters set as *settings* says.

    Raises:
        ConfigError: it cannot be read, or says something it may not; all problems at once, those of included files too.
    """
    try:
        content = yaml_marks.read_bounded(path)
    except OSError as error:
        raise ConfigError(str(path), [Problem(0, f"cannot be read: {error.strerror or error}")]) from None
    return parse_scenario(content, str(path), path.parent, settings)


def parse_scenario(
    content: bytes, source: str, folder: Path = Path(), settings: Mapping[str, str] | None = None
) -> ScenarioFile:
    """
    Return the scenario that *content* is.

    Args:
        content: The file's bytes.
        source: Its name, for messages.
        folder: What file names in it are relative to.
        settings: Values of parameters, as text, instead of those in the file.

    Raises:
        ConfigError: all problems at once, in the order of the file.
    """
    document = yaml_marks.load(content, source)
    parameters = compose(document, folder / Path(source).name, settings or {})
    problems = list(document.problems)
    scenario = None
    try:
        scenario = Scenario.model_validate(document.data)
    except ValidationError as error:
        # What could not even be read is told once.
        told = {in_order(problem) for problem in problems}
        told |= {in_order(document.problem(path, "")) for path in document.not_filled_in}
        found = _problems_of(error, document, Scenario, ())
        problems += [problem for problem in found if in_order(problem) not in told]
    problems += _generator_problems(document)
    problems += _duplicate_names(document)
    if scenario is not None:
        problems += _timing_problems(scenario, document)
    if problems:
        unique = dict.fromkeys(problems)
        raise ConfigError(source, sorted(unique, key=in_order))
    assert scenario is not None
    return ScenarioFile(scenario, document, folder, parameters)


def in_order(problem: Problem) -> tuple[str, int, int]:
    """Return what problems are sorted by: the scenario's own first, then file by file, each from top to bottom."""
    return problem.source, problem.line, problem.column


def _generator_problems(document: Document) -> list[Problem]:
    fabric = document.data.get("fabric")
    problems: list[Problem] = []
    for key, own in (("generate", ("kind",)), ("kernel", ("kind", "bus"))):
        generate = fabric.get(key) if isinstance(fabric, dict) else None
        if not isinstance(generate, dict) or not isinstance(generate.get("kind"), str):
            continue
        path: yaml_marks.Path = ("fabric", key)
        generator = GENERATORS.get(generate["kind"])
        if generator is None:
            message = f'there is no generator "{generate["kind"]}"'
            problems.append(document.problem((*path, "kind"), message, suggest(generate["kind"], GENERATORS)))
            continue
        try:
            generator.params.model_validate({key: value for key, value in generate.items() if key not in own})
        except ValidationError as error:
            problems += _problems_of(error, document, generator.params, path, own[1:])
    return problems


def _duplicate_names(document: Document) -> list[Problem]:
    faults = document.data.get("faults")
    named = [
        # Those without a name of their own are called as `ScenarioFile.fault_names` says.
        (index, str(fault.get("name") or f"{fault.get('kind')}-{index + 1}"))
        for index, fault in enumerate(faults if isinstance(faults, list) else [])
        if isinstance(fault, dict)
    ]
    counts = Counter(name for _, name in named)
    seen: set[str] = set()
    problems = []
    for index, name in named:
        if counts[name] > 1 and name in seen:
            problems.append(
                document.problem(("faults", index, "name"), f'two faults are called "{name}"', "names are unique")
            )
        seen.add(name)
    return problems


def _timing_problems(scenario: Scenario, document: Document) -> list[Problem]:
    problems = []
    for index, fault in enumerate(scenario.faults):
        if fault.every is not None and fault.times is None and scenario.duration is None:
            message = "every has no end"
            problems.append(document.problem(("faults", index, "every"), message, "say times, or the run's duration"))
    chance = scenario.random_faults
    if chance is None and not scenario.faults:
        problems.append(document.problem((), '"faults" is missing'))
    if chance is not None:
        until_ns = scenario.duration if chance.until is None else chance.until
        if until_ns is None:
            problems.append(document.problem(("random_faults",), "random faults have no end", "say until: 1 h"))
        elif scenario.duration is not None and until_ns > scenario.duration:
            problems.append(document.problem(("random_faults", "until"), "random faults end after the run does"))
        elif until_ns <= chance.from_:
            problems.append(document.problem(("random_faults", "from"), "random faults end before they begin"))
    if scenario.duration is not None:
        for index, fault in enumerate(scenario.faults):
            if fault.end_ns > scenario.duration:
                key = "until" if fault.until is not None else "for"
                message = "the fault ends after the run does"
                problems.append(document.problem(("faults", index, key), message, "raise duration, or leave it out"))
    pairs = (("debounce_min", "debounce_max"), ("wait_to_restore", "wait_to_restore_max"))
    for low, high in pairs:
        low_ns, high_ns = getattr(scenario.timers, low), getattr(scenario.timers, high)
        if low_ns is not None and high_ns is not None and low_ns > high_ns:
            problems.append(document.problem(("timers", low), f"{low} is more than {high}"))
    return problems


# pydantic's words for what we call otherwise.
_WORDS: Final = (
    ("input should be", "expected"),
    ("a valid integer", "a whole number"),
    ("a valid string", "text"),
    ("a valid boolean", "true or false"),
    ("a valid dictionary", "a mapping"),
    ("a valid list", "a list"),
    ("a valid tuple", "a list"),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
)


def _problems_of(
    error: ValidationError,
    document: Document,
    model: type[BaseModel],
    prefix: yaml_marks.Path,
    others: tuple[str, ...] = (),
) -> list[Problem]:
    """Return what is wrong with what stands at *prefix*, where *model* is expected and *others* are keys beside its own."""
    problems = []
    for found in error.errors(include_url=False):
        loc = (*prefix, *found["loc"])
        path = _known_path(document, loc)
        context = found.get("ctx", {})
        advice = str(context.get("advice", ""))
        kind = found["type"]
        if kind == "extra_forbidden":
            names = [*_field_names(model, found["loc"][:-1]), *others]
            problems.append(
                document.problem(loc, f'unknown key "{loc[-1]}"', suggest(str(loc[-1]), names), is_key=True)
            )
            continue
        if kind == "missing":
            message = f'"{loc[-1]}" is missing'
        elif kind in ("literal_error", "enum") and isinstance(found["input"], str):
            words = re.findall(r"'([^']*)'", str(context.get("expected", "")))
            message, advice = f'"{found["input"]}" is not known here', suggest(found["input"], words)
        elif kind == "string_pattern_mismatch":
            message, advice = f'"{found["input"]}" may hold only letters, digits, ".", "_" and "-"', ""
        elif kind == "too_short":
            if found["input"]:
                continue  # the one there is was refused, and has been told
            message = "expected at least one"
        else:
            message = found["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
            for theirs, ours in _WORDS:
                message = message.replace(theirs, ours)
            if message.startswith("expected") and kind not in ("duration", "share"):
                message += f", found {_shown(found['input'])}"
        if (key := context.get("key")) is not None:
            path = (*path, *str(key).split("."))
            path = _known_path(document, path)
        problems.append(document.problem(path, message, advice, is_key=kind == "fault" and bool(key)))
    return _without_union_echo(problems)


def _without_union_echo(problems: list[Problem]) -> list[Problem]:
    """Return *problems* with one per place: a value that fits no member of a union is complained about once for each."""
    first: dict[tuple[str, int, int], Problem] = {}
    kept = []
    for problem in problems:
        place = in_order(problem)
        if place in first and not problem.message.startswith(("unknown key", '"')):
            continue
        first.setdefault(place, problem)
        kept.append(problem)
    return kept


def _known_path(document: Document, loc: tuple[str | int, ...]) -> yaml_marks.Path:
    """Return the part of a pydantic location that exists in the file; names of union members and validators are not."""
    path: yaml_marks.Path = ()
    for part in loc:
        if (*path, part) in document.values:
            path = (*path, part)
    return path


def _field_names(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """Return the keys that the model at *loc* below *model* knows."""
    current: Any = model
    for part in loc:
        fields = current.model_fields if isinstance(current, type) and issubclass(current, BaseModel) else None
        if fields is None:
            continue
        by_key = {field.alias or name: field for name, field in fields.items()}
        if part in by_key:
            current = _model_in(by_key[str(part)].annotation)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field.alias or name for name, field in current.model_fields.items()]
    return []


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return f'"{text[:40]}{"…" if len(text) > 40 else ""}"'
