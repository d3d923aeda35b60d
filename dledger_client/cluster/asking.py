"""Asking one of several addresses, without waiting long for a silent one.

Owns the order of the questions: the next address is asked when one has failed, or in parallel when none has answered for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dledger_wire.errors import AuthenticationFailedError, ClientClosedError, DledgerError, PermissionDeniedError

MAX_REFUSALS = 2  # a password that two nodes do not accept is wrong: the others are not asked, nor is it tried again
HEDGE_S = 0.15  # without an answer by then, the next address is asked in parallel

Answer = TypeVar("Answer")


async def ask_in_turn(
    next_address: Callable[[], str | None], ask: Callable[[str], Coroutine[Any, Any, Answer]], problems: list[DledgerError]
) -> tuple[str, Answer] | None:
    """The first answer, and whose it is; None when nobody gave one, with the reasons in ``problems``.

    ``next_address`` says whom to ask next, None for nobody; it is called again after every answer, which may have told of others.
    """
    asked: dict[asyncio.Task[Answer], str] = {}
    try:
        while True:
            address = next_address() if _refusals(problems) < MAX_REFUSALS else None
            if address is not None:
                asked[asyncio.ensure_future(ask(address))] = address
            if not asked:
                return None
            await asyncio.wait(asked, timeout=None if address is None else HEDGE_S, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                answered = asked.pop(task)
                error = task.exception()
                if error is None:
                    return answered, task.result()
                if not isinstance(error, DledgerError):
                    raise error
                problems.append(error)
    finally:
        drop(*asked)


def _refusals(problems: Sequence[DledgerError]) -> int:
    return sum(isinstance(error, AuthenticationFailedError) for error in problems)


def refused(problems: Sequence[DledgerError]) -> DledgerError | None:
    """The error of a node that knows the caller as nobody, or refuses it, or of a closed client: no other node will answer otherwise."""
    final = AuthenticationFailedError | ClientClosedError | PermissionDeniedError
    return next((error for error in problems if isinstance(error, final)), None)


def drop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks whose outcome does not matter any more, also in a coroutine that is being closed, which may not wait for them."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
