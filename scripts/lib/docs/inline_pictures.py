"""A hook of MkDocs: puts the drawn pictures into their pages, where the page's own switch between light and dark reaches their colours."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.structure.pages import Page

ASSETS = Path(__file__).resolve().parents[3] / "docs" / "assets"
PICTURE = re.compile(r'<img alt="([^"]*)" src="[^"]*assets/([\w-]+\.svg)" ?/?>')


def on_page_content(html: str, page: Page, **_: object) -> str:
    return PICTURE.sub(_inlined, html)


def _inlined(found: re.Match[str]) -> str:
    text = (ASSETS / found[2]).read_text(encoding="utf-8")
    return text.replace('role="img"', f'role="img" aria-label="{found[1]}"', 1) if 'class="dledger-picture"' in text else found[0]
