"""Draws the rewards that `examples/03_rl.py` prints as an SVG, with nothing to install.

python examples/03_rl.py | tee rewards.txt
python docs/_plot.py rewards.txt > docs/tutorials/rl-reward.svg
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 56, 44, 16, 16
STYLE = (
    "text{font:13px sans-serif;fill:#777}.grid{stroke:#8884;stroke-width:1}"
    ".line{fill:none;stroke:#3f7fd0;stroke-width:2.5;stroke-linejoin:round}.dot{fill:#3f7fd0}"
)


def picture(rewards: list[float]) -> str:
    """The curve over its steps, between 0 and 1."""
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (HEIGHT - BOTTOM + TOP) / 2

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, len(rewards) - 1)

    def y(reward: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * reward

    points = [(f"{x(step):.1f}", f"{y(reward):.1f}") for step, reward in enumerate(rewards)]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Mean reward of each step">',
        f"<style>{STYLE}</style>",
    ]
    for value in (0, 0.25, 0.5, 0.75, 1):
        at = f"{y(value):.1f}"
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        lines.append(
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>'
        )
    for step in range(0, len(rewards), 4):
        place = f'x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        lines.append(f'<text {place} text-anchor="middle">{step}</text>')
    turned = f'transform="rotate(-90 14 {middle_y:.0f})"'
    lines += [
        f'<text x="{middle_x:.0f}" y="{HEIGHT - 6}" text-anchor="middle">step</text>',
        f'<text x="14" y="{middle_y:.0f}" text-anchor="middle" {turned}>mean reward</text>',
        f'<polyline class="line" points="{" ".join(",".join(point) for point in points)}"/>',
        *(f'<circle class="dot" cx="{a}" cy="{b}" r="3"/>' for a, b in points),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    printed = Path(sys.argv[1]).read_text(encoding="utf-8")
    sys.stdout.write(picture([float(each) for each in re.findall(r"reward ([\d.]+)", printed)]))
