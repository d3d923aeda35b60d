"""How large a request may be, by method: ours are small by nature, but for those that carry messages, entries or long lists."""

from __future__ import annotations

SMALL_BYTES = 1 << 20
LIST_BYTES = 8 << 20
LARGE_BYTES = 64 << 20

_OWN = "/dledger.v1."
_LARGER = {
    "/dledger.v1.Broker/Produce": LARGE_BYTES,
    "/dledger.v1.Raft/Link": LARGE_BYTES,
    "/dledger.v1.Retry/SendBack": LIST_BYTES,
    "/dledger.v1.Broker/CommitOffsets": LIST_BYTES,
    "/dledger.v1.Transactions/EndTransactions": LIST_BYTES,
}


def request_limit(method: str) -> int:
    """The most bytes that one message of a caller of ``method`` may have."""
    return _LARGER.get(method, SMALL_BYTES if method.startswith(_OWN) else LARGE_BYTES)
