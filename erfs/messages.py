"""What travels on the bus. Every state message is whole and idempotent; nothing is a delta.

Rule 1: decode once, at the edge (`decode`); cores see these types, never JSON.
Rule 2: renaming a field breaks every running agent: tests/golden/ holds one line of each kind.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from erfs.errors import WireError
from erfs.ids import DestinationId, LinkId, NodeId, SrlgId

VERSION: Final = 1
CONTROLLER: Final = NodeId("controller")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _is_none(value: object) -> bool:
    return value is None


class _Message(_Value):
    v: Literal[1] = VERSION
    sender: NodeId
    """Who says it; must be the node of the topic it came by."""
    epoch: int = Field(default=0, ge=0)
    """The controller's reign as the sender knows it."""
    seq: int = Field(default=0, ge=0)
    """Counts the sender's messages; a hole is a loss. Last wills carry 0."""


class Installed(_Value):
    """Which program a node runs."""

    epoch: int
    generation: int
    digest: str


class Presence(_Message):
    """An agent is connected, or the broker says it vanished (last will)."""

    kind: Literal["presence"] = "presence"
    state: Literal["online", "gone"]
    incarnation: int = 0
    """Rises at each start of the agent, so an old last will cannot take a new agent down."""
    installed: Installed | None = None


class PortHealth(_Value):
    """What a node knows of one port."""

    port: str
    link: LinkId
    far_end: NodeId
    """The node that should be at the other end."""
    oper_up: bool
    """What the hardware says."""
    held: bool = False
    """Up again, but still within its wait-to-restore time."""
    counter: int = 0
    """Counts this end's ups and downs; matches the down fact's."""


class Health(_Message):
    """All ports of one node, at once on a change and slowly otherwise."""

    kind: Literal["health"] = "health"
    ports: tuple[PortHealth, ...]
    installed: Installed | None = None


class DownFact(_Message):
    """One end of a link says it lost it (or has it back: ``down`` false). Retained per reporter and port."""

    kind: Literal["fact"] = "fact"
    link: LinkId
    port: str
    far_end: NodeId
    counter: int = Field(ge=1)
    """Counts this end's ups and downs; a higher one replaces a lower one, whatever the order of arrival."""
    down: bool


class CannotReach(_Message):
    """A node has no live next hop left for these destinations. Whole set; retained per reporter."""

    kind: Literal["cannot_reach"] = "cannot_reach"
    counter: int = Field(ge=1)
    destinations: tuple[DestinationId, ...]


class Member(_Value):
    """One next hop: send by this port, with this share."""

    port: str
    weight: int = Field(default=1, ge=1)


class Group(_Value):
    """A next-hop group. *id* is its place in the program's list."""

    id: int
    members: tuple[Member, ...]


class Route(_Value):
    """Send what goes to *destination* by group *group*."""

    destination: DestinationId
    group: int
    has_detour: bool = True
    """Whether an upstream node could do better if this group empties: only then is `cannot_reach` worth saying."""


class PortBinding(_Value):
    """What is at the other end of a port."""

    port: str
    link: LinkId
    far_end: NodeId


class Step(_Value):
    """What to do for some destinations: next hops to drop, and next hops to add (exclusive)."""

    drop: tuple[str, ...] = ()
    add: tuple[Member, ...] = ()


class ChangeRef(NamedTuple):
    """Do step *step* for the destinations of set *destinations*; on the wire the two numbers, places in ``steps`` and ``sets``."""

    destinations: int
    step: int


class SharedRisk(_Value):
    """What is armed for a shared-risk group, and its links that can testify to it: those usable when this was computed."""

    links: tuple[LinkId, ...]
    changes: tuple[ChangeRef, ...]


class Change(NamedTuple):
    """A `ChangeRef` looked up: next hops to drop, and next hops to add, for some destinations. Not on the wire."""

    destinations: tuple[DestinationId, ...]
    drop: tuple[str, ...] = ()
    add: tuple[Member, ...] = ()


FailureKind = Literal["link", "node", "srlg"]


class ArmedEntry(NamedTuple):
    """The changes to make for one failure that has not happened, looked up. *links* are those of a shared-risk group. Not on the wire."""

    failure_kind: FailureKind
    failure: str
    changes: tuple[Change, ...]
    links: tuple[LinkId, ...] = ()


class Armed(_Value):
    """
    The changes to make for failures that have not happened.

    A link's entry applies when an end of the link reports it; a node's when two different nodes report two different links to it; a
    shared-risk group's when two different links of it are reported.
    """

    reporters: tuple[NodeId, ...] = ()
    """Whose down facts may testify to any of these failures, sorted; the program's own node left out."""
    ignored: tuple[LinkId, ...] = ()
    """Links of the nodes armed for that were unusable already when this was computed: they testify to no node's failure."""
    sets: tuple[tuple[DestinationId, ...], ...] = ()
    """The sets of destinations, each sorted, in the order of their first use."""
    steps: tuple[Step, ...] = ()
    """In the order of their first use."""
    links: dict[LinkId, tuple[ChangeRef, ...]] = Field(default_factory=dict)
    nodes: dict[NodeId, tuple[ChangeRef, ...]] = Field(default_factory=dict)
    srlgs: dict[SrlgId, SharedRisk] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _refer_to_what_is_there(self) -> "Armed":
        set_count, step_count = len(self.sets), len(self.steps)
        of_srlgs = (risk.changes for risk in self.srlgs.values())
        for changes in chain(self.links.values(), self.nodes.values(), of_srlgs):
            for destinations, step in changes:
                if not (0 <= destinations < set_count and 0 <= step < step_count):
                    raise ValueError(f"change [{destinations},{step}] of {set_count} sets and {step_count} steps")
        return self

    def __bool__(self) -> bool:
        return bool(self.links or self.nodes or self.srlgs)

    def changes(self, refs: tuple[ChangeRef, ...]) -> tuple[Change, ...]:
        """Return the changes that *refs* stand for."""
        sets, steps = self.sets, self.steps
        return tuple([Change(sets[place], steps[step].drop, steps[step].add) for place, step in refs])

    def entries(self) -> Iterator[ArmedEntry]:
        """Yield everything looked up: links, then nodes, then shared-risk groups, each by name."""
        for link in sorted(self.links):
            yield ArmedEntry("link", link, self.changes(self.links[link]))
        for node in sorted(self.nodes):
            yield ArmedEntry("node", node, self.changes(self.nodes[node]))
        for srlg in sorted(self.srlgs):
            risk = self.srlgs[srlg]
            yield ArmedEntry("srlg", srlg, self.changes(risk.changes), risk.links)

    def with_entries(self, entries: Iterable[ArmedEntry]) -> "Armed":
        """Return this with *entries*, in the order of `entries`, instead of its own; entries without a change are left out."""
        sets: dict[tuple[DestinationId, ...], int] = {}
        steps: dict[Step, int] = {}
        refs: dict[FailureKind, dict[Any, Any]] = {"link": {}, "node": {}, "srlg": {}}
        for entry in entries:
            found = tuple(
                ChangeRef(
                    sets.setdefault(change.destinations, len(sets)),
                    steps.setdefault(Step(drop=change.drop, add=change.add), len(steps)),
                )
                for change in entry.changes
            )
            if found:
                is_srlg = entry.failure_kind == "srlg"
                risk = SharedRisk(links=entry.links, changes=found) if is_srlg else found
                refs[entry.failure_kind][entry.failure] = risk
        return Armed(
            reporters=self.reporters,
            ignored=self.ignored,
            sets=tuple(sets),
            steps=tuple(steps),
            links=refs["link"],
            nodes=refs["node"],
            srlgs=refs["srlg"],
        )


class Backup(_Value):
    """
    What serves *destinations* while the data plane has nothing else for them: all of *ports*, equally.

    It is in the data plane beforehand, beside the routes and behind them, so nobody has to do anything for it to act.
    """

    ports: tuple[str, ...]
    destinations: tuple[DestinationId, ...]


class FactRef(_Value):
    """A down fact that a program has already taken into account."""

    link: LinkId
    reporter: NodeId
    counter: int


class Program(_Message):
    """One node's routes and its armed changes: one atomic message, retained."""

    kind: Literal["program"] = "program"
    node: NodeId
    generation: int = Field(ge=1)
    digest: str
    """Of the content (`program_digest`): equal content, equal digest, whatever the epoch and generation."""
    computed_from: tuple[FactRef, ...] = ()
    ports: tuple[PortBinding, ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...]
    armed: Armed = Field(default_factory=Armed)
    backups: tuple[Backup, ...] | None = Field(default=None, exclude_if=_is_none)
    """
    None where policy permits no valley, and then not on the wire. A node with a list, be it empty, sends nothing back by the port it came by
    as long as there is another next hop: its neighbours' backups rely on that.
    """

    @property
    def content(self) -> tuple[object, ...]:
        """What the digest is of."""
        return self.node, self.computed_from, self.ports, self.groups, self.routes, self.armed, self.backups

    @cached_property
    def content_and_digest(self) -> tuple[tuple[object, ...], str]:
        """The content and its digest; copies carry it along, so ask `content_digest`, which looks whether it fits."""
        return self.content, program_digest(self.model_dump(mode="json", include=_CONTENT_FIELDS))


class Ack(_Message):
    """What became of a program. ``installed`` means: the data plane confirmed it."""

    kind: Literal["ack"] = "ack"
    program_epoch: int
    generation: int
    digest: str
    outcome: Literal["installed", "refused", "failed"]
    reason: str = ""
    installed: Installed | None = None
    """What the node runs now."""


class Leader(_Message):
    """Who controls the fabric. Retained; refreshed while alive, so that a stale one can be told from a live one."""

    kind: Literal["leader"] = "leader"
    controller: str
    state: Literal["alive", "gone"]


class Confirm(_Message):
    """An operator's word that a refused generation may be pushed after all."""

    kind: Literal["confirm"] = "confirm"
    generation: int
    reason: str = Field(min_length=1)


DrainTarget = Literal["node", "link", "srlg", "rack"]
Strength = Literal["hard", "soft"]
"""Hard: carry nothing through it. Soft: use it only where nothing else remains."""
DRAIN_NAMED_MAX: Final = 20
"""So many endpoints are named in a drain's plan; the count is exact."""


class DrainRequest(_Message):
    """An operator's word that something is to be taken out of use, or back into it. Saying it again changes nothing."""

    kind: Literal["drain"] = "drain"
    request: str = Field(pattern=r"^[0-9a-f]{8,64}$")
    """Names the topic of the answers; unlike any other's."""
    action: Literal["drain", "undrain"]
    target: str = Field(min_length=1)
    """As the operator spells it; "node:", "link:", "srlg:" or "rack:" before it says which of several is meant."""
    strength: Strength = "hard"
    lasts_ns: int | None = Field(default=None, gt=0)
    """None: until it is undrained."""
    is_dry_run: bool = False
    """Only tell what would be done."""
    force: str = ""
    """Why it is to be done though the path floor forbids it; goes to the journal."""


class Drain(_Value):
    """One thing that an operator has taken out of use. Instants are of the wall clock, for they outlive every process."""

    target_kind: DrainTarget
    target: str
    strength: Strength
    by: NodeId
    """The operator."""
    begins_wall_ns: int
    ends_wall_ns: int | None = None
    forced_because: str = ""
    """The operator's reason, where the path floor was overridden."""
    may_cut: bool = False
    """Whether it was known, when it was forced, that it cuts somebody off."""

    @property
    def name(self) -> str:
        """The target, unambiguous."""
        return f"{self.target_kind}:{self.target}"


class DrainShare(_Value):
    """What the worst-off switch would keep towards the worst-off class, of what there was as built."""

    of: Literal["paths", "capacity"]
    source: NodeId
    destination: DestinationId
    ppm: int


class DrainPlan(_Value):
    """What a drain would do, as far as it can be told beforehand."""

    target_kind: DrainTarget
    target: str
    link_count: int
    endpoints: tuple[NodeId, ...] = ()
    """Attached to what is drained, up to `DRAIN_NAMED_MAX`."""
    endpoint_count: int = 0
    cut: tuple[NodeId, ...] = ()
    """Who would lose the last path to somebody, up to `DRAIN_NAMED_MAX`."""
    cut_count: int = 0
    shares: tuple[DrainShare, ...] = ()
    """Of everybody else; empty where nothing becomes less."""
    own_shares: tuple[DrainShare, ...] = ()
    """Of the classes attached to what is drained."""


class DrainAnswer(_Message):
    """
    What the controller says to a `DrainRequest`, several times if need be.

    planned: what would be done (a dry run). refused: with the reasons. accepted: it is on disk and will be done. moving: programs of a
    generation are on their way. waiting: something keeps it from being done. done: no traffic takes the old way any more.
    """

    kind: Literal["drain_answer"] = "drain_answer"
    request: str
    state: Literal["planned", "refused", "accepted", "moving", "waiting", "done"]
    reasons: tuple[str, ...] = ()
    plan: DrainPlan | None = None
    drain: Drain | None = None
    generation: int = 0


class Drains(_Message):
    """All that is drained. Whole set; retained, so that whoever leads next knows it, and anybody may look."""

    kind: Literal["drains"] = "drains"
    revision: int = Field(default=0, ge=0)
    """Rises with each change; the higher one counts."""
    drains: tuple[Drain, ...] = ()


Message = Annotated[
    Presence | Health | DownFact | CannotReach | Program | Ack | Leader | Confirm | DrainRequest | DrainAnswer | Drains,
    Field(discriminator="kind"),
]
_ADAPTER: Final[TypeAdapter[Message]] = TypeAdapter(Message)


def encode(message: Message) -> bytes:
    """Return the wire form: one JSON object, no blanks, fields in the order of the model."""
    return message.model_dump_json().encode()


def decode(payload: bytes) -> Message:
    """
    Return the message that *payload* holds.

    Raises:
        WireError: not JSON, an unknown kind or version, a field missing, extra or of the wrong type; names the field.
    """
    try:
        return _ADAPTER.validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WireError(f"unreadable message of {len(payload)} bytes: {place or 'payload'}: {first['msg']}") from None


def program_digest(content: dict[str, Any]) -> str:
    """
    Return the digest of a program's content: 16 hex digits of SHA-256 over canonical JSON.

    Args:
        content: The program's fields ``node``, ``computed_from``, ``ports``, ``groups``, ``routes``, ``armed`` as plain JSON values, and
            ``backups`` unless it is None.
    """
    return canonical_digest(json.dumps(content, **CANONICAL))


CANONICAL: Final[dict[str, Any]] = {"sort_keys": True, "separators": (",", ":")}


def canonical_digest(canonical: str) -> str:
    """Return the digest of a program's content that is canonical JSON already."""
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_CONTENT_FIELDS: Final = {"node", "computed_from", "ports", "groups", "routes", "armed", "backups"}


def sealed(program: Program) -> Program:
    """Return *program* with the digest of its own content."""
    return program.model_copy(update={"digest": content_digest(program)})


def vouched(program: Program) -> Program:
    """Return *program*, noting that its maker took the digest from its content; nobody in this process does it again."""
    program.__dict__["content_and_digest"] = (program.content, program.digest)
    return program


def content_digest(program: Program) -> str:
    """
    Return what the digest of *program* must be; an agent refuses one that differs.

    Cost: O(content) once; a copy that differs in epoch and generation alone costs nothing more.
    """
    content, digest = program.content_and_digest
    if all(mine is digested for mine, digested in zip(program.content, content, strict=True)):
        return digest
    del program.__dict__["content_and_digest"]
    return program.content_and_digest[1]
