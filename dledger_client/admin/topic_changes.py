"""The steps of creating, changing and deleting topics over the replica groups that have their queues.

Owns what a change leaves behind when a replica group fails half-way: leaders are checked first; a part that was just created is deleted
again unless messages are in it; what cannot be undone is said, with the call that completes it.

A topic grows into a replica group in this order, so that no consumer group that reads the topic misses a message of the new queues: the
part is created for reading only; every consumer group with a position in the topic gets position 0 in the new queues; then they take
messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dledger_client.admin.calls import Answers, ClusterCalls
from dledger_client.admin.topics import TopicParts, TopicSpec, list_topics
from dledger_client.cluster.routes import TopicQueues
from dledger_client.cluster.topic_creation import resized, spread
from dledger_wire._pb import admin_pb2, broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError, TopicExistsError, TopicNotFoundError, UnsafeShrinkError
from dledger_wire.names import group_of_topic
from dledger_wire.rpc import methods
from dledger_wire.status import Perm, unread_queues

EMPTY, DRAINED = "empty", "drained"  # TopicSpec.only_if

T = TypeVar("T")
Counts = dict[str, tuple[int, int]]  # by replica group: read queues and write queues


def check_all_read(spec: TopicSpec) -> None:
    """In numbers of the whole topic; a replica group refuses its own share."""
    if spec.read_queues and (unread := unread_queues(spec.read_queues, spec.write_queues)):
        text = f"topic {spec.name}: {unread}; expected at least {spec.write_queues} read queues, or none given"
        raise InvalidArgumentError(text, topic=spec.name)


def check_priorities(spec: TopicSpec, seen: TopicParts) -> None:
    if spec.priorities and not all(part.priorities for part in seen.parts.values()):
        raise InvalidArgumentError(f"topic {spec.name} has no priorities; it would get them only when it is created", topic=spec.name)


def already_exists(spec: TopicSpec, seen: TopicParts) -> TopicExistsError:
    text = f"topic {spec.name!r} exists (in {', '.join(sorted(seen.parts))})"
    if seen.lacking:
        queues = spec.write_queues or spec.read_queues or seen.default_queues
        rest = _creates_the_rest(spec.name, queues, {*seen.parts, *seen.lacking})
        missing = ", ".join(seen.lacking)
        text += f", but not in {missing}, since a command was broken off: {rest}, dledger topic delete {spec.name} deletes it"
    return TopicExistsError(text, topic=spec.name)


def _creates_the_rest(name: str, queues: int, groups: Iterable[str]) -> str:
    return f"dledger topic create {name} --queues {queues} --replica-groups {','.join(sorted(groups))} --if-not-exists creates the rest"


def shares_of(spec: TopicSpec, seen: TopicParts, targets: Iterable[str], absent: Sequence[str]) -> Counts:
    """The queues of each replica group that gets some: what is left of the wanted number, where the fewest queues are."""
    there = [seen.parts[group] for group in targets if group in seen.parts]
    write = (spec.write_queues or spec.read_queues or seen.default_queues) - sum(part.write_queues for part in there)
    read = (spec.read_queues or spec.write_queues or seen.default_queues) - sum(part.read_queues for part in there)
    if there:
        write = max(write, len(absent))
        read = max(read, write)  # the parts that there are may have more queues to read than to write
    order = seen.by_load(absent)[: min(read, write)]
    reading = spread(read, order)
    return {group: (reading[group], count) for group, count in spread(write, order).items()}


def new_counts(spec: TopicSpec, parts: Mapping[str, TopicQueues], staying: Mapping[str, TopicQueues], targets: Sequence[str]) -> Counts:
    """The queues of every replica group afterwards.  Without a number, a group that is new gets as many as the one with the most."""
    joining = [group for group in targets if group not in staying]
    if joining and spec.read_queues and not spec.write_queues:
        raise InvalidArgumentError(f"topic {spec.name}: replica groups are added ({', '.join(joining)}); expected write_queues, too")
    write = {group: staying[group].write_queues if group in staying else 0 for group in targets}
    read = {group: staying[group].read_queues if group in staying else 0 for group in targets}
    if spec.write_queues:
        write = resized(write, spec.write_queues)
        read |= {group: write[group] for group in joining}
    if spec.read_queues and spec.read_queues == sum(write.values()):
        read = dict(write)  # queues that are written to are those that are read
    elif spec.read_queues:
        read = resized(read, spec.read_queues)
    most_write, most_read = max(part.write_queues for part in parts.values()), max(part.read_queues for part in parts.values())
    counts = {group: (read[group] or most_read, write[group] or most_write) for group in targets}
    return counts | {group: (max(counts[group]), counts[group][1]) for group in joining}


def check_shrink(spec: TopicSpec, staying: Mapping[str, TopicQueues], counts: Counts, leaving: Iterable[TopicQueues]) -> None:
    """What one replica group alone would refuse, in numbers of the whole topic; and taking away a part that is written to."""
    for part in leaving:
        if part.perm & Perm.WRITE:
            group = part.replica_group
            steps = f"first --replica-group {group} --perm 4, then, when every consumer group has read it, the same command again"
            raise UnsafeShrinkError(f"topic {spec.name}: its queues in {group} still take messages; {steps}", topic=spec.name)
    if len(staying) < 2:
        return
    for group, part in staying.items():
        read, write = counts[group]
        if read < part.read_queues and max(part.write_queues, write) > read:
            total = sum(read for read, _ in counts.values())
            steps = f"first --write-queues {total}, then, when they are drained, --read-queues {total}"
            raise UnsafeShrinkError(f"topic {spec.name}: queues of {group} still take messages; {steps}", topic=spec.name)


async def change_parts(
    calls: ClusterCalls, spec: TopicSpec, staying: Mapping[str, TopicQueues], counts: Counts, targets: Sequence[str], *, force: bool
) -> None:
    """Change the parts that the topic keeps; an error says which are changed."""
    everywhere = tuple(sorted(targets))

    async def change(group: str) -> None:
        part, (read, write) = staying[group], counts[group]
        if spec.perm & Perm.WRITE and not part.perm & Perm.WRITE:
            await begin_readers(calls, part, [other for other in staying if other != group])
        if (read, write, spec.perm or part.perm, everywhere) != (part.read_queues, part.write_queues, part.perm, part.replica_groups):
            request = replace(spec, read_queues=read, write_queues=write).request(group, force=force, groups=everywhere)
            await calls.ask_leader(group, methods.UPDATE_TOPIC, request, again=request)

    await _of_each(calls, spec.name, staying, change)


async def forget_group(calls: ClusterCalls, removed: str) -> bool:
    """No topic names a replica group that was removed any more: a client that finds a topic looks for nothing there.  Whether any did."""
    others = [group for group in await calls.replica_groups() if group != removed]
    listed = await list_topics(calls.at_leaders(), or_followers=False, partial=True, replica_groups=others)
    naming = [part for part in listed if removed in part.replica_groups]

    async def send(group: str) -> None:
        for part in naming:
            if part.replica_group == group:
                everywhere = tuple(sorted({group, *part.replica_groups} - {removed}))
                request = admin_pb2.TopicSpec(name=part.topic, group=group, groups=everywhere)
                with contextlib.suppress(TopicNotFoundError):  # deleted meanwhile
                    await calls.ask_leader(group, methods.UPDATE_TOPIC, request, again=request)
                calls.router.forget_topic(part.topic)

    sent = await calls.of_all(send, {part.replica_group for part in naming})
    unanswered = listed.unanswered | sent.unanswered
    for error in unanswered.values():
        text = f"replica group {removed} is removed, but topics of {', '.join(sorted(unanswered))} still name it: repeat the command"
        raise type(error)(f"{error.message}; {text}", **error.details)
    return bool(naming)


# Parts


async def open_parts(calls: ClusterCalls, seen: TopicParts, counts: Counts, wanted: TopicSpec) -> list[TopicQueues]:
    """Create the parts of ``counts``, where the topic is not yet; all of them, or none as far as that can be."""
    name, perm = seen.name, wanted.perm or int(Perm.READ_WRITE)
    priorities = any(part.priorities for part in seen.parts.values()) if seen.parts else wanted.priorities
    everywhere = tuple(sorted({*seen.parts, *counts}))
    grows = bool(seen.parts) and bool(counts)
    begins_with = perm & ~Perm.WRITE or int(Perm.READ) if grows else perm
    if not counts:
        return []
    if grows:
        await send_parts(calls, seen, everywhere)

    async def create(group: str) -> admin_pb2.TopicReply:
        spec = TopicSpec(name, *counts[group], begins_with, priorities)
        first = bool(group_of_topic(name))  # the cluster makes topics of consumer groups, too
        request, again = (spec.request(group, if_not_exists=repeated, groups=everywhere) for repeated in (first, True))
        return await calls.ask_leader(group, methods.CREATE_TOPIC, request, again=again)

    made = await calls.of_all(_any_error(create), counts)
    try:
        _raise_first(made)
        parts = [part_of(reply) for reply in (answer for answer in made.of_group.values() if not isinstance(answer, DledgerError))]
        for part in parts if grows else ():
            await _open(calls, part, list(seen.parts), perm)
    except DledgerError as error:
        raise await _undone(calls, seen, counts, made, error) from error
    calls.router.forget_topic(name)
    return [replace(part, perm=perm) for part in parts]


async def _open(calls: ClusterCalls, part: TopicQueues, others: Sequence[str], perm: int) -> None:
    """Let a part that can only be read take messages, once no reader of the topic can miss one."""
    await begin_readers(calls, part, others)
    if perm != part.perm:
        spec = admin_pb2.TopicSpec(name=part.topic, group=part.replica_group, perm=perm)
        await calls.ask_leader(part.replica_group, methods.UPDATE_TOPIC, spec, again=spec)
        await begin_readers(calls, part, others)  # a group that began elsewhere meanwhile


async def begin_readers(calls: ClusterCalls, part: TopicQueues, others: Iterable[str]) -> None:
    """Every consumer group with a position in the parts of ``others`` begins in this one with the first message, unless it has begun."""
    everyone = broker_pb2.GroupOffsetsRequest()
    readers: set[str] = set()
    for answer in (await calls.of_all(lambda group: calls.ask_leader(group, methods.GROUP_OFFSETS, everyone), others)).complete().values():
        readers.update(positions.group for positions in answer.groups if any(each.topic == part.topic for each in positions.offsets))
    for reader in sorted(readers):
        request = broker_pb2.CommitOffsetsRequest(group=reader, initial=True)
        for queue_id in range(part.read_queues):
            request.offsets.add(topic=part.topic, queue_id=queue_id, offset=0)
        await calls.ask_leader(part.replica_group, methods.COMMIT_OFFSETS, request)


async def _undone(
    calls: ClusterCalls, seen: TopicParts, counts: Counts, made: Answers[admin_pb2.TopicReply | DledgerError], error: DledgerError
) -> DledgerError:
    """Delete what was created, unless messages are in it; the error to raise, which says what is left."""
    left = []
    for group, answer in made.of_group.items():
        is_ours = answer.outcome_unknown if isinstance(answer, DledgerError) else answer.created
        if is_ours:
            request = admin_pb2.TopicSpec(name=seen.name, group=group, only_if=EMPTY)
            try:
                await calls.router.call_leader(
                    group, methods.DELETE_TOPIC, request, deadline_ms=calls.group_deadline_ms(group), again=request
                )
            except TopicNotFoundError:
                pass
            except DledgerError:
                left.append(group)
    calls.router.forget_topic(seen.name)
    where = ", ".join(sorted(counts))
    if not left:
        return type(error)(f"{error.message}; topic {seen.name} was not created in {where}", **error.details)
    if seen.parts:
        rest = f"dledger topic update {seen.name} --perm 6 opens it"
    else:
        rest = _creates_the_rest(seen.name, sum(write for _, write in counts.values()), counts)
    text = f"topic {seen.name} may be left in {', '.join(left)} of {where}: {rest}"
    return type(error)(f"{error.message}; {text}", **error.details)


async def remove_parts(calls: ClusterCalls, seen: TopicParts, groups: Sequence[str], *, force: bool) -> None:
    """Delete the parts that were seen: not those of a topic that is recreated under the name, also when a call is repeated."""

    async def remove(group: str) -> None:
        incarnation = seen.parts[group].topic_epoch if group in seen.parts else ""
        request = admin_pb2.TopicSpec(name=seen.name, group=group, only_if="" if force else DRAINED, incarnation=incarnation)
        try:
            await calls.ask_leader(group, methods.DELETE_TOPIC, request, done=_is_deleted)
        except UnsafeShrinkError as error:
            raise UnsafeShrinkError(f"in {group}: {error.message} (--force takes it away anyway)", **error.details) from None
        except TopicNotFoundError as error:
            if len(groups) == 1 or "incarnation" in error.details:
                raise

    await _of_each(calls, seen.name, groups, remove)


def _is_deleted(error: DledgerError) -> admin_pb2.TopicReply | None:
    return admin_pb2.TopicReply() if isinstance(error, TopicNotFoundError) else None


async def send_parts(calls: ClusterCalls, seen: TopicParts, everywhere: Sequence[str]) -> None:
    """Send the existing parts all replica groups that may have queues of the topic."""

    async def send(group: str) -> None:
        request = admin_pb2.TopicSpec(name=seen.name, group=group, groups=everywhere)
        await calls.ask_leader(group, methods.UPDATE_TOPIC, request, again=request)

    await _of_each(calls, seen.name, [group for group in seen.parts if group in everywhere], send)


async def _of_each(calls: ClusterCalls, name: str, groups: Iterable[str], change: Callable[[str], Awaitable[None]]) -> None:
    """Change every part at once; an error says which ones are changed and which are not."""
    done = await calls.of_all(_any_error(change), groups)
    calls.router.forget_topic(name)
    failed = {group: outcome for group, outcome in done.of_group.items() if isinstance(outcome, DledgerError)}
    for error in failed.values():
        changed = sorted(done.of_group.keys() - failed.keys())
        if not changed:
            raise error
        text = f"topic {name} is changed in {', '.join(changed)}, not in {', '.join(sorted(failed))}: repeat the command"
        raise type(error)(f"{error.message}; {text}", **error.details)


def _any_error(call: Callable[[str], Awaitable[T]]) -> Callable[[str], Awaitable[T | DledgerError]]:
    """``call`` with its error as its result: every replica group is tried, whatever happens at another one."""

    async def outcome(group: str) -> T | DledgerError:
        try:
            return await call(group)
        except DledgerError as error:
            return error

    return outcome


def _raise_first(made: Answers[admin_pb2.TopicReply | DledgerError]) -> None:
    for answer in made.of_group.values():
        if isinstance(answer, DledgerError):
            raise answer


def part_of(reply: admin_pb2.TopicReply) -> TopicQueues:
    """The part of a topic that a leader returns."""
    return TopicQueues(reply.name, reply.group, reply.read_queues, reply.write_queues, reply.perm, "", priorities=reply.priorities)
