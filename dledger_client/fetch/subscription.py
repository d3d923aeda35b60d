"""What a consumer wants of a topic: all, some tags, or what an SQL92 expression is true of.

Owns the parsing, and the last word on tags: replicas filter by hash, messages of another tag with the same hash are sorted out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_client.runtime.argument_ranges import check_encodable
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.java_hash import cached_java_hash


def parse_tags(expression: str) -> list[str]:
    """The tags of ``a || b``; empty for ``*``, which means all.  InvalidArgumentError for anything else."""
    if not isinstance(expression, str):
        raise InvalidArgumentError(f"tags {expression!r}: expected text: tag || tag ..., or *")
    if expression.strip() in ("", "*"):
        return []
    tags = [tag.strip() for tag in expression.split("||")]
    if not all(tags):  # RocketMQ lets it pass; it is a name that was left out, or an empty variable of a script
        raise InvalidArgumentError(f"tags {expression!r}: a tag is missing beside ||; expected tag || tag ..., or *")
    if any(" && " in tag for tag in tags):  # it would be one tag, which no message has
        raise InvalidArgumentError(f"tags {expression!r}: expected tag || tag ..., or *; a message has one tag")
    return list(dict.fromkeys(tags))


@dataclass(frozen=True)
class Subscription:
    """``expression``: tags; ``sql``: SQL92."""

    expression: str = "*"
    sql: str = ""

    def __post_init__(self) -> None:
        parse_tags(self.expression)
        check_encodable(tags=self.expression, sql=self.sql)

    @property
    def text(self) -> str:
        """As members are shown."""
        return self.sql or self.expression

    @cached_property
    def tags(self) -> list[str]:
        return parse_tags(self.expression)

    @cached_property
    def tag_hashes(self) -> list[int]:
        return [cached_java_hash(tag) for tag in self.tags]

    def messages_of(self, chunk: Chunk, kind: type[ReceivedMessage] | None = None) -> list[ReceivedMessage]:
        """The messages of a chunk that are wanted."""
        messages = chunk.messages(kind) if chunk.count else []
        return [message for message in messages if message.tags in self.tags] if self.tags else messages
