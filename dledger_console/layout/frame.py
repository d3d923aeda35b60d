"""The frame around every page: name, navigation, who is logged in, light or dark, and one line that says how fresh the page is.

The line has its place whether it has something to say or not, so that nothing moves when it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nicegui import ui
from starlette.requests import Request

THEME_COOKIE = "dledger_theme"
PAGES = (
    ("/", "Cluster", "c"),
    ("/topics", "Topics", "t"),
    ("/groups", "Consumer groups", "g"),
    ("/dead-letters", "Dead letters", "d"),
    ("/waiting", "Waiting", "w"),
    ("/nodes", "Nodes", "n"),
    ("/drills", "Drills", "r"),
)
# g and then the letter of a page goes there; nothing while something is typed.
KEYS = Path(__file__).with_name("keys.js").read_text(encoding="utf-8")


@dataclass(slots=True)
class PageState:
    """The line of state, and where the page's own part goes."""

    line: ui.label
    content: ui.element
    visible: bool = True
    on_visible: list[Callable[[], None]] = field(default_factory=list)

    def say(self, trouble: str, seen_at: float) -> None:
        """``trouble`` is empty when all is well; ``seen_at``: seconds since 1970 of what is shown, 0 when nothing is yet."""
        clock = time.strftime("%H:%M:%S", time.localtime(seen_at))
        shown = f"as of {clock}" if seen_at else "asking the cluster…"
        self.line.set_text(f"{trouble} — shown {shown}" if trouble and seen_at else trouble or shown)
        self.line.classes(replace="state state-bad" if trouble else "state")
        self.content.classes(replace="main stale" if trouble else "main")


def build(user: str, title: str, request: Request, *, read_only: bool) -> PageState:
    """The frame of one page."""
    path = request.url.path
    dark = ui.dark_mode({"dark": True, "light": False}.get(request.cookies.get(THEME_COOKIE, "")))
    with ui.element("header").classes("top"):
        ui.link("Skip to the page", "#main").classes("skip")
        ui.link("dledger", "/").classes("brand")
        with ui.element("nav").classes("nav").props('aria-label="Pages"'):
            for target, name, key in PAGES:
                link = ui.link(name, target).classes("nav-link").props(f'title="keys: g {key}"')
                if target == path or (target != "/" and path.startswith(target.rstrip("s"))):
                    link.classes("nav-here").props('aria-current="page"')
        with ui.element("div").classes("who"):
            if read_only:
                ui.label("read-only").classes("badge")
            if user:
                ui.label(user).classes("user")
            ui.button("Theme", on_click=lambda: _toggle(dark)).props("flat dense no-caps").classes("quiet")
            if user:
                ui.button("Log out", on_click=_log_out).props("flat dense no-caps").classes("quiet")
    line = ui.label("asking the cluster…").classes("state").props('role="status"')
    main = ui.element("main").classes("main").props('id="main" tabindex="-1"')
    with main:
        ui.element("h1").classes("title").props["textContent"] = title
    state = PageState(line, main)
    ui.on("dledger_visible", lambda event: _now_visible(state, bool(event.args)))
    keys = ", ".join(f"{key}: '{target}'" for target, _, key in PAGES)
    ui.timer(0, lambda: ui.run_javascript(KEYS % f"{{{keys}}}"), once=True)
    return state


def _now_visible(state: PageState, visible: bool) -> None:
    state.visible = visible
    for act in state.on_visible:
        act()


def _toggle(dark: ui.dark_mode) -> None:
    async def work() -> None:
        is_dark = await ui.run_javascript("document.body.classList.contains('body--dark')")
        dark.value = not is_dark
        name = "light" if is_dark else "dark"
        ui.run_javascript(f"document.cookie = '{THEME_COOKIE}={name}; path=/; max-age=31536000; samesite=lax'; ''")

    ui.timer(0, work, once=True)


def _log_out() -> None:
    code = "const f = document.createElement('form'); f.method = 'post'; f.action = '/logout'; document.body.append(f); f.submit();"
    ui.run_javascript(code)
