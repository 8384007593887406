"""Charts of what the whole takes, against size, both scales logarithmic: a grey line is in proportion."""

from __future__ import annotations

import math
from html import escape

from plots import COLOURS, STYLE, text
from results import short

PANEL, HIGH, GAP, HEAD, ROW = 200, 90, 50, 40, 150
WIDTH = 3 * (PANEL + GAP) + GAP


def charts(rows, title):
    """A row of panels for each subject: its title, and by figure the points (size, what the whole takes)."""
    parts, y = [text(10, 22, title, size=15, weight="bold")], HEAD
    for subject, panels in rows:
        parts.append(text(10, y + 16, subject, weight="bold"))
        for number, (figure, points) in enumerate(panels.items()):
            parts += panel(GAP + number * (PANEL + GAP), y + 40, figure, points)
        y += ROW + 30
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'style="{STYLE}" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def panel(x, y, figure, points):
    """One chart. A decade more is as much of its width as of its height, or the height has more decades."""
    sizes = [math.log10(size) for size, _ in points]
    values = [math.log10(max(value, 1e-9)) for _, value in points]
    decades = sizes[-1] - sizes[0]
    low = min(values)
    span = max(*values, values[0] + decades) - low

    def at(size, value):
        return f"{x + PANEL * (size - sizes[0]) / decades:.1f} {y + HIGH - HIGH * (value - low) / span:.1f}"

    dots = [at(*each) for each in zip(sizes, values, strict=True)]
    linear = f"M{dots[0]}L{at(sizes[-1], values[0] + decades)}"
    return [
        f'<path d="{linear}" stroke="#bbb" stroke-dasharray="4 3" fill="none"/>',
        f'<path d="M{"L".join(dots)}" stroke="{COLOURS[0]}" stroke-width="2" fill="none"/>',
        *(f'<circle cx="{dot.split()[0]}" cy="{dot.split()[1]}" r="3" fill="{COLOURS[0]}"/>' for dot in dots),
        text(x, y - 8, f"{figure}: {short(points[0][1])} to {short(points[-1][1])}"),
        f'<path d="M{x} {y + HIGH + 6}h{PANEL}" stroke="#888"/>',
        *(
            text(
                x + PANEL * (size - sizes[0]) / decades,
                y + HIGH + 22,
                f"{point[0]:,}",
                anchor="middle",
                size=11,
            )
            for size, point in zip(sizes, points, strict=True)
        ),
    ]
