"""What do the trials say? Medians, percentiles and maxima per system and fault, ratios against the targets, a table, a chart.

Rule 1: everything is computed from the written lines, so that a report of an interrupted run is a report.
Rule 2: a trial in which a flow never recovered is larger than every other; it is counted, and no mean can hide it.
Rule 3: a 95th percentile needs 59 trials (RFC-free arithmetic: 0.95 to the 59th is below 0.05); with fewer there is none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.recovery_trials import FAULTS, FIRST_OF_TWO, ISOLATED, LINK_DOWN, ONE_WAY, SECOND_FAILURE, SILENT
from benchmarks.timing import fail, markdown_table, read_lines_of_json

KERNEL_ONLY: Final = "kernel only"
FRR: Final = ("FRR default", "FRR tuned")
ERFS: Final = "ERFS"
ERFS_FAST: Final = "ERFS fast"
SYSTEMS: Final = (KERNEL_ONLY, *FRR, ERFS, ERFS_FAST)
P95_TRIALS: Final = 59
ROWS: Final = (*FAULTS[:-1], FIRST_OF_TWO, SECOND_FAILURE)
DEFINITION: Final = (
    "Recovery of a trial: from the fault's effect (the last tick at which the datagrams of all affected flows still got through, not"
    " before the call that broke it began) until the last affected flow of that side got through for good, in ms; the probe's interval"
    " is 1 ms. Far-end flows: the node in front of the fault has no other way for them. Censored: trials in which a flow did not"
    " recover within the window; they count as larger than all others. Disturbed: trials made again because flows lost something, or"
    " had gone elsewhere, before the fault."
)


@dataclass(frozen=True, slots=True)
class Target:
    """
    A ratio that is to be reached.

    Args:
        fault, share: Of which fault, "median" or "p95".
        system: Whose figure.
        against: Whose figure it is divided by: the better FRR, or ERFS's own first of two.
        at_most: The ratio.
    """

    fault: str
    share: str
    system: str
    against: str
    at_most: float


BETTER_FRR: Final = "better FRR"
OWN_FIRST: Final = "own first of two"
TARGETS: Final = (
    Target(LINK_DOWN, "median", ERFS, BETTER_FRR, 0.3),
    Target(LINK_DOWN, "p95", ERFS, BETTER_FRR, 0.5),
    Target(SILENT, "median", ERFS, BETTER_FRR, 0.85),
    Target(SILENT, "median", ERFS_FAST, BETTER_FRR, 0.5),
    Target(ONE_WAY, "median", ERFS, BETTER_FRR, 0.85),
    Target(ONE_WAY, "median", ERFS_FAST, BETTER_FRR, 0.5),
    Target(ISOLATED, "median", ERFS, BETTER_FRR, 0.8),
    Target(SECOND_FAILURE, "median", ERFS, OWN_FIRST, 1.3),
)


@dataclass(slots=True)
class Lines:
    """What a file of results holds."""

    header: dict[str, Any] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: liveness and cost, the last that was said."""
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    disturbances: list[dict[str, Any]] = field(default_factory=list)
    """Trials made again, because the system moved before the fault, as by a session that failed for nothing."""
    troubles: list[dict[str, Any]] = field(default_factory=list)
    """Trials made again with the system started anew."""

    @property
    def done(self) -> set[tuple[str, str, int]]:
        """The trials that need not be run again."""
        return {(line["system"], line["fault"], line["index"]) for line in self.outcomes}


def read_lines(path: Path) -> Lines:
    """Return what is in a file of results; half a line at its end, from an interruption, is left out."""
    found = Lines()
    for line in read_lines_of_json(path):
        match line.pop("kind"):
            case "header":
                found.header = line
            case "system":
                found.systems[line.pop("system")] = line
            case "outcome":
                found.outcomes.append(line)
            case "disturbance":
                found.disturbances.append(line)
            case "trouble":
                found.troubles.append(line)
            case other:
                fail(f'{path}: a line of kind "{other}"')
    return found


@dataclass(frozen=True, slots=True)
class Figures:
    """
    One system, one fault, one side.

    Args:
        trials: With at least one flow of that side.
        median_ms, p95_ms, max_ms: Of the recoveries; infinite where the trial in question is censored; p95 None below 59 trials.
        flow_median_ms: The median over trials of the median over flows of their outage.
        censored, censored_flows: Trials, and flows in all of them, that did not recover.
        several: Flows that saw several gaps.
        window_ms: How long was looked at least.
    """

    trials: int
    median_ms: float
    p95_ms: float | None
    max_ms: float
    flow_median_ms: float
    censored: int
    censored_flows: int
    several: int
    window_ms: float


def figures_of(outcomes: Iterable[Mapping[str, Any]], side: str) -> Figures | None:
    """Return the figures of the trials of one system and fault; None without any flow of that side."""
    chosen = [line for line in outcomes if line[side] is not None]
    if not chosen:
        return None
    recoveries = sorted(math.inf if line[side]["last_ms"] is None else line[side]["last_ms"] for line in chosen)
    return Figures(
        trials=len(chosen),
        median_ms=quantile(recoveries, 0.5),
        p95_ms=quantile(recoveries, 0.95) if len(chosen) >= P95_TRIALS else None,
        max_ms=recoveries[-1],
        flow_median_ms=quantile(sorted(line[side]["median_ms"] for line in chosen), 0.5),
        censored=sum(line[side]["last_ms"] is None for line in chosen),
        censored_flows=sum(line[side]["censored"] for line in chosen),
        several=sum(line[side]["several"] for line in chosen),
        window_ms=min(line["window_ms"] for line in chosen),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least *share* of *ordered* do not exceed; of the median's two middle ones the mean."""
    place = share * len(ordered)
    if share == 0.5 and len(ordered) % 2 == 0 and math.isfinite(ordered[len(ordered) // 2]):
        return (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2
    return ordered[max(0, math.ceil(place) - 1)] if share != 0.5 else ordered[len(ordered) // 2]


def summary(lines: Lines) -> dict[str, Any]:
    """Return everything that is told, as plain values."""
    by_key: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines.outcomes:
        by_key.setdefault((line["system"], line["fault"]), []).append(line)
    far = {key: found for key, part in by_key.items() if (found := figures_of(part, "far")) is not None}
    near = {key: found for key, part in by_key.items() if (found := figures_of(part, "near")) is not None}
    rows = []
    for fault in ROWS:
        for system in SYSTEMS:
            part = by_key.get((system, fault))
            if part is None:
                continue
            rows.append(
                {
                    "fault": fault,
                    "system": system,
                    "trials": len(part),
                    "far": _plain(far.get((system, fault))),
                    "near": _plain(near.get((system, fault))),
                    "flows_min": min((line["far"] or {"flows": 0})["flows"] for line in part),
                    "beside_lost": sum(line["beside_lost"] for line in part),
                    "disturbed": sum((line["system"], line["fault"]) == (system, fault) for line in lines.disturbances),
                    "prober_late_p99_ms": quantile(sorted(line["late_p99_ms"] for line in part), 0.5),
                    "prober_late_max_ms": max(line["late_max_ms"] for line in part),
                    "prober_percent": quantile(sorted(line["prober_percent"] for line in part), 0.5),
                }
            )
    return {
        "header": lines.header,
        "definition": DEFINITION,
        "systems": lines.systems,
        "rows": rows,
        "targets": [*(_judged(target, far) for target in TARGETS), *_cpu_judged(lines.systems)],
        "troubles": lines.troubles,
    }


def _plain(found: Figures | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        name: None if value == math.inf else value for name in Figures.__slots__ for value in [getattr(found, name)]
    }


def _judged(target: Target, far: Mapping[tuple[str, str], Figures]) -> dict[str, Any]:
    name = f"{target.share}_ms"

    def of(system: str, fault: str) -> float | None:
        found = far.get((system, fault))
        value = None if found is None else getattr(found, name)
        return value if value is not None and math.isfinite(value) else None

    own = of(target.system, target.fault)
    if target.against == OWN_FIRST:
        other = of(target.system, FIRST_OF_TWO)
    else:
        peers = [value for peer in FRR if (value := of(peer, target.fault)) is not None]
        other = min(peers, default=None)
    ratio = own / other if own is not None and other else None
    return {
        "what": f"{target.fault}, {target.share}",
        "system": target.system,
        "own_ms": own,
        "against": target.against,
        "other_ms": other,
        "ratio": ratio,
        "at_most": target.at_most,
        "is_met": None if ratio is None else ratio <= target.at_most,
    }


def _cpu_judged(systems: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    own, other = (systems.get(name, {}).get("cpu_percent") for name in (ERFS, FRR[1]))
    ratio = own / other if own is not None and other else None
    return [
        {
            "what": "idle CPU",
            "system": ERFS,
            "own_percent": own,
            "against": FRR[1],
            "other_percent": other,
            "ratio": ratio,
            "at_most": 1.0,
            "is_met": None if ratio is None else ratio <= 1.0,
        }
    ]


# --- for people ------------------------------------------------------------------------------------------------------------
def show(told: Mapping[str, Any], console: Console) -> None:
    """Print the tables."""
    for grid in _grids(told):
        console.print(_rich(grid))
    console.print(told["definition"])
    for trouble in told["troubles"]:
        console.print(f"trouble: {trouble['system']}, {trouble['fault']} {trouble['index']}: {trouble['text']}")


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table, before it is known who looks at it. *texts*: columns that hold words; *breaks*: rows with a line below."""

    title: str
    header: tuple[str, ...]
    texts: frozenset[str]
    rows: tuple[tuple[str, ...], ...]
    breaks: frozenset[int] = frozenset()


def _rich(grid: _Grid) -> Table:
    table = Table(title=grid.title, box=box.SIMPLE_HEAD)
    for name in grid.header:
        table.add_column(name, justify="left" if name in grid.texts else "right")
    for place, row in enumerate(grid.rows):
        table.add_row(*row, end_section=place in grid.breaks)
    return table


def markdown(told: Mapping[str, Any]) -> str:
    """Return the tables for a page, with what they were measured with."""
    header = told["header"]
    facts = ", ".join(f"{name} {value}" for name, value in header["machine"].items())
    parts = [f"{facts}; load at the beginning {header['load']}; parameters {header['parameters']}."]
    for grid in _grids(told):
        parts += [f"**{grid.title}.**", markdown_table(grid.header, grid.rows)]
    return "\n\n".join([*parts, told["definition"]])


def _grids(told: Mapping[str, Any]) -> tuple[_Grid, ...]:
    return _systems_grid(told), _recovery_grid(told), _targets_grid(told)


def _systems_grid(told: Mapping[str, Any]) -> _Grid:
    rows = []
    for name in SYSTEMS:
        found = told["systems"].get(name)
        if found is not None:
            cells = (str(found["process_count"]), f"{found['cpu_percent']:.1f}", f"{found['memory_mib']:.0f}")
            rows.append((name, found["liveness"], *cells))
    header = ("system", "liveness sessions", "processes", "CPU, % of a core", "memory, MiB (PSS)")
    return _Grid("Systems, while nothing happens", header, frozenset(header[:2]), tuple(rows))


def _recovery_grid(told: Mapping[str, Any]) -> _Grid:
    header = (
        *("fault", "system", "trials", "far: median", "p95", "max", "censored", "several gaps", "median flow"),
        *("near: median", "near: max", "near: censored", "disturbed"),
    )
    rows, breaks, last = [], set(), ""
    for place, row in enumerate(told["rows"]):
        far, near = row["far"], row["near"]
        rows.append(
            (
                row["fault"] if row["fault"] != last else "",
                row["system"],
                str(row["trials"]),
                *_cells(far, ("median_ms", "p95_ms", "max_ms")),
                *(_count(far, name) for name in ("censored", "several")),
                "" if far is None else f"{far['flow_median_ms']:.1f}",
                *_cells(near, ("median_ms", "max_ms")),
                _count(near, "censored"),
                str(row["disturbed"] or ""),
            )
        )
        if row["system"] == SYSTEMS[-1]:
            breaks.add(place)
        last = row["fault"]
    return _Grid("Recovery in ms", header, frozenset(header[:2]), tuple(rows), frozenset(breaks))


def _cells(found: Mapping[str, Any] | None, names: Sequence[str]) -> list[str]:
    if found is None:
        return [""] * len(names)
    cells = []
    for name in names:
        if found[name] is not None:
            cells.append(f"{found[name]:.1f}")
        elif name == "p95_ms" and found["trials"] < P95_TRIALS:
            cells.append("")
        else:
            cells.append(f"> {found['window_ms']:,.0f}")
    return cells


def _count(found: Mapping[str, Any] | None, name: str) -> str:
    return "" if found is None or not found[name] else str(found[name])


def _targets_grid(told: Mapping[str, Any]) -> _Grid:
    header = ("what", "system", "own figure", "against", "its figure", "ratio", "at most", "met")
    rows = []
    for target in told["targets"]:
        unit = "%" if "own_percent" in target else "ms"
        kind = "percent" if unit == "%" else "ms"
        own, other = target[f"own_{kind}"], target[f"other_{kind}"]
        rows.append(
            (
                target["what"],
                target["system"],
                "" if own is None else f"{own:.1f} {unit}",
                target["against"],
                "" if other is None else f"{other:.1f} {unit}",
                "" if target["ratio"] is None else f"{target['ratio']:.2f}",
                f"{target['at_most']:.2f}",
                {None: "not measured", True: "yes", False: "NO"}[target["is_met"]],
            )
        )
    texts = frozenset({"what", "system", "against", "met"})
    return _Grid("Targets: far-end flows, ratios in the same run", header, texts, tuple(rows))


# --- a chart ---------------------------------------------------------------------------------------------------------------
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 210, 70, 18, 62
_LOW_MS, _HIGH_MS = 0.5, 10_000.0
_STYLE: Final = """
 text { font: 12px system-ui, sans-serif; fill: #24292f } .quiet { fill: #57606a } .grid { stroke: #d0d7de }
 .s0 { fill: #6e7781 } .s1 { fill: #bc4c00 } .s2 { fill: #cf222e } .s3 { fill: #0969da } .s4 { fill: #1a7f37 }
 circle { fill-opacity: .45 } .median { fill-opacity: 1 } .head { font-weight: 600 }
 @media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #8d96a0 } .grid { stroke: #3d444d }
  .s0 { fill: #9198a1 } .s1 { fill: #f0883e } .s2 { fill: #ff7b72 } .s3 { fill: #58a6ff } .s4 { fill: #3fb950 }
 }
"""


def chart(lines: Lines) -> str:
    """Return an SVG: a dot for each trial's far-end recovery, a bar at the median, on a logarithmic axis; ">" where censored."""
    by_key: dict[tuple[str, str], list[float]] = {}
    for line in lines.outcomes:
        if line["far"] is not None:
            value = math.inf if line["far"]["last_ms"] is None else line["far"]["last_ms"]
            by_key.setdefault((line["fault"], line["system"]), []).append(value)
    parts: list[str] = []
    top = float(_TOP)
    for fault in ROWS:
        systems = [system for system in SYSTEMS if (fault, system) in by_key]
        if not systems:
            continue
        parts.append(f'<text class="head" x="10" y="{top + 4:.0f}">{fault}</text>')
        top += _ROW
        for system in systems:
            parts += _strip(system, sorted(by_key[fault, system]), top)
            top += _ROW
        top += _ROW / 2
    grid = []
    for exponent in range(5):
        x = _x(10.0**exponent)
        grid.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 22}" x2="{x:.1f}" y2="{top:.0f}"/>')
        grid.append(f'<text class="quiet" text-anchor="middle" x="{x:.1f}" y="{_TOP - 28}">{10**exponent:,} ms</text>')
    title = "Recovery of far-end flows, one dot a trial, bar at the median"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top:.0f}" role="img" aria-label="{title}">',
            f"<style>{_STYLE}</style>",
            f'<text class="head" x="10" y="16">{title}</text>',
            *grid,
            *parts,
            "</svg>",
            "",
        ]
    )


def _strip(system: str, values: Sequence[float], top: float) -> list[str]:
    style = f"s{SYSTEMS.index(system)}"
    finite = [value for value in values if math.isfinite(value)]
    found = [f'<text class="quiet" x="24" y="{top + 4:.0f}">{system}</text>']
    for place, value in enumerate(finite):
        # Trials of one millisecond lie on each other: spread them a little, the same way each time.
        shift = (place * 7 % 9 - 4) * 0.9
        found.append(f'<circle class="{style}" cx="{_x(value):.1f}" cy="{top + shift:.1f}" r="2.4"/>')
    median = quantile(values, 0.5)
    if math.isfinite(median):
        found.append(
            f'<rect class="{style} median" x="{_x(median) - 1.2:.1f}" y="{top - 8:.0f}" width="2.4" height="16"/>'
            f'<text x="{_WIDTH - 8}" y="{top + 4:.0f}" text-anchor="end">{median:.1f}</text>'
        )
    if len(finite) < len(values):
        text = f"{len(values) - len(finite)} of {len(values)} not recovered"
        found.append(
            f'<text class="quiet" text-anchor="end" x="{_WIDTH - _RIGHT + 10}" y="{top + 4:.0f}">{text}</text>'
        )
    return found


def _x(value_ms: float) -> float:
    share = math.log(min(max(value_ms, _LOW_MS), _HIGH_MS) / _LOW_MS) / math.log(_HIGH_MS / _LOW_MS)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
