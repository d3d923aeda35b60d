"""Who comes in, and what a browser may be made to do: log in and out, hosts, origins, headers, users with few rights, HTTPS."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import yaml
from playwright.sync_api import Browser, expect

from dledger_cli.local.ports import free_ports
from dledger_client.admin.security import AccessRule
from dledger_client.sync.admin import Admin
from tests.cluster.secured import ADMIN, SecuredCluster
from tests.console.rig import ConsoleProcess, Shop, answer, is_live, looking, picture, said, status_of
from tests.waiting import wait_until

HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def secured(module_folder: Path) -> Iterator[SecuredCluster]:
    """TLS and users; the first node starts a console."""
    cluster = SecuredCluster(module_folder)
    (port,) = free_ports(1)
    with cluster.file.open("a", encoding="utf-8") as file:
        file.write(f'console: {{address: "127.0.0.1:{port}"}}\n')
    try:
        cluster.ok("up", user=ADMIN)
        cluster.add_user("clerk", "a clerk's password")
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def door(secured: SecuredCluster) -> str:
    """The address of the console that the node started."""
    address = yaml.safe_load(secured.file.read_text())["console"]["address"]
    return f"https://{address}"


def _trusting(secured: SecuredCluster) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=secured.ca)


def test_a_user_of_the_cluster_logs_in_with_the_nodes_certificate_and_out(browser: Browser, secured: SecuredCluster, door: str) -> None:
    wait_until(lambda: answer(f"{door}/login", context=_trusting(secured))[0], "the console of the node answers")
    with looking(browser, door, ignore_https_errors=True) as page:
        page.goto("/nodes")
        expect(page).to_have_url(f"{door}/login?next=%2Fnodes")
        picture(page, "login")
        page.get_by_label("User").fill(ADMIN)
        page.get_by_label("Password").fill(secured.password(ADMIN))
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{door}/nodes")
        is_live(page)
        expect(page.get_by_role("row", name="n2 g0")).to_be_visible()  # by its cells: "on" beside "22 %" is no n2
        assert secured.password(ADMIN) not in page.content()
        (cookie,) = page.context.cookies()
        assert cookie["name"] == f"__Host-dledger_console_{door.rpartition(':')[2]}"
        assert cookie["httpOnly"]
        assert cookie["secure"]
        assert cookie["sameSite"] == "Lax"
        page.goto("/node?id=n0")
        expect(page.locator(".log")).to_contain_text("started")
        expect(page.locator(".bounded").nth(2)).to_contain_text("raft.")
        expect(page.locator(".bounded").nth(2).locator(".q-table__bottom")).to_contain_text("1-12 of")
        assert "scram-sha-256$" not in page.content()  # what checks the administrators' passwords
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{door}/login")
        page.context.add_cookies([cast(Any, cookie)])  # whoever copied it has nothing
        page.goto("/nodes")
        expect(page).to_have_url(f"{door}/login?next=%2Fnodes")


def test_a_user_with_few_rights_sees_what_the_cluster_lets_it_see(browser: Browser, secured: SecuredCluster, door: str) -> None:
    with looking(browser, door, ignore_https_errors=True) as page:
        page.goto("/login")
        page.get_by_label("User").fill("clerk")
        page.get_by_label("Password").fill("a clerk's password")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".state-bad")).to_contain_text("may not describe")
        with Admin(secured.bootstrap, **secured.who(ADMIN)) as admin:
            admin.change_rules([AccessRule("clerk", "allow", "cluster", "*", "describe")])
        page.goto("/node?id=n1")
        expect(page.locator(".figures")).to_contain_text("g0")
        expect(page.locator(".log")).to_contain_text("may not")  # logs are for administrators
        with Admin(secured.bootstrap, **secured.who(ADMIN)) as admin:
            leader = next(each.id for group in admin.cluster_status() for each in group.nodes if each.role == "leader")
        follower = next(each for each in ("n0", "n1", "n2") if each != leader)
        page.goto(f"/node?id={follower}")
        hand_over = page.get_by_role("button", name="Hand leadership to this node")
        expect(hand_over).to_be_enabled()  # the console does not judge rights: the cluster refuses
        hand_over.click()
        page.get_by_role("button", name="Hand over").click()
        said(page, "may not")
        picture(page, "node-few-rights")


def test_wrong_passwords_are_refused_and_have_to_wait(secured: SecuredCluster, door: str) -> None:
    headers, context = {"Origin": door}, _trusting(secured)
    status, found, text = answer(f"{door}/login", headers, b"user=admin&password=wrong", context)
    assert status == 401
    assert found.get("Set-Cookie") is None
    assert "No user of the cluster has this name and this password" in text
    statuses = [answer(f"{door}/login", headers, b"user=nobody&password=wrong", context)[0] for _ in range(11)]
    assert statuses == [401] * 10 + [429]
    assert answer(f"{door}/login", headers, b"user=admin&password=wrong", context)[0] == 401  # another user behind the same address


def test_names_and_origins_of_other_sites_are_refused(console: ConsoleProcess) -> None:
    url, host = console.url, f"127.0.0.1:{console.port}"
    for name in (f"evil.example:{console.port}", "evil.example", "", "127.0.0.1.evil.example", "a@127.0.0.1"):
        assert answer(f"{url}/", {"Host": name})[0] == 403, name
    for name in (host, f"localhost:{console.port}", socket.gethostname(), "10.1.2.3:80", "[::1]:8080"):
        assert answer(f"{url}/", {"Host": name})[0] == 200, name
    for origin in ("http://evil.example", "null", f"http://localhost:{console.port}", f"http://{host}.evil.example"):
        assert answer(f"{url}/logout", {"Origin": origin}, b"")[0] == 403, origin
        assert _socket_status(console.port, origin) == 403, origin
    assert answer(f"{url}/logout", data=b"")[0] == 403
    assert answer(f"{url}/logout", {"Origin": f"http://{host}"}, b"")[0] == 303
    assert _socket_status(console.port, f"http://{host}") == 101
    assert status_of(f"{url}/_nicegui_ws/socket.io/?EIO=4&transport=polling") == 404


def _socket_status(port: int, origin: str) -> int:
    """How a WebSocket is answered that says it comes from ``origin``."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ["GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Origin: {origin}"]
    lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(4096).split(b" ", 2)[1])


def test_every_answer_has_its_headers_and_pages_their_policy(console: ConsoleProcess) -> None:
    for path, headers in (("/", HTML), ("/login", HTML), ("/static/console.css", {}), ("/nothing-here", HTML)):
        _, found, text = answer(f"{console.url}{path}", headers)
        policy = found["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        scripts = policy.partition("script-src ")[2].partition(";")[0]
        assert "'unsafe-inline'" not in scripts
        assert "http" not in policy
        assert found["X-Content-Type-Options"] == "nosniff"
        nonce = scripts.partition("'nonce-")[2].partition("'")[0]
        assert text.count("<script") == text.count(f'<script nonce="{nonce}"')
    _, _, page = answer(f"{console.url}/", HTML | {"X-Forwarded-Prefix": "/<script>alert(1)</script>"})
    assert "alert(1)" not in page
    assert "evil" not in answer(f"{console.url}/login?next=//evil.example/", HTML)[1].get("Location", "")


def test_read_only_offers_no_action(browser: Browser, shop: Shop) -> None:
    process = ConsoleProcess(shop.data, "--bootstrap", shop.bootstrap, "--read-only").wait()
    try:
        with looking(browser, process.url) as page:
            page.goto("/node?id=n0")
            is_live(page)
            expect(page.locator(".badge")).to_have_text("read-only")
            expect(page.get_by_role("button", name="Hand leadership")).to_have_count(0)
            page.goto("/topics")
            is_live(page)
            expect(page.get_by_role("button", name="Create")).to_have_count(0)
    finally:
        process.end()


def test_a_session_ends_when_its_user_is_away(browser: Browser, secured: SecuredCluster) -> None:
    env = {"DLEDGER_TLS_CA": secured.ca}
    process = ConsoleProcess(secured.folder, "--bootstrap", secured.bootstrap, "--idle", "4s", env=env).wait()
    try:
        with looking(browser, process.url) as page:
            page.goto("/nodes")
            page.get_by_label("User").fill(ADMIN)
            page.get_by_label("Password").fill(secured.password(ADMIN))
            page.get_by_role("button", name="Log in").click()
            expect(page).to_have_url(f"{process.url}/nodes")
            expect(page).to_have_url(f"{process.url}/login")  # by itself, though the page asked all the time
    finally:
        process.end()


def test_the_console_of_a_node_is_started_again_and_ends_with_it(secured: SecuredCluster, door: str) -> None:
    context = _trusting(secured)
    wait_until(lambda: answer(f"{door}/login", context=context)[0], "the console of the node answers")
    node = psutil.Process(secured.local().running()["n0"])
    (first,) = node.children()
    os.kill(first.pid, signal.SIGKILL)
    second = wait_until(lambda: [child for child in node.children() if child.pid != first.pid], "another console is started")[0]
    wait_until(lambda: answer(f"{door}/login", context=context)[0], "it answers")
    os.kill(node.pid, signal.SIGKILL)
    wait_until(lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE, "the console ends with its node")
    with contextlib.suppress(psutil.NoSuchProcess):
        assert second.status() == psutil.STATUS_ZOMBIE
    assert status_of(f"{door}/login") == 0
