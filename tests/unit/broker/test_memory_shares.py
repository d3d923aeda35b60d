"""``memoryHighWatermark``: what the machine or its cgroup has, and what a node may keep of which."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.config.layer_settings import raft_settings_of
from broker.config.memory_shares import IDLE_BYTES, MemoryShares, watermark
from broker.config.model import Mistakes
from broker.process.machine import machine_of
from broker.process.process_reader import cgroup_limits, memory_bytes
from dledger.settings import RaftSettings
from dledger_wire.errors import ConfigError
from dledger_wire.security import principal

MIB, GIB = 1 << 20, 1 << 30


def cluster(mark: str = "40%", raft: str = "", store: str = "") -> ClusterConfig:
    text = f"cluster: c\ngroups: [{{name: g0, nodes: [{{id: n0, address: 127.0.0.1:10911}}]}}]\nbroker: {{memoryHighWatermark: {mark}}}\n"
    return ClusterConfig.parse(text + f"raft: {{{raft}}}\nstore: {{{store}}}\n", "f")


def bound(config: ClusterConfig, memory: int) -> RaftSettings:
    return MemoryShares.of(config, memory).bound(raft_settings_of(config.node("n0")), config.raft)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [("40%", 400 * MIB), ("0.25", 250 * MIB), ("12.5 %", 125 * MIB), ("512MiB", 512 * MIB), (str(256 * MIB), 256 * MIB)],
)
def test_a_watermark_is_a_share_or_a_size(mark: str, expected: int) -> None:
    assert watermark(cluster(mark).broker.memoryHighWatermark, 1000 * MIB) == expected


@pytest.mark.parametrize("mark", ["0%", "96%", "1.5", "0", "100MiB", "much", "x%", "true", "[40]", "-1", "nan%"])
def test_anything_else_is_a_mistake_that_names_what_was_expected(mark: str) -> None:
    with pytest.raises((ConfigError, Mistakes), match="memoryHighWatermark: expected a share of the memory such as 40%"):
        cluster(mark)


def test_what_a_large_machine_has_leaves_all_at_their_defaults() -> None:
    config = cluster()
    assert bound(config, 64 * GIB) == bound(config, 0) == raft_settings_of(config.node("n0"))
    large, unknown = MemoryShares.of(config, 64 * GIB), MemoryShares.of(config, 0)
    assert (
        (large.received, large.unsent, large.grpc) == (unknown.received, unknown.unsent, unknown.grpc) == (128 * MIB, 512 * MIB, 64 * MIB)
    )


@pytest.mark.parametrize("memory", [512 * MIB, 1 * GIB, 2 * GIB, 4 * GIB])
def test_all_shares_together_fit_what_is_left_beside_an_idle_node(memory: int) -> None:
    config = cluster()
    shares, raft = MemoryShares.of(config, memory), bound(config, memory)
    # What is uncommitted is among the newest entries, which are kept.
    log = raft.log.cache_bytes + raft.max_pending_bytes + raft.max_unwritten_bytes + 2 * raft.core.max_inflight_bytes
    assert IDLE_BYTES + shares.received + shares.unsent + log <= max(watermark("40%", memory), 205 * MIB)
    assert raft.core.max_uncommitted_bytes <= 64 * MIB
    assert raft.core.max_append_bytes <= raft.core.max_inflight_bytes


def test_settings_of_the_file_count_in_place_of_shares() -> None:
    raft = bound(cluster("128MiB", "maxUncommittedBytes: 48MiB, maxInflightBytes: 16MiB"), 0)
    assert (raft.core.max_uncommitted_bytes, raft.core.max_inflight_bytes) == (48 * MIB, 16 * MIB)
    assert bound(cluster("128MiB"), 0).core.max_uncommitted_bytes == 8 * MIB


def test_two_messages_of_the_largest_size_fit_in_any_case() -> None:
    assert MemoryShares.of(cluster("128MiB", store="maxMessageSize: 32MiB"), 0).received == 64 * MIB


def test_the_cgroup_with_the_least_counts(tmp_path: Path) -> None:
    for folder, text in {"": "max", "a": str(2 * GIB), "a/b": str(3 * GIB), "a/b/c": "max"}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(text + "\n")
    assert sorted(cgroup_limits("0::/a/b/c\n", tmp_path)) == [2 * GIB, 3 * GIB]
    assert list(cgroup_limits("0::/elsewhere\n", tmp_path)) == []


def test_the_first_version_of_cgroups_counts_as_well(tmp_path: Path) -> None:
    (tmp_path / "memory" / "a").mkdir(parents=True)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{512 * MIB}\n")
    text = "7:cpu:/a\n5:memory:/docker/0123\n"
    assert list(cgroup_limits(text, tmp_path)) == [512 * MIB]  # a container sees its own as the root


def test_this_machine_has_memory() -> None:
    assert memory_bytes() > 64 * MIB


def test_the_network_of_a_node_has_its_shares(tmp_path: Path) -> None:
    async def limits() -> tuple[int, int, int]:
        machine = machine_of(cluster("512MiB"), principal.node("c", "g0", "n0"), str(tmp_path))
        return machine.network._memory._limit, machine.network.grpc_memory._limit, machine.network.security.limits.unsent

    shares = MemoryShares.of(cluster("512MiB"), 0)
    assert asyncio.run(limits()) == (shares.received, shares.grpc, shares.unsent) == (128 * MIB, shares.budget // 16, 49 * MIB)
