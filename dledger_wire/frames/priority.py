"""The priority of a message: RocketMQ's property for it, and what it says."""

from __future__ import annotations

from collections.abc import Mapping

PRIORITY = "_SYS_MSG_PRIORITY_"
MAX_PRIORITY = (1 << 31) - 1


def priority_of(properties: Mapping[str, str]) -> int:
    """What the property says; 0, the least urgent, without one."""
    text = properties.get(PRIORITY, "")
    return min(int(text), MAX_PRIORITY) if text.isascii() and text.isdecimal() and len(text) <= 10 else 0
