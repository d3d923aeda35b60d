"""The report of a drill in a browser: as a file at desktop and phone width, light and dark, and in the console's list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from dledger_drill.report.page import write_page
from dledger_drill.report.statistics import verdict
from tests.console.rig import DESK, PHONE, ConsoleProcess, Shop, looking, picture
from tests.unit.drill.report.made import HOSTILE, made


@pytest.mark.parametrize(("name", "size", "scheme"), [("desk", DESK, "light"), ("dark", DESK, "dark"), ("phone", PHONE, "light")])
def test_a_report_is_read_without_any_other_file(browser: Browser, tmp_path: Path, name: str, size: Any, scheme: str) -> None:
    """Names in it try to break out: ``looking`` fails for an error, a dialog, or a request that left."""
    report, file = made(30, failing=0.1, hostile=True), tmp_path / "drill.html"
    write_page(report, file)
    with looking(browser, file.as_uri(), size, scheme) as page:
        page.goto(file.as_uri())
        expect(page.get_by_role("heading", level=1)).to_have_text(verdict(report))
        expect(page.get_by_text(HOSTILE[:20]).first).to_be_attached()
        broken = page.locator("details.bad")
        assert broken.count() == sum(not each.passed for each in report.rounds) > 0
        expect(broken.first.locator("svg.timeline")).to_be_visible()
        closed = page.locator("details:not(.bad)").first
        expect(closed.locator("svg.timeline")).to_be_hidden()
        closed.locator("summary").click()
        expect(closed.locator("svg.timeline")).to_be_visible()
        picture(page, f"drill-{name}")
        _is_explored(page)


def _is_explored(page: Page) -> None:
    """Pointing shows figures; keys zoom and move."""
    timeline = page.locator("details[open] svg.timeline").first
    timeline.hover()
    told = page.locator("details[open] output").first
    expect(told).to_contain_text("acknowledged/s")
    before, whole = told.inner_text(), timeline.get_attribute("viewBox")
    timeline.focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() != before
    page.keyboard.press("+")
    zoomed = timeline.get_attribute("viewBox")
    assert zoomed != whole
    page.keyboard.press("0")
    assert timeline.get_attribute("viewBox") == whole


def test_a_hundred_rounds_stay_small(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "drill.html"
    write_page(made(100), file)
    assert file.stat().st_size < 2 << 20
    with looking(browser, file.as_uri()) as page:
        page.goto(file.as_uri())
        assert page.locator("svg.timeline").count() == 100


def test_the_console_lists_reports_by_their_verdict(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    report, file = made(3), shop.data / "reports" / "drill-made.html"
    file.parent.mkdir(exist_ok=True)
    write_page(report, file)
    try:
        with looking(browser, console.url) as page:
            page.goto("/drills")
            place = page.get_by_role("link", name=verdict(report)).get_attribute("href")
        with browser.new_page() as page:  # the console lets no script of a report run, of which the browser complains
            page.goto(f"{console.url}{place}")
            expect(page.get_by_role("heading", level=1)).to_have_text(verdict(report))
            page.locator("summary").first.click()
            expect(page.locator("svg.timeline").first).to_be_visible()
    finally:
        file.unlink()  # the folder is shared by all tests
