"""Old names of parameters and attributes: they work for one version and warn.

Rules: the signature and the type have the new name only, so that type checkers refuse the old one.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """The DeprecationWarning of a use of an old name; ``stacklevel`` leads to the user's line."""
    warnings.warn(f"{old} is deprecated, use {new}; the old name will be removed in the next version", DeprecationWarning, stacklevel)


def renamed_arguments(**new_by_old: str) -> Callable[[Function], Function]:
    """Decorator of methods: keyword arguments may be given by their old names too.  TypeError for one given by both."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def accepting(*args: Any, **given: Any) -> Any:
            for old in given.keys() & new_by_old.keys():
                new, called = new_by_old[old], f"{type(args[0]).__name__}.{function.__name__}"  # users do not know its base classes
                if new in given:
                    raise TypeError(f"{called}() got {old!r} and {new!r}, which are the same argument")
                warn_renamed(f"{called}({old}=)", f"{new}=")
                given[new] = given.pop(old)
            return accepting.__wrapped__(*args, **given)

        return cast(Function, accepting)

    return decorate


class RenamedAttribute:
    """An attribute's old name: reads and writes the new one, and warns."""

    def __init__(self, new: str) -> None:
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        warn_renamed(f"{owner.__name__}.{self._old}", self._new)
        return getattr(instance, self._new)

    def __set__(self, instance: Any, value: Any) -> None:
        warn_renamed(f"{type(instance).__name__}.{self._old}", self._new)
        setattr(instance, self._new, value)
