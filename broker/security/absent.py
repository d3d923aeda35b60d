"""What whoever asks for users, rules or the audit log is told where there are none."""

from __future__ import annotations

from typing import NoReturn

from google.protobuf.message import Message

from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server


class WithoutUsers:
    """Of a node of a cluster without users."""

    def register(self, server: Server) -> None:
        asked = (methods.PUT_USER, methods.DELETE_USER, methods.LIST_USERS, methods.CHANGE_RULES, methods.LIST_RULES, methods.CHECK_ACCESS)
        for method in asked:
            method.serve(server, self._refuse)

    async def _refuse(self, _request: Message, _caller: CallContext) -> NoReturn:
        raise DledgerError("this cluster has no users and rules: everybody may do everything (security.users of the cluster file)")


class WithoutAudit:
    """Of a process that writes no audit log."""

    def register(self, server: Server) -> None:
        methods.AUDIT_TAIL.serve(server, self._refuse)

    async def _refuse(self, _request: Message, _caller: CallContext) -> NoReturn:
        raise DledgerError("no audit log is written (block security of the cluster file)")
