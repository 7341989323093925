"""What did an importer find, and what was wrong with it? Collects nodes and links with the lines they came from.

Rule 1: nothing is raised while collecting, so that a damaged file gives all its problems at once.
Rule 2: only what nothing contradicts ends up in the fabric; which problems are fatal is the caller's choice.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from erfs.errors import Problem
from erfs.fabric import Fabric, Link, LinkEnd, Medium, Node, NodeKind
from erfs.ids import LinkId, NodeId
from erfs.units import GBPS

# Formats that carry no speed (NetQ, containerlab, Slurm, foreign graphs). A round number that equal links share: what matters
# to path weights is the ratio. Such links are labelled {"capacity": "assumed"}.
ASSUMED_CAPACITY_BPS: Final = 100 * GBPS
ASSUMED: Final = {"capacity": "assumed"}

# A line number, or how to find it: in JSON that costs a second parse, paid only when there is a problem to report.
Line: TypeAlias = int | Callable[[], int]

# Longer than any name a device gives (an InfiniBand NodeDescription has 64 bytes, a DNS name 255).
NAME_LENGTH_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class Imported:
    """
    What a file held.

    Args:
        fabric: All that is sound.
        format: What the file was recognised as, for people.
        problems: What is wrong with it; empty unless the import was lenient.
        unparsed: What was left out: lines that mean nothing to the importer, or that describe no part of a fabric.
    """

    fabric: Fabric
    format: str
    problems: tuple[Problem, ...] = ()
    unparsed: tuple[Problem, ...] = ()


@dataclass(slots=True)
class Draft:
    """A fabric being read from a file."""

    nodes: dict[NodeId, Node] = field(default_factory=dict)
    links: dict[LinkId, Link] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unparsed: list[Problem] = field(default_factory=list)
    _line_of_node: dict[NodeId, Line] = field(default_factory=dict)
    _line_of_end: dict[LinkEnd, Line] = field(default_factory=dict)
    _next_port: dict[NodeId, int] = field(default_factory=dict)

    def problem(self, line: Line, message: str, *, suggestion: str = "", column: int = 0) -> None:
        """Note something wrong at *line* (0: the file as a whole)."""
        self.problems.append(Problem(_number(line), printable(message), column, suggestion))

    def leave_out(self, line: Line, message: str) -> None:
        """Note something that is sound but no part of a fabric."""
        self.unparsed.append(Problem(_number(line), printable(message)))

    def add_node(
        self,
        line: Line,
        name: object,
        kind: NodeKind,
        *,
        display: str = "",
        tier: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> NodeId | None:
        """Add a node; returns its id, or None after noting why it cannot be added."""
        if (fault := fault_of_name(name)) or not isinstance(name, str):
            self.problem(line, f"a node's name {fault}")
            return None
        if fault := display and fault_of_name(display):
            self.problem(line, f'the display name of "{name}" {fault}')
            display = ""
        node = NodeId(name)
        if node in self.nodes:
            self.problem(line, f'node "{node}" is there twice, first {_at(self._line_of_node[node])}')
            return None
        self.nodes[node] = Node(node, kind, "" if display == name else display, tier, dict(labels or {}))
        self._line_of_node[node] = line
        return node

    def add_link(
        self,
        line: Line,
        one: tuple[object, object],
        other: tuple[object, object],
        *,
        capacity_bps: int = ASSUMED_CAPACITY_BPS,
        medium: Medium = Medium.UNKNOWN,
        srlgs: tuple[str, ...] = (),
        labels: Mapping[str, str] = ASSUMED,
    ) -> None:
        """Add a link between two (node, port) ends that must be known and free, or note why it cannot be added."""
        ends: list[LinkEnd] = []
        for node, port in (one, other):
            if fault := fault_of_name(node):
                self.problem(line, f"the name of a link's node {fault}")
            elif fault := fault_of_name(port):
                self.problem(line, f'the port of a link at "{node}" {fault}')
            elif node not in self.nodes:
                self.problem(line, f'a link ends at "{node}", which is not among the nodes')
            else:
                assert isinstance(node, str)
                ends.append(LinkEnd(NodeId(node), str(port)))
        if len(ends) < 2:
            return
        if ends[0] == ends[1]:
            self.problem(line, f'a link has both ends on port "{ends[0].id}"')
            return
        for end in ends:
            if end in self._line_of_end:
                self.problem(line, f'port "{end.id}" carries a second link, its first is {_at(self._line_of_end[end])}')
                return
        link = Link.between(
            *ends,
            capacity_bps=capacity_bps,
            medium=medium,
            srlgs=srlgs,  # type: ignore[arg-type]  # checked by the format that has them
            labels=labels,
        )
        if link.id in self.links:  # names with ":" or "|" can collide
            self.problem(line, f'the link "{link.id}" is there twice')
            return
        for end in ends:
            self._line_of_end[end] = line
        self.links[link.id] = link

    def next_port(self, node: object) -> str:
        """Return the next number for a port of *node*, for formats that name none."""
        number = self._next_port.get(node, 0) + 1  # type: ignore[call-overload]  # any hashable is counted
        self._next_port[node] = number  # type: ignore[index]
        return str(number)

    def finish(self, format_name: str, name: str) -> Imported:
        """Return what was collected, tiers inferred from the graph."""
        fabric = Fabric(self.nodes.values(), self.links.values(), name=name).with_inferred_tiers()
        return Imported(fabric, format_name, tuple(_in_order(self.problems)), tuple(_in_order(self.unparsed)))


def fault_of_name(name: object) -> str:
    """Return what is wrong with *name* as the name of a node or port, or nothing."""
    if not isinstance(name, str):
        return f"should be text, not {shown(name)}"
    if not name or name.isspace():
        return "is empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"has {len(name)} characters, at most {NAME_LENGTH_MAX} are taken"
    if not name.isprintable():
        return f"holds a character that cannot be printed: {shown(name)}"
    return ""


def printable(text: str) -> str:
    """Return *text* with what cannot be printed spelled out: names from a file may hold terminal controls."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _Short(reprlib.Repr):
    """Bounded in depth and width: an aliased YAML document can be small and its full text endless."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = self.maxlong = 60
        self.maxlist = self.maxdict = self.maxtuple = 3


_SHORT: Final = _Short()


def shown(value: object) -> str:
    """Return *value* for a message: quoted, printable, short."""
    if isinstance(value, str):
        return ascii(value if len(value) <= 60 else f"{value[:57]}...")
    text = ascii(_SHORT.repr(value))[1:-1]
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(line: Line) -> int:
    return line() if callable(line) else line


def _at(line: Line) -> str:
    number = _number(line)
    return f"in line {number}" if number else "earlier"


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(
        set(problems), key=lambda problem: (problem.line, problem.column, problem.message, problem.suggestion)
    )
