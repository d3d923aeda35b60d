"""A cluster with data, its console and a browser, shared by the tests of this folder; everything here carries the marker ``browser``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from dledger_client import Admin, Message, Producer, PullConsumer
from tests.console.rig import CHROMIUM, FLAGS, WAIT_MS, ConsoleProcess, Shop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def shop(session_folder: Path) -> Iterator[Shop]:
    """Three nodes with orders and payments; ``shipping`` is behind in orders, ``billing`` has read all payments."""
    cluster = Shop(session_folder)
    cluster.start()
    try:
        fill(cluster.bootstrap)
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="session")
def console(shop: Shop) -> Iterator[ConsoleProcess]:
    """The console of the shop, with every action."""
    started = ConsoleProcess(shop.data, "--config", str(shop.local.file), "--reports", str(shop.data / "reports")).wait()
    yield started
    started.end()


def fill(bootstrap: str) -> None:
    """Messages, a consumer group that is behind and one that is not."""
    with Admin(bootstrap) as admin:
        for topic in ("orders", "payments"):
            admin.create_topic(topic, queues=2)
    with Producer(bootstrap, group="shop") as producer:
        for topic in ("orders", "payments"):
            for number in range(200):
                body = json.dumps({"number": number, "total": number * 1.5}).encode()
                producer.send_async(Message(topic, body, keys=f"o-{number}", tags="created"), queue_id=number % 2)
    with PullConsumer(bootstrap, group="shipping") as consumer:
        consumer.commit({("orders", 0): 10, ("orders", 1): 0})
    with PullConsumer(bootstrap, group="billing") as consumer:
        consumer.commit({("payments", 0): 100, ("payments", 1): 100})
