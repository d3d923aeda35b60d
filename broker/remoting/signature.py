"""The signature of a request of RocketMQ's clients: what is signed, and whether it fits.

A client adds its AccessKey, perhaps a SecurityToken, and as Signature the Base64 of an HMAC-SHA1 of the values of all other fields, in the
order of their names, followed by the body.  Versions differ in two fields, which count either way.  There is neither a time nor a number in
it: a request that was listened to could be sent again, which is why users need TLS outside loopback.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

from dledger_wire.checksum import Buffer

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
_NOT_BY_ALL = ("SecurityToken", "_UNIQUE_KEY_QUERY")  # Go clients leave out the first one, versions up to 4.9 the other


def signature_of(secret: str, fields: Mapping[str, str], body: Buffer, left_out: Collection[str] = ()) -> str:
    """What a client sends as its signature."""
    made = hmac.new(secret.encode(), digestmod="sha1")
    for name in sorted(fields):
        if name != SIGNATURE and name not in left_out:
            made.update(fields[name].encode())
    made.update(body)
    return base64.b64encode(made.digest()).decode()


def fits(secret: str, fields: Mapping[str, str], body: Buffer) -> bool:
    """Whether the signature of a request is one with this secret; takes as long for each that is not."""
    given = fields.get(SIGNATURE, "").encode()
    return any([hmac.compare_digest(signature_of(secret, fields, body, each).encode(), given) for each in _ways(fields)])


def _ways(fields: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """What may be left out: each selection of these fields."""
    there = [name for name in _NOT_BY_ALL if name in fields]
    for count in range(len(there) + 1):
        yield from combinations(there, count)
