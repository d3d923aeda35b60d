"""What open pages ask of the nodes, counted by the nodes' own metrics, and how they say what is old."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest
from playwright.sync_api import Browser, expect

from tests.console.rig import ConsoleProcess, Shop, is_live, looking
from tests.waiting import wait_until

# Every page with a list, and the call at followers that a look of it makes.
PAGES = {
    "/": "Broker/GroupOffsets",
    "/topics": "Broker/Offsets",
    "/topic?name=orders": "Broker/Offsets",
    "/groups": "Broker/GroupOffsets",
    "/group?name=shipping": "Broker/GroupOffsets",
    "/dead-letters": "Retry/DeadLetters",
    "/waiting": "Transactions/DescribeTransactions",
}
LOOKS = 2
# docs/guides/operate/console.md, "What is read where": what only the leader knows, and what every node is asked of itself.
ONCE_IN_5_S = {"Sessions/DescribeMembers", "Transactions/DescribeTransactions", "Diagnostics/TopicTraffic"}
OF_ITSELF = {"Admin/NodeStatus", "Diagnostics/LeaderHistory"}
OF_NODES = ("NameService/", "Raft/")  # the nodes serve the names of this cluster; what they tell each other


def test_open_pages_ask_followers(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with looking(browser, console.url) as page:
        for path, call in PAGES.items():
            page.goto(path)
            is_live(page)
            asked: Counter[str] = Counter()

            def spares_the_leader(path: str = path, call: str = call, asked: Counter[str] = asked) -> bool:
                asked.clear()
                asked.update(asked_of_leader(shop, path, call))
                return set(asked) <= ONCE_IN_5_S | OF_ITSELF

            # The leader answers when another one is elected, or when this machine holds up both followers: then the next looks count.
            wait_until(spares_the_leader, lambda path=path, asked=asked: f"{path}: the leader is asked {asked}")


def asked_of_leader(shop: Shop, path: str, call: str) -> Counter[str]:
    """What an open page asks of the leader while it looks ``LOOKS`` times at followers."""
    leader = shop.leader()
    followers = [node for node in shop.metrics if node != leader]
    before, began_s, looks = shop.requests(leader), time.monotonic(), at(shop, followers, call)
    wait_until(lambda: at(shop, followers, call) >= looks + LOOKS, lambda: f"{path}: no {call} at followers")
    took_s, told = time.monotonic() - began_s, shop.requests(leader) - before
    asked = Counter({name: count for name, count in told.items() if not name.startswith(OF_NODES)})
    most = 2 * (took_s / 5 + 1)  # of the page, and of what it shares with other pages
    assert all(asked[name] <= most for name in ONCE_IN_5_S), (path, took_s, asked)
    return asked


def at(shop: Shop, nodes: list[str], call: str) -> int:
    """How often these nodes were asked."""
    return sum(shop.requests(node)[call] for node in nodes)


HIDE = "window.dledgerHidden = %s; Object.defineProperty(Document.prototype, 'hidden', { get: () => window.dledgerHidden });"
TURN = "hidden => { window.dledgerHidden = hidden; document.dispatchEvent(new Event('visibilitychange')); }"


@pytest.mark.parametrize("opened", ["hidden", "seen"])
def test_a_page_that_is_not_seen_asks_nothing(browser: Browser, console: ConsoleProcess, shop: Shop, opened: str) -> None:
    nodes = list(shop.metrics)

    def asked(call: str) -> int:
        return at(shop, nodes, call)

    with looking(browser, console.url) as page, looking(browser, console.url) as other:
        page.add_init_script(HIDE % ("true" if opened == "hidden" else "false"))
        page.goto("/topics")
        is_live(page)
        if opened == "seen":
            page.evaluate(TURN, True)
        other.goto("/groups")
        is_live(other)

        def only_the_other_asks() -> bool:
            topics, groups = asked("Diagnostics/TopicTraffic"), asked("Broker/GroupOffsets")
            wait_until(lambda: asked("Broker/GroupOffsets") >= groups + LOOKS, "the page that is seen asks on")
            return asked("Diagnostics/TopicTraffic") == topics

        # Pages of the test before count as open for some seconds more.
        wait_until(only_the_other_asks, "the page that is not seen asks nothing")
        topics = asked("Diagnostics/TopicTraffic")
        page.evaluate(TURN, False)
        wait_until(lambda: asked("Diagnostics/TopicTraffic") > topics, "the page that is seen again asks again")


def test_what_is_shown_keeps_its_time_while_nodes_are_silent(browser: Browser, console: ConsoleProcess, shop: Shop) -> None:
    with looking(browser, console.url) as page:
        page.goto("/topics")
        is_live(page)
        paused_at = time.time()
        try:
            for node in shop.metrics:
                shop.pause(node)
            expect(page.locator(".state")).to_contain_text("— shown as of")
            text = page.locator(".state").inner_text()
        finally:
            for node in shop.metrics:
                shop.resume(node)
        hours, minutes, seconds = map(int, text.rpartition("as of ")[2].split(":"))
        begun = time.localtime(paused_at + 1)
        late_s = (hours - begun.tm_hour) * 3600 + (minutes - begun.tm_min) * 60 + seconds - begun.tm_sec
        assert late_s <= 0 or late_s > 43_200, "not the time at which it was asked in vain"  # midnight may be in between
        shop.wait_healthy()
        expect(page.locator(".state")).to_have_text(re.compile("^as of"))
