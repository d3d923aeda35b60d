"""Clients of a worker process, reused by its tasks: brokers keep state per producer."""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

from pyspark_dledger.options.access import AccessOptions
from pyspark_dledger.options.model import WriteOptions
from pyspark_dledger.per_process import PerProcess


class WorkerClients:
    """Base of the clients of each writer."""

    _kept: ClassVar[PerProcess[tuple[type, str, int, AccessOptions], Any]] = PerProcess()

    def __init__(self, options: WriteOptions) -> None:
        raise NotImplementedError

    @classmethod
    def of_this_process(cls, options: WriteOptions) -> Self:
        return cast(Self, cls._kept.get((cls, options.bootstrap, options.send_timeout_ms, options.access), lambda: cls(options)))
