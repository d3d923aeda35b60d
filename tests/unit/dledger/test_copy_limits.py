"""What a copy may take the place of, and from where on a log may begin (rows S7, S16, S20)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dledger.core.config import CoreConfig
from dledger.core.types import EntryId
from dledger.log.segment import log_path, units_path
from dledger.log.start import LogStart
from dledger.membership.configuration_file import PATH as CONFIGURATION_PATH
from dledger.snapshot import install
from dledger.snapshot.receiver import received_log_path, received_units_path
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Text, run
from tests.unit.dledger.test_copy import SMALL, lagging, numbers, write


def test_a_copy_of_a_newer_term_than_this_nodes_is_refused() -> None:
    """The log may not be ahead of the term that this node has promised: it would not start again."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        leader, victim = await lagging(cluster)
        plan = await leader._replica.source._made("x", await leader._replica.capture())
        node = await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        ahead = plan.last.index + 1
        assert replace(plan, last=EntryId(ahead, node.term)).incompatibility(node.log, node.commit_index) is None
        refusal = replace(plan, last=EntryId(ahead, node.term + 1)).incompatibility(node.log, node.commit_index)
        assert refusal == f"the snapshot ends in term {node.term + 1}, this node is in term {node.term}"
        await cluster.stop()

    run(scenario())


def test_no_segment_of_the_old_log_stays_beside_a_copy() -> None:
    """Also none that begins behind the copy's end: the next start would read it as what follows."""

    async def scenario() -> None:
        disk = MemoryDisk()
        received, old = (4096, 8192), (0, 4096, 8192, 12_288, 16_384)
        for start in old:
            for path in (log_path(start), units_path(start)):
                await disk.write_atomic(path, b"old")
        for start in received:
            for path in (received_log_path(start), received_units_path(start)):
                await disk.write_atomic(path, b"copied")
        installation = install.Installation(LogStart(5, 4096, 1, 0), list(received), [], "{}")
        assert await install.decide(disk, installation)
        assert await install.finish(disk, CONFIGURATION_PATH)
        kept = {path: bytes(content) for path, content in disk.files.items() if b"old" in content or b"copied" in content}
        assert kept == {path: b"copied" for start in received for path in (log_path(start), units_path(start))}

    run(scenario())


def test_a_log_never_begins_where_it_may_still_be_cut() -> None:
    """A leader that is cut off deletes nothing that is not committed, whatever it is asked for: the group may have no such entry."""

    async def scenario() -> None:
        cluster = Cluster(log=SMALL, core=CoreConfig(election_timeout_ms=6000), join_bytes=1)
        await cluster.start()
        leader = await cluster.leader()
        await write(leader, 0, 20)
        cluster.net.isolate(leader.identity.node_id, cluster.names)
        waiting = []
        for number in range(20, 30):
            last = leader.log.last.index
            waiting.append(asyncio.ensure_future(leader.propose(Text(f"{number}:", 3000))))
            await cluster.until(lambda last=last: leader.log.durable.index > last)
        assert await leader.truncate_head(leader.log.last.index) <= leader.commit_index
        assert leader.log.first_index > 5, "as far as it may"
        await cluster.stop()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario())
