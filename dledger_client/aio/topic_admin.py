"""Topics: created, changed, deleted, listed, described, with the offsets of their queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dledger_client.admin import topic_changes, topics
from dledger_client.admin.calls import Listed, Subject
from dledger_client.admin.many_topics import ranges_of_topics
from dledger_client.admin.topics import (
    ChangedTopic,
    QueueRange,
    RoutePart,
    TopicRoute,
    TopicSpec,
    joined,
    look_aside,
    look_at,
    named_groups,
    queue_of_key,
)
from dledger_client.cluster.routes import TopicQueues
from dledger_client.consumer.allocation import MessageQueue
from dledger_wire._pb import routes_pb2
from dledger_wire.names import check_new_topic
from dledger_wire.rpc import methods
from dledger_wire.status import Perm


class TopicAdmin(Subject):
    """Topics; use ``Admin``."""

    async def create_topic(
        self,
        name: str,
        queues: int | None = None,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        replica_group: str = "",
        replica_groups: Sequence[str] = (),
        if_not_exists: bool = False,
        priorities: bool = False,
    ) -> ChangedTopic:
        """Create a topic, with its queues spread evenly over replica groups; ``created`` of the result is False when it existed.

        Numbers of queues are those of all replica groups.  A topic that exists is created in those of ``replica_groups`` without it.

        Args:
            name: The topic.
            queues: Read and write queues alike, at least 1.  Default: what the cluster gives new topics.
            read_queues: Queues that consumers read.  Default: ``queues``.
            write_queues: Queues that producers write.  Default: ``queues``.
            perm: Permission bits: 2 write, 4 read, 6 both.  Default: both.
            replica_group: The one replica group that stores the topic.
            replica_groups: The replica groups that store it.  Default: all; of more groups than queues those with the fewest queues.
            if_not_exists: Do not fail when the topic exists.  Topics of a consumer group, for its retries and dead letters, need it.
            priorities: The number of a queue in its replica group is the priority of its messages, the highest the most urgent.

        Raises:
            TopicExistsError: The topic exists, and ``if_not_exists`` is False.
            InvalidNameError: The name is not a topic's.
            InvalidArgumentError: The topic exists without ``priorities``, which it gets only when it is created.
            NotLeaderError: A replica group has no leader; the text says what was created.

        Examples:
            >>> await admin.create_topic("orders", queues=4)
        """
        spec, calls = replace(TopicSpec.of(name, queues, read_queues, write_queues, perm), priorities=priorities), self._calls
        spec.request("")  # checked before a node is asked
        if not if_not_exists:
            check_new_topic(name)
        topic_changes.check_all_read(spec)
        wanted = await calls.named(named_groups(replica_group, replica_groups))
        seen = await look_at(calls, name)
        targets = wanted or [group for group in seen.groups if group not in seen.closed]
        absent = [group for group in targets if group not in seen.parts]
        if seen.parts and not (wanted and absent):
            if not if_not_exists:
                raise topic_changes.already_exists(spec, seen)
            topic_changes.check_priorities(spec, seen)
            return joined(seen.parts.values(), created=False)
        topic_changes.check_priorities(spec, seen)
        seen.require(absent, "nothing was created")
        if seen.parts:
            seen.require_all("nothing was created")
        made = await topic_changes.open_parts(calls, seen, topic_changes.shares_of(spec, seen, targets, absent), spec)
        return joined([*(seen.parts[group] for group in targets if group in seen.parts), *made], created=True)

    async def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        replica_group: str = "",
        replica_groups: Sequence[str] = (),
        force: bool = False,
    ) -> ChangedTopic:
        """Change the queues, the permission or the replica groups of a topic, while it is used.

        Numbers of queues are those of all replica groups.  Remove ``write_queues`` first, ``read_queues`` when all groups have read them.

        Args:
            name: The topic.
            queues: Read and write queues alike, at least 1.  Default: as they are.
            read_queues: Queues that consumers read.  Default: as they are.
            write_queues: Queues that producers write.  Default: as they are.
            perm: Permission bits: 2 write, 4 read, 6 both.  Default: as they are.
            replica_group: Change the queues of this replica group only.
            replica_groups: Those that have the topic afterwards.  One that is added gets as many queues as the largest other one, unless
                ``queues`` says how many there are; one that is taken away must have ``perm=4`` and have been read by all groups.
            force: Remove queues although messages in them become unreadable.

        Raises:
            TopicNotFoundError: The topic does not exist.
            UnsafeShrinkError: Messages would become unreadable, and ``force`` is False.
            NotLeaderError: A replica group has no leader; the text says what was changed.

        Examples:
            >>> await admin.update_topic("orders", perm=4)
        """
        spec, groups = TopicSpec.of(name, queues, read_queues, write_queues, perm), named_groups(replica_group, replica_groups)
        if replica_group:
            return await self._update_part(spec, replica_group, force=force)
        spec.request("")
        calls, wanted = self._calls, await self._calls.named(groups)
        seen = await look_at(calls, name)
        seen.require_all("nothing was changed")
        seen.require(wanted, "nothing was changed")
        targets = wanted or sorted(seen.parts)
        staying = {group: part for group, part in seen.parts.items() if group in targets}
        leaving = [group for group in sorted(seen.parts) if group not in targets]
        counts = topic_changes.new_counts(spec, seen.parts, staying, targets)
        if not force:
            topic_changes.check_shrink(spec, staying, counts, [seen.parts[group] for group in leaving])
        if staying:
            await topic_changes.remove_parts(calls, seen, leaving, force=force)
        there = replace(seen, parts=staying or seen.parts)
        await topic_changes.open_parts(calls, there, {group: counts[group] for group in targets if group not in staying}, spec)
        await topic_changes.change_parts(calls, spec, staying, counts, targets, force=force)
        if not staying:
            await topic_changes.remove_parts(calls, seen, leaving, force=force)
        return joined((await look_at(calls, name)).parts.values(), created=False)

    async def _update_part(self, spec: TopicSpec, group: str, *, force: bool) -> ChangedTopic:
        """Change the part of one replica group alone."""
        calls, request = self._calls, spec.request(group, force=force)
        await calls.replica_group(group)
        if spec.perm & Perm.WRITE:
            seen = await look_at(calls, spec.name)
            part = seen.parts.get(group)
            if part is not None and not part.perm & Perm.WRITE:
                await topic_changes.begin_readers(calls, part, [other for other in seen.parts if other != group])
        reply = await calls.ask_leader(group, methods.UPDATE_TOPIC, request, again=request)
        calls.router.forget_topic(spec.name)
        return joined([topic_changes.part_of(reply)], created=False)

    async def delete_topic(self, name: str, *, replica_group: str = "") -> None:
        """Delete a topic and its messages, in all replica groups.

        Args:
            name: The topic.
            replica_group: Delete only the queues of this replica group.

        Raises:
            TopicNotFoundError: The topic does not exist.
            NotLeaderError: A replica group has no leader; the text says what was deleted.

        Examples:
            >>> await admin.delete_topic("orders")
        """
        calls = self._calls
        if replica_group:
            await calls.replica_group(replica_group)
            seen = await look_at(calls, name)
            await topic_changes.remove_parts(calls, seen, [replica_group], force=True)
            await topic_changes.send_parts(calls, seen, [group for group in seen.parts if group != replica_group])
            return
        seen = await look_at(calls, name)
        seen.require_all("nothing was deleted")
        await topic_changes.remove_parts(calls, seen, sorted(seen.parts), force=True)

    async def list_topics(self, *, or_followers: bool = False, partial: bool = False) -> Listed[TopicQueues]:
        """All topics of applications, by name and replica group.

        Args:
            or_followers: For a replica group without a leader, list the topics that its followers know.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.

        Raises:
            NotLeaderError: A replica group has no leader, and ``or_followers`` and ``partial`` are False.

        Examples:
            >>> names = {topic.topic for topic in await admin.list_topics()}
        """
        return await topics.list_topics(self._calls, or_followers=or_followers, partial=partial)

    async def route(self, topic: str) -> TopicRoute:
        """Where clients find a topic: its replica groups with queues, leader and replicas, as clients get them.

        A name server answers; without one, the nodes do.

        Args:
            topic: The topic.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> route = await admin.route("orders")
            >>> leaders = {part.group.name: part.group.leader_address for part in route.parts}
        """
        router = self._calls.router
        answered_by, reply = await router.route(topic, self._calls.deadline_ms())
        by_group: dict[str, routes_pb2.GroupRoute] = {} if reply is None else {group.name: group for group in reply.groups}
        parts = []
        for queues in await router.topic(topic, self._calls.deadline_ms()):
            own = by_group.get(queues.replica_group, routes_pb2.GroupRoute())
            parts.append(RoutePart(router.groups[queues.replica_group], queues, own.state, own.version))
        if reply is None:
            return TopicRoute(topic, tuple(parts), answered_by, by_name_server=False)
        version = next((each.version for each in reply.topics if each.name == topic), 0)
        return TopicRoute(topic, tuple(parts), answered_by, by_name_server=True, complete=reply.complete, version=version)

    async def describe_topic(self, name: str) -> list[TopicQueues]:
        """The queue counts and the permission of a topic, one entry for each replica group that stores it.

        Args:
            name: The topic.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> queues = sum(each.read_queues for each in await admin.describe_topic("orders"))
        """
        if self._calls.spares_leader:
            seen = await look_aside(self._calls, name)
            if seen.parts and not seen.missing:
                return [seen.parts[group] for group in sorted(seen.parts)]
        return await self._calls.router.topic(name, self._calls.deadline_ms(), fresh=True)

    async def queue_of_key(self, name: str, key: str) -> MessageQueue:
        """The queue where messages with a key are stored, by the queues that take messages now: other numbers of queues move keys.

        Args:
            name: The topic.
            key: The ``queue_key`` of a send, or what ``by_hash`` hashes.

        Raises:
            TopicNotFoundError: The topic does not exist.
            TopicPermissionError: No queue of the topic takes messages.
            NotLeaderError: A replica group that may have queues of the topic does not answer.

        Examples:
            >>> queue = await admin.queue_of_key("orders", "customer-7")
        """
        return MessageQueue(name, *queue_of_key(await look_aside(self._calls, name), key))

    async def topic_offsets(self, name: str, *, timestamp_ms: int = -1, partial: bool = False) -> Listed[QueueRange]:
        """The offsets that each queue of a topic holds.

        Args:
            name: The topic.
            timestamp_ms: Also find the first message stored at or after that time, milliseconds since 1970; -1 for none.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> stored = sum(queue.messages for queue in await admin.topic_offsets("orders"))
        """
        return await topics.queue_ranges(self._calls, name, timestamp_ms, partial=partial)

    async def offsets_of_topics(
        self, names: Iterable[str], *, or_followers: bool = False, partial: bool = False
    ) -> dict[str, Listed[QueueRange]]:
        """The offsets that the queues of many topics hold, with few calls.  A topic that does not exist or cannot be read has none.

        Args:
            names: The topics.
            or_followers: For a replica group without a leader, what its followers have committed.
            partial: Leave out replica groups that do not answer; ``unanswered`` of each list says which.

        Raises:
            NotLeaderError: A replica group has no leader, and ``or_followers`` and ``partial`` are False.

        Examples:
            >>> held = await admin.offsets_of_topics(["orders", "payments"])
            >>> stored = {topic: sum(queue.messages for queue in queues) for topic, queues in held.items()}
        """
        return await ranges_of_topics(self._calls, names, or_followers=or_followers, partial=partial)
