"""Faces of classes that a compiled wheel has compiled (docs/adr/0035): what applications see of them stays Python.

A compiled class has no docstrings, no annotations and no source, and a Python class derived from it costs what compiling saved: its
objects are known to the garbage collector, which looks at each that waits.  So the face is written as such a derived class, and moves into
its base.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Face = TypeVar("Face", bound=type)

# What belongs to the derived class alone; its ``__init__`` says how an object is made, that of the base makes it.
_LEFT = {"__init__", "__slots__", "__dict__", "__weakref__", "__annotations__"}


class _Signature:
    """``__signature__`` of a class and of those below it that are made alike."""

    def __init__(self, kind: Any, init: Callable[..., None]) -> None:
        of_objects = inspect.signature(init)
        self._init = kind.__init__
        self._signature = of_objects.replace(parameters=list(of_objects.parameters.values())[1:])

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        if owner.__init__ is not self._init:
            raise AttributeError("__signature__")
        return self._signature


def face_of(base: Any) -> Callable[[Face], Face]:
    """Decorates a class derived from ``base``: ``base`` gets its methods, names and docstring, and stands in its place."""

    def moved(face: Any) -> Any:
        for name, value in vars(face).items():
            if name not in _LEFT:
                setattr(base, name, value)
        base.__name__, base.__qualname__ = face.__name__, face.__qualname__
        if not hasattr(base, "__slots__"):
            base.__slots__ = tuple(sorted(base.__mypyc_attrs__))  # a compiled class has its fields' names there
        init = vars(face).get("__init__")
        if init is not None:
            if isinstance(base.__init__, FunctionType):
                functools.update_wrapper(base.__init__, init)
            base.__signature__ = _Signature(base, init)
        return base

    return moved
