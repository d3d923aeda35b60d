"""Consumer groups, dead letters and what waits: who lags and who reads, a move that is shown before it is done, letters sent again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from dledger_client import (
    Action,
    Admin,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from tests.console.rig import DESK, PHONE, WAIT_MS, ConsoleProcess, Shop, is_live, looking, picture, said
from tests.waiting import LIMIT_S, wait_until

LETTERS = 20


@pytest.fixture(scope="module")
def letters(shop: Shop) -> Shop:
    """Dead letters of the consumer group ``packing``."""
    with Admin(shop.bootstrap) as admin:
        admin.create_topic("parcels", queues=1)
    with Producer(shop.bootstrap, group="parcels") as producer:
        for number in range(LETTERS):
            producer.send(Message("parcels", b"parcel %d" % number, keys=f"parcel-{number}"))
    with PullConsumer(shop.bootstrap, group="packing") as consumer:
        consumer.send_back("parcels", 0, range(LETTERS), delay_level=-1)
        consumer.commit({("parcels", 0): LETTERS})
    return shop


@pytest.fixture
def member(shop: Shop) -> Iterator[PushConsumer]:
    """A member of the consumer group ``mailing``, which reads one message at a time and slowly."""
    waiting = threading.Event()

    def slowly(*_: object) -> Action:
        waiting.wait(LIMIT_S)
        return Action.COMMIT

    consumer = PushConsumer(bootstrap=shop.bootstrap, group="mailing", listener=slowly, client_id="mailer<1>")
    consumer.subscribe("orders")
    consumer.start()
    yield consumer
    waiting.set()
    consumer.shutdown()


def waiting_letters(shop: Shop) -> int:
    with Admin(shop.bootstrap) as admin:
        return sum(each.waiting for each in admin.dead_letters("packing"))


@pytest.mark.parametrize(("look", "size", "scheme"), [("desk", DESK, "light"), ("phone-dark", PHONE, "dark")])
def test_pages_of_groups_and_letters(
    browser: Browser, console: ConsoleProcess, letters: Shop, look: str, size: tuple[int, int], scheme: str
) -> None:
    with looking(browser, console.url, size, scheme) as page:
        page.goto("/groups")
        expect(page.locator(".bounded tbody tr").first).to_contain_text("shipping")  # the one that lags most stands first
        expect(page.get_by_role("row").filter(has_text="billing")).to_contain_text("has read everything")
        picture(page, f"groups-{look}")
        page.goto("/group?name=shipping")
        expect(page.locator(".figures").first).to_contain_text("190")
        expect(page.get_by_role("row").filter(has_text="g0/1")).to_contain_text("none")
        expect(page.get_by_role("row").filter(has_text="g0/1")).to_contain_text("old")
        picture(page, f"group-{look}")
        page.goto("/dead-letters")
        expect(page.get_by_role("row").filter(has_text="packing")).to_contain_text("20")
        page.goto("/dead-letters?group=nobody")
        expect(page.locator(".empty")).to_contain_text("nobody")
        page.goto("/dead-letters?group=packing")
        expect(page.get_by_text("Reading is not permitted")).to_be_visible()
        picture(page, f"letters-{look}")
        page.goto("/waiting")
        expect(page.locator(".main")).to_contain_text("no message waits for its time")
        expect(page.locator(".main")).to_contain_text("no open transactions")
        picture(page, f"waiting-empty-{look}")


def test_what_waits_for_somebody_stands_on_the_first_page_as_a_link(browser: Browser, console: ConsoleProcess, letters: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/")
        found = page.locator(".attention").get_by_role("link", name="dead-letters: packing: 20 dead letters wait")
        expect(found).to_be_visible()
        picture(page, "cluster-attention")
        found.click()
        expect(page).to_have_url(f"{console.url}/dead-letters?group=packing")
        page.goto("/group?name=shipping")
        page.get_by_role("row").filter(has_text="g0/0").get_by_role("link", name="10", exact=True).click()  # where it stands
        expect(page).to_have_url(f"{console.url}/message?topic=orders&group=g0&queue=0&offset=10")
        expect(page.locator(".main")).to_contain_text("o-")


def test_members_and_who_reads_which_queue(browser: Browser, console: ConsoleProcess, member: PushConsumer) -> None:
    with looking(browser, console.url) as page:
        page.goto("/groups")
        expect(page.get_by_role("row").filter(has_text="mailing")).to_contain_text("is reading", timeout=WAIT_MS)
        page.goto("/group?name=mailing")
        expect(page.get_by_role("row").filter(has_text="g0/0")).to_contain_text("mailer<1>", timeout=WAIT_MS)
        expect(page.get_by_role("row").filter(has_text="concurrent")).to_contain_text("orders (*)")
        picture(page, "group-members")


def test_a_group_that_receives_one_by_one_shows_what_its_consumers_have(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with Admin(shop.bootstrap) as admin:
        admin.create_topic("crates", queues=1)
    with Producer(shop.bootstrap, group="crates") as producer:
        for number in range(7):
            producer.send(Message("crates", b"crate %d" % number))
    with SimpleConsumer(shop.bootstrap, "loading", "crates", invisible_ms=600_000) as consumer:
        got = consumer.receive(max_messages=6)
        assert len(got) == 6
        consumer.ack(got[1])
        consumer.nack(got[:1])
        with looking(browser, console.url) as page:
            page.goto("/groups")
            expect(page.get_by_role("row").filter(has_text="loading")).to_contain_text("is reading: 4 in flight", timeout=WAIT_MS)
            page.goto("/group?name=loading")
            expect(page.get_by_role("row").filter(has_text="one by one")).to_contain_text("g0/0")
            section = page.get_by_text("Received one by one, and not acknowledged").locator("..")
            expect(section.locator(".figures")).to_contain_text("In flight4To be delivered again1")
            expect(section.get_by_role("row").filter(has_text="g0/0").locator("td").nth(2)).to_have_text("4")
            expect(section.locator(".figures")).to_contain_text(re.compile(r"Oldest was delivered[\d.]+ m?s agoMost"))
            picture(page, "group-one-by-one")
            consumer.ack(got[2:])
            expect(section.locator(".figures")).to_contain_text("In flight0To be delivered again1", timeout=WAIT_MS)
            page.goto("/group?name=shipping")
            expect(page.locator(".figures").first).to_contain_text("190")
            expect(page.get_by_text("Received one by one, and not acknowledged")).to_be_hidden()


def test_a_group_is_moved_after_its_move_was_shown(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    def lag() -> int:
        with Admin(shop.bootstrap) as admin:
            return admin.describe_group("billing").lag

    with looking(browser, console.url) as page:
        page.goto("/group?name=billing")
        expect(page.locator(".figures").first).to_contain_text("0")
        is_live(page)
        page.get_by_role("button", name="Move…").click()
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".dialog")).to_contain_text("200 messages are read again")
        expect(page.locator(".dialog").get_by_role("row").filter(has_text="g0/0")).to_contain_text("100")
        picture(page, "group-move")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".q-dialog")).to_have_count(0)
        assert lag() == 0
        page.get_by_role("button", name="Move…").click()
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Move consumer group").click()
        said(page, "billing was moved in topic payments: 200 messages are read again")
        assert lag() == 200
        expect(page.locator(".figures").first).to_contain_text("200")
        page.get_by_role("button", name="Move…").click()
        page.get_by_text("the end: skip what is stored").click()
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".dialog")).to_contain_text("200 stored messages are skipped")
        page.get_by_role("button", name="Move consumer group").click()
        expect(page.locator(".figures").first).to_contain_text("0")
        wait_until(lambda: lag() == 0, "the group is at the end again")


def test_a_field_for_a_number_that_was_cleared_is_not_zero(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    """With 0 deliveries every message that is rejected once would be a dead letter.  The form stays open."""

    def retries() -> int:
        with Admin(shop.bootstrap) as admin:
            return admin.group_settings("billing")[0].retry_max_times

    before = retries()
    with looking(browser, console.url) as page:
        page.goto("/group?name=billing")
        is_live(page)
        page.get_by_role("button", name="Settings…").click()
        for text, said_of_it in (("", "expected a number"), ("1.5", "expected a whole number, not 1.5")):
            page.get_by_label("Deliveries again").fill(text)
            page.get_by_role("button", name="Change settings").click()
            said(page, said_of_it)
            assert retries() == before


def test_dead_letters_are_opened_looked_at_and_sent_again(browser: Browser, console: ConsoleProcess, letters: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/dead-letters?group=packing")
        is_live(page)
        page.get_by_role("button", name="Allow reading…").click()
        page.get_by_role("button", name="Allow reading", exact=True).click()
        said(page, "the dead letters of packing may be read now")
        rows = page.locator(".messages tbody tr")
        expect(rows).to_have_count(LETTERS)
        expect(rows.first).to_contain_text("parcel 0")
        page.get_by_role("button", name="Send again…").click()
        picture(page, "letters-send")
        page.get_by_role("button", name="Cancel").click()
        assert waiting_letters(letters) == LETTERS
        page.get_by_role("button", name="Send again…").click()
        page.get_by_role("button", name="Send again", exact=True).click()  # only the next one, to the group alone
        expect(page.locator(".notice").first).to_contain_text("1 of 1 dead letters were sent again")
        expect(rows).to_have_count(LETTERS - 1)
        assert waiting_letters(letters) == LETTERS - 1
        rows.nth(2).locator("td").last.click()  # with those in front of it
        expect(page.locator(".dialog")).to_contain_text("the next 3")
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.locator(".notice").first).to_contain_text("3 of 3 dead letters were sent again")
        expect(rows).to_have_count(LETTERS - 4)
        page.get_by_role("button", name="Send again…").click()
        page.get_by_text("all that wait now").click()
        page.get_by_label("Messages a second").fill("0.2")  # not done before a busy browser has stopped it
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.locator(".notice").first).to_contain_text("of 16 dead letters were sent again")
        picture(page, "letters-sending")
        page.get_by_role("button", name="Stop sending").click()
        expect(page.locator(".notice").first).to_contain_text("; stopped")
        assert 0 < waiting_letters(letters) < LETTERS - 4
    with PullConsumer(letters.bootstrap, group="packing") as consumer:
        again = consumer.offsets("%RETRY%packing")
        assert sum(each.max_offset for each in again.values()) == LETTERS - waiting_letters(letters)


def test_what_waits_and_a_transaction_that_is_ended_by_hand(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with Admin(shop.bootstrap) as admin:
        admin.create_topic("later", queues=1)
    with (
        Producer(shop.bootstrap, group="later") as producer,
        TransactionProducer(shop.bootstrap, "checkout", lambda _: TransactionState.UNKNOWN) as transactions,
        looking(browser, console.url) as page,
    ):
        for number in range(3):
            producer.send(Message("later", b"delayed", keys=f"later-{number}", delay_level=18))
        producer.send(Message("later", b"timed", keys="timed", deliver_at_ms=int(time.time() * 1000) + 3_600_000))
        half = transactions.prepare(Message("later", b"one"))
        page.goto("/waiting")
        expect(page.get_by_role("row").filter(has_text="level 18: 2 h")).to_contain_text("3")
        expect(page.get_by_role("row").filter(has_text="until a set time")).to_contain_text("1")
        expect(page.get_by_role("row").filter(has_text="timed")).to_contain_text("a time of its own")
        row = page.get_by_role("row").filter(has_text="checkout")
        expect(row).to_contain_text(half.half.msg_id, timeout=WAIT_MS)
        picture(page, "waiting")
        row.locator("td").last.click()
        expect(page.locator(".dialog")).to_contain_text("Neither can be undone")
        picture(page, "transaction-end")
        page.get_by_role("button", name="Commit").click()
        said(page, "committed")
        expect(row).to_have_count(0)
    with PullConsumer(shop.bootstrap) as consumer:
        assert [message.body for message in consumer.fetch("later", 0, 0)] == [b"one"]


def test_with_a_node_down_and_without_a_leader(browser: Browser, console: ConsoleProcess, letters: Shop) -> None:
    paths = ("/topics", "/topic?name=orders", "/groups", "/group?name=shipping", "/dead-letters", "/waiting")
    with looking(browser, console.url) as page:
        page.goto("/topic?name=orders")
        is_live(page)
        followers = [node for node in ("n0", "n1", "n2") if node != letters.leader()]
        letters.kill(followers[0])
        try:
            for path in paths:
                page.goto(path)
                is_live(page)
                expect(page.locator(".state-bad")).to_have_count(0)  # there may be an election just now
            page.goto("/topic?name=orders")
            expect(page.locator(".messages tbody tr")).to_have_count(50, timeout=WAIT_MS)
            picture(page, "topic-node-down")
            letters.kill(letters.leader())
            page.goto("/topic?name=orders")  # the follower that is left has the messages
            expect(page.locator(".messages tbody tr")).to_have_count(50, timeout=WAIT_MS)
            picture(page, "topic-no-leader")
            page.goto("/groups")
            expect(page.locator(".missing")).to_contain_text("which has heard from no leader", timeout=WAIT_MS)
            expect(page.locator(".missing")).to_contain_text("what only its leader knows is not shown")
            row = page.get_by_role("row").filter(has_text="shipping")
            expect(row).to_contain_text("unknown")  # its members may well be connected
            expect(row).not_to_contain_text("no member")
            expect(row.locator("td").nth(6)).to_have_text("–")
            picture(page, "groups-no-leader")
            page.goto("/group?name=shipping")
            expect(page.get_by_role("row").filter(has_text="g0/1").locator("td").nth(7)).to_have_text("–", timeout=WAIT_MS)
            expect(page.locator(".figures").first).to_contain_text("Queues without a reader–")
            expect(page.get_by_label("Members")).to_contain_text("not known")
            picture(page, "group-no-leader")
            page.goto("/groups")
        finally:
            letters.start()
        expect(page.locator(".missing")).to_have_text("", timeout=WAIT_MS)
        expect(page.locator(".state-bad")).to_have_count(0, timeout=WAIT_MS)
        expect(page.get_by_role("row").filter(has_text="shipping")).to_be_visible(timeout=WAIT_MS)
