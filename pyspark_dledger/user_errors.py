"""Errors as users are to see them: Spark prints the Python traceback of whatever fails, and ours say what is wrong in one line.

Owns the cut: an operating error leaves the methods that Spark calls without the frames and causes behind it; any other error keeps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from dledger_wire.errors import DledgerError

C = TypeVar("C", bound=type)


def plain_errors(cls: C) -> C:
    """Class decorator: of every public method."""
    for name, member in list(vars(cls).items()):
        if callable(member) and not name.startswith("_"):
            setattr(cls, name, _plain(member))
    return cls


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)  # Spark looks at the number of parameters
    def called(*rest: Any, **named: Any) -> Any:
        try:
            result = method(*rest, **named)
        except DledgerError as error:
            raise error.with_traceback(None) from None
        return _iterated(result) if isinstance(result, Generator) else result

    return called


def _iterated(rows: Generator[Any]) -> Generator[Any]:
    try:
        yield from rows
    except DledgerError as error:
        raise error.with_traceback(None) from None
