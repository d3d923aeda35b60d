"""Administration of a cluster for asyncio: everything the command line does against running nodes.

Each method delegates to the module of its subject in ``dledger_client.admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from dledger_client.admin import consumer_groups, open_transactions, replica_comparison, replica_groups, topic_changes, topic_route, topics
from dledger_client.admin import dead_letters as letters_of_groups
from dledger_client.admin.calls import ClusterCalls, Listed
from dledger_client.admin.cluster_status import ClusterDescription, NodeStatus, ReplicaGroupStatus
from dledger_client.admin.consumer_checks import ConsumersStatus, status_of_consumers
from dledger_client.admin.consumer_groups import ConsumerGroup, ConsumerGroupDescription, ConsumerGroupSettings, OffsetReset, ResetTarget
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.group_progress import QUEUES_OF_A_GROUP, GroupProgress, progress_of
from dledger_client.admin.many_topics import ranges_of_topics
from dledger_client.admin.message_query import Replicas
from dledger_client.admin.open_transactions import GroupTransactions, OpenTransaction
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_client.admin.replica_groups import NodeExpiry
from dledger_client.admin.send_back import SendBackResult, send_back
from dledger_client.admin.stored_times import Place, stored_times
from dledger_client.admin.topic_route import TopicRoute
from dledger_client.admin.topics import ChangedTopic, QueueRange, TopicSpec, named_groups
from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.message_admin import MessageAdmin
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.cluster.followers_first import CommittedState, FollowersFirst
from dledger_client.cluster.routes import TopicQueues
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_client.transactions.resolver import TransactionOutcome, TransactionState
from dledger_wire.errors import InvalidArgumentError


class Admin(MessageAdmin):
    """Administration of a cluster: topics, consumer groups, messages, transactions, nodes and replica groups.

    Args:
        bootstrap: Addresses of any nodes, ``host:port,host:port`` or a list of them.
        read_from: Where lists, offsets and messages are read: ``leader``, or ``follower`` to spare the leader, which then is asked only
            for what followers do not have.  ``read_at`` of what is listed says who answered, and how old the answer may be.
        timeout_ms: How long each operation is tried, in milliseconds.
        security: See ``SecuritySettings``.

    Raises:
        InvalidArgumentError: ``bootstrap`` is not a list of addresses, ``read_from`` is neither, or ``timeout_ms`` is no time.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Every method raises UnreachableError when no node answers in time, NotLeaderError when a replica group has no leader in time, and
    InvalidArgumentError for an argument that is refused, such as a replica group or a node that does not exist.

    Examples:
        >>> async with Admin("127.0.0.1:10911") as admin:
        ...     await admin.create_topic("orders", queues=4, if_not_exists=True)
    """

    def __init__(
        self, bootstrap: Bootstrap, *, read_from: str = "leader", timeout_ms: int = 10_000, **security: Unpack[SecuritySettings]
    ) -> None:
        parse_bootstrap(bootstrap)
        if read_from not in ("leader", "follower"):
            raise InvalidArgumentError(f"read_from {read_from!r}: expected leader or follower")
        within(1, MAX_OFFSET, timeout_ms=timeout_ms)
        self._read_from = read_from
        self._environment = environment_for(bootstrap, **security)
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self._timeout_ms = timeout_ms
        self._router = self._environment.open_router(bootstrap)
        self._reader: PullConsumer | None = None
        spares_leader, state = read_from == "follower", CommittedState(self._router)
        followers_first = FollowersFirst(self._router, state)
        self._replicas = Replicas(self._router, followers_first if spares_leader else None)
        self._calls = ClusterCalls(self._router, state, followers_first, timeout_ms, spares_leader)

    @property
    def _description(self) -> str:
        """What tells this client from others, for people."""
        return f"at {self._bootstrap}"

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._description}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Safe to repeat.

        Examples:
            >>> await admin.close()
        """
        if self._reader is not None:
            await self._reader.close()
        await self._router.close()

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's name and its replica groups, as the first node that answers knows them.

        Examples:
            >>> print([group.name for group in (await admin.describe_cluster()).replica_groups])
        """
        groups = await self._calls.replica_groups()
        return ClusterDescription(self._router.cluster, tuple(groups[name] for name in sorted(groups)))

    async def status(self) -> list[NodeStatus]:
        """What every node reports of itself: role, term, log indexes, disk, process.  A node has one second to answer.

        Examples:
            >>> leaders = [node.id for node in await admin.status() if node.role == "leader"]
        """
        return [node for group in await self.cluster_status(timeout_ms=1000) for node in group.nodes if node.configured]

    async def cluster_status(
        self, *, nodes: Mapping[str, Mapping[str, str]] | None = None, timeout_ms: int = 2000
    ) -> list[ReplicaGroupStatus]:
        """The state of every replica group: leader, members, which voters acknowledge, lag, health.

        Args:
            nodes: The nodes to ask, replica group -> node id -> address.  Default: those the cluster knows.  With ``nodes`` the call
                does not fail when no node answers.
            timeout_ms: How long to wait for a node, in milliseconds.

        Raises:
            AuthenticationFailedError: Every node that answered refused to let this client in.
            PermissionDeniedError: The user may not describe the cluster.

        Examples:
            >>> for group in await admin.cluster_status():
            ...     print(group.name, group.healthy, [group.lag(node) for node in group.nodes])
        """
        return await self._status_of(nodes, timeout_ms)

    async def expire_messages(
        self, *, older_than_ms: int | None = None, replica_group: str = "", node_ids: Collection[str] = ()
    ) -> list[NodeExpiry]:
        """Delete old messages now: whole sealed segments of the log, with the queue files that point into them.

        Args:
            older_than_ms: Delete messages older than that many milliseconds.  Default: ``fileReservedTime`` of each node.
            replica_group: The group of nodes; needed when the cluster has several.
            node_ids: Only on these nodes.  Default: on all of the replica group.

        Examples:
            >>> for done in await admin.expire_messages(older_than_ms=24 * 3600 * 1000):
            ...     print(done.node_id, done.size_bytes)
        """
        return await replica_groups.expire(self._calls, older_than_ms, replica_group, node_ids)

    async def compare_replicas(
        self,
        *,
        nodes: Mapping[str, Mapping[str, str]] | None = None,
        on_progress: Callable[[ReplicaComparison], object] | None = None,
    ) -> list[ReplicaComparison]:
        """Compare the replicas of every group by the checksums of their committed segments, while they serve.

        Args:
            nodes: The nodes to compare, replica group -> node id -> address.  Default: those the cluster knows.
            on_progress: Called with each replica group that is done.

        Raises:
            UnreachableError: No node of a replica group answers.

        Examples:
            >>> assert all(group.equal for group in await admin.compare_replicas())
        """
        found = []
        for group in await self.cluster_status(nodes=nodes):
            found.append(await replica_comparison.compare_replicas(self._calls, group))
            if on_progress is not None:
                on_progress(found[-1])
        return found

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
            if_not_exists: Do not fail when the topic exists.

        Raises:
            TopicExistsError: The topic exists, and ``if_not_exists`` is False.
            InvalidNameError: The name is not a topic's.
            NotLeaderError: A replica group has no leader; the text says what was created.

        Examples:
            >>> await admin.create_topic("orders", queues=4)
        """
        spec = TopicSpec.of(name, queues, read_queues, write_queues, perm)
        groups = named_groups(replica_group, replica_groups)
        return await topic_changes.create_topic(self._calls, spec, groups, if_not_exists=if_not_exists)

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
            return await topic_changes.update_part(self._calls, spec, replica_group, force=force)
        return await topic_changes.update_topic(self._calls, spec, groups, force=force)

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
        await topic_changes.delete_topic(self._calls, name, replica_group)

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
        """Where clients find a topic: its replica groups with queues, leader and replicas, as they are told.

        A name server answers; without one, the nodes do.

        Args:
            topic: The topic.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> route = await admin.route("orders")
            >>> leaders = {part.replica_group: part.leader_address for part in route.parts}
        """
        return await topic_route.route(self._calls, topic)

    async def describe_topic(self, name: str) -> list[TopicQueues]:
        """The queue counts and the permission of a topic, one entry for each replica group that stores it.

        Args:
            name: The topic.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> queues = sum(each.read_queues for each in await admin.describe_topic("orders"))
        """
        return await topics.describe_topic(self._calls, name)

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

    async def list_groups(self, *, partial: bool = False) -> Listed[ConsumerGroup]:
        """All consumer groups that have members or positions.

        Args:
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.

        Examples:
            >>> names = [group.name for group in await admin.list_groups()]
        """
        return await consumer_groups.list_groups(self._calls, partial=partial)

    async def describe_group(self, consumer_group: str, *, partial: bool = False, or_followers: bool = False) -> ConsumerGroupDescription:
        """The members of a consumer group, and its position and lag in each queue that it reads or has read.

        Args:
            consumer_group: The group.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the description says which.
            or_followers: With ``partial``: positions as followers know them where there is no leader, who alone knows the members.

        Raises:
            InvalidArgumentError: The group has neither members nor positions.

        Examples:
            >>> print((await admin.describe_group("audit")).lag)
        """
        return await consumer_groups.describe_group(self._calls, consumer_group, partial=partial, or_followers=or_followers)

    async def describe_groups(
        self, names: Iterable[str] = (), *, partial: bool = False, or_followers: bool = False
    ) -> Listed[ConsumerGroupDescription]:
        """The members, positions and lag of many consumer groups, with few calls; names that nobody knows are left out.

        Args:
            names: The consumer groups; none for all.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.
            or_followers: With ``partial``: positions as followers know them where there is no leader, who alone knows the members.

        Examples:
            >>> groups = await admin.describe_groups()
            >>> worst = max(groups, key=lambda group: group.lag, default=None)
        """
        return await consumer_groups.describe_groups(self._calls, names, partial=partial, or_followers=or_followers)

    async def group_progress(self, groups: Iterable[ConsumerGroupDescription], *, queues: int = QUEUES_OF_A_GROUP) -> list[GroupProgress]:
        """Whether consumer groups move: how long their next messages wait, which queues stand still, and what each group does, in words.

        Args:
            groups: As ``describe_groups`` or ``describe_group`` gave them.
            queues: Of each group so many queues are looked at more closely, those with the largest lag.

        Examples:
            >>> for progress in await admin.group_progress(await admin.describe_groups()):
            ...     print(progress.name, progress.lag, progress.longest_waiting_ms, progress.state().text)
        """
        within(1, MAX_U32, queues=queues)
        return await progress_of(self._calls, list(groups), queues=queues)

    async def consumers_status(self) -> ConsumersStatus:
        """All consumer groups as they move, dead letters and transactions: what ``dledger status --check`` looks at.

        A replica group that does not answer, and a user who may not see something, raise no error: what is missing is in the answer.

        Examples:
            >>> from dledger_client.admin.status_checks import find, parse_checks
            >>> found = find([], parse_checks("group-lag=5m,dead-letters"), 0, consumers=await admin.consumers_status())
        """
        return await status_of_consumers(self._calls)

    async def stored_times(self, places: Iterable[Place]) -> dict[Place, int]:
        """When messages were stored, milliseconds since 1970, with a call to each replica group; what is not known is left out.

        Args:
            places: (topic, replica group, queue, offset) of each.  For an expired message the oldest stored one of its queue answers.

        Examples:
            >>> place = ("orders", "g0", 0, 17)
            >>> at_ms = (await admin.stored_times([place])).get(place)
        """
        return await stored_times(self._calls, places)

    async def reset_offsets(
        self,
        consumer_group: str,
        topic: str,
        to: ResetTarget,
        *,
        dry_run: bool = False,
        create: bool = False,
        replica_groups: Sequence[str] = (),
    ) -> list[OffsetReset]:
        """Move a consumer group to the start or the end of a topic, to a time or to offsets; returns the move in each queue.

        A reset is how a group gets past a message that it cannot process: in an orderly group such a message blocks its queue.

        Args:
            consumer_group: The group.
            topic: The topic.
            to: ``"first"``, ``"last"``, a time in milliseconds since 1970, or offsets of the next messages to read:
                ``{queue: offset}``, which leaves other queues alone. A queue is a number, or (replica group, number).
            dry_run: Change nothing; only return what would change.
            create: Allow a group that does not exist yet.
            replica_groups: Only in the queues of these.  Default: in all; nothing is changed while one has no leader.

        Raises:
            InvalidArgumentError: The group does not exist, and ``create`` is False; or the topic has no such queue.
            OffsetOutOfRangeError: The queue does not hold the offset.
            TopicNotFoundError: The topic does not exist.
            NotLeaderError: A replica group that may have queues of the topic has no leader.

        Examples:
            >>> moves = await admin.reset_offsets("audit", "orders", "first", dry_run=True)
            >>> moves = await admin.reset_offsets("audit", "orders", {2: 1001})
        """
        return await consumer_groups.reset_offsets(self._calls, consumer_group, topic, to, replica_groups, dry_run=dry_run, create=create)

    async def delete_group(self, consumer_group: str) -> None:
        """Delete a consumer group without members: its positions and its settings.  Its dead letters stay.

        Args:
            consumer_group: The group.

        Raises:
            InvalidArgumentError: The group has members, or does not exist.

        Examples:
            >>> await admin.delete_group("audit")
        """
        await consumer_groups.delete_group(self._calls, consumer_group)

    async def group_settings(self, consumer_group: str = "", *, replica_group: str = "") -> list[ConsumerGroupSettings]:
        """The settings of a consumer group (the defaults when it is not configured, or not in use yet), or of all that are configured.

        Args:
            consumer_group: The group; empty for all.
            replica_group: The replica group to ask; needed when the cluster has several.

        Examples:
            >>> (settings,) = await admin.group_settings("audit")
        """
        return await consumer_groups.group_settings(self._calls, consumer_group, replica_group)

    async def update_group(
        self,
        consumer_group: str,
        *,
        retry_max_times: int | None = None,
        retry_queue_nums: int | None = None,
        consume_enable: bool | None = None,
    ) -> ConsumerGroupSettings:
        """Change settings of a consumer group in every replica group; None keeps a setting.

        Args:
            consumer_group: The group.
            retry_max_times: How often a message is delivered again before it is a dead letter.
            retry_queue_nums: Queues of the group's retry topic.
            consume_enable: Whether the group may read.

        Raises:
            InvalidArgumentError: A value is outside its range.

        Examples:
            >>> await admin.update_group("audit", retry_max_times=5)
        """
        return await consumer_groups.update_group(
            self._calls,
            consumer_group,
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queue_nums,
            consume_enable=consume_enable,
        )

    async def send_back(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        offsets: Iterable[int],
        *,
        replica_group: str = "",
        delay_level: int = 0,
        max_reconsume_times: int = 0,
    ) -> list[SendBackResult]:
        """Have messages delivered to a consumer group again, later, through its retry topic.  Safe to repeat.

        Args:
            consumer_group: The group that read them.
            topic: The topic they were read from: the group's retry topic when they were sent back before.
            queue_id: The queue they were read from.
            offsets: Their offsets in that queue.
            replica_group: The replica group that stores the queue; needed when the cluster has several.
            delay_level: 1 to 18 sets the delay; 0 lets it grow with the attempts; -1 makes them dead letters at once.
            max_reconsume_times: Attempts before a message is a dead letter; 0 for the group's setting.

        Raises:
            TopicNotFoundError: The topic does not exist.

        Examples:
            >>> await admin.send_back("audit", "orders", 0, [17, 18])
        """
        group = await self._calls.replica_group(replica_group)
        return await send_back(
            self._router,
            consumer_group,
            topic,
            queue_id,
            offsets,
            replica_group=group.name,
            deadline_ms=self._calls.deadline_ms(),
            delay_level=delay_level,
            max_reconsume_times=max_reconsume_times,
        )

    async def dead_letters(self, consumer_group: str = "", *, partial: bool = False, at_leader: bool = False) -> Listed[DeadLetters]:
        """The dead letters of a consumer group, or of all groups.

        Args:
            consumer_group: The group; empty for all.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.
            at_leader: Ask leaders also when this client reads at followers: before a redrive, which counts from what is told here.

        Examples:
            >>> waiting = sum(letters.waiting for letters in await admin.dead_letters("audit"))
        """
        calls = self._calls.at_leaders() if at_leader else self._calls
        return await letters_of_groups.list_dead_letters(calls, consumer_group, partial=partial)

    async def open_dead_letters(self, consumer_group: str, *, readable: bool = True) -> list[DeadLetters]:
        """Let consumers read the dead letters of a group, or revoke that permission; returns them as they were before.

        Args:
            consumer_group: The group.
            readable: False revokes the permission.

        Examples:
            >>> await admin.open_dead_letters("audit")
        """
        return await letters_of_groups.set_readable(self._calls, consumer_group, readable=readable)

    async def redrive(
        self,
        letters: DeadLetters,
        *,
        count: int = 0,
        rate: float = 0,
        to_retry_topic: bool = False,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Send dead letters to their original topic again.  Repeated with the same ``letters`` it continues, and sends none twice.

        Returns how many were sent.

        Args:
            letters: What ``dead_letters`` returned.
            count: How many to send; 0 for all that are waiting.
            rate: Messages per second; 0 for no limit.
            to_retry_topic: Send them to this consumer group alone, through its retry topic.
            on_progress: Called with the number sent so far.

        Raises:
            InvalidArgumentError: ``count`` or ``rate`` is not a number of messages.
            TopicNotFoundError: The original topic does not exist any more.

        Examples:
            >>> for letters in await admin.dead_letters("audit"):
            ...     await admin.redrive(letters, rate=100)
        """
        return await letters_of_groups.redrive(
            self._router, letters, count=count, rate=rate, to_retry_topic=to_retry_topic, on_progress=on_progress
        )

    async def transactions(
        self, producer_group: str = "", *, max_transactions: int = 100, partial: bool = False
    ) -> Listed[GroupTransactions]:
        """Transactions that are neither committed nor rolled back, by replica group.

        Args:
            producer_group: The producer group; empty for all.
            max_transactions: How many of the oldest to return of each replica group.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.

        Examples:
            >>> open_now = sum(group.open for group in await admin.transactions())
        """
        within(0, MAX_U32, max_transactions=max_transactions)
        return await open_transactions.describe_transactions(self._calls, producer_group, max_transactions, partial=partial)

    async def resolve_transaction(self, transaction: OpenTransaction, state: TransactionState) -> TransactionOutcome:
        """Commit an open transaction or roll it back, in place of its producer; returns its outcome.

        The producer may have ended it before; then nothing changes.

        Args:
            transaction: One of those that ``transactions`` returned.
            state: COMMIT or ROLLBACK.

        Raises:
            InvalidArgumentError: The transaction does not belong to its producer group.

        Examples:
            >>> await admin.resolve_transaction(transaction, TransactionState.ROLLBACK)
        """
        return await open_transactions.resolve_transaction(self._calls, transaction, state)
