"""Metadata as nodes tell it: asked one after the other without waiting long for a silent one, or all at once.

Owns the METADATA calls of one client.  A node tells the term, the leader and the topics of its own replica group, and the addresses of the
others.  Nodes with an unusable address or id are skipped: one mistyped member must not keep clients from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from dledger_client.cluster.channels import Channels
from dledger_client.cluster.route_cache import RouteCache
from dledger_client.cluster.routes import Node, ReplicaGroup, TopicQueues
from dledger_wire._pb import broker_pb2
from dledger_wire.addresses import is_address
from dledger_wire.errors import DledgerError, UnreachableError
from dledger_wire.names import is_node_name
from dledger_wire.rpc import methods

ASK_TIMEOUT_S = 1.0
HEDGE_S = 0.15  # without an answer by then, the next node is asked in parallel
SURVEY_S = 0.3  # how long a survey waits for slow nodes
MAX_SKIPPED = 100  # unusable nodes that are logged, once each

_logger = logging.getLogger(__name__)


class NodeMetadata:
    """Asks for one client; what the nodes answer goes into its cache."""

    def __init__(self, channels: Channels, cache: RouteCache, bootstrap: Sequence[str]) -> None:
        self._channels, self._cache, self._bootstrap = channels, cache, bootstrap
        self.answered_last = ""
        self._skipped: set[tuple[str, str]] = set()

    def addresses(self) -> list[str]:
        """Everybody who may be asked, who answered last first."""
        known = [self.answered_last] if self.answered_last else []
        return list(dict.fromkeys([*known, *self._cache.node_addresses(), *self._bootstrap]))

    async def ask(self, address: str, topics: Sequence[str]) -> broker_pb2.MetadataResponse:
        """The answer of the node at ``address``, without what cannot be used of it."""
        request = broker_pb2.MetadataRequest(topics=topics)
        response = await methods.METADATA.call(self._channels.to(address), request, timeout_s=ASK_TIMEOUT_S)
        self._skip_unusable(address, response)
        self.answered_last, self._cache.cluster = address, response.cluster
        for info in response.groups:
            self._cache.learn_group(group_of(info))
        return response

    def _skip_unusable(self, address: str, response: broker_pb2.MetadataResponse) -> None:
        """Take out of an answer every node that cannot be called, with one log line each."""
        for info in response.groups:
            if info.leader_address and not is_address(info.leader_address):
                self._log_skipped(address, info.leader_id, info.leader_address)
                info.leader_id = info.leader_address = ""
            bad = [place for place, node in enumerate(info.nodes) if not (is_node_name(node.id) and is_address(node.address))]
            for place in reversed(bad):
                self._log_skipped(address, info.nodes[place].id, info.nodes[place].address)
                del info.nodes[place]

    def _log_skipped(self, address: str, node_id: str, node_address: str) -> None:
        if (node_id, node_address) not in self._skipped and len(self._skipped) < MAX_SKIPPED:
            self._skipped.add((node_id, node_address))
            _logger.warning("%s: node %r has the unusable address %r; skipped", address, node_id[:100], node_address[:100])

    async def first_answer(self, topics: Sequence[str]) -> tuple[str, broker_pb2.MetadataResponse]:
        """The first answer of any node, and whose it is; the nodes are asked one after the other, without waiting long for a silent one."""
        asked: dict[asyncio.Task[broker_pb2.MetadataResponse], str] = {}
        problems: list[str] = []
        addresses = iter(self.addresses())
        try:
            while True:
                address = next(addresses, None)
                if address is not None:
                    asked[asyncio.ensure_future(self.ask(address, topics))] = address
                waiting = [task for task in asked if not task.done()]
                if waiting:
                    await asyncio.wait(waiting, timeout=None if address is None else HEDGE_S, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    answered = asked.pop(task)
                    error = task.exception()
                    if error is None:
                        return answered, task.result()
                    if not isinstance(error, DledgerError):
                        raise error
                    problems.append(str(error))
                if address is None and not asked:
                    everybody = ", ".join(self.addresses())
                    raise UnreachableError(f"no node reachable at {everybody}: {problems[-1]}", problems="; ".join(problems))
        finally:
            for task in asked:
                task.cancel()

    async def survey(
        self, addresses: Iterable[str], topics: Sequence[str], enough: Callable[[str, broker_pb2.MetadataResponse], bool]
    ) -> list[tuple[str, broker_pb2.MetadataResponse]]:
        """What several nodes say, asked at once: until one says ``enough``, all have answered, or the slow ones have had their time."""
        tasks = {asyncio.ensure_future(self.ask(address, topics)): address for address in addresses}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SURVEY_S
        answers: dict[str, broker_pb2.MetadataResponse] = {}
        try:
            while waiting := [task for task in tasks if not task.done()]:
                left = deadline - loop.time()
                if left <= 0:
                    break
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task, address in tasks.items():
                    if task.done() and not task.cancelled() and task.exception() is None:
                        answers.setdefault(address, task.result())
                if any(enough(address, response) for address, response in answers.items()):
                    break
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
                elif not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, DledgerError):
                    raise error
        return list(answers.items())


def group_of(info: broker_pb2.GroupInfo) -> ReplicaGroup:
    """A replica group as a node tells of it."""
    nodes = tuple(Node(node.id, node.address, node.voter) for node in info.nodes)
    return ReplicaGroup(info.name, info.term, info.leader_id, info.leader_address, nodes)


def info_of(group: str, response: broker_pb2.MetadataResponse) -> broker_pb2.GroupInfo | None:
    """What an answer says of ``group``."""
    return next((info for info in response.groups if info.name == group), None)


def queues_of(topic: str, response: broker_pb2.MetadataResponse) -> list[TopicQueues]:
    """What an answer says of ``topic``."""
    return [
        TopicQueues(
            info.name,
            info.group,
            info.read_queues,
            info.write_queues,
            info.perm,
            info.incarnation,
            version=response.version,
            max_message_bytes=response.max_message_bytes,
        )
        for info in response.topics
        if info.found and info.name == topic
    ]
