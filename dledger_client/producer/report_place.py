"""Where the result of a send will be found: the bases of its futures.

A producer makes one for each message.  Compiled where the wheel is (docs/adr/0035), and then unknown to the garbage collector, which would
look at all that wait: a cycle through one ends when its report is settled, since that drops the callbacks.
"""

from __future__ import annotations

from typing import Any

from dledger_client.compiler_hints import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)
class ReportPlace:
    """A report of a batch (``delivery_report.DeliveryReport``), and the index of a message in the batch: the base of all futures."""

    __slots__ = ("_index", "_report")

    _report: Any
    _index: int

    def __init__(self, report: Any, index: int) -> None:
        self._report = report
        self._index = index


@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)
class MessagePlace(ReportPlace):
    """The same of one message: the base of ``SendFuture``."""

    __slots__ = ()


@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)
class AsyncMessagePlace(MessagePlace):
    """The same for asyncio: the base of ``AsyncSendFuture``."""

    __slots__ = ()

    def __await__(self) -> Any:
        """``AsyncSendFuture`` has its own; a compiled class can only be awaited if it is compiled with one."""
        raise NotImplementedError
