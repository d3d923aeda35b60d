"""The replica group itself as replicated state: active, draining or removed, its wanted replicas, and the spare node that it takes in.

    active <--> draining --nothing is left--> removed

While a group is draining, users store nothing new in it: their messages and topics are refused.  What was accepted before the command was
applied is stored behind it.  Services go on, since what they store was accepted before.  A group that was removed stays so: its nodes are
to be stopped, and its name is used by a new one at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from dledger_wire.errors import InvalidArgumentError, NotReadyError, ReplicaGroupDrainingError
from dledger_wire.status import ACTIVE, DRAINING, REMOVED
from store.commands.command import JsonObject
from store.commands.replacement import Replacement, SetReplacement
from store.commands.replica_group import ReplicaGroupSettings, SetReplicaGroup
from store.state.state_machine import CommandContext, CommandHandlers

_ALLOWED = {(ACTIVE, DRAINING), (DRAINING, ACTIVE), (DRAINING, REMOVED)}


class ReplicaGroupState:
    """Implements ``StateMachineSection``."""

    file_name = "replicaGroup.json"

    def __init__(self) -> None:
        self.settings = ReplicaGroupSettings()
        self.replacement: Replacement | None = None  # under way: any master goes on with it
        self.taken: tuple[str, ...] = ()  # the nodes that were spare before the group took them in
        self.changed: Callable[[], object] = lambda: None  # called after every change

    @property
    def state(self) -> str:
        return self.settings.state

    @property
    def takes_messages(self) -> bool:
        """Whether users may store something new."""
        return self.settings.state == ACTIVE

    def require_active(self, what: str) -> None:
        """ReplicaGroupDrainingError unless users may store something new; ``what`` is refused."""
        if not self.takes_messages:
            state = "is draining" if self.state == DRAINING else "was removed"
            raise ReplicaGroupDrainingError(f"the replica group {state}: it takes {what}", state=self.state)

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(SetReplicaGroup, self._set)
        handlers.on(SetReplacement, self._replace)

    def _set(self, command: SetReplicaGroup, context: CommandContext) -> ReplicaGroupSettings:
        old = self.settings
        if old.state == REMOVED and command.state != REMOVED:
            raise InvalidArgumentError("the replica group was removed; nothing of it can be changed any more")
        if command.state and command.state != old.state:
            self._check_step(old.state, command, context)
            old = replace(old, state=command.state, since_ms=context.at_ms)
        self.settings = replace(
            old,
            version=old.version + 1,
            epoch_ms=old.epoch_ms or context.at_ms,
            voters=command.voters or old.voters,
            learners=old.learners if command.learners is None else command.learners,
            replace_after_ms=old.replace_after_ms if command.replace_after_ms is None else command.replace_after_ms,
            limits={name: value for name, value in {**old.limits, **dict(command.limits)}.items() if value},
        )
        self.changed()
        return self.settings

    def _check_step(self, state: str, command: SetReplicaGroup, context: CommandContext) -> None:
        if (state, command.state) not in _ALLOWED:
            raise InvalidArgumentError(f"the replica group is {state}; it cannot become {command.state}: it is drained first")
        if command.state == REMOVED and context.index != command.at_index + 1:
            raise NotReadyError("the replica group was written to while it was removed; repeat the command")

    def _replace(self, command: SetReplacement, _context: CommandContext) -> Replacement | None:
        self.replacement = None
        if command.spare:
            self.replacement = Replacement(command.spare, command.address, command.absent, command.voter)
            self.taken = tuple(dict.fromkeys((*self.taken, command.spare)))
        self.changed()
        return self.replacement

    # Snapshot

    def dump(self) -> JsonObject:
        found = asdict(self.settings)
        if not self.settings.limits:
            del found["limits"]
        if self.replacement is not None:
            found["replacement"] = asdict(self.replacement)
        if self.taken:
            found["taken"] = list(self.taken)
        return found

    def load(self, data: JsonObject) -> None:
        found = data.get("replacement")
        self.replacement = None if found is None else Replacement(**found)
        self.taken = tuple(str(node_id) for node_id in data.get("taken", ()))
        self.settings = ReplicaGroupSettings(
            state=str(data["state"]),
            voters=int(data["voters"]),
            learners=None if data["learners"] is None else int(data["learners"]),
            replace_after_ms=None if data["replace_after_ms"] is None else int(data["replace_after_ms"]),
            since_ms=int(data["since_ms"]),
            version=int(data["version"]),
            epoch_ms=int(data["epoch_ms"]),
            limits={str(name): str(value) for name, value in data.get("limits", {}).items()},
        )
