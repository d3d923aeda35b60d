"""What a simulated world of cores is like: sizes, speeds and chances, drawn from the seed (swarm: each seed switches a subset on)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dledger.core.config import CoreConfig

HEARTBEAT_MS = 100
ELECTION_MS = 600


def _core_config() -> CoreConfig:
    return CoreConfig(heartbeat_interval_ms=HEARTBEAT_MS, election_timeout_ms=ELECTION_MS)


@dataclass(slots=True)
class CoreSettings:
    """Times in virtual milliseconds, chances for each message or write."""

    features: tuple[str, ...] = ()  # of one world (``one_world.py``)
    voters: int = 3
    spares: int = 0  # replicas outside the group, for membership changes
    core: CoreConfig = field(default_factory=_core_config)
    # Network
    delay_ms: float = 1.0
    jitter_ms: float = 2.0
    ordered: bool = True  # messages of a link arrive in the order sent, as on a stream
    drop_chance: float = 0.0
    double_chance: float = 0.0
    late_chance: float = 0.0  # a message that is held up, perhaps past an election or a restart
    late_ms: float = 2000.0
    lineages_apart: bool = True  # links refuse nodes whose log comes from another recovery
    # Disk
    sync_ms: float = 1.0
    background_sync_ms: float = 300.0  # under ASYNC_FLUSH (``core.loses_unsynced``); a loss of power takes what is not synced then
    partial_chance: float = 0.0  # a flush takes only a part of what waits
    completion_lag_ms: float = 0.0  # how much later than the sync its completion may be told
    lag_chance: float = 0.3  # how many completions are that late
    # State machine
    apply_ms: float = 0.2
    # Clients
    clients: int = 3
    kinds: tuple[str, ...] = ("append",)
    think_ms: float = 20.0
    timeout_ms: float = 1500.0


WORKLOADS = (
    ("append", "append", "poll"),  # W1
    ("enqueue", "enqueue", "dequeue"),  # W2
    ("write", "read", "cas"),  # W4
    ("append-if",),  # W5
)


def draw_settings(draw: random.Random) -> CoreSettings:
    """Any world."""
    max_append = draw.choice((1, 3000, 20_000, 4 << 20))
    config = CoreConfig(
        heartbeat_interval_ms=HEARTBEAT_MS,
        election_timeout_ms=ELECTION_MS,
        commit_notice_delay_ms=draw.choice((0, 0, 2, 50)),
        max_inflight_messages=draw.choice((1, 2, 8, 64)),
        max_append_bytes=max_append,
        max_inflight_bytes=max(max_append, draw.choice((5000, 40_000, 32 << 20))),
        max_uncommitted_bytes=draw.choice((6000, 64 << 20, 64 << 20)),
    )
    kinds: tuple[str, ...] = ()
    for workload in draw.sample(WORKLOADS, draw.randint(1, len(WORKLOADS))):
        kinds += workload
    return CoreSettings(
        voters=draw.choice((1, 2, 3, 3, 3, 3, 4, 5, 5)),
        spares=draw.choice((0, 0, 2)),
        core=config,
        delay_ms=draw.choice((0.2, 1.0, 10.0)),
        jitter_ms=draw.choice((0.2, 2.0, 30.0)),
        ordered=draw.random() < 0.6,
        drop_chance=draw.choice((0.0, 0.0, 0.02, 0.1)),
        double_chance=draw.choice((0.0, 0.0, 0.05)),
        late_chance=draw.choice((0.0, 0.0, 0.02)),
        sync_ms=draw.choice((0.3, 1.0, 8.0, 40.0)),
        partial_chance=draw.choice((0.0, 0.3)),
        completion_lag_ms=draw.choice((0.0, 0.0, 5.0, 500.0)),
        apply_ms=draw.choice((0.1, 0.1, 20.0)),
        clients=draw.choice((1, 3, 3, 5)),
        kinds=kinds,
        think_ms=draw.choice((5.0, 20.0, 50.0)),
    )
