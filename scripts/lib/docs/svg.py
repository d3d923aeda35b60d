"""A small SVG canvas: boxes, texts, arrows, sequence diagrams and terminal screens, with no font or script from elsewhere.

Pictures are as wide as a phone, with texts of 16 units, so that they read at 360 px without zoom.  Their colours are variables: dark ones
follow the reader's scheme in a file, and the page's own switch where ``inline_pictures.py`` has put the picture into the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 360
CHARACTER = 9.3  # how wide a character may be, at most about so much on average
BLUE, GREEN, ORANGE, RED, GREY = "var(--blue)", "var(--green)", "var(--orange)", "var(--red)", "var(--grey)"
LIGHT = "--ink:#24324a;--line:#5a6b8c;--blue:#dbe7ff;--green:#d9f2e0;--orange:#ffe9cc;--red:#ffd9d6;--grey:#eef1f6;"
DARK = "--ink:#e6eaf2;--line:#9aa9c4;--blue:#2d4470;--green:#255a3e;--orange:#654a20;--red:#70332f;--grey:#3b4355;"
CLASS = "dledger-picture"
STYLE = (
    f".{CLASS}{{{LIGHT}--back:#fff;max-width:100%;height:auto}}\n"
    f"@media (prefers-color-scheme:dark){{.{CLASS}{{{DARK}--back:#1e2129}}}}\n"
    f"[data-md-color-scheme=default] .{CLASS}{{{LIGHT}--back:var(--md-default-bg-color)}}\n"
    f"[data-md-color-scheme=slate] .{CLASS}{{{DARK}--back:var(--md-default-bg-color)}}\n"
    f".{CLASS} text{{fill:var(--ink);font-size:16px;stroke:none}}\n"
    f".{CLASS} .over{{paint-order:stroke;stroke:var(--back);stroke-width:5px}}"
)
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


@dataclass
class Canvas:
    """A picture under construction; coordinates in pixels from the top left corner."""

    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, text: str = "", *, fill: str = BLUE, plain: bool = False) -> None:
        edges = 'rx="7" stroke="var(--line)" stroke-width="1.3"'
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" {edges}/>')
        lines = text.split("\n") if text else []
        top = y + height / 2 - (len(lines) - 1) * 10 + 6
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * 20, line, bold=number == 0 and not plain)

    def text(self, x: float, y: float, text: str, *, anchor: str = "middle", bold: bool = False, over: bool = False) -> None:
        """``over``: with an edge in the colour of the page, to be read across lines."""
        weight = ' font-weight="600"' if bold else ""
        edge = ' class="over"' if over else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{edge}{weight}>{escape(text)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="var(--line)" stroke-width="1.8" marker-end="url(#tip)"{dash}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="var(--line)" stroke-width="1.2" stroke-dasharray="3 4"/>'
        )

    def render(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{CLASS}" viewBox="0 0 {WIDTH} {self.height:g}" width="{WIDTH}" '
            f'height="{self.height:g}" role="img" font-family="{SANS}">\n<title>{escape(self.title)}</title>\n<style>\n{STYLE}\n</style>\n'
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path d="M0 0 L10 5 L0 10 z" fill="var(--line)"/></marker></defs>\n'
            f'<rect width="{WIDTH}" height="{self.height:g}" fill="var(--back)"/>\n'
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
    """A box on one actor's line; its text may have several lines."""

    actor: int
    text: str
    fill: str = ORANGE


def sequence(title: str, actors: Sequence[str], steps: Sequence[Say | Note]) -> str:
    """A sequence diagram: time runs downwards.  The text of an arrow has a line of its own above it."""
    pitch = WIDTH / len(actors)
    at = [pitch * (number + 0.5) for number in range(len(actors))]
    heights = [48 if isinstance(step, Say) else 24 + 20 * (1 + step.text.count("\n")) for step in steps]
    top = 64
    picture = Canvas(top + sum(heights) + 14, title)
    for x, name in zip(at, actors, strict=True):
        picture.line(x, top - 8, x, picture.height - 6)
        picture.box(x - pitch / 2 + 3, 6, pitch - 6, 50, name, fill=GREEN if "Leader" in name else BLUE)
    y = top
    for step, height in zip(steps, heights, strict=True):
        if isinstance(step, Say):
            x1, x2 = at[step.source], at[step.target]
            inset = 3 if x2 > x1 else -3
            picture.text(_within((x1 + x2) / 2, len(step.text) * CHARACTER), y + 20, step.text, over=True)
            picture.arrow(x1 + inset, y + 34, x2 - inset, y + 34, dashed=step.dashed)
        else:
            width = max(map(len, step.text.split("\n"))) * CHARACTER + 16
            picture.box(_within(at[step.actor], width) - width / 2, y + 8, width, height - 12, step.text, fill=step.fill, plain=True)
        y += height
    return picture.render()


def _within(middle: float, width: float) -> float:
    """The middle of something so wide that is moved into the picture."""
    return min(max(middle, width / 2 + 3), WIDTH - width / 2 - 3)


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
