"""Consumer groups: their members, positions and lag, resets, settings and deletion.

A group's positions and settings are kept by each replica group for its own queues; what is returned here joins them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from dledger_client.admin.calls import ClusterCalls, Listed, Sources, Subject
from dledger_client.admin.consumer_checks import (
    DEAD_LETTERS,
    GROUP_LAG,
    GROUP_STUCK,
    TRANSACTIONS,
    ConsumersStatus,
)
from dledger_client.admin.consumer_groups import (
    ConsumerGroup,
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    OffsetReset,
    ResetTarget,
    commit_reset,
    described,
    reset_targets,
    reset_time,
    topics_of,
)
from dledger_client.admin.group_answers import GroupAnswers, collect_answers
from dledger_client.admin.group_progress import MAX_QUEUES, QUEUES_OF_A_GROUP, GroupProgress, next_places
from dledger_client.admin.many_topics import ranges_of_topics
from dledger_client.admin.stored_times import stored_times
from dledger_client.admin.topics import QueueRange, look_at, queue_ranges, ranges_of
from dledger_client.aio.redelivery_admin import RedeliveryAdmin
from dledger_client.aio.transaction_admin import TransactionAdmin
from dledger_client.cluster.retry import is_retriable
from dledger_client.runtime.argument_ranges import MAX_U32, texts, within
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import check_group
from dledger_wire.rpc import methods

T = TypeVar("T")


class ConsumerGroupAdmin(Subject):
    """Consumer groups; use ``Admin``."""

    async def list_groups(self, *, partial: bool = False) -> Listed[ConsumerGroup]:
        """All consumer groups that have members or positions.

        Args:
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.

        Examples:
            >>> names = [group.name for group in await admin.list_groups()]
        """
        answers = await collect_answers(self._calls, [], partial=partial)
        topics = {name: {topic for each in found for topic in each.subscriptions} for name, found in answers.members.items()}
        for name, positions in answers.positions.items():
            topics.setdefault(name, set()).update(topic for topic, _, _ in positions)
        groups = (ConsumerGroup(name, tuple(sorted(read)), len(answers.members.get(name, ()))) for name, read in sorted(topics.items()))
        return Listed(groups, answers.unanswered, answers.sources)

    async def describe_group(self, consumer_group: str, *, partial: bool = False, or_followers: bool = False) -> ConsumerGroupDescription:
        """The members of a consumer group, and its position and lag in each queue that it reads or has read.

        Args:
            consumer_group: The group.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the description says which.
            or_followers: With ``partial``: positions as followers know them where there is no leader, which alone knows the members.

        Raises:
            InvalidArgumentError: The group has neither members nor positions.

        Examples:
            >>> print((await admin.describe_group("audit")).lag)
        """
        asked, answers = await _collect_answers(self._calls, [consumer_group], partial=partial, or_followers=or_followers)
        if self._calls.spares_leader and not answers.knows(consumer_group):
            answers = await collect_answers(self._calls.at_leaders(), [consumer_group], partial=partial)
        if not answers.knows(consumer_group):
            for error in answers.unanswered.values():
                text = f"consumer group {consumer_group} was not found in the replica groups that answered; {error.message}"
                raise type(error)(text, **error.details)
            raise _unknown(consumer_group)
        ranges: dict[str, Listed[QueueRange]] = {}
        for topic in topics_of(consumer_group, answers):
            with contextlib.suppress(TopicNotFoundError):
                ranges[topic] = await queue_ranges(asked, topic, partial=partial)
        return described(consumer_group, answers, ranges)

    async def describe_groups(
        self, names: Iterable[str] = (), *, partial: bool = False, or_followers: bool = False
    ) -> Listed[ConsumerGroupDescription]:
        """The members, positions and lag of many consumer groups, with few calls; unknown names are left out.

        Args:
            names: The consumer groups; none for all.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.
            or_followers: With ``partial``: positions as followers know them where there is no leader, which alone knows the members.

        Examples:
            >>> groups = await admin.describe_groups()
            >>> worst = max(groups, key=lambda group: group.lag, default=None)
        """
        calls, answers = await _collect_answers(self._calls, texts("names", names), partial=partial, or_followers=or_followers)
        known = sorted(answers.positions.keys() | answers.members.keys())
        topics = {topic for name in known for topic in topics_of(name, answers)}
        ranges = await ranges_of_topics(calls, topics, or_followers=calls.spares_leader, partial=partial, only_readable=False)
        found = [described(name, answers, ranges) for name in known]
        return Listed(
            found, {group: error for each in found for group, error in each.unanswered.items()} | answers.unanswered, answers.sources
        )

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
        behind = [(group, next_places(group, queues)) for group in groups]
        places = dict.fromkeys(place for _, of_group in behind for place in of_group.values())
        stored = await stored_times(self._calls, list(places)[:MAX_QUEUES])
        at_ms = self._calls.router.clock.wall_ms()
        return [
            GroupProgress(group, at_ms, {key: stored[place] for key, place in next_of.items() if place in stored})
            for group, next_of in behind
        ]

    async def consumers_status(self) -> ConsumersStatus:
        """All consumer groups as they move, dead letters and transactions: what ``dledger status --check`` looks at.

        A replica group that does not answer, and a missing right to see something, raise no error: what is missing is in the answer.

        Examples:
            >>> from dledger_client.admin.status_checks import find, parse_checks
            >>> found = find([], parse_checks("group-lag=5m,dead-letters"), 0, consumers=await admin.consumers_status())
        """
        problems: dict[str, DledgerError] = {}

        async def groups() -> Listed[GroupProgress]:
            described = await self.describe_groups(partial=True)
            return Listed(await self.group_progress(described), described.unanswered, described.read_at)

        async def of(ask: Callable[[], Awaitable[Listed[T]]], *checks: str) -> Listed[T]:
            try:
                return await ask()
            except DledgerError as error:
                problems.update(dict.fromkeys(checks, error))
                return Listed()

        progress, letters, transactions = await asyncio.gather(
            of(groups, GROUP_LAG, GROUP_STUCK),
            of(lambda: RedeliveryAdmin(self._calls).dead_letters(partial=True), DEAD_LETTERS),
            of(lambda: TransactionAdmin(self._calls).transactions(max_transactions=1, partial=True), TRANSACTIONS),
        )
        return ConsumersStatus(progress, letters, transactions, problems)

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
        check_group(consumer_group)
        at_ms = reset_time(to)
        seen = await look_at(self._calls, topic)
        if not replica_groups or not (seen.parts or seen.missing):
            seen.require_all("nothing was reset")
        groups = sorted(await self._calls.named(replica_groups)) or sorted(seen.parts)
        seen.require(groups, "nothing was reset")
        answers = await collect_answers(self._calls.at_leaders(), [consumer_group], partial=True)
        positions = answers.positions.get(consumer_group, {})
        if not create and not positions and not answers.members.get(consumer_group) and not answers.unanswered:
            raise _unknown(consumer_group)
        parts = {group: seen.parts[group] for group in groups if group in seen.parts}
        ranges = (await ranges_of(self._calls.at_leaders(), parts, at_ms, Sources(), only_readable=True)).complete()
        queues = {(held.replica_group, held.queue_id): held for of_part in ranges.values() for held in of_part}
        moves = [
            OffsetReset(held.replica_group, held.queue_id, positions.get((topic, *queue)), after, held.min_offset)
            for queue, after in reset_targets(topic, to, queues).items()
            if (held := queues[queue])
        ]
        if not dry_run:
            await commit_reset(
                self._calls, consumer_group, topic, moves, {group: int(part.topic_epoch or "0", 16) for group, part in parts.items()}
            )
        return moves

    async def delete_group(self, consumer_group: str) -> None:
        """Delete a consumer group without members: its positions and its settings.  Its dead letters stay.

        Args:
            consumer_group: The group.

        Raises:
            InvalidArgumentError: The group has members, or does not exist.

        Examples:
            >>> await admin.delete_group("audit")
        """
        check_group(consumer_group)
        members = (await collect_answers(self._calls.at_leaders(), [consumer_group], partial=False)).members.get(consumer_group, [])
        if members:
            raise InvalidArgumentError(
                f"consumer group {consumer_group} has members: {', '.join(each.client_id for each in members)}; stop them first"
            )
        unknown: list[InvalidArgumentError] = []
        groups = sorted(await self._calls.replica_groups())
        for replica_group in groups:
            seen = await self._calls.ask_leader(replica_group, methods.LIST_GROUPS, retry_pb2.GroupSettings(name=consumer_group))
            request = retry_pb2.GroupSettings(name=consumer_group, seen_index=seen.applied_index)  # repeated, it spares a recreated group
            try:
                await self._calls.ask_leader(replica_group, methods.DELETE_GROUP, request, done=_is_deleted)
            except InvalidArgumentError as error:
                unknown.append(error)
        if len(unknown) == len(groups):
            raise unknown[0]

    async def group_settings(self, consumer_group: str = "", *, replica_group: str = "") -> list[ConsumerGroupSettings]:
        """The settings of a consumer group (the defaults when it is not configured, or not in use yet), or of all that are configured.

        Args:
            consumer_group: The group; empty for all.
            replica_group: The replica group to ask; needed when the cluster has several.

        Examples:
            >>> (settings,) = await admin.group_settings("audit")
        """
        group = await self._calls.replica_group(replica_group)
        answer = await self._calls.ask_leader(group.name, methods.LIST_GROUPS, retry_pb2.GroupSettings(name=consumer_group))
        return [_settings(each) for each in answer.groups]

    async def update_group(
        self,
        consumer_group: str,
        *,
        retry_max_times: int | None = None,
        retry_queue_nums: int | None = None,
        consume_enable: bool | None = None,
        consume_in_order: bool | None = None,
    ) -> ConsumerGroupSettings:
        """Change settings of a consumer group in every replica group; None keeps a setting.

        Args:
            consumer_group: The group.
            retry_max_times: How often a message is delivered again before it is a dead letter.
            retry_queue_nums: Queues of the group's retry topic.
            consume_enable: Whether the group may read.
            consume_in_order: Whether messages that are acknowledged one by one come in order, as with ``orderly`` of ``SimpleConsumer``.

        Raises:
            InvalidArgumentError: A value is outside its range.

        Examples:
            >>> await admin.update_group("audit", retry_max_times=5)
        """
        try:
            settings = retry_pb2.GroupSettings(
                name=consumer_group,
                retry_max_times=retry_max_times,
                retry_queue_nums=retry_queue_nums,
                consume_enable=consume_enable,
                consume_in_order=consume_in_order,
            )
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"settings of consumer group {consumer_group!r}: {error}") from None
        answers = await self._calls.ask_leaders(methods.PUT_GROUP, settings)
        for group, silent in sorted(answers.unanswered.items()):
            changed = ", ".join(answers.of_group) or "no replica group"
            text = f"{silent.message}; {consumer_group} is changed in {changed}, not in {group}: repeat it"
            raise type(silent)(text, **silent.details)
        return _settings(answers.of_group[max(answers.of_group)])


async def _collect_answers(
    calls: ClusterCalls, names: Sequence[str], *, partial: bool, or_followers: bool
) -> tuple[ClusterCalls, GroupAnswers]:
    """Also the nodes to ask on: followers, when a replica group has no leader and they will do."""
    try:
        answers = await collect_answers(calls, names, partial=partial)
        if not answers.unanswered or not or_followers or calls.spares_leader:
            return calls, answers
    except DledgerError as error:  # no replica group has a leader
        if not or_followers or calls.spares_leader or not is_retriable(error):
            raise
    calls = calls.at_followers()
    return calls, await collect_answers(calls, names, partial=partial)


def _is_deleted(error: DledgerError) -> retry_pb2.GroupSettings | None:
    """The name was checked: what is left to be refused is a group of which there is nothing."""
    return retry_pb2.GroupSettings() if isinstance(error, InvalidArgumentError) else None


def _settings(found: retry_pb2.GroupSettings) -> ConsumerGroupSettings:
    return ConsumerGroupSettings(found.name, found.retry_max_times, found.retry_queue_nums, found.consume_enable, found.consume_in_order)


def _unknown(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"no consumer group {name!r} has members or has committed anything")
