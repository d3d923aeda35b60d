"""What every asyncio client has: its ``async with``, how it is shown, and the warning when it is left open."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from dledger_client.unclosed import warn as warn_unclosed


class AsyncClient:
    """A client that is closed once.  One that warns when it is left open sets ``_is_wrapped`` at the end of its constructor."""

    _bootstrap: str
    _is_wrapped: bool  # by a synchronous client, which warns itself when it is left open

    @property
    def _description(self) -> str:
        """A name of this client, for people."""
        return f"at {self._bootstrap}"

    @property
    def _is_left_open(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._description}>"

    def __del__(self) -> None:
        if not getattr(self, "_is_wrapped", True) and self._is_left_open:
            warn_unclosed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError
