"""Lines of input as they arrive, and the message that a line gives: the whole line, a key and a body, or a JSON object."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from dledger_wire import strict_json

FIELDS = ("body", "body_base64", "keys", "tags", "properties", "queue_key")
IGNORED = ("topic", "queue_id", "queue_offset", "msg_id", "born_at", "stored_at")  # ``consume --json`` prints those, too


READ_BYTES = 1 << 20


class Input(Protocol):
    """A buffered stream of bytes."""

    def read1(self, size: int, /) -> bytes: ...


def line_chunks(stream: Input) -> Iterator[list[bytes]]:
    """Lines without their newline, as many at a time as are there: a line that arrives alone does not wait for others.

    A CR before the newline belongs to it, as in Kafka's console producer; other bytes are kept.
    """
    begun: list[bytes] = []  # parts of a line whose end has not been read
    while block := stream.read1(READ_BYTES):
        first, *lines = block.split(b"\n")
        begun.append(first)
        if lines:
            yield [line.removesuffix(b"\r") for line in (b"".join(begun), *lines[:-1])]
            begun = [lines[-1]]
    if any(begun):
        yield [b"".join(begun)]


@dataclass(slots=True)
class GivenMessage:
    """``options``: what this line says of keys, tags and properties; it comes before what the command line says of all."""

    body: bytes
    options: dict[str, Any] = field(default_factory=dict)
    queue_key: str = ""

    def over(self, common: dict[str, Any]) -> dict[str, Any]:
        if not self.options:
            return common
        return common | self.options | {"properties": common["properties"] | self.options.get("properties", {})}


def line_reader(key_separator: str, *, as_json: bool) -> Callable[[bytes], GivenMessage]:
    """What makes a message of a line; it raises ValueError with what was expected."""
    if as_json:
        return _of_json
    if not key_separator:
        return GivenMessage
    separator = key_separator.encode()

    def with_key(line: bytes) -> GivenMessage:
        key, found, body = line.partition(separator)
        if not found:
            raise ValueError(f"expected KEY{key_separator}BODY, got no {key_separator!r}")
        text = key.decode()
        if " " in text:  # they separate the keys of a message: it would not be found by this one
            raise ValueError(f"key {text!r}: expected no spaces; --json-lines takes several keys, and queue_key for the queue")
        return GivenMessage(body, {"keys": text}, text)

    return with_key


def _of_json(line: bytes) -> GivenMessage:
    from dledger_client.message_fields import RESERVED_PROPERTIES

    try:
        value = strict_json.parse(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object with body")
    if unknown := [name for name in value if name not in FIELDS + IGNORED]:
        raise ValueError(f"{unknown[0]!r}: unknown; expected {', '.join(FIELDS)}")
    if ("body" in value) == ("body_base64" in value):
        raise ValueError("expected either body or body_base64")
    keys = value.get("keys", "")
    if isinstance(keys, list) and all(isinstance(key, str) and " " not in key for key in keys):
        value["keys"] = " ".join(keys)
    elif not isinstance(keys, str):
        raise ValueError(f"keys: expected text with a space between keys, or a list of texts without spaces, got {json.dumps(keys)}")
    for name in ("body", "body_base64", "tags", "queue_key"):
        if not isinstance(value.get(name, ""), str):
            raise ValueError(f"{name}: expected text, got {json.dumps(value[name])}")
    properties = value.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise ValueError("properties: expected an object of texts")
    properties = {name: text for name, text in properties.items() if name not in RESERVED_PROPERTIES}  # ``consume --json`` prints those too
    options = {name: value[name] for name in ("keys", "tags") if value.get(name)}
    return GivenMessage(_body(value), options | ({"properties": properties} if properties else {}), value.get("queue_key", ""))


def _body(value: dict[str, Any]) -> bytes:
    if "body" in value:
        return str(value["body"]).encode()
    try:
        return base64.b64decode(value["body_base64"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"body_base64: {error}") from None
