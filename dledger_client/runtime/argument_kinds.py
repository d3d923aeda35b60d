"""Arguments that are of another kind than their annotation says, told by name in place of what the work with them failed with.

Looked at only when a call has failed: a check of its own that knows more goes first, and what works with another kind goes on to work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any, TypeVar

from dledger_client.runtime.argument_ranges import check_encodable
from dledger_wire.errors import InvalidArgumentError

Client = TypeVar("Client", bound=type)


def tells_wrong_kinds(client: Client) -> Client:
    """Decorator of a client's class, and of its bases: InvalidArgumentError for an argument of another kind, no TypeError from within."""
    for owner in client.__mro__:
        for name, method in list(vars(owner).items()):
            if name.startswith("_") or not inspect.isfunction(method) or not inspect.iscoroutinefunction(inspect.unwrap(method)):
                continue
            setattr(owner, name, _telling(method))
    return client


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(method).parameters)

    @functools.wraps(method)
    async def called(*args: Any, **given: Any) -> Any:
        try:
            return await method(*args, **given)
        except (TypeError, AttributeError, ValueError) as error:
            _check(method, dict(zip(names, args, strict=False)) | given, error)
            raise

    return called


def _check(method: Callable[..., Any], given: Mapping[str, Any], error: Exception) -> None:
    parameters = inspect.signature(method).parameters
    for name in (each for each in parameters if each in given):
        value, annotation = given[name], str(parameters[name].annotation)
        if value is None and annotation.endswith(" | None"):
            continue
        kind = _KINDS.get(annotation.removesuffix(" | None"))
        if kind is not None:
            try:
                kind(name, value)
            except InvalidArgumentError as told:
                raise told from error


def _text(name: str, value: Any) -> None:
    check_encodable(**{name: value})


def _whole_number(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} {value!r}: expected a whole number")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, Integral):
        raise InvalidArgumentError(f"{name} {value!r}: expected True or False")


def _whole_numbers(name: str, value: Any) -> None:
    if not isinstance(value, Iterable) or not all(isinstance(each, Integral) for each in value):
        raise InvalidArgumentError(f"{name} {value!r}: expected a list of whole numbers")


def _descriptions(name: str, value: Any) -> None:
    if not isinstance(value, Iterable) or not all(hasattr(each, "members") for each in value):
        raise InvalidArgumentError(f"{name} {value!r}: expected descriptions of consumer groups, as describe_groups returns them")


_KINDS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("str", "Action", "LogLevel", "ResetTarget", "ResourceType"), _text),
    "int": _whole_number,
    "bool": _flag,
    "Iterable[int]": _whole_numbers,
    "Iterable[ConsumerGroupDescription]": _descriptions,
}
