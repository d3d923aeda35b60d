"""docs/reference/semantics against the tests: every row is shown by a test that names it, and no test names a row that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from broker.config.cluster_file import StoreConfig
from dledger_client.aio import Producer, TransactionProducer
from dledger_client.consumer.settings import UPSTREAM_NAMES as PUSH_NAMES
from dledger_client.producer.settings import CHECK_NAMES, UPSTREAM_NAMES, CheckOptions, ProducerOptions
from dledger_wire.errors import InvalidArgumentError, InvalidNameError
from dledger_wire.status import SendStatus

ROOT = Path(__file__).resolve().parents[2]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference" / "semantics").glob("*.md")))
SETTINGS = (ROOT / "docs" / "reference" / "client-settings.md").read_text(encoding="utf-8")

PRODUCER_SETTINGS = SETTINGS.split("## Settings of a producer", 1)[1].split("\n## ", 1)[0]

# RocketMQ's table of a producer's settings, with its defaults as far as ours are the same.
PRODUCER_TABLE: dict[str, Any] = {
    "producerGroup": "payments",
    "createTopicKey": "TBW102",
    "defaultTopicQueueNums": 4,
    "sendMsgTimeout": 10_000,
    "compressMsgBodyOverHowmuch": 4096,
    "retryAnotherBrokerWhenNotStoreOK": False,
    "maxMessageSize": 131_072,
    "transactionCheckListener": lambda _message: None,
    "checkThreadPoolMinSize": 1,
    "checkThreadPoolMaxSize": 1,
    "checkRequestHoldMax": 2000,
}
OTHER_DEFAULTS = {"producerGroup": "", "maxMessageSize": 4 << 20, "transactionCheckListener": None}


def test_every_row_has_a_test_and_every_test_its_row() -> None:
    rows = re.findall(r"^\| ([A-Z]+\d+) \|", TEXT, re.MULTILINE)
    assert len(rows) == len(set(rows)) > 10
    named: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for told in re.findall(r"docs/reference/semantics, rows? ([A-Z]\d[A-Z\d, and]*)", path.read_text(encoding="utf-8")):
            named.update(re.findall(r"[A-Z]+\d+", told))
    assert named == set(rows)


def test_statuses_and_settings_are_all_described() -> None:
    assert {status.value for status in SendStatus} <= set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    settings = PRODUCER_SETTINGS
    for upstream, own in UPSTREAM_NAMES.items():
        assert upstream in settings
        assert re.search(rf"\b{own}\b", settings)
    for upstream, own in CHECK_NAMES.items():
        assert re.search(rf"^\| .*\b{upstream}\b.* \| .*\b{own}\b.* \| `TransactionProducer` only", settings, re.MULTILINE)
    assert f"sendMsgTimeout [{ProducerOptions().send_timeout_ms}]" in settings
    push = SETTINGS.split("## Settings of a push consumer", 1)[1].split("\n## ", 1)[0]
    for upstream, own in PUSH_NAMES.items():
        assert upstream in push
        assert re.search(rf"\b{own}\b", push)
    assert set(PRODUCER_TABLE) <= set(UPSTREAM_NAMES) | set(CHECK_NAMES)
    assert "syncFlushTimeout" in StoreConfig.names()


@pytest.mark.parametrize("name", PRODUCER_TABLE)
def test_every_setting_of_the_table_is_taken_by_the_producer_it_belongs_to(name: str) -> None:
    """With the default that the table tells, and refused by name where it does not belong."""
    listener = PRODUCER_TABLE["transactionCheckListener"]
    given = {"producerGroup": "payments", "transactionCheckListener": listener} | {name: PRODUCER_TABLE[name]}
    TransactionProducer("127.0.0.1:9876", **given)
    own = UPSTREAM_NAMES.get(name) or CHECK_NAMES[name]
    if name in CHECK_NAMES:
        with pytest.raises(InvalidArgumentError, match=f"{name} is a setting of TransactionProducer"):
            Producer("127.0.0.1:9876", **{name: PRODUCER_TABLE[name]})
        default = getattr(CheckOptions(lambda _: None), own) if name != "transactionCheckListener" else None
    else:
        Producer("127.0.0.1:9876", **{name: PRODUCER_TABLE[name]})
        default = getattr(ProducerOptions(), own)
    assert default == OTHER_DEFAULTS.get(name, PRODUCER_TABLE[name])
    told = str(default or "none") if default is not False else "false"
    (row,) = [line for line in PRODUCER_SETTINGS.splitlines() if re.match(rf"\| [^|]*\b{name}\b", line)]
    assert re.search(rf"\b{name} \[{told}[;\]]", row)


def test_settings_of_a_producer_of_transactions_are_checked_together() -> None:

    def make(**settings: Any) -> TransactionProducer:
        return TransactionProducer("127.0.0.1:9876", "payments", **{"check_listener": lambda _: None} | settings)

    assert make(checkThreadPoolMinSize=3, checkThreadPoolMaxSize=2)._check_threads == 3
    assert make(checkThreadPoolMinSize=3, checkThreadPoolMaxSize=5)._check_threads == 5
    assert make(check_threads=4)._check_threads == 4
    for wrong in (
        {"check_listener": None},
        {"check_listener": 5},
        {"transactionCheckListener": print},
        {"check_threads": 2, "checkThreadPoolMaxSize": 3},
        {"check_threads": 0},
        {"checkRequestHoldMax": 0},
    ):
        with pytest.raises(InvalidArgumentError):
            make(**wrong)
    with pytest.raises(InvalidNameError):
        TransactionProducer("127.0.0.1:9876", check_listener=print)  # type: ignore[arg-type]
