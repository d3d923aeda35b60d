"""The signature of a call of RocketMQ's gRPC clients: the header ``authorization``, an HMAC-SHA1 of the header with the time.

The time is not compared with a clock: some clients send another one than they say.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"
MAX_CHARS = 1_000


def access_key(metadata: Mapping[str, str]) -> str:
    """Whose signature it says that it is; empty without one.  Some clients add a region behind a slash."""
    return _part(metadata, "Credential").partition("/")[0]


def is_signed(secret: str, metadata: Mapping[str, str]) -> bool:
    """Takes as long for each signature that is not one with this secret."""
    made = hmac.new(secret.encode(), metadata.get(DATE_TIME, "").encode(), "sha1").hexdigest()
    return hmac.compare_digest(made.encode(), _part(metadata, "Signature").lower().encode())


def _part(metadata: Mapping[str, str], name: str) -> str:
    given = metadata.get(AUTHORIZATION, "")[:MAX_CHARS]
    parts = (part.partition("=") for part in given.replace(",", " ").split())
    return next((value for key, mark, value in parts if mark and key == name), "")
