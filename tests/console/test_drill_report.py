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
        expect(page.get_by_text("Scripts are off here")).to_be_hidden()
        expect(page.get_by_text("Point at a timeline")).to_be_visible()
        broken = page.locator("details.bad")
        assert broken.count() == sum(not each.passed for each in report.rounds) > 0
        expect(broken.first.locator(".picture")).to_be_visible()
        closed = page.locator(".round:not(.bad)").first
        expect(closed.locator(".picture")).to_be_hidden()
        closed.locator("summary").click()
        expect(closed.locator(".picture")).to_be_visible()
        picture(page, f"drill-{name}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        _is_explored(page)
        picture(page, f"drill-{name}-zoomed")


def _is_explored(page: Page) -> None:
    """Pointing shows figures inside the picture; a zoom stretches neither text nor strokes; keys zoom and move."""
    picture_ = page.locator("details[open] .picture").first
    plot, wide, told = (picture_.locator(each) for each in (".plot", ".wide", "output"))
    plot.hover()
    expect(told).to_contain_text("acked/s")
    outer, inner = picture_.bounding_box(), told.bounding_box()
    assert outer is not None
    assert inner is not None
    assert outer["y"] <= inner["y"] <= inner["y"] + inner["height"] <= outer["y"] + outer["height"] + 1
    before, height = told.inner_text(), _sizes(page)
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text() != before
    page.keyboard.press("+")
    picture_.get_by_role("button", name="zoom in").click()
    assert wide.evaluate("box => box.clientWidth / box.parentElement.clientWidth") == pytest.approx(3.0, abs=0.02)
    assert _sizes(page) == height
    page.keyboard.press("Tab")
    plot.focus()
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    assert plot.evaluate("box => box.scrollLeft") > 0
    picture_.get_by_role("button", name="the whole round").click()
    assert wide.evaluate("box => box.clientWidth == box.parentElement.clientWidth")


def _sizes(page: Page) -> object:
    """Of a text and of a stroke in the first picture, as they are on the screen."""
    return page.evaluate(
        """() => {
        const picture = document.querySelector("details[open] .picture"), tick = picture.querySelector(".ticks i");
        const range = document.createRange();
        range.selectNodeContents(tick);
        const text = range.getBoundingClientRect(), line = getComputedStyle(picture.querySelector("path"));
        return [text.width, text.height, line.strokeWidth, line.vectorEffect];
        }"""
    )


def test_a_finger_shows_figures_and_two_zoom(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "drill.html"
    write_page(made(2), file)
    with browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True) as page:
        page.goto(file.as_uri())
        page.locator(".round summary").first.tap()
        plot = page.locator(".plot").first
        plot.tap()
        expect(page.locator("output").first).to_contain_text("acked/s")
        plot.evaluate(
            """plot => {
            const finger = (kind, pointerId, clientX) =>
                plot.dispatchEvent(new PointerEvent(kind, { pointerId, clientX, pointerType: "touch" }));
            finger("pointerdown", 7, 150), finger("pointerdown", 8, 200), finger("pointermove", 8, 250);
            finger("pointerup", 7, 150), finger("pointerup", 8, 250);
            }"""
        )
        assert plot.evaluate("box => box.scrollWidth / box.clientWidth") == pytest.approx(2.0, abs=0.02)


def test_rounds_of_a_thousand_are_found(browser: Browser, tmp_path: Path) -> None:
    """By fault, by what was broken, and by their number, which opens what they are folded in."""
    report, file = made(1000, failing=0.01), tmp_path / "drill.html"
    write_page(report, file)
    broken = sum(not each.passed for each in report.rounds)
    alone = sum(each.faults == ("kill-leader",) for each in report.rounds)
    with looking(browser, file.as_uri()) as page:
        page.goto(file.as_uri())
        page.get_by_label("Show").select_option(f"broken: {broken}")
        expect(page.locator(".round:not([hidden])")).to_have_count(broken)
        page.get_by_role("row", name="kill-leader what").get_by_role("link", name=str(alone), exact=True).click()
        expect(page.locator(".round:not([hidden])")).to_have_count(alone)
        expect(page.locator("#shown")).to_have_text(f"{alone} of 1000")
        worst = max((each for each in report.rounds if each.faults == ("power-two",)), key=lambda each: each.unavailable_ms)
        link = page.get_by_role("row", name="power-two what").locator(f'a[href="#round-{worst.number}"]:not([data-show])')
        link.click()
        expect(page.locator(f"#round-{worst.number} .picture")).to_be_in_viewport()
        page.goto(f"{file.as_uri()}#round-777")
        expect(page.locator("#round-777 code")).to_be_visible()


def test_a_hundred_rounds_stay_small(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "drill.html"
    write_page(made(100), file)
    assert file.stat().st_size < 2 << 20
    with looking(browser, file.as_uri()) as page:
        page.goto(file.as_uri())
        assert page.locator(".picture").count() == 100


def test_the_console_lists_reports_by_their_verdict(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    report, file = made(3), shop.data / "reports" / "drill-made.html"
    file.parent.mkdir(exist_ok=True)
    write_page(report, file)
    try:
        with looking(browser, console.url) as page:
            page.goto("/drills")
            place = page.get_by_role("link", name=verdict(report)).get_attribute("href")
            with page.expect_download() as waited:
                page.get_by_role("row", name=verdict(report)).get_by_role("link", name="download").click()
            assert waited.value.suggested_filename == "drill-made.html"
            assert waited.value.path().read_bytes() == file.read_bytes()
        with browser.new_page() as page:  # the console lets no script of a report run, of which the browser complains
            page.goto(f"{console.url}{place}")
            expect(page.get_by_role("heading", level=1)).to_have_text(verdict(report))
            page.locator(".round summary").first.click()
            expect(page.locator(".picture").first).to_be_visible()
            expect(page.get_by_text("Scripts are off here")).to_be_visible()
            expect(page.get_by_text("Point at a timeline")).to_be_hidden()
            expect(page.get_by_label("Show")).to_be_hidden()
    finally:
        file.unlink()  # the folder is shared by all tests
