"""What a node may keep in memory, out of ``memoryHighWatermark``: received bytes, uncommitted entries, what waits for slow readers.

Owns the shares.  Each is the smaller one of its default and of its part of what the watermark leaves beside an idle node; a setting of
its own in the cluster file counts in place of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.config.cluster_file import ClusterConfig, RaftConfig
from broker.config.units import parse_size
from dledger.settings import RaftSettings
from dledger_wire.security.limits import DEFAULT_LIMITS
from dledger_wire.tcp.mixed_network import GRPC_BYTES

IDLE_BYTES = 120 << 20
RECEIVED_BYTES = 128 << 20  # more would not be stored faster, only later than its senders wait for it


def watermark(mark: str, memory_bytes: int) -> int:
    """``memoryHighWatermark`` in bytes; 0 where it is a share of a memory that is not known."""
    return int(memory_bytes * float(mark[:-1]) / 100) if mark.endswith("%") else parse_size(mark)


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """What a node may keep.

    Attributes:
        mark: The watermark in bytes; 0: not known.
        budget: What all may take together; 0: as much as they take by default.
        received: Of messages not taken yet, and of credit to send them.
        unsent: What waits for callers that do not read.
        grpc: As ``received``, of callers by gRPC.
    """

    mark: int = 0
    budget: int = 0
    received: int = RECEIVED_BYTES
    unsent: int = DEFAULT_LIMITS.unsent
    grpc: int = GRPC_BYTES

    @classmethod
    def of(cls, cluster: ClusterConfig, memory_bytes: int) -> MemoryShares:
        """``memory_bytes``: of the machine or its cgroup; 0 where it is not known."""
        mark = watermark(cluster.broker.memoryHighWatermark, memory_bytes)
        shares = cls(mark, max(mark - IDLE_BYTES, mark // 3))
        return replace(
            shares,
            received=max(shares.part(6, RECEIVED_BYTES, 16 << 20), 2 * cluster.store.maxMessageSize),
            unsent=shares.part(2, DEFAULT_LIMITS.unsent, 8 << 20),
            grpc=shares.part(1, GRPC_BYTES, 8 << 20),
        )

    def part(self, sixteenths: int, default: int, least: int) -> int:
        """So much of the budget, or ``default`` when that is less; but ``least`` at least, where the default is not below it."""
        return min(default, max(least, self.budget * sixteenths // 16)) if self.budget else default

    def bound(self, settings: RaftSettings, given: RaftConfig) -> RaftSettings:
        """The settings of the replicated log within the shares; those that the cluster file has stay as they are."""
        core, log = settings.core, settings.log
        uncommitted, inflight = core.max_uncommitted_bytes, core.max_inflight_bytes
        if "maxUncommittedBytes" not in given.given_names:
            uncommitted = self.part(2, uncommitted, 8 << 20)
        if "maxInflightBytes" not in given.given_names:
            inflight = self.part(1, inflight, core.max_append_bytes)
        return replace(
            settings,
            core=replace(core, max_uncommitted_bytes=uncommitted, max_inflight_bytes=inflight),
            log=replace(log, cache_bytes=self.part(2, log.cache_bytes, 8 << 20)),
            max_pending_bytes=self.part(1, settings.max_pending_bytes, 4 << 20),
            max_unwritten_bytes=self.part(1, settings.max_unwritten_bytes, 4 << 20),
        )
