"""Cluster, nodes and drills: with data, while a leader falls, without a leader, with nobody there."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from dledger_client import Admin
from tests.console.rig import DESK, PHONE, WAIT_MS, ConsoleProcess, Shop, is_live, looking, picture, said
from tests.waiting import wait_until

PAGES = ("/", "/topics", "/groups", "/dead-letters", "/waiting", "/nodes", "/node?id=n0", "/drills")
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def _name(path: str) -> str:
    return path.partition("?")[0].strip("/") or "cluster"


@pytest.mark.parametrize(
    ("look", "size", "scheme"), [("desk-light", DESK, "light"), ("desk-dark", DESK, "dark"), ("phone", PHONE, "light")]
)
def test_every_page_shows_the_cluster(browser: Browser, console: ConsoleProcess, look: str, size: tuple[int, int], scheme: str) -> None:
    with looking(browser, console.url, size, scheme) as page:
        for path in PAGES:
            page.goto(path)
            is_live(page)
            assert page.locator("h1").count() == 1
            expect(page.locator(".state-bad")).to_have_count(0)  # there may be an election just now
            is_dark = page.evaluate("document.body.classList.contains('body--dark')")
            assert is_dark == (scheme == "dark")
            picture(page, f"{_name(path)}-{look}")


def test_who_lags_and_why_the_leader_changed_stand_on_the_first_page(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/")
        row = page.get_by_role("row").filter(has_text="shipping")
        expect(row).to_contain_text("190")  # of 200 it has passed 10
        expect(row).to_contain_text("orders")
        expect(page.locator(".card").filter(has_text="Consumer groups that lag most")).not_to_contain_text("billing")
        expect(page.locator(".changes .change").first).to_contain_text(shop.leader())
        row.get_by_role("link", name="shipping").click()
        expect(page).to_have_url(f"{console.url}/group?name=shipping")


def test_a_node_that_does_not_answer_is_not_said_to_be_asked_still(browser: Browser, console: ConsoleProcess) -> None:
    with looking(browser, console.url) as page:
        page.goto("/node?id=n9")
        expect(page.locator(".state-bad")).to_contain_text("there is no node 'n9'")
        for table in ("Files", "Versions and connections", "Settings in force"):
            expect(page.get_by_label(table).first).to_contain_text("not known yet")


def test_leadership_is_handed_over_after_a_question(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    new = next(node for node in ("n0", "n1", "n2") if node != shop.leader())
    before = transfers_to(shop, new)
    with looking(browser, console.url) as page:
        page.goto(f"/node?id={new}")
        hand_over = page.get_by_role("button", name="Hand leadership to this node")
        hand_over.click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".q-dialog")).to_have_count(0)
        assert transfers_to(shop, new) == before
        hand_over.click()
        picture(page, "question")
        page.get_by_role("button", name="Hand over").click()
        said(page, f"{new} leads g0 now")
        wait_until(lambda: transfers_to(shop, new) > before, "the nodes tell of the transfer")
        page.goto("/")
        change = page.locator(".changes .change").filter(has_text="handed over")  # on a busy machine it may not be the last one
        expect(change.filter(has=page.get_by_role("link", name=new)).first).to_be_visible()


def transfers_to(shop: Shop, node: str) -> int:
    """How often leadership was handed to a node; elections, which a busy machine may hold at any time, do not count."""
    with Admin(shop.bootstrap) as admin:
        return sum(change.kind == "transfer" and change.leader == node for change in admin.leader_history())


def test_a_failover_is_seen_as_it_happens(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/")
        expect(page.locator(".sentence")).to_contain_text("3 of 3 nodes up")
        page.evaluate("window.sameDocument = true")
        expect(page.locator(".changes .change").first).to_be_visible()
        falls = {node: page.locator(".changes .change").filter(has_text=f"{node} →") for node in ("n0", "n1", "n2")}
        before = {node: shown.count() for node, shown in falls.items()}
        old = shop.leader()
        fallen = falls[old]
        shop.kill(old)
        expect(page.locator(".sentence")).to_contain_text("2 of 3 nodes up", timeout=WAIT_MS)
        expect(fallen.nth(before[old])).to_be_visible(timeout=WAIT_MS)  # on a busy machine it may not be the last one, nor the only one
        expect(fallen.first.get_by_role("link", name=re.compile("n[012]"))).to_be_visible()
        expect(fallen.first.locator(".why")).not_to_be_empty()
        expect(page.locator(".attention")).to_contain_text(old)
        assert page.evaluate("window.sameDocument"), "the page was loaded again"
        picture(page, "cluster-node-down")
        age = fallen.first.get_by_text(" ago")
        told = age.inner_text()
        expect(age).not_to_have_text(told)  # it is counted on while the page is open
        for path in ("/nodes", f"/node?id={old}"):
            page.goto(path)
            expect(page.get_by_text("unreachable").first).to_be_visible()
            picture(page, f"{_name(path)}-node-down")
        shop.start(old)
        page.goto("/")
        expect(page.locator(".sentence")).to_contain_text("writes go on when one more node fails", timeout=WAIT_MS)


def test_without_a_leader_the_page_says_so_and_what_was_seen_stays(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    follower = next(node for node in ("n0", "n1", "n2") if node != shop.leader())
    others = [node for node in ("n0", "n1", "n2") if node != follower]
    with looking(browser, console.url) as page:
        page.goto("/")
        is_live(page)
        for node in others:
            shop.kill(node)
        expect(page.locator(".sentence.on-bad")).to_contain_text("no quorum in g0", timeout=WAIT_MS)
        expect(page.locator(".attention")).to_contain_text("no-leader: g0", timeout=WAIT_MS)
        picture(page, "cluster-no-leader")
        for path in PAGES[1:]:
            page.goto(path)
            expect(page.locator("h1")).to_be_visible()
            picture(page, f"{_name(path)}-no-leader")
        page.goto("/nodes")
        expect(page.locator(".pill.on-bad")).to_have_count(2, timeout=WAIT_MS)
        shop.kill(follower)
        expect(page.locator(".pill.on-bad")).to_have_count(3, timeout=WAIT_MS)
        picture(page, "nodes-nobody")
        page.goto("/")  # nothing is said of consumers that nobody told: neither "no lag" nor that all is read
        lags = page.locator(".card").filter(has_text="Consumer groups that lag most")
        expect(lags).to_contain_text("not known: no node answers", timeout=WAIT_MS)
        expect(lags.locator(".bounded.stale, .q-table__bottom--nodata").first).to_be_visible()
        expect(page.locator(".card").filter(has_text="Consumer lag, messages")).to_contain_text("not known: no node answers")
        expect(page.get_by_text("no lag", exact=True)).to_have_count(0)
        expect(page.locator(".attention")).to_contain_text(re.compile("not checked: .*group-lag, group-stuck"))
        picture(page, "cluster-nobody")
        shop.start()


def test_keys_reach_every_page_and_the_search(browser: Browser, console: ConsoleProcess) -> None:
    with looking(browser, console.url) as page:
        page.goto("/")
        is_live(page)
        for key, path in (("n", "/nodes"), ("r", "/drills"), ("t", "/topics"), ("c", "/")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(page).to_have_url(f"{console.url}{path}")
            is_live(page)
        page.goto("/nodes")
        is_live(page)
        page.keyboard.press("/")
        page.keyboard.type("n2")
        expect(page.locator(".bounded tbody tr")).to_have_count(1)
        page.goto("/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "nicegui-link skip"


def test_dark_or_light_is_remembered(browser: Browser, console: ConsoleProcess) -> None:
    with looking(browser, console.url) as page:
        page.goto("/")
        is_live(page)
        page.get_by_role("button", name="Theme").click()
        page.wait_for_function("document.body.classList.contains('body--dark')")
        page.wait_for_function("document.cookie.includes('dledger_theme=dark')")
        page.goto("/nodes")
        page.wait_for_function("document.body.classList.contains('body--dark')")


def test_a_report_is_shown_without_its_scripts(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    folder = shop.data / "reports"
    folder.mkdir(exist_ok=True)
    text = f"<title>Drill {HOSTILE.replace('<', '&lt;')} PASS</title><h1>10 rounds</h1><script>document.title = 'ran'</script>"
    (folder / "drill-1.html").write_text(text, encoding="utf-8")
    (folder / "secret.txt").write_text("x", encoding="utf-8")
    with looking(browser, console.url) as page:
        page.goto("/drills")
        row = page.locator(".bounded tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("<script>alert(2)</script>")
        picture(page, "drills-hostile")
    with browser.new_page() as shown:  # here the browser says that it stopped a script
        shown.goto(f"{console.url}/report?name=drill-1.html")
        expect(shown.locator("h1")).to_have_text("10 rounds")
        assert shown.title().startswith("Drill")
        assert shown.evaluate("window.origin") == "null"
        _status_is(shown, f"{console.url}/report?name=secret.txt", 404)
        _status_is(shown, f"{console.url}/report?name=..%2Fcluster.yaml", 404)


def _status_is(page: Page, url: str, status: int) -> None:
    found = page.goto(url)
    assert found is not None
    assert found.status == status
