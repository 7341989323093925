"""Do the two ends of every cable agree? An InfiniBand dump describes each cable twice, once from either end.

Rule 1: a cable both ends describe alike is sound; what one end says and the other does not is a problem, said once.
Rule 2: one damaged line is one problem: what follows from it is not reported again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from erfs.fabric import LinkEnd, Medium, NodeKind
from erfs.ids import NodeId
from erfs.importers.building import ASSUMED, ASSUMED_CAPACITY_BPS, Draft
from erfs.importers.infiniband import capacity_of

GUID: Final = r"[0-9a-f]{16}"
# Width and speed as the tools print them, unknown ones included.
SPEED: Final = r"(?:\d{1,2}[xX]|\?\?) ?(?:\d{1,4}(?:\.\d{1,6})? Gbps|[A-Z]{3}(?:10)?|\?\?\?)"

# SHARP's reduction engine is a channel adapter inside the switch chip. It looks like a host and is none.
_AGGREGATION: Final = re.compile(r"\baggregation node\b", re.IGNORECASE)
# "luna-0017 mlx5_3", "r-dcs96 HCA-2": what the Linux drivers set as NodeDescription.
_HOST_AND_HCA: Final = re.compile(r"(?P<host>\S+) (?P<hca>HCA-\d+|mlx\d+_\d+|hfi\d+_\d+|ib\S+)")
_NAMES_NO_HOST: Final = frozenset({"localhost", "localhost.localdomain"})
_KINDS: Final = {"S": NodeKind.SWITCH, "H": NodeKind.NIC, "R": NodeKind.HOST}


@dataclass(slots=True)
class Record:
    """What a file says about one node itself."""

    line: int
    name: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one end says about its cable."""

    line: int
    far: LinkEnd
    speed: str
    far_name: str = ""


@dataclass(slots=True)
class Claims:
    """Everything a dump says, before it is known what agrees."""

    draft: Draft
    records: dict[NodeId, Record] = field(default_factory=dict)
    by_end: dict[LinkEnd, Claim] = field(default_factory=dict)
    # Ends whose other side stood in a line that could not be read, and nodes with such a line: their silence is explained.
    explained: set[LinkEnd] = field(default_factory=set)
    damaged: set[NodeId] = field(default_factory=set)
    last: NodeId | None = None
    damaged_last_line: str = ""
    _repeated: list[tuple[LinkEnd, Claim]] = field(default_factory=list)

    def claim(self, end: LinkEnd, claim: Claim) -> None:
        """Note that *end* claims a cable."""
        if end in self.by_end:
            self.draft.problem(claim.line, f"port {_shown(end)} is there twice, first in line {self.by_end[end].line}")
            self._repeated.append((end, claim))
        else:
            self.by_end[end] = claim

    def settle(self, last_line: int) -> None:
        """Compare both ends of every cable; put what is sound into the draft and note what is not."""
        for end, claim in self._repeated:  # of two claims for one port the one that the far end confirms stands
            back = self.by_end.get(claim.far)
            if back is not None and back.far == end:
                claim, self.by_end[end] = self.by_end[end], claim
            self.explained.add(claim.far)
        towards: dict[LinkEnd, list[LinkEnd]] = {}
        for end, claim in self.by_end.items():
            towards.setdefault(claim.far, []).append(end)
        doubted: set[LinkEnd] = set()
        one_sided: list[LinkEnd] = []
        unnamed: list[LinkEnd] = []  # ends whose peer has no record
        is_cut = bool(self.damaged_last_line)
        for end, claim in self.by_end.items():
            back = self.by_end.get(claim.far)
            if back is not None and back.far == end:
                continue
            rivals = [rival for rival in towards.get(end, ()) if rival != claim.far]
            if claim.far == end:
                self.draft.problem(claim.line, f"port {_shown(end)} is said to be cabled to itself")
                doubted.add(end)
            elif back is not None:
                self._contradiction(end, claim.far, doubted)
            elif rivals:
                self._contradiction(end, rivals[0], doubted)
            else:
                one_sided.append(end)
                if end in self.explained or claim.far.node in self.damaged:
                    continue
                if claim.far.node not in self.records:
                    unnamed.append(end)
                elif claim.far.node == self.last:
                    is_cut = True
                else:
                    self.draft.problem(
                        claim.line,
                        f"port {_shown(end)} is said to be cabled to {_shown(claim.far)}, but that node's record "
                        f"(line {self.records[claim.far.node].line}) has no such port",
                    )
        if is_cut or unnamed:
            self._cut(last_line, unnamed)
        self._draw(doubted, one_sided)

    def _contradiction(self, one: LinkEnd, other: LinkEnd, doubted: set[LinkEnd]) -> None:
        if one not in doubted and other not in doubted:
            first, second = sorted((one, other), key=lambda end: self.by_end[end].line)
            self.draft.problem(
                self.by_end[first].line,
                f"port {_shown(first)} is said to be cabled to {_shown(self.by_end[first].far)}, but line "
                f"{self.by_end[second].line} says that {_shown(second)} is cabled to {_shown(self.by_end[second].far)}",
            )
        doubted.add(one)
        back = self.by_end.get(self.by_end[other].far)
        if back is None or back.far != other:
            doubted.add(other)

    def _cut(self, last_line: int, unnamed: list[LinkEnd]) -> None:
        message = f"the file seems to be cut: it ends in the middle, after line {last_line}"
        if self.damaged_last_line:
            message = f"the file seems to be cut: it ends in the middle of line {last_line} ({self.damaged_last_line})"
        if unnamed:
            nodes = sorted({self.by_end[end].far.node for end in unnamed})
            first = min(unnamed, key=lambda end: self.by_end[end].line)
            some = f"{len(nodes):,} nodes" if len(nodes) > 1 else "one node"
            message += (
                f"; {some} that it names {'have' if len(nodes) > 1 else 'has'} no record, "
                f'the first is "{self.by_end[first].far.node}" in line {self.by_end[first].line}'
            )
        self.draft.problem(last_line, message, suggestion="take the dump again; --lenient keeps what is there")

    def _draw(self, doubted: set[LinkEnd], one_sided: Iterable[LinkEnd]) -> None:
        for end in one_sided:  # a peer without a record is known by what its neighbour says
            claim = self.by_end[end]
            self.records.setdefault(claim.far.node, Record(claim.line, claim.far_name))
        hosts = self._hosts()
        for node, record in self.records.items():
            labels = dict(record.labels)
            if node in hosts:
                labels["host"], labels["hca"] = hosts[node]
            self.draft.add_node(record.line, node, kind_of(node, record.name), display=record.name, labels=labels)
        lenient_ends = set(one_sided)
        for end, claim in self.by_end.items():
            if end in doubted or (end not in lenient_ends and end.id > claim.far.id):
                continue  # a sound cable is drawn once, from its first end
            back = self.by_end.get(claim.far) if end not in lenient_ends else None
            self._draw_link(end, claim, back)

    def _draw_link(self, end: LinkEnd, claim: Claim, back: Claim | None) -> None:
        speeds = {claim.speed, back.speed if back else claim.speed}
        known = {speed: capacity for speed in sorted(speeds) if (capacity := capacity_of(speed))}
        if len(set(known.values())) > 1:
            assert back is not None
            self.draft.problem(
                claim.line,
                f"the cable {_shown(end)} to {_shown(claim.far)} is {claim.speed} here and {back.speed} in line {back.line}",
            )
        if not known:
            self.draft.problem(
                claim.line,
                f'the speed "{claim.speed}" of port {_shown(end)} is unknown',
                suggestion="expected such as 4xNDR",
            )
        speed = min(known, key=lambda speed: known[speed], default="")
        self.draft.add_link(
            claim.line,
            end,
            claim.far,
            capacity_bps=known.get(speed, ASSUMED_CAPACITY_BPS),
            medium=Medium.LOSSLESS,
            labels={"speed": speed.replace(" ", "", 1)} if speed else ASSUMED,
        )

    def _hosts(self) -> dict[NodeId, tuple[str, str]]:
        """Return each adapter's host and HCA where its description names them and no other adapter has the same."""
        found: dict[tuple[str, str], list[NodeId]] = {}
        for node, record in self.records.items():
            match = _HOST_AND_HCA.fullmatch(record.name)
            if match and kind_of(node, record.name) is NodeKind.NIC and match["host"] not in _NAMES_NO_HOST:
                found.setdefault((match["host"], match["hca"]), []).append(node)
        repeated = {host for (host, _), nodes in found.items() if len(nodes) > 1}
        return {nodes[0]: key for key, nodes in found.items() if key[0] not in repeated}


def kind_of(node: NodeId, name: str) -> NodeKind:
    """Return the kind of an InfiniBand node by its id's letter and its description. A router is an end of this subnet."""
    kind = _KINDS[node[0]]
    return NodeKind.AGGREGATION if kind is NodeKind.NIC and _AGGREGATION.search(name) else kind


def tidy(name: str) -> str:
    """Return a node description for display: control characters and outer blanks gone."""
    if not name.isprintable():
        name = "".join(letter if letter.isprintable() else " " for letter in name)
    return name.strip()


def _shown(end: LinkEnd) -> str:
    return f'"{end.node}"[{end.port}]'
