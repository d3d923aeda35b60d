"""What is open for a user ends when the user is deleted or gets another password, and a stream when its right is taken away."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import pytest

from broker.security.access import AccessControl
from broker.security.admission import ClusterAdmission
from broker.security.guarded_stream import GuardedStream
from dledger_wire.errors import AuthenticationFailedError, PermissionDeniedError, UnreachableError
from dledger_wire.security import principal
from dledger_wire.security.principal import Principal
from dledger_wire.security.scram import Verifier, secret_verifier
from store.commands.command import Command
from store.commands.security import Action, ChangeRules, CopySecurity, DeleteUser, Effect, PutUser, Resource, Rule, User
from store.state.security import SecurityState
from store.state.state_machine import CommandContext, CommandHandlers
from tests.byte_streams import TaskwiseStream

ALICE = principal.user("alice")
READ_ORDERS = Rule("alice", Effect.ALLOW, Resource.TOPIC, "orders", Action.READ)


def verifier(password: str) -> Verifier:
    return secret_verifier(password * 8)


class Users:
    """Replicated users, and an admission and rights that follow them."""

    def __init__(self) -> None:
        self.state = SecurityState()
        self._handlers = CommandHandlers()
        self.state.register(self._handlers)
        self.admission = ClusterAdmission(
            "shop", administrators={"root": verifier("root")}, secret=None, users_required=True, users=lambda: self.state
        )
        self.access = AccessControl(lambda: self.state, ["root"])
        self.state.on_change(self.admission.users_changed)
        self.state.on_change(self.access.users_changed)
        for name in ("alice", "bob"):
            self.do(PutUser(user=User(name, verifier(name))))
        self.do(PutUser(user=User("carol")))  # by certificate only
        self.ended: list[str] = []

    def do(self, command: Command[int]) -> None:
        self._handlers.apply(command, CommandContext(index=1, term=1, at_ms=1, pos=0))

    def open(self, who: Principal) -> None:
        self.admission.watch(who, lambda error: self.ended.append(f"{who.name}: {error.message}"))


def test_a_deleted_user_is_out_and_nobody_else_is() -> None:
    users = Users()
    for who in (ALICE, ALICE, principal.user("bob"), principal.user("root"), principal.node("shop", "g0", "n0")):
        users.open(who)
    users.do(DeleteUser(name="alice"))
    assert users.ended == ["alice: user alice was deleted"] * 2
    users.do(PutUser(user=User("alice", verifier("alice"))))
    assert len(users.ended) == 2  # each is told once


def test_another_password_ends_what_the_old_one_opened() -> None:
    users = Users()
    users.open(ALICE)
    users.do(PutUser(user=User("alice", verifier("other")), create=False))
    assert users.ended == ["alice: user alice has another password now"]
    users.open(ALICE)
    users.do(PutUser(user=User("bob", verifier("other")), create=False))
    users.do(ChangeRules(added=(READ_ORDERS,)))
    assert len(users.ended) == 1


def test_a_deleted_users_certificate_opens_nothing() -> None:
    users = Users()
    carol = principal.user("carol", "shop")
    users.open(users.admission.admit(carol, ""))
    users.do(DeleteUser(name="carol"))
    assert users.ended == ["carol: user carol was deleted"]
    with pytest.raises(AuthenticationFailedError, match="there is no user carol"):
        users.admission.admit(carol, "")


def test_a_copy_and_a_snapshot_revoke_as_the_command_does() -> None:
    for way in ("copy", "snapshot"):
        users = Users()
        users.open(ALICE)
        newer = Users()
        newer.do(DeleteUser(name="alice"))
        if way == "copy":
            users.do(CopySecurity(version=newer.state.version, users=tuple(newer.state.users()), rules=()))
        else:
            users.state.load(newer.state.dump())
        assert users.ended == ["alice: user alice was deleted"]


def test_what_is_over_is_not_kept() -> None:
    users = Users()
    release = users.admission.watch(ALICE, lambda error: users.ended.append(error.message))
    release()
    users.do(DeleteUser(name="alice"))
    assert users.ended == []
    assert users.admission._watched == {}


class Silent(TaskwiseStream):
    """A stream on which nothing comes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def read(self) -> bytes | None:
        await asyncio.Event().wait()
        return None

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    async def close(self) -> None: ...


def test_a_stream_ends_with_the_right_to_it() -> None:
    async def run() -> None:
        users = Users()
        check = partial(users.access.require, ALICE, Action.READ, Resource.TOPIC, "orders")
        with pytest.raises(PermissionDeniedError):
            GuardedStream(Silent(), users.access, check)
        users.do(ChangeRules(added=(READ_ORDERS,)))
        stream = Silent()
        guarded = GuardedStream(stream, users.access, check)
        await guarded.write(b"one")
        reading = asyncio.ensure_future(guarded.read())
        await asyncio.sleep(0)
        users.do(ChangeRules(added=(Rule("bob", Effect.ALLOW, Resource.TOPIC, "*", Action.READ),)))
        await asyncio.sleep(0)
        assert not reading.done()
        users.do(ChangeRules(removed=(READ_ORDERS,)))
        with pytest.raises(PermissionDeniedError, match="user alice may not read topic orders"):
            await reading
        with pytest.raises(PermissionDeniedError):
            await guarded.write(b"two")
        assert stream.written == [b"one"]
        guarded.release()
        assert not users.access._listeners

    asyncio.run(run())


class Failing(Silent):
    """A stream that is lost when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()

    async def read(self) -> bytes | None:
        await self.lost.wait()
        raise UnreachableError("connection lost")


@pytest.mark.parametrize("ended_by", ["cancelled", "refused"])
def test_a_stream_that_is_lost_when_its_reader_ends_leaves_no_traceback(ended_by: str) -> None:
    async def run() -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        users = Users()
        users.do(ChangeRules(added=(READ_ORDERS,)))
        stream = Failing()
        guarded = GuardedStream(stream, users.access, partial(users.access.require, ALICE, Action.READ, Resource.TOPIC, "orders"))
        reading = asyncio.ensure_future(guarded.read())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stream.lost.set()
        if ended_by == "refused":
            users.do(ChangeRules(removed=(READ_ORDERS,)))
            with pytest.raises(PermissionDeniedError):
                await reading
        else:
            await asyncio.sleep(0)  # it has failed, and the reader is still to learn it
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        guarded.release()
        del reading, guarded
        await asyncio.sleep(0)  # what woke this task holds the reader until then
        gc.collect()
        assert complaints == []

    asyncio.run(run())
