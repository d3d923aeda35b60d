"""Topics and messages in a browser: with data, empty, hostile, two thousand topics; made, changed and deleted after a question."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from dledger_client import Admin, Message, Producer, PullConsumer
from tests.console.rig import DESK, PHONE, ConsoleProcess, Shop, is_live, looking, picture, said
from tests.waiting import wait_until

HOSTILE = "<img/src=x/onerror=document.title='owned'><script>document.title='owned'</script>"
TEMPLATE = "{{constructor.constructor('document.title=1')()}}"
CONTROLS = "\x1b[31m\x07\x00\u202e"
MANY = 2_000


@pytest.fixture(scope="module")
def filled(shop: Shop) -> Shop:
    """The shop with a topic of odd messages, and an empty one."""
    with Admin(shop.bootstrap) as admin:
        admin.create_topic("odd", queues=1)
        admin.create_topic("empty", queues=2)
    with Producer(shop.bootstrap, group="odd") as producer:
        properties = {HOSTILE: CONTROLS + TEMPLATE}
        producer.send(Message("odd", (HOSTILE + CONTROLS + TEMPLATE).encode(), keys=HOSTILE, tags="<b>bold</b>", properties=properties))
        producer.send(Message("odd", bytes(range(256)) * 40, keys="binary"))
        producer.send(Message("odd", b"x" * 1_000_000, keys="large"))
        producer.send(Message("odd", json.dumps({"id": 7, "note": HOSTILE}).encode(), keys="json", properties={"amount": "12"}))
    return shop


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).first.click()
    page.get_by_role("option", name=option, exact=True).click()


def shown(page: Page) -> list[str]:
    """The bodies in the table of messages."""
    return page.locator(".messages tbody tr td:last-child").all_inner_texts()


def test_topics_with_what_they_hold(browser: Browser, console: ConsoleProcess, filled: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/topics")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
        expect(row).to_contain_text("200")
        expect(row).to_contain_text("g0")
        expect(row).to_contain_text("read, write")
        page.get_by_label("Search").fill("odd")
        expect(page.locator(".bounded tbody tr")).to_have_count(1)
        page.get_by_role("link", name="odd").click()
        expect(page.locator(".figures")).to_contain_text("1 read, 1 written")
        expect(page.locator(".messages tbody tr")).to_have_count(4)
        picture(page, "topic-odd")


@pytest.mark.parametrize(("look", "size", "scheme"), [("desk", DESK, "light"), ("phone-dark", PHONE, "dark")])
def test_pages_of_a_topic_and_a_message(
    browser: Browser, console: ConsoleProcess, filled: Shop, look: str, size: tuple[int, int], scheme: str
) -> None:
    with looking(browser, console.url, size, scheme) as page:
        page.goto("/topic?name=orders")
        expect(page.locator(".messages tbody tr")).to_have_count(50)
        expect(page.locator(".notice")).to_contain_text("read from")
        picture(page, f"topic-{look}")
        page.goto("/message?topic=orders&group=g0&queue=0&offset=3")
        expect(page.locator(".body-text")).to_contain_text('"number": 6')
        expect(page.get_by_role("row").filter(has_text="shipping")).to_contain_text("consumed")
        expect(page.get_by_role("row").filter(has_text="holds it")).to_contain_text("n0, n1, n2")
        picture(page, f"message-{look}")
        page.goto("/topic?name=empty")
        expect(page.locator(".messages")).to_contain_text("no messages")
        picture(page, f"topic-empty-{look}")


def test_messages_are_read_at_followers(browser: Browser, console: ConsoleProcess, filled: Shop) -> None:
    with looking(browser, console.url) as page:

        def spares_the_leader() -> bool:
            leader = filled.leader()
            page.goto("/topic?name=payments")
            told = page.locator(".notice")
            expect(told).to_contain_text("read from")
            return leader not in told.inner_text()

        # The leader answers when another one is elected, or when this machine holds up both followers: then the next look counts.
        wait_until(spares_the_leader, "messages are read at followers", limit_s=60)


def test_messages_by_every_way_to_look_for_them(browser: Browser, console: ConsoleProcess, filled: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/topic?name=orders")
        is_live(page)
        told = page.locator(".notice")
        expect(told).to_contain_text("50 messages")
        seen = shown(page)
        first, following = page.locator(".messages tbody a").first, page.get_by_role("button", name="Next page")
        for _ in range(3):
            before = first.inner_text()
            following.click()
            expect(first).not_to_have_text(before)
            seen += shown(page)
        expect(following).to_be_disabled()
        assert sorted(json.loads(body)["number"] for body in seen) == list(range(200))  # each once
        ways = (
            ("With a key", "o-17", {17}),
            ("Filter (SQL)", "KEYS = 'o-21'", {21}),
            ("From an offset on", "95", {191, 193, 195, 197, 199}),
        )
        for way, sought, numbers in ways:
            choose(page, "What to show", way)
            if way.startswith("From an offset"):
                choose(page, "Queue", "g0 1")
            page.get_by_label("What to look for").fill(sought)
            page.get_by_role("button", name="Show", exact=True).click()
            expect(page.locator(".messages tbody tr")).to_have_count(len(numbers))
            expect(page.locator(".messages")).to_contain_text(f"o-{min(numbers)}")
            assert {json.loads(body)["number"] for body in shown(page)} == numbers, way
        choose(page, "What to show", "Oldest first")
        choose(page, "Queue", "all queues")
        page.get_by_role("button", name="Show", exact=True).click()
        expect(page.locator(".messages tbody tr").first).to_contain_text("o-0")
        choose(page, "What to show", "From a time on")
        page.get_by_label("What to look for").fill(str(int(time.time() * 1000) + 3_600_000))
        page.get_by_role("button", name="Show", exact=True).click()
        expect(told).to_contain_text("0 messages")
        page.get_by_label("What to look for").fill("yesterday")
        page.get_by_role("button", name="Show", exact=True).click()
        expect(told).to_contain_text("expected a date and time")
        choose(page, "What to show", "Filter (SQL)")
        page.get_by_label("What to look for").fill("amount >")
        page.get_by_role("button", name="Show", exact=True).click()
        expect(page.locator(".notice.bad")).to_be_visible()


def test_hostile_names_and_bodies_are_texts(browser: Browser, console: ConsoleProcess, filled: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/topic?name=odd")
        row = page.get_by_role("row").filter(has_text="<b>bold</b>")
        expect(row).to_contain_text(HOSTILE)
        expect(row).to_contain_text("\\x1b[31m\\x07\\x00\\u202e")
        row.get_by_role("link").click()
        expect(page.locator(".body-text")).to_have_text(HOSTILE + "\\x1b[31m\\x07\\x00\\u202e" + TEMPLATE)
        expect(page.get_by_role("row").filter(has_text=TEMPLATE).first).to_be_visible()
        page.get_by_role("button", name="Hex").click()
        expect(page.locator(".body-text")).to_contain_text("00000000  3c 69 6d 67")
        picture(page, "message-hostile")
        for path in ("/topic?name=", "/group?name=", "/message?id=", "/dead-letters?group="):
            page.goto(path + quote(HOSTILE + CONTROLS.replace("\x00", "") + TEMPLATE))
            expect(page.locator(".empty, .notice").first).to_be_visible()
            assert "owned" not in page.title()
            assert page.locator("main img").count() == 0
        assert page.title() != "1"
        picture(page, "hostile-name")


def test_a_body_in_its_forms_and_no_larger_than_a_page_can_hold(browser: Browser, console: ConsoleProcess, filled: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/message?topic=odd&group=g0&queue=0&offset=1")
        expect(page.locator(".body-text")).to_contain_text("00000010  10 11 12")
        expect(page.get_by_text("the first 4.0 KiB of 10.0 KiB")).to_be_visible()
        page.goto("/message?topic=odd&group=g0&queue=0&offset=2")
        expect(page.get_by_text("the first 64.0 KiB of 977 KiB")).to_be_visible()
        assert len(page.content()) < 400_000
        page.goto("/message?topic=odd&group=g0&queue=0&offset=3")
        expect(page.locator(".body-text")).to_contain_text('"id": 7,')
        page.get_by_role("button", name="Text").click()
        expect(page.locator(".body-text")).to_contain_text('{"id": 7, ')
        page.goto("/message?topic=odd&group=g0&queue=0&offset=999")
        expect(page.locator(".empty")).to_contain_text("999")
        page.goto("/message?id=0000")
        expect(page.get_by_text("no message with the id 0000 is stored")).to_be_visible()


def test_a_topic_is_made_changed_and_deleted_after_a_question(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with looking(browser, console.url) as page, Admin(shop.bootstrap) as admin:
        page.goto("/topics")
        is_live(page)
        page.get_by_role("button", name="Create topic…").click()
        page.get_by_label("Name").fill("bad name")
        page.get_by_label("Queues").fill("3")
        page.get_by_role("button", name="Create topic", exact=True).click()
        said(page, "character ' '")
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_label("Name")).to_have_value("bad name")
        expect(page.get_by_label("Queues")).to_have_value("3")
        page.get_by_label("Name").fill("made")
        picture(page, "topic-create")
        page.get_by_role("button", name="Create topic", exact=True).click()
        said(page, "topic made was created with 3 queues in g0")
        page.goto("/topic?name=made")
        page.get_by_role("button", name="Change…").click()
        page.get_by_label("Queues that consumers read").fill("5")
        page.get_by_label("Queues that producers write").fill("5")
        page.get_by_role("button", name="Change topic").click()
        said(page, "5 read and 5 written queues")
        assert admin.describe_topic("made")[0].write_queues == 5
        page.get_by_role("button", name="Delete…").click()
        expect(page.get_by_role("button", name="Delete topic")).to_be_disabled()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".q-dialog")).to_have_count(0)
        assert [topic.topic for topic in admin.list_topics() if topic.topic == "made"] == ["made"]
        page.get_by_role("button", name="Delete…").click()
        page.get_by_label("Confirm").fill("made")
        page.get_by_role("button", name="Delete topic").click()
        expect(page).to_have_url(f"{console.url}/topics")
        assert not [topic for topic in admin.list_topics() if topic.topic == "made"]


def test_a_console_that_is_read_only_offers_no_action(browser: Browser, filled: Shop) -> None:
    started = ConsoleProcess(filled.data, "--config", str(filled.local.file), "--read-only").wait()
    try:
        with looking(browser, started.url) as page:
            for path in ("/topics", "/topic?name=orders", "/group?name=shipping", "/dead-letters?group=shipping", "/waiting"):
                page.goto(path)
                is_live(page)
                assert page.get_by_role("button", name="…").count() == 0, path
    finally:
        started.end()


def test_two_thousand_topics(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with Admin(shop.bootstrap) as admin:
        for number in range(MANY):
            admin.create_topic(f"many-{number:04d}", queues=1, if_not_exists=True)
    with Producer(shop.bootstrap, group="many") as producer, PullConsumer(shop.bootstrap, group="reader") as reader:
        for _ in range(7):
            producer.send(Message("many-1234", b"x"))
        reader.commit({("many-1234", 0): 2})
    with looking(browser, console.url) as page:
        page.goto("/topics")
        table = page.locator(".bounded")
        expect(table.locator("tbody tr")).to_have_count(50)
        expect(table.locator(".q-table__bottom")).to_contain_text("of 200")  # two thousand and some
        assert len(page.content()) < 600_000
        is_live(page)
        page.get_by_label("Search").fill("many-123")
        expect(table.locator("tbody tr")).to_have_count(10)
        page.get_by_role("columnheader", name="Messages").click()
        page.get_by_role("columnheader", name="Messages").click()
        expect(table.locator("tbody tr").first).to_contain_text("many-1234")
        expect(table.locator("tbody tr").first).to_contain_text("7")
        picture(page, "topics-2000")
        page.goto("/groups")
        expect(page.get_by_role("row").filter(has_text="many-1234")).to_contain_text("5")
