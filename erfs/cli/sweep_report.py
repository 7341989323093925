"""What `erfs sweep` says: the findings sorted for a reader, as JSON and as tables.

Rule 1: the JSON depends on the fabric and the options alone: no times, no machine, no number of workers.
Rule 2: single points of failure come first; what is only an endpoint's own attachment never drowns them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from erfs.paths.what_if import (
    BY_NOTHING,
    BY_REMOVAL,
    BY_RESTORATION,
    CAPACITY,
    Failure,
    Outcome,
)
from erfs.paths.what_if_cuts import DEFINITION as BISECTION
from erfs.paths.what_if_pairs import clopper_pearson
from erfs.units import PPM

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# Rows of a table on a terminal; --json has them all.
ROWS_MAX: Final = 10
# Pairs listed in the JSON: the worst ones.
PAIRS_MAX: Final = 200

DEFINITIONS: Final = {
    "demand": "an ordered pair of endpoints that the fabric as built connects",
    "cut": "no path is left, although both endpoints are still attached",
    "cut by policy": "the only paths left are valleys, which policy forbids",
    "detached": "an end of the demand lost all its attachments",
    "waiting": "a permitted path is left which no removal of next hops brings about: only restoration finds it",
    "repaired by removal": (
        "every demand still has a shortest path without what failed: taking next hops away repairs it, loop-free in any order,"
        " and an endpoint with several attachments turns to another; a change that can be armed beforehand"
    ),
    "capacity retained": CAPACITY.removeprefix("capacity retained: "),
    "bisection retained": BISECTION.removeprefix("bisection retained: "),
    "single point of failure": "one failure that cuts demands between endpoints that are both still attached",
}


@dataclass(frozen=True)
class Pair:
    """Two failures at once. *is_new* says whether it cuts where neither of the two does."""

    one: Failure
    other: Failure
    detached: int
    cut: int
    cut_by_policy: int
    bisection_ppm: int
    is_new: bool

    @property
    def badness(self) -> tuple[int, int, int, int]:
        """What to sort by, the worst first when ascending."""
        return -self.cut, -self.cut_by_policy, -self.detached, self.bisection_ppm


@dataclass(frozen=True)
class Pairs:
    """The pairs looked at. *total* pairs there are; *examined* holds them in the order of their numbers."""

    elements: int
    total: int
    is_all: bool
    seed: int
    examined: tuple[Pair, ...]

    def share(self, is_hit: Callable[[Pair], bool]) -> dict[str, Any]:
        """Return how many of the pairs are hit, as a share with its interval."""
        hits = sum(map(is_hit, self.examined))
        count = len(self.examined)
        low_high = None if self.is_all or not count else list(clopper_pearson(hits, count))
        return {"pairs": hits, "share": round(hits / count, 6) if count else 0.0, "interval_95": low_high}

    @cached_property
    def shares(self) -> dict[str, dict[str, Any]]:
        """The shares that are told, by name."""
        return {
            "cut or detach any demand": self.share(lambda pair: bool(pair.cut + pair.cut_by_policy + pair.detached)),
            "cut demands of attached endpoints": self.share(lambda pair: bool(pair.cut + pair.cut_by_policy)),
            "cut them where neither alone does": self.share(lambda pair: pair.is_new),
        }

    @cached_property
    def worst(self) -> list[Pair]:
        """Those that cut demands of attached endpoints: new ones first, then the worst."""
        cutting = [pair for pair in self.examined if pair.cut + pair.cut_by_policy]
        return sorted(cutting, key=lambda pair: (not pair.is_new, *pair.badness, pair.one.id, pair.other.id))


@dataclass(frozen=True)
class Report:
    """Everything a sweep found. *outcomes* in canonical order."""

    fabric: str
    switches: int
    endpoints: int
    links: int
    demands: int
    kinds: tuple[str, ...]
    is_valley_free: bool
    is_policy_lifted: bool
    outcomes: tuple[Outcome, ...]
    pairs: Pairs | None

    @cached_property
    def worst_first(self) -> list[Outcome]:
        """All outcomes, the worst first."""
        return sorted(self.outcomes, key=lambda outcome: (*outcome.badness, outcome.failure.kind, outcome.failure.id))

    @cached_property
    def single_points(self) -> list[Outcome]:
        """What cuts demands of attached endpoints, whatever the policy."""
        return [outcome for outcome in self.worst_first if outcome.cut]

    @cached_property
    def by_policy(self) -> list[Outcome]:
        """What cuts demands only because valleys are forbidden."""
        return [outcome for outcome in self.worst_first if outcome.cut_by_policy and not outcome.cut]

    @cached_property
    def single_homed(self) -> list[Outcome]:
        """What cuts nothing but the demands of endpoints it detaches."""
        return [outcome for outcome in self.worst_first if outcome.lost and outcome.lost == outcome.detached]

    @cached_property
    def restored(self) -> list[Outcome]:
        """What only restoration repairs."""
        return [outcome for outcome in self.worst_first if outcome.repaired_by == BY_RESTORATION]

    @cached_property
    def narrowed(self) -> list[Outcome]:
        """What is repaired but costs capacity, the most first."""
        kept = [outcome for outcome in self.outcomes if not outcome.lost and outcome.retained_ppm < PPM]
        return sorted(kept, key=lambda outcome: (outcome.retained_ppm, outcome.bisection_ppm, outcome.failure.id))

    def as_json(self) -> dict[str, Any]:
        """Return this as JSON types."""
        data: dict[str, Any] = {
            "fabric": {
                "name": self.fabric,
                "switches": self.switches,
                "endpoints": self.endpoints,
                "links": self.links,
                "demands": self.demands,
            },
            "kinds": list(self.kinds),
            "policy": self.policy,
            "definitions": DEFINITIONS,
            "summary": self.summary(),
            "single_points_of_failure": _ids(self.single_points),
            "added_by_policy": _ids(self.by_policy),
            "single_homed_endpoints": _ids(self.single_homed),
            "outcomes": [_outcome(outcome) for outcome in self.worst_first],
        }
        if self.pairs is not None:
            pairs = self.pairs
            data["pairs"] = {
                "elements": pairs.elements,
                "total": pairs.total,
                "examined": len(pairs.examined),
                "is_exhaustive": pairs.is_all,
                "seed": None if pairs.is_all else pairs.seed,
                "shares": pairs.shares,
                "cutting": len(pairs.worst),
                "worst": [_pair(pair) for pair in pairs.worst[:PAIRS_MAX]],
            }
        return data

    @property
    def policy(self) -> str:
        """What paths were allowed."""
        if self.is_valley_free:
            return "valley-free"
        return "any path, valleys too" if self.is_policy_lifted else "any path"

    def summary(self) -> list[dict[str, Any]]:
        """Return, for each sort of failure, what it does at most and how many do what."""
        by_sort: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            by_sort.setdefault((outcome.failure.kind, outcome.failure.sort), []).append(outcome)
        return [
            {
                "kind": kind,
                "sort": sort,
                "failures": len(found),
                "single_points": sum(outcome.cut > 0 for outcome in found),
                "by_policy": sum(outcome.cut_by_policy > 0 and not outcome.cut for outcome in found),
                "single_homed": sum(0 < outcome.lost == outcome.detached for outcome in found),
            }
            | {
                repair: sum(outcome.repaired_by == repair for outcome in found)
                for repair in (BY_REMOVAL, BY_RESTORATION, BY_NOTHING)
            }
            | {
                "least_retained_ppm": min(outcome.retained_ppm for outcome in found),
                "least_bisection_ppm": min(outcome.bisection_ppm for outcome in found),
            }
            for (kind, sort), found in sorted(by_sort.items())
        ]

    # --- tables ----------------------------------------------------------------------------------------------------
    def parts(self) -> "Iterable[RenderableType]":
        """Yield what to print on a terminal."""
        yield (
            f"{self.fabric}: {self.switches:,} switches, {self.endpoints:,} endpoints, {self.links:,} links;"
            f" {self.demands:,} demands, {self.policy}"
        )
        yield self._summary_table()
        yield from self._list(
            "single points of failure: demands between attached endpoints are cut", self.single_points, _cut_columns
        )
        yield from self._list("cut by the valley-free policy alone", self.by_policy, _cut_columns)
        yield from self._list("only restoration repairs", self.restored, _wait_columns)
        yield from self._narrowed_table()
        yield from self._single_homed_lines()
        if self.pairs is not None:
            yield from self._pair_parts(self.pairs)
        yield "capacity: the least that a connected (switch, class) keeps of its own; bisection: of the narrowest fixed cut (--json defines all)"

    def _summary_table(self) -> "Table":
        names = ("failures", "cut", "by policy", "own endpoint", "restoration", "removal", "capacity", "bisection")
        table = _table("every single failure, by what it does at worst", ("failure", *names), names)
        for row in self.summary():
            counts = (row[key] for key in ("failures", "single_points", "by_policy", "single_homed"))
            repairs = (row[BY_RESTORATION], row[BY_REMOVAL])
            sort = row["sort"] if row["kind"] != "srlg" else f"group {row['sort']}"
            table.add_row(
                sort,
                *(f"{count:,}" for count in (*counts, *repairs)),
                percent(row["least_retained_ppm"]),
                percent(row["least_bisection_ppm"]),
            )
        return table

    def _list(
        self, title: str, found: Sequence[Outcome], columns: "Callable[[Outcome], dict[str, str]]"
    ) -> "Iterable[RenderableType]":
        if not found:
            return
        names = tuple(columns(found[0]))
        table = _table(f"{title} ({len(found):,})", ("failure", "what", *names), names)
        for outcome in found[:ROWS_MAX]:
            table.add_row(outcome.failure.sort, outcome.failure.name, *columns(outcome).values())
        yield table
        yield from _more(len(found))

    def _narrowed_table(self) -> "Iterable[RenderableType]":
        """Yield one row for all failures of a sort that cost the same."""
        alike: dict[tuple[int, str, str], list[Outcome]] = {}
        for outcome in self.narrowed:
            key = (outcome.retained_ppm, outcome.failure.sort, outcome.repaired_by)
            alike.setdefault(key, []).append(outcome)
        if not alike:
            return
        names = ("failures", "capacity", "bisection")
        title = f"repaired, at the price of capacity ({len(self.narrowed):,})"
        table = _table(title, ("failure", "such as", "repaired by", *names), names)
        for (retained, sort, repair), found in list(alike.items())[:ROWS_MAX]:
            bisection = percent(found[0].bisection_ppm)
            table.add_row(sort, found[0].failure.name, repair, f"{len(found):,}", percent(retained), bisection)
        yield table
        yield from _more(len(alike))

    def _single_homed_lines(self) -> Iterable[str]:
        by_sort = Counter(outcome.failure.sort for outcome in self.single_homed)
        most = {
            sort: max(outcome.detached for outcome in self.single_homed if outcome.failure.sort == sort)
            for sort in by_sort
        }
        if by_sort:
            yield f"single-homed endpoints: failures that cut nothing but their own endpoints ({len(self.single_homed):,})"
        for sort, count in sorted(by_sort.items()):
            yield f"  {sort}: {count:,}, each up to {most[sort]:,} of {self.demands:,} demands"

    def _pair_parts(self, pairs: Pairs) -> "Iterable[RenderableType]":
        scope = f"all {pairs.total:,} pairs"
        if not pairs.is_all:
            scope = f"{len(pairs.examined):,} of {pairs.total:,} pairs, drawn with seed {pairs.seed}"
        yield f"two failures at once: {scope}; of {pairs.elements:,} trunks, switches and groups"
        table = _table("", ("pairs that", "pairs", "share", "95 % interval"), ("pairs", "share", "95 % interval"))
        for name, found in pairs.shares.items():
            interval = found["interval_95"]
            shown = "exact: all pairs" if interval is None else " to ".join(f"{bound:.4%}" for bound in interval)
            table.add_row(name, f"{found['pairs']:,}", f"{found['share']:.4%}", shown)
        yield table
        new = [pair for pair in pairs.worst if pair.is_new]
        if new:
            names = ("cut", "by policy", "detached", "bisection")
            title = f"pairs that cut demands of attached endpoints where neither alone does ({len(new):,})"
            table = _table(title, ("one", "other", *names), names)
            for pair in new[:ROWS_MAX]:
                demands = (pair.cut, pair.cut_by_policy, pair.detached)
                table.add_row(
                    pair.one.name, pair.other.name, *(f"{count:,}" for count in demands), percent(pair.bisection_ppm)
                )
            yield table
            yield from _more(len(new), "the worst of" if len(pairs.worst) > PAIRS_MAX else "all of")


def percent(ppm: int) -> str:
    """Return *ppm* as a percentage that never rounds a loss away."""
    if ppm == PPM:
        return "100 %"
    return f"{min(ppm / 10_000, 99.99):.4g} %"


def _more(count: int, which: str = "all of") -> Iterable[str]:
    if count > ROWS_MAX:
        yield f"  ... and {count - ROWS_MAX:,} more, --json lists {which} them"


def _cut_columns(outcome: Outcome) -> dict[str, str]:
    return {
        "cut": f"{outcome.cut:,}",
        "by policy": f"{outcome.cut_by_policy:,}",
        "detached": f"{outcome.detached:,}",
        "capacity": percent(outcome.retained_ppm),
        "bisection": percent(outcome.bisection_ppm),
    }


def _wait_columns(outcome: Outcome) -> dict[str, str]:
    return {
        "demands waiting": f"{outcome.waiting:,}",
        "capacity": percent(outcome.retained_ppm),
        "bisection": percent(outcome.bisection_ppm),
    }


def _table(title: str, columns: Sequence[str], numbers: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(
            column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=column in numbers
        )
    return table


def _ids(outcomes: Iterable[Outcome]) -> list[str]:
    return [outcome.failure.id for outcome in outcomes]


def _failure(failure: Failure) -> dict[str, str]:
    return {"kind": failure.kind, "id": failure.id, "name": failure.name, "sort": failure.sort}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return _failure(outcome.failure) | {
        "demands_cut": outcome.cut,
        "demands_cut_by_policy": outcome.cut_by_policy,
        "demands_detached": outcome.detached,
        "demands_waiting": outcome.waiting,
        "capacity_retained_ppm": outcome.retained_ppm,
        "bisection_retained_ppm": outcome.bisection_ppm,
        "repaired_by": outcome.repaired_by,
        "reasons": list(outcome.reasons),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "one": _failure(pair.one),
        "other": _failure(pair.other),
        "demands_cut": pair.cut,
        "demands_cut_by_policy": pair.cut_by_policy,
        "demands_detached": pair.detached,
        "bisection_retained_ppm": pair.bisection_ppm,
        "is_new": pair.is_new,
    }
