"""Settings of consumer groups as replicated state: how often a message is retried, over how many queues, whether the group may read,
and whether in order.

Owns RocketMQ's shape of config/subscriptionGroup.json.  A group without settings has the defaults: it can consume without being created.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace

from dledger_wire.errors import InvalidArgumentError
from store.commands.command import JsonObject
from store.commands.consumer_groups import DeleteSubscriptionGroup, PutSubscriptionGroup, SubscriptionGroup
from store.state.state_machine import CommandContext, CommandHandlers

_SETTINGS = tuple(field.name for field in fields(SubscriptionGroup) if field.name != "groupName")
# RocketMQ's file has these too, in this order; but for the order of messages they have no effect here.
_MORE = {
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


class SubscriptionGroups:
    """The configured groups.  Implements ``StateMachineSection``."""

    file_name = "subscriptionGroup.json"

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}
        self._counter = self._term = self._changed_at_ms = 0

    def configured(self) -> list[SubscriptionGroup]:
        """Every group with settings of its own, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def of(self, group: str) -> SubscriptionGroup:
        """A group's settings; the defaults for a group without settings."""
        return self._groups.get(group) or SubscriptionGroup(group)

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(PutSubscriptionGroup, self._put)
        handlers.on(DeleteSubscriptionGroup, self._delete)

    def _put(self, command: PutSubscriptionGroup, context: CommandContext) -> SubscriptionGroup:
        group = self._groups[command.groupName] = replace(self.of(command.groupName), **command.changes())
        self._touch(context)
        return group

    def _delete(self, command: DeleteSubscriptionGroup, context: CommandContext) -> SubscriptionGroup:
        if self._groups.pop(command.groupName, None) is None:
            raise InvalidArgumentError(f"consumer group {command.groupName!r} has no settings of its own")
        self._touch(context)
        return SubscriptionGroup(command.groupName)

    def _touch(self, context: CommandContext) -> None:
        self._counter += 1
        self._term, self._changed_at_ms = context.term, context.at_ms

    def dump(self) -> JsonObject:
        return {
            "subscriptionGroupTable": {group.groupName: _row(group) for group in self._groups.values()},
            "forbiddenTable": {},
            "dataVersion": {"counter": self._counter, "stateVersion": self._term, "timestamp": self._changed_at_ms},
        }

    def load(self, data: JsonObject) -> None:
        self._groups = {
            name: SubscriptionGroup(name, **{setting: row[setting] for setting in _SETTINGS if setting in row})
            for name, row in data["subscriptionGroupTable"].items()
        }
        version = data["dataVersion"]
        self._counter, self._term, self._changed_at_ms = version["counter"], version["stateVersion"], version["timestamp"]


def _row(group: SubscriptionGroup) -> JsonObject:
    settings = asdict(group)
    in_order = settings.pop("consumeMessageOrderly")
    return settings | _MORE | {"consumeMessageOrderly": in_order}
