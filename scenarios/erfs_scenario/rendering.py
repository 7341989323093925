"""report.html: one page that needs nothing but itself, for a browser in light or dark, wide or narrow.

Rule 1: shows, never computes: every figure is the report's.
Rule 2: no request leaves the page: no script, font, image or style from elsewhere.
"""

from pathlib import Path
from typing import Final

import jinja2

from erfs.units import format_bps, format_duration
from erfs_scenario.report import FaultReport, Report
from erfs_scenario.tables import milliseconds, probes_line, three
from erfs_scenario.verdict import format_share

_FOLDER: Final = Path(__file__).parent / "templates"

# The picture's own coordinates; the page scales it.
WIDTH: Final = 720
HEIGHT: Final = 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 16, 32


def html_of(report: Report) -> str:
    """Return the page for *report*."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ms": milliseconds,
        "three": three,
        "share": format_share,
        "duration": lambda value: "-" if value is None else format_duration(value),
        "bps": format_bps,
        "thousands": lambda value: f"{value:,}",
    }
    pictures = {fault.id: picture_of(fault) for fault in report.faults}
    return environment.get_template("report.html.j2").render(
        report=report, pictures=pictures, probes=None if report.probes is None else probes_line(report.probes)
    )


def picture_of(fault: FaultReport) -> dict[str, object] | None:
    """
    Return the steps of the served share around *fault* as SVG path data with its axis labels; None if nothing was lost.

    The picture shows the recovery, enlarged: from shortly before the fault until a little after the last step that belongs to it.
    """
    if fault.effective_at_ns is None:
        return None
    end_ns = (fault.ended_at_ns or fault.effective_at_ns) - fault.effective_at_ns
    steps = [step for step in fault.curve if step[0] < end_ns]
    lowest = min((share for _, share in steps), default=1_000_000)
    if lowest == 1_000_000:
        return None
    reach_ns = steps[-1][0] or end_ns or 1
    from_ns, until_ns = -reach_ns // 8, reach_ns + reach_ns // 3
    if until_ns > end_ns > 0:
        until_ns = end_ns
    # A dip of a fraction of a per cent would be invisible on a scale from zero: the scale says where it starts.
    floor = 0 if lowest < 500_000 else max(0, lowest - (1_000_000 - lowest) // 3)

    def x(at_ns: int) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (at_ns - from_ns) / (until_ns - from_ns), 1)

    def y(share: int) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1_000_000 - share) / (1_000_000 - floor), 1)

    line = [f"M{x(from_ns)},{y(1_000_000)}"]
    for at_ns, share in steps:
        line.append(f"H{x(at_ns)}V{y(share)}")
    line.append(f"H{x(until_ns)}")
    marks = [(0, "fault")]
    if fault.all.last_ns:
        marks.append((fault.all.last_ns, f"last flow {milliseconds(fault.all.last_ns)}"))
    ticks = [
        {
            "x": x(at_ns),
            "text": text,
            "anchor": "start" if at_ns == 0 else "end" if x(at_ns) > WIDTH - 160 else "middle",
        }
        for at_ns, text in marks
        if at_ns <= until_ns
    ]
    return {
        "line": "".join(line),
        "area": "".join(line) + f"V{y(1_000_000)}H{x(from_ns)}Z",
        "ticks": ticks,
        "levels": [
            {"y": y(1_000_000), "text": "100 %"},
            {"y": y(lowest), "text": f"{lowest / 10_000:.4g} %"},
        ],
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "top": _TOP,
        "base": HEIGHT - _BOTTOM,
        "width": WIDTH,
        "height": HEIGHT,
    }
