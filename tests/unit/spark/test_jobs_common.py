"""What the jobs share, without Java."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from pyspark_dledger.jobs.common import RowCounter


def test_a_listener_goes_when_it_has_heard_the_querys_end() -> None:
    """Spark tells it in a thread of its own, behind the end of the query."""
    listeners: list[RowCounter] = []
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=listeners.append, removeListener=listeners.remove))
    heard: list[int] = []

    def tell() -> None:
        heard.append(len(listeners))
        listeners[0].onQueryTerminated(None)

    with RowCounter.listening(spark, "job"):
        telling = threading.Thread(target=tell)
        telling.start()
    telling.join()
    assert (heard, listeners) == ([1], [])
