"""`erfs sweep`: what would break if any one link, switch or risk group failed, or any two?

Rule 1: nothing is decided here: `erfs.paths.what_if` judges, `sweep_report` and `sweep_page` show; this file reads options and spreads the work.
Rule 2: the work falls into the same pieces whoever does it, so the output is the same bytes for any number of workers.
"""

import json
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from erfs.cli.workers import progress, workers_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from erfs.cli.sweep_report import Pairs
    from erfs.paths.what_if import Outcome, Sweep
    from erfs.paths.what_if_impact import Failures, Impact
    from erfs.paths.what_if_state import Ground

    Work = tuple[Ground, Failures]
    Piece = tuple[int, int]
    Answerer = Callable[[Work, list[Piece]], Iterator[Impact]]


def _kinds(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    from erfs.paths.what_if import KINDS

    asked = [kind.strip() for kind in value.split(",")]
    for kind in asked:
        if kind not in KINDS:
            raise click.BadParameter(f'"{kind}" is no kind of failure: expected some of {",".join(KINDS)}')
    return tuple(kind for kind in KINDS if kind in asked)


@click.command("sweep")
@click.argument("fabric", type=click.Path(path_type=Path))
@click.option(
    "--failures", "at_once", type=click.IntRange(1, 2), default=1, show_default=True, help="How many at once."
)
@click.option("--kinds", callback=_kinds, default="link,node,srlg", show_default=True, help="What can fail.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    help="With --failures 2: draw so many pairs. [default: all pairs up to 100,000, else 10,000 of them]",
)
@click.option("--seed", type=click.IntRange(min=0), help="What the drawing of pairs starts from. [default: 1]")
@click.option("--valleys", "are_valleys_allowed", is_flag=True, help="Allow valleys even where policy forbids them.")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a heat map, one self-contained page."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Worker processes. [default: the usable cores, if it pays]")
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Let a running Dask scheduler's workers do it.")
@click.option("--lenient", "is_lenient", is_flag=True, help="Keep what is sound of a damaged file.")
def command(
    fabric: Path,
    at_once: int,
    kinds: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    are_valleys_allowed: bool,
    is_json: bool,
    html: Path | None,
    jobs: int | None,
    scheduler: str | None,
    is_lenient: bool,
) -> None:
    """Let every link, switch and risk group of FABRIC fail, one after the other or two at once, and tell what breaks.

    For each failure: the demands that are cut, those that only policy cuts, what repairs the rest, and the capacity that is left.
    Single points of failure come first. FABRIC is any file `erfs fabric show` reads.

    Example: erfs sweep ibnetdiscover.txt.gz --html sweep.html
    """
    from erfs.cli.interrupts import terminable
    from erfs.cli.sweep_report import Report
    from erfs.importers import load_fabric
    from erfs.paths.what_if import Sweep

    if at_once == 1 and (sample is not None or seed is not None):
        raise click.UsageError("--sample and --seed draw pairs: they need --failures 2")
    imported = load_fabric(fabric, is_lenient=is_lenient)
    for problem in imported.problems:
        click.echo(f"erfs: {problem.describe(str(fabric))}", err=True)
    with terminable(), workers_for(jobs, scheduler) as found:
        _check_writable(html)
        workers = partial(found, _answer)
        sweep = Sweep(imported.fabric, kinds, are_valleys_allowed=are_valleys_allowed)
        impact = _answered(sweep, sweep.failures, workers, "single failures")
        outcomes = sweep.outcomes(impact)
        pairs = _pairs(sweep, outcomes, sample, 1 if seed is None else seed, workers) if at_once == 2 else None
    report = Report(
        fabric=imported.fabric.name,
        switches=len(imported.fabric.switches),
        endpoints=len(imported.fabric.endpoints),
        links=len(imported.fabric.links),
        demands=sweep.demand_count(impact),
        kinds=kinds,
        is_valley_free=sweep.is_valley_free,
        is_policy_lifted=sweep.topology.is_valley_free and are_valleys_allowed,
        outcomes=tuple(outcomes),
        pairs=pairs,
    )
    if html is not None:
        from erfs.cli.sweep_page import page_of

        html.write_text(page_of(report), encoding="utf-8", newline="\n")
    if is_json:
        click.echo(json.dumps(report.as_json(), indent=1, sort_keys=True, ensure_ascii=False))
        return
    from rich.console import Console

    # Away from a terminal there is no width to ask for; 118 holds every table without folding.
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 118)
    for number, part in enumerate(report.parts()):
        if number and not (isinstance(part, str) and part.startswith("  ")):
            console.print()
        console.print(part, soft_wrap=isinstance(part, str))
    if html is not None:
        console.print(f"\nheat map: {html}", soft_wrap=True)


def _check_writable(html: Path | None) -> None:
    """Complain before the work, not after it."""
    if html is None:
        return
    try:
        html.open("a", encoding="utf-8").close()
    except OSError as error:
        raise click.UsageError(f'"{html}" cannot be written: {(error.strerror or str(error)).lower()}') from None


def _pairs(sweep: "Sweep", outcomes: "list[Outcome]", sample: int | None, seed: int, workers: "Answerer") -> "Pairs":
    import numpy as np

    from erfs.cli.sweep_report import Pair, Pairs
    from erfs.paths.what_if_pairs import chosen_pairs, pair_count

    elements = sweep.elements
    chosen, is_all = chosen_pairs(len(elements), sample, Random(seed).sample)  # noqa: S311 -- repeatable on purpose
    one, other = np.array(chosen, dtype=np.int64).reshape(-1, 2).T
    failures = sweep.together(one, other)
    impact = _answered(sweep, failures, workers, "pairs of failures")
    cuts_alone = {
        (outcome.failure.kind, outcome.failure.id): bool(outcome.cut + outcome.cut_by_policy) for outcome in outcomes
    }
    alone = [cuts_alone[failure.kind, failure.id] for failure in elements]
    columns = (sweep.detached(failures, impact), impact.cut, impact.cut_by_policy)
    rows = zip(chosen, *(column.tolist() for column in columns), sweep.bisection(failures), strict=True)
    examined = tuple(
        Pair(
            elements[first],
            elements[second],
            detached,
            cut,
            by_policy,
            bisection,
            is_new=bool(cut + by_policy) and not (alone[first] or alone[second]),
        )
        for (first, second), detached, cut, by_policy, bisection in rows
    )
    return Pairs(len(elements), pair_count(len(elements)), is_all, seed, examined)


# --- who works ---------------------------------------------------------------------------------------------------------


def _answered(sweep: "Sweep", failures: "Failures", workers: "Answerer", what: str) -> "Impact":
    """Return the whole answer, with a bar on a terminal."""
    from erfs.paths.what_if import merged, pieces

    todo = pieces(sweep.ground)
    with progress(what, len(todo)) as advance:
        parts = []
        for part in workers((sweep.ground, failures), todo):
            parts.append(part)
            advance()
    return merged(failures, parts)


def _answer(work: "Work", piece: "Piece") -> "Impact":
    from erfs.paths.what_if import answer

    return answer(*work, piece)
