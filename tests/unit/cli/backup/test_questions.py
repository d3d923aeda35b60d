"""What a backup asks of the cluster before it reads: counted, against real nodes in virtual time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dledger_cli.commands.backup import all_groups
from dledger_client.admin.cluster_status import ClusterDescription
from dledger_client.aio import Admin
from dledger_offline.backup.cluster import take
from dledger_wire.errors import InvalidArgumentError
from tests.unit.client.sim_rig import Rig


def test_a_backup_lets_the_cluster_describe_itself_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[ClusterDescription] = []
    describe = Admin.describe_cluster

    async def counted(admin: Admin) -> ClusterDescription:
        described.append(await describe(admin))
        return described[-1]

    monkeypatch.setattr(Admin, "describe_cluster", counted)

    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            nodes = partial(all_groups, admin, {"g9": {"n90": "10.9.9.9:1"}})
            with pytest.raises(InvalidArgumentError, match="no replica group 'g5'; this cluster has g9, g0"):
                await take(admin, str(tmp_path / "repository"), nodes=nodes, groups=["g5"])

    Rig().run(scenario)
    assert len(described) == 1
