"""The load of the peers' benchmark: what counts as the next acknowledged write after the kill."""

from __future__ import annotations

import time

from benchmarks.peers.load import Load


def test_only_a_message_sent_after_the_kill_ends_the_pause() -> None:
    load = Load(10.0)
    load.sent_at[0] = time.monotonic()
    load.killed_at = time.monotonic()
    load.gone_at = load.killed_at + 0.5
    load.acknowledged(0)  # by the leader that died
    assert load.pause_s is None
    load.sent_at[1] = load.gone_at + 1e-6
    load.acknowledged(1)
    assert load.pause_s is not None
    assert load.pause_s > 0
    first = load.pause_s
    load.sent_at[2] = load.sent_at[1]
    load.acknowledged(2)
    assert load.pause_s == first
    assert load.stored == 3
