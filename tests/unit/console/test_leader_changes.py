"""Why leaders changed, asked when the nodes tell of a change and not otherwise; what is shown without a leader."""

from __future__ import annotations

import asyncio

from dledger_console.data import dead_letters, groups
from dledger_console.data.cluster import SETTLE_S, LeaderChanges
from tests.unit.client.sim_rig import Rig, until
from tests.unit.client.test_followers_first import asked, filled

HISTORY = "Diagnostics/LeaderHistory"


def test_nodes_are_asked_for_their_accounts_only_after_a_change() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin(read_from="follower") as admin, rig.admin() as operator:
            changes = LeaderChanges(admin, lambda: rig.cluster.loop.now_s)

            async def look() -> None:
                changes.look(await admin.cluster_status())
                await changes.asked()

            await look()
            assert [change.leader for change in changes.newest] == [rig.master]
            await asyncio.sleep(SETTLE_S)
            before = asked(rig, rig.master)[HISTORY]
            for _ in range(10):
                await look()
                await asyncio.sleep(2)
            assert asked(rig, rig.master)[HISTORY] == before
            old = rig.master
            await operator.transfer_leader(rig.followers[0])
            await until(lambda: rig.cluster.master("g0") not in (None, old))
            await look()
            await asyncio.sleep(2)
            await look()
            newest = changes.newest[-1]
            assert (newest.previous, newest.leader, newest.kind) == (old, rig.master, "transfer")
            changes.close()

    Rig().run(scenario)


def test_lists_without_a_leader_are_those_of_a_follower_that_says_so() -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        async with rig.admin(read_from="follower") as admin:
            assert (await dead_letters.list_letters(admin, at_leader=True)).read_at["g0"].node == rig.master
            assert (await dead_letters.list_letters(admin)).read_at["g0"].node in rig.followers
            lag = (await groups.list_groups(admin))[0].progress.lag
            last, *others = rig.followers
            for node_id in (rig.master, *others):
                rig.cluster.kill(node_id)
            await asyncio.sleep(5)
            found = await groups.list_groups(admin)
            assert [(row.progress.lag, row.progress.members, row.progress.state().text) for row in found] == [(lag, None, "unknown")]
            assert list(found.unanswered) == ["g0"]
            assert (found.read_at["g0"].node, found.read_at["g0"].is_silent) == (last, True)

    Rig().run(scenario)
