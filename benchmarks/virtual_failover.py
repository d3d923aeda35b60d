"""How long a producer waits when its leader is lost, in virtual time: what protocols and timers cost, whatever else the machine does.

    python -m benchmarks.virtual_failover --seeds 5

From the loss (killed, or cut off) to the acknowledgement of a message sent then; three losses for each seed, six seconds apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from dledger_client.aio import Message
from tests.unit.client.sim_rig import Rig

LOSSES, APART_S = 3, 6.0


def pauses_ms(seed: int, fault: str) -> list[float]:
    """The pauses of one cluster, in milliseconds."""
    found: list[float] = []

    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        loop = rig.cluster.loop
        async with rig.producer(send_timeout_ms=20_000) as producer:
            await producer.send(Message("t", b"before"))
            for _ in range(LOSSES):
                await asyncio.sleep(APART_S)
                victim, lost_s = rig.master, loop.time()
                if fault == "kill":
                    rig.cluster.kill(victim)
                else:
                    rig.isolate(victim)
                await producer.send(Message("t", b"after"))
                found.append((loop.time() - lost_s) * 1000)
                if fault == "kill":
                    rig.cluster.start(victim)
                else:
                    rig.cluster.net.heal_all()

    Rig(seed).run(scenario)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    for fault in ("kill", "cut"):
        found = [pause for seed in range(1, arguments.seeds + 1) for pause in pauses_ms(seed, fault)]
        print(f"{fault}: {len(found)} losses, median {statistics.median(found):.0f} ms, worst {max(found):.0f} ms")


if __name__ == "__main__":
    main()
