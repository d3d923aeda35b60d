"""Clients that a process keeps from one task or look to the next: connections, routes and producers' places at brokers outlive a task.

Spark reuses its Python workers.  A forked child makes clients of its own, since connections and threads do not survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class PerProcess(Generic[Key, Value]):
    """One value for each key in each process."""

    def __init__(self) -> None:
        self._values: dict[Key, Value] = {}
        self._process_id = 0

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made when there is none."""
        if self._process_id != os.getpid():
            self._values, self._process_id = {}, os.getpid()
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]

    def drop(self, key: Key, value: Value) -> None:
        """Forget a value that can no longer be used."""
        if self._values.get(key) is value:
            del self._values[key]
