"""Settings of consumer groups as replicated state: how often a message is retried, over how many queues, whether the group may read.

Owns the rules and RocketMQ's shape of config/subscriptionGroup.json.  A group nobody has configured has the defaults; nothing has to be
created before it can consume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group
from store.state.sections import CommandContext, CommandResult, Handler

PUT, DELETE_GROUP = "put_subscription_group", "delete_subscription_group"
MAX_RETRY_QUEUES = 1024
MAX_RETRIES = 1000


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One group's settings, with upstream's names and defaults."""

    groupName: str
    consumeEnable: bool = True
    retryQueueNums: int = 1
    retryMaxTimes: int = 16


_SETTINGS = tuple(name for name in SubscriptionGroup.__dataclass_fields__ if name != "groupName")
# What stands in upstream's file beside them and means nothing here.
_CONSTANT = {
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "attributes": {},
}
_LIMITS = {"retryQueueNums": (1, MAX_RETRY_QUEUES), "retryMaxTimes": (0, MAX_RETRIES)}


class SubscriptionGroups:
    """The configured groups.  Implements ``group_state.Section``."""

    file_name = "subscriptionGroup.json"

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}
        self._counter = self._term = self._changed_at_ms = 0

    def configured(self) -> list[SubscriptionGroup]:
        """Every group somebody configured, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def of(self, group: str) -> SubscriptionGroup:
        """A group's settings; the defaults for one nobody configured."""
        return self._groups.get(group) or SubscriptionGroup(group)

    def handlers(self) -> Mapping[str, Handler]:
        return {PUT: self._put, DELETE_GROUP: self._delete}

    def _put(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        name, changes = check_settings(arguments)
        group = self._groups[name] = replace(self.of(name), **changes)
        self._touch(context)
        return settings_of(group)

    def _delete(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        name = str(arguments.get("groupName", ""))
        if self._groups.pop(name, None) is None:
            raise InvalidArgumentError(f"consumer group {name!r} has no settings of its own")
        self._touch(context)
        return settings_of(SubscriptionGroup(name))

    def _touch(self, context: CommandContext) -> None:
        self._counter += 1
        self._term, self._changed_at_ms = context.term, context.at_ms

    def dump(self) -> dict[str, Any]:
        return {
            "subscriptionGroupTable": {group.groupName: settings_of(group) | _CONSTANT for group in self._groups.values()},
            "forbiddenTable": {},
            "dataVersion": {"counter": self._counter, "stateVersion": self._term, "timestamp": self._changed_at_ms},
        }

    def load(self, data: dict[str, Any]) -> None:
        self._groups = {
            name: SubscriptionGroup(name, **{setting: row[setting] for setting in _SETTINGS if setting in row})
            for name, row in data["subscriptionGroupTable"].items()
        }
        version = data["dataVersion"]
        self._counter, self._term, self._changed_at_ms = version["counter"], version["stateVersion"], version["timestamp"]


def settings_of(group: SubscriptionGroup) -> dict[str, Any]:
    """A group's settings by name, ``groupName`` among them."""
    return {"groupName": group.groupName} | {name: getattr(group, name) for name in _SETTINGS}


def check_settings(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(group, the settings to change) of a command.  InvalidNameError, InvalidArgumentError for one that could never succeed."""
    name = check_group(str(arguments.get("groupName", "")))
    changes = {setting: arguments[setting] for setting in _SETTINGS if arguments.get(setting) is not None}
    for setting, value in changes.items():
        low, high = _LIMITS.get(setting, (False, True))
        if type(value) is not type(low) or not low <= value <= high:
            raise InvalidArgumentError(f"{setting} {value!r}: expected {low} to {high}")
    return name, changes
