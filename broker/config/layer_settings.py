"""From the cluster file to the settings of the layers below: Raft, log and store.

A setting of the store has one name in both, and is taken over by it.  A setting of Raft or the log is mapped here.
"""

from __future__ import annotations

from dataclasses import fields

from broker.config.cluster_file import NodeSettings, StoreConfig
from broker.config.rocketmq import remoting_address
from dledger.core.config import CoreConfig
from dledger.core.types import Membership, NodeId
from dledger.log.config import LogConfig
from dledger.settings import RaftSettings
from store.settings import PAGE_BYTES, StoreSettings

COMMIT_NOTICE_DELAY_MS = 2


def raft_settings_of(settings: NodeSettings, log_config: LogConfig | None = None) -> RaftSettings:
    """The settings of the replicated log."""
    raft, store = settings.cluster.raft, settings.cluster.store
    members = tuple(NodeId(node.id) for node in settings.group.nodes if not node.spare)
    core = CoreConfig(
        election_timeout_ms=raft.election_timeout_ms,
        heartbeat_interval_ms=raft.heartBeatTimeIntervalMs,
        commit_notice_delay_ms=COMMIT_NOTICE_DELAY_MS,
        max_inflight_messages=raft.maxInflightMessages,
        max_inflight_bytes=raft.maxInflightBytes,
        max_append_bytes=raft.maxAppendBytes,
        max_uncommitted_bytes=raft.maxUncommittedBytes,
        priority=settings.node.priority,
    )
    return RaftSettings(
        peers={NodeId(node_id): address for node_id, address in settings.peers.items()},
        links={NodeId(node_id): address for node_id, address in settings.links.items()},
        membership=Membership(members, ()),
        core=core,
        log=log_config or LogConfig(segment_bytes=store.mappedFileSizeCommitLog),
        sync_flush=store.flushDiskType == "SYNC_FLUSH",
        flush_interval_ms=store.flushIntervalCommitLog,
        flush_least_bytes=store.flushCommitLogLeastPages * PAGE_BYTES,
        flush_thorough_interval_ms=store.flushCommitLogThoroughInterval,
        snapshot_bytes_per_s=raft.peerPushQuota,
    )


def store_settings_of(settings: NodeSettings) -> StoreSettings:
    """The settings of the message store."""
    given = {
        field.name: getattr(settings.cluster.store, field.name) for field in fields(StoreSettings) if field.name in StoreConfig.names()
    }
    # Clients of RocketMQ look for a message at the address that its frame names.
    host = remoting_address(settings.cluster, settings.node.id, settings.node.address) or settings.node.address
    return StoreSettings(store_host=host, **given)
