"""What clients send to a parking place is refused before it is stored unless it says where it belongs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dledger_client.message import Message
from dledger_client.producer.half_messages import half_of, staged_delayed, staged_half
from dledger_wire.batches.batch import BatchView, encode_batch, iter_records
from dledger_wire.errors import CorruptBatchError, InvalidArgumentError, TopicNotFoundError
from dledger_wire.frames.frame import encode_frame
from dledger_wire.frames.frame_layout import MAX_PROPERTIES_BYTES, decode_properties
from dledger_wire.java_hash import key_hash
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.append.redelivery import batches_of, moved, route
from store.append.staged_check import check_staged
from store.commands.topics import DeleteTopic, UpdateTopic
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import LOG, StoreRig, batch_of, frames_of, run

PLACE = {"REAL_TOPIC": "t", "REAL_QID": "3"}
HALF = {"TRAN_MSG": "true", "PGROUP": "billing"} | PLACE


def check(topic: str, *properties: dict[str, str]) -> None:
    """As a broker with one topic, t, does for a batch of messages with these properties."""
    for more in properties:
        (record,) = iter_records(batch_of(topic, 0, [b"x"], unique=["0" * 32], more=more))
        assert isinstance(record, BatchView)
        check_staged(record, {"t": 6}.get)


def test_what_our_producers_send_is_taken() -> None:
    message = Message("t", b"x", tags="a", keys="k", properties={"REAL": "x", "n": "\u00e4"}, delay_level=3)
    delayed, _ = staged_delayed(message, 3)
    timed, _ = staged_delayed(Message("t", b"x", deliver_at_ms=1_700_000_000_000), 0)
    half = staged_half(half_of(Message("t", b"x", properties={"n": "1"}), "g" * 120), 999_999_999)
    check(SCHEDULE_TOPIC, decode_properties(delayed.extras), PLACE)
    check(TIMER_TOPIC, decode_properties(timed.extras))
    check(HALF_TOPIC, decode_properties(half.extras), HALF)


def test_the_place_may_stand_in_front_of_other_properties() -> None:
    check(SCHEDULE_TOPIC, PLACE | {"more": "x" * 2000}, {"REAL_QID": "0", "REAL_TOPIC": "t"})
    check(HALF_TOPIC, HALF | {"more": "x"}, {"PGROUP": "g", "a": "b"} | HALF)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "t"},
        {"REAL_QID": "3"},
        {"REAL_TOPIC": "", "REAL_QID": "3"},
        {"REAL_TOPIC": "../../etc", "REAL_QID": "3"},
        {"REAL_TOPIC": "t" * 128, "REAL_QID": "3"},
        {"REAL_TOPIC": "t", "REAL_QID": "-1"},
        {"REAL_TOPIC": "t", "REAL_QID": "1" * 10},
        {"REAL_TOPIC": "t", "REAL_QID": "\u0663"},
        {"NOT_REAL_TOPIC": "t", "REAL_QID": "3"},
        {"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "3"},
        {"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "3"},
        {"REAL_TOPIC": TIMER_TOPIC, "REAL_QID": "3"},
    ],
)
@pytest.mark.parametrize("parking", [SCHEDULE_TOPIC, HALF_TOPIC])
def test_what_does_not_say_where_it_belongs_is_refused(parking: str, properties: dict[str, str]) -> None:
    of_transaction = {"TRAN_MSG": "true", "PGROUP": "g"} if parking == HALF_TOPIC else {}
    with pytest.raises(CorruptBatchError, match=r"message 0 cannot wait for its (delivery|transaction)") as refused:
        check(parking, of_transaction | properties)
    assert refused.value.detail_int("first_bad") == 0


@pytest.mark.parametrize("properties", [PLACE, {"TRAN_MSG": "false", "PGROUP": "g"} | PLACE, {"TRAN_MSG": "true", "PGROUP": "a b"} | PLACE])
def test_a_half_message_that_nobody_can_end_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(CorruptBatchError, match="message 0 cannot wait for its transaction"):
        check(HALF_TOPIC, properties)


def test_a_topic_that_is_not_there_and_the_first_bad_message_are_told() -> None:
    with pytest.raises(TopicNotFoundError, match="message 0 cannot wait for its delivery: topic 'u' does not exist"):
        check(SCHEDULE_TOPIC, {"REAL_TOPIC": "u", "REAL_QID": "0"})


ID, DUE = b"UNIQ_KEY\x01" + b"0" * 32 + b"\x02", b"TIMER_OUT_MS\x011700000100000\x02"
TO_T = b"REAL_TOPIC\x01t\x02REAL_QID\x010\x02"


def raw_batch(topic: str, properties: bytes, queue_id: int = 0) -> bytes:
    """A batch of one message with these bytes as its properties, whatever they are."""
    frame = bytearray(encode_frame(frames_of(topic, queue_id, [b"x"])[0]))
    frame[-2:] = len(properties).to_bytes(2, "big") + properties
    frame[:4] = len(frame).to_bytes(4, "big")
    unique = decode_properties(properties).get("UNIQ_KEY")
    columns = np.array([len(frame)], np.uint32), np.zeros(1, np.int32), np.array([key_hash(topic, unique) if unique else 0], np.int32)
    return encode_batch(topic, queue_id, bytes(frame), *columns, key_owners=np.empty(0, np.uint32), key_hashes=np.empty(0, np.int32))


async def opened() -> StoreRig:
    rig = await StoreRig.open(CrashDisk(), log=replace(LOG, segment_bytes=1 << 20))
    for name in ("t", SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC):
        await rig.topic(name)
    return rig


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC])
@pytest.mark.parametrize(
    "properties",
    [
        ID + DUE + b"a\x01b\x01c\x02" + TO_T,
        ID + DUE + b"\x01b\x02" + TO_T,
        ID + DUE + b"no-separator\x02" + TO_T,
        ID + DUE + b"a\x01\xff\x02" + TO_T,
        ID + DUE + b"a\x01" + b"\xff" * 20_000 + b"\x02" + TO_T,
        ID + DUE + b"a\x01" + b"b" * (MAX_PROPERTIES_BYTES - len(ID + DUE + TO_T) - 2) + b"\x02" + TO_T[:-1],
    ],
    ids=["two separators", "no name", "no separator", "not UTF-8", "longer as UTF-8", "longer with its end"],
)
def test_what_could_not_be_stored_again_is_refused(topic: str, properties: bytes) -> None:
    """It would hold up every other message of its level, or all with a delivery time."""

    async def scenario() -> None:
        rig = await opened()
        of_half = b"TRAN_MSG\x01true\x02PGROUP\x01g\x02" if topic == HALF_TOPIC and len(properties) < 30_000 else b""
        (outcome,) = await rig.send(raw_batch(topic, properties.replace(DUE, DUE + of_half)))
        assert isinstance(outcome.error, CorruptBatchError)
        assert outcome.error.detail_int("first_bad") == 0
        await rig.close()

    run(scenario)


@pytest.mark.parametrize(
    "properties",
    [
        ID.replace(b"0000\x02", b"\xc3\xa4\xc3\xa4\x02") + DUE + TO_T,
        ID.replace(b"0000\x02", b"\xff\xff\xff\xff\x02") + DUE + TO_T,
        ID.replace(b"UNIQ_KEY\x01", b"UNIQ_KEY0") + DUE + TO_T,
        ID + DUE + b"TIMER_OUT_MS\x01soon\x02" + TO_T,
        ID + DUE + b"UNIQ_KEY\x01short\x02" + TO_T,
    ],
    ids=["an id beyond ASCII", "an id that is not UTF-8", "no id", "two times", "two ids"],
)
def test_a_delivery_time_that_would_not_be_found_again_is_refused(properties: bytes) -> None:
    """Stored again it would have been applied by no replica."""

    async def scenario() -> None:
        rig = await opened()
        (outcome,) = await rig.send(raw_batch(TIMER_TOPIC, properties))
        assert isinstance(outcome.error, CorruptBatchError)
        await rig.close()

    run(scenario)


def test_a_message_with_a_delivery_time_is_stored_again_and_one_without_is_not() -> None:
    async def scenario() -> None:
        rig = await opened()
        (outcome,) = await rig.send(raw_batch(TIMER_TOPIC, ID + DUE + b"n\x01\xc3\xa4\x02" + TO_T[:-1]))
        assert outcome.error is None
        (found,) = await rig.read_all((TIMER_TOPIC, 0))
        prepared = rig.store.prepare(batches_of([moved(found, 1_700_000_100_000)]), for_service=True)
        rig.append(prepared)
        await rig.commit()
        units = await rig.units((TIMER_TOPIC, 0))
        assert units["tag_hash"].tolist() == [1_700_000_100_000] * 2
        (refused,) = rig.store.prepare(
            batches_of([replace(found, properties=found.properties | {"UNIQ_KEY": "x"})]), for_service=True
        ).outcomes
        assert isinstance(refused.error, InvalidArgumentError)
        await rig.close()

    run(scenario)


def test_a_message_that_goes_on_waiting_is_not_one_of_a_topic_made_anew_meanwhile() -> None:
    """A topic that forbids writing takes nothing that waited; the copy may be stored behind the deletion of that topic."""

    async def scenario() -> None:
        rig = await opened()
        (outcome,) = await rig.send(raw_batch(TIMER_TOPIC, ID + DUE + TO_T))
        assert outcome.error is None
        await rig.command(UpdateTopic(name="t", perm=4))
        routed = route(rig.store.topics, await rig.read_all((TIMER_TOPIC, 0)))
        assert (len(routed.restaged), routed.messages) == (1, [])
        await rig.command(DeleteTopic(name="t"))
        await rig.topic("t")
        rig.append(rig.store.prepare(batches_of(routed.restaged), for_service=True))
        await rig.commit()
        assert route(rig.store.topics, await rig.read_all((TIMER_TOPIC, 0))).dropped == [0, 1]
        await rig.close()

    run(scenario)
