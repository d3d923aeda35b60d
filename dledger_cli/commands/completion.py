"""Names that the shell completes from the running cluster: topics and consumer groups.

Owns that completion is quick and silent: no answer within a moment, or an error, is no names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

PATIENCE_S = 2.0


def topics(incomplete: str) -> list[str]:
    async def ask() -> Iterable[str]:
        from dledger_cli.commands.topic import all_topics
        from dledger_cli.context import load_config_async

        return [topic["name"] for topic in await all_topics(await load_config_async(), PATIENCE_S)]

    return _names(incomplete, ask)


def consumer_groups(incomplete: str) -> list[str]:
    async def ask() -> Iterable[str]:
        from dledger_cli.commands.group_members import all_members, positions_of
        from dledger_cli.context import load_config_async

        cluster = await load_config_async()
        positions = await positions_of(cluster, [], PATIENCE_S)
        return {*await all_members(cluster, PATIENCE_S), *(group for group, *_ in positions)}

    return _names(incomplete, ask)


def _names(incomplete: str, ask: Callable[[], Awaitable[Iterable[str]]]) -> list[str]:
    from dledger_cli.context import run
    from dledger_wire.errors import DledgerError

    async def in_time() -> Iterable[str]:
        async with asyncio.timeout(PATIENCE_S):
            return await ask()

    try:
        found = run(in_time())
    except (DledgerError, OSError, TimeoutError):
        return []
    return sorted(name for name in set(found) if name.startswith(incomplete))
