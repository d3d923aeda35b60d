"""Operations for histories written by hand: times are milliseconds, everything a test does not name has a default."""

from __future__ import annotations

from typing import Any

from dledger_drill.history.records import Operation, OperationKind, Outcome

MS = 1_000_000
WALL_MS = 1_700_000_000_000  # the wall clock when the monotonic one stood at 0


def operation(
    kind: OperationKind, at: float, until: float | None, process: str, outcome: str = "ok", round: int = 1, **data: Any
) -> Operation:
    returned = None if until is None else int(until * MS)
    return Operation(process, kind, int(at * MS), returned, Outcome(outcome), round, data)


def send(value: str, at: float, until: float | None, offset: int = 0, **other: Any) -> Operation:
    outcome, round = other.pop("outcome", "ok"), other.pop("round", 1)
    data: dict[str, Any] = {"topic": "t", "key": None, "value": value, "idempotent": True} | other
    if outcome == "ok":
        data = {"group": "g0", "queue": 0, "offset": offset} | data
    return operation(OperationKind.SEND, at, until, value.partition("/")[0], outcome, round, **data)


def delayed(value: str, at: float, until: float, deliver_at: float, **other: Any) -> Operation:
    outcome = other.pop("outcome", "ok")
    data: dict[str, Any] = {"topic": "t", "key": None, "value": value, "idempotent": True, "deliver_at_ms": WALL_MS + deliver_at} | other
    return operation(OperationKind.DELAYED, at, until, value.partition("/")[0], outcome, **data)


def transaction(
    value: str, at: float, until: float | None, end: str = "commit", outcome: str = "ok", *, by: str = "client", prepared: bool = True
) -> Operation:
    data: dict[str, Any] = {"topic": "t", "value": value, "end": end, "by": by}
    data |= {"group": "g0", "queue": 0} if prepared else {}
    return operation(OperationKind.TRANSACTION, at, until, value.partition("/")[0], outcome, **data)


def deliver(value: str, at: float, until: float | None, offset: int, **other: Any) -> Operation:
    data: dict[str, Any] = {
        "topic": "t",
        "consumer_group": "c",
        "member": "m",
        "mode": "concurrent",
        "group": "g0",
        "queue": 0,
        "offset": offset,
        "key": None,
    }
    data |= {"value": value, "redelivered": False, "wall_ms": WALL_MS + at} | other
    return operation(OperationKind.DELIVER, at, until, data["member"], **data)


def read(values: list[str], at: float, until: float, start: int = 0, mode: str = "linearizable") -> Operation:
    data: dict[str, Any] = {
        "topic": "t",
        "group": "g0",
        "queue": 0,
        "mode": mode,
        "from_offset": start,
        "end_offset": start + len(values),
        "values": values,
    }
    return operation(OperationKind.READ, at, until, "reader", node="n0", **data)


def commit(offset: int, at: float, until: float | None, outcome: str = "ok") -> Operation:
    return operation(
        OperationKind.COMMIT_OFFSET, at, until, "o", outcome, consumer_group="c", topic="t", group="g0", queue=0, offset=offset
    )


def fetch(offset: int, at: float, until: float) -> Operation:
    return operation(OperationKind.FETCH_OFFSET, at, until, "o", consumer_group="c", topic="t", group="g0", queue=0, offset=offset)


def stored(values: list[str], keys: list[str | None] | None = None, first: int = 0, at: float = 1_000_000, queue: int = 0) -> Operation:
    data: dict[str, Any] = {
        "topic": "t",
        "group": "g0",
        "queue": queue,
        "first_offset": first,
        "values": values,
        "keys": keys or [None] * len(values),
    }
    return operation(OperationKind.STORED, at, at + 1, "audit", **data)


def spark(values: list[str], at: float, first: int = 0, job: str = "stream") -> Operation:
    return operation(OperationKind.SPARK, at, at + 1, "spark", job=job, topic="t", group="g0", queue=0, first_offset=first, values=values)


def admin(action: str, name: str, at: float, **data: Any) -> Operation:
    return operation(OperationKind.ADMIN, at, at + 1, "admin", action=action, name=name, result="", **data)


def fault(at: float, until: float | None, round: int = 1, *, group: str = "g0", outcome: str = "ok") -> Operation:
    return operation(OperationKind.FAULT, at, until, "drill", outcome, round, name="kill-leader", group=group, nodes=["n0"], note="")


def pause(at: float, until: float, *processes: str) -> Operation:
    return operation(OperationKind.PAUSE, at, until, "drill", processes=list(processes))


def leader(node: str, term: int, at: float) -> Operation:
    return operation(OperationKind.LEADER, at, at, "drill", group="g0", term=term, node=node)


def replica(node: str, at: float, last_index: int = 9, **checksums: int) -> Operation:
    return operation(OperationKind.REPLICA, at, at + 1, "verify", group="g0", node=node, last_index=last_index, checksums=checksums)


def resource(round: int, rss_bytes: int = 100 << 20, files: int = 50, threads: int = 20) -> Operation:
    data: dict[str, Any] = {"node": "n0", "rss_bytes": rss_bytes, "files": files, "threads": threads, "disk_bytes": 0}
    return operation(OperationKind.RESOURCE, round * 1000, round * 1000, "drill", "ok", round, **data)


def probe(number: int, at: float, until: float | None, outcome: str = "ok", round: int = 1) -> Operation:
    value = f"probe-g0/{number}"
    return send(value, at, until, number, topic="probe", outcome=outcome, round=round)
