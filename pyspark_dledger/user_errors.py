"""Removes tracebacks from errors that Spark shows to users.

Spark prints the Python traceback of every failure.  A ``DledgerError`` says in one line what is wrong, so it leaves the
methods that Spark calls without traceback and cause; any other error keeps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from dledger_wire.errors import DledgerError
from dledger_wire.printable import printable_lines

C = TypeVar("C", bound=type)


def concise_errors(cls: C) -> C:
    """Class decorator for the classes whose methods Spark calls."""
    for name, member in list(vars(cls).items()):
        if callable(member) and not name.startswith("_"):
            setattr(cls, name, _plain(member))
    return cls


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)  # Spark inspects the number of parameters
    def called(*rest: Any, **named: Any) -> Any:
        try:
            result = method(*rest, **named)
        except DledgerError as error:
            raise _shown(error) from None
        return _iterated(result) if isinstance(result, Generator) else result

    return called


def _shown(error: DledgerError) -> DledgerError:
    """The error without its traceback, and with a text that does nothing to a terminal."""
    error.args = (printable_lines(error.message),)
    return error.with_traceback(None)


def _iterated(rows: Generator[Any]) -> Generator[Any]:
    try:
        yield from rows
    except DledgerError as error:
        raise _shown(error) from None
