"""Bar charts as SVG text: one panel per measure, one bar per label."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, PANEL, LEFT, TOP, BOTTOM = 960, 220, 70, 40, 60


def bars(title: str, labels: Sequence[str], panels: Sequence[tuple[str, Sequence[float]]]) -> str:
    """An SVG document: ``panels`` are (name, a value for each label)."""
    height = TOP + len(panels) * PANEL + BOTTOM
    step = (WIDTH - LEFT - 20) / max(1, len(labels))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    for number, (name, values) in enumerate(panels):
        parts += _panel(name, labels, values, TOP + number * PANEL, step)
    every = max(1, len(labels) // 12)
    for place in range(0, len(labels), every):
        x, y = LEFT + (place + 0.5) * step, TOP + len(panels) * PANEL + 14
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="end" transform="rotate(-30 {x:.1f} {y})">{escape(labels[place])}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, labels: Sequence[str], values: Sequence[float], top: int, step: float) -> list[str]:
    bottom, room = top + PANEL - 20, PANEL - 60
    most = max([*values, 1.0])
    parts = [
        f'<text x="{LEFT}" y="{top + 20}">{escape(name)}</text>',
        f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - 20}" y2="{bottom}" stroke="black"/>',
    ]
    for share in (0.5, 1.0):
        y = bottom - room * share
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 20}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:g}</text>')
    for place, (label, value) in enumerate(zip(labels, values, strict=True)):
        tall = room * value / most
        x, width = LEFT + place * step + step * 0.1, step * 0.8
        parts.append(
            f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{width:.1f}" height="{tall:.1f}" fill="#4878a8">'
            f"<title>{escape(label)}: {value:g}</title></rect>"
        )
    return parts
