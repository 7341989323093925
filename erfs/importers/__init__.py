"""Fabric files of many formats, chosen by content, to `Fabric`."""

from erfs.importers.building import Imported
from erfs.importers.detect import load_fabric

__all__ = ["Imported", "load_fabric"]
