"""Names that the shell completes from the running cluster: topics and consumer groups.

Completion is quick and silent: without an answer in time, or with an error, there are no names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger_client.aio import Admin

TIMEOUT_S = 2.0


def topics(incomplete: str) -> list[str]:
    async def names(admin: Admin) -> Iterable[str]:
        return [topic.topic for topic in await admin.list_topics(or_followers=True)]

    return _names(incomplete, names)


def consumer_groups(incomplete: str) -> list[str]:
    async def names(admin: Admin) -> Iterable[str]:
        return [group.name for group in await admin.list_groups()]

    return _names(incomplete, names)


def _names(incomplete: str, names: Callable[[Admin], Awaitable[Iterable[str]]]) -> list[str]:
    from dledger_cli.context import bootstrap_of, run
    from dledger_client.aio import Admin
    from dledger_wire.errors import DledgerError

    async def found() -> Iterable[str]:
        async with asyncio.timeout(TIMEOUT_S), Admin(bootstrap_of(), timeout_ms=int(TIMEOUT_S * 1000)) as admin:
            return await names(admin)

    try:
        return sorted(name for name in set(run(found())) if name.startswith(incomplete) and name.isprintable())
    except (DledgerError, OSError, TimeoutError):
        return []
