"""A cluster that RocketMQ's clients use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.rocketmq import RocketmqCluster

TIMERS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(tmp_path / "data", settings={"broker": TIMERS})
    try:
        made.start()
        yield made
    finally:
        made.end()
