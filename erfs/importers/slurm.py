"""Which fabric does a Slurm topology.conf describe?

Rule 1: the file names no ports and no cables: each "Switches=" or "Nodes=" member is one link, ports numbered in order.
Rule 2: Slurm's tree is a simplification of the real fabric; capacity is assumed, the medium unknown.

Source of the form: slurm.schedmd.com/topology.conf.html (topology/tree).
"""

import itertools
import re
from typing import Final

from erfs.fabric import NodeKind
from erfs.importers.building import ASSUMED, Draft, Imported, shown
from erfs.importers.reading import Source

NAME: Final = "Slurm topology.conf"
SIGN: Final = re.compile(r"^[ \t]*SwitchName[ \t]*=", re.IGNORECASE | re.MULTILINE)

# More hosts than any cluster has: beyond it a range such as [0-99999999] is a mistake, and would fill the memory.
HOSTS_MAX: Final = 1_000_000
_SETTING: Final = re.compile(r"\s*(?P<key>\w+)\s*=\s*(?P<value>\"[^\"]*\"|[^\s\"]*)")
_KEYS: Final = frozenset({"switchname", "switches", "nodes", "linkspeed"})
_RANGES: Final = re.compile(r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*")


class _BadListError(ValueError):
    pass


def read(source: Source) -> Imported:
    """
    Return the fabric in *source*; its problems are all there are.

    Cost: O(bytes + nodes named).
    """
    draft = Draft()
    records: list[tuple[int, dict[str, str]]] = []
    for line, text in _statements(source, draft):
        settings: dict[str, str] = {}
        at = 0
        while match := _SETTING.match(text, at):
            settings[match["key"].lower()] = match["value"].strip('"')
            at = match.end()
        unknown = sorted(settings.keys() - _KEYS)
        if text[at:].strip() or not settings.get("switchname") or unknown:
            what = f'has the unknown setting "{unknown[0]}"' if unknown else f"cannot be read: {shown(text)}"
            draft.problem(line, f"this line {what}", suggestion="expected SwitchName=... Switches=... or Nodes=...")
            draft.leave_out(line, f"this line {what}")
        else:
            records.append((line, settings))
    left = HOSTS_MAX
    parsed: list[tuple[int, str, list[str], list[str], str]] = []
    for line, settings in records:
        try:
            names = [expand_hostlist(settings.get(key, ""), left) for key in ("switchname", "switches", "nodes")]
        except _BadListError as error:
            draft.problem(line, str(error))
            continue
        left -= sum(map(len, names))
        if len(names[0]) != 1:
            draft.problem(line, f"SwitchName should name one switch, not {shown(settings['switchname'])}")
            continue
        parsed.append((line, names[0][0], names[1], names[2], settings.get("linkspeed", "")))
    for line, switch, *_ in parsed:
        draft.add_node(line, switch, NodeKind.SWITCH)
    for line, _, _, hosts, _ in parsed:
        for host in hosts:
            if host not in draft.nodes:  # a host may be named under two switches: then it is attached to both
                draft.add_node(line, host, NodeKind.HOST)
    for line, switch, below, hosts, speed in parsed:
        for far in (*below, *hosts):
            labels = ASSUMED | ({"link_speed": speed} if speed else {})
            if far not in draft.nodes:
                draft.problem(line, f'switch "{switch}" names "{far}", which has no line of its own')
            elif far == switch:
                draft.problem(line, f'switch "{switch}" names itself')
            else:
                draft.add_link(line, (switch, draft.next_port(switch)), (far, draft.next_port(far)), labels=labels)
    return draft.finish(NAME, source.title)


def _statements(source: Source, draft: Draft) -> list[tuple[int, str]]:
    """Return the statements with the lines they start in: comments gone, lines that end in a backslash joined."""
    found: list[tuple[int, str]] = []
    started, text = 0, ""
    for number, line in enumerate(source.text.split("\n"), start=1):
        if number in source.damaged:
            draft.problem(number, f"this line {source.damaged[number]}")
            draft.leave_out(number, f"this line {source.damaged[number]}")
            continue
        content = line.partition("#")[0].rstrip()
        started = started or number
        if content.endswith("\\"):
            text += content[:-1] + " "
            continue
        text += content
        if text.strip():
            found.append((started, text))
        started, text = 0, ""
    if text.strip():
        found.append((started, text))
    return found


def expand_hostlist(text: str, count_max: int) -> list[str]:
    """
    Return the names in a Slurm hostlist, such as ``tux[0-2,12],login1`` or ``rack[0-3]node[00-15]``.

    Raises:
        ValueError: brackets or ranges are wrong, or it names more than *count_max*; the message says which.
    """
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text):
        parts: list[list[str]] = []
        size = 1
        for piece in re.findall(r"\[[^\]]*\]?|[^\[]+", item):
            parts.append(_expand_ranges(piece, count_max) if piece.startswith("[") else [piece])
            size *= len(parts[-1])
            if size + len(names) > count_max:
                raise _BadListError(f"{shown(item)} takes the file over {HOSTS_MAX:,} names, the most that is read")
        names.extend("".join(choice) for choice in itertools.product(*parts))
    return names


def _expand_ranges(piece: str, count_max: int) -> list[str]:
    if not piece.endswith("]") or not _RANGES.fullmatch(piece[1:-1]):
        raise _BadListError(f"{shown(piece)} is no list of numbers: expected such as [0-3,7]")
    found: list[str] = []
    for part in piece[1:-1].split(","):
        first, _, last = part.partition("-")
        count = int(last or first) - int(first) + 1
        if count < 1:
            raise _BadListError(f'the range "{part}" runs backwards')
        if count + len(found) > count_max:
            raise _BadListError(f"{shown(piece)} takes the file over {HOSTS_MAX:,} names, the most that is read")
        found.extend(f"{number:0{len(first)}}" for number in range(int(first), int(first) + count))
    return found
