"""The pictures of a report as coordinates: where lines, bars and words go. The page's template makes SVG of them.

Rule 1: places only, no figure that the report does not have; the marks of an axis apart, which are its scale.
Rule 2: time axes are true: as long as it took, as long it is drawn, but never thinner than can be seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from erfs.units import HOUR, MINUTE, MS, PPM, SECOND, US, format_duration
from erfs_scenario.report import Drawing, FaultReport, OutageLengths, Report
from erfs_scenario.tables import milliseconds

# The pictures' own coordinates; the page scales them.
WIDTH: Final = 720
_LEFT, _RIGHT, _TOP = 84, 12, 16

Picture = dict[str, Any]

_STEPS: Final = (
    *(factor * unit for unit in (US, 10 * US, 100 * US, MS, 10 * MS, 100 * MS, SECOND) for factor in (1, 2, 5)),
    *(factor * SECOND for factor in (10, 20, 30)),
    *(factor * MINUTE for factor in (1, 2, 5, 10, 20, 30)),
    *(factor * HOUR for factor in (1, 2, 4, 6, 12, 24, 48, 120, 240)),
)


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to places."""

    low: int
    high: int
    begin: float
    end: float

    def __call__(self, value: int) -> float:
        place = self.begin + (self.end - self.begin) * (value - self.low) / max(1, self.high - self.low)
        return round(min(max(place, min(self.begin, self.end)), max(self.begin, self.end)), 1)


def ticks_between(low_ns: int, high_ns: int, count_max: int = 6) -> list[int]:
    """Return round durations from *low_ns* to *high_ns* for an axis, *count_max* at most."""
    step = next((step for step in _STEPS if (high_ns - low_ns) // step < count_max), _STEPS[-1])
    return list(range(-(-low_ns // step) * step, high_ns + 1, step))


def share_text(share_ppm: int) -> str:
    """Return *share_ppm* for an axis: four significant digits, but 100 % only where nothing is missing."""
    text = f"{share_ppm / 10_000:.4g} %"
    return text if share_ppm == PPM or text != "100 %" else f"{share_ppm / 10_000:.4f} %"


def picture_of(fault: FaultReport) -> Picture | None:
    """
    Return the steps of the served share around *fault*; None if nothing was lost.

    The picture shows the recovery, enlarged: from shortly before the fault until a little after the last step that belongs to it.
    """
    if fault.effective_at_ns is None:
        return None
    end_ns = (fault.ended_at_ns or fault.effective_at_ns) - fault.effective_at_ns
    steps = [step for step in fault.curve if step[0] < end_ns]
    lowest = min((share for _, share in steps), default=PPM)
    if lowest == PPM:
        return None
    reach_ns = steps[-1][0] or end_ns or 1
    from_ns, until_ns = -reach_ns // 8, reach_ns + reach_ns // 3
    if until_ns > end_ns > 0:
        until_ns = end_ns
    base = 118
    x = _Scale(from_ns, until_ns, _LEFT, WIDTH - _RIGHT)
    marks = [(0, "fault")]
    if fault.all.last_ns:
        marks.append((fault.all.last_ns, f"last flow {milliseconds(fault.all.last_ns)}"))
    return _steps(steps, (from_ns, until_ns), lowest, base) | {
        "ticks": [
            {
                "x": x(at_ns),
                "text": text,
                "anchor": "start" if at_ns == 0 else "end" if x(at_ns) > WIDTH - 160 else "middle",
            }
            for at_ns, text in marks
            if at_ns <= until_ns
        ],
        "base": base,
        "height": base + 32,
    }


def _steps(steps: Sequence[tuple[int, int]], between: tuple[int, int], lowest: int, base: int) -> Picture:
    """Return line and area of a share over time, and the levels to name."""
    from_ns, until_ns = between
    # A dip of a fraction of a per cent would be invisible on a scale from zero: the scale says where it starts.
    floor = 0 if lowest < PPM // 2 else max(0, lowest - (PPM - lowest) // 3)
    x, y = _Scale(from_ns, until_ns, _LEFT, WIDTH - _RIGHT), _Scale(floor, PPM, base, _TOP)
    line = [f"M{x(from_ns)},{y(PPM)}"]
    for at_ns, share in steps:
        line.append(f"H{x(at_ns)}V{y(share)}")
    line.append(f"H{x(until_ns)}")
    levels = [{"y": y(PPM), "text": "100 %"}]
    if lowest < PPM:
        levels.append({"y": y(lowest), "text": share_text(lowest)})
    return {
        "line": "".join(line),
        "area": "".join(line) + f"V{y(PPM)}H{x(from_ns)}Z",
        "levels": levels,
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "top": _TOP,
        "width": WIDTH,
    }


# More faults than this have no row of their own.
ROWS_MAX: Final = 12


def timeline_of(report: Report) -> Picture | None:
    """Return the served share of all demands over the whole measurement on a true time axis, with the faults shaded; None without any."""
    begin_ns, end_ns = report.measured_from_ns, report.measured_until_ns
    if begin_ns is None or end_ns <= begin_ns or not report.service:
        return None
    base = 130
    x = _Scale(begin_ns, end_ns, _LEFT, WIDTH - _RIGHT)
    bands: list[dict[str, Any]] = []
    for fault in report.faults:
        if fault.effective_at_ns is None:
            continue
        left, right = x(fault.effective_at_ns), x(end_ns if fault.ended_at_ns is None else fault.ended_at_ns)
        bands.append(
            {"x": left, "width": round(max(right - left, 1.5), 1), "name": fault.id, "is_physical": fault.is_physical}
        )
    has_rows = len(bands) <= ROWS_MAX
    if not has_rows:
        bands = _merged(bands)
    rows_end = base + 8 + (16 * len(bands) if has_rows else 0)
    for index, band in enumerate(bands):
        band["y"] = base + 8 + 16 * index
        # The name stands where there is room: right of its bar, else left of it, else on it.
        end = band["x"] + band["width"]
        room = 9 * len(str(band["name"])) + 8
        if end + room < WIDTH:
            band["text_x"], band["anchor"] = end + 5, "start"
        elif band["x"] - room > 0:
            band["text_x"], band["anchor"] = band["x"] - 5, "end"
        else:
            band["text_x"], band["anchor"] = band["x"] + 5, "start"
    lowest = min(share for _, share in report.service)
    return _steps(report.service, (begin_ns, end_ns), lowest, base) | {
        "bands": bands,
        "has_rows": has_rows,
        "base": base,
        "axis": rows_end + 4,
        "height": rows_end + 30,
        "ticks": [
            {"x": x(at_ns), "text": format_duration(at_ns) if at_ns else "0"}
            for at_ns in ticks_between(begin_ns, end_ns)
        ],
    }


def _merged(bands: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *bands* with those that touch or nearly do as one, so that thousands of faults are no more than the picture is wide."""
    found: list[dict[str, Any]] = []
    for band in sorted(bands, key=lambda band: band["x"]):
        end = band["x"] + band["width"]
        if found and band["x"] - (found[-1]["x"] + found[-1]["width"]) < 0.5:
            found[-1]["width"] = round(max(found[-1]["width"], end - found[-1]["x"]), 1)
        else:
            found.append(dict(band))
    return found


def stages_of(fault: FaultReport) -> Picture | None:
    """Return when each stage of a recovery was reached, as marks on one true axis from the fault's effect on; None with fewer than two."""
    stages = fault.stages
    reached = [
        ("detected", stages.detection_ns),
        ("fact read elsewhere", stages.fact_received_first_ns),
        ("first change made", stages.protection_first_ns),
        ("last change made", stages.protection_last_ns),
        ("last flow served", fault.all.last_ns),
        ("controller believes it", stages.adjudicated_ns),
        ("restored", stages.restoration_finished_ns),
    ]
    found = [(name, at_ns) for name, at_ns in reached if at_ns is not None]
    if len(found) < 2:
        return None
    found.sort(key=lambda item: item[1])
    last_ns = found[-1][1]
    left = 170
    x = _Scale(0, last_ns, left, WIDTH - 90)
    height = 22 * len(found)
    return {
        "rows": [
            {"name": name, "text": milliseconds(at_ns), "x": x(at_ns), "y": 4 + 22 * index}
            for index, (name, at_ns) in enumerate(found)
        ],
        "ticks": [
            {"x": x(at_ns), "text": format_duration(at_ns) if at_ns else "0"} for at_ns in ticks_between(0, last_ns, 5)
        ],
        "left": left,
        "base": height + 4,
        "width": WIDTH,
        "height": height + 26,
    }


def bucket_name(from_ns: int, until_ns: int | None) -> str:
    """Return what a class of lengths is called."""
    if until_ns is None:
        return f"from {format_duration(from_ns)}"
    return (
        f"under {format_duration(until_ns)}"
        if not from_ns
        else f"{format_duration(from_ns)} to {format_duration(until_ns)}"
    )


def lengths_of(lengths: OutageLengths) -> Picture | None:
    """Return bars of how many outages lasted how long; None without any."""
    if not lengths.buckets:
        return None
    most = max(bucket.with_path + bucket.pathless for bucket in lengths.buckets)
    left = 150
    x = _Scale(0, most, left, WIDTH - 100)
    rows = []
    for index, bucket in enumerate(lengths.buckets):
        middle, end = x(bucket.with_path), x(bucket.with_path + bucket.pathless)
        texts = [f"{bucket.with_path:,}"] if bucket.with_path or not bucket.pathless else []
        texts += [f"{bucket.pathless:,} cut"] if bucket.pathless else []
        rows.append(
            {
                "name": bucket_name(bucket.from_ns, bucket.until_ns),
                "y": 4 + 22 * index,
                "with_path": round(middle - left, 1),
                "pathless_x": middle,
                "pathless": round(end - middle, 1),
                "text_x": end + 6,
                "text": " + ".join(texts),
            }
        )
    return {"rows": rows, "left": left, "width": WIDTH, "height": 22 * len(rows) + 8}


# Between two tiers of a drawing.
ROW_HEIGHT: Final = 104
# Width of a letter of a name, on the safe side.
_LETTER: Final = 7


def graph_of(drawing: Drawing) -> Picture:
    """Return places for the nodes of *drawing*, a row for each tier, the highest on top."""
    tiers: dict[int, list[str]] = {}
    labels = {node.id: node.label for node in drawing.nodes}
    for drawn in drawing.nodes:
        # Hosts and what has no tier stand at the bottom.
        tiers.setdefault(drawn.tier or 0, []).append(drawn.id)
    places: dict[str, tuple[float, float]] = {}
    nodes = []
    bottom = 0.0
    for row, tier in enumerate(sorted(tiers, reverse=True)):
        members = tiers[tier]
        longest = max(len(labels[node]) for node in members)
        gap = (WIDTH - 40) / len(members)
        # Names that would run into each other are slanted, and need room at the right and below.
        is_slanted = longest * _LETTER > gap
        if is_slanted:
            gap = (WIDTH - 40 - longest * _LETTER) / len(members)
        bottom = 26 + ROW_HEIGHT * row + (34 + longest * _LETTER * 0.7 if is_slanted else 34)
        for index, node in enumerate(members):
            places[node] = round(20 + gap * (index + 0.5), 1), 26 + ROW_HEIGHT * row
            nodes.append(
                {
                    "x": places[node][0],
                    "y": places[node][1],
                    "label": labels[node],
                    "is_slanted": is_slanted,
                    "is_hit": node in drawing.hit,
                    "title": f"{labels[node]}, {f'tier {tier}' if tier else 'host'}",
                }
            )

    def lines(pairs: Sequence[tuple[str, str]]) -> list[tuple[float, float, float, float]]:
        return [(*places[one], *places[other]) for one, other in pairs]

    broken = set(drawing.broken)
    return {
        "nodes": nodes,
        "before": lines([pair for pair in drawing.before if pair not in broken]),
        "after": lines(drawing.after),
        "broken": lines(drawing.broken),
        "width": WIDTH,
        "height": round(bottom),
    }
