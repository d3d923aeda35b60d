"""How the queues of a topic are shared out among replica groups: pure functions of counts.

Owns the rule that a repeated or interrupted change ends with the same shares: queues are added one at a time where the topic has the
fewest, and taken away one at a time where it has the most, so that the way to a number of queues does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger_wire.errors import InvalidArgumentError


def spread(queues: int, replica_groups: Sequence[str]) -> dict[str, int]:
    """``queues`` over the first of ``replica_groups``, evenly: shares differ by at most one, the larger ones first; no share is 0."""
    used = replica_groups[:queues]
    if not used:
        return {}
    share, rest = divmod(queues, len(used))
    return {group: share + (place < rest) for place, group in enumerate(used)}


def resized(counts: Mapping[str, int], queues: int) -> dict[str, int]:
    """Shares of ``queues`` after those of ``counts``, with as few changes as possible; every replica group has at least one.

    InvalidArgumentError when there are fewer queues than replica groups.
    """
    if queues < len(counts):
        names = ", ".join(sorted(counts))
        raise InvalidArgumentError(f"{queues} queues over {len(counts)} replica groups ({names}); expected at least one queue in each")
    found = {group: max(1, count) for group, count in sorted(counts.items())}
    while sum(found.values()) < queues:
        found[min(found, key=lambda group: (found[group], group))] += 1
    while sum(found.values()) > queues:
        most = max(found.values())
        found[max(group for group, count in found.items() if count == most)] -= 1
    return found
