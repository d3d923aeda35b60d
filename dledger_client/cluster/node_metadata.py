"""Metadata of nodes: asked one after the other without waiting long for a silent one, or all at once.

Owns the METADATA calls of one client.  A node returns the term, the leader and the topics of its replica group, and the addresses of the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from dledger_client.cluster.channels import Channels, ask_in_turn, refused
from dledger_client.cluster.routes import RouteCache, TopicQueues, queues_in
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, UnreachableError
from dledger_wire.rpc import methods

ASK_TIMEOUT_S = 1.0
SURVEY_S = 0.3  # how long a survey waits for slow nodes

NodeAnswer = tuple[str, broker_pb2.MetadataResponse]  # whose it is, and what it says


class NodeMetadata:
    """Asks for one client; what the nodes answer goes into its cache."""

    def __init__(self, channels: Channels, cache: RouteCache, bootstrap: Sequence[str]) -> None:
        self._channels, self._cache, self.bootstrap = channels, cache, bootstrap
        self.answered_last = ""

    def addresses(self) -> list[str]:
        """All that may be asked, the last that answered first."""
        known = [self.answered_last] if self.answered_last else []
        return list(dict.fromkeys([*known, *self._cache.node_addresses(), *self.bootstrap]))

    def addresses_of(self, group: str) -> list[str]:
        """Those that may know a replica group: its nodes; all while none of them is known."""
        return self._cache.node_addresses([group]) or self.addresses()

    async def ask(self, address: str, topics: Sequence[str]) -> broker_pb2.MetadataResponse:
        """The answer of the node at ``address``, without what cannot be used of it."""
        request = broker_pb2.MetadataRequest(topics=topics)
        response = await methods.METADATA.call(self._channels.to(address), request, timeout_s=ASK_TIMEOUT_S)
        if _is_of_another(address, response):
            # The name of the address led to another machine when the connection was made, as for a while after nodes have moved.
            self._channels.give_up(address)
        self.answered_last, self._cache.cluster = address, response.cluster
        for info in response.groups:
            group = self._cache.group_of(info, address)
            if not group.leader_address:
                info.leader_id = info.leader_address = ""
            self._cache.learn_group(group)
        for topic in response.topics:
            self._cache.set_unseen(topic.name, topic.unseen_by)
        return response

    async def first_answer(self, topics: Sequence[str]) -> NodeAnswer:
        """The first answer of any node, and whose it is."""
        addresses, problems = self.addresses(), list[DledgerError]()
        rest = iter(addresses)
        found = await ask_in_turn(lambda: next(rest, None), lambda address: self.ask(address, topics), problems)
        if found is None:
            if (refusal := refused(problems)) is not None:
                raise refusal
            text = f"no node reachable at {', '.join(addresses)}: {problems[-1]}"
            raise UnreachableError(text, problems="; ".join(map(str, problems)))
        return found

    async def survey(
        self,
        addresses: Iterable[str],
        topics: Sequence[str],
        enough: Callable[[NodeAnswer], bool],
        problems: list[DledgerError] | None = None,
    ) -> list[NodeAnswer]:
        """What several nodes say, asked at once: until one says ``enough``, all have answered, or the slow ones have had their time.

        ``problems`` takes why others do not."""
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
                if any(enough(answer) for answer in answers.items()):
                    break
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
                elif not task.cancelled() and (error := task.exception()) is not None:
                    if not isinstance(error, DledgerError):
                        raise error
                    if problems is not None:
                        problems.append(error)
        return list(answers.items())


def _is_of_another(address: str, response: broker_pb2.MetadataResponse) -> bool:
    """Whether the node that answered is none of those that it knows at this address."""
    there = {node.id for info in response.groups for node in info.nodes if node.address == address}
    return bool(response.replica.node and there) and response.replica.node not in there


def info_of(group: str, response: broker_pb2.MetadataResponse) -> broker_pb2.GroupInfo | None:
    """What an answer says of ``group``."""
    return next((info for info in response.groups if info.name == group), None)


def queues_of(topic: str, response: broker_pb2.MetadataResponse) -> list[TopicQueues]:
    """What an answer says of ``topic``."""
    return [
        queues_in(topic, info, info.incarnation, response.version, response.max_message_bytes)
        for info in response.topics
        if info.found and info.name == topic
    ]
