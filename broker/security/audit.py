"""The audit log of a node or a name server: administrative actions, and refusals.

Owns what a record says, and how many are written one by one: of ten seconds, further refusals of one host and further changes of one user
that is no administrator are summed in one record each.  Text from outside is cut and, as JSON in ASCII, escaped.  Where records go is a
sink's affair (``broker/process/audit_file.py``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from dledger_wire.addresses import host_of
from dledger_wire.clock import Clock
from dledger_wire.errors import AuthenticationFailedError
from dledger_wire.security.principal import ANONYMOUS, Kind, Principal
from store.commands.security import Action, Resource

Record: TypeAlias = dict[str, Any]

WINDOW_MS = 10_000
OF_ONE_SOURCE = 5  # refusals that are written one by one, in one window: of a host under one name
OF_ONE_HOST = 20  # under all names: a host that tries many must neither hide others nor push older records out of the files
OF_ALL_SOURCES = 200
OF_ONE_USER = 20  # changes that are written one by one, in one window: of a user that does not administer the cluster
MAX_SOURCES = 1_000
EVERYBODY_ELSE = "*"
MAX_TEXT = 256
MAX_ITEMS = 50  # of a list, and fields of an object
MAX_DEPTH = 4

_logger = logging.getLogger(__name__)


class AuditSink(Protocol):
    """Where records go."""

    def write(self, record: Record, *, trusted: bool = False) -> None:
        """Take a record; never waits, never raises.  One that is not ``trusted`` never takes the place of one that is."""
        ...

    async def newest(self, count: int, after: int, wanted: Callable[[Record], bool]) -> list[Record]:
        """The newest ``count`` of the records that are ``wanted``, oldest first; only those with a number greater than ``after``."""
        ...

    async def close(self) -> None: ...


class NoSink:
    """Keeps nothing."""

    def write(self, record: Record, *, trusted: bool = False) -> None: ...

    async def newest(self, count: int, after: int, wanted: Callable[[Record], bool]) -> list[Record]:
        return []

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Whose records these are; ``group`` is empty for a name server."""

    cluster: str
    group: str
    node: str


@dataclass(slots=True)
class _Source:
    written: int = 0
    left_out: int = 0


@dataclass(slots=True)
class _Changes:
    """Of one user in one window; ``last`` is the newest record that was left out."""

    written: int = 0
    left_out: int = 0
    last: Record = field(default_factory=dict)


class Audit:
    """Of one process.  ``position`` gives the term, and the index of the last entry that was applied."""

    def __init__(self, sink: AuditSink, clock: Clock, place: Place) -> None:
        self.sink = sink
        self.place = place
        self.position: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.refused: Counter[str] = Counter()  # since the start, by reason
        self.administers: Callable[[Principal], bool] = lambda principal: principal.is_cluster
        self._clock = clock
        self._window_ms = clock.monotonic_ms()
        self._sources: dict[tuple[str, str], _Source] = {}
        self._of_host: Counter[str] = Counter()  # written in this window
        self._written = 0
        self._changes: dict[str, _Changes] = {}  # by user, or by host of callers without a name

    # What happened

    def change(
        self,
        principal: Principal,
        address: str,
        what: tuple[str, str, str],
        outcome: str,
        *,
        before: object = None,
        after: object = None,
    ) -> None:
        """An administrative action, (action, resource, name), that was carried out or failed."""
        record = self._record(principal, address, what, allowed=True, outcome=outcome)
        if before is not None:
            record["before"] = shown(before)
        if after is not None:
            record["after"] = shown(after)
        if self.administers(principal):
            self.sink.write(record, trusted=True)
        elif self._has_room_for_change(principal.name or host_of(address), record):
            self.sink.write(record)

    def _has_room_for_change(self, principal: str, record: Record) -> bool:
        self._begin_window()
        if principal not in self._changes and len(self._changes) >= MAX_SOURCES:
            principal = EVERYBODY_ELSE
        changes = self._changes.setdefault(principal, _Changes())
        if changes.written < OF_ONE_USER:
            changes.written += 1
            return True
        changes.left_out += 1
        changes.last = record
        return False

    def denied(self, principal: Principal, address: str, action: Action, resource: Resource, name: str) -> None:
        """A right that was missing."""
        what = (action.value, resource.value, name)
        self._refusal("denied", principal, address, what, "PERMISSION_DENIED", f"{principal}: {action} {resource} {name}")

    def not_admitted(self, address: str, error: AuthenticationFailedError) -> None:
        """A caller that was not admitted."""
        reason = str(error.details.get("reason", "wrong_credentials"))
        principal = Principal(Kind.USER, str(error.details["user"])) if error.details.get("user") else ANONYMOUS
        self._refusal(reason, principal, address, ("connect", "cluster", ""), error.code, error.message)

    def _refusal(self, reason: str, principal: Principal, address: str, what: tuple[str, str, str], outcome: str, text: str) -> None:
        self.refused[reason] += 1
        if not self._has_room(address, principal):
            return
        _logger.warning("refused %s: %s", cut(address), cut(text), extra={"event": "refused", "reason": reason})
        record = self._record(principal, address, what, allowed=False, outcome=outcome)
        record["reason"] = reason
        record["text"] = cut(text)
        self.sink.write(record)

    def _has_room(self, address: str, principal: Principal) -> bool:
        self._begin_window()
        host = host_of(address)
        key = (host, principal.name)
        if self._of_host[host] >= OF_ONE_HOST:
            key = (host, EVERYBODY_ELSE)
        if key not in self._sources and len(self._sources) >= MAX_SOURCES:
            key = (EVERYBODY_ELSE, EVERYBODY_ELSE)
        source = self._sources.setdefault(key, _Source())
        if source.written >= OF_ONE_SOURCE or self._of_host[host] >= OF_ONE_HOST or self._written >= OF_ALL_SOURCES:
            source.left_out += 1
            return False
        source.written += 1
        self._of_host[host] += 1
        self._written += 1
        return True

    def _begin_window(self) -> None:
        if self._clock.monotonic_ms() - self._window_ms >= WINDOW_MS:
            self.sum_up()

    def sum_up(self) -> None:
        """Write how many refusals and changes were not written one by one, and begin the next window."""
        for changes in self._changes.values():
            if changes.left_out > 1:
                self.sink.write({**changes.last, "count": changes.left_out})
            elif changes.left_out:
                self.sink.write(changes.last)
        self._changes.clear()
        silent = {key: source.left_out for key, source in self._sources.items() if source.left_out}
        self._window_ms, self._written = self._clock.monotonic_ms(), 0
        self._sources.clear()
        self._of_host.clear()
        named = dict(sorted(silent.items(), key=lambda each: -each[1])[:OF_ALL_SOURCES])
        rest = sum(silent.values()) - sum(named.values())
        if rest:
            named[(EVERYBODY_ELSE, EVERYBODY_ELSE)] = named.get((EVERYBODY_ELSE, EVERYBODY_ELSE), 0) + rest
        for (host, user), count in named.items():
            record = self._record(Principal(Kind.USER, user), host, ("refused again", "cluster", ""), allowed=False, outcome="REFUSED")
            record["count"] = count
            self.sink.write(record)

    def _record(self, principal: Principal, address: str, what: tuple[str, str, str], *, allowed: bool, outcome: str) -> Record:
        term, index = self.position()
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        action, resource, name = what
        return {
            "at": at,
            "user": cut(principal.name if principal.kind is Kind.USER else principal.uri if principal.is_cluster else ""),
            "address": cut(address),
            "action": cut(action),
            "resource": resource,
            "name": cut(name),
            "allowed": allowed,
            "outcome": outcome,
            "cluster": self.place.cluster,
            "group": self.place.group,
            "node": self.place.node,
            "term": term,
            "index": index,
        }

    async def close(self) -> None:
        """Everything is written when this returns."""
        self.sum_up()
        await self.sink.close()


def cut(text: str) -> str:
    """At most ``MAX_TEXT`` characters of it."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def shown(value: object, depth: int = 0) -> Any:
    """A value for JSON, cut where it is long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH:
        return cut(str(value))
    if isinstance(value, Mapping):
        return {cut(str(key)): shown(each, depth + 1) for key, each in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple):
        more = [f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else []
        return [shown(each, depth + 1) for each in value[:MAX_ITEMS]] + more
    return cut(str(value))
