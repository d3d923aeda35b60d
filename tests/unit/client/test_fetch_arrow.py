"""Messages as a table of Arrow, against real nodes in virtual time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dledger_client.aio import Message
from dledger_client.fetch.arrow_types import ARROW_COLUMNS
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from tests.unit.client.sim_rig import Rig


def test_a_table_has_what_the_messages_have() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"%d" % number for number in range(300)], keys=["k"] * 300, tags="a")
            await producer.send(Message("t", b"x" * 9_000, properties={"p": "v"}))
            table = await consumer.fetch_arrow("t", 0, 0)
            messages = await consumer.fetch("t", 0, 0, 1_000)
            assert tuple(table.column_names) == ARROW_COLUMNS
            place = {b"replica_group": b"g0", b"queue_id": b"0", b"next_offset": b"301", b"max_offset": b"301"}
            assert table.schema.metadata == place
            assert table["queue_offset"].to_pylist() == list(range(301))
            assert table["body"].to_pylist() == [message.body for message in messages]
            assert table["msg_id"].to_pylist() == [message.msg_id for message in messages]
            assert table["keys"].to_pylist() == [message.keys or None for message in messages]
            assert table["tags"].to_pylist() == [message.tags or None for message in messages]
            stamps = table["store_timestamp"].cast(pa.int64()).to_numpy() // 1000
            assert np.array_equal(stamps, [message.store_timestamp for message in messages])
            (row,) = (await consumer.fetch_arrow("t", 0, 300, columns=["properties", "group", "queue_id"])).to_pylist()
            assert dict(row["properties"])["p"] == "v"
            assert (row["group"], row["queue_id"]) == ("g0", 0)

    Rig().run(scenario)


def test_reading_goes_on_behind_what_was_filtered_and_at_the_end() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send_many("t", [b"%d" % number for number in range(100)], tags=["a", "b", "", "Aa", "BB"] * 20)
            found: list[Any] = []
            offset = 0
            while offset < 100:
                table = await consumer.fetch_arrow("t", 0, offset, 30, tags="a || Aa", columns=["body", "tags"])
                found += table.to_pylist()
                offset = int(table.schema.metadata[b"next_offset"])
            assert [row["body"] for row in found] == [
                b"%d" % number for number in range(100) if number % 5 in (0, 3)
            ]  # BB has the hash of Aa
            end = await consumer.fetch_arrow("t", 0, 100)
            assert end.num_rows == 0
            assert tuple(end.column_names) == ARROW_COLUMNS
            assert end.schema.metadata[b"next_offset"] == b"100"
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.fetch_arrow("t", 0, 101)

    Rig().run(scenario)


@pytest.mark.parametrize("columns", ["body", [], ["nobody"], ["body", "body"]])
def test_columns_that_there_are_not_are_told_with_those_there_are(columns: Any) -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.consumer() as consumer:
            with pytest.raises(InvalidArgumentError, match=r"columns .*(expected a list of topic, queue_id|named twice)"):
                await consumer.fetch_arrow("t", 0, 0, columns=columns)

    Rig().run(scenario)


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    async def scenario(rig: Rig) -> None:
        async with rig.consumer() as consumer:
            with pytest.raises(InvalidArgumentError, match=r"Arrow needs pyarrow .*: pip install 'pyarrow>=18'"):
                await consumer.fetch_arrow("t", 0, 0)

    Rig().run(scenario)
