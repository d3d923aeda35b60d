"""Signatures of RocketMQ's clients: those that openssl makes of the same bytes count, and no other ones."""

from __future__ import annotations

import pytest

from broker.remoting.signature import fits

SEND = {"b": "orders", "e": "0", "AccessKey": "alice", "a": "group-a"}
QUERY = {"topic": "orders", "key": "K1", "AccessKey": "alice", "_UNIQUE_KEY_QUERY": "true"}

# printf 'alicegroup-aorders0hello' | openssl dgst -sha1 -hmac sekret -binary | base64
VECTORS = [
    (SEND, b"hello", "zZqf/zFFUQe1ztKpBYz5arGsQms="),
    (SEND | {"SecurityToken": "token"}, b"hello", "r7yzD4HZvNf5OBq8nwG4eDKOJOQ="),
    (SEND | {"SecurityToken": "token"}, b"hello", "zZqf/zFFUQe1ztKpBYz5arGsQms="),  # of a Go client
    (QUERY, b"", "oP+qWsoVhvhxNbWJs56s9Dz1Vew="),
    (QUERY, b"", "8Ys6uTPJev2aDuNatC5eGSL3a0Q="),  # of a version up to 4.9
    ({"AccessKey": "bob", "a": "\u00fcber"}, b"", "oGuzXs7eFloqx6ZX7ykNZREUdBI="),
]


@pytest.mark.parametrize(("fields", "body", "signature"), VECTORS)
def test_a_signature_counts_for_these_bytes_and_this_secret(fields: dict[str, str], body: bytes, signature: str) -> None:
    signed = fields | {"Signature": signature}
    assert fits("sekret", signed, body)
    assert not fits("secret", signed, body)
    assert not fits("sekret", signed, body + b"!")
    assert not fits("sekret", signed | {"a": "another"}, body)
    assert not fits("sekret", signed | {"added": "field"}, body)


@pytest.mark.parametrize("signature", ["", "\u00fc", "x" * 100_000, "zZqf/zFFUQe1ztKpBYz5arGsQm"])
def test_what_is_no_signature_does_not_count(signature: str) -> None:
    assert not fits("sekret", SEND | {"Signature": signature}, b"hello")
    assert not fits("sekret", SEND, b"hello")
