"""Which fabric does the output of `ibnetdiscover` describe? (The plain form; also with -g, -f and -m.)

Rule 1: a node is its GUID as written in quotes ("S-0002c903007b78b0"); descriptions repeat and are for display.
Rule 2: every line is either known or a problem.

Source of the form: out_switch, out_switch_port, out_ca, out_ca_port in infiniband-diags/ibnetdiscover.c of rdma-core.
"""

import re
from typing import Final

from erfs.fabric import LinkEnd
from erfs.ids import NodeId
from erfs.importers.building import Draft, Imported, shown
from erfs.importers.cables import GUID, SPEED, Claim, Claims, Record, tidy
from erfs.importers.reading import Source

NAME: Final = "ibnetdiscover"
SIGN: Final = re.compile(
    rf'^(?:Switch|Ca|Rt)\t\d+ "|^\[\d+\](?:\([0-9a-f]+\))?\s+"[SHR]-{GUID}"\[|^# Topology file: generated on|^(?:switch|ca)guid=0x',
    re.MULTILINE,
)

_TAIL: Final = r"(?: s=\d+ w=\d+ v=\d+)?(?: slot \d+| \(scp\))?\s*"
_EXT: Final = r"(?:\[ext \d+\])?"
_SWITCH: Final = re.compile(
    rf'Switch\s+(?P<ports>\d{{1,3}}) "(?P<id>S-{GUID})"\s+# "(?P<name>.{{0,256}})" (?:enhanced|base) port 0 lid (?P<lid>\d{{1,5}}) lmc \d\s*'
)
_CA: Final = re.compile(
    rf'(?:Ca|Rt)\s+(?P<ports>\d{{1,3}}) "(?P<id>[HR]-{GUID})"\s+# "(?P<name>.{{0,256}})"(?: \(scp\))?\s*'
)
_SWITCH_PORT: Final = re.compile(
    rf'\[(?P<port>\d{{1,3}})\]{_EXT}\s+"(?P<far>[SHR]-{GUID})"\[(?P<far_port>\d{{1,3}})\]{_EXT}(?:\([0-9a-f]{{1,16}}\))?'
    rf'\s+# "(?P<far_name>.{{0,256}})" lid \d{{1,5}} (?P<speed>{SPEED}){_TAIL}'
)
_CA_PORT: Final = re.compile(
    rf'\[(?P<port>\d{{1,3}})\]\((?P<guid>[0-9a-f]{{1,16}})\)\s+"(?P<far>[SHR]-{GUID})"\[(?P<far_port>\d{{1,3}})\]{_EXT}(?: ?\([0-9a-f]{{1,16}}\))?'
    rf'\s+# lid (?P<lid>\d{{1,5}}) lmc \d "(?P<far_name>.{{0,256}})" lid \d{{1,5}} (?P<speed>{SPEED}){_TAIL}'
)
_IDS: Final = re.compile(
    r"(?P<key>vendid|devid|sysimgguid|switchguid|caguid|rtguid)=0x(?P<value>[0-9a-f]{1,16})(?:\([0-9a-f]{1,16}\))?(?:\s+#.*)?\s*"
)
_KNOWN: Final = re.compile(r"#.*|\s*|Chassis \d+(?: \(guid 0x[0-9a-f]+\))?\s*|Hostname: .*|Non-Chassis Nodes\s*")
_FAR_END: Final = re.compile(rf'"(?P<far>[SHR]-{GUID})"\[(?P<far_port>\d{{1,3}})\]')
_KEPT_IDS: Final = ("vendid", "devid", "sysimgguid")


def read(source: Source) -> Imported:
    """
    Return the fabric in *source*; its problems are all there are.

    Cost: O(bytes).
    """
    reader = _Reader(source)
    lines = source.text.split("\n")
    for number, line in enumerate(lines, start=1):
        if number in source.damaged:
            reader.unreadable(number, line, source.damaged[number])
        else:
            reader.read(number, line.rstrip("\r"))
    last = len(lines) - (lines[-1] == "")
    if lines[-1]:
        reader.ends_without_newline(last)
    reader.claims.settle(last)
    return reader.draft.finish(NAME, source.title)


class _Reader:
    def __init__(self, source: Source) -> None:
        self.draft = Draft()
        self.claims = Claims(self.draft)
        self._node: NodeId | None = None
        self._ports = 0
        self._ids: dict[str, str] = {}
        # Port lines after a header that could not be read belong to nobody; that the header is damaged was said already.
        self._is_header_damaged = False
        self._unreadable: dict[int, str] = {}

    def read(self, number: int, line: str) -> None:
        if line.startswith("[") and (match := (_SWITCH_PORT.fullmatch(line) or _CA_PORT.fullmatch(line))):
            self._port(number, line, match)
        elif match := _IDS.fullmatch(line):
            if self._node is not None:
                self._node, self._ids, self._is_header_damaged = None, {}, False
            self._ids[match["key"]] = match["value"]
        elif match := (_SWITCH.fullmatch(line) or _CA.fullmatch(line)):
            self._header(number, match)
        elif not _KNOWN.fullmatch(line):
            self.unreadable(number, line, f"cannot be read: {shown(line)}")

    def unreadable(self, number: int, line: str, reason: str) -> None:
        self._unreadable[number] = reason
        self.draft.problem(number, f"this line {reason}")
        self.draft.leave_out(number, f"this line {reason}")
        if match := _FAR_END.search(line):
            self.claims.explained.add(LinkEnd(NodeId(match["far"]), str(int(match["far_port"]))))
        if self._node is None:
            self._is_header_damaged = True
        else:
            self.claims.damaged.add(self._node)

    def ends_without_newline(self, last: int) -> None:
        if last in self._unreadable:
            # Said once, as the sign of a cut that it is.
            self.draft.problems = [problem for problem in self.draft.problems if problem.line != last]
            self.claims.damaged_last_line = self._unreadable[last]

    def _header(self, number: int, match: re.Match[str]) -> None:
        node = NodeId(match["id"])
        groups = match.groupdict()
        guid = next((self._ids[key] for key in ("switchguid", "caguid", "rtguid") if key in self._ids), None)
        labels = {key: self._ids[key] for key in _KEPT_IDS if key in self._ids} | {"ports": match["ports"]}
        self._ids = {}
        self._node, self._is_header_damaged = None, True
        if node in self.claims.records:
            first = self.claims.records[node].line
            self.draft.problem(number, f'node "{node}" is there twice, first in line {first}')
        elif guid is not None and guid.rjust(16, "0") != node[2:]:
            self.draft.problem(number, f'the node is called "{node}", but the lines above give it the GUID {guid}')
        else:
            if groups.get("lid"):
                labels["lid"] = groups["lid"]
            self.claims.records[node] = Record(number, tidy(match["name"]), labels)
            self.claims.last = self._node = node
            self._ports = int(match["ports"])
            self._is_header_damaged = False

    def _port(self, number: int, line: str, match: re.Match[str]) -> None:
        far = LinkEnd(NodeId(match["far"]), str(int(match["far_port"])))
        port = int(match["port"])
        if self._node is None:
            if not self._is_header_damaged:
                self.draft.problem(
                    number, "this port belongs to no node: expected a line with Switch, Ca or Rt before it"
                )
                self._is_header_damaged = True
            self.claims.explained.add(far)
            return
        if not 1 <= port <= self._ports:
            self.unreadable(number, line, f"names port {port} of a node with {self._ports} ports")
            return
        groups = match.groupdict()
        labels = self.claims.records[self._node].labels
        suffix = "" if self._ports == 1 else f"_{port}"
        if groups.get("lid"):
            labels[f"lid{suffix}"] = groups["lid"]
        if groups.get("guid") and groups["guid"].rjust(16, "0") != self._node[2:]:
            labels[f"port_guid{suffix}"] = groups["guid"].rjust(16, "0")
        self.claims.claim(LinkEnd(self._node, str(port)), Claim(number, far, match["speed"], tidy(match["far_name"])))
