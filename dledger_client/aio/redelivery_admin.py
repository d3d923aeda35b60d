"""Messages delivered again: sent back to a consumer group, and dead letters, which are listed, made readable and sent again.

Every call is safe to repeat: the cluster keeps how far a group's dead letters were sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from numbers import Real

from dledger_client.admin.calls import Listed, Sources, Subject
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.send_back import SendBackResult, ask_to_take_back, send_back_request
from dledger_client.runtime.argument_ranges import MAX_OFFSET, check_kind, within
from dledger_wire._pb import admin_pb2, retry_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.status import Perm

CALL_MESSAGES = 200
CALL_TIMEOUT_MS = 10_000


class RedeliveryAdmin(Subject):
    """Messages delivered again; use ``Admin``."""

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
        request = send_back_request(consumer_group, topic, queue_id, offsets, delay_level, max_reconsume_times)
        return await ask_to_take_back(self._calls.router, request, group.name, self._calls.deadline_ms())

    async def dead_letters(self, consumer_group: str = "", *, partial: bool = False, at_leader: bool = False) -> Listed[DeadLetters]:
        """The dead letters of a consumer group, or of all groups.

        Args:
            consumer_group: The group; empty for all.
            partial: Leave out replica groups that do not answer; ``unanswered`` of the list says which.
            at_leader: Ask leaders also when this client reads at followers: before a redrive, which counts from what is returned here.

        Examples:
            >>> waiting = sum(letters.waiting for letters in await admin.dead_letters("audit"))
        """
        calls, sources = self._calls.at_leaders() if at_leader else self._calls, Sources()
        request = retry_pb2.DeadLettersRequest(groups=[consumer_group] if consumer_group else [], any_replica=calls.spares_leader)
        answers = await calls.of_all(lambda group: calls.read(group, methods.DEAD_LETTERS, request, sources))
        found = [
            DeadLetters(each.group, replica_group, each.topic, each.perm, each.min_offset, each.max_offset, each.redriven_upto)
            for replica_group, answer in (answers.some() if partial else answers.complete()).items()
            for each in answer.queues
        ]
        return Listed(sorted(found, key=lambda each: (each.consumer_group, each.replica_group)), answers.unanswered, sources)

    async def open_dead_letters(self, consumer_group: str, *, readable: bool = True) -> list[DeadLetters]:
        """Let consumers read the dead letters of a group, or revoke that permission; returns them as they were before.

        Args:
            consumer_group: The group.
            readable: False revokes the permission.

        Examples:
            >>> await admin.open_dead_letters("audit")
        """
        found = await self.dead_letters(consumer_group, at_leader=True)
        for letters in found:
            perm = int(Perm.READ_WRITE if readable else Perm.WRITE)
            spec = admin_pb2.TopicSpec(name=letters.topic, perm=perm, group=letters.replica_group)
            await self._calls.ask_leader(letters.replica_group, methods.UPDATE_TOPIC, spec, again=spec)
        return found

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
        check_kind(DeadLetters, "letters", letters)
        within(0, MAX_OFFSET, count=count)
        if not isinstance(rate, Real) or not 0 <= rate < math.inf:
            raise InvalidArgumentError(f"rate {rate!r}: expected a number of messages a second, 0 for no limit")
        router = self._calls.router
        clock, first = router.clock, letters.redriven_end
        end = min(letters.max_offset, first + count) if count else letters.max_offset
        max_messages = CALL_MESSAGES if not rate else max(1, min(CALL_MESSAGES, int(rate / 5)))
        request = retry_pb2.RedriveRequest(
            group=letters.consumer_group, upto_offset=end, max_messages=max_messages, to_retry_topic=to_retry_topic
        )
        started_ms, at = clock.monotonic_ms(), first
        while at < end:
            deadline_ms = clock.monotonic_ms() + CALL_TIMEOUT_MS
            reply = await router.call_leader(letters.replica_group, methods.REDRIVE, request, deadline_ms=deadline_ms)
            at = max(at, reply.next_offset)
            if on_progress is not None:
                on_progress(at - first)
            if not reply.redriven and at < end:
                break  # the rest has expired
            if rate and at < end:
                due_ms = started_ms + int((at - first) * 1000 / rate)
                await asyncio.sleep(max(0, due_ms - clock.monotonic_ms()) / 1000)
        return at - first
