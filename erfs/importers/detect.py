"""Which format is a file in? Decided by its content, never by its name.

Rule 1: one importer reads a file; none is tried and given up.
Rule 2: only ConfigError leaves this module, whatever the bytes.
"""

import re
from pathlib import Path
from typing import Final

from erfs.errors import ConfigError, Problem
from erfs.importers import ibnetdiscover, ibnetdiscover_ports, slurm
from erfs.importers.building import Imported, shown
from erfs.importers.reading import Source, read_source

FORMATS: Final = (
    "ibnetdiscover (plain or -p), NetQ JSON, containerlab YAML, GraphML, node-link JSON or Slurm topology.conf"
)

_CONTAINERLAB: Final = re.compile(r"^topology[ \t]*:", re.MULTILINE)
# What comes from the same tools and is no fabric file, with what to do instead.
_NO_FABRIC: Final = (
    (re.compile(r"^(?:CA|Switch|Router):? .{1,200}:\n {1,20}.{0,100}==\(", re.MULTILINE), "iblinkinfo output"),
    (re.compile(r"^0x[0-9a-f]{16} .{0,200}==\(.{0,100}\)==>", re.MULTILINE), "iblinkinfo output"),
    (re.compile(r"^Unicast lids \[", re.MULTILINE), "a forwarding table dump (dump_lfts)"),
    (re.compile(r"^dump_ucast_routes: Switch 0x", re.MULTILINE), "an OpenSM forwarding table"),
    (
        re.compile(r"^(?:Switch|Ca|Router)\t : 0x[0-9a-f]{16} ports ", re.MULTILINE),
        "a list of nodes (ibnetdiscover -l)",
    ),
    (re.compile(r"^Errors for (?:0x)?[0-9a-f]{1,16} \"", re.MULTILINE), "ibqueryerrors output"),
    (re.compile(r"^# Port (?:extended )?counters: ", re.MULTILINE), "perfquery output"),
)
# How far into a file these are looked for: far enough for the first block of each.
_HEAD: Final = 8192


def load_fabric(path: Path, *, is_lenient: bool = False) -> Imported:
    """
    Return the fabric in the file *path*: ibnetdiscover (plain or -p), NetQ, containerlab, GraphML, node-link JSON or Slurm.

    Args:
        is_lenient: Keep what is sound of a damaged file, and return its problems instead of raising them.

    Raises:
        ConfigError: the file cannot be read, is in no known format, or has problems; all of them, with their lines.

    Cost: O(bytes).
    """
    return read_fabric(read_source(path), is_lenient=is_lenient)


def read_fabric(source: Source, *, is_lenient: bool = False) -> Imported:
    """Return the fabric in *source*, as `load_fabric` does."""
    imported = _read(source)
    if imported.problems and not is_lenient:
        raise ConfigError(source.name, imported.problems)
    if not imported.fabric.nodes:
        problems = imported.problems or (Problem(0, f"is {imported.format}, but holds no nodes"),)
        raise ConfigError(source.name, problems)
    return imported


def _read(source: Source) -> Imported:
    text = source.text
    if ibnetdiscover.SIGN.search(text):
        return ibnetdiscover.read(source)
    if ibnetdiscover_ports.SIGN.search(text):
        return ibnetdiscover_ports.read(source)
    for pattern, meaning in _NO_FABRIC:
        if pattern.search(text, 0, _HEAD):
            raise _refusal(source, f"is {meaning}, which shows no whole fabric: give the output of ibnetdiscover")
    # The structured formats' libraries are loaded only when one is met.
    start = text.lstrip()[:1]
    if start == "<":
        return _read_xml(source)
    if start in ("{", "["):
        return _read_json(source)
    if slurm.SIGN.search(text):
        return slurm.read(source)
    if _CONTAINERLAB.search(text):
        return _read_yaml(source)
    if source.damaged:
        line, reason = min(source.damaged.items())
        more = f" (one of {len(source.damaged):,} such lines)" if len(source.damaged) > 1 else ""
        raise ConfigError(
            source.name, [Problem(line, f"is no text: this line {reason}{more}", 0, f"expected {FORMATS}")]
        )
    number, line_text = next((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
    raise ConfigError(
        source.name,
        [
            Problem(
                number, f"is in no known fabric format, it begins {shown(line_text.strip())}", 0, f"expected {FORMATS}"
            )
        ],
    )


def _read_xml(source: Source) -> Imported:
    from erfs.importers import graphml

    seen = graphml.outline(source)
    if seen.root == "graphml":
        return graphml.read(source, seen)
    if seen.root == "system" and seen.elements & {"cpu", "pci"}:
        raise _refusal(
            source,
            "is an NCCL topology file: the inside of one host (PCI tree, GPUs, NICs), no fabric; give it to NCCL as NCCL_TOPO_FILE, "
            "and give here what joins the hosts, such as the output of ibnetdiscover",
        )
    raise _refusal(source, f"is XML with the root element {shown(seen.root)}, no fabric: of XML, GraphML is read")


def _read_json(source: Source) -> Imported:
    from erfs.importers import containerlab, netq, node_link
    from erfs.importers.documents import JsonDocument

    document = JsonDocument.parse(source)
    data = document.data
    if netq.is_netq(data):
        return netq.read(document)
    if node_link.is_node_link(data):
        return node_link.read(document)
    if isinstance(data, dict) and isinstance(data.get("topology"), dict):
        return containerlab.read(document)  # containerlab takes JSON too, being YAML
    has = (
        f"the members {', '.join(map(shown, list(data)[:6]))}" if isinstance(data, dict) else f"a {type(data).__name__}"
    )
    raise _refusal(
        source, f"is JSON with {has}, no fabric: expected NetQ's topology graph or node-link JSON (nodes, links)"
    )


def _read_yaml(source: Source) -> Imported:
    from erfs.importers import containerlab
    from erfs.importers.documents import YamlDocument

    document = YamlDocument.parse(source)
    if isinstance(document.data, dict) and isinstance(document.data.get("topology"), dict):
        return containerlab.read(document)
    raise _refusal(
        source, 'is YAML, but not a containerlab topology: expected a mapping "topology" with "nodes" and "links"'
    )


def _refusal(source: Source, message: str) -> ConfigError:
    return ConfigError(source.name, [Problem(0, message)])
