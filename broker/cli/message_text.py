"""Messages and their traces as the command line shows them: JSON objects, and lines for people."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dledger_client.received import ReceivedMessage
    from dledger_client.trace import ConsumerState, Trace, TracedCopy


def time_text(at_ms: int) -> str:
    """A time in UTC, to the millisecond; ``-`` for none."""
    if not at_ms:
        return "-"
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def consumed_json(message: ReceivedMessage) -> dict[str, Any]:
    """What a consumer wants of a message; a body that is no text comes in base64."""
    try:
        body: dict[str, str] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode("ascii")}
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "born_at": message.born_timestamp,
        "stored_at": message.store_timestamp,
        **body,
    }


def message_json(message: ReceivedMessage) -> dict[str, Any]:
    """All there is to know of a message."""
    return consumed_json(message) | {
        "group": message.group,
        "offset_msg_id": message.offset_msg_id,
        "physical_offset": message.physical_offset,
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
        "replica": message.replica,
    }


def trace_json(trace: Trace) -> dict[str, Any]:
    return {"complete": trace.complete, "copies": [_copy_json(copy) for copy in trace.copies]}


def _copy_json(copy: TracedCopy) -> dict[str, Any]:
    return {
        "kind": copy.kind,
        "consumer_group": copy.consumer_group,
        "message": message_json(copy.message),
        "replicas": [{"id": replica.node_id, "state": replica.state} for replica in copy.replicas],
        "consumers": [
            {"group": each.group, "state": each.state, "committed": each.committed, "after": each.after_ms, "by": each.by_ms}
            for each in copy.consumers
        ],
    }


def show_traces(trace: Trace) -> None:
    """A paragraph a copy, oldest first."""
    for copy in trace.copies:
        message = copy.message
        whose = f" of group {copy.consumer_group}" if copy.consumer_group else ""
        attempt = f", attempt {message.reconsume_times}" if message.reconsume_times and copy.kind != "message" else ""
        print(f"{copy.kind}{whose}{attempt}: {message.topic}/{message.queue_id} offset {message.queue_offset}  id {message.msg_id}")
        print(f"  stored    {time_text(message.store_timestamp)} in group {message.group} at {message.physical_offset}")
        if origin := message.properties.get("ORIGIN_MESSAGE_ID"):
            print(f"  origin    {origin} in {message.properties.get('RETRY_TOPIC', '?')}")
        print(f"  replicas  {', '.join(f'{replica.node_id} {replica.state}' for replica in copy.replicas)}")
        for consumer in copy.consumers:
            print(f"  group     {_consumer_text(consumer)}")


def _consumer_text(consumer: ConsumerState) -> str:
    if consumer.state == "consumed":
        return f"{consumer.group}: consumed (by offset), {_when(consumer)}"
    if consumer.state == "sent back":
        return f"{consumer.group}: sent back, to be delivered again"
    return f"{consumer.group}: not yet, it is at offset {consumer.committed}"


def _when(consumer: ConsumerState) -> str:
    if not consumer.by_ms:
        return "when is not known any more"
    if not consumer.after_ms:
        return f"committed by {time_text(consumer.by_ms)}"
    return f"committed between {time_text(consumer.after_ms)} and {time_text(consumer.by_ms)}"
