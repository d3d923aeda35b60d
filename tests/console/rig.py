"""A console of a real cluster, and a browser that looks at it.

Owns what every test holds a page to: no error in the browser, nothing that leaves for another host, nothing that the policy of the page
had to stop, no page wider than its window; and the folder of the pictures, ``build/screens``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, Page, expect

from broker.config.cluster_file import ClusterConfig
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_S, wait_until

SCREENS = Path(os.environ.get("DLEDGER_SCREENS", ROOT / "build" / "screens"))
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = (1280, 860), (390, 844)
WAIT_MS = 60_000


class Shop(Cluster):
    """A cluster for tests that hold a browser: its library keeps a loop in the thread of the test, so nodes are asked in another one.

    Each node has a port for its metrics."""

    def __init__(self, data: Path, **options: Any) -> None:
        super().__init__(data, **options)
        content = yaml.safe_load(self.local.file.read_text(encoding="utf-8"))
        self.metrics: dict[str, str] = {}
        nodes = [node for group in content["groups"] for node in group["nodes"]]
        for node, port in zip(nodes, free_ports(len(nodes)), strict=True):
            node["metrics"] = self.metrics[node["id"]] = f"127.0.0.1:{port}"
        text = yaml.safe_dump(content, sort_keys=False)
        self.local = LocalCluster(ClusterConfig.parse(text, "cluster.yaml"), self.data)
        self.local.file.write_text(text, encoding="utf-8")

    def requests(self, node: str) -> Counter[str]:
        """How often each call was made at a node, by its metrics: Service/Method -> count."""
        status, _, text = answer(f"http://{self.metrics[node]}/metrics")
        assert status == 200, (node, status)
        found: Counter[str] = Counter()
        for method, count in re.findall(r'^dledger_request_seconds_count\{.*?method="([^"]+)".*?\} ([0-9.e+]+)', text, re.MULTILINE):
            found[method] += int(float(count))
        return found

    def group_statuses(self) -> list[ReplicaGroupStatus]:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(super().group_statuses).result()


class ConsoleProcess:
    """``dledger console`` on a free port of loopback, with its log in a file."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None, scheme: str = "http") -> None:
        (self.port,) = free_ports(1)
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.log = folder / f"console-{self.port}.log"
        plain = {key: value for key, value in os.environ.items() if not key.startswith("DLEDGER_")}
        command = [sys.executable, "-P", "-m", "dledger_cli", "console", "--address", f"127.0.0.1:{self.port}", *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=plain | {"PYTHONPATH": str(ROOT)} | (env or {}), cwd=folder
            )

    def wait(self) -> ConsoleProcess:
        """Until it answers."""
        wait_until(self._answers, lambda: f"the console does not answer: {self.log.read_text()}")
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return status_of(f"{self.url}/login") != 0

    def end(self) -> None:
        """SIGTERM; it ends by itself."""
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def answer(url: str, headers: dict[str, str] | None = None, data: bytes | None = None, context: Any = None) -> tuple[int, Any, str]:
    """Status, headers and text of an answer, whatever its status; 0 when nobody answers."""
    handlers: list[Any] = [_NoRedirect()]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, data=data, headers=headers or {})  # noqa: S310 - a url of the rig's own
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=LIMIT_S) as found:
            return found.status, found.headers, found.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode("utf-8", "replace")
    except OSError:
        return 0, {}, ""


def status_of(url: str) -> int:
    """Status of an answer; 0 when nobody answers."""
    return answer(url)[0]


@contextmanager
def looking(browser: Browser, url: str, size: tuple[int, int] = DESK, scheme: Any = "light", **options: Any) -> Iterator[Page]:
    """A page of a browser of its own.  At the end it fails for whatever the browser complained of, and for requests that left."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, base_url=url, **options)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    own = (url, "data:", "blob:", url.replace("http", "ws", 1))
    page.on("request", lambda request: None if request.url.startswith(own) else complaints.append(f"left: {request.url}"))
    page.on("websocket", lambda socket: None if socket.url.startswith(own) else complaints.append(f"left: {socket.url}"))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog of the browser: {dialog.message}"))
    try:
        yield page
        assert not complaints, complaints
    finally:
        context.close()


def is_live(page: Page) -> None:
    """Wait until the page has its socket, takes keys and has been brought up to date once."""
    page.wait_for_function("() => window.socket && window.socket.connected && /as of/.test(document.querySelector('.state').innerText)")
    page.wait_for_function("() => document.body.dataset.keys === 'on'")


def said(page: Page, text: str) -> None:
    """Wait until a notice says it; the one before may still be there."""
    expect(page.locator(".q-notification", has_text=text).first).to_be_visible()


def picture(page: Page, name: str) -> None:
    """Keep a picture of the whole page, which is not wider than its window."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENS / f"{name}.png"), full_page=True)
    wide, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= window, f"{name}: {wide} wide in a window of {window}"
