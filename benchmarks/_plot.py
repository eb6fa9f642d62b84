"""Plots the results of a run: every ratio against its bar, on one logarithmic axis. No packages.

A point right of the middle line meets its bar by that factor; a point left of it misses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, TOP, ROW = 920, 520, 110, 30, 22
REACH = 4.0
"""Ends of the axis, as a factor of the bar; points beyond are drawn at the end."""
STYLE = (
    "text{font:12px sans-serif;fill:#777}.bar{stroke:#888;stroke-width:1.5}"
    ".grid{stroke:#8884;stroke-width:1}.met{fill:#2f9e5f}.missed{fill:#d0503f}"
)


def picture(lines: Sequence[dict[str, Any]]) -> str:
    """Returns an SVG of all results that have a bar."""
    shown = [(line, margin(line)) for line in lines if margin(line) is not None]
    height = TOP + ROW * len(shown) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Each ratio against its bar">',
        f"<style>{STYLE}</style>",
    ]
    for times in (1 / REACH, 1 / 2, 1, 2, REACH):
        kind = "bar" if times == 1 else "grid"
        label = "bar" if times == 1 else f"{times:g}x"
        x = place(times)
        parts.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 26}"/>'
            f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{label}</text>'
        )
    for row, (line, met_by) in enumerate(shown):
        parts.append(_row(line, met_by or 1.0, TOP + ROW * row + 8))
    return "\n".join([*parts, "</svg>"]) + "\n"


def margin(line: dict[str, Any]) -> float | None:
    """Returns the factor by which a result is better than its bar; under 1 it misses the bar."""
    ratio = line.get("ratio")
    if not ratio or ratio <= 0:
        return None
    if "at_least" in line:
        return float(ratio / line["at_least"])
    return float(line["at_most"] / ratio) if "at_most" in line else None


def place(times: float) -> float:
    """Returns the position on the axis."""
    share = math.log(min(max(times, 1 / REACH), REACH)) / math.log(REACH)
    return LEFT + (WIDTH - LEFT - RIGHT) * (share + 1) / 2


def _row(line: dict[str, Any], met_by: float, y: int) -> str:
    bar = f"≥ {line['at_least']:g}" if "at_least" in line else f"≤ {line['at_most']:g}"
    kind = "met" if line["ok"] else "missed"
    return (
        f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(line["question"])}</text>'
        f'<circle class="{kind}" cx="{place(met_by):.1f}" cy="{y}" r="5"/>'
        f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4}">{line["ratio"]:.3g} ({bar})</text>'
    )
