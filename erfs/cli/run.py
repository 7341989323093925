"""`erfs run`: run a scenario, write its journal, judge it, show the figures."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from erfs.cli.interrupts import terminable
from erfs.cli.main import Exit
from erfs.cli.report import JOURNAL, WRITTEN, read_report, show_report, write_report
from erfs.cli.settings import setting
from erfs.errors import ConfigError, Problem

if TYPE_CHECKING:
    from erfs.fabric import Fabric
    from erfs_scenario.plan import Plan
    from erfs_scenario.schema import ScenarioFile


def fabric_for(file: "ScenarioFile", override: Path | None, backend: str = "sim") -> "Fabric":
    """Return the fabric of a scenario on *backend*: *override*, or its own file, or what a generator of it makes."""
    from erfs.generators import generate
    from erfs.importers.detect import load_fabric

    part = file.scenario.fabric
    if override is not None:
        return load_fabric(override).fabric
    if backend == "kernel" and part.kernel is not None:
        return generate(part.kernel.kind, part.kernel.params)
    if part.file is not None:
        return load_fabric(file.folder / part.file).fabric
    assert part.generate is not None
    return generate(part.generate.kind, part.generate.params)


@click.command(name="run")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--fabric", type=click.Path(path_type=Path), help="Run on this fabric file instead of the scenario's fabric."
)
@click.option(
    "--backend",
    type=click.Choice(["sim", "live", "kernel"]),
    default="sim",
    show_default=True,
    help="Simulated time; real processes on loopback; or real packets through network namespaces (root).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the scenario's seed.")
@setting
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Where to write; out/NAME-seedN by default."
)
@click.option("--force", is_flag=True, help="Overwrite an earlier run in that folder.")
@click.option(
    "--broker", metavar="HOST:PORT", help="Use this MQTT broker (live); by default one of our own is started."
)
@click.option(
    "--ip-version",
    type=click.Choice(["4", "6"]),
    default="4",
    show_default=True,
    help="What the probes speak (kernel).",
)
@click.option("--no-protection", is_flag=True, help="Arm nothing: every repair waits for the controller.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json instead of tables.")
def command(
    scenario: Path,
    fabric: Path | None,
    backend: str,
    seed: int | None,
    settings: dict[str, str],
    out: Path | None,
    force: bool,
    broker: str | None,
    ip_version: str,
    no_protection: bool,
    as_json: bool,
) -> int:
    """Run SCENARIO and judge it.

    Writes journal.jsonl, report.json and report.html. Exit code: 0 passed, 1 an objective was missed, 2 undecidable,
    3 aborted (Ctrl-C, too: the faults are ended and the journal kept), 4 a fault did not happen as asked, 64 bad input,
    70 the harness broke, 75 something could not be removed.

    Example: erfs run scenarios/library/single-link.yaml --seed 7
    """
    from erfs_scenario.backends import refuse_unsupported
    from erfs_scenario.plan import compile_plan
    from erfs_scenario.schema import load_scenario

    if broker is not None and backend != "live":
        raise click.UsageError("--broker is for --backend live: the others have a bus of their own")
    if ip_version == "6" and backend != "kernel":
        raise click.UsageError("--ip-version 6 is for --backend kernel: no other sends packets")
    file = load_scenario(scenario, settings)
    plan = compile_plan(
        file, fabric_for(file, fabric, backend), seed=seed, is_protecting=False if no_protection else None
    )
    refuse_unsupported(plan, backend, file)
    folder = out or Path("out") / f"{plan.name}-seed{plan.seed}"
    prepare(folder, force)
    # The journal first, the verdict from it alone; what could not be removed is appended, and changes no verdict.
    is_residue = execute(plan, backend, folder, broker, int(ip_version))
    report = read_report(folder)
    text = write_report(report, folder)
    if as_json:
        click.echo(text)
    else:
        show_report(report, folder)
    return Exit.RESIDUE if is_residue else report.verdict.exit_code


def prepare(folder: Path, force: bool, names: Sequence[str] = (JOURNAL, *WRITTEN)) -> None:
    """
    Make *folder*, free of what an earlier run or campaign wrote there.

    Args:
        folder: Where to write.
        force: Whether it may have been written to before.
        names: Files that are to be written; where the first is, something has been.

    Raises:
        ConfigError: it has been and may not, or cannot be written.
    """
    if (folder / names[0]).exists() and not force:
        message = f"there is a {names[0]} in this folder already"
        raise ConfigError(
            str(folder), [Problem(0, message, suggestion="name another with --out, or overwrite it with --force")]
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(str(folder), [Problem(0, f"cannot be written: {error.strerror or error}")]) from None


def execute(plan: "Plan", backend: str, folder: Path, broker: str | None, ip_version: int) -> bool:
    """Run *plan*, writing the journal. Returns whether something of ours could not be removed."""
    from erfs.journal import Journal
    from erfs_scenario.plan_file import PLANNED, plan_json

    last_ns = 0
    is_residue = is_measured = False
    with Journal(folder / JOURNAL) as journal, _progress(plan) as on_progress, terminable():

        def record(at_ns: int, event: str, fields: dict[str, object]) -> None:
            nonlocal last_ns, is_residue, is_measured
            last_ns = max(last_ns, at_ns)
            is_residue = is_residue or event == "cleanup_failed"
            is_measured = is_measured or event == "measurement_finished"
            journal.append(at_ns, event, **fields)

        record(0, "run_started", plan.header(backend))
        record(0, PLANNED, {"plan": plan_json(plan)})
        try:
            if backend == "sim":
                from erfs_scenario.simulation import simulate

                simulate(plan, record=record, on_progress=on_progress)
                if plan.baselines:
                    from erfs_scenario.baselines import run_baselines

                    run_baselines(plan, record)
            elif backend == "kernel":
                from erfs.cli.lab import lab_registry, teller
                from erfs_scenario.kernel.run import run_kernel

                run_kernel(
                    plan,
                    record=record,
                    on_progress=on_progress,
                    out=folder,
                    registry=lab_registry(),
                    ip_version=ip_version,
                    tell=teller(),
                )
            else:
                from erfs_scenario.live import run_live

                run_live(plan, record=record, on_progress=on_progress, out=folder, broker=broker)
        except KeyboardInterrupt:
            record(last_ns, "run_aborted", {"reason": "interrupted"})
        except Exception as error:
            # What was measured stands, whatever goes wrong with taking things down: the verdict is not lost with it.
            if backend == "sim" or not is_measured:
                raise
            record(last_ns, "cleanup_failed", {"what": f"{type(error).__name__}: {error}"})
        else:
            record(max(last_ns, plan.duration_ns), "run_finished", {})
    return is_residue


@contextmanager
def _progress(plan: "Plan") -> Iterator[Callable[[int], None]]:
    """Yield what to call with the instant reached: a bar on a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _now_ns: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(plan.name), BarColumn(), TextColumn("{task.fields[reached]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=plan.duration_ns, reached="")

        def reached(now_ns: int) -> None:
            seconds = f"{now_ns / 1e9:.1f} of {plan.duration_ns / 1e9:.1f} s"
            bar.update(task, completed=now_ns, reached=seconds)

        yield reached
