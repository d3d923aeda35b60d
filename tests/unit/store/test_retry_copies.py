"""Copies of messages that are sent back."""

from __future__ import annotations

from dataclasses import replace

from dledger_wire.frames.frame import Frame
from store.append.retry_copies import DEAD_AT_ONCE, RETRY_TOPIC, RetryRule, origin_of, sent_back


def test_where_a_message_came_from_is_not_what_its_producer_wrote() -> None:
    rule = RetryRule("billing", DEAD_AT_ONCE, 16, 1)
    forged = Frame(0, 0, 0, b"x", "orders", {RETRY_TOPIC: "payroll"})
    assert origin_of(sent_back(forged, rule)) == "orders"
    again = replace(forged, topic="%RETRY%billing")
    assert origin_of(sent_back(again, rule)) == "payroll"
