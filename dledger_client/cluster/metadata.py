"""Cluster metadata: nodes, replica groups and their leaders, queues of topics; and one channel to each address.

Owns the routes and channels of one client.  Any node answers for the whole cluster; when one is slow, the next one is asked in parallel.
Of two answers about a replica group the one with the higher term counts.  Nodes with an unusable address or id are skipped: one mistyped
member must not keep clients from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

from dledger_client.cluster.responses import parse
from dledger_client.cluster.retry import is_retriable, until
from dledger_client.deprecation import RenamedAttribute
from dledger_wire._pb import broker_pb2
from dledger_wire.addresses import is_address
from dledger_wire.clock import Clock, Random
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotLeaderError, NotReadyError, TopicNotFoundError, UnreachableError
from dledger_wire.names import check_topic, is_node_name
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import Channel, Network

ASK_TIMEOUT_S = 1.0
HEDGE_S = 0.15  # without an answer by then, the next node is asked in parallel
CALL_SILENCE_S = 1.0  # a call without a response for that long: the other nodes are asked who leads
ATTEMPT_S = 25.0  # longer than any service works on a call: a change of members waits for two commits, 10 s each at most
SURVEY_S = 0.3  # how long a search for a leader waits for slow nodes
Bootstrap: TypeAlias = str | Sequence[str]  # host:port,host:port or a list of them
MAX_SKIPPED = 100  # unusable nodes that are logged, once each

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """A replica of a replica group.

    Attributes:
        id: Its id.
        address: ``host:port``.
        voter: Whether it votes; False: a learner.
    """

    id: str
    address: str
    voter: bool


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """A replica group: the nodes that store the same data.

    Attributes:
        name: Its name.
        term: The Raft term in which the leader was elected.
        leader_id: Id of the leader; empty while there is none.
        leader_address: ``host:port`` of the leader; empty while there is none.
        nodes: Its replicas.
    """

    name: str
    term: int
    leader_id: str
    leader_address: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The queues of a topic in one replica group.

    Attributes:
        topic: The topic.
        replica_group: The replica group.
        read_queues: Number of queues consumers read.
        write_queues: Number of queues producers write to.
        perm: Permission bits: 4 read, 2 write (see ``Perm``).
        topic_epoch: Identifies the topic; another value when it was deleted and created again.
        version: Version of the replica group's table of topics; 0: unknown.
        max_message_bytes: Largest message body that the brokers accept; 0: unknown.
    """

    topic: str
    replica_group: str
    read_queues: int
    write_queues: int
    perm: int
    topic_epoch: str
    version: int = field(default=0, compare=False)  # of the group's table of topics, which every change raises; 0: unknown
    max_message_bytes: int = field(default=0, compare=False)  # the largest body that the brokers accept; 0: unknown
    group = RenamedAttribute("replica_group")
    incarnation = RenamedAttribute("topic_epoch")


def parse_bootstrap(bootstrap: Bootstrap) -> list[str]:
    """The addresses of ``host:port,host:port``, or of a list of them.  Raises InvalidArgumentError."""
    if isinstance(bootstrap, list | tuple) and all(isinstance(each, str) for each in bootstrap):
        bootstrap = ",".join(bootstrap)
    if not isinstance(bootstrap, str):
        raise InvalidArgumentError(f"bootstrap {bootstrap!r}: expected host:port,host:port,...")
    addresses = list(dict.fromkeys(part.strip() for part in bootstrap.split(",") if part.strip()))
    for address in addresses:
        if not is_address(address):
            raise InvalidArgumentError(f"bootstrap {bootstrap!r}: {address!r} is not host:port; expected host:port,host:port,...")
    if not addresses:
        raise InvalidArgumentError(f"bootstrap {bootstrap!r}: no address; expected host:port,host:port,...")
    return addresses


class Router:
    """Routes of one client.  Used on one event loop."""

    def __init__(self, bootstrap: Bootstrap, network: Network, clock: Clock, random: Random) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        self._network, self.clock, self.random = network, clock, random
        self._channels: dict[str, Channel] = {}
        self._good = ""  # answered last
        self.groups: dict[str, ReplicaGroup] = {}
        self._topics: dict[str, list[TopicQueues]] = {}
        self.cluster = ""
        self._skipped: set[tuple[str, str]] = set()

    # Channels

    def channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._network.connect(address)
        return channel

    @property
    def is_open(self) -> bool:
        """Whether there are connections to close."""
        return bool(self._channels)

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def addresses(self) -> list[str]:
        """Everybody who may be asked, who answered last first."""
        known = [self._good] if self._good else []
        known += [node.address for group in self.groups.values() for node in group.nodes]
        return list(dict.fromkeys([*known, *self._bootstrap]))

    def address_of(self, node_id: str) -> str:
        return next((node.address for group in self.groups.values() for node in group.nodes if node.id == node_id), "")

    # Asking

    async def _ask(self, address: str, topics: Sequence[str]) -> tuple[str, broker_pb2.MetadataResponse]:
        request = broker_pb2.MetadataRequest(topics=topics)
        answer = await self.channel(address).call(methods.METADATA.path, request.SerializeToString(), timeout_s=ASK_TIMEOUT_S)
        response = parse(broker_pb2.MetadataResponse, answer, address)
        self._skip_unusable(address, response)
        self._learn(address, response)
        return address, response

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

    def _learn(self, address: str, response: broker_pb2.MetadataResponse) -> None:
        self._good, self.cluster = address, response.cluster
        for info in response.groups:
            known = self.groups.get(info.name)
            if known is not None and (known.term, bool(known.leader_address)) > (info.term, bool(info.leader_address)):
                continue
            nodes = tuple(Node(node.id, node.address, node.voter) for node in info.nodes)
            self.groups[info.name] = ReplicaGroup(info.name, info.term, info.leader_id, info.leader_address, nodes)

    async def _first_answer(self, topics: Sequence[str]) -> tuple[str, broker_pb2.MetadataResponse]:
        """The first answer of any node, and whose it is; the nodes are asked one after the other, without waiting long for a silent one."""
        asked: list[asyncio.Task[tuple[str, broker_pb2.MetadataResponse]]] = []
        problems: list[str] = []
        addresses = iter(self.addresses())
        try:
            while True:
                address = next(addresses, None)
                if address is not None:
                    asked.append(asyncio.ensure_future(self._ask(address, topics)))
                waiting = [task for task in asked if not task.done()]
                if waiting:
                    await asyncio.wait(waiting, timeout=None if address is None else HEDGE_S, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    asked.remove(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, DledgerError):
                        raise error
                    problems.append(str(error))
                if address is None and not asked:
                    raise UnreachableError(
                        f"no node reachable at {', '.join(self.addresses())}: {problems[-1]}", problems="; ".join(problems)
                    )
        finally:
            for task in asked:
                task.cancel()

    async def survey(
        self, topics: Sequence[str], enough: Callable[[str, broker_pb2.MetadataResponse], bool]
    ) -> list[tuple[str, broker_pb2.MetadataResponse]]:
        """What all nodes say, asked at once: until one says ``enough``, all have answered, or the slow ones have had their time."""
        tasks = [asyncio.ensure_future(self._ask(address, topics)) for address in self.addresses()]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SURVEY_S
        answers: dict[str, broker_pb2.MetadataResponse] = {}
        try:
            while waiting := [task for task in tasks if not task.done()]:
                left = deadline - loop.time()
                if left <= 0:
                    break
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done() and not task.cancelled() and task.exception() is None:
                        answers.setdefault(*task.result())
                if any(enough(address, response) for address, response in answers.items()):
                    break
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
                elif not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, DledgerError):
                    raise error
        return list(answers.items())

    # Leaders

    async def find_leader(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """Who leads ``group`` now, by asking everybody; one search.  ``failed`` counts as leader only if it says so itself, or in a term
        after ``failed_term``.  Raises NotLeaderError when no node is known to lead."""

        def leads(address: str, info: broker_pb2.GroupInfo) -> bool:
            claimed = info.leader_address
            return bool(claimed) and (claimed != failed or claimed == address or info.term > failed_term)

        def info_of(response: broker_pb2.MetadataResponse) -> broker_pb2.GroupInfo | None:
            return next((info for info in response.groups if info.name == group), None)

        answers = await self.survey([], lambda address, response: (info := info_of(response)) is not None and leads(address, info))
        claims = [info for address, response in answers if (info := info_of(response)) is not None and leads(address, info)]
        if not claims:
            raise NotLeaderError(self._without_leader(group, [address for address, _ in answers]), leader_address="")
        best = max(claims, key=lambda info: info.term)
        nodes = tuple(Node(node.id, node.address, node.voter) for node in best.nodes)
        found = ReplicaGroup(group, best.term, best.leader_id, best.leader_address, nodes)
        self.groups[group] = found
        return found

    def _without_leader(self, group: str, answered: Sequence[str]) -> str:
        if not answered:
            return f"no node reachable at {', '.join(self.addresses())}"
        known = self.groups.get(group)
        members = {node.address for node in known.nodes} if known is not None else set(self.addresses())
        return f"group {group} has no leader now ({len(members.intersection(answered))} of its {len(members)} nodes answered)"

    async def leader(self, group: str, failed: str = "", failed_term: int = 0) -> ReplicaGroup:
        """The known leader of ``group``; searched for when there is none, or when it is ``failed`` in no term after ``failed_term``."""
        known = self.groups.get(group)
        if known is None or not known.leader_address or (known.leader_address == failed and known.term <= failed_term):
            return await self.find_leader(group, failed, failed_term)
        return known

    def leader_is(self, group: str, address: str) -> None:
        """A node said who leads: remembered until an answer with a newer term."""
        known = self.groups.get(group)
        if known is not None and is_address(address) and known.leader_address != address:
            leader_id = next((node.id for node in known.nodes if node.address == address), "")
            self.groups[group] = ReplicaGroup(group, known.term, leader_id, address, known.nodes)

    async def call_leader(self, group: str, method: str, request: bytes, *, deadline_ms: int, again: bytes | None = None) -> bytes:
        """Call ``method`` at the leader of ``group``, wherever it is, until the deadline.

        ``again`` is sent in place of ``request`` after an attempt with an unknown outcome: the form that does no harm when done already.
        """
        lost: list[DledgerError] = []
        try:
            return await self._call_leader_until_done(group, method, request, deadline_ms, again, lost)
        except DledgerError as error:
            if lost and is_retriable(error) and not error.outcome_unknown:
                raise lost[-1] from error  # the last attempt failed for certain, that one may have been carried out
            raise

    async def _call_leader_until_done(
        self, group: str, method: str, request: bytes, deadline_ms: int, again: bytes | None, lost: list[DledgerError]
    ) -> bytes:
        """``lost`` takes the error of the last attempt that may have been carried out."""
        failed, term = "", 0
        async for attempt in until(deadline_ms, self.clock, self.random):
            with attempt:
                view = await self.leader(group, failed, term)
                left_s = max(0.05, (deadline_ms - self.clock.monotonic_ms()) / 1000)
                try:
                    return await self._call_watched(view, method, request, left_s)
                except DledgerError as error:
                    failed, term = view.leader_address, view.term
                    if isinstance(error, NotLeaderError) and error.leader_address:
                        self.leader_is(group, error.leader_address)
                    if error.outcome_unknown:
                        lost[:] = [error]
                        request = request if again is None else again
                    raise
        raise NotLeaderError(f"group {group}: no attempt was made before the deadline")

    async def confirm_leader(self, group: str, address: str) -> None:
        """Ask the nodes who leads.  UnreachableError when another node than ``address`` does, NotLeaderError when none is known to."""
        leader = (await self.find_leader(group)).leader_address
        if leader != address:
            raise UnreachableError(f"no response from {address}; {leader} is the new leader", address=address)

    async def _call_watched(self, leader: ReplicaGroup, method: str, request: bytes, left_s: float) -> bytes:
        """One call.  A leader that does not respond may have been paused or partitioned: the call fails when another node leads."""
        address = leader.leader_address
        call = asyncio.ensure_future(self.channel(address).call(method, request, timeout_s=left_s))
        waited_s = 0.0
        try:
            while not (await asyncio.wait([call], timeout=CALL_SILENCE_S))[0]:
                waited_s += CALL_SILENCE_S
                try:
                    await self.confirm_leader(leader.name, address)
                except NotLeaderError:
                    pass  # an election is running, or the leader is only slow
                except UnreachableError:
                    if not call.done():
                        raise
                if waited_s >= ATTEMPT_S:
                    raise UnreachableError(f"no response from {address} to {method} within {waited_s:g} s", address=address)
            return call.result()
        finally:
            if not call.done():
                call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    # Topics

    async def topic(self, name: str, deadline_ms: int, *, fresh: bool = False) -> list[TopicQueues]:
        """The queues of a topic, group by group.  Raises TopicNotFoundError as soon as those who must know say that there is none."""
        if not fresh and name in self._topics:
            return self._topics[name]
        check_topic(name)
        async for attempt in until(deadline_ms, self.clock, self.random):
            with attempt:
                found = await self._topic_of_every_group(name, *await self._first_answer([name]))
                if not found:
                    found = await self._topic_at_leaders(name)
                self._topics[name] = found
                return found
        raise NotReadyError(f"topic {name}: no attempt was made before the deadline")

    async def _topic_of_every_group(self, name: str, first: str, answer: broker_pb2.MetadataResponse) -> list[TopicQueues]:
        """A node tells of its own group's queues only, and a replica may lag: every group is asked, its leader's word counts most, without
        it the newest of what replicas say and of what was known before.  ``answer``: what the node at ``first`` has said already."""
        by_group = {queues.replica_group: [queues] for queues in self._topics.get(name, ())}
        for_followers: set[str] = set()

        def enough(address: str, response: broker_pb2.MetadataResponse) -> bool:
            for_followers.update(info.name for info in response.groups if self._leads(address, info))
            return len(for_followers) == len(self.groups)

        answers = [(first, answer)]
        if not enough(first, answer):
            answers += await self.survey([name], enough)
        # A node knows the term of its own group only.
        answers_by_group = [
            (self._leads(address, info), info.term, info.name, _queues_of(name, response))
            for address, response in answers
            for info in response.groups
            if info.term
        ]
        for by_leader, _term, group, queues in sorted(answers_by_group, key=itemgetter(0, 1)):
            if by_leader or (queues and _is_newer(queues, by_group.get(group, []))):
                by_group[group] = queues
        return [each for group in sorted(by_group) for each in by_group[group]]

    def _leads(self, address: str, info: broker_pb2.GroupInfo) -> bool:
        """Whether the node at ``address`` says so of itself, and no later leader is known."""
        return info.leader_address == address and info.term >= self.groups[info.name].term

    async def _topic_at_leaders(self, name: str) -> list[TopicQueues]:
        """Ask the leaders: a follower may not know a topic that was just created."""
        found: list[TopicQueues] = []
        for group in list(self.groups):
            view = self.groups[group]
            if not view.leader_address:
                view = await self.find_leader(group)
            _, response = await self._ask(view.leader_address, [name])
            own = next((info for info in response.groups if info.name == group), None)
            if own is None or own.leader_address != view.leader_address:
                await self.find_leader(group, view.leader_address, view.term)  # it is not the leader any more: its answer does not count
                raise NotReadyError(f"topic {name}: {view.leader_address} does not lead group {group} any more")
            found += [queues for queues in _queues_of(name, response) if queues.replica_group == group]
        if found:
            return found
        if not self.groups:
            raise NotReadyError(f"topic {name} is not known at {self._good}, which knows no group either")
        raise TopicNotFoundError(f"topic {name} does not exist in cluster {self.cluster or '?'} ({', '.join(self.addresses())})")

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    async def ensure_groups(self, deadline_ms: int) -> dict[str, ReplicaGroup]:
        """The groups, asked for if nothing is known yet."""
        if not self.groups:
            async for attempt in until(deadline_ms, self.clock, self.random):
                with attempt:
                    await self._first_answer([])
        return self.groups

    async def ensure_group(self, group: str, deadline_ms: int) -> ReplicaGroup:
        """The group of that name.  InvalidArgumentError when the cluster has none."""
        groups = await self.ensure_groups(deadline_ms)
        if group not in groups:
            raise InvalidArgumentError(f"no replica group {group!r} in cluster {self.cluster}; expected one of {', '.join(sorted(groups))}")
        return groups[group]


def _queues_of(name: str, response: broker_pb2.MetadataResponse) -> list[TopicQueues]:
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
        if info.found and info.name == name
    ]


def _is_newer(queues: list[TopicQueues], known: list[TopicQueues]) -> bool:
    return not known or queues[0].version > known[0].version
