"""A small SVG canvas: boxes, texts, arrows, sequence diagrams and terminal screens, with no font or script from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

INK = "#24324a"
LINE = "#5a6b8c"
BLUE, GREEN, ORANGE, RED, GREY = "#dbe7ff", "#d9f2e0", "#ffe9cc", "#ffd9d6", "#eef1f6"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


@dataclass
class Canvas:
    """A picture under construction; coordinates in pixels from the top left corner."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, text: str = "", *, fill: str = BLUE, plain: bool = False) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{fill}" stroke="{LINE}" stroke-width="1.3"/>'
        )
        lines = text.split("\n") if text else []
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * 18, line, bold=number == 0 and not plain, size=13 if plain else 14)

    def text(self, x: float, y: float, text: str, *, size: int = 14, anchor: str = "middle", bold: bool = False, color: str = INK) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, text: str = "", *, dashed: bool = False, color: str = LINE) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.6" marker-end="url(#tip)"{dash}/>'
        )
        if text:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 6, text, size=13)

    def line(self, x1: float, y1: float, x2: float, y2: float, *, color: str = LINE, width: float = 1.2, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="3 4"' if dashed else ""
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="{width:g}"{dash}/>')

    def render(self) -> str:
        """The picture as SVG, with a white background so that it reads in dark themes too."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="{SANS}">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
            f'<path d="M0 0 L10 5 L0 10 z" fill="{LINE}"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="10" fill="#ffffff"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


@dataclass(frozen=True)
class Say:
    """One arrow of a sequence diagram, from actor to actor (their numbers)."""

    source: int
    target: int
    text: str
    dashed: bool = False


@dataclass(frozen=True)
class Note:
    """A box on one actor's line, or over several of them."""

    actor: int
    text: str
    fill: str = ORANGE
    until: int | None = None


def sequence(title: str, actors: Sequence[str], steps: Sequence[Say | Note], *, gap: int = 220) -> str:
    """A sequence diagram: time runs downwards."""
    left, top, pitch = 100, 64, 44
    picture = Canvas(left * 2 + gap * (len(actors) - 1), top + pitch * len(steps) + 40, title)
    bottom = picture.height - 22
    for number, name in enumerate(actors):
        x = left + gap * number
        picture.line(x, top - 8, x, bottom, dashed=True)
        picture.box(x - 75, 16, 150, 36, name, fill=GREEN if "eader" in name else BLUE)
    for number, step in enumerate(steps):
        y = top + pitch * number + 24
        if isinstance(step, Say):
            x1, x2 = left + gap * step.source, left + gap * step.target
            inset = 3 if x2 > x1 else -3
            picture.arrow(x1 + inset, y + 6, x2 - inset, y + 6, step.text, dashed=step.dashed)
        else:
            last = step.actor if step.until is None else step.until
            x1, x2 = left + gap * step.actor, left + gap * last
            half = max(60.0, len(step.text) * 3.7 + 14 - (x2 - x1) / 2)
            picture.box(x1 - half, y - 12, x2 - x1 + 2 * half, 30, step.text, fill=step.fill, plain=True)
    return picture.render()


def terminal(title: str, text: str, command: str) -> str:
    """A terminal screen with a command and what it printed."""
    lines = [f"$ {command}", *text.rstrip().split("\n")]
    columns = max(len(line) for line in lines)
    width, height = int(columns * 7.83 + 44), len(lines) * 18 + 58
    rows = [
        f'<text x="20" y="{54 + number * 18}" fill="{_color(line)}" xml:space="preserve">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    dots = "".join(
        f'<circle cx="{20 + 18 * number}" cy="19" r="6" fill="{color}"/>' for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="{MONO}" font-size="13">\n<title>{escape(title)}</title>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="#1d2433"/>\n{dots}\n' + "\n".join(rows) + "\n</svg>\n"
    )


def _color(line: str) -> str:
    if line.startswith("$"):
        return "#8ecbff"
    if line.startswith("=="):
        return "#ffd479"
    if line.startswith("PASS"):
        return "#8ee59b"
    return "#e6eaf2"
