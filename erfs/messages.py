"""What travels on the bus. Every state message is whole and idempotent; nothing is a delta.

Rule 1: decode once, at the edge (`decode`); cores see these types, never JSON.
Rule 2: renaming a field breaks every running agent: tests/golden/ holds one line of each kind.
"""

import hashlib
import json
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from erfs.errors import WireError
from erfs.ids import DestinationId, LinkId, NodeId

VERSION: Final = 1
CONTROLLER: Final = NodeId("controller")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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


class Witness(_Value):
    """A down fact by *reporter* about *link* testifies to a failure."""

    link: LinkId
    reporter: NodeId


class Change(_Value):
    """What an armed failure changes for some destinations: next hops to drop, and next hops to add (exclusive)."""

    destinations: tuple[DestinationId, ...]
    drop: tuple[str, ...] = ()
    add: tuple[Member, ...] = ()


class ArmedEntry(_Value):
    """
    The change to make for one failure that has not happened.

    A link's entry applies when one witness reports; a node's when two different reporters do, about two different links.
    """

    failure_kind: Literal["link", "node"]
    failure: str
    witnesses: tuple[Witness, ...]
    changes: tuple[Change, ...]


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
    armed: tuple[ArmedEntry, ...] = ()

    @property
    def content(self) -> tuple[object, ...]:
        """What the digest is of."""
        return self.node, self.computed_from, self.ports, self.groups, self.routes, self.armed

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


Message = Annotated[
    Presence | Health | DownFact | CannotReach | Program | Ack | Leader | Confirm, Field(discriminator="kind")
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
        content: The program's fields ``node``, ``computed_from``, ``ports``, ``groups``, ``routes``, ``armed`` as plain JSON values.
    """
    return canonical_digest(json.dumps(content, **CANONICAL))


CANONICAL: Final[dict[str, Any]] = {"sort_keys": True, "separators": (",", ":")}


def canonical_digest(canonical: str) -> str:
    """Return the digest of a program's content that is canonical JSON already."""
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


_CONTENT_FIELDS: Final = {"node", "computed_from", "ports", "groups", "routes", "armed"}


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
