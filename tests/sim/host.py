"""Simulated machines: what outlives the processes on them, and a data folder taken off one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeVar

from broker.node import BrokerNode
from dledger.runtime.env import Environment
from dledger_wire.feature_levels import LevelRange
from dledger_wire.security.network_security import NetworkSecurity
from tests.levels import NEXT_BUILD
from tests.sim.clock import SimClock
from tests.sim.disk import DiskSettings, SimDisk
from tests.sim.disk_content import Content
from tests.sim.invariants import Promises
from tests.sim.loop import Process, SimLoop
from tests.sim.network import SimNetwork
from tests.sim.trace import Trace


@dataclass(slots=True, eq=False)
class Folder:
    """A data folder that was taken off its machine: its files, and what its node had promised and stored."""

    names: dict[str, Content]
    durable_names: dict[str, Content]
    promises: Promises


@dataclass(slots=True, eq=False)
class Machine:
    """Its disk and clock outlive the processes on it."""

    name: str  # id of the node or name server that runs here
    address: str
    disk: SimDisk
    clock: SimClock
    rng: random.Random
    runs: int = 0
    boots: int = 1
    process: Process | None = None
    ended: BaseException | None = None  # what ran last stopped with, when it stopped by itself
    problems: list[BaseException] = field(default_factory=list)

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]

    def new_process(self, net: SimNetwork, security: NetworkSecurity) -> tuple[Process, Environment]:
        """The next one that runs here, and what it is given of the machine."""
        self.runs, self.ended = self.runs + 1, None
        process = self.process = Process(self.ip, self.runs)
        rng = random.Random(self.rng.getrandbits(64))
        boot_id, around = f"{self.ip}/{self.boots}", (self.clock, rng, self.disk.mount(process), net.of(process, security))
        return process, Environment(*around, boot_id=boot_id, stopwatch=lambda: self.clock.monotonic_ms() / 1000)


@dataclass(slots=True, eq=False)
class Host(Machine):
    """The machine of a node."""

    group: str = "g0"  # the replica group its node belongs to
    lineage: int = 0  # the place of its folder's among those of the group
    at_repair: bool = False  # an operator works on its folder: nothing starts or ends it meanwhile
    node: BrokerNode | None = None
    wiped: bool = False  # its folder was lost, and it is not a voter again yet
    rotten: str = ""  # of which files bits were flipped on its disk
    old_folder: Folder | None = None  # the one of before the member was replaced
    flush_mode: str = ""  # where it is not that of the others
    bad_disk: bool = False  # its disk was made to fail, so its node may stop for that reason
    levels: LevelRange = NEXT_BUILD  # the feature levels that the build on it can do

    @property
    def node_id(self) -> str:
        return self.name


Kind = TypeVar("Kind", bound=Machine)


def new_machine(kind: type[Kind], name: str, address: str, loop: SimLoop, trace: Trace, draw: random.Random, disk: DiskSettings) -> Kind:
    """A machine that nothing has run on; ``draw`` decides its clock and what its disk does."""
    rng = random.Random(draw.getrandbits(64))
    sim_disk = SimDisk(loop, address.rpartition(":")[0], random.Random(draw.getrandbits(64)), trace, disk)
    clock = SimClock(loop, offset_ms=rng.randrange(1000), rate=1.0 + rng.uniform(-0.002, 0.002))
    return kind(name, address, sim_disk, clock, rng)
