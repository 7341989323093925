"""`erfs check`: is a scenario file right? All its errors at once, without running anything."""

from pathlib import Path

import click

from erfs.cli.main import Exit
from erfs.cli.settings import setting
from erfs.errors import ConfigError


@click.command(name="check")
@click.argument("scenarios", nargs=-1, type=click.Path(path_type=Path))
@click.option("--fabric", type=click.Path(path_type=Path), help="Check names and selectors against this fabric file.")
@click.option(
    "--backend",
    type=click.Choice(["sim", "live", "kernel"]),
    help="Check that it can do the faults, too, on the fabric that the scenario names for it.",
)
@setting
@click.option(
    "--schema",
    is_flag=False,
    flag_value="scenario",
    type=click.Choice(["scenario", "report", "campaign"]),
    help="Print the JSON Schema of scenario files, of report.json or of campaign.json, and stop.",
)
def command(
    scenarios: tuple[Path, ...], fabric: Path | None, backend: str | None, settings: dict[str, str], schema: str | None
) -> int:
    """Check SCENARIOS: every error with its line, its column and what to do.

    Names and selectors are checked too, against --fabric or the scenario's own fabric.

    Example: erfs check scenarios/library/*.yaml
    """
    if schema is not None:
        from erfs_scenario.schema_files import text_of

        click.echo(text_of(schema), nl=False)
        return Exit.PASSED
    if not scenarios:
        raise click.UsageError("no scenario to check, such as scenarios/library/single-link.yaml")
    from erfs.cli.run import fabric_for
    from erfs_scenario.backends import refuse_unsupported
    from erfs_scenario.plan import compile_plan
    from erfs_scenario.schema import load_scenario

    code = Exit.PASSED
    for path in scenarios:
        try:
            file = load_scenario(path, settings)
            plan = compile_plan(file, fabric_for(file, fabric, backend or "sim"))
            if backend is not None:
                refuse_unsupported(plan, backend, file)
        except ConfigError as error:
            click.echo(str(error), err=True)
            code = Exit.USAGE
        else:
            click.echo(f"{path}: right")
    return code
