"""The way of one message through the three nodes of a replica group, from its arrival at the leader to the answer, where all is calm.

Counted in files, in stays, which are runs of calls in one file, and in calls: each is a place that a reader of the way has to look at, and
each costs time.  Disk and network are the simulated ones, so every run counts the same.  ``python -m tests.unit.broker.test_journey``
prints the way, call by call and by file and function.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import broker
from dledger.log.config import LogConfig
from dledger_client.aio import Message, Producer
from tests.sim import invariants
from tests.sim.disk import DiskSettings
from tests.unit.client.noted_sends import send_noted, stays_of
from tests.unit.client.sim_rig import Rig

ROOT = Path(broker.__file__).parent.parent
PACKAGES = tuple(f"{ROOT / name}/" for name in ("broker", "store", "dledger", "dledger_wire"))
CHECKS = ("_after_step", "_check_applied")  # of the simulator, which looks at nodes
WARM, MESSAGES = 100, 21
FILES, STAYS, CALLS = 74, 581, 892


class Call(NamedTuple):
    node: str
    file: str
    function: str


async def journey(rig: Rig, producer: Producer) -> list[Call]:
    """Each call that the nodes make in files of ours until the producer has its answer."""
    calls: list[Call] = []
    is_checking = False
    hosts = {rig.cluster.hosts[node_id].process: node_id for node_id in rig.cluster.groups["g0"].node_ids}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal is_checking
        code = frame.f_code
        if code.co_filename == invariants.__file__ and code.co_name in CHECKS and event in ("call", "return"):
            is_checking = event == "call"
        elif event == "call" and not is_checking and code.co_filename.startswith(PACKAGES):
            node = hosts.get(rig.cluster.loop.current())
            if node is not None:
                calls.append(Call(node, code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    await send_noted(producer, note)
    return calls


def journeys() -> list[list[Call]]:
    """Of messages one after the other."""
    ways: list[list[Call]] = []

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            for _ in range(WARM):  # the leader is found, streams are open, disks are known to be fast
                await producer.send(Message("t", b"x" * 100))
            ways.extend([await journey(rig, producer) for _ in range(MESSAGES)])

    log = LogConfig(units_sync_delay_ms=600_000, fill_window_bytes=0)  # nothing in the background that goes by time
    Rig(log=log, disk=DiskSettings(now_chance=1.0)).run(scenario)
    return ways


def median_way(ways: list[list[Call]]) -> list[Call]:
    """Some messages meet a heartbeat or a timer; with some the answer is out before the slower follower's acknowledgement is in."""
    return sorted(ways, key=lambda way: (len(stays_of(call.file for call in way)), len(way)))[len(ways) // 2]


def test_a_message_passes_few_files_of_the_nodes_until_it_is_acknowledged() -> None:
    way = median_way(journeys())
    stays = stays_of(call.file for call in way)
    assert len(set(stays)) <= FILES
    assert len(stays) <= STAYS
    assert len(way) <= CALLS


def main() -> None:
    way = median_way(journeys())
    stays = stays_of(call.file for call in way)
    for node, run in groupby(way, key=lambda call: call.node):
        print(node, *(f"  {call.file}  {call.function}" for call in run), sep="\n")
    print("\nby file and function:")
    for (file, function), count in sorted(Counter((call.file, call.function) for call in way).items()):
        print(f"{count:5} {file}  {function}")
    print(f"\nfiles {len(set(stays))}, stays {len(stays)}, calls {len(way)}")


if __name__ == "__main__":
    main()
