"""Fabric files of many formats, chosen by content, to `Fabric`."""
