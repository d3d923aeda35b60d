"""Typed calls that all subjects of ``Admin`` share: to the leader of a replica group, or to the leaders of all; reads also to followers.

Owns what a replica group without an answer means: a question about the whole cluster is answered by the others, and names the missing ones.
Owns also how seldom a leader is asked for what only it knows, by a client that is to spare leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, cast

from google.protobuf.message import Message

from dledger_client.cluster.followers_first import CommittedState, FollowersFirst, ReadAt, read_at
from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import ReplicaGroup
from dledger_client.runtime.argument_ranges import texts
from dledger_wire.errors import DledgerError, InvalidArgumentError, UnreachableError
from dledger_wire.rpc.methods import UnaryMethod

GROUP_TIMEOUT_MS = 4000  # longer than an election takes; a replica group that does not answer by then is left out
SILENT_TIMEOUT_MS = 500  # when it did not answer a moment ago
SILENT_MS = 10_000
KEPT_MS = 5_000  # answers of leaders to a client that spares them

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")


class Listed(list[T]):
    """What the replica groups answered, as a list.

    Args:
        items: What was answered.
        unanswered: The replica groups that did not answer, and why.
        read_at: Which replica of each group answered.

    Examples:
        >>> topics = await admin.list_topics(partial=True)
        >>> print(len(topics), list(topics.unanswered))

    Attributes:
        unanswered: The replica groups that did not answer, and why: what they have is not in the list.
        read_at: By replica group the replica that answered, and how old its answer may be; of several the one furthest behind.
    """

    def __init__(
        self, items: Iterable[T] = (), unanswered: Mapping[str, DledgerError] | None = None, read_at: Mapping[str, ReadAt] | None = None
    ) -> None:
        super().__init__(items)
        self.unanswered: dict[str, DledgerError] = dict(unanswered or {})
        self.read_at: dict[str, ReadAt] = dict(read_at or {})


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What each replica group answered, by name, and why others did not."""

    of_group: dict[str, T]
    unanswered: dict[str, DledgerError] = field(default_factory=dict)

    def complete(self) -> dict[str, T]:
        """The answers, if all replica groups gave one; raises the first error otherwise."""
        for group in sorted(self.unanswered):
            raise self.unanswered[group]
        return self.of_group

    def some(self) -> dict[str, T]:
        """The answers, if there is one; raises the first error otherwise."""
        return self.of_group if self.of_group else self.complete()


class Sources(dict[str, ReadAt]):
    """By replica group the replica that answered; of several answers the one that is further behind."""

    def note(self, group: str, source: ReadAt) -> None:
        """``source`` answered for ``group``."""
        known = self.get(group)
        if known is None or source.age > known.age:
            self[group] = source


@dataclass(frozen=True, slots=True)
class ClusterCalls:
    """Calls of one ``Admin``; ``timeout_ms`` bounds each of them, with all its attempts.

    ``spares_leader``: reads that need not be linearizable go to followers.
    """

    router: Router
    committed_state: CommittedState
    followers: FollowersFirst
    timeout_ms: int
    spares_leader: bool = False
    kept: dict[tuple[str, str, bytes], tuple[int, Message | DledgerError]] = field(default_factory=dict)  # and since when
    known_groups: dict[str, int] = field(default_factory=dict)  # the replica groups, and when they were looked up
    silent: dict[str, int] = field(default_factory=dict)  # replica groups that did not answer, and until when little is waited for them

    def deadline_ms(self) -> int:
        return self.router.clock.monotonic_ms() + self.timeout_ms

    def group_deadline_ms(self, group: str) -> int:
        """For a question to all replica groups, which one without a leader must not hold up: the next question hardly waits for it."""
        now_ms = self.router.clock.monotonic_ms()
        most_ms = SILENT_TIMEOUT_MS if self.silent.get(group, 0) > now_ms else GROUP_TIMEOUT_MS
        return now_ms + min(self.timeout_ms, most_ms)

    def at_leaders(self) -> ClusterCalls:
        """For what a change is decided by: also the reads of this client go to leaders."""
        return replace(self, spares_leader=False)

    def at_followers(self) -> ClusterCalls:
        """For what is to be shown while a replica group has no leader."""
        return replace(self, spares_leader=True)

    async def replica_groups(self) -> dict[str, ReplicaGroup]:
        """At least one: UnreachableError when the answering nodes know of none.  For a client that spares leaders they are looked up only
        every few seconds: a leader may be the node that serves the names."""
        now_ms, known = self.router.clock.monotonic_ms(), self.router.groups
        if self.spares_leader and self.known_groups and all(now_ms - since < KEPT_MS for since in self.known_groups.values()):
            return {name: known[name] for name in self.known_groups if name in known}
        groups = await self.router.all_groups(self.deadline_ms())
        if not groups:
            raise UnreachableError("no node that answered knows a replica group")
        self.known_groups.clear()
        self.known_groups.update(dict.fromkeys(groups, now_ms))
        return groups

    async def replica_group(self, name: str = "") -> ReplicaGroup:
        """The replica group ``name``; without a name the only one of the cluster.  InvalidArgumentError when there is no such group."""
        groups = await self.replica_groups()
        if name:
            return await self.router.ensure_group(name, self.deadline_ms())
        if len(groups) > 1:
            raise InvalidArgumentError(
                f"the cluster has several replica groups; expected replica_group, one of {', '.join(sorted(groups))}"
            )
        return next(iter(groups.values()))

    async def named(self, names: Iterable[str]) -> list[str]:
        """These replica groups, once each.  InvalidArgumentError when there is no such group."""
        wanted = list(dict.fromkeys(texts("replica_groups", names)))
        known = await self.replica_groups() if wanted else {}
        return [name if name in known else (await self.replica_group(name)).name for name in wanted]

    async def ask_leader(
        self,
        replica_group: str,
        method: UnaryMethod[Request, Response],
        request: Request,
        *,
        again: Request | None = None,
        done: Callable[[DledgerError], Response | None] | None = None,
    ) -> Response:
        """The leader's answer.  ``again`` replaces ``request`` after an attempt with an unknown outcome; it must be safe to repeat.

        ``done``: the answer that an error after such an attempt stands for, as "does not exist" does for a deletion.
        """
        return await self.router.call_leader(replica_group, method, request, deadline_ms=self.deadline_ms(), again=again, done=done)

    async def read(
        self,
        group: str,
        method: UnaryMethod[Request, Response],
        request: Request,
        sources: Sources,
        *,
        applied: Callable[[Response], int] | None = None,
    ) -> Response:
        """An answer that need not be linearizable; ``sources`` notes whose it is.

        ``applied``: while a group has no leader, its follower with the highest value answers, also for a client that asks leaders."""
        deadline_ms = self.group_deadline_ms(group)
        if self.spares_leader:
            answer, source = await self.followers.ask(group, method, request, deadline_ms)
            sources.note(group, source)
            return answer
        if applied is not None:
            answer = await self.committed_state.ask(group, method, request, applied, deadline_ms)
        else:
            answer = await self.router.call_leader(group, method, request, deadline_ms=deadline_ms)
        sources.note(group, read_at(answer))
        return answer

    async def leader_only(self, group: str, method: UnaryMethod[Request, Response], request: Request) -> Response:
        """What only the leader knows.  A client that spares leaders is given the same answer, or error, for some seconds."""
        if not self.spares_leader:
            return await self.router.call_leader(group, method, request, deadline_ms=self.group_deadline_ms(group))
        now_ms, key = self.router.clock.monotonic_ms(), (group, method.path, request.SerializeToString(deterministic=True))
        for old in [old for old, (since_ms, _) in self.kept.items() if now_ms - since_ms >= KEPT_MS]:
            del self.kept[old]
        if key not in self.kept:
            found: Message | DledgerError
            try:
                found = await self.router.call_leader(group, method, request, deadline_ms=self.group_deadline_ms(group))
            except DledgerError as error:
                found = error
            self.kept[key] = (now_ms, found)
        _, kept = self.kept[key]
        if isinstance(kept, DledgerError):
            raise type(kept)(kept.message, **kept.details)
        return cast("Response", kept)

    async def leader_only_or(
        self,
        group: str,
        method: UnaryMethod[Request, Response],
        request: Request,
        otherwise: Response,
        missing: dict[str, DledgerError],
        *,
        partial: bool,
    ) -> Response:
        """``leader_only`` beside what a follower answered: without a leader ``otherwise`` will do for a ``partial`` answer, and ``missing``
        notes why."""
        try:
            return await self.leader_only(group, method, request)
        except DledgerError as error:
            if not partial or not self.spares_leader:
                raise
            missing[group] = error
            return otherwise

    async def ask_leaders(self, method: UnaryMethod[Request, Response], request: Request) -> Answers[Response]:
        """What the leader of every replica group answers."""

        async def ask(group: str) -> Response:
            return await self.router.call_leader(group, method, request, deadline_ms=self.group_deadline_ms(group))

        return await self.of_all(ask)

    async def of_all(self, ask: Callable[[str], Awaitable[T]], groups: Iterable[str] | None = None) -> Answers[T]:
        """``ask(group)`` of these replica groups, or of all, at once.  Raises errors that no other attempt would change."""
        answers = await answers_of(ask, await self.replica_groups() if groups is None else groups)
        for name in answers.of_group:
            self.silent.pop(name, None)
        for name in answers.unanswered:
            self.silent[name] = self.router.clock.monotonic_ms() + SILENT_MS
        return answers


class Subject:
    """Base of the subjects of ``Admin``: the methods of one subject, over the calls of one client."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls


async def answers_of(ask: Callable[[str], Awaitable[T]], groups: Iterable[str]) -> Answers[T]:
    """``ask(group)`` of these replica groups, at once.  Raises errors that no other attempt would change."""
    names = sorted(groups)
    found = await asyncio.gather(*(_outcome(ask, name) for name in names))
    answers: Answers[T] = Answers({})
    for name, outcome in zip(names, found, strict=True):
        if not isinstance(outcome, DledgerError):
            answers.of_group[name] = outcome[0]
        elif is_retriable(outcome) or outcome.outcome_unknown:
            answers.unanswered[name] = outcome
        else:
            raise outcome
    return answers


async def _outcome(ask: Callable[[str], Awaitable[T]], group: str) -> tuple[T] | DledgerError:
    try:
        return (await ask(group),)
    except DledgerError as error:
        return error
