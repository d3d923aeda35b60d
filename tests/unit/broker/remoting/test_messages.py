"""Messages of RocketMQ's producers as batches: what is kept, where delayed ones wait, and what is refused."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from broker.remoting.command import Command
from broker.remoting.messages import AT_ONCE, Sending, Staging, batch_of, record_of, sending_of
from dledger_wire.batches.batch import BatchView, check_batch
from dledger_wire.clock import SystemClock
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame import Frame, decode_frame
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.frames.timer import TIMER_OUT

KEY = "7F000001000012345678000000000001"
NOW_MS = 1_700_000_000_000
IDS = UniqueIds(SystemClock(), random.Random(1))


def request(properties: str, body: bytes = b"body", **more: str) -> Command:
    fields = {"a": "group", "b": "orders", "d": "4", "e": "3", "f": "0", "g": "1600000000000", "h": "7", "i": properties}
    return Command(310, fields | more, body)


def sending(given: Command) -> Sending:
    return asyncio.run(sending_of(given, "10.0.0.9:5000", IDS, compact=True))


def stored(given: Command, levels: int = 18) -> tuple[BatchView, list[Frame]]:
    """The batch as the leader takes it, checked as it checks those of its own clients."""
    sent = sending(given)
    batch = asyncio.run(batch_of(sent, Staging(levels, NOW_MS)))
    view = BatchView(memoryview(b"".join(record_of(sent, batch))))
    check_batch(view, 1 << 20)
    assert batch.sizes == view.sizes.tolist()
    return view, [decode_frame(view.data, int(position)) for position in view.positions]


def test_a_message_is_stored_as_it_was_sent() -> None:
    batch, (frame,) = stored(request(f"KEYS\x01a b\x02UNIQ_KEY\x01{KEY}\x02TAGS\x01paid\x02more\x01yes\x02WAIT\x01true\x02"))
    assert (batch.topic, batch.queue_id, batch.key_count, batch.is_unique) == ("orders", 3, 2, True)
    assert (frame.body, frame.flag, frame.born_timestamp, frame.born_host) == (b"body", 7, 1_600_000_000_000, "10.0.0.9:5000")
    assert list(frame.properties.items()) == [
        *(("UNIQ_KEY", KEY), ("TAGS", "paid"), ("KEYS", "a b"), ("more", "yes"), ("WAIT", "true")),
    ]


def test_names_of_the_long_header_mean_the_same() -> None:
    names = {"producerGroup": "group", "topic": "orders", "defaultTopicQueueNums": "4", "queueId": "3", "sysFlag": "0", "flag": "7"}
    given = Command(10, names | {"bornTimestamp": "1600000000000", "properties": f"UNIQ_KEY\x01{KEY}\x02"}, b"body")
    long = asyncio.run(sending_of(given, "10.0.0.9:5000", IDS, compact=False))
    assert long == sending(request(f"UNIQ_KEY\x01{KEY}\x02"))


def test_a_message_without_a_key_gets_one() -> None:
    _, (frame,) = stored(request("TAGS\x01paid\x02"))
    assert len(frame.properties["UNIQ_KEY"]) == 32


def test_keys_of_other_clients_are_taken_as_they_are() -> None:
    _, (frame,) = stored(request("UNIQ_KEY\x01short-and-lower\x02"))
    assert frame.properties["UNIQ_KEY"] == "short-and-lower"


@pytest.mark.parametrize(("level", "queue_id"), [("1", 0), ("18", 17), ("99", 17)])
def test_a_delayed_message_waits_in_the_queue_of_its_level(level: str, queue_id: int) -> None:
    batch, (frame,) = stored(request(f"UNIQ_KEY\x01{KEY}\x02DELAY\x01{level}\x02REAL_TOPIC\x01forged\x02"))
    assert (batch.topic, batch.queue_id) == ("SCHEDULE_TOPIC_XXXX", queue_id)
    assert (frame.properties["REAL_TOPIC"], frame.properties["REAL_QID"]) == ("orders", "3")


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ("TIMER_DELAY_SEC\x015\x02", NOW_MS + 5000),
        ("TIMER_DELAY_MS\x01700\x02", NOW_MS + 700),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 1}\x02", NOW_MS + 1),
    ],
)
def test_a_timed_message_says_when_it_is_due(properties: str, due_ms: int) -> None:
    batch, (frame,) = stored(request(f"UNIQ_KEY\x01{KEY}\x02{properties}"))
    assert batch.topic == "rmq_sys_wheel_timer"
    assert list(frame.properties.items())[:2] == [("UNIQ_KEY", KEY), (TIMER_OUT, str(due_ms))]


def test_a_time_that_is_over_delays_nothing() -> None:
    batch, _ = stored(request(f"UNIQ_KEY\x01{KEY}\x02TIMER_DELIVER_MS\x01{NOW_MS}\x02"))
    assert batch.topic == "orders"


def test_a_half_message_waits_for_its_transaction() -> None:
    given = request(f"UNIQ_KEY\x01{KEY}\x02TRAN_MSG\x01true\x02PGROUP\x01group\x02", f="4")
    batch, (frame,) = stored(given)
    assert sending(given).is_half
    assert (batch.topic, batch.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert [frame.properties[name] for name in ("PGROUP", "REAL_TOPIC", "REAL_QID")] == ["group", "orders", "3"]


def test_a_retry_is_not_recognised_by_its_key_and_dies_in_the_end() -> None:
    batch, _ = stored(request(f"UNIQ_KEY\x01{KEY}\x02", b="%RETRY%g", e="0", j="3", l="16"))
    assert (batch.topic, batch.is_unique) == ("%RETRY%g", False)
    dead, _ = stored(request(f"UNIQ_KEY\x01{KEY}\x02", b="%RETRY%g", e="0", j="16", l="16"))
    assert dead.topic == "%DLQ%g"


def part(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, 9, len(body)) + body + struct.pack(">h", len(properties)) + properties


def test_a_batch_keeps_each_message_and_lets_other_work_run() -> None:
    count = 3 * AT_ONCE
    body = b"".join(part(b"m%d" % number, b"UNIQ_KEY\x01%032d\x02TAGS\x01t%d\x02" % (number, number % 3)) for number in range(count))
    _, frames = stored(request("WAIT\x01true\x02", body, m="true"))
    assert [frame.body for frame in frames] == [b"m%d" % number for number in range(count)]
    assert {frame.flag for frame in frames} == {9}

    async def turns() -> int:
        counted, work = 0, asyncio.ensure_future(sending_of(request("", body, m="true"), "10.0.0.9:5000", IDS, compact=True))
        while not work.done():
            counted += 1
            await asyncio.sleep(0)
        return counted

    assert asyncio.run(turns()) >= 3


@pytest.mark.parametrize("cut", [1, 10, 21, 25])
def test_a_batch_that_is_cut_off_is_refused(cut: int) -> None:
    body = part(b"a", b"") + part(b"body", b"k\x01v\x02")
    with pytest.raises(InvalidArgumentError, match="message 1 of a batch"):
        sending(request("", body[:-cut], m="true"))


def test_a_batch_without_messages_and_one_of_two_delays_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a batch without messages"):
        sending(request("", b"", m="true"))
    with pytest.raises(InvalidArgumentError, match="delayed differently"):
        stored(request("", part(b"a", b"DELAY\x011\x02") + part(b"b", b""), m="true"))


@pytest.mark.parametrize(
    ("properties", "queue_id", "priority"),
    [
        ("_SYS_MSG_PRIORITY_\x012\x02", "3", 2),
        ("_SYS_MSG_PRIORITY_\x012\x02", "-1", 2),
        ("_SYS_MSG_PRIORITY_\x01-7\x02", "3", 0),
        ("", "3", None),
        ("", "-1", 0),
    ],
)
def test_a_priority_goes_before_the_queue_of_the_request(properties: str, queue_id: str, priority: int | None) -> None:
    assert sending(request(properties, e=queue_id)).priority == priority


def test_a_batch_has_one_priority() -> None:
    urgent, plain = part(b"a", b"_SYS_MSG_PRIORITY_\x011\x02"), part(b"b", b"")
    assert sending(request("", urgent + urgent, m="true")).priority == 1
    with pytest.raises(InvalidArgumentError, match="different priorities; expected one for all"):
        assert sending(request("", urgent + plain, m="true")).priority


@pytest.mark.parametrize("properties", ["DELAY\x01soon\x02", "TIMER_DELAY_SEC\x01-1\x02"])
def test_delays_that_cannot_be_are_refused(properties: str) -> None:
    with pytest.raises(InvalidArgumentError):
        stored(request(properties))
