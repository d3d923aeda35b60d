"""What clients send to a parking place is refused before it is stored unless it says where it belongs."""

from __future__ import annotations

import pytest

from dledger_client.message import Message
from dledger_client.producer.delayed_messages import staged_delayed
from dledger_client.producer.half_messages import half_of, staged_half
from dledger_wire.batches.batch import BatchView, iter_records
from dledger_wire.errors import CorruptBatchError, TopicNotFoundError
from dledger_wire.frames.frame_layout import decode_properties
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.append.staged_check import check_staged
from tests.unit.store.store_rig import batch_of

PLACE = {"REAL_TOPIC": "t", "REAL_QID": "3"}
HALF = {"TRAN_MSG": "true", "PGROUP": "billing"} | PLACE


def check(topic: str, *properties: dict[str, str]) -> None:
    """As a broker with one topic, t, does for a batch of messages with these properties."""
    for more in properties:
        (record,) = iter_records(batch_of(topic, 0, [b"x"], unique=["0" * 32], more=more))
        assert isinstance(record, BatchView)
        check_staged(record, lambda name: name == "t")


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
