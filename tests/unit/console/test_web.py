"""Hosts, origins, sessions, wrong passwords and reports of the web console, without a port."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from dledger_client.aio import Admin
from dledger_console.data.reports import list_reports, read_report
from dledger_console.settings import ConsoleSettings
from dledger_console.web.cookies import cookie_name, cookie_of
from dledger_console.web.gate import ATTEMPTS_OF_SOURCE, Gate
from dledger_console.web.hosts import is_host_allowed, is_same_origin
from dledger_console.web.sessions import MAX_KEPT, MAX_SESSIONS, MAX_SESSIONS_OF_USER, Session, SessionEndedError, SessionTable
from dledger_wire.errors import AuthenticationFailedError, BusyError, DledgerError, UnreachableError
from dledger_wire.security.attempts import OF_USER, WINDOW_S, Attempts, TooManyAttemptsError
from tests.waiting import until

NO_RECEIVER = "127.0.0.1:1"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "10.1.2.3", "[::1]:80", "[fe80::1]", "localhost:1", "LOCALHOST", "web."])
def test_addresses_and_known_names_are_taken(host: str) -> None:
    assert is_host_allowed(host, {"localhost", "web"})


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "a@127.0.0.1", "127.0.0.1/x", "127.0.0.1:x", "[::1", "web#"]
)
def test_other_names_are_not(host: str) -> None:
    assert not is_host_allowed(host, {"localhost", "web"})


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("https://Web.example", "web.example", True),  # behind a proxy that ends TLS
        ("http://127.0.0.1", "127.0.0.1:8080", False),
        ("http://evil.example", "127.0.0.1:8080", False),
        ("null", "127.0.0.1:8080", False),
        ("file://127.0.0.1:8080", "127.0.0.1:8080", False),
        ("http://", "", False),
    ],
)
def test_an_origin_is_the_host_that_was_asked(origin: str, host: str, same: bool) -> None:
    assert is_same_origin(origin, host) == same


def test_a_session_ends_by_log_out_by_time_and_with_the_table() -> None:
    async def work() -> None:
        clock = Clock()
        table = SessionTable(60.0, clock)
        secrets = [await table.open(f"u{number}", Admin(NO_RECEIVER)) for number in range(3)]
        first = table.find(secrets[0])
        assert first is not None
        assert first.user == "u0"
        assert table.find("guess") is None
        await table.close(secrets[0])
        assert table.find(secrets[0]) is None
        with pytest.raises(SessionEndedError):
            _ = first.admin
        clock.now_s += 50
        used = table.find(secrets[1])
        assert used is not None
        used.use()
        clock.now_s += 50
        assert table.find(secrets[1]) is not None
        assert table.find(secrets[2]) is None
        await table.expire()
        assert len(table) == 1
        await table.end()
        assert used.ended
        assert len(table) == 0

    asyncio.run(work())


def test_sessions_that_end_for_several_reasons_at_once_end_once() -> None:
    class Slow(Admin):
        async def close(self) -> None:
            await asyncio.sleep(0.01)
            await super().close()

    async def work() -> None:
        clock = Clock()
        table = SessionTable(60.0, clock)
        secrets = [await table.open(f"u{number}", Slow(NO_RECEIVER)) for number in range(3)]
        clock.now_s += 100
        await asyncio.gather(table.expire(), table.expire(), table.close(secrets[2]), table.open("new", Slow(NO_RECEIVER)))
        assert len(table) == 1
        await table.end()

    asyncio.run(work())


def test_what_is_kept_by_name_is_bounded_and_closed() -> None:
    class Kept:
        closed = False

        def close(self) -> None:
            self.closed = True

    async def work() -> None:
        session = SessionTable(60.0).make("u", Admin(NO_RECEIVER))
        found = [session.keep("group", Kept, key="0")]
        for number in range(1, MAX_KEPT):
            found.append(session.keep("group", Kept, key=str(number)))
        assert session.keep("group", Kept, key="0") is found[0]
        session.keep("group", Kept, key="one more")
        assert [each.closed for each in found[:3]] == [False, True, False]
        await session.end()
        assert all(each.closed for each in found)

    asyncio.run(work())


def test_the_session_that_was_used_longest_ago_makes_room() -> None:
    async def work() -> None:
        clock = Clock()
        table = SessionTable(1e9, clock)
        first = await table.open("first", Admin(NO_RECEIVER))
        for number in range(MAX_SESSIONS):
            clock.now_s += 1
            await table.open(f"later-{number}", Admin(NO_RECEIVER))
        assert table.find(first) is None
        assert len(table) == MAX_SESSIONS
        await table.end()

    asyncio.run(work())


def test_a_page_that_is_open_is_told_of_the_end() -> None:
    async def work() -> None:
        table = SessionTable(60.0)
        secret = await table.open("u", Admin(NO_RECEIVER))
        session = table.find(secret)
        assert session is not None
        told: list[str] = []
        session.at_end.append(lambda: told.append("left"))
        await table.close(secret)
        assert told == ["left"]

    asyncio.run(work())


def test_one_user_cannot_end_the_sessions_of_others_by_many_log_ins() -> None:
    async def work() -> None:
        table = SessionTable(1e9)
        admin = await table.open("admin", Admin(NO_RECEIVER))
        for _ in range(MAX_SESSIONS_OF_USER + 5):
            await table.open("clerk", Admin(NO_RECEIVER))
        assert len(table) == MAX_SESSIONS_OF_USER + 1
        assert table.find(admin) is not None
        await table.end()

    asyncio.run(work())


def test_an_action_that_runs_keeps_its_client_when_its_session_ends() -> None:
    async def work() -> None:
        clock = Clock()
        table = SessionTable(60.0, clock)
        closed: list[str] = []

        class Watched(Admin):
            async def close(self) -> None:
                closed.append("closed")
                await super().close()

        session = table.find(await table.open("u", Watched(NO_RECEIVER)))
        assert isinstance(session, Session)
        kept: list[str] = session.keep_for_user("work", list)
        async with session.held():
            clock.now_s += 61
            await table.expire()
            assert session.ended
            assert not closed
            _ = session.admin
        assert closed == ["closed"]
        with pytest.raises(SessionEndedError):
            async with session.held():
                pass
        later = table.find(await table.open("u", Admin(NO_RECEIVER)))
        other = table.find(await table.open("v", Admin(NO_RECEIVER)))
        assert later is not None
        assert other is not None
        assert later.keep_for_user("work", list) is kept
        assert other.keep_for_user("work", list) is not kept
        await table.end()

    asyncio.run(work())


def test_attempts_are_counted_by_user_and_by_source_before_they_are_answered() -> None:
    clock = Clock()
    attempts = Attempts(clock, of_source=ATTEMPTS_OF_SOURCE)
    for _ in range(OF_USER):
        attempts.reserve("10.0.0.1", "admin")  # not answered yet
    with pytest.raises(TooManyAttemptsError):
        attempts.reserve("10.0.0.1", "admin")
    attempts.reserve("10.0.0.1", "clerk")()
    attempts.reserve("10.0.0.2", "admin")
    for number in range(ATTEMPTS_OF_SOURCE - OF_USER):
        attempts.reserve("10.0.0.1", f"guess-{number}")
    with pytest.raises(TooManyAttemptsError):
        attempts.reserve("10.0.0.1", "clerk")
    clock.now_s += WINDOW_S
    for _ in range(3 * OF_USER):
        attempts.reserve("10.0.0.1", "admin")()  # right ones are given back


def test_a_host_with_many_addresses_is_one_source() -> None:
    attempts = Attempts(Clock(), of_source=ATTEMPTS_OF_SOURCE)
    for number in range(OF_USER):
        attempts.reserve(f"2001:db8::{number}", "admin")
    with pytest.raises(TooManyAttemptsError):
        attempts.reserve("2001:db8::ffff", "admin")
    attempts.reserve("2001:db8:0:1::1", "admin")
    for _ in range(OF_USER):
        attempts.reserve("::ffff:10.0.0.1", "admin")
    with pytest.raises(TooManyAttemptsError):
        attempts.reserve("10.0.0.1", "admin")


def test_guesses_at_the_same_time_do_not_pass_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def refuse(admin: Admin, *_: object) -> None:
        asked.append("asked")
        await asyncio.sleep(0.01)
        raise AuthenticationFailedError("no")

    async def work() -> None:
        monkeypatch.setattr(Admin, "describe_cluster", refuse)
        gate = Gate(ConsoleSettings(NO_RECEIVER, users=True))
        await asyncio.gather(*(gate.log_in("admin", f"{number}", "10.0.0.1") for number in range(100)), return_exceptions=True)
        assert len(asked) == OF_USER

    asyncio.run(work())


def test_log_ins_that_hang_do_not_hold_others_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(admin: Admin, *_: object) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        monkeypatch.setattr(Admin, "describe_cluster", hang)
        monkeypatch.setattr("dledger_console.web.gate.LOG_IN_S", 0.5)
        monkeypatch.setattr("dledger_console.web.gate.WAIT_S", 0.1)
        gate = Gate(ConsoleSettings(NO_RECEIVER, users=True))
        log_ins = [gate.log_in(f"u{number}", "p", "10.0.0.1") for number in range(20)]
        answers = await asyncio.wait_for(asyncio.gather(*log_ins, return_exceptions=True), 5)
        assert [type(answer) for answer in answers] == [UnreachableError] * 8 + [BusyError] * 12

    asyncio.run(work())


def test_all_requests_wait_for_one_question_while_no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def hang(admin: Admin, *_: object) -> None:
        asked.append("asked")
        await asyncio.Event().wait()

    async def work() -> None:
        monkeypatch.setattr(Admin, "describe_cluster", hang)
        monkeypatch.setattr("dledger_console.web.gate.ASK_TIMEOUT_MS", 100)
        clock = Clock()
        gate = Gate(ConsoleSettings(NO_RECEIVER), clock)
        assert await asyncio.wait_for(asyncio.gather(*(gate.session("x") for _ in range(50))), 2) == [None] * 50
        assert await gate.wants_users()
        assert len(asked) == 1
        assert gate.is_unanswered
        clock.now_s += 3
        assert await gate.wants_users()
        assert len(asked) == 2

    asyncio.run(work())


@pytest.mark.parametrize("before", ["", "a=1; ", "x[y]=1; ", 'odd="; ', "a b c; ", "bad,name=1; ", "\xe4=1; "])
def test_the_cookies_of_other_applications_do_not_hide_the_consoles(before: str) -> None:
    headers = Headers({"host": "127.0.0.1:8080", "cookie": f"{before}dledger_console_8080=secret; z[]=2"})
    assert cookie_of(headers, tls=False) == "secret"
    assert cookie_of(headers, tls=True) == ""


@pytest.mark.parametrize(
    ("host", "tls", "name"),
    [
        ("127.0.0.1:8080", False, "dledger_console_8080"),
        ("127.0.0.1:8081", True, "__Host-dledger_console_8081"),
        ("[::1]:8080", False, "dledger_console_8080"),
        ("[::1]", False, "dledger_console"),
        ("web", True, "__Host-dledger_console"),
    ],
)
def test_consoles_on_two_ports_of_a_host_have_two_cookies(host: str, tls: bool, name: str) -> None:
    assert cookie_name(Headers({"host": host}), tls=tls) == name


def test_while_nobody_says_whether_there_are_users_one_has_to_log_in() -> None:
    async def work() -> None:
        gate = Gate(ConsoleSettings(NO_RECEIVER))
        assert await gate.wants_users()
        assert await gate.session("") is None
        with pytest.raises(UnreachableError):
            await gate.log_in("admin", "password", "10.0.0.1")
        assert len(gate.sessions) == 0
        everybody = Gate(ConsoleSettings(NO_RECEIVER, users=False))
        assert await everybody.session("") is await everybody.session("anything")
        await everybody.close()

    asyncio.run(work())


def test_a_cluster_that_gets_users_wants_a_log_in_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[DledgerError | None] = [None]

    async def answer(admin: Admin, *_: object) -> None:
        if answers[-1] is not None:
            raise answers[-1]

    async def work() -> None:
        monkeypatch.setattr(Admin, "describe_cluster", answer)
        clock = Clock()
        gate = Gate(ConsoleSettings(NO_RECEIVER), clock)
        everybody = await gate.session("")
        assert everybody is not None
        for error, is_open in ((UnreachableError("down"), True), (AuthenticationFailedError("expected a user"), False)):
            answers.append(error)
            clock.now_s += 60
            await gate.session("")  # nobody waits for the question
            await until(lambda: gate._asking is None)
            assert (await gate.session("") is everybody) is is_open
        assert everybody.ended
        assert await gate.wants_users()
        await gate.close()

    asyncio.run(work())


def test_reports_are_html_files_of_the_folder_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (tmp_path / "outside.html").write_text("<title>outside</title>")
    (folder / "a.html").write_text("<html><title>Ten\n rounds &lt;b&gt;</title>")
    (folder / "b.txt").write_text("b")
    (folder / ".hidden.html").write_text("h")
    (folder / "link.html").symlink_to(tmp_path / "outside.html")
    os.mkfifo(folder / "pipe.html")  # whoever opens one waits for a writer
    (report,) = list_reports(str(folder))
    assert (report.name, report.title) == ("a.html", "Ten rounds <b>")
    assert read_report(str(folder), "a.html") is not None
    for name in ("link.html", "pipe.html", "../outside.html", "b.txt", "", "a.html/", ".hidden.html", "no.html"):
        assert read_report(str(folder), name) is None, name
    (folder / "a.html").write_text("<title>Twenty rounds</title>")
    assert [each.title for each in list_reports(str(folder))] == ["Twenty rounds"], "written again"
    assert list_reports(str(tmp_path / "none")) == []
