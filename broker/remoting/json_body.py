"""Bodies of answers in the JSON that RocketMQ's tools read: compact, and with objects as the keys of maps of queues.

Owns that dialect, which is fastjson's, ``{{"brokerName":"g0","queueId":0,"topic":"t"}:{...}}``.  A body may tell of all queues of a large
topic: it is made in slices.  There are no spaces: a client takes the addresses of brokers out of the text of a route.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from broker.remoting.codes import Answer
from broker.remoting.command import Command
from broker.support.limits import in_slices


class MessageQueue(NamedTuple):
    """A queue as the key of a map."""

    broker: str
    queue_id: int
    topic: str


async def answer(content: object) -> Command:
    """The answer with this body: mappings, lists, text, numbers, truth values and None."""
    pieces = [piece async for piece in in_slices(_pieces(content))]
    return Command(Answer.SUCCESS, body="".join(pieces).encode())


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield "{"
        for number, (key, each) in enumerate(value.items()):
            yield f"{',' if number else ''}{_key(key)}:"
            yield from _pieces(each)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for number, each in enumerate(value):
            if number:
                yield ","
            yield from _pieces(each)
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=False)


def _key(key: object) -> str:
    if not isinstance(key, MessageQueue):
        return json.dumps(key, ensure_ascii=False)
    broker, topic = (json.dumps(name, ensure_ascii=False) for name in (key.broker, key.topic))
    return f'{{"brokerName":{broker},"queueId":{key.queue_id},"topic":{topic}}}'
