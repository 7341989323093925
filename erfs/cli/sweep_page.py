"""`erfs sweep --html`: one page that needs nothing but itself: every failure a cell, coloured by the worst it does, and the same in words.

Rule 1: shows, never computes: every figure is the report's.
Rule 2: no request leaves the page: no font, image, script or style from elsewhere; what is in a fabric's names is text, never markup.
Rule 3: colour is never the only sign: every cell tells in words what it stands for, and a table says all that matters.
"""

from collections.abc import Iterable
from html import escape
from typing import Final

from erfs.cli.sweep_report import DEFINITIONS, Pairs, Report, percent
from erfs.paths.what_if import BY_RESTORATION, Outcome
from erfs.units import PPM

# Rows of the table: enough to read, few enough to load.
ROWS_MAX: Final = 400
# More cells than this would be too much for a browser: those that cost nothing are left out of the map then.
CELLS_MAX: Final = 60_000

# Level, what it means; the worst first. The page's style has a colour for each.
LEVELS: Final[tuple[tuple[str, str], ...]] = (
    ("cut", "cuts demands between attached endpoints"),
    ("policy", "cuts demands, but for valleys that policy forbids"),
    ("detached", "cuts only endpoints whose sole attachment it is"),
    ("waits", "only restoration repairs it"),
    ("half", "repaired by removal; under 50 % of some capacity left"),
    ("most", "repaired by removal; 50 to 90 % left"),
    ("nearly", "repaired by removal; 90 to 100 % left"),
    ("none", "repaired by removal; nothing lost"),
)

_STYLE: Final = """
:root { --ink: #1b2330; --soft: #5a6577; --line: #d8dde6; --page: #f6f7f9; --card: #ffffff; --ring: #1b2330;
  --cut: #a3160f; --policy: #e4572e; --detached: #8a63c9; --waits: #e8a400; --half: #1f5fa8; --most: #5b9bd9; --nearly: #a9cdee; --none: #dfe5ec; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e9f0; --soft: #9aa5b8; --line: #333c4b; --page: #12161d; --card: #1a2029; --ring: #ffffff;
    --cut: #ff6257; --policy: #f08a4b; --detached: #a98be0; --waits: #f2c94c; --half: #5aa2f0; --most: #3b74b5; --nearly: #2c4d73; --none: #2a323e; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 16px 96px; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 32px 0 8px; }
h3 { font-size: .95rem; margin: 20px 0 6px; overflow-wrap: anywhere; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; margin: 12px 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: 12px; }
.facts div { font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.facts span { display: block; color: var(--soft); font-size: .85rem; }
ul.legend { list-style: none; display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 4px 16px; margin: 0; padding: 0; }
ul.legend li { display: flex; gap: 8px; align-items: baseline; }
ul.legend i { flex: none; transform: translateY(1px); }
ul.legend b { font-weight: 600; font-variant-numeric: tabular-nums; }
.map { display: flex; flex-wrap: wrap; gap: 2px; }
.map i, ul.legend i { width: 11px; height: 11px; border-radius: 2px; }
.map i:hover, .map i.on { outline: 2px solid var(--ring); outline-offset: 1px; }
.cut { background: var(--cut); } .policy { background: var(--policy); } .detached { background: var(--detached); } .waits { background: var(--waits); }
.half { background: var(--half); } .most { background: var(--most); } .nearly { background: var(--nearly); } .none { background: var(--none); }
#told { position: fixed; inset: auto 0 0 0; background: var(--card); border-top: 1px solid var(--line); padding: 10px 16px; font-size: .9rem; overflow-wrap: anywhere; }
#told:empty { display: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: .85rem; }
th.n, td.n { text-align: right; white-space: nowrap; }
td.sort, th { white-space: nowrap; }
td.name { overflow-wrap: anywhere; min-width: 170px; }
tr:last-child td { border-bottom: 0; }
dl { display: grid; grid-template-columns: minmax(110px, 190px) 1fr; gap: 6px 16px; margin: 0; }
dt { font-weight: 600; } dd { margin: 0; }
@media (max-width: 560px) { table { font-size: .85rem; } th, td { padding-right: 10px; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; }
  .map { gap: 3px; } .map i { width: 14px; height: 14px; } }
"""

# Touch has no hover, and a tooltip comes late: the cell under the finger or the pointer is told at the foot of the page.
_SCRIPT: Final = """
const told = document.getElementById("told");
let on = null;
function tell(event) {
  const cell = event.target.closest(".map i");
  if (!cell) return;
  if (on) on.classList.remove("on");
  on = cell;
  on.classList.add("on");
  told.textContent = cell.title;
}
document.addEventListener("pointerover", tell);
document.addEventListener("click", tell);
"""


def page_of(report: Report) -> str:
    """Return the page for *report*."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(report.fabric)}: what every failure does</title>",
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(report.fabric)}</h1>",
        f'<p class="soft">Every {_kinds(report)} failed alone; policy: {escape(report.policy)}.</p>',
        *_facts(report),
        "<h2>Every failure</h2>",
        *_map(report),
        "<h2>In words</h2>",
        *_tables(report),
        *(_pairs(report.pairs) if report.pairs is not None else ()),
        "<h2>What the words mean</h2>",
        '<div class="card"><dl>',
        *(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in DEFINITIONS.items()),
        "</dl></div>",
        f'</main>\n<div id="told" role="status"></div>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n',
    ]
    return "\n".join(parts)


def level_of(outcome: Outcome) -> str:
    """Return the worst that a failure does, of `LEVELS`."""
    if outcome.lost:
        return "cut" if outcome.cut else "policy" if outcome.cut_by_policy else "detached"
    if outcome.repaired_by == BY_RESTORATION:
        return "waits"
    least = min(outcome.retained_ppm, outcome.bisection_ppm)
    if least == PPM:
        return "none"
    return "half" if least < PPM // 2 else "most" if least < PPM * 9 // 10 else "nearly"


def _kinds(report: Report) -> str:
    names = {"link": "link", "node": "switch", "srlg": "shared-risk group"}
    return " and every ".join(names[kind] for kind in report.kinds)


def _facts(report: Report) -> Iterable[str]:
    facts = (
        ("switches", report.switches),
        ("endpoints", report.endpoints),
        ("links", report.links),
        ("demands", report.demands),
        ("failures", len(report.outcomes)),
        ("single points of failure", len(report.single_points)),
        ("cut by policy alone", len(report.by_policy)),
        ("only restoration repairs", len(report.restored)),
    )
    yield '<section class="card facts">'
    yield from (f"<div><span>{escape(name)}</span>{count:,}</div>" for name, count in facts)
    yield "</section>"


def _map(report: Report) -> Iterable[str]:
    level = {id(outcome): level_of(outcome) for outcome in report.outcomes}
    counts = dict.fromkeys((name for name, _ in LEVELS), 0)
    for name in level.values():
        counts[name] += 1
    yield '<section class="card"><ul class="legend">'
    for name, meaning in LEVELS:
        if counts[name]:
            yield f'<li><i class="{name}"></i><span><b>{counts[name]:,}</b> {escape(meaning)}</span></li>'
    yield "</ul>"
    is_thinned = len(report.outcomes) > CELLS_MAX
    by_sort: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.worst_first:
        if not outcome.failure.sort.startswith("idle "):
            by_sort.setdefault((outcome.failure.kind, outcome.failure.sort), []).append(outcome)
    idle = len(report.outcomes) - sum(map(len, by_sort.values()))
    rank = {name: index for index, (name, _) in enumerate(LEVELS)}
    for found in by_sort.values():
        found.sort(key=lambda outcome: rank[level[id(outcome)]])

    def order(item: tuple[tuple[str, str], list[Outcome]]) -> tuple[int, tuple[str, str]]:
        """Return where a sort of failure stands: the worst first, but sole attachments last, since these are many and no news."""
        worst = min(rank[level[id(outcome)]] for outcome in item[1])
        return (len(LEVELS) if LEVELS[worst][0] == "detached" else worst), item[0]

    for (kind, sort), found in sorted(by_sort.items(), key=order):
        shown = [one for one in found if level[id(one)] != "none"] if is_thinned else found
        title = sort if kind != "srlg" else f"risk group: {sort}"
        left_out = (
            f", {len(found) - len(shown):,} of them without any loss not drawn" if len(shown) < len(found) else ""
        )
        yield f'<h3>{escape(title)} <span class="soft">{len(found):,}{left_out}</span></h3>'
        yield f'<div class="map" role="img" aria-label="{escape(_aria(title, found, level))}">'
        yield "".join(f'<i class="{level[id(one)]}" title="{escape(_tip(one))}"></i>' for one in shown)
        yield "</div>"
    if idle:
        yield f'<p class="soft">{idle:,} links carry no demand (self-loops, aggregation nodes) and are not drawn.</p>'
    yield "</section>"


def _aria(title: str, found: list[Outcome], level: dict[int, str]) -> str:
    counts = {name: sum(level[id(outcome)] == name for outcome in found) for name, _ in LEVELS}
    return f"{title}: " + ", ".join(f"{count:,} {meaning}" for name, meaning in LEVELS if (count := counts[name]))


def _tip(outcome: Outcome) -> str:
    """Return what one failure does, in one line."""
    amounts = (
        (outcome.cut, "cut"),
        (outcome.cut_by_policy, "cut by policy"),
        (outcome.detached, "detached"),
        (outcome.waiting, "waiting for restoration"),
    )
    told = [f"{count:,} demands {what}" for count, what in amounts if count] or ["repaired by removal"]
    if outcome.retained_ppm < PPM:
        told.append(f"capacity {percent(outcome.retained_ppm)}")
    if outcome.bisection_ppm < PPM:
        told.append(f"bisection {percent(outcome.bisection_ppm)}")
    return f"{outcome.failure.name}: {', '.join(told)}"


def _tables(report: Report) -> Iterable[str]:
    yield '<div class="card scroll"><table>'
    yield _row(
        "th",
        ("failures", ""),
        ("count", "n"),
        ("cut", "n"),
        ("policy", "n"),
        ("own endpoint", "n"),
        ("restoration", "n"),
        ("removal", "n"),
        ("least capacity", "n"),
        ("least bisection", "n"),
    )
    for row in report.summary():
        keys = ("failures", "single_points", "by_policy", "single_homed", "restoration", "removal")
        yield _row(
            "td",
            (row["sort"], "sort"),
            *((f"{row[key]:,}", "n") for key in keys),
            (percent(row["least_retained_ppm"]), "n"),
            (percent(row["least_bisection_ppm"]), "n"),
        )
    yield "</table></div>"
    told = [*report.single_points, *report.by_policy, *report.restored, *report.narrowed]
    # What waits for restoration and costs capacity, too, is told once.
    told = list({outcome.failure: outcome for outcome in told}.values())
    kept = told[:ROWS_MAX]
    if not kept:
        yield "<p>No failure does more than detach an endpoint from its sole attachment.</p>"
        return
    more = f", the first {len(kept):,} of {len(told):,}; the JSON has them all" if len(kept) < len(told) else ""
    yield f'<p class="soft">What cuts, waits or costs capacity, the worst first{more}. Sole attachments are in the table above.</p>'
    yield '<div class="card scroll"><table>'
    columns = ("cut", "policy", "detached", "waiting", "capacity", "bisection")
    yield _row("th", ("failure", ""), ("sort", ""), *((name, "n") for name in columns), ("repaired by", ""))
    for outcome in kept:
        counts = (outcome.cut, outcome.cut_by_policy, outcome.detached, outcome.waiting)
        yield _row(
            "td",
            (outcome.failure.name, "name"),
            (outcome.failure.sort, "sort"),
            *((f"{count:,}" if count else "-", "n") for count in counts),
            (percent(outcome.retained_ppm), "n"),
            (percent(outcome.bisection_ppm), "n"),
            (outcome.repaired_by, "sort"),
        )
    yield "</table></div>"


def _pairs(pairs: Pairs) -> Iterable[str]:
    yield "<h2>Two failures at once</h2>"
    drawn = "all of them" if pairs.is_all else f"{len(pairs.examined):,} of them, drawn with seed {pairs.seed}"
    yield f'<p class="soft">{pairs.total:,} pairs of {pairs.elements:,} trunks, switches and risk groups; {drawn}.</p>'
    yield '<div class="card scroll"><table>'
    yield _row("th", ("pairs that", ""), ("pairs", "n"), ("share", "n"), ("95 % interval", "n"))
    for name, found in pairs.shares.items():
        interval = found["interval_95"]
        bounds = "exact" if interval is None else " to ".join(f"{bound:.4%}" for bound in interval)
        yield _row("td", (name, ""), (f"{found['pairs']:,}", "n"), (f"{found['share']:.4%}", "n"), (bounds, "n"))
    yield "</table></div>"
    if not pairs.worst:
        return
    yield '<div class="card scroll"><table>'
    names = ("cut", "policy", "detached")
    yield _row("th", ("one", ""), ("other", ""), ("alone", ""), *((name, "n") for name in names))
    for pair in pairs.worst[: ROWS_MAX // 8]:
        counts = ((f"{count:,}", "n") for count in (pair.cut, pair.cut_by_policy, pair.detached))
        alone = "neither cuts" if pair.is_new else "one cuts"
        yield _row("td", (pair.one.name, "name"), (pair.other.name, "name"), (alone, "sort"), *counts)
    yield "</table></div>"


def _row(tag: str, *cells: tuple[str, str]) -> str:
    kinds = (f' class="{kind}"' if kind else "" for _, kind in cells)
    made = (f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, (text, _) in zip(kinds, cells, strict=True))
    return f"<tr>{''.join(made)}</tr>"
