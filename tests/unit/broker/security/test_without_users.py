"""A cluster without users: whoever asks for users, rules or the audit log is told in words."""

from __future__ import annotations

import pytest

from dledger_client.admin.security import AccessRule
from dledger_wire.errors import DledgerError
from tests.unit.client.sim_rig import Rig


def test_who_asks_for_users_where_there_are_none_is_told() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            for call in (
                admin.list_users(),
                admin.list_rules(),
                admin.create_user("alice", None),
                admin.delete_user("alice"),
                admin.change_rules([AccessRule("alice", "allow", "topic", "t", "read")]),
                admin.check_access("alice", "read", "topic", "t"),
            ):
                with pytest.raises(DledgerError, match="this cluster has no users and rules"):
                    await call
            with pytest.raises(DledgerError, match="no audit log is written"):
                await admin.audit_log()

    Rig().run(scenario)
