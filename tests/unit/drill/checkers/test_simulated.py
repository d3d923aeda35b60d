"""Random histories of a correct queue have no violation; one broken promise anywhere in them is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dledger_drill.checkers.check import check_all
from dledger_drill.checkers.model import ViolationKind as K
from dledger_drill.history.records import Operation, OperationKind, Outcome
from tests.unit.drill.checkers.operations import MS
from tests.unit.drill.checkers.simulated import simulate

History = list[Operation]
Mutation = Callable[[History, Random], None]
SEEDS = st.integers(0, 1 << 32)
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def kinds(history: History) -> set[K]:
    return {violation.kind for violation in check_all(sorted(history, key=lambda operation: operation.invoked_ns)).violations}


@given(SEEDS)
@settings(QUICK, max_examples=150)
def test_a_correct_queue_breaks_no_promise(seed: int) -> None:
    assert check_all(simulate(seed)).violations == []


def place(history: History, random: Random, wanted: Callable[[Operation], bool]) -> int:
    """Where one of the wanted operations stands; the history does not fit when there is none."""
    found = [number for number, operation in enumerate(history) if wanted(operation)]
    assume(found)
    return random.choice(found)


def change(history: History, number: int, **data: Any) -> None:
    history[number] = replace(history[number], data=history[number].data | data)


def is_acknowledged(operation: Operation) -> bool:
    return operation.kind is OperationKind.SEND and operation.outcome is Outcome.OK and operation.data["topic"] == "t"


def is_identified(operation: Operation) -> bool:
    return is_acknowledged(operation) and operation.data["idempotent"]


def is_stored(operation: Operation) -> bool:
    return operation.kind is OperationKind.STORED


def where_stored(history: History, value: str) -> tuple[int, int]:
    """Audit and place in it."""
    return next(
        (number, operation.data["values"].index(value))
        for number, operation in enumerate(history)
        if is_stored(operation) and value in operation.data["values"]
    )


def replace_stored(history: History, value: str, by: str) -> None:
    number, at = where_stored(history, value)
    values = list(history[number].data["values"])
    values[at] = by
    change(history, number, values=values)


def append_stored(history: History, random: Random, value: str, key: str | None) -> None:
    """Behind the last message of some queue."""
    number = place(history, random, is_stored)
    group, queue = history[number].data["group"], history[number].data["queue"]
    last = max(
        (
            other
            for other, operation in enumerate(history)
            if is_stored(operation) and (operation.data["group"], operation.data["queue"]) == (group, queue)
        ),
        key=lambda other: int(history[other].data["first_offset"]),
    )
    data = history[last].data
    change(history, last, values=[*data["values"], value], keys=[*data["keys"], key])


def lose(history: History, random: Random) -> None:
    value = history[place(history, random, is_identified)].data["value"]
    number, at = where_stored(history, value)
    data = history[number].data
    behind = dict(data) | {name: data[name][at + 1 :] for name in ("values", "keys")} | {"first_offset": data["first_offset"] + at + 1}
    change(history, number, values=data["values"][:at], keys=data["keys"][:at])
    history.append(replace(history[number], data=behind))


def store_twice(history: History, random: Random) -> None:
    sent = history[place(history, random, is_identified)].data
    append_stored(history, random, sent["value"], sent["key"])


def change_stored(history: History, random: Random) -> None:
    replace_stored(history, history[place(history, random, is_identified)].data["value"], "nobody/1")


def change_key(history: History, random: Random) -> None:
    number = place(history, random, lambda operation: is_stored(operation) and operation.data["values"])
    keys = list(history[number].data["keys"])
    keys[random.randrange(len(keys))] = "other"
    change(history, number, keys=keys)


def change_delivered(history: History, random: Random) -> None:
    number = place(history, random, lambda operation: operation.kind is OperationKind.DELIVER)
    other = history[place(history, random, is_identified)].data["value"]
    assume(history[number].data["value"] != other and not history[number].data["redelivered"])
    change(history, number, value=other)


def store_what_failed(history: History, random: Random) -> None:
    sent = history[place(history, random, lambda each: each.kind is OperationKind.SEND and each.outcome is Outcome.FAILED)].data
    append_stored(history, random, sent["value"], sent["key"])


def swap_within_key(history: History, random: Random) -> None:
    """Two messages of a producer and key change places, in acknowledgements and in the log."""
    one = place(history, random, is_identified)
    first = history[one]
    other = place(
        history,
        random,
        lambda each: is_identified(each) and each.process == first.process and each.data["key"] == first.data["key"] and each is not first,
    )
    a, b = first.data, history[other].data
    replace_stored(history, a["value"], "swapped")
    replace_stored(history, b["value"], a["value"])
    replace_stored(history, "swapped", b["value"])
    change(history, one, offset=b["offset"])
    change(history, other, offset=a["offset"])


def undelivered(history: History, random: Random) -> None:
    sent = history[place(history, random, is_identified)].data["value"]
    group = random.choice(("concurrent", "orderly", "pull"))
    history[:] = [
        each
        for each in history
        if each.kind is not OperationKind.DELIVER or each.data["value"] != sent or each.data["consumer_group"] != group
    ]


def deliver_out_of_order(history: History, random: Random) -> None:
    """The first delivery of a message moves behind the first one of the next message."""
    number = place(history, random, lambda each: each.kind is OperationKind.DELIVER and each.data["mode"] == "pull")
    data = history[number].data

    def first_of(offset: int) -> list[int]:
        fits = [at for at, each in enumerate(history) if each.kind is OperationKind.DELIVER and each.data["mode"] == "pull"]
        same = [at for at in fits if (history[at].data["group"], history[at].data["queue"]) == (data["group"], data["queue"])]
        return [at for at in same if history[at].data["offset"] == offset]

    these, following = first_of(data["offset"]), first_of(data["offset"] + 1)
    assume(len(these) == 1 and following)
    later = history[following[0]].invoked_ns + 1
    history[number] = replace(history[number], invoked_ns=later, returned_ns=later)


def drop_committed(history: History, random: Random) -> None:
    value = history[place(history, random, lambda each: is_ended(each, "commit", Outcome.OK))].data["value"]
    replace_stored(history, value, "nobody/1")


def store_rolled_back(history: History, random: Random) -> None:
    outcome = random.choice((Outcome.OK, Outcome.UNKNOWN))
    value = history[place(history, random, lambda each: is_ended(each, "rollback", outcome))].data["value"]
    append_stored(history, random, value, None)


def commit_twice(history: History, random: Random) -> None:
    append_stored(history, random, history[place(history, random, lambda each: is_ended(each, "commit", Outcome.OK))].data["value"], None)


def is_ended(operation: Operation, end: str, outcome: Outcome) -> bool:
    return operation.kind is OperationKind.TRANSACTION and operation.data["end"] == end and operation.outcome is outcome


def is_delayed(operation: Operation) -> bool:
    return operation.kind is OperationKind.DELAYED and operation.outcome is Outcome.OK


def deliver_early(history: History, random: Random) -> None:
    number = place(history, random, is_delayed)
    value = history[number].data["value"]
    last = max(each.data["wall_ms"] for each in history if each.kind is OperationKind.DELIVER and each.data["value"] == value)
    change(history, number, deliver_at_ms=last + 60)


def deliver_late(history: History, random: Random) -> None:
    """A message that was due, and acknowledged, a minute before anybody got it: longer than what any outage explains."""
    number = place(history, random, is_delayed)
    value, shift = history[number].data["value"], 60_000
    for at, each in enumerate(history):
        if each.data.get("value") == value and each.kind is OperationKind.DELIVER:
            history[at] = replace(each, invoked_ns=each.invoked_ns + shift * MS, returned_ns=(each.returned_ns or 0) + shift * MS)
            change(history, at, wall_ms=each.data["wall_ms"] + shift)
    history[:] = [each for each in history if each.kind is not OperationKind.FAULT]


def overlap_owners(history: History, random: Random) -> None:
    stood_still = {process for each in history if each.kind is OperationKind.PAUSE for process in each.data["processes"]}
    number = place(history, random, lambda each: is_orderly(each) and each.process not in stood_still)
    call = history[number]
    same = [
        each
        for each in history
        if is_orderly(each) and (each.data["group"], each.data["queue"]) == (call.data["group"], call.data["queue"])
    ]
    following = [each for each in same if each.invoked_ns > call.invoked_ns and each.process not in stood_still]
    assume(following)
    history[number] = replace(call, returned_ns=following[0].invoked_ns + 1)


def is_orderly(operation: Operation) -> bool:
    return operation.kind is OperationKind.DELIVER and operation.data["mode"] == "orderly"


def cut_read(history: History, random: Random) -> None:
    """A linearizable read that misses the last thing acknowledged before it."""
    number = place(
        history, random, lambda each: each.kind is OperationKind.READ and each.data["mode"] == "linearizable" and each.data["values"]
    )
    read = history[number]
    acknowledged = [
        each.data["offset"]
        for each in history
        if is_acknowledged(each)
        and (each.returned_ns or 0) < read.invoked_ns
        and (each.data["group"], each.data["queue"]) == (read.data["group"], read.data["queue"])
    ]
    assume(acknowledged and max(acknowledged) >= read.data["from_offset"])
    values = read.data["values"][: max(acknowledged) - read.data["from_offset"]]
    change(history, number, values=values, end_offset=read.data["from_offset"] + len(values))


def change_read(history: History, random: Random) -> None:
    mode = random.choice(("linearizable", "follower"))
    number = place(history, random, lambda each: each.kind is OperationKind.READ and each.data["mode"] == mode and each.data["values"])
    values = list(history[number].data["values"])
    values[random.randrange(len(values))] = "nobody/1"
    change(history, number, values=values)


def offset_back(history: History, random: Random) -> None:
    number = place(history, random, lambda each: each.kind is OperationKind.FETCH_OFFSET)
    fetched = history[number]
    same = [each for each in history if each.kind is OperationKind.COMMIT_OFFSET and each.outcome is Outcome.OK]
    before = [
        each.data["offset"]
        for each in same
        if (each.returned_ns or 0) < fetched.invoked_ns
        and (each.data["group"], each.data["queue"]) == (fetched.data["group"], fetched.data["queue"])
    ]
    assume(before and max(before) > 0)
    change(history, number, offset=max(before) - 1)


def invent_offset(history: History, random: Random) -> None:
    change(history, place(history, random, lambda each: each.kind is OperationKind.FETCH_OFFSET), offset=1_000_000)


def drop_of_stream(history: History, random: Random) -> None:
    number = place(history, random, lambda each: is_stream(each) and len(each.data["values"]) > 2)
    data = history[number].data
    behind = dict(data) | {"values": data["values"][2:], "first_offset": data["first_offset"] + 2}
    change(history, number, values=data["values"][:1])
    history.append(replace(history[number], data=behind))


def stream_twice(history: History, random: Random) -> None:
    history.append(history[place(history, random, lambda each: is_stream(each) and each.data["values"])])


def is_stream(operation: Operation) -> bool:
    return operation.kind is OperationKind.SPARK and operation.data["job"] == "stream"


def other_checksum(history: History, random: Random) -> None:
    number = place(history, random, lambda each: each.kind is OperationKind.REPLICA)
    change(history, number, checksums={"0": 7, "4194304": 9})


def second_leader(history: History, random: Random) -> None:
    seen = history[place(history, random, lambda each: each.kind is OperationKind.LEADER)]
    history.append(replace(seen, data=seen.data | {"node": "n9"}))


def leak(history: History, random: Random) -> None:
    what, step = random.choice((("rss_bytes", 12 << 20), ("files", 5), ("threads", 3)))
    for number, each in enumerate(history):
        if each.kind is OperationKind.RESOURCE and each.data["node"] == "n1":
            change(history, number, **{what: each.data[what] + each.round * step})


def never_acknowledged(history: History, random: Random) -> None:
    last = max(number for number, each in enumerate(history) if each.process == "probe-g0")
    probe = replace(history[last], outcome=Outcome.UNKNOWN)
    later = probe.invoked_ns + 70_000 * MS
    history[last] = probe
    history.append(replace(probe, invoked_ns=later, returned_ns=later, data=probe.data | {"value": "probe-g0/later"}))


MUTATIONS: list[tuple[Mutation, K]] = [
    (lose, K.LOST),
    (undelivered, K.LOST),
    (drop_of_stream, K.LOST),
    (store_twice, K.DOUBLED),
    (stream_twice, K.DOUBLED),
    (change_stored, K.CHANGED),
    (change_key, K.CHANGED),
    (change_delivered, K.CHANGED),
    (change_read, K.CHANGED),
    (store_what_failed, K.CHANGED),
    (invent_offset, K.CHANGED),
    (swap_within_key, K.REORDERED),
    (deliver_out_of_order, K.REORDERED),
    (drop_committed, K.TRANSACTION),
    (store_rolled_back, K.TRANSACTION),
    (commit_twice, K.TRANSACTION),
    (deliver_early, K.DELAY_EARLY),
    (deliver_late, K.DELAY_LATE),
    (overlap_owners, K.ORDERLY_OVERLAP),
    (cut_read, K.STALE_READ),
    (offset_back, K.OFFSET_BACK),
    (other_checksum, K.REPLICAS_DIFFER),
    (second_leader, K.TWO_LEADERS),
    (leak, K.LEAK),
    (never_acknowledged, K.NOT_RECOVERED),
]


def test_every_kind_is_planted() -> None:
    assert {kind for _, kind in MUTATIONS} == set(K)


@pytest.mark.parametrize(("mutation", "kind"), MUTATIONS, ids=lambda value: getattr(value, "__name__", ""))
@given(seed=SEEDS)
@settings(QUICK, max_examples=25)
def test_one_broken_promise_is_found(mutation: Mutation, kind: K, seed: int) -> None:
    history = simulate(seed)
    mutation(history, Random(seed))
    assert kind in kinds(history)
