"""A replica group that is added later has the quotas of the cluster without a second ``quota set``."""

from __future__ import annotations

import asyncio

import pytest

from broker.api.quota_copies import LOOK_S
from dledger_wire._pb import admin_pb2
from dledger_wire.rpc import methods
from store.commands.quotas import CopyQuotas, DeleteQuota, Limit, PutQuota, Quota, Subject
from store.state.quotas import QuotaState
from store.state.state_machine import CommandContext, ReplicatedState
from tests.unit.client.sim_rig import Rig, node_of, until

CONTEXT = CommandContext(1, 1, 0, 0)
TOPIC, USERS = Quota(Subject.TOPIC, "t", {Limit.PRODUCE_BYTES: 1 << 20}), Quota(Subject.USER, "*", {Limit.FETCH_MESSAGES: 5})


def added_group(rig: Rig) -> str:
    added = rig.cluster.add_group()
    for node_id in added.node_ids:
        rig.cluster.start(node_id)
    return added.name


@pytest.mark.parametrize("secured", [False, True])
def test_a_group_that_is_added_takes_over_all_quotas_and_those_set_later(secured: bool) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.set_quota("topic", "t", produce_bytes=1 << 20)
            await admin.set_quota("user", "*", fetch_messages=5)
            added = added_group(rig)
            await until(lambda: rig.is_group_up(added))
            await until(
                lambda: all(node_of(rig, each).store.quotas.rules() == [TOPIC, USERS] for each in rig.cluster.groups[added].node_ids)
            )
            assert [(each.name, each.missing_in) for each in await admin.list_quotas()] == [("t", ()), ("*", ())]
            await admin.set_quota("topic", "t", produce_bytes=1 << 21)
            await admin.delete_quota("user", "*")
            await asyncio.sleep(3 * LOOK_S)
            (left,) = await admin.list_quotas()
            assert (left.limits, left.missing_in) == ({"produce_bytes": 1 << 21}, ())

    Rig(31, secured=secured).run(scenario)


def test_the_last_quota_that_was_deleted_does_not_come_back_from_a_group_that_was_away() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.set_quota("topic", "t", produce_bytes=1 << 20)
            router = rig.router()
            rule = admin_pb2.QuotaRule(kind="topic", name="t")
            await router.call_leader("g1", methods.DELETE_QUOTA, rule, deadline_ms=router.clock.monotonic_ms() + 5000)
            for node_id in rig.cluster.groups["g1"].node_ids:
                await rig.restart(node_id)
            await asyncio.sleep(3 * LOOK_S)
            (found,) = await admin.list_quotas()
            assert found.missing_in == ("g1",)

    Rig(32, groups=2).run(scenario)


def test_only_a_group_that_never_had_a_quota_takes_them_and_a_snapshot_says_so() -> None:
    state = QuotaState()
    machine = ReplicatedState([state], [])
    assert machine.apply(CopyQuotas(quotas=()), CONTEXT).result is False
    assert machine.apply(CopyQuotas(quotas=(TOPIC, USERS)), CONTEXT).result is True
    assert state.rules() == [TOPIC, USERS]
    assert machine.apply(CopyQuotas(quotas=(USERS,)), CONTEXT).result is False
    for each in (TOPIC, USERS):
        machine.apply(DeleteQuota(subject=each.subject, name=each.name), CONTEXT)
    loaded = QuotaState()
    loaded.load(state.dump())
    assert (loaded.rules(), loaded.was_set) == ([], True)
    fresh = QuotaState()
    fresh.load(QuotaState().dump())
    assert fresh.was_set is False
    ReplicatedState([fresh], []).apply(PutQuota(quota=TOPIC), CONTEXT)
    assert ReplicatedState([fresh], []).apply(CopyQuotas(quotas=(USERS,)), CONTEXT).result is False
