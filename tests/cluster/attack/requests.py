"""Requests for every RPC of every service, made from the descriptors: whatever names a thing names what attackers want."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dledger_wire import _pb
from dledger_wire.batches.batch import Sequence64, encode_batch
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.frames.frames import FrameFields, encode_frames
from dledger_wire.frames.hash_columns import fold_key_hashes, hash_columns
from dledger_wire.rpc import envelope, methods
from tests.cluster.attack.secured_cluster import CLUSTER, GROUP, PRODUCER, TOPIC

DEPTH = 4
_NAMES = {"group": GROUP, "groups": GROUP, "producer_group": GROUP, "stable_id": PRODUCER, "cluster": CLUSTER, "user": "alice"}
# Fields of this name belong to a topic, or to something else in these messages.
_OTHERWISE = {
    "GroupSettings": {"name": GROUP},
    "SecurityUser": {"name": "alice"},
    "DeleteUserRequest": {"name": "alice"},
    "SecurityRule": {"user": "mallory", "effect": "allow", "resource": "cluster", "pattern": "*", "action": "administer"},
    "CopyPlanRequest": {"group": "g0", "node_id": "n1"},
    "CopyLogRequest": {"group": "g0"},
    "CopyStateRequest": {"group": "g0"},
    "EntryRequest": {"group": "g0"},
    "Registration": {"group": "g0", "node_id": "n1"},
    "TakeSpareRequest": {"group": "g0"},
    "CheckAccessRequest": {"action": "read", "resource": "topic", "name": TOPIC},
}


def declared() -> list[str]:
    """The path of every RPC of the services in proto/dledger/v1."""
    found = []
    for module in pkgutil.iter_modules(_pb.__path__):
        for service in import_module(f"{_pb.__name__}.{module.name}").DESCRIPTOR.services_by_name.values():
            found += [f"/{service.full_name}/{method.name}" for method in service.methods]
    return sorted(found)


def request_for(path: str) -> bytes:
    """A request that asks for what belongs to others."""
    method = methods.METHODS[path]
    if path == methods.PRODUCE.path:
        return produce(TOPIC)
    if path == methods.FETCH.path:
        return encoded(methods.FETCH.request(topic=TOPIC, max_messages=10, max_bytes=1 << 20))
    if path == methods.METADATA.path:
        return encoded(methods.METADATA.request(all_topics=True))
    if path == methods.JOIN_GROUP.path:
        message = methods.JOIN_GROUP.request()
        message.join.group, message.join.client_id, message.join.session_id = GROUP, "mallory", "mallory"
        message.join.subscriptions.add(topic=TOPIC)
        return encoded(message)
    return encoded(_filled(method.request()))


def produce(topic: str) -> bytes:
    """A produce request with one message."""
    return envelope.encode(methods.PRODUCE.request(request_id=1), [batch(topic)])


def batch(topic: str, *, sequence: Sequence64 | None = None, properties: bytes = b"") -> bytes:
    """A batch of one message, as a client writes it."""
    ids = np.frombuffer(f"{7:032X}".encode(), np.uint8).reshape(1, 32)
    frames, sizes = encode_frames(topic, 0, [b"forged"], ids, properties, FrameFields(5, pack_host("127.0.0.1:1")))
    unique = fold_key_hashes(hash_columns(ids, f"{topic}#"))
    return encode_batch(topic, 0, frames, sizes, np.zeros(1, np.int32), unique, sequence=sequence)


def encoded(message: Message) -> bytes:
    return bytes(message.SerializeToString())


def _filled(message: Message, depth: int = 0) -> Message:
    otherwise = _OTHERWISE.get(message.DESCRIPTOR.name, {})
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None or (field.name == "payload" and field.type == FieldDescriptor.TYPE_BYTES):
            continue
        value = otherwise.get(field.name, _value(field))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth < DEPTH and not field.message_type.GetOptions().map_entry:
                inner = getattr(message, field.name)
                _filled(inner.add() if field.is_repeated else inner, depth + 1)
        elif value is not None and field.is_repeated:
            getattr(message, field.name).append(value)
        elif value is not None:
            setattr(message, field.name, value)
    return message


def _value(field: Any) -> str | None:
    if field.type != FieldDescriptor.TYPE_STRING:
        return None
    return _NAMES.get(field.name, TOPIC)
