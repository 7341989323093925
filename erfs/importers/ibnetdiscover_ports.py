"""Which fabric does the output of `ibnetdiscover -p` describe? (One line a port.)

Rule 1: this form knows port GUIDs only. A switch's ports share its own; an adapter with two ports becomes two nodes.
Rule 2: every line is either known or a problem.

Source of the form: dump_ports_report in infiniband-diags/ibnetdiscover.c of rdma-core.
"""

import re
from typing import Final

from erfs.fabric import LinkEnd
from erfs.ids import NodeId
from erfs.importers.building import Draft, Imported, shown
from erfs.importers.cables import SPEED, Claim, Claims, Record, tidy
from erfs.importers.reading import Source

NAME: Final = "ibnetdiscover -p"
_END: Final = r"(?P<{0}type>SW|CA|RT)\s+(?P<{0}lid>\d{{1,5}})\s+(?P<{0}port>\d{{1,3}}) 0x(?P<{0}guid>[0-9a-f]{{16}})"
SIGN: Final = re.compile(r"^(?:SW|CA|RT)\s+\d+\s+\d+ 0x[0-9a-f]{16} ", re.MULTILINE)

_LINE: Final = re.compile(
    _END.format("")
    + rf" (?P<speed>{SPEED})(?: - "
    + _END.format("far_")
    + r" \( '(?P<names>.{0,512})' \)|\s+'(?P<name>.{0,256})')\s*"
)
_FAR_END: Final = re.compile(" - " + _END.format("far_"))
_LETTERS: Final = {"SW": "S", "CA": "H", "RT": "R"}


def read(source: Source) -> Imported:
    """
    Return the fabric in *source*; its problems are all there are.

    Cost: O(bytes).
    """
    draft = Draft()
    claims = Claims(draft)
    names: dict[NodeId, set[str]] = {}  # what each node may be called, from lines where blanks and quotes leave a doubt
    unreadable: dict[int, str] = {}
    lines = source.text.split("\n")
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line.rstrip("\r"))
        if number in source.damaged or match is None:
            if line.strip() or number in source.damaged:
                unreadable[number] = source.damaged.get(number) or f"cannot be read: {shown(line)}"
                _explain(line, claims)
            continue
        node = NodeId(f"{_LETTERS[match['type']]}-{match['guid']}")
        record = claims.records.get(node)
        if record is None:
            record = claims.records[node] = Record(number, "", {"lid": match["lid"]})
        claims.last = node
        if match["far_guid"] is None:
            _narrow(names, node, {match["name"]})
            continue
        far = LinkEnd(NodeId(f"{_LETTERS[match['far_type']]}-{match['far_guid']}"), str(int(match["far_port"])))
        # "'a' - 'b'": where a name itself holds "' - '", every split is possible.
        parts = match["names"].split("' - '")
        splits = [("' - '".join(parts[:at]), "' - '".join(parts[at:])) for at in range(1, len(parts))]
        _narrow(names, node, {one for one, _ in splits})
        _narrow(names, far.node, {other for _, other in splits})
        claims.claim(
            LinkEnd(node, str(int(match["port"]))),
            Claim(number, far, match["speed"], tidy(splits[0][1]) if splits else ""),
        )
    for node, record in claims.records.items():
        record.name = tidy(min(names.get(node) or {""}))
    last = len(lines) - (lines[-1] == "")
    if lines[-1] and last in unreadable:
        claims.damaged_last_line = unreadable.pop(last)
    for number, reason in unreadable.items():
        draft.problem(number, f"this line {reason}")
        draft.leave_out(number, f"this line {reason}")
    claims.settle(last)
    return draft.finish(NAME, source.title)


def _explain(line: str, claims: Claims) -> None:
    if match := _FAR_END.search(line):
        far = LinkEnd(NodeId(f"{_LETTERS[match['far_type']]}-{match['far_guid']}"), str(int(match["far_port"])))
        claims.explained.add(far)
    elif claims.last is not None:
        claims.damaged.add(claims.last)  # the ports of one node stand together


def _narrow(names: dict[NodeId, set[str]], node: NodeId, possible: set[str]) -> None:
    if possible:
        names[node] = (names[node] & possible or names[node]) if node in names else possible
