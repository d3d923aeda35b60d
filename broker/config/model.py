"""Settings as dataclasses: made of what YAML gives, with strict types, and with every mistake at its place.

Owns what the annotation of a setting means.  A function in ``Annotated[T, check]`` takes what was given and returns the value; it raises
ValueError with what was expected and what was given.  Commands that only connect read a cluster file in milliseconds with it.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Collection, Iterable, KeysView
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, dataclass_transform, get_args, get_origin, get_type_hints

from broker.config.yaml_marks import Problem

Place = tuple[str | int, ...]
LeftOut = list[Problem] | None  # where mistakes go that something can be read without; None: all are raised

_EXPECTED = {str: "text", bool: "true or false", list: "a list"}


class Mistakes(ValueError):
    """All of a block, in the order of its settings; unknown ones come last."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class ConfigModel:
    """Base of all models: types are strict, and unknown settings are mistakes.

    Attributes:
        given_names: The settings that the file has; the others have their defaults.
    """

    given_names: ClassVar[Collection[str]] = ()
    _settings: ClassVar[dict[str, tuple[Any, bool]]]  # name: annotation, and whether it is required

    def __init_subclass__(cls) -> None:
        model: Any = dataclass(frozen=True, kw_only=True)(cls)
        hints = get_type_hints(model, include_extras=True)
        cls._settings = {each.name: (hints[each.name], each.default is each.default_factory is MISSING) for each in fields(model)}

    @classmethod
    def names(cls) -> KeysView[str]:
        """All settings of the block."""
        return cls._settings.keys()

    @classmethod
    def prepared(cls, given: object) -> object:
        """What is read in place of ``given``, for models that can be written in several ways.  ValueError as of a check."""
        return given

    @classmethod
    def made(cls, given: object, place: Place = (), left_out: LeftOut = None) -> Self:
        """The block that stands at ``place``.  Mistakes has all that is wrong with it.

        ``left_out`` takes mistakes, and settings and items that have one are left out, unless the block requires them.
        """
        given = _checked(cls.prepared, given, place)
        if not isinstance(given, dict):
            raise Mistakes(Problem(place, f"expected a mapping of settings, got {got(given)}"))
        parts = [(name, hint, given[name]) for name, (hint, _) in cls._settings.items() if name in given]
        unknown = [Problem((*place, str(name)), _unknown(str(name), cls.names())) for name in given if name not in cls.names()]
        values, problems = _values(parts, place, left_out)
        there = given if left_out is None else values
        lacking = [name for name, (_, required) in cls._settings.items() if required and name not in there]
        problems += [Problem((*place, name), "required setting is missing") for name in lacking]
        (problems if left_out is None else left_out).extend(unknown)
        if problems:
            raise Mistakes(*problems)
        return cls(**values).changed(given_names=values.keys())

    def changed(self, **values: object) -> Self:
        """A copy with other values, which are not checked."""
        made = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made


def _values(parts: Iterable[tuple[Any, Any, Any]], place: Place, left_out: LeftOut) -> tuple[dict[Any, Any], list[Problem]]:
    """By name or number, of (name, annotation, given); and the mistakes to raise."""
    values: dict[Any, Any] = {}
    problems: list[Problem] = []
    for name, hint, given in parts:
        try:
            values[name] = _value(hint, given, (*place, name), left_out)
        except Mistakes as error:
            (problems if left_out is None else left_out).extend(error.problems)
    return values, problems


def _value(hint: Any, given: Any, place: Place, left_out: LeftOut) -> Any:
    """``given`` as the annotation has it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if get_origin(parts[0]) is list:  # how many there are counts without those that were left out
            given = _value(parts[0], given, place, left_out)
        return _checked(parts[1], given, place)
    if origin in (Union, UnionType):
        return None if given is None else _value(parts[0], given, place, left_out)
    if isinstance(hint, type) and issubclass(hint, ConfigModel):
        return hint.made(given, place, left_out)
    if given not in parts if origin is Literal else not isinstance(given, origin or hint):
        expected = one_of(parts) if origin is Literal else _EXPECTED[origin or hint]
        raise Mistakes(Problem(place, f"expected {expected}, got {got(given)}"))
    if origin is not list:
        return given
    values, problems = _values([(number, parts[0], item) for number, item in enumerate(given)], place, left_out)
    if problems:
        raise Mistakes(*problems)
    return list(values.values())


def _checked(check: Callable[[object], object], given: object, place: Place) -> Any:
    try:
        return check(given)
    except ValueError as error:
        raise Mistakes(Problem(place, str(error))) from None


def _unknown(name: str, known: Collection[str]) -> str:
    """``unknown setting``, with the nearest name that exists at that place."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"unknown setting; did you mean {by_lower[near[0]]}?" if near else f"unknown setting; expected one of {', '.join(known)}"


def one_of(values: Collection[object]) -> str:
    """``'a', 'b' or 'c'``."""
    return " or ".join(", ".join(map(repr, values)).rsplit(", ", 1))


def got(value: object) -> str:
    """What was given, in an error."""
    return kind_of(value) if isinstance(value, dict | list) else repr(value)


def kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    return {"dict": "a mapping", "list": "a list", "str": "text"}.get(type(value).__name__, repr(value))
