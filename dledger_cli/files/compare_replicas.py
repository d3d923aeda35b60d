"""Comparing the replicas of a group by the checksums of their committed segments, while they serve."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dledger_cli.calls import with_hint
from dledger_cli.context import ask_nodes, real_network
from dledger_wire.errors import DledgerError, StorageDamagedError, UnreachableError
from dledger_wire.rpc import methods

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig, GroupConfig
    from dledger_wire._pb import admin_pb2


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """The replicas of one group over the range all of them have committed."""

    group: str
    upto_pos: int
    compared_bytes: int
    replicas: tuple[str, ...]
    unreachable: tuple[str, ...]
    difference: str  # empty when every compared segment is equal

    @property
    def equal(self) -> bool:
        return not self.difference

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"equal": self.equal}


async def compare_replicas(config: ClusterConfig, timeout_s: float) -> list[GroupComparison]:
    """Every group, one after the other.  Nodes that do not answer are named, not guessed about."""
    committed = {answer.id: answer.status.committed_pos for answer in await ask_nodes(config) if answer.status}
    return [await _compare_group(group, committed, timeout_s) for group in config.groups]


async def _compare_group(group: GroupConfig, committed: dict[str, int], timeout_s: float) -> GroupComparison:
    there = [node.id for node in group.nodes if node.id in committed]
    missing = [node.id for node in group.nodes if node.id not in committed]
    if not there:
        raise UnreachableError(with_hint(f"no node reachable at {', '.join(node.address for node in group.nodes)}"))
    upto = min(committed[node_id] for node_id in there)
    addresses = {node.id: node.address for node in group.nodes}
    answers = await asyncio.gather(*(_checksums(addresses[node_id], upto, timeout_s) for node_id in there), return_exceptions=True)
    replies: dict[str, admin_pb2.ChecksumReply] = {}
    damaged = ""
    for node_id, answer in zip(there, answers, strict=True):
        if isinstance(answer, DledgerError):
            damaged = damaged or f"{node_id}: {answer}"
        elif isinstance(answer, BaseException):
            raise answer
        else:
            replies[node_id] = answer
    compared, difference, segment = _first_difference(replies)
    if segment is not None:
        difference = await _whose_damage({node_id: addresses[node_id] for node_id in replies}, upto, segment, timeout_s) or difference
    return GroupComparison(group.name, upto, compared, tuple(replies), tuple(missing), damaged or difference)


async def _whose_damage(addresses: dict[str, str], upto_pos: int, segment: int, timeout_s: float) -> str:
    """Have each replica check entries of a segment that differs: whose are damaged, in which file and where. Empty when all are whole."""
    calls = (_checksums(address, upto_pos, timeout_s, segment) for address in addresses.values())
    answers = await asyncio.gather(*calls, return_exceptions=True)
    found = [f"{node_id}: {answer}" for node_id, answer in zip(addresses, answers, strict=True) if isinstance(answer, StorageDamagedError)]
    return "; ".join(found)


async def _checksums(address: str, upto_pos: int, timeout_s: float, checked_segment: int | None = None) -> admin_pb2.ChecksumReply:
    from dledger_wire._pb import admin_pb2

    channel = real_network().connect(address)
    try:
        request = admin_pb2.ChecksumRequest(upto_pos=upto_pos, checked_segment=checked_segment)
        return await methods.SEGMENT_CHECKSUMS.call(channel, request, timeout_s=timeout_s)
    finally:
        await channel.close()


def _first_difference(replies: dict[str, admin_pb2.ChecksumReply]) -> tuple[int, str, int | None]:
    """Bytes compared, how two replicas differ, and in which segment they do first.  Segments below a replica's first one are left out."""
    if not replies:
        return 0, "", None
    first_pos = max(reply.first_pos for reply in replies.values())
    known: dict[int, tuple[str, int, int]] = {}
    compared = 0
    for node_id, reply in replies.items():
        for segment in reply.segments:
            if segment.start_pos < first_pos:
                continue
            other = known.setdefault(segment.start_pos, (node_id, segment.size_bytes, segment.crc))
            compared += segment.size_bytes if other[0] == node_id else 0
            if (segment.size_bytes, segment.crc) != other[1:]:
                text = f"segment {segment.start_pos:020d} differs between {other[0]} ({other[1]} bytes, crc {other[2]:08x})"
                return compared, f"{text} and {node_id} ({segment.size_bytes} bytes, crc {segment.crc:08x})", segment.start_pos
    counts = {node_id: sum(segment.start_pos >= first_pos for segment in reply.segments) for node_id, reply in replies.items()}
    if len(set(counts.values())) > 1:
        return compared, f"replicas hold different numbers of segments: {counts}", None
    return compared, "", None
