"""What a process keeps from one task or look to the next: modules, and clients with their connections, routes and places at brokers.

Spark reuses its Python workers.  A forked child makes clients of its own, since connections and threads do not survive a fork.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from dledger_client.runtime.allocator import keep_large_blocks

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


_modules_frozen = 0  # how many were loaded then


def freeze_loaded() -> None:
    """Take what one of Spark's workers has loaded, and its clients, out of garbage collection.  Called at the end of a task.

    Such a worker collects after each task, and only then takes the next one.  Looking at all objects of pyarrow, numpy and our own modules
    took it 80 ms, more than a small task.  Garbage is collected here first: what is frozen stays as long as the process.
    """
    global _modules_frozen
    if len(sys.modules) > _modules_frozen and is_spark_worker():
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


def is_spark_worker() -> bool:
    """Whether this process was forked by Spark's daemon; elsewhere the collections are the user's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


class PerProcess(Generic[Key, Value]):
    """One value for each key in each process."""

    def __init__(self) -> None:
        self._values: dict[Key, Value] = {}
        self._process_id = 0

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made when there is none."""
        if self._process_id != os.getpid():
            self._values, self._process_id = {}, os.getpid()
            if is_spark_worker():
                keep_large_blocks()
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]

    def drop(self, key: Key, value: Value) -> None:
        """Forget a value that can no longer be used."""
        if self._values.get(key) is value:
            del self._values[key]
