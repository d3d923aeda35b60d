"""Quotas as replicated state: which rule counts for a name.  ``broker/quotas`` enforces them."""

from __future__ import annotations

from collections.abc import Callable

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.formats import SECTION
from store.commands.command import JsonObject
from store.commands.quotas import EVERY, MAX_QUOTAS, CopyQuotas, DeleteQuota, Limit, PutQuota, Quota, Subject
from store.state.state_machine import CommandContext, CommandHandlers

FORMAT = SECTION.current


class QuotaState:
    """Implements ``StateMachineSection``."""

    file_name = "quotas.json"

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], Quota] = {}
        self.was_set = False  # whether there ever was a rule
        self.changed: Callable[[], object] = lambda: None  # called after every change, a snapshot included

    def rules(self) -> list[Quota]:
        """All rules in order."""
        return [self._rules[key] for key in sorted(self._rules)]

    def rule(self, subject: str, name: str) -> Quota | None:
        """The rule of exactly this name."""
        return self._rules.get((subject, name))

    def rule_for(self, subject: Subject, name: str) -> Quota | None:
        """The rule that counts for ``name``: its own, else the one for each."""
        return self._rules.get((subject, name)) or self._rules.get((subject, EVERY))

    def limit_for(self, subject: Subject, name: str, limit: Limit) -> int | None:
        """What the rule that counts for ``name`` allows; None: it does not limit that."""
        rule = self.rule_for(subject, name)
        return rule.limits.get(limit) if rule is not None else None

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(PutQuota, self._put)
        handlers.on(DeleteQuota, self._delete)
        handlers.on(CopyQuotas, self._copy)

    def _put(self, command: PutQuota, _context: CommandContext) -> bool:
        quota = command.quota
        key = quota.subject.value, quota.name
        existed = key in self._rules
        if not existed and len(self._rules) >= MAX_QUOTAS:
            raise InvalidArgumentError(f"{MAX_QUOTAS} quotas; expected no more")
        self._rules[key], self.was_set = quota, True
        self.changed()
        return existed

    def _delete(self, command: DeleteQuota, _context: CommandContext) -> bool:
        existed = self._rules.pop((command.subject, command.name), None) is not None
        self.changed()
        return existed

    def _copy(self, command: CopyQuotas, _context: CommandContext) -> bool:
        if self.was_set or not command.quotas:
            return False
        self._rules = {(quota.subject.value, quota.name): quota for quota in command.quotas}
        self.was_set = True
        self.changed()
        return True

    # Snapshot

    def dump(self) -> JsonObject:
        found: JsonObject = {"format": FORMAT, "quotas": [quota.encode() for quota in self.rules()]}
        return found | {"was_set": True} if self.was_set and not self._rules else found

    def load(self, data: JsonObject) -> None:
        found = (Quota.decode(tuple(row)) for row in data["quotas"])
        self._rules = {(quota.subject.value, quota.name): quota for quota in found}
        self.was_set = bool(self._rules) or bool(data.get("was_set"))
        self.changed()
