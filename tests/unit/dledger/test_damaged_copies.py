"""What a replica tells its leader of copies that come damaged (row S14)."""

from __future__ import annotations

from dataclasses import replace

from dledger.snapshot.plan import PlanFile, SnapshotPlan
from dledger_wire.rpc.transport import Channel
from tests.unit.dledger.raft_rig import Cluster, run
from tests.unit.dledger.test_copy import SMALL, lagging, numbers


def test_what_comes_damaged_from_everybody_is_no_progress() -> None:
    """The state is fetched anew in every attempt: a leader would wait for a spare node with damaged memory for ever."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        _, victim = await lagging(cluster)
        catch_up = (await cluster.start_one(victim))._replica.catch_up
        fetch_file, is_damaged, copied = catch_up._fetch_file, True, list[int]()

        async def damaged(channel: Channel, plan: SnapshotPlan, number: int, file: PlanFile) -> None:
            copied.append(catch_up.copied_bytes)
            await fetch_file(channel, plan, number, replace(file, crc=file.crc ^ 1) if is_damaged else file)

        catch_up._fetch_file = damaged  # type: ignore[method-assign]
        await cluster.until(lambda: len(copied) > 2)
        once = copied[2]  # two sources, each of which gave it once
        assert copied[0] < copied[1] < once
        await cluster.until(lambda: len(copied) > 8)
        assert set(copied[2:]) == {once}
        is_damaged = False
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert not catch_up._none_sound
        await cluster.stop()

    run(scenario())
