"""Settings of a push consumer.

Owns names, defaults and their checks; names and most defaults are RocketMQ's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_wire.allocation import Strategy, strategy
from dledger_wire.errors import InvalidArgumentError

FIRST, LAST, TIMESTAMP = "first", "last", "timestamp"
BROADCAST_ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class PushOptions:
    """See ``dledger_client.aio.PushConsumer`` for what each of them means."""

    orderly: bool = False
    broadcast: bool = False
    consume_message_batch_max_size: int = 1
    consume_threads: int = 20
    pull_batch_size: int = 256
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100 << 20
    consume_concurrently_max_span: int = 2000
    consume_from_where: str = FIRST
    consume_timestamp: int = 0
    allocate_strategy: str | Strategy = "AVG"
    allocate_options: dict[str, str] = field(default_factory=dict)
    max_reconsume_times: int = -1
    suspend_current_queue_time_ms: int = 1000
    persist_offset_interval_ms: int = 1000
    await_termination_ms: int = 5000
    offset_folder: str = ""

    def __post_init__(self) -> None:
        for name in ("consume_message_batch_max_size", "consume_threads", "pull_batch_size", "pull_threshold_for_queue"):
            _check_at_least(name, getattr(self, name), 1)
        for name in ("pull_threshold_size_for_queue", "consume_concurrently_max_span", "persist_offset_interval_ms"):
            _check_at_least(name, getattr(self, name), 1)
        for name in ("consume_timestamp", "suspend_current_queue_time_ms", "await_termination_ms"):
            _check_at_least(name, getattr(self, name), 0)
        if self.consume_from_where not in (FIRST, LAST, TIMESTAMP):
            raise InvalidArgumentError(f"consume_from_where {self.consume_from_where!r}: expected {FIRST}, {LAST} or {TIMESTAMP}")
        if self.max_reconsume_times < -1:
            raise InvalidArgumentError(f"max_reconsume_times {self.max_reconsume_times}: expected -1 (the group's setting) or more")
        self.strategy()

    def strategy(self) -> Strategy:
        """How queues are shared out."""
        chosen = self.allocate_strategy
        return strategy(chosen, self.allocate_options) if isinstance(chosen, str) else chosen

    @property
    def strategy_name(self) -> str:
        chosen = self.allocate_strategy
        return chosen if isinstance(chosen, str) else "CONFIG"


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidArgumentError(f"{name} {value}: expected at least {least}")
