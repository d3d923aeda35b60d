"""The console as a hostile browser meets it: sockets of two sessions, paths, sizes, names, and actions that no button offers.

The application runs in this process, read-only and without a cluster, so that a test sees what reaches a page.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from nicegui import Client, core, ui
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from dledger_cli.local.ports import free_ports
from dledger_client.aio import Admin
from dledger_console.app import MAX_SOCKET_MESSAGE, make_app
from dledger_console.layout.actions import act
from dledger_console.layout.parts import Question
from dledger_console.layout.view import View, console_page
from dledger_console.settings import ConsoleSettings
from dledger_console.web.server import ConsoleServer
from dledger_console.web.sessions import SESSION
from tests.waiting import wait_until

NO_RECEIVER = "127.0.0.1:1"
DONE: list[str] = []


@console_page("/forced", "Forced")
async def forced_page(view: View) -> None:
    """A page with a button for an action, though the console is read-only."""

    async def work() -> str:
        DONE.append("done")
        return "done"

    ui.button("Forced", on_click=lambda: act(view, work))


class Running:
    """The console on a port of its own, in a thread of its own."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        app = make_app(ConsoleSettings(NO_RECEIVER, port=self.port, users=True, read_only=True))
        self.gate = app.state.gate
        config = uvicorn.Config(app, log_config=None, ws_max_size=MAX_SOCKET_MESSAGE, timeout_graceful_shutdown=1)
        self._server = ConsoleServer(config, f"127.0.0.1:{self.port}")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._server.serve(),))
        self._thread.start()
        wait_until(lambda: self._server.port, "the console has started")

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await something in the console's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def log_in(self, user: str) -> str:
        """The cookie of a new session."""
        return f"dledger_console_{self.port}={self.do(self.gate.sessions.open(user, Admin(NO_RECEIVER)))}"

    def get(self, path: str, cookie: str = "", **headers: str) -> tuple[int, str]:
        """Status and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path, headers={"Cookie": cookie, "Accept": "text/html", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def page(self, path: str, cookie: str) -> Client:
        """Open a page, and what the console holds of it."""
        before = set(Client.instances)
        assert self.get(path, cookie)[0] == 200
        (new,) = set(Client.instances) - before
        return Client.instances[new]

    def socket(self, cookie: str, query: str = "", path: str = "/_nicegui_ws/socket.io/") -> ClientConnection:
        url = f"ws://127.0.0.1:{self.port}{path}?EIO=4&transport=websocket{query}"
        origin: Any = f"http://127.0.0.1:{self.port}"
        return connect(url, origin=origin, additional_headers={"Cookie": cookie}, open_timeout=30)

    @contextmanager
    def joined(self, cookie: str, client: Client, tab: str) -> Iterator[ClientConnection]:
        """A socket that shook hands with a page."""
        with self.socket(cookie) as opened:
            opened.send("40")
            until(opened, "40")
            emit(opened, "handshake", client_id=client.id, tab_id=tab, document_id=tab, next_message_id=0)
            wait_until(lambda: client.has_socket_connection, "the page has its socket")
            yield opened


@pytest.fixture(scope="session")  # the library has one application in a process, and starts it once
def running() -> Iterator[Running]:
    console = Running()
    yield console
    console.end()


def emit(opened: ClientConnection, name: str, **message: Any) -> None:
    opened.send("42" + json.dumps([name, message]))


def until(opened: ClientConnection, start: str) -> str:
    """The next message that begins so."""
    while True:
        found = opened.recv(timeout=30)
        assert isinstance(found, str)
        if found.startswith(start):
            return found


def is_ended(opened: ClientConnection) -> bool:
    """Wait until the console has ended this socket."""
    try:
        while True:
            found = str(opened.recv(timeout=30))
            if found.startswith(("41", "1")):
                return True
            assert found != "2", "asked whether it is still there, so it was not ended"
    except ConnectionClosed:
        return True


def click(client: Client) -> dict[str, Any]:
    """The message that a click on the page's forced button would be."""
    button = next(each for each in client.elements.values() if getattr(each, "text", "") == "Forced")
    listener = next(iter(button._event_listeners))
    return {"id": button.id, "client_id": client.id, "listener_id": listener, "args": [json.dumps({})]}


def test_an_action_is_refused_in_read_only_mode_though_its_button_is_forced(running: Running) -> None:
    cookie = running.log_in("admin")
    client = running.page("/forced", cookie)
    with running.joined(cookie, client, "forced") as opened:
        emit(opened, "event", **click(client))
        while "this console is read-only" not in until(opened, "42"):
            pass
    assert DONE == []


def test_a_page_that_is_closed_takes_its_open_question_away(running: Running) -> None:
    client = running.page("/forced", running.log_in("admin"))

    async def closed_while_asked() -> str:
        with client, Question("Sure?", "Yes") as question:
            pass
        answer = asyncio.create_task(question.answer())
        await asyncio.sleep(0)  # until it waits for a button
        client.delete()
        return await answer

    assert running.do(closed_while_asked()) == ""


@pytest.mark.parametrize("name", ["handshake", "event", "javascript_response", "ack"])
def test_a_socket_does_not_speak_for_a_page_of_another_session(running: Running, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, clerk = running.log_in("admin"), running.log_in("clerk")
    page, own = running.page("/forced", admin), running.page("/forced", clerk)
    reached: list[str] = []
    for each in ("handle_event", "handle_javascript_response", "accept_handshake"):
        monkeypatch.setattr(page, each, lambda *_, each=each: reached.append(each))
    monkeypatch.setattr(page.outbox, "prune_history", lambda *_: reached.append("ack"))
    monkeypatch.setattr(page, "tab_id", "of the admin")  # its own socket is there
    message = click(page) | {"tab_id": "t", "document_id": "t", "next_message_id": 0, "request_id": "r", "result": "x"}
    with running.joined(clerk, own, "own") as opened:
        emit(opened, name, **message)
        assert is_ended(opened)
    assert reached == []
    with running.socket(clerk, f"&implicit_handshake=true&client_id={page.id}&tab_id=t&document_id=t&next_message_id=0") as opened:
        opened.send("40")
        assert until(opened, "44")
    assert reached == []


def test_a_socket_sends_to_the_page_that_it_shook_hands_with(running: Running) -> None:
    cookie = running.log_in("clerk")
    one, other = running.page("/forced", cookie), running.page("/forced", cookie)
    with running.joined(cookie, one, "one") as opened:
        emit(opened, "event", **click(other))
        assert is_ended(opened)


@pytest.mark.parametrize(
    "text",
    [
        '42["event"]',
        '42["event",5]',
        '42["event",{"client_id":{}}]',
        '42["event",{"client_id":null}]',
        '42["handshake",{}]',
        '42["ack",[]]',
    ],
)
def test_messages_of_no_sense_end_their_socket(running: Running, text: str) -> None:
    with running.socket(running.log_in("clerk")) as opened:
        opened.send("40")
        until(opened, "40")
        opened.send(text)
        assert is_ended(opened)


@pytest.mark.parametrize("key", ["id", "args", "listener_id"])
def test_events_of_no_sense_end_their_socket(running: Running, key: str) -> None:
    cookie = running.log_in("clerk")
    page = running.page("/forced", cookie)
    with running.joined(cookie, page, "t") as opened:
        emit(opened, "event", **(click(page) | {key: [[]]}))
        assert is_ended(opened)


def test_the_page_library_has_no_other_messages(running: Running) -> None:
    assert set(core.sio.handlers["/"]) == {"connect", "disconnect", "handshake", "event", "javascript_response", "ack"}


def test_a_log_out_ends_the_sockets_of_the_session(running: Running) -> None:
    cookie = running.log_in("clerk")
    page = running.page("/forced", cookie)
    with running.joined(cookie, page, "t") as opened, running.socket(cookie) as silent:
        running.do(running.gate.sessions.close(cookie.partition("=")[2]))
        emit(opened, "event", **click(page))
        assert is_ended(opened)
        assert is_ended(silent)  # never said which page it is for
    assert page.request.scope[SESSION].ended
    with pytest.raises(InvalidStatus):
        running.socket(cookie)
    assert running.get("/forced", cookie)[0] == 303


def test_sockets_need_a_session_an_origin_and_the_one_path(running: Running) -> None:
    cookie = running.log_in("clerk")
    plain = f"ws://127.0.0.1:{running.port}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    refused: tuple[Callable[[], ClientConnection], ...] = (
        lambda: running.socket(""),
        lambda: running.socket("dledger_console=guess"),
        lambda: running.socket(cookie, path="/"),
        lambda: running.socket(cookie, path="/_nicegui_ws/other/"),
        lambda: connect(plain, additional_headers={"Cookie": cookie}),
    )
    for each in refused:
        with pytest.raises(InvalidStatus):
            each().close()


def test_a_message_that_is_too_large_ends_its_socket(running: Running) -> None:
    with running.socket(running.log_in("clerk")) as opened:
        opened.send("42" + "x" * (MAX_SOCKET_MESSAGE + 1))
        assert is_ended(opened)


@pytest.mark.parametrize(
    "path", ["/loginx", "/login/", "/login/..", "/favicon.icon", "/_nicegui/", "/_nicegui/client/x/upload/1", "/_nicegui_ws/x", "/static"]
)
def test_paths_that_only_begin_like_an_open_one_are_not_open(running: Running, path: str) -> None:
    assert running.get(path)[0] in (303, 404)
    assert "nicegui" not in running.get(path)[1].lower()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%5c..%5capp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/_nicegui/3.18.0/static/%2e%2e/%2e%2e/nicegui.py",
        "/_nicegui/3.18.0/resources/x/..%2f..%2fnicegui.py",
        "/_nicegui/3.18.0/libraries/..%2f..%2fnicegui.py",
    ],
)
def test_no_path_leads_out_of_the_static_files(running: Running, path: str) -> None:
    status, text = running.get(path)
    assert status in (303, 400, 404, 405), text
    assert "import" not in text
    assert "root:" not in text


def test_pictures_and_frames_of_other_sites_reach_no_page_and_links_do(running: Running) -> None:
    cookie = running.log_in("clerk")
    for site in ("cross-site", "same-site"):
        for dest in ("image", "iframe", "script", "empty"):
            assert running.get("/forced", cookie, **{"Sec-Fetch-Site": site, "Sec-Fetch-Dest": dest})[0] == 403
        assert running.get("/forced", cookie, **{"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"})[0] == 200


def test_addresses_that_are_too_long_are_refused_and_odd_ones_are_no_error(running: Running) -> None:
    cookie = running.log_in("clerk")
    assert running.get("/topic?name=" + "x" * 9_000, cookie)[0] == 414
    for name in ("%00", "%ff%fe", "%e2%80%ae", "%3Cscript%3Ealert(1)%3C/script%3E", "..%2f..%2f", "%0d%0aSet-Cookie:%20x=y"):
        status, text = running.get(f"/topic?name={name}", cookie)
        assert status == 200, name
        assert "<script>alert" not in text
        assert running.get(f"/login?next=/{name}")[0] == 200


def test_the_pages_of_one_session_are_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_console.web.guard.MAX_PAGES", 3)
    cookie, other = running.log_in("clerk"), running.log_in("admin")
    statuses = [running.get("/forced", cookie)[0] for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    assert running.get("/forced", other)[0] == 200


@pytest.mark.parametrize(
    ("method", "lines", "body"),
    [
        ("POST", ("Content-Length: 4", "Transfer-Encoding: chunked"), "0\r\n\r\n"),
        ("POST", ("Content-Length: 0", "Content-Length: 30"), ""),
        ("GET", ("Origin : x",), ""),
    ],
    ids=["two framings", "two lengths", "a space before the colon"],
)
def test_requests_whose_end_is_not_certain_are_refused(running: Running, method: str, lines: tuple[str, ...], body: str) -> None:
    host = f"127.0.0.1:{running.port}"
    head = "\r\n".join((f"{method} /login HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", *lines))
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as connection:
        connection.sendall(f"{head}\r\n\r\n{body}GET /login HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1
