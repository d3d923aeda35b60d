"""One simulated machine: what outlives the processes on it, and a data folder taken off it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from broker.node import BrokerNode
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.disk_content import Content
from tests.sim.invariants import Promises
from tests.sim.loop import Process


@dataclass(slots=True, eq=False)
class Folder:
    """A data folder that was taken off its machine: its files, and what its node had promised and stored."""

    names: dict[str, Content]
    durable_names: dict[str, Content]
    promises: Promises


@dataclass(slots=True, eq=False)
class Host:
    """One machine: its disk and clock outlive the processes on it."""

    node_id: str
    address: str
    disk: SimDisk
    clock: SimClock
    rng: random.Random
    group: str = "g0"  # the replica group its node belongs to
    runs: int = 0
    boots: int = 1
    process: Process | None = None
    node: BrokerNode | None = None
    ended: BaseException | None = None  # what the node that ran last stopped with, when it stopped by itself
    wiped: bool = False  # its folder was lost, and it is not a voter again yet
    rotten: str = ""  # of which files bits were flipped on its disk
    old_folder: Folder | None = None  # the one of before the member was replaced
    bad_disk: bool = False  # its disk was made to fail, so its node may stop for that reason
    problems: list[BaseException] = field(default_factory=list)

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]
