"""Protobuf messages out of our own records, the other way round of ``dledger_client/cluster/responses.py:object_of``."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)


def message_of(kind: type[MessageT], source: object, **others: Any) -> MessageT:
    """A message with the values of ``source`` that have its fields' names; ``others`` are set beside them, or in their place."""
    same = [name for name in kind.DESCRIPTOR.fields_by_name if name not in others and hasattr(source, name)]
    made: MessageT = kind(**{name: getattr(source, name) for name in same}, **others)
    return made
