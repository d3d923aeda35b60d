"""Pictures of the web console for README and docs: a cluster of three nodes with traffic, whose leader is killed, seen by a browser.

Owns which pages are shown and what runs while they are.  Call: console_pictures.py [FOLDER], by default docs/assets.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from dledger_cli.local.ports import free_ports
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Action, Admin, Message, Producer, PushConsumer

ROOT = Path(__file__).resolve().parents[3]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
PICTURES = (
    ("cluster", "/", (1280, 1120), "light"),
    ("cluster-dark", "/", (1280, 1120), "dark"),
    ("phone", "/", (390, 844), "light"),
    ("group", "/group?name=shipping", (1280, 760), "light"),
    ("node", "/node?id={leader}", (1280, 900), "light"),
)
SEEN_S = 12.0  # so long the pages are looked at before the leader is killed, so that the curves show something
AFTER_S = 8.0
PAGE_S = 4.0
LIMIT_MS = 180_000


class Traffic:
    """Orders and payments; ``shipping`` is slower than the orders come."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        with Admin(bootstrap) as admin:
            for topic in ("orders", "payments", "audit-log"):
                admin.create_topic(topic, queues=4)
        readers = (("shipping", "orders", 0.05), ("billing", "payments", 0.0), ("reports", "orders", 0.0))
        self._threads = [threading.Thread(target=self._read, args=reader) for reader in readers]
        self._threads.append(threading.Thread(target=self._write))
        for thread in self._threads:
            thread.start()

    def _read(self, group: str, topic: str, pause_s: float) -> None:
        def handle(*_: object) -> Action:
            self._ending.wait(pause_s)
            return Action.COMMIT

        consumer = PushConsumer(bootstrap=self._bootstrap, group=group, listener=handle, consume_threads=2)
        consumer.subscribe(topic)
        consumer.start()
        self._ending.wait()
        consumer.shutdown()

    def _write(self) -> None:
        number = 0
        with Producer(self._bootstrap, group="shop") as producer:
            while not self._ending.wait(0.1):
                for topic in ("orders", "payments", "audit-log"):
                    for _ in range(12):
                        number += 1
                        body = json.dumps({"order": number, "total": number * 1.5}).encode()
                        producer.send_async(Message(topic, body, keys=f"o-{number}", tags="created"))

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "assets"
    with tempfile.TemporaryDirectory() as data, PrivateCluster(Path(data)) as cluster:
        cluster.start()
        leader = cluster.leader()
        traffic = Traffic(cluster.bootstrap)
        (port,) = free_ports(1)
        command = [sys.executable, "-P", "-m", "dledger_cli", "console", "--config", str(cluster.local.file)]
        console = subprocess.Popen([*command, "--address", f"127.0.0.1:{port}"])  # noqa: S603 - our own command
        try:
            _wait_for(f"http://127.0.0.1:{port}/login")
            _take(f"http://127.0.0.1:{port}", folder, lambda: _fail_over(cluster, leader))
        finally:
            traffic.end()
            console.terminate()
            console.wait()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 240
    while True:
        try:
            urllib.request.urlopen(url, timeout=30).close()  # noqa: S310 - our own
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _take(url: str, folder: Path, fail_over: Callable[[], str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), headless=True, args=FLAGS)
        first = _open(browser, url, PICTURES[0])
        first.wait_for_timeout(SEEN_S * 1000)
        leader = fail_over()
        first.wait_for_timeout(AFTER_S * 1000)
        _keep(first, folder, PICTURES[0][0])
        for picture in PICTURES[1:]:  # one after the other: each is drawn by the processor
            page = _open(browser, url, picture, leader)
            page.wait_for_timeout(PAGE_S * 1000)
            _keep(page, folder, picture[0])
            page.context.close()
        browser.close()


def _fail_over(cluster: PrivateCluster, leader: str) -> str:
    cluster.kill(leader)
    with Admin(cluster.bootstrap) as admin:
        while True:
            (group,) = admin.cluster_status()
            if group.leader is not None and group.leader.id != leader:
                return group.leader.id


def _open(browser: Browser, url: str, picture: tuple[str, str, tuple[int, int], str], leader: str = "") -> Page:
    _, path, (width, height), scheme = picture
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    page.goto(url + path.format(leader=leader))
    return page


def _keep(page: Page, folder: Path, name: str) -> None:
    page.screenshot(path=str(folder / f"console-{name}.png"))
    print(folder / f"console-{name}.png", flush=True)


if __name__ == "__main__":
    main()
