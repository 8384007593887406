"""Bar charts as SVG, small enough to write by hand."""

from __future__ import annotations

from html import escape

from results import short

WIDTH, LABEL, BAR, GAP, CASE, HEAD = 760, 300, 18, 4, 26, 40
COLOURS = ("#3b6fb6", "#d98b2b", "#5b9e5b", "#9a5bb0", "#888888")
STYLE = "font-family: system-ui, sans-serif; font-size: 12px; fill: #444"


def bars(results, figure, title):
    """Horizontal bars of the medians, by case, with a line from the least to the most."""
    shown = [result for result in results if figure in result.figures]
    names = list(dict.fromkeys(result.contender for result in shown))
    most = max((max(result.figures[figure]) for result in shown), default=1) or 1
    scale = (WIDTH - LABEL - 90) / most
    parts, y, case = [text(10, 22, title, size=15, weight="bold")], HEAD, None
    for result in shown:
        if result.case != case:
            case = result.case
            parts.append(text(10, y + 16, case, weight="bold"))
            y += CASE
        parts += bar(result, figure, y, scale, COLOURS[names.index(result.contender) % len(COLOURS)])
        y += BAR + GAP
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" width="{WIDTH}" '
        f'style="{STYLE}" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def bar(result, figure, y, scale, colour):
    """One bar: who, how much, and the spread."""
    values = result.figures[figure]
    middle = result.median(figure)
    length, least, most = (scale * value for value in (middle, min(values), max(values)))
    parts = [
        text(LABEL - 8, y + 13, result.contender, anchor="end"),
        f'<rect x="{LABEL}" y="{y}" width="{max(1, length):.1f}" height="{BAR}" fill="{colour}"/>',
    ]
    if most > least:
        line = f"M{LABEL + least:.1f} {y + BAR / 2}H{LABEL + most:.1f}"
        parts.append(f'<path d="{line}" stroke="#222" stroke-width="1.5"/>')
    parts.append(text(LABEL + max(length, most) + 6, y + 13, short(middle)))
    return parts


def text(x, y, content, *, anchor="start", size=12, weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{escape(content)}</text>"
    )
