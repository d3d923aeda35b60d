"""Frames of a node with an IPv6 address: clients leave 8 bytes for the store host, an IPv6 one takes 20.

Owns the conversion of a client's batch to the same batch with wider fields.  The record is built again, which costs one more copy on nodes
with an IPv6 address.
"""

from __future__ import annotations

import numpy as np

from dledger_wire.batches.batch import BatchView, encode_batch
from dledger_wire.frames.frame_layout import BORN_HOST_AT, IPV4_HOST_SIZE, IPV6_HOST_SIZE, SYS_FLAG_AT
from dledger_wire.frames.frames import frame_positions, host_kinds
from dledger_wire.status import SysFlag

WIDER_BY = IPV6_HOST_SIZE - IPV4_HOST_SIZE


def with_wide_store_hosts(batch: BatchView) -> BatchView:
    """The same batch, whose frames have room for an IPv6 store host and the flag for it."""
    sizes = batch.sizes.astype(np.int64)
    positions = frame_positions(sizes)
    narrow = np.frombuffer(batch.frames, np.uint8)
    born_v6, _ = host_kinds(narrow, positions)
    host_at = BORN_HOST_AT + (IPV6_HOST_SIZE if born_v6 else IPV4_HOST_SIZE) + 8
    frames = np.insert(narrow, np.repeat(positions + host_at, WIDER_BY), 0)
    sizes += WIDER_BY
    positions = frame_positions(sizes)
    frames[positions[:, None] + np.arange(4)] = sizes.astype(">u4").view(np.uint8).reshape(-1, 4)
    frames[positions + SYS_FLAG_AT + 3] |= int(SysFlag.STORE_HOST_V6)
    record = encode_batch(
        batch.topic,
        batch.queue_id,
        frames.tobytes(),
        sizes.astype(np.uint32),
        batch.tag_hashes.astype(np.int32),
        batch.unique_hashes.astype(np.int32),
        key_owners=batch.key_owners.astype(np.uint32),
        key_hashes=batch.key_hashes.astype(np.int32),
        sequence=batch.sequence,
    )
    return BatchView(memoryview(record))
