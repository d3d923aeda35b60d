"""Typed calls that all subjects of ``Admin`` share: to the leader of a replica group, or to the leaders of all.

Owns what a replica group without an answer means: a question about the whole cluster is answered by the others, and says who is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

from dledger_client.cluster.follower_reads import CommittedState
from dledger_client.cluster.retry import is_retriable
from dledger_client.cluster.router import Router
from dledger_client.cluster.routes import ReplicaGroup
from dledger_wire.errors import DledgerError, InvalidArgumentError, UnreachableError
from dledger_wire.rpc.methods import UnaryMethod

GROUP_TIMEOUT_MS = 4000  # longer than an election takes; a replica group that does not answer by then is left out
SILENT_TIMEOUT_MS = 500  # when it did not answer a moment ago
SILENT_MS = 10_000

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")


class Listed(list[T]):
    """What the replica groups answered, as a list.

    Args:
        items: What was answered.
        unanswered: The replica groups that did not answer, and why.

    Examples:
        >>> topics = await admin.list_topics(partial=True)
        >>> print(len(topics), list(topics.unanswered))

    Attributes:
        unanswered: The replica groups that did not answer, and why: what they have is not in the list.
    """

    def __init__(self, items: Iterable[T] = (), unanswered: Mapping[str, DledgerError] | None = None) -> None:
        super().__init__(items)
        self.unanswered: dict[str, DledgerError] = dict(unanswered or {})


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


@dataclass(frozen=True, slots=True)
class ClusterCalls:
    """Calls of one ``Admin``; ``timeout_ms`` bounds each of them, with all its attempts."""

    router: Router
    committed_state: CommittedState
    timeout_ms: int
    silent: dict[str, int] = field(default_factory=dict)  # replica groups that did not answer, and until when little is waited for them

    def deadline_ms(self) -> int:
        return self.router.clock.monotonic_ms() + self.timeout_ms

    def group_deadline_ms(self, group: str) -> int:
        """For a question to all replica groups, which one without a leader must not hold up: the next question hardly waits for it."""
        now_ms = self.router.clock.monotonic_ms()
        most_ms = SILENT_TIMEOUT_MS if self.silent.get(group, 0) > now_ms else GROUP_TIMEOUT_MS
        return now_ms + min(self.timeout_ms, most_ms)

    async def replica_groups(self) -> dict[str, ReplicaGroup]:
        """At least one: UnreachableError when whoever answers knows of none."""
        groups = await self.router.all_groups(self.deadline_ms())
        if not groups:
            raise UnreachableError("nobody who answers knows of a replica group")
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
        wanted = list(dict.fromkeys(names))
        known = await self.replica_groups() if wanted else {}
        return [name if name in known else (await self.replica_group(name)).name for name in wanted]

    async def ask_leader(
        self, replica_group: str, method: UnaryMethod[Request, Response], request: Request, *, again: Request | None = None
    ) -> Response:
        """The leader's answer.  ``again`` replaces ``request`` after an attempt with an unknown outcome; it must be safe to repeat."""
        return await self.router.call_leader(replica_group, method, request, deadline_ms=self.deadline_ms(), again=again)

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


async def answers_of(ask: Callable[[str], Awaitable[T]], groups: Iterable[str]) -> Answers[T]:
    """``ask(group)`` of these replica groups, at once.  Raises errors that no other attempt would change."""
    names = sorted(groups)
    found = await asyncio.gather(*(_outcome(ask(name)) for name in names))
    answers: Answers[T] = Answers({})
    for name, outcome in zip(names, found, strict=True):
        if not isinstance(outcome, DledgerError):
            answers.of_group[name] = outcome[0]
        elif is_retriable(outcome) or outcome.outcome_unknown:
            answers.unanswered[name] = outcome
        else:
            raise outcome
    return answers


async def _outcome(asking: Awaitable[T]) -> tuple[T] | DledgerError:
    try:
        return (await asking,)
    except DledgerError as error:
        return error
