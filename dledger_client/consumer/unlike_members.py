"""Members of a consumer group that are set up differently: each of them gets a share of the queues, so what only others want is skipped.

Owns what was said of it: one warning for each difference, and another one when it comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from dledger_client.consumer.group_session import MemberInfo
from dledger_wire._pb import sessions_pb2
from dledger_wire.names import RETRY_PREFIX

_logger = logging.getLogger(__name__)


class UnlikeMembers:
    """Compares the other members of a group with this one."""

    def __init__(self, own: MemberInfo) -> None:
        self._own = own
        self._logged: set[str] = set()

    def compare(self, members: Iterable[sessions_pb2.GroupMember]) -> None:
        """Warn of what is different and was not before."""
        if self._own.broadcast:
            return
        found = {
            text: member.client_id
            for member in members
            if member.client_id != self._own.client_id and not member.broadcast
            for text in self._differences(member)
        }
        for text in found.keys() - self._logged:
            _logger.warning("consumer group %s: member %s %s", self._own.group, found[text], text)
        self._logged = set(found)

    def _differences(self, member: sessions_pb2.GroupMember) -> Iterator[str]:
        for each in member.subscriptions:
            mine = self._own.subscriptions.get(each.topic)
            if mine is not None and not each.topic.startswith(RETRY_PREFIX) and _tags(mine) != _tags(each.expression):
                yield (
                    f"wants {each.expression!r} of topic {each.topic}, this one {mine!r}: "
                    "each skips in its queues what only the other wants; all members need the same filter"
                )
        if member.orderly != self._own.orderly:
            kinds = ("is orderly, this one is not", "is not orderly, this one is")
            yield f"{kinds[self._own.orderly]}: there is no order in the queues of the one that is not; all members need the same setting"


def _tags(expression: str) -> frozenset[str]:
    """To compare ``a || b`` with ``b||a``."""
    return frozenset(tag.strip() for tag in expression.split("||")) - {"", "*"}
