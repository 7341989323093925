"""The option that gives a scenario's parameters their values, the same for every command that reads a scenario."""

from collections.abc import Sequence

import click


def _pairs(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f'"{pair}" is not NAME=VALUE, such as hold="3 s"')
        if name in found:
            raise click.BadParameter(f'"{name}" is set twice')
        found[name] = value
    return found


setting = click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_pairs,
    help="Give a parameter of the scenario this value; may be said again for others.",
)
"""Gives the command a dictionary *settings*."""
